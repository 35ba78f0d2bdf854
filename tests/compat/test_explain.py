"""What `show` tells: the facts that follow from a recipe's pins."""

import dataclasses
from pathlib import Path

import pytest

from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import brief, facts
from envbuilder.recipe.load import find_recipe, load
from envbuilder.recipe.model import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
TABLES = load_tables()


def of(recipe: Recipe) -> dict[str, str]:
    return {fact.name: fact.value for fact in facts(recipe, TABLES)}


def ours(name: str, **change: object) -> Recipe:
    return dataclasses.replace(load(find_recipe(name, RECIPES)), **change)


def test_another_processor_than_the_usual_is_told_with_what_decided_it():
    assert "processor" not in of(ours("a100"))
    found = {one.name: one for one in facts(ours("a100", gpus=("GH200",)), TABLES)}
    assert found["processor"].value == "64-bit Arm (linux/arm64)"
    assert "NVIDIA" in found["processor"].source
    (named, *_) = facts(ours("a100", platform="linux/arm64"), TABLES)
    assert "a100.yaml" in named.source


def test_the_facts_of_torch_are_those_of_its_wheels_for_the_gpus_processor():
    pins = {"gpus": ("GH200",), "cuda": "13.2", "pytorch": "2.15.0"}
    assert of(ours("a100", **pins))["torch kernels"] == "sm_80 sm_90 sm_100 sm_110 sm_120"
    cpu = of(ours("a100", gpus=("GH200",)))
    assert cpu["torch build"] == "2.6.0+cpu from the package index"
    assert cpu["torch needs glibc"] == "2.28"
    assert "NCCL" not in cpu


def test_the_facts_of_a100():
    assert of(ours("a100")) == {
        "glibc": "2.36",
        "Python": "3.11.2",
        "gcc": "12.2.0",
        "libxcrypt": "4.4.33",
        "crypt.h": "not included by Python.h",
        "torch build": "2.6.0+cu124 from the package index",
        "torch released": "2025-01-29",
        "torch needs glibc": "2.17",
        "torch kernels": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
        "NCCL": "2.21.5",
        "cuDNN": "9.1.0.70",
        "C++ standard": "C++17; headers take C++17 and newer",
        "C++ ABI": "old (before cxx11)",
        "nvcc takes gcc": "6 to 13",
        "nvcc takes C++": "up to C++20",
        "nvcc takes glibc": "below 2.41",
        "driver floor": "525.60.13; 550.54.15 for PTX compiled at run time",
        "forward compatibility": "R470, R525, R535 with cuda-compat-12-4, on data-centre GPUs",
        "architectures": "sm_80",
        "A100 interconnect": "SXM4: NVLink 3, 600 GB/s, NVSwitch; PCIe card: bridge of 600 GB/s between two",
    }


def test_the_facts_without_cuda():
    found = of(ours("cpu"))
    assert found["torch build"] == "2.13.0+cpu from PyTorch's own index"
    assert found["C++ ABI"] == "new (cxx11)"
    assert not {"NCCL", "driver floor", "architectures", "torch kernels"} & set(found)


def test_the_facts_of_old_pins():
    found = of(ours("t4"))
    assert found["crypt.h"] == "included by Python.h"
    assert (found["numpy"], found["setuptools"]) == ("<2", "!=70.*,<82")
    assert found["NCCL"] == "inside torch's own libraries"


def test_a_build_of_pytorchs_own_index_with_ptx():
    found = of(ours("h100", pytorch="2.14.1"))
    assert found["torch build"] == "2.14.1+cu132 from PyTorch's own index"
    assert found["torch kernels"].endswith("sm_120 PTX of sm_120")


@pytest.mark.parametrize(
    "change",
    [
        {"base": "debian/x", "pytorch": "9.0.0", "cuda": "9.0", "gpus": ("Z9",), "python": "3.1"},
        {"cuda": "13.5", "pytorch": "2.15.0", "python": "3.99"},
    ],
)
def test_a_pin_that_names_nothing_says_nothing(change):
    found = of(ours("a100", **change))
    assert all(found.values())


def test_every_fact_says_where_it_is_known_from():
    for name in ("a100", "cpu", "h100", "t4"):
        assert all("read 2026" in fact.source for fact in facts(ours(name), TABLES))


def test_values_fit_into_a_cell():
    assert brief([]) == "-"
    assert brief("") == "-"
    assert brief({}) == "-"
    assert brief(["a", "b"]) == "a, b"
    assert brief({"A": "1", "B": "2"}) == "A=1, B=2"
    assert brief([{"name": "fused", "sources": ["a.cu"]}]) == "fused"


def test_an_nccl_of_the_recipe_stands_beside_that_of_torch():
    plain, other = of(ours("a100")), of(ours("a100", nccl_version="2.27.5"))
    assert other["NCCL"] == f"2.27.5 in the place of torch's {plain['NCCL']}"
