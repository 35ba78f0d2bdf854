"""Write the sources of an extension into its build directory. Only changed files are written.

The directory is kept between builds. ninja compares times, so an unchanged file must keep its time.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.build.extensions.check_targets import ExtensionCode, extension_error
from envbuilder.core.archive import archived_files
from envbuilder.core.cache import Store
from envbuilder.core.errors import CommandError
from envbuilder.core.process import Command, Runner
from envbuilder.lock.model import LockedExtension

# The folder in which setuptools keeps objects and ninja's state.
OBJECTS: Final = re.compile(r"(^|/)build/temp\.[^/]+(/|$)")


def stage_sources(extension: LockedExtension, *, store: Store, runner: Runner, folder: Path) -> None:
    """Make `folder` hold exactly the sources of the extension. Objects of an earlier build stay.

    Raises BuildError for a patch that does not fit, ToolError for a patch without git.
    """
    if not extension.patch:
        _stage(extension, store, folder)
        return
    with (
        store.workspace() as work
    ):  # an unchanged file must keep its time, so the patch is not applied in place
        _stage(extension, store, work / "src")
        _apply_patch(extension, store, runner, work / "src")
        files = {path.relative_to(work / "src").as_posix(): path for path in _all_files(work / "src")}
        _clear(folder, set(files))
        for name, path in files.items():
            _place(folder / name, path.read_bytes())


def _apply_patch(extension: LockedExtension, store: Store, runner: Runner, folder: Path) -> None:
    """Apply the patch in the folder of the project, or in the root of its archive."""
    patch = next(store.artifact(file.sha256) for file in extension.files if file.path == extension.patch)
    project = folder if extension.archive else folder / extension.path
    command = Command(
        argv=("git", "-C", str(project), "apply", "--whitespace=nowarn", str(patch)),
        why=f"apply `{extension.patch}`",
        env=(("GIT_CEILING_DIRECTORIES", str(project.parent)),),  # the store may be inside a repository
    )
    try:
        runner.run(command)
    except CommandError as error:
        said = " ".join(error.message.splitlines()[1:])
        raise extension_error(
            ExtensionCode.PATCH,
            f"the patch of the extension `{extension.name}` does not fit its sources: {said}",
            "apply your change to these sources and write the patch again, with `git diff` in the project's own folder",
            where=extension.patch,
        ) from error


def _all_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _stage(extension: LockedExtension, store: Store, folder: Path) -> None:
    if extension.archive is not None:
        archive, is_sdist = store.artifact(extension.archive.sha256), extension.archive.kind == "sdist"
        _clear(folder, {name for name, _ in archived_files(archive, strip=is_sdist)})
        for name, content in archived_files(archive, strip=is_sdist):
            _place(folder / name, content)
        return
    _clear(folder, {file.path for file in extension.files})
    for file in extension.files:
        _place(folder / file.path, store.artifact(file.sha256).read_bytes())


def stage_files(files: Mapping[str, Path], folder: Path) -> None:
    """Make `src` and `kept` of a build directory hold exactly these files, by name. Other folders stay."""
    for part in ("src", "kept"):
        inside = (name.removeprefix(f"{part}/") for name in files if name.startswith(f"{part}/"))
        _clear(folder / part, set(inside))
    for name, source in files.items():
        _place(folder / name, source.read_bytes())


def _clear(folder: Path, wanted: set[str]) -> None:
    """Remove all links and unwanted files: a link of an earlier build could lead out of the folder."""
    if folder.is_symlink():
        folder.unlink()
    for path in sorted(folder.rglob("*"), reverse=True) if folder.exists() else ():
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            path.unlink()
        elif OBJECTS.search(name):
            continue
        elif path.is_dir():
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        elif name not in wanted:
            path.unlink()


def _place(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
