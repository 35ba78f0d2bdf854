"""The root of a build's sandbox: the lower layers, read-only, no GPU, no files of the machine.

bubblewrap mounts it from their folders. Programs of another processor run by qemu in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import uv

from envbuilder import steps
from envbuilder.builder.sandbox.layer_folders import LayerFolder, mounted
from envbuilder.core.process import Command
from envbuilder.core.processor import Processor
from envbuilder.plan.extension import EXTENSIONS
from envbuilder.plan.model import ENV_PREFIX, STANDALONE_PREFIX
from envbuilder.plan.program import OUT, PROGRAMS, SPEC, Program
from envbuilder.runners.sandbox import Mount, sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How programs of another processor run: by qemu, except what lies in native folders over those of a tree."""

    processor: Processor
    program: Path  # qemu
    over: tuple[tuple[Path, Path], ...] = ()  # a native folder, and the one that it lies over

    def words(self) -> tuple[str, ...]:
        """Return the words of `enter_sandbox.py` for programs of another processor."""
        folders = (str(folder) for pair in self.over for folder in pair)
        return (str(self.processor.elf), str(self.program), *folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRoot:
    """The folders of the root: that of the os layer, and those of the layers above it if there are any."""

    os: LayerFolder
    interpreter: LayerFolder | None = None
    environment: tuple[LayerFolder, ...] = ()  # what /opt/env has, bottom first
    cuda: LayerFolder | None = None
    cuda_version: str = ""
    extensions: LayerFolder | None = None
    emulation: Emulation | None = None  # None: the programs are for this machine's processor

    @property
    def folders(self) -> tuple[LayerFolder, ...]:
        return tuple(filter(None, (self.os, self.interpreter, *self.environment, self.cuda, self.extensions)))


def _more_of(root: SandboxRoot) -> Iterator[str]:
    """Yield what an image has in folders in which other layers have theirs, such as its own toolkit."""
    others = {"bin", *(("cuda", f"cuda-{root.cuda_version}") if root.cuda else ())}
    for folder, known in (("usr/local", others), ("opt", {"env", "envbuilder", "python"})):
        root.os.path(folder)
        for name in root.os.names(folder):
            path = f"{folder}/{name}"
            if name not in known and (root.os.is_folder(path) or root.os.link(path)):
                yield path


def _merged(parts: Sequence[LayerFolder], folder: str) -> Iterator[str]:
    """Yield the options that mount what the folders have below one of their own. An upper one's path hides that of a lower one."""
    paths: dict[str, list[LayerFolder]] = {}
    for part in parts:
        for name in part.names(folder):
            paths.setdefault(f"{folder}/{name}", []).append(part)
    for path, places in paths.items():
        top = places[-1]
        if target := top.link(path):
            yield from ("--symlink", target, f"/{path}")
        elif top.is_folder(path) and len(places) > 1:
            yield from ("--dir", f"/{path}")
            yield from _merged([place for place in places if place.is_folder(path)], path)
        else:
            yield from ("--ro-bind", str(top.place / path), f"/{path}")


def sandboxed(root: SandboxRoot, argv: Sequence[str], *, why: str, mounts: Sequence[Mount] = ()) -> Command:
    """Return the command that runs `argv` in the sandbox."""
    system = root.os
    options = [
        "--ro-bind", system.path("usr"), "/usr",
        "--tmpfs", "/usr/local",
        "--ro-bind", system.path("usr/local/bin"), "/usr/local/bin",
        "--ro-bind", system.path("etc"), "/etc",
        "--ro-bind", system.path("var"), "/var",
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108 - the sandbox's own
        "--dir", "/opt", "--dir", "/root",
    ]  # fmt: skip
    for name in ("bin", "sbin", "lib", "lib64"):
        is_own = system.is_folder(name)  # an image may be without the merged /usr
        options += ["--ro-bind", str(system.place / name)] if is_own else ["--symlink", f"usr/{name}"]
        options.append(f"/{name}")
    for more in _more_of(root):
        target = system.link(more)
        options += ["--symlink", target] if target else ["--ro-bind", str(system.place / more)]
        options.append(f"/{more}")
    if root.cuda is not None:
        home = f"/usr/local/cuda-{root.cuda_version}"
        options += ["--ro-bind", root.cuda.path(home[1:]), home, "--symlink", home, "/usr/local/cuda"]
    if root.interpreter is not None:
        options += ["--ro-bind", root.interpreter.path(STANDALONE_PREFIX[1:]), STANDALONE_PREFIX]
    environment = list(root.environment)
    if root.extensions is not None:
        if root.extensions.is_folder(EXTENSIONS[1:]):
            options += ["--ro-bind", root.extensions.path(EXTENSIONS[1:]), EXTENSIONS]
        if root.extensions.is_folder(ENV_PREFIX[1:]):
            environment.append(root.extensions)
    places = [part.path(ENV_PREFIX[1:]) for part in environment]
    if len(places) == 1:
        options += ["--ro-bind", places[0], ENV_PREFIX]
    elif places:
        options += [
            "--tmpfs",
            ENV_PREFIX,
            *_merged(environment, ENV_PREFIX[1:]),
            "--remount-ro",
            ENV_PREFIX,
        ]
    for mount in mounts:
        options += mount.options()
    by = root.emulation.words() if root.emulation else ()
    return sandbox(
        options, argv, why=why, env=steps.ENVIRONMENT.items(), emulation=by, mounted=mounted(root.folders)
    )


def program_command(program: Program, root: SandboxRoot, work: Path, mounts: Sequence[Mount] = ()) -> Command:
    """Return the command that runs a program in `work`, which `prepare_run` fills."""
    files = (Mount(source=steps.FOLDER / name, target=f"{PROGRAMS}/{name}") for name in program.files)
    tool = Mount(source=Path(uv.find_uv_bin()), target=f"{PROGRAMS}/uv")
    step = str(PurePosixPath(SPEC).parent)
    folder = Mount(source=work / step[1:], target=step)
    result = Mount(source=work / OUT[1:], target=OUT, writable=True)
    return sandboxed(root, program.argv, why=program.why, mounts=(*files, tool, folder, result, *mounts))
