"""`packages: {from: LOCK}`: exactly the versions and the hashes of another tool's lock, and every contradiction at once."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.core.errors import RecipeError, UsageError
from envbuilder.recipe.edit import put_package
from envbuilder.recipe.load import load
from tests.support.other_locks import (
    COMMIT,
    CONDA_LOCK,
    DIGEST,
    INDEX,
    PIPENV,
    PIXI,
    POETRY,
    PYLOCK,
    UV,
)

RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.6.0"
gpus: [A100]
cuda: "12.4"
"""
FAST = f"  - {{name: fast, git: https://host.example/fast, commit: {COMMIT}}}\n"
FAST_PY = FAST.replace("}", ", path: py}")
OPS = "  - {name: ops, path: ops}\n"
FAR = f"  - {{name: far, url: 'https://host.example/far-1.0.tar.gz', sha256: {DIGEST}}}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    text: str
    item: str = ""  # after the name of the file
    extensions: str = ""
    packages: tuple[str, ...]
    notes: tuple[str, ...] = ()


CASES = {
    "uv": Case(
        name="uv.lock", text=UV, extensions=FAST_PY + OPS + FAR,
        packages=("numpy==2.2.6", "pysocks==1.7.1", "requests==2.32.0", "special==1.0"),
        notes=("`--extra-index-url https://site.example/` is not asked",),
    ),
    "uv with a group": Case(
        name="uv.lock", text=UV, item=", with: [vis]", extensions=FAST_PY + OPS + FAR,
        packages=("cycler==0.12.1", "numpy==2.2.6", "pysocks==1.7.1", "requests==2.32.0", "special==1.0"),
        notes=("`--extra-index-url https://site.example/` is not asked",),
    ),
    "Poetry": Case(
        name="poetry.lock", text=POETRY, item=", with: [vis, dev]", extensions=FAST, packages=("cycler==0.12.1", "pytest==8.0"),
    ),
    "Pipenv": Case(
        name="Pipfile.lock", text=PIPENV, extensions=FAST, packages=("einops==0.8.0", "special==1.0"),
        notes=("`.` is not installed", "`--extra-index-url https://site.example/` is not asked"),
    ),
    "PEP 751": Case(name="pylock.toml", text=PYLOCK, item=", with: [dev]", packages=("einops==0.8.0", "pytest==8.0")),
    "pixi": Case(
        name="pixi.lock", text=PIXI, extensions=FAST, packages=("einops==0.8.0", "python-xxhash==3.5.0"),
        notes=("left out arm 0.1, assimp 5.4.3, ffmpeg 7.1.0, libgomp 14.2.0, python 3.11.9:", "taken for the packages of these names on the Python index: python-xxhash"),
    ),
    "conda-lock": Case(
        name="conda-lock.yml", text=CONDA_LOCK, packages=("einops==0.8.0", "numpy==1.26.4"),
        notes=("left out cuda-nvcc 12.4.131, cuda-version 12.4, python 3.11.9:", "taken for the packages of these names on the Python index: numpy"),
    ),
}  # fmt: skip


def write(folder: Path, name: str, text: str, item: str = "", more: str = "", recipe: str = RECIPE) -> Path:
    (folder / "ops").mkdir(exist_ok=True)
    (folder / "ops/pyproject.toml").write_text('[project]\nname = "ops"\n')
    (folder / name).write_text(text)
    (folder / "x.yaml").write_text(f"{recipe}packages: {{from: {name}{item}}}\n{more}")
    return folder / "x.yaml"


@pytest.mark.parametrize("name", CASES)
def test_exactly_the_versions_of_a_lock_are_taken(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    more = f"extensions:\n{case.extensions}" if case.extensions else ""
    recipe = load(write(tmp_path, case.name, case.text, case.item, more))
    assert recipe.packages == case.packages
    (lock,) = recipe.locks
    assert (lock.path, lock.size) == (case.name, len(case.text))
    assert {f"{name}=={version}" for name, version in lock.versions} == set(case.packages)
    messages = [note.message for note in recipe.notes]
    assert len(messages) == len(case.notes), messages
    assert all(any(text.startswith(words) for text in messages) for words in case.notes), messages


HASHED = {
    "uv.lock": f"""\
version = 1
[[package]]
name = "mine"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "einops" }}, {{ name = "torchvision" }}]
[[package]]
name = "einops"
version = "0.8.0"
source = {{ registry = "{INDEX}" }}
sdist = {{ url = "e.tar.gz", hash = "sha256:{"1" * 64}" }}
wheels = [{{ url = "e.whl", hash = "sha256:{"2" * 64}" }}]
[[package]]
name = "numpy"
version = "1"
source = {{ registry = "{INDEX}" }}
[[package]]
name = "torchvision"
version = "0.21.0+cu124"
source = {{ registry = "https://download.pytorch.org/whl/cu124" }}
wheels = [{{ url = "t.whl", hash = "sha256:{"3" * 64}" }}]
dependencies = [{{ name = "numpy" }}]
""",
    "poetry.lock": f"""\
[[package]]
name = "einops"
version = "0.8.0"
groups = ["main"]
files = [{{file = "e.tar.gz", hash = "sha256:{"1" * 64}"}}, {{file = "e.whl", hash = "sha256:{"2" * 64}"}}]
[metadata]
lock-version = "2.1"
""",
    "poetry.lock of 1.1": f"""\
[[package]]
name = "einops"
version = "0.8.0"
category = "main"
[metadata]
lock-version = "1.1"
[metadata.files]
einops = [{{file = "e.tar.gz", hash = "sha256:{"1" * 64}"}}, {{file = "e.whl", hash = "sha256:{"2" * 64}"}}]
""",
    "Pipfile.lock": f"""{{"_meta": {{"pipfile-spec": 6, "sources": []}}, "default": {{"einops":
{{"version": "==0.8.0", "hashes": ["sha256:{"1" * 64}", "sha256:{"2" * 64}"]}}}}}}""",
    "pylock.toml": f"""\
lock-version = "1.0"
created-by = "x"
[[packages]]
name = "einops"
version = "0.8.0"
sdist = {{ name = "einops-0.8.0.tar.gz", url = "https://x.example/einops-0.8.0.tar.gz", hashes = {{ sha256 = "{"1" * 64}" }} }}
wheels = [{{ name = "einops-0.8.0-py3-none-any.whl", url = "https://x.example/einops-0.8.0-py3-none-any.whl", hashes = {{ sha256 = "{"2" * 64}" }} }}]
""",
}


@pytest.mark.parametrize("name", HASHED)
def test_the_hashes_of_files_of_the_index_are_taken(name: str, tmp_path: Path) -> None:
    recipe = load(write(tmp_path, name.split(maxsplit=1)[0], HASHED[name]))
    (hashed,) = recipe.hashes
    assert (hashed.requirement, hashed.where) == ("einops==0.8.0", str(tmp_path / name.split(maxsplit=1)[0]))
    assert sorted(hashed.sha256) == ["1" * 64, "2" * 64]
    if name == "uv.lock":
        assert recipe.packages == ("einops==0.8.0", "numpy==1", "torchvision==0.21.0")


@pytest.mark.parametrize(
    ("name", "text", "item", "recipe", "words"),
    [
        ("uv.lock", UV, "", RECIPE.replace("2.6.0", "2.7.0"), r"`\S+uv.lock` has torch 2.6.0\+cu124, and the recipe `pytorch: 2.7.0`"),
        ("uv.lock", UV, "", RECIPE.replace('"2.6.0"', "none").partition("gpus")[0], r"has torch 2.6.0\+cu124, and the recipe `pytorch: none`"),
        ("uv.lock", UV, "", RECIPE.replace("3.11", "3.13"), "is for Python `>=3.11,<3.13`, and the recipe has `3.13`"),
        ("pixi.lock", PIXI, "", RECIPE.replace("3.11", "3.12"), "is for Python `==3.11.*`, and the recipe has `3.12`"),
        ("conda-lock.yml", CONDA_LOCK, "", RECIPE.replace("3.11", "3.12"), "is for Python `==3.11.*`"),
        ("uv.lock", UV, ", with: [nope]", RECIPE, 'has no group, extra or environment "nope"'),
        ("uv.lock", "version = 9\n", "", RECIPE, "has version 9 of uv's format, which is not known"),
        ("uv.lock", "[", "", RECIPE, "is not TOML"),
        ("pixi.lock", "a: [", "", RECIPE, "cannot be read as a lock: is not YAML"),
        ("Pipfile.lock", "[" * 100_000, "", RECIPE, "Pipfile.lock"),
        ("uv.lock", "version = 1\npackage = [" + "[" * 5_000, "", RECIPE, "uv.lock"),
        ("other.lock", "", "", RECIPE, "has the name of no tool's lock"),
        ("poetry.lock", POETRY, "", RECIPE, "the repository `https://host.example/fast` is a project, which the recipe takes as an extension"),
    ],
)  # fmt: skip
def test_a_lock_that_contradicts_its_recipe_is_an_error(
    name: str, text: str, item: str, recipe: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        load(write(tmp_path, name, text, item, recipe=recipe))
    messages = [finding.message for finding in caught.value.findings]
    assert any(re.search(words.replace("==3.11.*", r"==3.11.\*"), message) for message in messages), messages


def test_a_lock_may_be_an_item_among_others(tmp_path: Path) -> None:
    write(tmp_path, "pylock.toml", PYLOCK)
    path = tmp_path / "y.yaml"
    path.write_text(f"{RECIPE}packages: [tqdm, {{from: pylock.toml}}]\n")
    assert load(path).packages == ("tqdm", "einops==0.8.0")


def test_add_says_how_to_make_a_list_of_a_lock_alone() -> None:
    with pytest.raises(UsageError) as caught:
        put_package("packages: {from: uv.lock}\n", "tqdm")
    assert caught.value.hint == "write `packages: [{from: uv.lock}]`"
