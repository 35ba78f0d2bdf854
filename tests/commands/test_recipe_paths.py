"""A recipe that is named by its path means the same everywhere: the artifacts that `build` made of it."""

import json
from pathlib import Path

import pytest

from envbuilder.sources.http import session
from tests.support import command_line
from tests.support.command_line import Call

call = command_line.call
pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe outside the folder of recipes, of which nothing was built, and no Docker engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    path = tmp_path / "mine" / "style.yaml"
    path.parent.mkdir()
    path.write_text("extends: cpu\n")
    (path.parent / "cpu.yaml").write_text("")
    return path


@pytest.mark.parametrize(
    "line",
    [
        "push {recipe} localhost:9/team/style --artifacts {folder}",
        "push {recipe} localhost:9/team/style --only sif --artifacts {folder}",
        "sign {recipe} --key key.pem --artifacts {folder}",
        "verify {recipe} --artifacts {folder}",
        "show --sbom {recipe} --artifacts {folder}",
        "exec {recipe} --in sif --artifacts {folder} -- true",
        "module {recipe} --artifacts {folder}",
        "launch local {recipe} --artifacts {folder} -- true",
    ],
)
def test_a_path_to_a_recipe_names_its_artifacts(call: Call, recipe: Path, tmp_path: Path, line: str):
    folder = tmp_path / "out"
    answer = call(*line.format(recipe=recipe, folder=folder).split())
    assert answer.code == 2
    assert (
        f"there is no SIF `{folder}/style.sif`" in answer.err or f"there is no `{folder}/style." in answer.err
    )
    assert f"`envbuilder build {recipe}`" in answer.err


@pytest.mark.parametrize(("verb", "place"), [("push", "--artifacts"), ("pull", "--output")])
@pytest.mark.parametrize("path", ["./style.yaml", "mine/style.yaml", "style.yaml"])
def test_a_path_to_a_recipe_names_its_repository_below_the_registry(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, place: str, path: str
):
    monkeypatch.setenv("ENVBUILDER_REGISTRY", "localhost:9/team")
    monkeypatch.setattr(session, "PAUSES", (0.0, 0.0, 0.0))  # nobody answers there
    answer = call(verb, path, place, tmp_path, "--json")
    message = json.loads(answer.out)["findings"][0]["message"]
    assert f"{tmp_path}/style.oci" in message if verb == "push" else "localhost:9/team/style" in message


def test_diff_finds_a_recipe_in_this_folder_by_its_name(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(recipe.parent)
    answer = call("diff", "style", "style")
    assert answer.code == 4
    assert "there is no lock `style.lock`" in answer.err


def test_init_takes_a_name_and_no_file(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    answer = call("init", "mine.yaml", "--gpu", "none", "--pytorch", "2.6.0")
    assert answer.code == 2
    assert "write `mine`" in answer.err
    assert not list(tmp_path.iterdir())
