"""An environment with the real Triton, without torch, whose `warm` launches two kernels."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Lock
from envbuilder.lock.resolve.extensions import lock_warm
from envbuilder.recipe.load import load
from tests.support.tiny import make_lock
from tests.support.workbench import ROOT, fetch_packages

RECIPE: Final = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.15.0"
cuda: "13.2"
gpus: [A100, H100]
warm: {run: [python warm.py], files: [kernels], caches: [kept]}
"""
KERNELS: Final = """\
import triton
import triton.language as tl


@triton.jit
def double(x):
    return x * 2


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, double(tl.load(x + at, mask=at < n)) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (64, 128)], key=["n"])
@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.exp(tl.load(x + at, mask=at < n)), mask=at < n)
"""
# Without torch, a kernel takes what knows its type and its address.
WARM: Final = """\
from triton.runtime.jit import MockTensor

from kernels.ops import add, scale


class Tensor(MockTensor):
    data_ptr = staticmethod(lambda: 1 << 20)


x = Tensor("fp32")
add[(8,)](x, x, x, 1024, BLOCK=128)
scale[(8,)](x, x, 1000)
"""


def make_warm(folder: Path) -> Path:
    """Write a recipe, its files and its lock, a part of that of `h100`. Returns the recipe's file."""
    fetch_packages("h100", kinds=("deb",))
    recipe = folder / "recipes/warm.yaml"
    save_text(recipe, RECIPE)
    save_text(recipe.with_name("warm.py"), WARM)
    save_text(
        recipe.parent / "kept/triton/add/__grp__k.json", '{"child_paths": {"k.cubin": "/home/user/k.cubin"}}'
    )
    save_text(recipe.parent / "kept/triton/add/k.cubin", "stands for code that a job compiled\n")
    save_text(recipe.parent / "kernels/__init__.py", "")
    save_text(recipe.parent / "kernels/ops.py", KERNELS)
    lock_it(recipe)
    return recipe


def lock_it(recipe: Path) -> Lock:
    """Write the lock of such a recipe."""
    lock = make_lock(recipe, ("nvidia-cuda-runtime", "triton"), of="h100")
    tools = load_lock(ROOT / "recipes/gh200.lock").tools
    assert tools
    lock = replace(lock, toolkit=tools.toolkit, warm=lock_warm(load(recipe)))
    save_text(recipe.with_suffix(".lock"), lock_text(lock))
    return lock
