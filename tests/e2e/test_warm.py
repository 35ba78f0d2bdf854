"""Kernels that a build compiles with the real Triton: the same by both runners, found in the read-only SIF, ignored on another GPU.

`tests/steps/test_warm.py` and `tests/runtime/test_start.py` hold their parts for every change; `test_rendered.py` both printed texts.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernels import WARM, lock_it, make_warm
from tests.support.two_runners import need_the_same
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    Built,
    attempt,
    build,
    cache_with_artifacts,
    open_folder,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.release]
# A clone of the program elsewhere, on a GPU that only answers which one it is.
LOOK = """\
import json, sys
import triton
from triton.backends.compiler import GPUTarget


class Gpu:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", int(sys.argv[1]), 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_benchmarker = staticmethod(lambda: len)


triton.runtime.driver.set_active(Gpu())
from kernels.ops import add
from triton.runtime.jit import MockTensor

hits = []
triton.knobs.compilation.listener = lambda **facts: hits.append(facts["cache_hit"])
x = MockTensor("fp32")
kernel = add.warmup(x, x, x, 1024, BLOCK=128, grid=(1,))
print(json.dumps([hits, kernel.metadata.target.arch, len(kernel.asm["cubin"]) > 100]))
"""


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    with open_folder() as folder:
        yield build(str(make_warm(folder)), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


def look(built: Built, place: Path, gpu: int, *, own: str = "/mnt/cache") -> tuple[object, list[str]]:
    """Return what a program sees of a kernel, and what Triton wrote into the user's cache."""
    assert built.recipe
    (place / "clone/kernels").mkdir(parents=True)
    (place / "cache").mkdir()
    (place / "clone/look.py").write_text(LOOK)
    (place / "clone/kernels/ops.py").write_text((built.recipe.parent / "kernels/ops.py").read_text())
    words = (
        "apptainer",
        "exec",
        "--no-home",
        "--bind",
        f"{place}:/mnt",
        "--pwd",
        "/mnt/clone",
        "--env",
        f"TRITON_CACHE_DIR={own}",
    )
    answer = json.loads(run(*words, built.sif, "python", "look.py", str(gpu)).splitlines()[-1])
    return answer, sorted(path.suffix for path in (place / "cache").rglob("*") if path.is_file())


@pytest.mark.parametrize("gpu", [80, 90])
def test_a_clone_finds_the_kernel_and_writes_nothing(built: Built, spacious: Path, gpu: int):
    assert look(built, spacious, gpu) == ([[True], gpu, True], [])


def test_another_gpu_compiles_its_own_into_the_users_cache(built: Built, spacious: Path):
    answer, written = look(built, spacious, 86)
    assert answer == [[False], 86, True]
    assert ".cubin" in written


def test_both_runners_compile_the_same_bytes(built: Built, spacious: Path):
    assert built.recipe
    apart = {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, built.recipe))}
    need_the_same(
        built, build(str(built.recipe), spacious / "baked", "--runner", "buildkit", "--no-load", env=apart)
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (WARM.replace("kernels.ops", "kernels.none"), "No module named 'kernels.none'"),
        ("import triton\n", "launched no Triton kernel for sm_80"),
    ],
)
def test_a_program_that_fails_ends_the_build_with_its_last_lines(
    built: Built, spacious: Path, program: str, reason: str
):
    assert built.recipe
    run("cp", "-r", f"{built.recipe.parent}/.", spacious)
    (spacious / "warm.py").write_text(program)
    lock_it(spacious / "warm.yaml")
    options = ("--output", spacious / "out", "--runner", "sandbox")
    ended = attempt(ENVBUILDER, "build", spacious / "warm.yaml", *options, env=NO_ENGINE)
    assert ended.returncode == 6
    assert "error[EB638]" in ended.stderr
    assert reason in ended.stderr
