"""Files that run inside an image or the sandbox of a build. envbuilder reads them as data.

`start` goes into the environment's site-packages: every Python runs it first. `lib` goes to /opt/envbuilder/lib, where `start`
finds it: `envbuilder_caches` finds a place for caches, `envbuilder_extensions` answers torch's `load()`, `envbuilder_nccl` sets NCCL's
variables. `entry` are the programs of /opt/envbuilder. `shell.sh` becomes a file that Apptainer reads at start (`plan/shell.py`). `kit`
are programs of a build in a container, and the other files beside it are programs of every build.
"""

from pathlib import Path


def path(name: str) -> Path:
    return Path(__file__).parent / name


def files(folder: str) -> tuple[tuple[str, str], ...]:
    """Return path and text of every file below a folder of this package."""
    found = (one for one in sorted(path(folder).rglob("*")) if one.is_file() and one.suffix != ".pyc")
    return tuple((one.relative_to(path(folder)).as_posix(), one.read_text(encoding="utf-8")) for one in found)


def modules(package: str) -> tuple[tuple[str, str], ...]:
    """Return path and text of every module of a package that also runs in the image. The path is that of its import."""
    root = Path(__file__).parents[1]
    return tuple(
        (f"envbuilder/{one.relative_to(root).as_posix()}", one.read_text(encoding="utf-8"))
        for one in sorted((root / package).rglob("*.py"))
    )
