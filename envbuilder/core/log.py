"""Set up logging: to the terminal with `-v`, and into the log file of a build."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from envbuilder.core.budget import LOG
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.private import is_trusted
from envbuilder.core.system import NO_LINKS
from envbuilder.core.text.redact import plain

LOG_FORMAT: Final = "%(asctime)s %(name)s %(message)s"


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
        return (
            f"{text}\n… programs print more than {LOG >> 20} MiB: what follows of it is left out"
            if is_cut
            else text
        )

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
    handler.setFormatter(_PlainFormatter(LOG_FORMAT))
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
