"""A real terminal of a given size. tmux draws it and returns what a person would see."""

import contextlib
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class Terminal:
    """One window in which one command line runs after another."""

    def __init__(self, folder: Path, socket: Path, width: int, height: int, env: dict[str, str]) -> None:
        self._argv = ("tmux", "-S", str(socket), "-f", "/dev/null")
        self._end = socket.with_name("end")
        settings = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        size = ("-x", str(width), "-y", str(height))
        self.tmux(
            "new-session", "-d", *size, "-c", str(folder), *settings, "env -u NO_COLOR -u COLUMNS PS1='> ' sh"
        )

    def tmux(self, *words: str) -> str:
        ended = subprocess.run([*self._argv, *words], capture_output=True, text=True, timeout=30, check=True)
        return ended.stdout

    def type(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def start(self, *argv: object) -> None:
        self._end.unlink(missing_ok=True)
        self.type(f"clear; {shlex.join(map(str, argv))}; echo $? >{self._end}", "Enter")

    def screen(self, *, joined: bool = False, colors: bool = False) -> list[str]:
        """Return the lines on the screen. `joined` joins lines that the terminal wrapped; `colors` keeps escape sequences."""
        text = self.tmux("capture-pane", "-p", *(["-J"] if joined else []), *(["-e"] if colors else []))
        return [line.rstrip() for line in text.rstrip("\n").splitlines()]

    def code(self, seconds: float) -> int:
        """Wait for the command line to end and return its exit code."""
        self.wait(lambda: self._end.exists() and self._end.read_text(), seconds)
        return int(self._end.read_text())

    def wait(self, condition: Callable[[], object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "\n".join(self.screen())
            time.sleep(0.05)

    def has_cursor(self) -> bool:
        return self.tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"


@contextlib.contextmanager
def terminal(folder: Path, scratch: Path, *, width: int, height: int = 50, **env: str) -> Iterator[Terminal]:
    """Open a terminal in `folder`. `scratch` holds its socket."""
    opened = Terminal(folder, scratch / "tmux", width, height, env)
    try:
        yield opened
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            opened.tmux("kill-server")
