"""Which files belong to a name that was given."""

import platform
from pathlib import Path

import pytest

from envbuilder import cli
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


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of artifacts that is called like a SIF, and images of the name of an image and of a SIF."""
    monkeypatch.chdir(tmp_path)
    for name in ("my x.sif", "image.oci", "image.sif"):
        (tmp_path / name).mkdir()
    (tmp_path / "my x.sif/cpu.sif").touch()
    for name in ("image.oci", "image.sif"):
        (tmp_path / name / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "NAME", "--", "true"), ("exec", "NAME"), ("verify", "NAME"), ("launch", "local", "NAME", "--", "true"),
        ("module", "NAME"), ("sign", "NAME", "--key", "key.pem"), ("push", "NAME", "registry.invalid/a:1"), ("show", "NAME", "--sbom"),
        ("kernel", "NAME"), ("report", "NAME"), ("build", "NAME"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_folder_is_not_taken_for_a_sif(
    words: tuple[str, ...], folders: Path, capsys: pytest.CaptureFixture[str]
):
    for name, what in (
        ("my x.sif", "a folder"), ("./my x.sif/", "a folder"), ("image.oci", "an image"), ("image.sif", "an image"),
    ):  # fmt: skip
        assert cli.run([name if word == "NAME" else word for word in words]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: `{name}` is {what}")
        assert what == "an image" or "hint: a SIF in it is `'my x.sif/cpu.sif'`" in said


def test_artifacts_are_found_in_a_folder_that_is_called_like_a_sif(folders: Path):
    assert find_outputs("cpu", folders / "my x.sif").sif.is_file()
    assert find_outputs("my x.sif/cpu.sif", Path("build")).sif.is_file()
