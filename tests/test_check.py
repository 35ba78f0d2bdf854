"""The rules before building: each refuses what cannot work, names what can, and leaves the rest alone."""

import dataclasses
from pathlib import Path

import pytest

from envbuilder.check import RULES, CheckCode, Tables, check, load_tables
from envbuilder.findings import Finding, Severity
from envbuilder.recipe import Extension, Recipe, find_recipe, list_recipes, load
from envbuilder.tables.toolkit import load_toolkits

RECIPES = Path(__file__).parents[1] / "recipes"
TABLES = load_tables(["11.2", "12.4", "12.6", "13.2"])
RECIPE = Recipe(
    name="x", path=Path("x.yaml"), summary="", gpus=("A100",), base="debian/bookworm", python="3.11", cuda="12.4",
    gcc="12", libxcrypt="4.4", pytorch="2.6.0", packages=(), apt=(), extensions=(), env=(), tests=(),
    places=(("$", "x.yaml:1:1"), ("$.cuda", "x.yaml:5:7"), ("$.gpus[0]", "x.yaml:2:8")),
)  # fmt: skip


def findings(**change: object) -> tuple[Finding, ...]:
    return check(dataclasses.replace(RECIPE, **change), TABLES)


def test_a_recipe_that_works_has_no_findings():
    assert findings() == ()
    assert findings(cuda="", gpus=()) == ()
    assert findings(libxcrypt="") == ()
    assert findings(libxcrypt="4.4.33") == ()


@pytest.mark.parametrize("name", list_recipes(RECIPES))
def test_each_recipe_of_ours_can_work(name):
    found = check(load(find_recipe(name, RECIPES)), load_tables(load_toolkits()))
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("change", "code", "message", "hint"),
    [
        (
            {"base": "debian/bookwrm"},
            CheckCode.BASE,
            "$.base: no suite `debian/bookwrm` is known",
            "did you mean `debian/bookworm`? suites: debian/bullseye, debian/bookworm, debian/trixie",
        ),
        ({"gpus": ("a100",)}, CheckCode.GPU, "$.gpus[0]: no GPU `a100` is known", "did you mean `A100`?"),
        (
            {"gpus": ("rtx 4090",)},
            CheckCode.GPU,
            "$.gpus[0]: no GPU `rtx 4090` is known",
            "did you mean `RTX 4090`?",
        ),
        (
            {"python": "3.13", "pytorch": "2.6.0"},
            CheckCode.PYTHON,
            "$.python: debian/bookworm has Python 3.11, not 3.13",
            'write `python: "3.11"`, or `base: debian/trixie`, which has Python 3.13',
        ),
        (
            {"gcc": "9"},
            CheckCode.GCC,
            "$.gcc: debian/bookworm has gcc 11 or 12, not 9",
            'write `gcc: "12"`; gcc 9 is in debian/bullseye',
        ),
        (
            {"gcc": "99"},
            CheckCode.GCC,
            "$.gcc: debian/bookworm has gcc 11 or 12, not 99",
            'write `gcc: "12"`',
        ),
        (
            {"libxcrypt": "4.5"},
            CheckCode.LIBXCRYPT,
            "$.libxcrypt: debian/bookworm has libxcrypt 4.4.33, not 4.5",
            'write `libxcrypt: "4.4"`',
        ),
        (
            {"libxcrypt": "4.4.3"},
            CheckCode.LIBXCRYPT,
            "$.libxcrypt: debian/bookworm has libxcrypt 4.4.33, not 4.4.3",
            'write `libxcrypt: "4.4"`',
        ),
        (
            {"pytorch": "2.6.1"},
            CheckCode.TORCH,
            "$.pytorch: there is no torch 2.6.1",
            'the closest is `pytorch: "2.6.0"`',
        ),
        (
            {"pytorch": "0.4.1"},
            CheckCode.TORCH,
            "$.pytorch: there is no torch 0.4.1",
            'the closest is `pytorch: "1.7.1"`',
        ),
        (
            {"pytorch": "1.12.1", "cuda": "", "gpus": ()},
            CheckCode.TORCH_PYTHON,
            "$.pytorch: torch 1.12.1 has no wheel for Python 3.11; it has 3.7, 3.8, 3.9, 3.10",
            'the closest with one is `pytorch: "1.13.1"`',
        ),
        (
            {"pytorch": "2.15.0"},
            CheckCode.TORCH_CUDA,
            "$.cuda: torch 2.15.0 is built against CUDA 13.2 or 13.0, not 12.4",
            'write `cuda: "13.2"`, or `pytorch: "2.6.0"`',
        ),
        (
            {"cuda": "12.3"},
            CheckCode.TOOLKIT,
            "$.cuda: CUDA 12.3 cannot be laid out by this envbuilder",
            "toolkits: 11.2, 12.4, 12.6, 13.2",
        ),
        (
            {
                "cuda": "",
                "gpus": (),
                "extensions": (Extension(name="a", sources=("a.cpp", "a.cu")),),
            },
            CheckCode.CUDA_SOURCE,
            "$.extensions[0].sources[1]: `a.cu` needs CUDA, and the recipe has none",
            "add `cuda` and `gpus`, or leave this source out",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(change, code, message, hint):
    found = next(finding for finding in findings(**change) if finding.severity is Severity.ERROR)
    assert (found.code, found.message, found.hint) == (code, message, hint)


def test_what_is_refused_once_is_refused_by_one_rule():
    for change in (
        {"base": "debian/sid"},
        {"gpus": ("Z9",)},
        {"gcc": "13"},
        {"libxcrypt": "3.1"},
        {"pytorch": "2.6.1"},
        {"pytorch": "2.15.0"},
    ):
        assert len(findings(**change)) == 1


def test_a_gpu_unlike_any_other_gets_the_list():
    (found,) = findings(gpus=("Voodoo 2",))
    assert found.hint.startswith("GPUs: V100, T4, A100")


def test_a_python_that_no_suite_and_no_torch_has_is_refused_by_both():
    assert [found.code for found in findings(python="3.99")] == [CheckCode.PYTHON, CheckCode.TORCH_PYTHON]
    assert findings(python="3.99")[1].hint == ""


def test_a_torch_newer_than_the_tables_is_a_warning():
    (found,) = findings(pytorch="2.99.0")
    assert (found.code, found.severity) == (CheckCode.TORCH_NEWER, Severity.WARNING)
    assert "2.15.0, read 2026-11-21" in found.message


def test_another_minor_version_of_cuda_is_a_warning():
    (found,) = findings(pytorch="2.4.1", cuda="12.6")
    assert (found.code, found.severity) == (CheckCode.TORCH_CUDA_MINOR, Severity.WARNING)
    assert found.hint == 'an exact match is `cuda: "12.1"`'


def test_another_build_of_the_same_torch_is_fine():
    assert findings(cuda="12.6") == ()


def test_a_cuda_that_no_torch_was_built_with_has_no_torch_as_a_hint():
    found = findings(cuda="14.0")
    assert [finding.code for finding in found] == [CheckCode.TORCH_CUDA, CheckCode.TOOLKIT]
    assert found[0].hint == 'write `cuda: "12.4"`'


def test_a_finding_points_at_the_line_of_the_recipe():
    assert [found.where for found in findings(cuda="14.0")] == ["x.yaml:5:7", "x.yaml:5:7"]
    assert [found.where for found in findings(gpus=("Z9",))] == ["x.yaml:2:8"]
    assert [found.where for found in findings(gcc="13")] == ["x.yaml:1:1"]


def test_every_finding_comes_at_once():
    found = findings(
        base="debian/trixie", gpus=("A10000",), gcc="9", libxcrypt="5", pytorch="1.0.0", cuda="9.9"
    )
    assert [finding.code for finding in found] == [
        CheckCode.GPU,
        CheckCode.PYTHON,
        CheckCode.GCC,
        CheckCode.LIBXCRYPT,
        CheckCode.TORCH,
        CheckCode.TOOLKIT,
    ]


def every_pin() -> list[dict[str, object]]:
    suites = [(row.name, row.python, gcc) for row in TABLES.distributions.rows for gcc in row.gccs]
    return [
        {
            "base": base,
            "python": python,
            "gcc": gcc,
            "libxcrypt": "",
            "pytorch": torch.version,
            "cuda": "",
            "gpus": (),
        }
        for base, python, gcc in suites
        for torch in TABLES.torches.rows
        if python in torch.pythons
    ]


def test_every_sound_combination_of_the_tables_passes():
    pins = every_pin()
    assert len(pins) > 100
    assert [pin for pin in pins if findings(**pin)] == []


def test_rules_and_codes_stand_each_once():
    assert len(set(RULES)) == len(RULES)
    assert isinstance(TABLES, Tables)
