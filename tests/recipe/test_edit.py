"""Requirements and projects are written into a recipe's text, and nothing else in it changes."""

import pytest

from envbuilder.core.errors import UsageError
from envbuilder.recipe.edit import parse_added, put_package, put_project
from envbuilder.recipe.requirement_file import Direct

PINS = 'base: debian/bookworm # the suite\npython: "3.11"\n'
COMMIT = "a" * 40
PROJECT = Direct(text="", name="net", git="https://host/net", path="sub")
ENTRY = f"{{name: net, git: https://host/net, commit: {COMMIT}, path: sub}}"


@pytest.mark.parametrize(
    ("before", "requirement", "after"),
    [
        (PINS, "einops", f"{PINS}\npackages:\n  - einops\n"),
        (PINS.rstrip("\n"), "einops", f"{PINS}\npackages:\n  - einops\n"),
        (f"{PINS}packages: []\n", "einops", f"{PINS}packages: [einops]\n"),
        ("packages: [a, b] # two\n", "c>=1,<2", 'packages: [a, b, "c>=1,<2"] # two\n'),
        ("packages: [\n  a, # first\n  b,\n]\n", "c", "packages: [\n  a, # first\n  b, c,\n]\n"),
        (
            "packages:   # why\n  # first\n  - a  # of old\n\n# end\napt: [git]\n",
            "c>=1,<2",
            "packages:   # why\n  # first\n  - a  # of old\n  - c>=1,<2\n\n# end\napt: [git]\n",
        ),
        ("packages:\n- a", "b==1.0", "packages:\n- a\n- b==1.0"),
        ("packages:\r\n  - a\r\napt: [git]\r\n", "b", "packages:\r\n  - a\r\n  - b\r\napt: [git]\r\n"),
        ("packages:\n  - requirements: x.txt\n\napt: []\n", "b", "packages:\n  - requirements: x.txt\n  - b\n\napt: []\n"),
        ("packages: [{requirements: x.txt}]\n", "b", "packages: [{requirements: x.txt}, b]\n"),
        ("packages:\n  - a\n", 'b; sys_platform == "linux"', 'packages:\n  - a\n  - "b; sys_platform == \\"linux\\""\n'),
        ("packages:\n  - a\n", "b[c]>=1", 'packages:\n  - a\n  - "b[c]>=1"\n'),
        ("packages:\n  - a\n", "no", 'packages:\n  - a\n  - "no"\n'),
    ],
)  # fmt: skip
def test_a_package_is_added_at_the_end(before: str, requirement: str, after: str):
    assert put_package(before, requirement) == (after, f"+ {requirement}")


@pytest.mark.parametrize(
    ("before", "requirement", "after"),
    [
        ("packages:\n  - b\n  - 'A.x<2' # old\n  - c\n", "a-x>=3", "packages:\n  - b\n  - a-x>=3 # old\n  - c\n"),
        ("packages: [A.x<2, {requirements: x.txt}]\n", "a-x>=3,<4", 'packages: ["a-x>=3,<4", {requirements: x.txt}]\n'),
    ],
)  # fmt: skip
def test_a_package_with_other_versions_is_replaced_and_named(before: str, requirement: str, after: str):
    assert put_package(before, requirement) == (after, f"~ A.x<2 → {requirement}")


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3,>=2"])
def test_a_package_that_is_there_stays_as_it_is(requirement: str):
    text = "packages: ['numpy>=2,<3']\n"
    assert put_package(text, requirement) == (text, "numpy>=2,<3 is there already")


def test_a_package_that_is_there_twice_is_refused():
    with pytest.raises(UsageError, match="has `a` 2 times"):
        put_package("packages: ['a>1', 'a<3']\n", "a==2")


@pytest.mark.parametrize(
    "text", ["{python: '3.11'}\n", "packages:\n  - >-\n    a\n\napt: [git]\n", "python: '3.11'\n...\n"]
)
def test_a_form_that_is_not_edited_is_refused_with_what_to_do(text: str):
    with pytest.raises(UsageError, match="does not edit, and `b` is not in it") as caught:
        put_package(text, "b")
    assert "write it into the recipe" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("torch==2.6.0", "torch is pinned by the key `pytorch`", "leave it out"),
        ("einops=1", "is not a PEP 508 requirement", "did you mean `einops==1`"),
        ("-r x.txt", "found an option of pip", "requirements: x.txt"),
        ("./folder", "is not a PEP 508 requirement", "an entry of `extensions`"),
        ("a @ https://host/a.zip", "names a place to download from", "name the version instead"),
    ],
)
def test_what_is_no_requirement_is_refused(text: str, message: str, hint: str):
    with pytest.raises(UsageError, match=message) as caught:
        parse_added(text)
    assert hint in caught.value.hint


def test_a_requirement_is_written_as_it_was_typed():
    assert parse_added(" numpy>=2,<3 ") == "numpy>=2,<3"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PINS, f"{PINS}\nextensions:\n  - {ENTRY}\n"),
        (
            "extensions:\n  - name: fused\n    sources:\n      - a.cpp # one\n      - b.cpp # two\n\ntests: []\n",
            f"extensions:\n  - name: fused\n    sources:\n      - a.cpp # one\n      - b.cpp # two\n  - {ENTRY}\n\ntests: []\n",
        ),
    ],
)
def test_a_project_is_an_extension_with_its_commit(before: str, after: str):
    assert put_project(before, PROJECT, COMMIT) == (after, f"+ extension net {COMMIT}")


def test_a_second_extension_with_a_name_is_refused_with_the_commit_to_write():
    with pytest.raises(UsageError, match="has an extension `net`") as caught:
        put_project("extensions:\n  - name: net\n    path: x\n", PROJECT, COMMIT)
    assert f"commit: {COMMIT}" in caught.value.hint
