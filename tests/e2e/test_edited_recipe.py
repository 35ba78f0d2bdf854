"""What is built and started is what the recipe says now, with a real Apptainer and a real Docker engine."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuilder.core.cache import sha256_file
from tests.support.stranger import STRANGER, as_user
from tests.support.tiny import edit_tiny, make_tiny
from tests.support.workbench import ENVBUILDER, Ended, attempt, open_folder, run

pytestmark = pytest.mark.builds
WHICH = ("--", "python", "-c", "import os; print(os.environ['WHICH'])")


@pytest.fixture(scope="module")
def project(tiny: object) -> Iterator[Path]:
    """A project with the recipe `named`, whose layers but the last are those of `tiny`, built and loaded."""
    with open_folder() as folder:
        (folder / "recipes").mkdir()
        recipe, _ = make_tiny(folder / "recipes", "named")
        recipe.write_text(recipe.read_text() + "tests: [python -V]\n")
        run(ENVBUILDER, "build", "named", cwd=folder)
        yield folder
        run("docker", "image", "rm", "--force", "envbuilder/named:latest")


@pytest.fixture
def recipe(project: Path) -> Iterator[Path]:
    """Its recipe. An edit is undone, and built."""
    path = project / "recipes/named.yaml"
    before = {file: file.read_bytes() for file in (path, path.with_suffix(".lock"))}
    yield path
    for file, content in before.items():
        file.write_bytes(content)
    run(ENVBUILDER, "build", "named", cwd=project)


def test_a_test_that_was_added_runs_in_what_is_there(project: Path, recipe: Path):
    build = functools.partial(attempt, ENVBUILDER, "build", "named", cwd=project)
    before = files(project)
    first = json.loads(build("--json").stdout)["data"][0]
    assert (first["built"], [test.partition(" ")[0] for test in first["tested"]]) == (False, ["SIF", "image"])
    assert build().stdout.splitlines()[:2] == [
        "named: nothing to do",
        f"  from   recipe sha256:{first['recipe_sha256'][:12]}, lock sha256:{first['lock_sha256'][:12]}",
    ]
    recipe.write_text(recipe.read_text().replace("[python -V]", "[python -V, 'python -c \"import json\"']"))
    added = build()
    assert added.stdout.startswith("named: nothing to build; tested with the recipe's tests of now\n")
    for form in ("the SIF", "the image"):
        assert f'test in {form}: python -c "import json"' in added.stderr
    assert build().stdout.startswith("named: nothing to do\n")
    recipe.write_text(recipe.read_text().replace("import json", "import nothing_such"))
    for _ in range(2):  # what failed is not forgotten
        failed = build()
        assert failed.returncode == 6
        assert 'the recipe\'s test `python -c "import nothing_such"` failed in the ' in failed.stderr
        assert "the artifacts stay as they are" in failed.stderr
    assert files(project) == before


def files(project: Path) -> tuple[str, str]:
    image = run("docker", "image", "inspect", "--format", "{{.Id}}", "envbuilder/named:latest")
    return sha256_file(project / "build/named.sif"), image


def test_an_edited_recipe_starts_nothing_older_and_takes_effect_with_the_build(project: Path, recipe: Path):
    start: Callable[..., Ended] = functools.partial(attempt, ENVBUILDER, "exec", cwd=project)
    forms: tuple[tuple[str, ...], ...] = ((), ("--in", "image"))
    for form in forms:
        assert start("named", *form, *WHICH).stdout == "named\n"
    edit_tiny(recipe, "WHICH: named", "WHICH: edited")
    for form in forms:
        refused = start("named", *form, *WHICH)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert "its recipe is not `" in refused.stderr
        assert "/recipes/named.yaml` as it is now" in refused.stderr
        assert "hint: `envbuilder build named`" in refused.stderr
    for command in ("launch local named --in image --smoke", "kernel named --in image", "devcontainer named"):
        refused = attempt(ENVBUILDER, *command.split(), cwd=project)
        assert (refused.returncode, "as it is now" in refused.stderr) == (4, True)
    assert not (project / ".devcontainer").exists()
    assert start("build/named.sif", *WHICH).stdout == "named\n"
    run(ENVBUILDER, "build", "named", cwd=project, env={"ENVBUILDER_VERSIONS": "2"})
    for form in forms:
        assert start("named", *form, *WHICH).stdout == "edited\n"
    run(ENVBUILDER, "history", "named", "--rollback", cwd=project)
    chosen = start("named", *WHICH)
    assert (chosen.stdout, "is an earlier version, as chosen" in chosen.stderr) == ("named\n", True)


def test_a_sif_that_apptainer_made_of_the_image_is_known(project: Path, tmp_path: Path):
    (tmp_path / "build").mkdir()
    (tmp_path / "recipes").symlink_to(project / "recipes")
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    run("apptainer", "build", *fast, tmp_path / "build/named.sif", f"oci:{project / 'build/named.oci'}")
    assert attempt(ENVBUILDER, "exec", "named", *WHICH, cwd=tmp_path).stdout == "named\n"


def test_a_closed_sif_is_called_closed(project: Path):
    sif = project / "build/named.sif"
    mode = sif.stat().st_mode
    project.chmod(0o755)
    try:
        sif.chmod(0o600)
        ended = attempt(*as_user(STRANGER, ENVBUILDER, "exec", "named", *WHICH), cwd=project)
    finally:
        sif.chmod(mode)
    assert ended.returncode == 2
    assert f"cannot be read: permission denied; it belongs to user {os.geteuid()}" in ended.stderr
