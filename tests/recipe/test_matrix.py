"""`matrix`: the variants of one recipe file, their names, and what is refused."""

from pathlib import Path

import pytest

from envbuilder.artifacts.oci.naming import find_reference
from envbuilder.artifacts.outputs import image_name
from envbuilder.core.errors import RecipeError
from envbuilder.lock.file import lock_path
from envbuilder.recipe.load import expand, list_recipes, load, load_all

LEAST = """\
base: debian/bookworm
gcc: "12"
"""
WHOLE = f"""\
{LEAST}cuda: "12.4"
matrix:
  pytorch: ["2.5.1", "2.6.0"]
  python: ["3.11"]
  gpus: [A100, [RTX 4090, H100]]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.yaml").write_text(WHOLE)
    return tmp_path


def refusal(folder: Path, name: str, text: str = WHOLE) -> list[tuple[str, str]]:
    """Place and message of each finding."""
    (folder / "x.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load(folder / f"{name}.yaml")
    return [(one.where.removeprefix(f"{folder}/"), one.message) for one in caught.value.findings]


def test_each_combination_is_a_recipe_named_after_its_values(folder: Path):
    names = (
        "x@torch2.5.1-python3.11-a100", "x@torch2.5.1-python3.11-rtx4090-h100",
        "x@torch2.6.0-python3.11-a100", "x@torch2.6.0-python3.11-rtx4090-h100",
    )  # fmt: skip
    assert list_recipes(folder) == names
    recipes, mistakes = load_all(folder)
    assert (tuple(one.name for one in recipes), mistakes) == (names, ())
    assert [(one.pytorch, one.python, one.gpus) for one in recipes[1:3]] == [
        ("2.5.1", "3.11", ("RTX 4090", "H100")),
        ("2.6.0", "3.11", ("A100",)),
    ]
    assert recipes[1].place("$.gpus[1]") == f"{folder}/x.yaml:7:27"


def test_a_name_and_a_path_stand_for_all_their_variants(folder: Path):
    by_name, by_path = expand("x", folder), expand(f"{folder}/x.yaml", folder)
    assert by_name == list_recipes(folder)
    assert by_path == tuple(f"{folder}/{name}.yaml" for name in by_name)
    assert expand(by_name[0], folder) == by_name[:1]
    (folder / "y.yaml").write_text(LEAST)
    assert expand("y", folder) == ("y",)


def test_a_variant_has_a_lock_and_an_image_of_its_own(folder: Path):
    (folder / "x.yaml").write_text(LEAST + 'python: "3.11"\nmatrix: {pytorch: ["2.6.0"]}\n')
    recipe = load(folder / "x@torch2.6.0.yaml")
    assert recipe.path == folder / "x.yaml"
    assert lock_path(recipe) == folder / "x@torch2.6.0.lock"
    assert image_name(recipe.name) == "envbuilder/x:torch2.6.0"
    pushed = find_reference(recipe.name, "registry.site/team")
    assert (pushed.repository, pushed.tag) == ("team/x", "torch2.6.0")
    digest = find_reference(f"x@sha256:{'a' * 64}", "registry.site/team")
    assert (digest.repository, digest.digest) == ("team/x", "a" * 64)


def test_the_same_values_are_the_same_recipe_however_they_are_written(folder: Path):
    (folder / "y.yaml").write_text(LEAST + 'cuda: "12.4"\npytorch: "2.6.0"\npython: "3.11"\ngpus: [A100]\n')
    assert load(folder / "x@torch2.6.0-python3.11-a100.yaml").digest == load(folder / "y.yaml").digest


def test_extends_leaves_the_matrix_with_its_recipe(folder: Path):
    (folder / "y.yaml").write_text('extends: x\npytorch: "2.6.0"\npython: "3.11"\ngpus: [A100]\n')
    assert load(folder / "y.yaml").pytorch == "2.6.0"


def test_extending_a_file_that_is_no_map_is_refused(folder: Path):
    (folder / "y.yaml").write_text("[a, b]\n")
    assert refusal(folder, "x", "extends: y\n" + LEAST)


def test_a_file_that_is_no_text_is_listed_by_its_name(folder: Path):
    (folder / "y.yaml").write_bytes(b"matrix: \xff\n")
    assert "y" in list_recipes(folder)


def test_an_unknown_variant_is_refused_with_the_known_ones(folder: Path):
    assert refusal(folder, "x") == [("x.yaml:5:3", "$.matrix: this recipe stands for several environments")]
    assert refusal(folder, "x@torch9")[0][1] == "$.matrix: there is no variant `x@torch9`"
    assert "has no `matrix`" in refusal(folder, "x@torch2.6.0", LEAST)[0][1]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("matrix: {pytorch: []}\n", "x.yaml:3:19", "one or more values"),
        ('matrix: {pytorch: ["2.6.0", "2.6.0"]}\n', "x.yaml:3:19", "each once"),
        ('matrix: {pytorch: ["2.6"]}\n', "x.yaml:3:20", "expected a full version"),
        ('matrix: {pytroch: ["2.6.0"]}\n', "x.yaml:3:10", "unknown key `pytroch`"),
        ('pytorch: "2.6.0"\nmatrix: {pytorch: ["2.6.0"]}\n', "x.yaml:3:1", "in `matrix` as well"),
        ("matrix: {gpus: [A 100, A100]}\n", "x.yaml:3:9", "two variants have the name `a100`"),
    ],
)
def test_a_matrix_that_cannot_be_read_is_refused_at_its_place(
    folder: Path, text: str, place: str, message: str
):
    found = refusal(folder, "x@torch2.6.0", LEAST + text)
    assert any(where == place and message in said for where, said in found), found


BOTH = f"""\
{LEAST}cuda: "13.2"
python: "3.11"
pytorch: "2.15.0"
gpus: [A100, GH200, H100, GB200]
"""


def test_gpus_of_both_kinds_are_a_recipe_for_each_processor(folder: Path):
    (folder / "both.yaml").write_text(BOTH)
    assert expand("both", folder) == ("both@amd64", "both@arm64")
    found = {name: load(folder / f"{name}.yaml") for name in expand("both", folder)}
    kinds = {"both@amd64": ("A100", "H100"), "both@arm64": ("GH200", "GB200")}
    assert {name: one.gpus for name, one in found.items()} == kinds
    for name, gpus in kinds.items():
        alone = folder / "alone.yaml"
        alone.write_text(BOTH.replace("A100, GH200, H100, GB200", ", ".join(gpus)))
        assert load(alone).digest == found[name].digest
    assert found["both@arm64"].place("$.gpus[1]").endswith("both.yaml:6:27")


def test_each_variant_of_a_matrix_is_for_each_processor(folder: Path):
    text = BOTH.replace('pytorch: "2.15.0"', 'matrix: {pytorch: ["2.14.0", "2.15.0"]}')
    (folder / "both.yaml").write_text(text)
    assert expand("both", folder) == tuple(
        f"both@torch{version}-{one}" for version in ("2.14.0", "2.15.0") for one in ("amd64", "arm64")
    )
    (folder / "both.yaml").write_text(BOTH.partition("gpus")[0] + "matrix: {gpus: [[A100, H100], [GH200]]}\n")
    assert expand("both", folder) == ("both@a100-h100", "both@gh200")


def test_a_platform_makes_one_recipe_of_gpus_of_both_kinds(folder: Path):
    (folder / "both.yaml").write_text(f"{BOTH}platform: linux/arm64\n")
    assert expand("both", folder) == ("both",)
    assert len(load(folder / "both.yaml").gpus) == 4


def test_the_gpus_of_an_extended_recipe_count(folder: Path):
    (folder / "both.yaml").write_text(BOTH)
    (folder / "more.yaml").write_text("extends: both\n")
    assert expand("more", folder) == ("more@amd64", "more@arm64")


def test_a_name_alone_is_refused_where_one_environment_is_wanted(folder: Path):
    assert refusal(folder, "x", BOTH) == [
        ("x.yaml:6:7", "$.gpus: this recipe stands for several environments")
    ]
