"""Files that are used inside an image or its sandbox: data here, never imported.

`start` goes into the environment's site-packages and `lib` to /opt/envbuilder/lib, where `start` looks for it; `entry` are the
programs of /opt/envbuilder.
"""

from pathlib import Path


def path(name: str) -> Path:
    return Path(__file__).parent / name


def files(folder: str) -> tuple[tuple[str, str], ...]:
    """Every file below a folder of this one: its path there and its text."""
    found = (one for one in sorted(path(folder).rglob("*")) if one.is_file() and one.suffix != ".pyc")
    return tuple((one.relative_to(path(folder)).as_posix(), one.read_text(encoding="utf-8")) for one in found)


def modules(package: str) -> tuple[tuple[str, str], ...]:
    """Every module of a package of envbuilder that also runs in the image, under the name that it is imported by."""
    root = Path(__file__).parents[1]
    return tuple(
        (f"envbuilder/{one.relative_to(root).as_posix()}", one.read_text(encoding="utf-8"))
        for one in sorted((root / package).rglob("*.py"))
    )
