"""The root of a build's sandbox: the lower layers, read-only, no GPU, no files of the machine.

bubblewrap mounts it from folders of the store, without a copy. Programs of another processor run by qemu in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import uv

from envbuilder import steps
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command
from envbuilder.core.processor import Processor
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
    """The trees of the root: that of the os layer, and those of the layers above it if there are any."""

    os: Path
    interpreter: Path | None = None
    environment: tuple[Path, ...] = ()  # what /opt/env has, bottom first
    cuda: Path | None = None
    cuda_version: str = ""
    emulation: Emulation | None = None  # None: the trees are of this machine's processor

    @property
    def trees(self) -> tuple[Path, ...]:
        tools = self.emulation.program.parent if self.emulation else None
        return tuple(filter(None, (self.os, self.interpreter, *self.environment, self.cuda, tools)))


def folder_in(tree: Path, name: str) -> str:
    """Return the path of a folder in a tree, for a mount. Raises BuildError for a link, which leads to a folder of this machine.

    The scripts of packages may leave one in place of any folder, and nothing changes a tree later.
    """
    path = tree
    for part in name.split("/"):
        path /= part
        if path.is_symlink():
            raise BuildError(
                f"`/{path.relative_to(tree)}` of the environment is a link to `{path.readlink()}`, expected a folder",
                hint="a package under `apt` or `packages` made it so, and nothing can be built in such an environment",
            )
    return str(path)


def _more_of(root: SandboxRoot) -> Iterator[Path]:
    """Yield what an image has in folders in which other layers have theirs, such as its own toolkit."""
    others = {"bin", *(("cuda", f"cuda-{root.cuda_version}") if root.cuda else ())}
    for name, known in (("usr/local", others), ("opt", {"env", "envbuilder", "python"})):
        folder = Path(folder_in(root.os, name))
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name not in known and (path.is_dir() or path.is_symlink()):
                yield path


def _merged(folders: Sequence[Path], target: str) -> Iterator[str]:
    """Yield the options that mount what the folders have below the folder `target`. An upper folder's path hides that of a lower one."""
    paths: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():  # `--dry-run` has no trees yet
            paths.setdefault(path.name, []).append(path)
    for name, places in paths.items():
        top, inside = places[-1], f"{target}/{name}"
        if top.is_symlink():
            yield from ("--symlink", str(top.readlink()), inside)
        elif top.is_dir() and len(places) > 1:
            yield from ("--dir", inside)
            yield from _merged(
                [place for place in places if place.is_dir() and not place.is_symlink()], inside
            )
        else:
            yield from ("--ro-bind", str(top), inside)


def sandboxed(root: SandboxRoot, argv: Sequence[str], *, why: str, mounts: Sequence[Mount] = ()) -> Command:
    """Return the command that runs `argv` in the sandbox."""
    options = [
        "--ro-bind", folder_in(root.os, "usr"), "/usr",
        "--tmpfs", "/usr/local",
        "--ro-bind", folder_in(root.os, "usr/local/bin"), "/usr/local/bin",
        "--ro-bind", folder_in(root.os, "etc"), "/etc",
        "--ro-bind", folder_in(root.os, "var"), "/var",
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108 - the sandbox's own
        "--dir", "/opt", "--dir", "/root",
    ]  # fmt: skip
    for name in ("bin", "sbin", "lib", "lib64"):
        folder = root.os / name
        is_merged = folder.is_symlink() or not folder.is_dir()  # an image may be without the merged /usr
        options += ["--symlink", f"usr/{name}"] if is_merged else ["--ro-bind", str(folder)]
        options.append(f"/{name}")
    for more in _more_of(root):
        options += ["--symlink", str(more.readlink())] if more.is_symlink() else ["--ro-bind", str(more)]
        options.append(f"/{more.relative_to(root.os)}")
    if root.cuda is not None:
        home = f"/usr/local/cuda-{root.cuda_version}"
        options += ["--ro-bind", folder_in(root.cuda, home[1:]), home, "--symlink", home, "/usr/local/cuda"]
    if root.interpreter is not None:
        options += ["--ro-bind", folder_in(root.interpreter, STANDALONE_PREFIX[1:]), STANDALONE_PREFIX]
    folders = [Path(folder_in(tree, ENV_PREFIX[1:])) for tree in root.environment]
    if len(folders) == 1:
        options += ["--ro-bind", str(folders[0]), ENV_PREFIX]
    elif folders:
        options += ["--tmpfs", ENV_PREFIX, *_merged(folders, ENV_PREFIX), "--remount-ro", ENV_PREFIX]
    for mount in mounts:
        options += mount.options()
    by = root.emulation.words() if root.emulation else ()
    return sandbox(options, argv, why=why, env=steps.ENVIRONMENT.items(), emulation=by)


def program_command(program: Program, root: SandboxRoot, work: Path, mounts: Sequence[Mount] = ()) -> Command:
    """Return the command that runs a program in `work`, which `prepare_run` fills."""
    files = (Mount(source=steps.FOLDER / name, target=f"{PROGRAMS}/{name}") for name in program.files)
    tool = Mount(source=Path(uv.find_uv_bin()), target=f"{PROGRAMS}/uv")
    step = str(PurePosixPath(SPEC).parent)
    folder = Mount(source=work / step[1:], target=step)
    result = Mount(source=work / OUT[1:], target=OUT, writable=True)
    return sandboxed(root, program.argv, why=program.why, mounts=(*files, tool, folder, result, *mounts))
