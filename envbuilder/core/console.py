"""Show progress on stderr, steps with their time and transfers in bytes, and log it: to the terminal, and for each build.

At a terminal, one live view shows all running steps. Elsewhere, a step prints one line at its start
and one at its end.
"""

import contextlib
import copy
import functools
import getpass
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from envbuilder.core.budget import LOG
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.private import is_trusted
from envbuilder.core.system import NO_LINKS
from envbuilder.core.text.redact import plain

if TYPE_CHECKING:
    from envbuilder.core.screen import Part, Screen, View

LINE_EVERY: Final = 10.0  # seconds between two lines about one download, without a terminal
POLL: Final = 0.5  # seconds between two counts of what a program has done
SILENCE: Final = 5.0  # seconds without an answer, after which the user is told who is asked
_ENDED: Final = re.compile(r" end: (?P<title>.*) \((?P<seconds>\d+\.\d) s\)$", re.MULTILINE)


class Console:
    """Steps and transfers on stderr. Several threads may use it at once."""

    def __init__(self, *, color: bool = True, quiet: bool = False, folds: str = "") -> None:
        """`folds` names the CI system that folds its log: github, gitlab or ""."""
        self._folds = folds
        self._guard = threading.Lock()
        self._open = functools.cache(functools.partial(_open_screen, color=color, quiet=quiet))
        self.owner = ""

    def named(self, owner: str) -> "Console":
        """Return a console for one of several builds. Its lines begin with the name."""
        other = copy.copy(self)
        other.owner = owner
        return other

    @property
    def _screen(self) -> "Screen | PlainScreen":
        """Return what all consoles of this process write to; the first line opens it."""
        with self._guard:
            return self._open()

    def say(self, text: str) -> None:
        """Print one line, and log it."""
        self._log.info("%s", text)
        self._screen.show(self._titled(text))

    @property
    def _log(self) -> "logging.LoggerAdapter[logging.Logger]":
        return owned(logging.getLogger(__name__), self.owner)

    def _titled(self, text: str) -> str:
        return f"{self.owner}: {text}" if self.owner else text

    def ask_secret(self, question: str) -> str | None:
        """Ask for a secret without echo. Returns None without a terminal."""
        return getpass.getpass(question) if sys.stdin.isatty() else None

    @contextlib.contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Fold the lines of the block in the log of a CI system. The error of a failed block stays visible."""
        if not self._folds:
            yield
            return
        opening, closing = _fold(self._folds, title)
        self._screen.mark(opening)
        try:
            yield
        finally:
            self._screen.mark(closing)

    @contextlib.contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator["Step"]:
        """Show a step while it runs, and its time at the end.

        A transfer has a `total` of bytes. The caller calls `advance` for each part.
        """
        screen, shown = self._screen, self._titled(title)
        started = time.monotonic()
        view = screen.enter(shown, total)
        self._log.info("start: %s", title)
        if view is None:
            screen.show(("…", "dim"), " ", shown)
        step = Step(title=shown, total=total, say=screen.show, view=view)
        verdict = ("✗", "red")
        try:
            yield step
            verdict = ("-", "dim") if step.is_skipped else ("✓", "green")
        finally:
            seconds = time.monotonic() - started
            self._log.info("end: %s (%.1f s)", title, seconds)
            note = f" {step.note}" if step.note else ""
            screen.leave(view, verdict, " ", shown, (f"{note} ({seconds:.1f} s)", "dim"))

    @contextlib.contextmanager
    def waiting(self, pending: Callable[[], Iterable[str]]) -> Iterator[None]:
        """Print the addresses that have not answered yet, if the block takes longer than a few seconds."""
        over = threading.Event()

        def tell() -> None:
            if over.wait(SILENCE):
                return
            places = " and ".join(dict.fromkeys(pending()))
            if places and not over.is_set():
                self.say(f"  waiting for an answer from {places}")

        threading.Thread(target=tell, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def close(self) -> None:
        """Restore the terminal, even while steps run."""
        if self._open.cache_info().currsize:
            self._screen.close()


def _open_screen(*, color: bool, quiet: bool) -> "Screen | PlainScreen":
    if not sys.stderr.isatty():
        return PlainScreen(quiet=quiet)
    from envbuilder.core.screen import Screen  # noqa: PLC0415 - rich takes 0.1 s, and only a terminal needs it

    return Screen(color=color, quiet=quiet)


class PlainScreen:
    """What consoles write to where stderr is a log or a pipe: lines without color, and no live view."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._guard = threading.Lock()

    def show(self, *parts: "Part") -> None:
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        self.mark(plain(text).expandtabs())

    def mark(self, line: str) -> None:
        with self._guard:
            if not self._quiet:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    def enter(self, _title: str, _total: int | None) -> None:
        """Begin a step. There is no view that shows it."""

    def leave(self, _view: object, *last: "Part") -> None:
        self.show(*last)

    def close(self) -> None:
        """Leave stderr as it is."""


def ended_steps(log: str) -> tuple[tuple[str, float], ...]:
    """Return title and seconds of each step that ended, from the log of a build."""
    return tuple((found["title"], float(found["seconds"])) for found in _ENDED.finditer(log))


def folds(environment: Mapping[str, str]) -> str:
    """Return the CI system that folds its log, or ""."""
    if environment.get("GITHUB_ACTIONS") == "true":
        return "github"
    return "gitlab" if environment.get("GITLAB_CI") == "true" else ""


def _fold(system: str, title: str) -> tuple[str, str]:
    """Return the lines that open and close a fold, as the CI system documents them."""
    title = " ".join(plain(title).split())  # one line, which is the CI system's command
    if system == "github":
        return f"::group::{title}", "::endgroup::"
    name, now = re.sub(r"[^a-z0-9]+", "_", title.lower()), int(time.time())
    start = f"\x1b[0Ksection_start:{now}:{name}[collapsed=true]\r\x1b[0K{title}"
    return start, f"\x1b[0Ksection_end:{now}:{name}\r\x1b[0K"


@dataclass(slots=True, kw_only=True)
class Step:
    """The progress of a running step: its bytes, its items or its note."""

    title: str
    total: int | None
    say: Callable[[str], None]
    view: "View | None"  # None where there is no terminal
    note: str = ""
    has_items: bool = False  # `total` is a number of items and not of bytes
    is_skipped: bool = False
    _done: int = 0
    _began: float = field(default_factory=time.monotonic)
    _last_line: float = field(default_factory=time.monotonic)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, total: int, *, items: bool = False) -> None:
        """Begin to count up to this number of bytes or items. A step may count one thing after another."""
        self.total, self.has_items = total, items
        self._began = self._last_line = time.monotonic()
        self._done = 0
        self._update(total=total, completed=0, items=items)

    def advance(self, count: int) -> None:
        with self._guard:
            self._done += count
            self._update(completed=self._done)
            now = time.monotonic()
            if self.view is None and self.total and self._done and now - self._last_line > LINE_EVERY:
                self._last_line = now
                left = (now - self._began) * (self.total - self._done) / self._done
                unit, name = (1, "") if self.has_items else (1e6, " MB")
                share = f"{self._done / unit:.0f} of {self.total / unit:.0f}{name}"
                is_known = self._done * 10 >= self.total  # the first items say little about the others
                self.say(f"  {self.title}: {share}" + (f", {left:.0f} s left" if is_known else ""))

    @contextlib.contextmanager
    def following(self, count: Callable[[], int]) -> Iterator[None]:
        """Ask twice a second, while the block runs, how many items are done."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(POLL):
                self.advance(count() - self._done)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def skip(self, reason: str) -> None:
        """Say at the end that the step was not done, and why."""
        self.is_skipped = True
        self.show_note(f"skipped: {reason}")

    def show_note(self, note: str) -> None:
        with self._guard:
            self.note = plain(note)
            self._update(note=self.note)

    def _update(self, **changes: Any) -> None:
        if self.view:
            progress, line = self.view
            progress.update(line, **changes)


class _PlainFormatter(logging.Formatter):
    """Formats a line as `plain` leaves it: programs, servers and archives wrote parts of it."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def owned(log: logging.Logger, owner: str) -> "logging.LoggerAdapter[logging.Logger]":
    """Return a logger whose lines belong to the build `owner`, or to none with ""."""
    return logging.LoggerAdapter(log, {"owner": owner, "prefix": f"{owner}: " if owner else ""})


class _LogFile(logging.StreamHandler[TextIO]):
    """A log in which what programs print ends at a size. What envbuilder itself says follows whatever they print."""

    left = LOG

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        is_cut = self.left >= 0 > self.left - len(text)
        self.left -= len(text)
        note = f"\n… programs print more than {LOG >> 20} MiB: what follows of it is left out"
        return text + note if is_cut else text

    def emit(self, record: logging.LogRecord) -> None:
        if self.left >= 0 or record.levelno > logging.DEBUG:
            super().emit(record)


@contextlib.contextmanager
def log_to(path: Path, owner: str = "") -> Iterator[Path]:
    """Write the full log of one build into a file. An error of the build names the file.

    With an `owner`, the lines of other parallel builds are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = os.fdopen(_new_file(path), "w", encoding="utf-8")
    handler = _LogFile(stream)
    if owner:
        handler.addFilter(lambda record: getattr(record, "owner", "") in ("", owner))
    handler.setFormatter(_PlainFormatter("%(asctime)s %(name)s %(message)s"))
    root = logging.getLogger("envbuilder")
    root.addHandler(handler)
    try:
        yield path
    except EnvbuilderError as error:
        error.log = str(path)
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
        stream.close()


def _new_file(path: Path) -> int:
    """Return a descriptor of a new file in place of what has its name: a link or a FIFO of another user is not opened."""
    try:
        path.unlink(missing_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o666)
    except OSError as error:
        is_foreign = os.path.lexists(path) and not is_trusted(str(path))
        owner = f"; it belongs to user {path.lstat().st_uid}" if is_foreign else ""
        raise UsageError(
            f"cannot write `{path}`: {(error.strerror or str(error)).lower()}{owner}",
            hint="remove what has its name, or choose another --output",
        ) from error


def setup(verbosity: int) -> None:
    """Log to the terminal: commands with `-v`, their output with `-vv`."""
    root = logging.getLogger("envbuilder")
    root.setLevel(logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    handler.setFormatter(_PlainFormatter("%(prefix)s%(message)s", defaults={"prefix": ""}))
    root.handlers = [handler]
