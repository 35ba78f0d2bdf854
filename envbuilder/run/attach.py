"""Join a container's streams to ours: what `docker run -it` does, through the Docker SDK.

`run` uses it for `exec` and `shell`. With a terminal the keys go in as they are pressed, Ctrl-C among them; without one the
signals that we get are handed on.
"""

import contextlib
import os
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

from docker.utils.socket import frames_iter

if TYPE_CHECKING:
    from types import FrameType

    from docker.models.containers import Container

HANDED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
CHUNK: Final = 1 << 16
ERRORS: Final = 2  # the number of stderr in Docker's frames


def converse(container: "Container", start: Callable[[], None], *, terminal: bool) -> int:
    """Attach, `start`, and stay until the container ends; returns its exit code."""
    wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    stream = container.attach_socket(params=wanted)
    wire = cast("socket.socket", getattr(stream, "_sock", stream))  # the SDK wraps it, for reading alone
    with contextlib.closing(wire):
        start()
        with _raw_terminal(container) if terminal else _signals_handed_on(container):
            threading.Thread(target=_send_input, args=(wire,), daemon=True).start()
            for kind, data in frames_iter(stream, tty=terminal):  # type: ignore[no-untyped-call]
                sink = sys.stderr if kind == ERRORS else sys.stdout
                sink.buffer.write(data)
                sink.buffer.flush()
            return int(container.wait()["StatusCode"])


def _send_input(wire: socket.socket) -> None:
    """Our standard input, to its end; the container may end first."""
    with contextlib.suppress(OSError):
        while data := os.read(sys.stdin.fileno(), CHUNK):
            wire.sendall(data)
        wire.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _signals_handed_on(container: "Container") -> Iterator[None]:
    def hand_on(number: int, _frame: "FrameType | None") -> None:
        with contextlib.suppress(OSError):  # the container has just ended
            container.kill(signal=number)

    before = {number: signal.signal(number, hand_on) for number in HANDED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _raw_terminal(container: "Container") -> Iterator[None]:
    """Every key is the container's until the end, and its terminal has the size of ours."""
    keyboard = sys.stdin.fileno()

    def resize(*_: object) -> None:
        columns, rows = os.get_terminal_size(keyboard)
        with contextlib.suppress(OSError):
            container.resize(height=rows, width=columns)

    before, handler = termios.tcgetattr(keyboard), signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(keyboard)
        resize()
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
