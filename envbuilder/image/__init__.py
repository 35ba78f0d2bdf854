"""Files that are used inside an image or its sandbox: data here, never imported."""

from pathlib import Path


def path(name: str) -> Path:
    return Path(__file__).parent / name
