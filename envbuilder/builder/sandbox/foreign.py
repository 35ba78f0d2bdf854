"""The tools that build for another processor: qemu, and native compilers in place of the environment's own.

An environment's programs run by qemu (`runners/enter_sandbox.py`). What takes long is native: the Python that installs the wheels, and
the compilers. Debian's packages for several processors share no path, and its cross compiler is named as the environment's
own compiler is. So the native folders lie over those of the environment, and projects find their compiler where it is on a
machine of that processor.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.builder.job import BuildJob, unpack_packages
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import Emulation
from envbuilder.core.cache import remove_tree, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.core.processor import X86_64
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import CudaStep, Plan
from envbuilder.plan.program import spec_text
from envbuilder.runners.sandbox import Mount
from envbuilder.sources.deb import open_tar
from envbuilder.steps import digest
from envbuilder.steps.toolkit import ToolkitError, Tree, install_part

_LIBRARIES: Final = f"usr/lib/{X86_64.gnu}"
# The packages of another processor remove the folder that a native program's loader is in.
_START: Final = f"""\
#!/bin/sh
exec /{_LIBRARIES}/{PurePosixPath(X86_64.loader).name} /{_LIBRARIES}/{{}} "$@"
"""
_OWN: Final = f"lib/gcc/{X86_64.gnu}"
# Below /usr: the folders of compilers, and of the libraries that they load.
_FOLDERS: Final = (
    "lib64", f"lib/{X86_64.gnu}", _OWN, "lib/gcc-cross", "libexec/gcc", "libexec/gcc-cross", f"include/{X86_64.gnu}",
)  # fmt: skip


def tools_tree(job: BuildJob) -> Path:
    """Return the folder of the plan's tools, which `make_tools` writes."""
    tools = job.cross_tools
    assert tools, f"{job.plan.name} is for this processor"
    rules = spec_text(job.plan.cuda.rules()) if job.plan.cuda else ""
    programs = [digest(name) for name in ("distribution.py", "toolkit.py")]
    words = [f"tools {job.plan.platform}", *programs, rules, *(file.sha256 for file in tools.artifacts)]
    return job.store.tools(sha256_text("\n".join(words)))


def missing_tools(job: BuildJob) -> tuple[Artifact, ...]:
    """Return what `make_tools` will read."""
    tools = job.cross_tools
    return tools.artifacts if tools and not job.store.holds(tools_tree(job)) else ()


def make_tools(job: BuildJob) -> None:
    """Unpack the plan's tools, unless the plan is for this processor or the store has their tree."""
    tools = job.cross_tools
    if tools is None:
        return
    final = tools_tree(job)
    with job.store.lock(f"tree-{final.name}"):
        if job.store.holds(final):
            return
        with job.console.step(f"unpack {len(tools.artifacts)} tools"), job.store.workspace() as work:
            for name, debs in (("native", tools.debs), ("emulator", (tools.emulator,))):
                unpack_packages(debs, job.plan, work / name, job.store, job.runner)
            tree, machine = work / "tree", job.plan.processor.machine
            tree.mkdir()
            (tree / f"qemu-{machine}").hardlink_to((work / f"emulator/usr/bin/qemu-{machine}").resolve())
            _copy_compilers(work / "native/usr", tree / "usr", job.plan)
            for python in (work / "native/usr/bin").glob("python3.*"):
                python.rename(tree / _LIBRARIES / python.name)
                (tree / python.name).write_text(_START.format(python.name), encoding="utf-8")
                (tree / python.name).chmod(0o755)
            if step := job.plan.cuda:
                packages = {part.name: job.store.artifact(part.sha256) for part in tools.toolkit}
                _install_programs(step, packages, tree)
            for name in ("native", "emulator"):  # whose files have links in the tree
                remove_tree(work / name)
            job.store.commit(tree, final)


def _install_programs(step: CudaStep, packages: Mapping[str, Path], root: Path) -> None:
    """Install the toolkit's programs alone below `root`, out of the packages for another processor than the step's."""
    tree = Tree(str(root), f"/{step.toolkit.folder}")
    try:
        for part in step.rules()["parts"]:
            package = str(packages[part["name"]])
            install_part(part, package, tree, lambda _, package: open_tar(Path(package), "data"))
    except ToolkitError as error:
        raise BuildError(str(error)) from error
    folders = [
        path for path in tree.home.iterdir() if path.name != "bin" and not path.name.startswith("nvvm")
    ]
    for path in (*folders, *(path for path in tree.home.glob("nvvm*/*") if path.name != "bin")):
        remove_tree(path) if path.is_dir() else path.unlink()


def _copy_compilers(native: Path, over: Path, plan: Plan) -> None:
    """Take over the folders and programs whose names say for which processor they are."""
    gnu = plan.processor.gnu
    for name in (*_FOLDERS, gnu):
        if (native / name).is_dir():
            shutil.copytree(native / name, over / name, symlinks=True, copy_function=os.link)
    (over / "bin").mkdir()
    for path in sorted((native / "bin").iterdir()):
        if path.name.startswith((f"{gnu}-", f"{X86_64.gnu}-")):
            path.rename(over / "bin" / path.name)
    # The own compiler looks here for its assembler and linker first; by their plain names, it would find the other one's.
    for name in ("as", "ld"):
        (over / _OWN / plan.os.gcc / name).symlink_to(f"/usr/bin/{X86_64.gnu}-{name}")
    (over / "bin" / f"{X86_64.gnu}-gcc").symlink_to(f"{X86_64.gnu}-gcc-{plan.os.gcc}")


def native_python(job: BuildJob, root: Path) -> tuple[Mount, ...]:
    """Return the mounts by which the Python that is unpacked in `root` is a native one: byte code is the same on each processor.

    Its folder is one that no package of the other processor has.
    """
    if job.cross_tools is None or job.plan.interpreter:
        return ()
    tree, name = tools_tree(job), f"python{job.plan.python.python}"
    if not (root / "usr/bin" / name).is_file():
        return ()
    for path in (_LIBRARIES, f"usr/bin/{name}"):
        LayerFolder(place=root).path(path)
    folder = Mount(source=tree / _LIBRARIES, target=f"/{_LIBRARIES}")
    return (folder, Mount(source=tree / name, target=f"/usr/bin/{name}"))


def emulation(
    job: BuildJob, *, system: LayerFolder | None = None, cuda: LayerFolder | None = None
) -> Emulation | None:
    """Return how programs of the plan's processor run, None if it is this machine's. The compilers in these folders are native."""
    if job.cross_tools is None:
        return None
    tree, folders = tools_tree(job), list[tuple[Path, Path]]()
    if system:
        folders.append((tree / "usr", system.place / "usr"))
    if cuda and job.plan.cuda:
        home = job.plan.cuda.toolkit.folder
        folders.append((tree / home, cuda.place / home))
    program = tree / f"qemu-{job.plan.processor.machine}"
    return Emulation(processor=job.plan.processor, program=program, over=tuple(folders))
