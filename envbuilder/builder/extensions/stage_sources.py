"""Write the sources of an extension into its build directory. Only changed files are written.

The directory is kept between builds. ninja compares times, so an unchanged file must keep its time.
"""

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.builder.extensions.check_targets import ExtensionCode, extension_error
from envbuilder.core.archive import archived_files
from envbuilder.core.beneath import (
    FILE_LIMIT,
    clear_beneath,
    folder_beneath,
    read_beneath,
    walk_beneath,
    write_beneath,
)
from envbuilder.core.cache import Store
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.process import Command, Runner
from envbuilder.lock.model import LockedExtension

# The folder in which setuptools keeps objects and ninja's state.
OBJECTS: Final = re.compile(r"(^|/)build/temp\.[^/]+(/|$)")
_BETWEEN_BUILDS: Final = ("src", "kept", "build")
# An archive may bring a `.git` whose settings name programs, which git would start outside of the sandbox.
_NO_REPOSITORY: Final = (
    ("GIT_DIR", os.devnull),
    ("GIT_CONFIG_GLOBAL", os.devnull),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
)


def clear_leftovers(build_dir: Path) -> None:
    """Remove what an earlier build left, except sources and objects: a link or a FIFO would stop the next one."""
    for name in os.listdir(build_dir):  # noqa: PTH208 - names alone
        clear_beneath(build_dir, name, keep=bool if name in _BETWEEN_BUILDS else lambda _: False)


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
        paths = [(name, stat.S_IFMT(status.st_mode)) for name, status in walk_beneath(work / "src")]
        for name in (name for name, kind in paths if kind == stat.S_IFLNK):
            raise extension_error(
                ExtensionCode.PATCH,
                f"the patch of the extension `{extension.name}` makes the link `{name}`, which could lead to any file",
                "let the patch write the file itself",
                where=extension.patch,
            )
        files = {name for name, kind in paths if kind == stat.S_IFREG}
        _clear(folder, files)
        for name in sorted(files):
            _place(folder, name, read_beneath(work / "src", name, limit=FILE_LIMIT))


def _apply_patch(extension: LockedExtension, store: Store, runner: Runner, folder: Path) -> None:
    """Apply the patch in the folder of the project, or in the root of its archive."""
    patch = next(store.artifact(file.sha256) for file in extension.files if file.path == extension.patch)
    project = folder if extension.archive else folder / extension.path
    command = Command(
        argv=("git", "-C", str(project), "apply", "--whitespace=nowarn", str(patch)),
        why=f"apply `{extension.patch}`",
        env=_NO_REPOSITORY,
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


def _stage(extension: LockedExtension, store: Store, folder: Path) -> None:
    if extension.archive is not None:
        archive, is_sdist = store.artifact(extension.archive.sha256), extension.archive.kind == "sdist"
        _clear(folder, {name for name, _ in archived_files(archive, strip=is_sdist)})
        for name, content in archived_files(archive, strip=is_sdist):
            _place(folder, name, content)
        return
    _clear(folder, {file.path for file in extension.files})
    for file in extension.files:
        _place(folder, file.path, store.artifact(file.sha256).read_bytes())


def stage_files(files: Mapping[str, Path], folder: Path) -> None:
    """Make `src` and `kept` of a build directory hold exactly these files, by name. Other folders stay."""
    for part in ("src", "kept"):
        inside = (name.removeprefix(f"{part}/") for name in files if name.startswith(f"{part}/"))
        _clear(folder / part, set(inside))
    for name, source in files.items():
        _place(folder, name, source.read_bytes())


def _clear(folder: Path, wanted: set[str]) -> None:
    """Make the folder hold nothing but wanted files and objects. Links, FIFOs and folders in place of a file go too."""
    clear_beneath(folder.parent, folder.name, lambda name: name in wanted or bool(OBJECTS.search(name)))
    folder_beneath(folder.parent, folder.name)


def _place(folder: Path, name: str, content: bytes) -> None:
    with contextlib.suppress(BuildError, FileNotFoundError):  # it is larger, or not there
        if read_beneath(folder, name, limit=len(content)) == content:
            return
    write_beneath(folder, name, content)
