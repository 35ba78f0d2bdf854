"""Recipe → lock → plan: check the recipe, read its lock, and put the steps in order."""

import functools
import json
import posixpath
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder import runtime
from envbuilder.compat.check import examine_file, load_tables, need_sound
from envbuilder.compat.explain import driver_floor
from envbuilder.compat.host_file import load_host_facts
from envbuilder.compat.image_facts import Base, Fact
from envbuilder.compat.tables.cuda import capabilities, load_gpus
from envbuilder.compat.tables.toolkit import Toolkit, load_toolkits, toolkit_of
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.errors import LockError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.core.processor import X86_64, processor_of
from envbuilder.lock.file import known_base, load_fresh, lock_text
from envbuilder.lock.model import Artifact, Lock, LockedBuild, needs_toolkit
from envbuilder.plan import shell
from envbuilder.plan.extension import is_linked, is_of_torch
from envbuilder.plan.model import (
    DRIVER_PARTS,
    ENV_PREFIX,
    GPUS,
    HEAVY,
    LIB,
    LOCK_LABEL,
    MOST_HEAVY,
    OWN,
    PLAN_LABEL,
    RECIPE_LABEL,
    SEEN_BY_CONDA,
    SITE_PACKAGES,
    SYSTEM_PATH,
    TITLE,
    CondaStep,
    CudaStep,
    ExtensionsStep,
    InterpreterStep,
    KernelsStep,
    OsStep,
    Plan,
    PythonStep,
    RuntimeStep,
    StartStep,
    Step,
    WarmStep,
    WheelStep,
)
from envbuilder.plan.program import PACKAGES
from envbuilder.recipe.channels import CONDA_BIN, CONDA_PREFIX
from envbuilder.recipe.fields import expand_own
from envbuilder.recipe.model import AUTO, Recipe

NEEDS: Final = "opt/envbuilder/needs.json"
BAKED: Final = "opt/envbuilder/nccl.json"
NCCL_CONF: Final = "etc/nccl.conf"
_Files = tuple[tuple[str, str], ...]  # path below / → text


def load_locked(
    name: str, recipes: Path, store: Store, host: Path | None = None
) -> tuple[Recipe, Lock, tuple[Finding, ...]]:
    """Check the recipe and read its lock. Returns the warnings of `check` as well.

    Raises IncompatibleError for a recipe that cannot work, LockError for a lock that is missing or no longer fits the recipe.
    """
    recipe, report = examine_file(name, recipes, host, base_of=functools.partial(known_base, store=store))
    need_sound(recipe, report)
    lock = load_fresh(recipe, name)
    return lock.settle(recipe), lock, report.findings


def make_plan(
    name: str, recipes: Path, store: Store, host: Path | None = None
) -> tuple[Recipe, Plan, tuple[Finding, ...]]:
    """Make the plan of a locked recipe. `host` is a profile of the site. Raises what `load_locked` raises."""
    recipe, lock, findings = load_locked(name, recipes, store, host)
    return recipe, plan_of(recipe, lock, host), findings


def plan_of(recipe: Recipe, lock: Lock, host: Path | None = None) -> Plan:
    """Put the steps of a lock that fits the recipe in order. Raises LockError for a toolkit that is not known."""
    return make(
        recipe,
        lock,
        toolkit=toolkit_for(recipe, lock),
        architectures=capabilities(recipe.gpus, load_gpus().rows),
        lock_text=lock_text(lock),
        start=(
            *_below(SITE_PACKAGES.format(python=recipe.python), runtime.files("start")),
            *_below(LIB, (*runtime.files("lib"), *runtime.modules("node/nccl"))),
        ),
        more=(
            *_below(OWN, runtime.files("entry")),
            (shell.SCRIPT, shell.script()),
            *site_files(recipe, host),
            *need_files(recipe),
        ),
    )


def need_buildable(plan: Plan) -> None:
    """Raise LockError for a plan for another processor whose lock was made before locks named the tools for that."""
    if plan.processor is not X86_64 and plan.tools is None:
        raise LockError(
            f"the lock of `{plan.name}` for {plan.platform} does not name the tools that build it",
            hint=f"`envbuilder lock {plan.name}` adds them",
        )


def toolkit_for(recipe: Recipe, lock: Lock) -> Toolkit | None:
    """Return the toolkit of the lock's packages, None if the recipe needs none. Raises LockError if they make none."""
    if not needs_toolkit(recipe, lock.base):
        return None
    known = toolkit_of(recipe.cuda_minor, lock.toolkit, load_toolkits().rows)
    if known is None:
        raise LockError(
            f"the packages in `toolkit` of the lock make no CUDA {recipe.cuda} that this envbuilder knows",
            hint=f"`envbuilder lock {pasted(recipe.path)}` chooses them anew",
        )
    return known[1].on(processor_of(lock.platform) or X86_64)


def _below(folder: str, files: _Files) -> Iterator[tuple[str, str]]:
    return ((f"{folder[1:]}/{path}", text) for path, text in files)


def site_files(recipe: Recipe, host: Path | None) -> _Files:
    """Return the files of the site: the NCCL profile and its fixed settings.

    The profile is that of `host`, otherwise the recipe's. Raises UsageError for a file without a profile.
    """
    if host is None and recipe.nccl == AUTO:
        return ()
    if host is None and recipe.nccl == "off":
        return ((BAKED, json.dumps({"mode": "off"}) + "\n"),)
    path = host or recipe.path.parent / recipe.nccl
    facts = load_host_facts(path)
    if facts.profile is None:
        raise UsageError(f"`{path}` holds no profile", hint="`envbuilder detect --save FILE` writes one")
    text = json.dumps({"mode": "profile", "profile": facts.profile_data}, indent=1, sort_keys=True) + "\n"
    fixed = "".join(f"{name}={value}\n" for name, value in facts.profile.fixed)
    return ((BAKED, text), *(((NCCL_CONF, fixed),) if fixed else ()))


def need_files(recipe: Recipe) -> _Files:
    """Return the file with the driver floor, which is checked at start-up. Empty without CUDA."""
    floor = driver_floor(recipe, load_tables())
    return ((NEEDS, json.dumps({"driver": floor}) + "\n"),) if floor else ()


# ---- the steps in order, without I/O


def make(
    recipe: Recipe, lock: Lock, *, toolkit: Toolkit | None, architectures: tuple[str, ...], lock_text: str, start: _Files, more: _Files = ()
) -> Plan:  # fmt: skip
    """Put the steps in order.

    `toolkit` is the table's row for the recipe's CUDA, None without CUDA. `start` and `more` are files of the start and the runtime
    layer.
    """
    inside = lock.base.inside if lock.base else None
    if recipe.keeps_torch and inside and (torch := inside.torch(recipe.python)):
        start = (*start, *_image_files(torch, recipe.python))
    if any(package.name == "python" and recipe.is_seen_by(package.version) for package in lock.conda):
        start = (*start, _seen_by_conda(recipe.python))
    standalone = InterpreterStep(python=recipe.python, archive=lock.interpreter) if lock.interpreter else None
    program = standalone.program if standalone else _image_python(recipe, lock)

    def packages(kind: Callable[..., PythonStep], artifacts: tuple[Artifact, ...]) -> PythonStep:
        names = {package.name for package in artifacts}
        builds: tuple[LockedBuild, ...] = tuple(build for build in lock.builds if build.name in names)
        return kind(python=recipe.python, artifacts=artifacts, interpreter=program, builds=builds)

    groups = _grouped(lock.wheels)
    linked = tuple(
        name for name, group in groups.items() if any(is_linked(package.name) for package in group)
    )
    family, others = (
        tuple(
            packages(functools.partial(WheelStep, name=name, is_torchs=is_torchs), group)
            for name, group in groups.items()
            if name != PythonStep.name and is_of_torch(group[0].name) is is_torchs
        )
        for is_torchs in (True, False)
    )
    has_cuda = bool(toolkit or (inside and inside.toolkit(recipe.cuda)))
    env = _environment(recipe, inside, has_cuda=has_cuda)
    steps: tuple[Step, ...] = (
        _os_step(recipe, lock),
        *((standalone,) if standalone else ()),
        *family,
        packages(PythonStep, groups[PythonStep.name]),
        *((CudaStep(toolkit=toolkit, artifacts=lock.toolkit, reads=linked),) if toolkit else ()),
        *((CondaStep(artifacts=lock.conda, allow_scripts=recipe.conda.allow_scripts),) if lock.conda else ()),
        *others,
        *((ExtensionsStep(architectures=architectures, extensions=lock.extensions),) if lock.extensions else ()),
        *((KernelsStep(kernels=lock.kernels),) if lock.kernels else ()),
        *((WarmStep(architectures=architectures, warm=lock.warm, env=env),) if lock.warm else ()),
        StartStep(python=recipe.python, files=tuple(sorted(start))),
    )  # fmt: skip
    before = Plan(name=recipe.name, platform=lock.platform, epoch=lock.epoch, steps=steps, tools=lock.tools)
    described = RuntimeStep(
        env=env,
        labels=(
            (LOCK_LABEL, f"sha256:{sha256_text(lock_text)}"),
            (PLAN_LABEL, f"sha256:{before.key}"),
            (RECIPE_LABEL, f"sha256:{recipe.digest}"),
            (TITLE, recipe.name),
        ),
        run=tuple(shlex.split(recipe.run)),
        files=(
            ("opt/envbuilder/lock.json", lock_text),
            ("opt/envbuilder/plan.txt", before.canonical()),
            ("opt/envbuilder/recipe.yaml", recipe.canonical()),
            *more,
        ),
    )
    return replace(before, steps=(*steps, described))


def _grouped(packages: Sequence[Artifact]) -> dict[str, tuple[Artifact, ...]]:
    """Return layer → packages: heavy wheels, NVIDIA's small ones, those of torch with the environment, and all others.

    Without torch, all small ones are with the environment.
    """
    wheels = sorted(
        (package for package in packages if package.kind == "wheel"), key=lambda wheel: -wheel.size
    )
    heavy = [wheel for wheel in wheels if wheel.size >= HEAVY][:MOST_HEAVY]
    has_torch = any(package.name == "torch" for package in packages)
    groups: dict[str, list[Artifact]] = {PythonStep.name: []}
    for package in packages:
        if package in heavy:
            name = f"package-{package.name.lower()}"
        elif package.name.startswith("nvidia-") and package.kind == "wheel":
            name = "packages-nvidia"
        else:
            name = PythonStep.name if is_of_torch(package.name) or not has_torch else PACKAGES
        groups.setdefault(name, []).append(package)
    return {name: tuple(group) for name, group in groups.items()}


def _os_step(recipe: Recipe, lock: Lock) -> OsStep:
    if lock.base is None:
        return OsStep(suite=recipe.base.partition("/")[2], gcc=recipe.gcc, artifacts=lock.debs)
    gcc = lock.base.inside.gcc(recipe.gcc)
    is_added = any(deb.name == f"gcc-{recipe.gcc}" for deb in lock.debs)
    driver = gcc.path if gcc and not is_added else f"/usr/bin/gcc-{recipe.gcc}"
    return OsStep(suite="", gcc=recipe.gcc, artifacts=lock.debs, base=lock.base, driver=driver)


def _image_files(torch: Fact, python: str) -> _Files:
    """Return the files by which the environment sees the image's torch, after its own packages, and starts ranks of it."""
    site = SITE_PACKAGES.format(python=python)[1:]
    program = "#!/opt/env/bin/python\nfrom torch.distributed.run import main\nmain()\n"
    return (f"{site}/image.pth", f"{posixpath.dirname(torch.path)}\n"), ("opt/env/bin/torchrun", program)


def _seen_by_conda(python: str) -> tuple[str, str]:
    """Return the file by which a Python of conda sees the environment's packages, before its own.

    A Python of the same minor version loads them. Which libstdc++ a process has, its first user decides, and torch's run path leads
    to the system's, which is older than what packages of conda need. So conda's is loaded before.
    """
    prefix, site = CONDA_PREFIX, SITE_PACKAGES.format(python=python)
    home, library = f"{prefix}/lib/python{python}/site-packages", f"{prefix}/lib/libstdc++.so.6"
    lines = (
        f"import site, sys; {home!r} in sys.path and sys.path.remove({home!r}); site.addsitedir({site!r}); sys.path.append({home!r})",
        f"import os; os.path.exists({library!r}) and __import__('ctypes').CDLL({library!r})",
    )
    return f"{home[1:]}/{SEEN_BY_CONDA}", "".join(f"{line}\n" for line in lines)


def _image_python(recipe: Recipe, lock: Lock) -> str:
    """Return the path of the image's own Python if it is used and has an unusual path, otherwise ""."""
    python = lock.base.inside.python(recipe.python) if lock.base else None
    is_added = any(deb.name == f"python{recipe.python}-minimal" for deb in lock.debs)
    usual = f"/usr/bin/python{recipe.python}"
    return python.path if python and not is_added and python.path != usual else ""


def _environment(recipe: Recipe, inside: Base | None, *, has_cuda: bool) -> tuple[tuple[str, str], ...]:
    """Return the variables of the image. Defaults are left out: under Apptainer, they would override the user's own.

    A base image keeps its variables, because its programs may need them. Its PATH follows that of the environment. In the recipe's own
    value of a variable, `$NAME` of the same name stands for what it would be without. With CUDA, the image
    asks for every GPU and for at least what torch needs of the driver.
    """
    below = inside.env if inside else {}
    path = below.get("PATH", SYSTEM_PATH)
    search = [
        f"{ENV_PREFIX}/bin",
        *(["/usr/local/cuda/bin"] if has_cuda else []),
        *([] if "/usr/local/bin" in path.split(":") else ["/usr/local/bin"]),  # the compilers' plain names
        path,
        *(
            [CONDA_BIN] if recipe.conda.packages else []
        ),  # the last: it brings tools of its own that others need not find
    ]
    fixed = below | {"PATH": ":".join(search)}
    if recipe.pytorch:
        fixed["PYTORCH_VERSION"] = recipe.pytorch  # enroot's PyTorch hook reads it
    if has_cuda:
        fixed["CUDA_HOME"] = "/usr/local/cuda"
        fixed[GPUS] = "all"
        parts = [*filter(None, below.get(DRIVER_PARTS, "").split(",")), "compute", "utility"]
        fixed[DRIVER_PARTS] = "all" if "all" in parts else ",".join(dict.fromkeys(parts))
    chosen = {name: expand_own(name, value, fixed.get(name, "")) for name, value in recipe.env}
    return tuple((fixed | chosen).items())
