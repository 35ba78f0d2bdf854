"""Every kind of recipe works by both runners and as both texts: `docs/explain/kinds.md` has the table that is made here."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builder.render import PRINTERS, make_printed
from envbuilder.builder.sandbox.runner import SandboxRunner
from envbuilder.lock.model import LockedBuild, LockedKernel, LockedWarm
from envbuilder.plan.make import toolkit_for
from envbuilder.plan.model import Plan
from envbuilder.plan.printer.dockerfile import folder_dockerfile
from envbuilder.plan.printer.printed import with_parts
from envbuilder.plan.program import SPEC
from tests.support import bases
from tests.support.bases import locked
from tests.support.locks import make_parts
from tests.support.plans import (
    EXTENSION,
    INTERPRETER_ARCHIVE,
    LOCK,
    RECIPE,
    locked_files,
    make_job,
    make_plan,
    make_small_printed,
    sdist,
    wheel,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explain/kinds.md"
SETUP = LockedBuild(name="zlang", wheels=(wheel("setuptools", "80.0.0"), wheel("wheel", "0.45.0")))


def with_extension(**changed: Any) -> Plan:
    """Return a plan whose extension is of another form."""
    plain = replace(EXTENSION, sources=(), include=(), cflags=(), cuda_cflags=())
    return make_plan(lock=replace(LOCK, extensions=(replace(plain, **changed),)))


def archived(kind: str, **changed: Any) -> Plan:
    packed = replace(sdist("fused", "1.0"), kind=kind)
    return with_extension(files=(), archive=packed, **changed)


def on_image() -> Plan:
    lock = replace(LOCK, base=locked(bases.devel()))
    return make_plan(replace(RECIPE, base="site/base:1"), lock)


def of_conda() -> Plan:
    package = replace(
        wheel("ffmpeg", "6.1"), kind="conda", source="channel-x", path="linux-64/ffmpeg-6.1-0.conda"
    )
    return make_plan(lock=replace(LOCK, conda=(package,)))


def with_kernels() -> Plan:
    path = f"team/relu/resolve/{'0' * 40}/build/torch26-cpu/__init__.py"
    file = replace(wheel("relu", "1"), kind="kernel", source="hub", path=path)
    kernel = LockedKernel(name="team/relu", revision="0" * 40, variant="torch26-cpu", files=(file,))
    return make_plan(lock=replace(LOCK, kernels=(kernel,)))


def with_warm() -> Plan:
    warm = LockedWarm(run=("python warm.py",), files=locked_files({"warm.py": "import triton\n"}))
    return make_plan(lock=replace(LOCK, warm=warm))


def with_toolkit(cuda: str, source: str) -> Plan:
    recipe, lock = replace(RECIPE, cuda=cuda), replace(LOCK, toolkit=make_parts(cuda, source))
    return make_plan(recipe, lock, toolkit=toolkit_for(recipe, lock))


KINDS: Mapping[str, Callable[[], Plan]] = {
    "wheels alone (`cpu`)": lambda: make_small_printed("cpu").plan,
    "a Python that its suite lacks": lambda: make_small_printed("cpu", interpreter=INTERPRETER_ARCHIVE).plan,
    "packages that have no wheel": lambda: (
        make_small_printed("cpu", more=(sdist("zlang", "1.0"),), builds=(SETUP,)).plan
    ),
    "CUDA from Debian's packages (`a100`)": lambda: make_small_printed("a100").plan,
    "CUDA from wheels (`h100`)": lambda: make_small_printed("h100").plan,
    "CUDA from NVIDIA's archive": lambda: with_toolkit("12.6", "archive"),
    "CUDA from NVIDIA's apt packages": lambda: with_toolkit("11.2", "apt"),
    "64-bit Arm (`gh200`)": lambda: make_small_printed("gh200").plan,
    "an extension of `sources`": make_plan,
    "an extension of a project (`path`)": lambda: with_extension(path="csrc"),
    "an extension of `git`": lambda: archived("git", git="https://host.example/fused", commit="a" * 40),
    "an extension of an sdist": lambda: archived("sdist", sdist="fused==1.0"),
    "an extension of `url`": lambda: archived("sdist", url="https://host.example/fused-1.0.tar.gz", sha256="a" * 64),
    "an extension of `capture`": lambda: with_extension(path="csrc", capture=("import fused",)),
    "an image as base": on_image,
    "packages of conda channels": of_conda,
    "Triton kernels of `warm`": with_warm,
    "kernels of the Hugging Face hub": with_kernels,
}  # fmt: skip


# The environment of a release test that is built from both texts and has the files of `build`, path by path.
PROOFS: Mapping[str, str] = {
    "wheels alone (`cpu`)": "cpu",
    "a Python that its suite lacks": "standalone",
    "packages that have no wheel": "sdists",
    "CUDA from Debian's packages (`a100`)": "a100",
    "CUDA from wheels (`h100`)": "toolkit",
    "CUDA from NVIDIA's archive": "archive",
    "CUDA from NVIDIA's apt packages": "apt",
    "64-bit Arm (`gh200`)": "arm",
    "an extension of `sources`": "cpu",
    "an extension of a project (`path`)": "sdists",
    "an extension of `git`": "fetched",
    "an extension of an sdist": "sdists",
    "an extension of `url`": "sdists",
    "an extension of `capture`": "fetched",
    "an image as base": "on_image",
    "packages of conda channels": "conda",
    "Triton kernels of `warm`": "warm",
    "kernels of the Hugging Face hub": "hub_kernels",
}


def by_sandbox(plan: Plan, folder: Path) -> str:
    job = replace(make_job(folder), plan=plan)
    return "\n".join(str(command) for command in SandboxRunner(job=job).commands())


def by_buildkit(plan: Plan) -> str:
    return folder_dockerfile(plan, {program.name for program in plan.programs})


def runs(text: str, plan: Plan, *, inside: bool) -> bool:
    """Whether the text runs each program of the plan, which is more than to write or to mount it."""
    wanted = {
        run.files[0]
        for program in plan.programs
        for run in with_parts(program)
        if not (inside and run.is_outside)  # what runs outside has run before BuildKit begins
    }
    return wanted <= set(re.findall(rf"/([a-z_]+\.(?:py|sh))'? \S*{SPEC} ", text))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [
        "| kind of recipe | sandbox | BuildKit | printed Dockerfile | printed definition file | built in a release test as |",
        "|:--|:--|:--|:--|:--|:--|",
    ]
    for kind, make in KINDS.items():
        plan = make()
        printed = make_printed(RECIPE, plan, pytorch_index="https://index.example/pytorch/")
        cells = [
            runs(by_sandbox(plan, tmp_path_factory.mktemp("job")), plan, inside=False),
            runs(by_buildkit(plan), plan, inside=True),
            *(runs(render(printed), plan, inside=False) for render in PRINTERS.values()),
        ]
        rows.append(
            f"| {kind} | {' | '.join('yes' if cell else 'no' for cell in cells)} | `{PROOFS[kind]}` |"
        )
    return "\n".join(rows)


def test_the_table_of_what_works_where_has_no_hole(table: str):
    assert "| no |" not in table


def test_the_page_has_this_table(table: str):
    assert table in PAGE.read_text(encoding="utf-8")


def test_each_proof_is_a_test():
    tests = (ROOT / "tests/e2e/test_rendered.py").read_text() + (ROOT / "tests/e2e/test_arm.py").read_text()
    names = set(re.findall(r"^def (\w+)\(", tests, flags=re.MULTILINE)) | {"cpu", "a100"}  # fixtures
    assert set(PROOFS.values()) <= names


def test_a_program_that_is_not_run_is_a_hole():
    plan = make_plan()
    text = by_buildkit(plan).replace(f"toolkit.py {SPEC}", "")
    assert not runs(text, plan, inside=True)
    assert "toolkit.py" in text
