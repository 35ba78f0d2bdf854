"""Names explain: a loop variable is the noun of what it holds, a result the noun of what it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "envbuilder"
EMPTY = {"one", "found", "own", "said", "told"}
SHORT = 5  # lines of a function that is seen at one glance
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def empty_words(path: Path) -> Iterator[str]:
    """Yield the places of variables and parameters whose names say nothing."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.end_lineno is None:
            continue
        if function.end_lineno - function.lineno < SHORT:
            continue
        for node in ast.walk(function):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if name in EMPTY:
                yield f"{path}:{node.lineno}: {name}"


@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_a_variable_is_named_after_what_it_holds(folder: str):
    assert (
        sorted(
            {
                place
                for path in (PACKAGE / folder).glob("*.py" if folder == "." else "**/*.py")
                for place in empty_words(path)
            }
        )
        == []
    )


# A program that runs in an image imports nothing of ours, so its words are its own.
ALONE = ("node/nccl", "runtime", "steps")


def test_no_two_public_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and not where.startswith(ALONE)
            ):
                places.setdefault(node.name, []).append(where)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# File names that several folders have, with what all files of that name are.
SHARED = {
    "base_image": "a part of an environment: its rules, its resolver",
    "context": "what a folder's functions are given with each call",
    "distribution": "a part of an environment: its table, its layer",
    "extension": "a part of an environment: as written in a recipe, as planned",
    "job": "what a command asks of its folder",
    "model": "the data types of a folder",
    "reader": "reads the format that its folder is about",
    "runner": "a runner, as the interface in `builder/job.py` has it",
    "toolkit": "a part of an environment: its table, its resolver",
    "wheels": "a part of an environment: its rules, its resolver",
    "writer": "writes the format that its folder is about",
}


def test_a_file_name_that_several_folders_have_says_one_thing():
    """A file in `commands` has its command's name, whatever else there is of that name. A package's first files have Python's."""
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        if not where.startswith((*ALONE, "commands")) and not path.stem.startswith("__"):
            places.setdefault(path.stem, []).append(where)
    assert {name for name, where in places.items() if len(where) > 1} == set(SHARED)
