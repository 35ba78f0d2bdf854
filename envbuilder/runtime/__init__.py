"""Files that run inside an image or the sandbox of a build. envbuilder reads them as data.

`start` goes into the environment's site-packages: every Python runs it first. `lib` goes to /opt/envbuilder/lib, where `start`
finds it: `envbuilder_caches` finds a place for caches, `envbuilder_extensions` answers torch's `load()`, `envbuilder_nccl` sets NCCL's
variables. `entry` are the programs of /opt/envbuilder. `shell.sh` becomes a file that Apptainer reads at start (`plan/shell.py`). The
other files are programs of a lock or a build.
"""

from pathlib import Path


def path(name: str) -> Path:
    return Path(__file__).parent / name


def files(folder: str) -> tuple[tuple[str, str], ...]:
    """Return path and text of every file below a folder of this package."""
    return _texts(path(folder), path(folder))


def modules(package: str) -> tuple[tuple[str, str], ...]:
    """Return path and text of every module of a package that also runs in the image. The path is that of its import."""
    root = Path(__file__).parents[2]
    return _texts(root / "envbuilder" / package, root)


def _texts(folder: Path, root: Path) -> tuple[tuple[str, str], ...]:
    names = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".pyc"]
    return tuple((file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")) for file in names)
