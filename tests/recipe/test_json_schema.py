"""The schema of recipes is the types' own, and agrees with the loader on what is valid."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.core.errors import RecipeError
from envbuilder.core.models import keys_of
from envbuilder.core.places import Mistakes, Unquoted, kind_of, parse_yaml
from envbuilder.recipe import model as schema
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.load import list_recipes, load
from envbuilder.recipe.model import RecipeFile

RECIPES = Path(__file__).parents[2] / "recipes"
# What one file cannot say: what exists, what a requirement is, which words of Python are taken, which names repeat.
BEYOND = {RecipeCode.EXTENDS, RecipeCode.REQUIREMENT, RecipeCode.PATH, RecipeCode.EXTENSION}
LEAST = {"base": "debian/bookworm", "python": "3.11", "gcc": "12", "pytorch": "2.6.0"}


def ecma_pattern(_: object, pattern: str, value: object, __: object) -> Iterator[jsonschema.ValidationError]:
    """`$` is the end of the text in JSON schema's regular expressions; in Python's it may stand before a line feed."""
    if isinstance(value, str) and not re.search(f"{pattern.removesuffix('$')}\\Z", value):
        yield jsonschema.ValidationError(f"{value!r} is not {pattern}")


Validator = jsonschema.validators.extend(jsonschema.Draft7Validator, {"pattern": ecma_pattern})
VALIDATOR = Validator(schema.make_schema())


def value(read: object) -> object:
    """A YAML value as an editor's server reads it: `off` is a word to YAML 1.2."""
    if isinstance(read, dict):
        return {key: value(inner) for key, inner in read.items()}
    if isinstance(read, list):
        return [value(item) for item in read]
    if isinstance(read, Unquoted):
        return float(read.text) if kind_of(read) in ("an integer", "a number") else read.text
    return read


def takes(text: str) -> bool:
    mistakes = Mistakes()
    node = parse_yaml(text, "x.yaml", mistakes)
    assert node
    assert not mistakes.findings
    return VALIDATOR.is_valid(value(node.value))


def refusals(path: Path) -> set[str]:
    try:
        load(path)
    except RecipeError as error:
        return {finding.code for finding in error.findings}
    return set()


def test_the_schema_is_a_schema():
    jsonschema.Draft7Validator.check_schema(schema.make_schema())


def test_the_file_is_what_the_types_say(request: pytest.FixtureRequest):
    """`pytest --update-golden tests/recipe/test_json_schema.py` writes it."""
    path = RECIPES / schema.SCHEMA_FILE
    if request.config.getoption("--update-golden"):
        path.write_text(schema.schema_text())
    assert path.read_text() == schema.schema_text()


def test_every_key_of_the_loader_is_in_the_schema_with_words():
    made = schema.make_schema()["properties"]
    assert set(made) == set(keys_of(RecipeFile))
    inner = made["extensions"]["items"]["properties"]
    assert set(inner) == set(keys_of(Extension))
    assert all(part["description"] for part in (*made.values(), *inner.values()))


@pytest.mark.parametrize("name", list_recipes(RECIPES))
def test_the_schema_takes_each_recipe_which_names_it_for_editors(name: str):
    text = (RECIPES / f"{name}.yaml").read_text()
    assert takes(text)
    assert text.splitlines()[0] == schema.MODELINE


@pytest.mark.parametrize(
    "path", sorted((RECIPES.parent / "tests/compat/corpus").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_schema_takes_what_only_the_tables_refuse(path: Path):
    assert not refusals(path)
    assert takes(path.read_text())


WRONG = [
    "conda: {channels: [conda-forge], packages: [x]}",
    "conda: {channels: ['https://me:secret@h/x'], packages: [x]}",
    "conda: {channels: ['https://h/t/token/x'], packages: [x]}",
    "conda: {channels: ['https://h/x'], packages: ['x::y']}",
    "indexes: [{name: X, url: 'https://h/simple', packages: [a]}]",
    "indexes: [{name: x, url: 'http://h/simple', packages: [a]}]",
    "indexes: [{name: x, url: 'https://me:secret@h/simple', packages: [a]}]",
    "indexes: [{name: x, find_links: ../wheels, packages: [a]}]",
    "indexes: [{name: x, url: 'https://h/simple', packages: ['*']}]",
    "indexes: [{name: x, url: 'https://h/simple'}]",
    "kernels: [team/relu]",
    "kernels: [team/relu@main]",
    "warm: 3",
    "warm: []",
    "warm: {run: []}",
    "warm: {files: [b]}",
    "warm: {caches: x}",
    "warm: {run: [python -V], files: [3]}",
    "bases: x",
    "python: 3.10",
    'gcc: "12.2"',
    'gcc: "12\\n"',
    'gcc: "١٢"',
    'pytorch: "2.6"',
    'pytorch: "2.6.0+cu124"',
    "base: {image: X}",
    "base: {image: 'a:b:c'}",
    "base: {images: x}",
    "base: {image: x@sha256:1}",
    "base: debian",
    "packages: numpy",
    "packages: [3]",
    'packages: [""]',
    "packages: [{requirement: x}]",
    "apt: [Git]",
    'apt: ["git=1"]',
    "gpus: [A100]",
    'cuda: "12.4"',
    'cuda: "12.4"\ngpus: []',
    "libxcrypt:",
    "env: [A]",
    "env: {A: 8}",
    "env: {1A: x}",
    'env: {A: "x\\ny"}',
    "security: x",
    'security: "false"',
    "nccl: never",
    "nccl: true",
    "nccl: {file: x}",
    "nccl: {}",
    "tests: 3",
    "extends: Upper",
    "extensions: [{sources: [a.cpp]}]",
    "extensions: [{name: a}]",
    "extensions: [{name: a-b, sources: [a.cpp]}]",
    f"extensions: [{{name: {'a' * 101}, sources: [a.cpp]}}]",
    "extensions: [{name: a, sources: []}]",
    "extensions: [{name: a, sources: [a.txt]}]",
    "extensions: [{name: a, sources: [/a.cpp]}]",
    "extensions: [{name: a, sources: [../a.cpp]}]",
    "extensions: [{name: a, path: b, sources: [a.cpp]}]",
    "extensions: [{name: a, path: b, cflags: [-O3]}]",
    "extensions: [{name: a, path: ./b}]",
    "extensions: [{name: a, git: 'https://h/a'}]",
    "extensions: [{name: a, git: 'https://h/a', commit: main}]",
    "extensions: [{name: a, sources: [a.cpp], capture: [import a]}]",
    "extensions: [{name: a, sdist: a}]",
    "extensions: [{name: a, deepspeed: []}]",
    "extensions: [{name: a, deepspeed: [b], capture: [import a]}]",
    "extensions: [{name: a, capture: [import a], patch: a.patch}]",
    "extensions: [{name: a, url: 'https://h/a.tar.gz'}]",
    "extensions: [{name: a, url: 'https://h/a', sha256: 1}]",
    "extensions: [{name: a, sdist: a==1, patch: /a.patch}]",
    "extensions: [{name: a, sources: [a.cpp], patch: a.patch}]",
    "extensions: [{name: a, sdist: a==1, import: 0}]",
]


@pytest.mark.parametrize("text", WRONG)
def test_the_schema_refuses_what_the_loader_refuses(text: str, tmp_path: Path):
    key = text.partition(":")[0]
    rest = {name: given for name, given in LEAST.items() if name != key}
    whole = "\n".join([text, *(f'{name}: "{given}"' for name, given in rest.items())])
    (tmp_path / "a.cpp").touch()
    (tmp_path / "b").mkdir()
    path = tmp_path / "x.yaml"
    path.write_text(whole)
    assert refusals(path)
    assert not takes(whole)


@pytest.mark.parametrize("missing", schema.make_schema()["else"]["required"])
def test_what_must_be_there_may_come_from_another_recipe(missing: str):
    rest = {name: given for name, given in LEAST.items() if name != missing}
    assert not VALIDATOR.is_valid(rest)
    assert VALIDATOR.is_valid({**rest, "extends": "other"})


WORDS = st.sampled_from(
    ["", " ", "x", "12", "12.4", "2.6.0", "3.11", "debian/bookworm", "A100", "git", "numpy<2", "-r x", "off", "auto", "a.cpp", "a.cu",
     "b", "../b", "/b", "b/", "a.txt", "https://h/a", "a==1", "0" * 40, "import b", "12\n", "é", "class", "١٢", "a\\b", "."],
)  # fmt: skip
# JSON writes any other as two escapes, which YAML does not join.
TEXTS = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=6)
SCALARS = st.one_of(WORDS, WORDS, TEXTS, st.integers(), st.booleans(), st.none())
LISTS = st.lists(SCALARS, max_size=3)
PATHS = st.lists(st.sampled_from(["a.cpp", "a.cu", "b", "."]), max_size=2)
MAPS = st.dictionaries(st.sampled_from(["A", "1A", "requirements", "profile", "é"]), SCALARS, max_size=2)
EXTENSIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "class", "1a", ""])},
    optional={
        key: st.one_of(PATHS, LISTS, SCALARS, MAPS)
        for key in schema.make_schema()["properties"]["extensions"]["items"]["properties"]
        if key != "name"
    },  # type: ignore[index]
)
RECIPE = st.fixed_dictionaries(
    {key: st.just(given) for key, given in LEAST.items()},
    optional={
        "gpus": st.one_of(st.just(["A100"]), LISTS),
        "cuda": st.one_of(st.just("12.4"), SCALARS),
        "packages": st.one_of(LISTS, st.lists(MAPS, max_size=2)),
        "extensions": st.lists(EXTENSIONS, max_size=2),
        "env": MAPS,
        **{
            key: st.one_of(SCALARS, LISTS, MAPS)
            for key in ("summary", "libxcrypt", "apt", "nccl", "tests", "else")
        },
    },
)


@settings(max_examples=200)
@given(made=RECIPE, key=st.sampled_from([*LEAST, ""]), other=SCALARS)
def test_loader_and_schema_agree_on_what_is_valid(made: dict[str, object], key: str, other: object):
    whole = {**made, key: other} if key else made
    text = json.dumps(whole, ensure_ascii=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.cpp", "a.cu"):
            (Path(folder) / name).touch()
        (Path(folder) / "b").mkdir()
        path = Path(folder) / "x.yaml"
        path.write_text(text)
        codes = refusals(path)
    if VALIDATOR.is_valid(whole):
        assert codes <= BEYOND, (text, codes)
    else:
        assert codes, text
