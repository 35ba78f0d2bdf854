"""Which files belong to a name that was given."""

import platform
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import find_outputs, names_built
from envbuilder.core.processor import AARCH64, PROCESSORS, X86_64, Processor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "both@amd64",
        "both@arm64",
        "both@torch2.15.0-amd64",
        "both@torch2.15.0-arm64",
        "one",
        "late@arm64",
    ):
        (tmp_path / f"{name}.sif").touch()
    return tmp_path


@pytest.mark.parametrize("own", PROCESSORS)
def test_of_a_recipe_for_several_processors_this_machine_takes_its_own(
    folder: Path, own: Processor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "machine", lambda: own.machine)
    other = next(one for one in PROCESSORS if one is not own)
    for name in ("both", "recipes/both.yaml"):
        assert find_outputs(name, folder).sif == folder / f"both@{own.debian}.sif"
    assert find_outputs("both@torch2.15.0", folder).name == f"both@torch2.15.0-{own.debian}"
    assert find_outputs(f"both@{other.debian}", folder).name == f"both@{other.debian}"
    (folder / "both.oci").mkdir()  # as `pull` names it
    assert find_outputs("both", folder).name == "both"


def test_a_name_stands_for_what_was_built_for_each_processor(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: X86_64.machine)
    assert names_built("both", folder) == ("both@amd64", "both@arm64")
    assert names_built("recipes/both.yaml", folder) == ("recipes/both@amd64.yaml", "recipes/both@arm64.yaml")
    assert names_built("both@torch2.15.0", folder) == ("both@torch2.15.0-amd64", "both@torch2.15.0-arm64")
    for name in ("one", "none", "both@arm64", f"{folder}/both.sif"):
        assert names_built(name, folder) == (name,)
    assert names_built("late", folder) == (f"late@{AARCH64.debian}",)
    (folder / "both.oci").mkdir()
    assert names_built("both", folder) == ("both",)
