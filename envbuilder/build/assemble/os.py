"""The os layer: mmdebstrap over a flat local repository of exactly the locked packages."""

import contextlib
import logging
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

from envbuilder.build.engine import Job
from envbuilder.core.cache import Store
from envbuilder.core.console import Step
from envbuilder.core.log import owned
from envbuilder.core.process import Command, Runner
from envbuilder.layers.layer import write_layer_from_tar
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import ADD_USER, DROP, EXCLUDE, KEEP, PLAIN_NAMES, seeded_package
from envbuilder.plan.model import OsStep

log = logging.getLogger(__name__)

FOLDERS: Final = ("opt/envbuilder", ".singularity.d")  # later layers fill them
# The links of the merged /usr. They exist before the first package is unpacked, as the package `usr-is-merged` requires.
MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# dash before 0.5.11, of Ubuntu 20.04, fails unless this folder exists. EXCLUDE leaves it out everywhere.
MANUALS: Final = "usr/share/man/man1"

_NOW: Final = "I: "  # begins mmdebstrap's own lines
_DONE: Final = re.compile(r"(?:Unpacking|Setting up) \S+")
_EXCLUDED: Final = tuple(pattern.removeprefix("/").removesuffix("*") for pattern in EXCLUDE)


def commands(step: OsStep, job: Job, work: Path) -> tuple[Command, ...]:
    """Return the commands that make the layer."""
    repository = work / "repository"
    bootstrap = bootstrap_command(
        step, repository=repository, skeleton=work / "skeleton.tar", out=work / "os.tar",
        root=job.limits.root, epoch=job.plan.epoch,
    )  # fmt: skip
    return (index_command(repository), bootstrap)


def write_layer(step: OsStep, job: Job, work: Path, folder: Path) -> None:
    """Write the os layer into `folder`."""
    root, epoch = job.limits.root, job.plan.epoch
    out = work / "os.tar"
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(job.console.step(f"install {step.suite}: {len(step.artifacts)} packages"))
        # Without root, mmdebstrap runs as other users of a user namespace, which cannot enter the store.
        place = work if root else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envbuilder-")))
        repository, skeleton = place / "repository", place / "skeleton.tar"
        repository.mkdir()
        for deb in step.artifacts:
            file = repository / f"{deb.name}_{deb.sha256[:16]}.deb"
            if root:
                file.hardlink_to(job.store.artifact(deb.sha256))
            else:
                shutil.copyfile(job.store.artifact(deb.sha256), file)
        (repository / "Packages").write_text(job.runner.run(index_command(repository)), encoding="utf-8")
        write_skeleton(skeleton, gcc=step.gcc, epoch=epoch, with_manuals=needs_manuals(step))
        if not root:
            for path in (place, *place.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        job.runner.run(
            bootstrap_command(
                step, repository=repository, skeleton=skeleton, out=out, root=root, epoch=epoch
            ),
            on_line=reader(shown, len(step.artifacts), owned(log, job.console.owner)),
        )
        shown.show_note("")
        write_layer_from_tar(
            name=step.name, tar=out, folder=folder, epoch=epoch, drop=DROP, threads=job.limits.threads
        )
        out.unlink()


def reader(
    step: Step, packages: int, lines: "logging.LoggerAdapter[logging.Logger]"
) -> Callable[[str], None]:
    """Return a reader of mmdebstrap's lines, which shows what it does and counts its packages.

    A package counts when it is unpacked and when it is set up, once each.
    """
    seen: set[str] = set()

    def read(line: str) -> None:
        lines.debug("%s", line)
        if line.startswith(_NOW):
            step.show_note(line.removeprefix(_NOW).rstrip("."))
        found = _DONE.match(line)
        if found and found[0] not in seen:
            if not seen:  # what comes before it says nothing about the time of a package
                step.expect(2 * packages, items=True)
            seen.add(found[0])
            step.advance(1)

    return read


def bootstrap_command(
    step: OsStep, *, repository: Path, skeleton: Path, out: Path, root: bool, epoch: int
) -> Command:
    """Install exactly the locked packages from `repository` into the tar `out`."""
    names = ",".join(sorted(deb.name for deb in step.artifacts))
    options = [
        f"--mode={'root' if root else 'unshare'}",
        # This variant first installs the packages that dpkg needs, then all. `custom` would unpack every package twice.
        "--variant=essential",
        "--verbose",  # prints dpkg's lines, which are counted
        "--format=tar",
        "--architectures=amd64",
        f"--include={names}",
        f"--setup-hook=tar-in {shlex.quote(str(skeleton))} /",
        "--skip=check/empty",
        "--dpkgopt=force-unsafe-io",  # the root is temporary, so 8,700 fsyncs are of no use
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDE),
        f"--dpkgopt=path-include={KEEP}",
        *_repeat_byte_code(step),
        *((f'--customize-hook=rm -rf "$1/{MANUALS}"',) if needs_manuals(step) else ()),
        f"--customize-hook={ADD_USER}",
    ]
    source = f"deb [trusted=yes] copy://{quote(str(repository))} ./"
    # As root, mmdebstrap mounts /proc and /dev in the new root. A mount namespace removes them even after a kill.
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc") if root else ()
    return Command(
        # The suite is "", because the repository has none.
        argv=(*alone, "mmdebstrap", *options, "", str(out), source),
        env=(
            ("SOURCE_DATE_EPOCH", str(epoch)),
            # Its unfinished root is in a folder that the store removes after a kill.
            ("TMPDIR", str(out.parent if root else skeleton.parent)),
        ),
        why="install the distribution's packages",
        merged=True,
    )


def _repeat_byte_code(step: OsStep) -> tuple[str, ...]:
    """Compile the standard library again with a fixed seed if the seed matters: the package's script sets none."""
    python = f"python{version}" if (version := seeded_package(deb.name for deb in step.artifacts)) else ""
    hook = f'--customize-hook=PYTHONHASHSEED=0 chroot "$1" {python} -m compileall -q -f /usr/lib/{python}'
    return (hook,) if python else ()


def index_command(repository: Path) -> Command:
    return Command(argv=("apt-ftparchive", "packages", "."), cwd=repository, why="index the locked packages")


def needs_manuals(step: OsStep) -> bool:
    return any(deb.name == "dash" and deb.version.startswith("0.5.10") for deb in step.artifacts)


def write_skeleton(path: Path, *, gcc: str, epoch: int, with_manuals: bool = False) -> None:
    """Write the paths of the os layer that no package has: the compiler's plain names, and empty folders."""
    with tarfile.open(path, "w") as tar:
        merged = (f"usr/{name}" for name in MERGED)
        manuals = ("usr/share", "usr/share/man", MANUALS) if with_manuals else ()
        for name in ("opt", "usr", *merged, "usr/local", "usr/local/bin", *FOLDERS, *manuals):
            tar.addfile(member(name, kind=tarfile.DIRTYPE, epoch=epoch))
        for name in MERGED:
            tar.addfile(member(name, kind=tarfile.SYMTYPE, epoch=epoch, target=f"usr/{name}"))
        for name, tool in PLAIN_NAMES.items():
            link, target = f"usr/local/bin/{name}", f"../../bin/{tool}-{gcc}"
            tar.addfile(member(link, kind=tarfile.SYMTYPE, epoch=epoch, target=target))


def member(name: str, *, kind: bytes, epoch: int, target: str = "") -> tarfile.TarInfo:
    """Return a folder or a link of a tar."""
    found = tarfile.TarInfo(name)
    found.type, found.mtime, found.linkname = kind, epoch, target
    found.mode = 0o755 if kind == tarfile.DIRTYPE else 0o777
    return found


def write_root(debs: Iterable[Artifact], out: Path, *, epoch: int, store: Store, runner: Runner) -> None:
    """Write the files of all packages into one tar with a merged /usr: a root in which its own dpkg can run."""
    seen = {f"usr/{name}" for name in MERGED} | set(MERGED) | {"usr", ""}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("usr", *(f"usr/{name}" for name in MERGED)):
            tar.addfile(member(name, kind=tarfile.DIRTYPE, epoch=epoch))
        for name in MERGED:
            tar.addfile(member(name, kind=tarfile.SYMTYPE, epoch=epoch, target=f"usr/{name}"))
        for deb in debs:
            argv = ("dpkg-deb", "--fsys-tarfile", str(store.artifact(deb.sha256)))
            with runner.read(Command(argv=argv, why=f"unpack `{deb.name}`")) as stream:
                for info, content in _members(stream):
                    if info.name not in seen and not info.name.startswith(_EXCLUDED):
                        tar.addfile(info, content)
                        seen.add(info.name)


def _members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the members with their paths below a merged /usr."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            member.name = _merged(member.name)
            if member.islnk():
                member.linkname = _merged(member.linkname)
            yield member, tar.extractfile(member) if member.isreg() else None


def _merged(name: str) -> str:
    path = name.removeprefix("./").removeprefix("/").rstrip("/")
    path = "" if path == "." else path
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path
