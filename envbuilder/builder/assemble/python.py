"""The python layer: the locked wheels installed by uv, offline and by hash, into /opt/env."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import uv

from envbuilder import runtime as image
from envbuilder.builder.assemble.dpkg_root import make_merged_root, unpack
from envbuilder.builder.assemble.foreign import emulation
from envbuilder.builder.assemble.sandbox import Root, sandboxed
from envbuilder.builder.engine import Job
from envbuilder.core.beneath import clear_beneath
from envbuilder.core.cache import remove_tree, sha256_file
from envbuilder.core.console import Step
from envbuilder.core.process import Command
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.uv_question import NEWEST_MANYLINUX
from envbuilder.plan.contents import OF_PYTHON_LAYER, is_repeatable
from envbuilder.plan.model import ENV_PREFIX, AddedStep, Plan, PythonStep
from envbuilder.runners.sandbox import Mount

# The only writable mount, of the folder `SPACE`. uv's cache and the environment share it, so hard links work. What uv reads is
# not in it: the wheels are links to files of the store, and each of them may run code when byte code is made.
WORK: Final = "/work"
SPACE: Final = "space"
WHEELS, REQUIREMENTS = "/wheels", "requirements.txt"

# The packages that a minimal Python and uv need, of any suite. With only these, the wheels are installed while the os layer is still
# in the making.
INTERPRETER: Final = (
    "libc6", "libgcc-s1", "libexpat1", "zlib1g", "libpython{}-minimal", "libpython{}-stdlib", "python{}-minimal",
    "python3-distutils",  # in suites with a Python before 3.10
)  # fmt: skip

COMPILE: Final = "kit/compile_all.py"  # in `envbuilder/runtime`, like the next
CHECK: Final = "kit/check_byte_code.py"
STEADY: Final = (
    ("PYTHONHASHSEED", "0"),
    ("PYTHONWARNINGS", "ignore"),  # a warning leaves strings in the process, which changes byte code
)


def commands(step: PythonStep, job: Job, work: Path, own: Path | None) -> tuple[Command, ...]:
    """Return the commands that make the layer. `own` is the tree of the standalone Python if there is one."""
    root = Root(os=work / "interpreter", interpreter=own)
    return install_commands(step, _with_emulation(root, job), work=work, plan=job.plan)


def _with_emulation(root: Root, job: Job) -> Root:
    """Return the root of a standalone Python that is for another processor."""
    return replace(root, emulation=emulation(job)) if root.interpreter else root


def write_tree(step: PythonStep, job: Job, work: Path, own: Path | None, built: Sequence[Path]) -> None:
    """Install the wheels into `work/tree`. `own` is the tree of the standalone Python if there is one.

    `built` are the wheels of the step's sdists.
    """
    space = work / SPACE
    with job.console.step(f"install {len(step.artifacts)} Python packages") as shown:
        unpack_root(step.python, job, work)
        make_environment(space / "tree", step)
        wheels = work / "wheels"
        wheels.mkdir()
        files = {
            one.filename: job.store.artifact(one.sha256) for one in step.artifacts if one.kind == "wheel"
        }
        for name, file in (files | {one.name: one for one in built}).items():
            (wheels / name).hardlink_to(file)
        (wheels / REQUIREMENTS).write_text(requirements(step, built), encoding="utf-8")
        root = _with_emulation(Root(os=work / "interpreter", interpreter=own), job)
        shown.expect(len(files) + len(built), items=True)
        with shown.following(lambda: count_unpacked(space / "cache", shown)):
            for command in install_commands(step, root, work=work, plan=job.plan):
                job.runner.run(command)
        shown.show_note("")
        (space / "tree").rename(work / "tree")
        remove_tree(space)
        if isinstance(step, AddedStep):
            for name in OF_PYTHON_LAYER:
                clear_beneath(work / "tree", f"{ENV_PREFIX[1:]}/{name.format(step.python)}")


def count_unpacked(cache: Path, step: Step) -> int:
    """Return how many wheels uv has unpacked, which it says only at its end. What it does after them is shown."""
    count = sum(1 for _ in cache.glob("archive-v*/*"))
    if count == step.total:
        step.show_note("compiling byte code")
    return count


def requirements(step: PythonStep, built: Sequence[Path] = ()) -> str:
    """Return the wheels as requirements with hashes."""
    pins = [(one.name, one.version, one.sha256) for one in step.artifacts if one.kind == "wheel"]
    for wheel in built:
        name, version, *_ = wheel.name.split("-")
        pins.append((name, version, sha256_file(wheel)))
    return "".join(f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in pins)


def interpreter(python: str, debs: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """Return the packages of the minimal Python that installs the wheels; for a standalone Python, those that it needs."""
    names = [name.format(python) for name in INTERPRETER]
    return tuple(deb for deb in debs if deb.name in names)


def interpreter_packages(python: str, job: Job) -> tuple[Artifact, ...]:
    """Return the packages of the root that a layer of Python is made in. Byte code is the same on each processor.

    So the packages are native, but for a standalone Python, which needs those of its own processor.
    """
    native = None if job.plan.interpreter else job.cross_tools
    return interpreter(python, native.debs if native else job.plan.os.artifacts)


def unpack_root(python: str, job: Job, work: Path) -> None:
    """Make a root with a minimal Python in `work/interpreter`, out of the locked packages."""
    root = work / "interpreter"
    make_merged_root(root)
    debs = interpreter_packages(python, job)
    unpack({deb.name: job.store.artifact(deb.sha256) for deb in debs}, root, threads=job.limits.threads)
    for name in ("etc", "var", "usr/local", "usr/local/bin"):  # the sandbox mounts them
        (root / name).mkdir(exist_ok=True)


def install_commands(step: PythonStep, root: Root, *, work: Path, plan: Plan) -> tuple[Command, ...]:
    """Install every wheel of `work/wheels`, with the hashes of its `requirements.txt`, in a root with a minimal Python.

    Byte code is `unchecked-hash`: the image is read-only, so a check at each import would be of no use.
    """
    argv = (
        "/uv", "pip", "install", "--offline", "--no-index", "--find-links", WHEELS, "--no-deps", "--no-config",
        "--require-hashes", "-r", f"{WHEELS}/{REQUIREMENTS}", "--python", f"{ENV_PREFIX}/bin/python",
        "--link-mode", "hardlink", "--cache-dir", f"{WORK}/cache",
        *(("--python-platform", plan.processor.uv_platform(NEWEST_MANYLINUX)) if plan.tools else ()),
    )  # fmt: skip

    def sandbox(words: Sequence[str], why: str, *, writable: bool = True) -> Command:
        return sandboxed(
            root,
            words,
            why=why,
            mounts=(
                Mount(source=work / SPACE, target=WORK, writable=writable),
                Mount(source=work / WHEELS[1:], target=WHEELS),
                Mount(source=Path(uv.find_uv_bin()), target="/uv"),
                *(Mount(source=image.path(program), target=f"/{program}") for program in (COMPILE, CHECK)),
            ),
            links=((ENV_PREFIX, f"{WORK}/tree{ENV_PREFIX}"),),
            env=(
                ("SOURCE_DATE_EPOCH", str(plan.epoch)),
                ("PYC_INVALIDATION_MODE", "UNCHECKED_HASH"),
                *STEADY,
                ("UV_NO_PROGRESS", "1"),
                ("UV_NO_INSTALLER_METADATA", "1"),  # this metadata holds the time of the cached wheel
            ),
        )

    why = "install the locked Python packages"
    # It only reads, so the files need not be given to the sandbox once more.
    checking = sandbox(
        (step.program, f"/{CHECK}", step.site_packages), "look for the byte code", writable=False
    )
    if is_repeatable(step.python):
        return (sandbox((*argv, "--compile-bytecode"), why), checking)
    compiling = sandbox((step.program, f"/{COMPILE}", step.site_packages), "byte-compile the Python packages")
    return (sandbox(argv, why), compiling, checking)


def make_environment(tree: Path, step: PythonStep) -> None:
    """Write an empty environment over the distribution's or a standalone Python.

    It names only the minor version, because distributions with different patch versions share the layer.
    """
    prefix = tree / ENV_PREFIX[1:]
    (prefix / "bin").mkdir(parents=True)
    (tree / step.site_packages[1:]).mkdir(parents=True)
    (prefix / "lib64").symlink_to("lib")
    (prefix / "bin/python").symlink_to(step.program)
    for name in ("python3", f"python{step.python}"):
        (prefix / "bin" / name).symlink_to("python")
    (prefix / "pyvenv.cfg").write_text(
        f"home = {PurePosixPath(step.program).parent}\ninclude-system-site-packages = false\nversion = {step.python}\n",
        encoding="utf-8",
    )
