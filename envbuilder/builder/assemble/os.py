"""The os layer: the locked packages, unpacked by us and configured once by their own dpkg in a user namespace."""

import io
import json
import logging
import shlex
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from envbuilder.builder.assemble.dpkg_root import (
    MERGED,
    make_merged_root,
    merged,
    preinst_lines,
    unpack,
    write_database,
)
from envbuilder.builder.assemble.foreign import emulation, native_python
from envbuilder.builder.assemble.sandbox import Emulation
from envbuilder.builder.engine import Job
from envbuilder.core.cache import Store
from envbuilder.core.console import Step
from envbuilder.core.errors import CommandError
from envbuilder.core.log import owned
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, Processor
from envbuilder.layers.layer import Owners, write_layer_from_root
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import ADD_USER, DROP, EXCLUDE, KEEP, plain_names, seeded_package
from envbuilder.plan.model import OsStep
from envbuilder.runners.sandbox import ROOT, Mount, sandbox_words
from envbuilder.sources.deb import members, read_tar

log = logging.getLogger(__name__)

FOLDERS: Final = ("opt/envbuilder", ".singularity.d")  # later layers fill them
# dash before 0.5.11, of Ubuntu 20.04, fails unless this folder exists. EXCLUDE leaves it out everywhere.
MANUALS: Final = "usr/share/man/man1"
DEBS: Final = "/dev/debs"  # packages that the root's dpkg unpacks; this /dev does not last
_FILTERS: Final = (*(("exclude", one) for one in EXCLUDE), ("include", KEEP))
_DONE: Final = "Setting up "  # begins dpkg's line of each package that it configures
# A package's scripts may leave links that lead out of the root on the machine that builds, so both run inside it.
_BEFORE: Final = r"""set -e
umask 022
# Packages must not start their services (invoke-rc.d(8)).
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d"""
_AFTER: Final = """\
rm /usr/sbin/policy-rc.d
echo '# UNCONFIGURED FSTAB FOR BASE SYSTEM' >/etc/fstab
# In the order in which packages were unpacked.
triggers=/var/lib/dpkg/triggers/File
[ ! -s "$triggers" ] || LC_ALL=C sort -o "$triggers" "$triggers"
# The files of a running system, except the target of /var/lock (Debian Policy 9.1.4).
find /run -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf --one-file-system {} +"""
_SECRET: Final = ("etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-")
_SHADOW: Final = 42  # the group `shadow` of Debian and Ubuntu
_ENVIRONMENT: Final = (
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("TERM", "dumb"),
    ("DEBIAN_FRONTEND", "noninteractive"), ("DEBCONF_NONINTERACTIVE_SEEN", "true"),
    ("LANG", "C.UTF-8"), ("LANGUAGE", "C.UTF-8"), ("LC_ALL", "C.UTF-8"),
)  # fmt: skip
# What dpkg and packages' scripts need as root of their own root folder, in a user namespace with one id.
_CAPABILITIES: Final = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip
_EXCLUDED: Final = tuple(pattern.removeprefix("/").removesuffix("*") for pattern in EXCLUDE)


def commands(step: OsStep, job: Job, work: Path) -> tuple[Command, ...]:
    """Return the command that configures the unpacked packages; to unpack them needs none."""
    script = configure_script(step, (), ())
    command = configure_command(
        script, work / "root", work / "owners.json", epoch=job.plan.epoch, by=emulation(job)
    )
    return (command,)


def write_layer(step: OsStep, job: Job, work: Path, folder: Path) -> None:
    """Write the os layer into `folder`."""
    root, record, epoch = work / "root", work / "owners.json", job.plan.epoch
    with job.console.step(f"install {step.suite}: {len(step.artifacts)} packages") as shown:
        shown.show_note("unpacking")
        shown.expect(sum(deb.size for deb in step.artifacts))
        make_root(root, gcc=step.gcc, with_manuals=needs_manuals(step), processor=job.plan.processor)
        debs = {deb.name: job.store.artifact(deb.sha256) for deb in step.artifacts}
        found = unpack(debs, root, threads=job.limits.threads, advance=shown.advance)
        write_database(found.packages, root, job.plan.processor)
        _save_owners(record, root, found.owners())
        script = configure_script(step, preinst_lines(found.packages), found.left)
        shown.show_note("configuring")
        shown.expect(len(step.artifacts), items=True)
        native = native_python(job, root)
        command = configure_command(
            script, root, record, epoch=epoch, debs=found.left, by=emulation(job), native=native
        )
        try:
            job.runner.run(command, on_line=reader(shown, owned(log, job.console.owner)))
        except CommandError as failure:
            failure.hint = "the log has all that the packages' scripts said"
            raise
        for mount in native:
            if (made := root / mount.target[1:]).is_dir():
                made.rmdir()  # bubblewrap made it
        shown.show_note("")
        write_layer_from_root(
            name=step.name, root=root, owners=load_owners(record, root), folder=folder, epoch=epoch,
            drop=DROP, threads=job.limits.threads,
        )  # fmt: skip


def reader(step: Step, lines: "logging.LoggerAdapter[logging.Logger]") -> Callable[[str], None]:
    """Return a reader of dpkg's lines, which counts the packages that are configured."""

    def read(line: str) -> None:
        lines.debug("%s", line)
        if line.startswith(_DONE):
            step.advance(1)

    return read


def configure_script(step: OsStep, preinst: Iterable[str], left: Sequence[Path]) -> str:
    """Return the shell script that configures the packages. It runs in the root, as its root user."""
    filters = " ".join(shlex.quote(f"--path-{kind}={one}") for kind, one in _FILTERS)
    lines = [_BEFORE, *preinst]
    if left:
        lines.append(f"dpkg --unpack --force-unsafe-io --force-depends {filters} {DEBS}/*.deb")
    # After the first failure nothing follows, so its words are the last.
    lines.append("dpkg --configure --force-unsafe-io --abort-after=1 --pending")
    # The standard library is compiled again with a fixed seed if the seed matters: the package's script sets none.
    if version := seeded_package(deb.name for deb in step.artifacts):
        lines.append(f"PYTHONHASHSEED=0 python{version} -m compileall -q -f /usr/lib/python{version}")
    if needs_manuals(step):
        lines.append(f"rm -r /{MANUALS}")
    return "\n".join((*lines, 'set -- ""', ADD_USER, _AFTER, ""))


def configure_command(
    script: str,
    root: Path,
    record: Path,
    *,
    epoch: int,
    debs: Sequence[Path] = (),
    by: Emulation | None = None,
    native: Sequence[Mount] = (),
) -> Command:
    """Run a script as the root user of `root`, without network and without anything else of this machine.

    Its user namespace has one id, that of whoever builds, so owners are recorded in `record`.
    """
    options = ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    for mount in (*(Mount(source=deb, target=f"{DEBS}/{deb.name}.deb") for deb in debs), *native):
        options += mount.options()
    words = sandbox_words(
        options,
        ("/bin/sh", "-c", script),
        env=(*_ENVIRONMENT, ("SOURCE_DATE_EPOCH", str(epoch))),
        user=ROOT,
        capabilities=_CAPABILITIES,
        emulation=by.words() if by else (),
    )
    argv = (sys.executable, "-I", str(Path(__file__).with_name("record_owners.py")), str(record), *words)
    return Command(argv=argv, why="install the distribution's packages", merged=True, bare=True)


def make_root(root: Path, *, gcc: str, with_manuals: bool, processor: Processor = X86_64) -> None:
    """Make a root with the paths of the os layer that no package has: the compiler's plain names, and empty folders."""
    make_merged_root(root)
    manuals = ("usr/share", "usr/share/man", MANUALS) if with_manuals else ()
    for name in ("opt", "usr/local", "usr/local/bin", *FOLDERS, *manuals):
        (root / name).mkdir()
        (root / name).chmod(0o755)
    for name, tool in plain_names(processor).items():
        (root / "usr/local/bin" / name).symlink_to(f"../../bin/{tool}-{gcc}")


def _save_owners(record: Path, root: Path, owners: Iterable[tuple[str, int, int]]) -> None:
    record.write_text(
        json.dumps([(str(root / path), uid, gid) for path, uid, gid in owners]), encoding="utf-8"
    )


def load_owners(record: Path, root: Path) -> Owners:
    """Return the owners that `record_owners.py` wrote: uid, gid and capability by device and inode.

    shadow's tools give a new file the owner that the kernel shows of the old one, so the group of the secret files is set here.
    """
    rows = json.loads(record.read_text(encoding="utf-8"))
    owners = {(device, inode): (uid, gid, bytes.fromhex(value)) for device, inode, uid, gid, value in rows}
    for name in _SECRET:
        if (path := root / name).exists():
            status = path.stat()
            owners[status.st_dev, status.st_ino] = (0, _SHADOW, b"")
    return owners


def needs_manuals(step: OsStep) -> bool:
    return any(deb.name == "dash" and deb.version.startswith("0.5.10") for deb in step.artifacts)


def member(name: str, *, kind: bytes, epoch: int, target: str = "") -> tarfile.TarInfo:
    """Return a folder or a link of a tar."""
    found = tarfile.TarInfo(name)
    found.type, found.mtime, found.linkname = kind, epoch, target
    found.mode = 0o755 if kind == tarfile.DIRTYPE else 0o777
    return found


def write_root(debs: Iterable[Artifact], out: Path, *, epoch: int, store: Store) -> None:
    """Write the files of all packages into one tar with a merged /usr: a root whose dpkg can run in it."""
    seen = {f"usr/{name}" for name in MERGED} | set(MERGED) | {"usr", ""}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("usr", *(f"usr/{name}" for name in MERGED)):
            tar.addfile(member(name, kind=tarfile.DIRTYPE, epoch=epoch))
        for name in MERGED:
            tar.addfile(member(name, kind=tarfile.SYMTYPE, epoch=epoch, target=f"usr/{name}"))
        for deb in debs:
            file = store.artifact(deb.sha256)
            content = read_tar(file, "data")
            for info in members(content, file):
                info.name = merged(info.name)
                if info.islnk():
                    info.linkname = merged(info.linkname)
                if info.name not in seen and not info.name.startswith(_EXCLUDED):
                    tar.addfile(info, io.BytesIO(content[info.offset_data :][: info.size]))
                    seen.add(info.name)
