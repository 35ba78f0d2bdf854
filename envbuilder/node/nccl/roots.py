"""Where a machine is read from: parameters, so that a tree of files can stand for any machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Roots:
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    root: Path = Path("/")  # of everything else


def text(path: Path) -> str | None:
    """The stripped text of a small file; None where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace").strip()
    except OSError:
        return None


def names(path: Path) -> list[str] | None:
    """What a folder holds, sorted; None where it cannot be read."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return None
