"""An `envbuilder` for scripts of tests that starts at once: it forks from a process that has imported every command.

It behaves as the real program in its arguments, environment, folder, streams and exit code. Signals do not reach it.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from envbuilder import cli
from envbuilder.commands import COMMANDS
from envbuilder.compat.context import load_tables

ROOT: Final = Path(__file__).parents[2]
_MOST: Final = 1 << 20  # bytes of a call
# The program that scripts start. It imports little: that is most of its time. A first line can name no path with a blank,
# so it is the Python that the checkout's own one is a link to.
_CLIENT: Final = """\
#!{python} -IS
import os, socket, sys
from json import dumps
call = dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({place!r})
    socket.send_fds(server, [call], [0, 1, 2])
    sys.exit(int(server.recv(9)))
"""


@contextlib.contextmanager
def warm_envbuilder(folder: Path) -> Iterator[Path]:
    """Write the program `envbuilder` into a new folder, and yield that folder. It works until the block ends."""
    place, program = folder / "socket", folder / "bin/envbuilder"
    program.parent.mkdir()
    program.write_text(_CLIENT.format(python=Path(sys.executable).resolve(), place=str(place)))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(place))
        listening.listen()
        argv = [sys.executable, "-m", "tests.support.warm", str(listening.fileno())]
        server = subprocess.Popen(argv, cwd=ROOT, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)
    try:
        yield program.parent
    finally:
        server.terminate()
        server.wait()


def serve(listening: socket.socket) -> NoReturn:
    for name in COMMANDS:
        cli.load_command(name)
    load_tables()
    gc.freeze()  # a collection in a child would copy all of it
    signal.signal(signal.SIGTERM, lambda *_: (reap(), sys.exit(0)))
    while True:
        call, _ = listening.accept()
        reap()
        if os.fork() == 0:  # waits for the command, which may replace itself by another program
            listening.close()
            command = os.fork()
            if command == 0:
                answer(call)
            _, status = os.waitpid(command, 0)
            call.send(b"%d" % (os.waitstatus_to_exitcode(status) % 256))
            os._exit(0)
        call.close()


def reap() -> None:
    """Wait for the calls that have ended, so that their CPU time counts as that of this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def answer(call: socket.socket) -> NoReturn:
    """Run one command line as the program that called."""
    data, streams, _, _ = socket.recv_fds(call, _MOST, 3)
    arguments, folder, environment = json.loads(data)
    for ours, theirs in enumerate(streams):
        os.dup2(theirs, ours)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = cli.run(arguments)
    sys.stdout.flush()
    os._exit(code)  # which does not free what the server needs: that would copy it first


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        serve(listening)
