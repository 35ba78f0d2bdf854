"""Damage files as disks and programs do."""

import os
import shutil
from pathlib import Path


def flip(path: Path) -> None:
    """Change one bit, and give the file the times that it had."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_alone(path: Path) -> None:
    """Do the same to a file of its own: the other names of those bytes keep what they have."""
    copy = path.with_name(f"{path.name}.copy")
    shutil.copy2(path, copy)
    flip(copy)
    copy.rename(path)
