"""Read the kernel's small files. Paths are below a root, so that a tree of files can stand for any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def text(path: Path) -> str | None:
    """Return the stripped text of a small file, or None where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace").strip()
    except OSError:
        return None


def names(path: Path) -> list[str] | None:
    """Return the names in a folder, sorted, or None where it cannot be read."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return None
