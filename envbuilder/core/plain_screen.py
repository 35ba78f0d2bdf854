"""Lines on stderr where it is a log or a pipe. `screen.py` draws what a terminal shows, and imports rich for that."""

import sys
import threading

from envbuilder.core.text.redact import plain

Part = str | tuple[str, str]  # of a line: a text, or a text and its style


class PlainScreen:
    """What all consoles of a process write to: lines without color, and no live view."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._guard = threading.Lock()

    def show(self, *parts: Part) -> None:
        """Print one line."""
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        self.mark(plain(text).expandtabs())

    def mark(self, line: str) -> None:
        """Print the line unchanged, because a fold needs its carriage return."""
        with self._guard:
            if not self._quiet:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    def enter(self, _title: str, _total: int | None) -> None:
        """Begin a step. There is no view that shows it."""

    def leave(self, _view: object, *last: Part) -> None:
        """Print the last line of a step."""
        self.show(*last)

    def close(self) -> None:
        """Leave stderr as it is."""
