"""The gallery shows each recipe with what is recorded of it, and says where nothing is."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from docs import make_gallery
from envbuilder.recipe.load import list_recipes

ROOT = Path(__file__).parents[2]
MACHINE = (
    "NVIDIA H100 80GB HBM3, 580.1. 16 cores, Linux 6.18. h100.sif: PyTorch 2.15.0 CUDA 13.2. 2026-12-01."
)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was measured, to add to."""
    copy = Path(shutil.copytree(ROOT / "bench/results", tmp_path / "results"))
    monkeypatch.setattr(make_gallery, "RESULTS", copy)
    return copy


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", make_gallery.page(), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_each_recipe_has_its_lock_and_the_line_that_builds_it():
    page = make_gallery.page()
    for name in list_recipes(ROOT / "recipes"):
        digest = hashlib.sha256((ROOT / f"recipes/{name}.lock").read_bytes()).hexdigest()
        assert f"`recipes/{name}.lock` has the sha256 `{digest}`" in page
        assert f"\nenvbuilder init --example {name} && envbuilder build {name}\n" in page


def test_a_recipe_shows_the_digests_and_sizes_that_were_measured(results: Path):
    assert "SIF**: 3.20 GB on 2026-11-25 (`bench/results/travel.md`)" in section("a100")
    assert "Same bytes" not in section("a100")
    rows = "| envbuilder, OCI manifest | 1 | 0123456789ab |\n| envbuilder, SIF | 1 | ba9876543210 |\n"
    with (results / "reproducible.md").open("a") as file:
        file.write(
            f"\n`cpu` again, 2026-12-01, commit 1; x,\ny:\n\n| 5 builds with | d | |\n|:--|--:|:--|\n{rows}"
        )
    assert "one image, `0123456789ab…`, and one SIF, `ba9876543210…`, on 2026-12-01" in section("cpu")


def test_what_was_built_counts_for_its_own_lock_alone(results: Path):
    lock = hashlib.sha256((ROOT / "recipes/cpu.lock").read_bytes()).hexdigest()[:12]
    row = f"| `cpu` | 2026-12-01 | {lock} | {'1' * 64} | {'2' * 64} | 0.39 | 1.33 | 31489 | 85 |\n"
    (results / "gallery.md").write_text(row)
    words = f"on 2026-12-01: a SIF of 0.39 GB with 1.33 GB of files, `{'2' * 64}`, and the image `sha256:{'1' * 64}`, the same 31,489 paths"
    assert words in section("cpu")
    (results / "gallery.md").write_text(row.replace(lock, "0" * 12))
    assert "**Built**" not in section("cpu")


def test_a_recipe_without_a_record_says_so(results: Path):
    assert "no run is recorded" in section("gb200")
    with (results / "release.md").open("a") as file:
        file.write("\n`recipes` of 2026-12-01: both runners made the same of `gb200`.\n")
    assert "[record](#release-tests)" in section("gb200")
    assert "both runners made the same of `gb200`." in section("Release tests")


def test_only_a_run_with_its_own_sif_counts_as_one_on_a_gpu(results: Path):
    row = "| [`h100`](#h100) | PyTorch 2.15 with CUDA 13.2 for H100 nodes | {} |"
    (results / "gpu.md").write_text(f"# What ran\n\n{MACHINE.replace('h100.sif', 'other.sif')}\n")
    assert row.format("not yet") in make_gallery.page()
    (results / "gpu.md").write_text(
        f"# What ran\n\n{MACHINE}\n\n| a | b |\n|:--|:--|\n| c | d |\n| e | f |\n"
    )
    assert row.format("yes") in make_gallery.page()
    assert f"- **What ran**, 2 rows: {MACHINE}" in section("On a real GPU")
