"""The interpreter layer: a standalone Python at /opt/python, made ready by itself."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder import runtime as image
from envbuilder.builder.assemble import python
from envbuilder.builder.assemble.foreign import emulation
from envbuilder.builder.assemble.sandbox import Emulation, Root, sandboxed
from envbuilder.builder.engine import Job
from envbuilder.core.archive import BoundedTar
from envbuilder.core.budget import ARCHIVE_SPARE, most_unpacked, need_within
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command
from envbuilder.plan.model import STANDALONE_PREFIX, InterpreterStep
from envbuilder.runners.sandbox import Mount

TOP: Final = "python"  # the folder in the archive


def commands(step: InterpreterStep, job: Job, work: Path) -> tuple[Command, ...]:
    """Return the command that makes the layer out of the unpacked archive."""
    return (install_command(step, work=work, by=emulation(job)),)


def write_tree(step: InterpreterStep, job: Job, work: Path) -> None:
    """Install the standalone Python into `work/tree`."""
    with job.console.step(f"install Python {step.archive.version}") as shown:
        python.unpack_root(step.python, job, work)
        archive = job.store.artifact(step.archive.sha256)
        shown.expect(archive.stat().st_size)
        unpack(archive, work / "tree" / STANDALONE_PREFIX[1:], advance=shown.advance)
        shown.show_note("compiling byte code")
        job.runner.run(install_command(step, work=work, by=emulation(job)))
        shown.show_note("")


def install_command(step: InterpreterStep, *, work: Path, by: Emulation | None = None) -> Command:
    return sandboxed(
        Root(os=work / "interpreter", emulation=by),
        (step.program, "-B", "/kit/install_python.py", STANDALONE_PREFIX),
        why="install the standalone Python",
        mounts=(
            Mount(source=work / "tree" / STANDALONE_PREFIX[1:], target=STANDALONE_PREFIX, writable=True),
            Mount(source=image.path("kit"), target="/kit"),
        ),
    )


def unpack(archive: Path, folder: Path, *, advance: Callable[[int], None] = lambda _: None) -> None:
    """Unpack the files of the archive's only folder. `advance` is told the bytes of the archive as they are read.

    Raises BuildError for an archive of another form.
    """
    read = unpacked = 0
    most = most_unpacked(archive.stat().st_size, ARCHIVE_SPARE)
    try:
        with archive.open("rb") as stream, BoundedTar.open(archive, "r:gz", fileobj=stream) as tar:
            for member in tar:
                unpacked += member.size
                need_within("bytes that it unpacks to", unpacked, most)
                _place(tar, member, folder)
                advance(stream.tell() - read)
                read = stream.tell()
    except (tarfile.TarError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise BuildError(f"`{archive}` is no archive of a standalone Python: {error}") from error


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = PurePosixPath(member.name)
    if path.parts[:1] != (TOP,) or ".." in path.parts:
        raise BuildError(f"`{tar.name!r}` holds `{member.name}`, expected everything below `{TOP}/`")
    target = folder.joinpath(*path.parts[1:])
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise BuildError(f"`{tar.name!r}` holds `{member.name}`, which lies behind a link to the outside")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        inside = os.path.normpath(path.parent / member.linkname)
        if not inside.startswith(f"{TOP}/"):
            raise BuildError(
                f"`{tar.name!r}` holds the link `{member.name}` to `{member.linkname}`, outside of `{TOP}/`"
            )
        target.symlink_to(member.linkname)
    elif content := tar.extractfile(member):
        with content, target.open("xb") as out:
            shutil.copyfileobj(content, out)
        target.chmod(0o755 if member.mode & 0o111 else 0o644)
