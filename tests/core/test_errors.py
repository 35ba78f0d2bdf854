"""Errors and findings: codes that are unique and stable, exit codes as documented."""

import re
from pathlib import Path

import pytest

from envbuilder.core import errors
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.core.findings import Finding, Severity

PACKAGE = Path(errors.__file__).parents[1]


def family(root: type[EnvbuilderError] = EnvbuilderError) -> list[type[EnvbuilderError]]:
    return [root, *(below for child in root.__subclasses__() for below in family(child))]


@pytest.mark.parametrize(
    ("branch", "exit_code"),
    [
        (errors.UsageError, 2),
        (errors.IncompatibleError, 3),
        (errors.LockError, 4),
        (errors.FetchError, 5),
        (errors.BuildError, 6),
        (errors.VerifyError, 7),
        (errors.ToolError, 8),
        (errors.LaunchError, 9),
    ],
)
def test_each_branch_has_one_exit_code(branch, exit_code):
    assert {kind.exit_code for kind in family(branch)} == {exit_code}


def test_exit_codes_of_branches_are_unique():
    codes = [kind.exit_code for kind in (EnvbuilderError, *EnvbuilderError.__subclasses__())]
    assert len(set(codes)) == len(codes)


def test_each_code_is_defined_in_one_place():
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for code in re.findall(
            r'^ +\w+(?:: \S+)? = "(EB\d{3})"|^\w+: Final = "(EB\d{3})"|\bcode="(EB\d{3})"',
            path.read_text(),
            re.MULTILINE,
        ):
            places.setdefault("".join(code), []).append(str(path.relative_to(PACKAGE)))
    assert len(places) > 20
    assert {code: paths for code, paths in places.items() if len(paths) > 1} == {}


def test_an_error_carries_its_hint_and_its_findings():
    finding = Finding(code="EB101", severity=Severity.ERROR, where="a.yaml:1:2", message="is wrong")
    error = errors.RecipeError("the recipe is wrong", hint="write it anew", findings=(finding,))
    assert (str(error), error.message, error.hint) == (
        "the recipe is wrong",
        "the recipe is wrong",
        "write it anew",
    )
    assert [str(item) for item in error.findings] == ["a.yaml:1:2: is wrong"]


def test_a_finding_without_a_place_is_its_message():
    assert str(Finding(code="EB101", severity=Severity.WARNING, where="", message="is odd")) == "is odd"


def test_a_message_does_not_end_with_the_line_break_of_what_a_program_said():
    assert BuildError("the test failed with exit code 1\n").message == "the test failed with exit code 1"
