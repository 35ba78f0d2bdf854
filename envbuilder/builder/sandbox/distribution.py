"""The os layer: the locked packages, or an image with those that it lacks, configured by their own dpkg in a user namespace."""

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envbuilder import steps
from envbuilder.artifacts.oci.model import parse_configuration
from envbuilder.builder.job import BuildJob, outside_command, progress, run_outside, write_step
from envbuilder.builder.sandbox.foreign import emulation, native_python
from envbuilder.core.beneath import folder_beneath, new_beneath
from envbuilder.core.cache import Store
from envbuilder.core.console import owned
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.plain import counted
from envbuilder.core.process import Command
from envbuilder.layers.layer import Owner, Owners, write_layer_from_root
from envbuilder.layers.overlay import ImageRoot, Overlay, owners_of
from envbuilder.lock.model import LockedBase
from envbuilder.plan.model import OsStep
from envbuilder.plan.program import PROGRAMS, SPEC, Program
from envbuilder.runners.sandbox import ROOT, Mount, sandbox

log = logging.getLogger(__name__)

MOUNTED: Final = (PROGRAMS[1:], str(Path(SPEC).parent)[1:])  # in the root while it is configured
OWNERS: Final = "owners.json"
# What dpkg and packages' scripts need as root of their own root folder, in a user namespace with one id.
_CAPABILITIES: Final = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
)  # fmt: skip
_TOO_MANY: Final = ("Cannot fork", "Resource temporarily unavailable")


def commands(step: OsStep, job: BuildJob, work: Path) -> tuple[Command, ...]:
    """Return the commands that make the layer."""
    program = step.made_by(job.plan)
    (unpacking,) = program.parts
    return (outside_command(unpacking, work / "packages"), _configure_command(program, job, work))


def write_layer(step: OsStep, job: BuildJob, work: Path, folder: Path) -> None:
    """Write the os layer into `folder`."""
    program, root = step.made_by(job.plan), work / "root"
    (unpacking,) = program.parts
    lines = owned(log, job.console.owner)
    packages = counted(len(step.artifacts), "package")
    with job.console.step(f"install {step.suite or step.image}: {packages}") as shown:
        show = progress(shown)

        def read(line: str) -> None:
            lines.debug("%s", line)
            show(line)

        unpacked = run_outside(unpacking, work / "packages", job.store, job.runner, read)
        owners: Owners = {}
        if step.base:
            shown.show_note("unpack the image")
            owners = owners_of(lay(step.base, ImageRoot(root), job.store))
        else:
            (unpacked / "root").rename(root)
        owners = merged_owners(owners, unpacked / OWNERS)
        write_step(program, work / "step", job.store, {unpacking.name: unpacked})
        make_places(program, root)
        native = native_python(job, root)
        try:
            job.runner.run(_configure_command(program, job, work, native), on_line=read)
        except CommandError as failure:
            failure.hint = (
                "a package's script started more processes than any package needs"
                if any(words in failure.message for words in _TOO_MANY)
                else "the log has all that the packages' scripts said"
            )
            raise
        for mount in native:
            with contextlib.suppress(OSError):
                (root / mount.target[1:]).rmdir()  # bubblewrap made it
        shown.show_note("")
        write_layer_from_root(
            name=step.name, root=root, owners=owners, folder=folder, epoch=job.plan.epoch, drop=MOUNTED,
            threads=job.limits.threads,
        )  # fmt: skip


def make_places(program: Program, root: Path) -> None:
    """Make what the program's files are mounted on: bubblewrap would follow a link there, and proot makes nothing.

    Raises BuildError if a package or an image has something under these names.
    """
    for name in MOUNTED:
        if os.path.lexists(root / name):
            raise BuildError(f"a package or the image holds `/{name}`, where a build mounts its programs")
    folder_beneath(root, MOUNTED[1])
    for name in program.files:
        with new_beneath(root, f"{MOUNTED[0]}/{name}"):
            pass


def lay(base: LockedBase, tree: Overlay, store: Store) -> Overlay:
    """Lay the layers of a locked image over each other, out of the store. Returns `tree`."""
    configuration = parse_configuration(store.artifact(base.config.digest).read_bytes())
    for layer, diff_id in zip(base.layers, configuration.diff_ids, strict=True):
        with store.artifact(layer.digest).open("rb") as stream:
            tree.lay_over(stream, name=f"sha256:{layer.digest}", sha256=layer.digest, diff_id=diff_id)
    return tree


def image_owners(base: LockedBase, store: Store) -> Owners:
    """Return the owners in the layers of a locked image."""
    return owners_of(lay(base, Overlay(lambda _: False), store))


def merged_owners(image: Owners, file: Path) -> dict[str, Owner]:
    """Return the owners of the os layer: those of an image, and over them those that `steps/distribution.py` wrote.

    dpkg gives a folder that is there no other owner.
    """
    rows = json.loads(file.read_text(encoding="utf-8"))
    files = {path: Owner(uid, gid, special) for path, uid, gid, special in rows["files"]}
    folders = {path: Owner(uid, gid, special) for path, uid, gid, special in rows["folders"]}
    return {**folders, **image, **files}


def _configure_command(
    program: Program, job: BuildJob, work: Path, native: tuple[Mount, ...] = ()
) -> Command:
    by = emulation(job)
    files = tuple(Mount(source=steps.FOLDER / name, target=f"{PROGRAMS}/{name}") for name in program.files)
    folder = Mount(source=work / "step", target=str(Path(SPEC).parent))
    return root_command(
        program.argv, work / "root", why=program.why, mounts=(*files, folder, *native), epoch=job.plan.epoch,
        emulation=by.words() if by else (),
    )  # fmt: skip


def root_command(
    argv: Sequence[str],
    root: Path,
    *,
    why: str,
    epoch: int,
    mounts: Sequence[Mount] = (),
    emulation: Sequence[str] = (),
) -> Command:
    """Run a program as the root user of `root`, without network and without anything else of this machine.

    Its user namespace has one id, that of whoever builds. `enter_sandbox.py` answers what changes owners.
    """
    options = ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    for mount in mounts:
        options += mount.options()
    return sandbox(
        options, argv, why=why, env=(*steps.ENVIRONMENT.items(), ("SOURCE_DATE_EPOCH", str(epoch))), user=ROOT,
        capabilities=_CAPABILITIES, emulation=emulation, merged=True,
    )  # fmt: skip
