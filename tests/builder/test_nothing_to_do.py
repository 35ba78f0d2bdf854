"""What a build compares before it says that there is nothing to do: no change of a recipe passes unnoticed."""

import dataclasses
from pathlib import Path

import pytest

from envbuilder.builder.job import record_key
from envbuilder.builder.recipe_tests import BuildCode, passed_tests
from envbuilder.core.cache import Store, save_text
from envbuilder.core.errors import IncompatibleError, LockError, RecipeError
from envbuilder.core.findings import Finding, Severity
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import LockedExtension, recipe_inputs
from envbuilder.lock.source_files import own_files
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.load import load
from envbuilder.recipe.model import RecipeFile
from tests.support.locks import make_lock

RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
env: {A: "1"}
nccl: {profile: site.yaml}
extensions:
  - {name: fused, sources: [fused.cpp]}
"""
SITE = "fixed: {NCCL_IB_HCA: mlx5_0}\n"
LOCKED, TESTED, REFUSED, LISTED = "built after `lock`", "tested", "refused", "listed"
# key → what is written in place of what, or added, and what a build does then. REFUSED: the lock no longer fits. LOCKED: the
# same, and once it is locked anew without another package, the build makes the artifacts again.
KEYS = {
    "base": (("debian/bookworm", "debian/trixie"), REFUSED),
    "python": (('"3.11"', '"3.12"'), REFUSED),
    "gcc": (('"12"', '"11"'), REFUSED),
    "pytorch": (('"2.13.0"', '"2.12.0"'), REFUSED),
    "libxcrypt": (('libxcrypt: "4.4"\n', ""), REFUSED),
    "gpus": (("env:", 'cuda: "12.6"\ngpus: [A100]\nenv:'), REFUSED),
    "cuda": (("env:", 'cuda: "12.6"\ngpus: [A100]\nenv:'), REFUSED),
    "platform": (("env:", "platform: linux/arm64\nenv:"), REFUSED),
    "packages": (("env:", "packages: [numpy]\nenv:"), REFUSED),
    "indexes": (("env:", "indexes: [{name: x, url: 'https://h/simple', packages: [numpy]}]\nenv:"), REFUSED),
    "apt": (("env:", "apt: [git]\nenv:"), REFUSED),
    "apt_sources": (("env:", "apt_sources: [nvidia/debian12]\nenv:"), REFUSED),
    "conda": (("env:", "conda: {channels: ['https://h/c'], packages: [ffmpeg]}\nenv:"), REFUSED),
    "security": (("env:", "security: false\nenv:"), REFUSED),
    "extensions": (("name: fused", "name: other"), LOCKED),
    "kernels": (("env:", f"kernels: [team/relu@{'0' * 40}]\nenv:"), LOCKED),
    "warm": (("env:", 'cuda: "12.6"\ngpus: [A100]\nwarm: python -V\nenv:'), REFUSED),
    "env": (('A: "1"', 'A: "2"'), LOCKED),
    "nccl": (("nccl: {profile: site.yaml}", "nccl: auto"), LOCKED),
    "run": (("env:", "run: python\nenv:"), LOCKED),
    "tests": (("env:", "tests: [python -V]\nenv:"), TESTED),
    "summary": (("env:", "summary: words\nenv:"), LISTED),
    "extends": (("env:", "extends: below\nenv:"), LOCKED),
    "matrix": (("env:", "matrix: {gcc: ['12', '11']}\nenv:"), REFUSED),
}  # fmt: skip
OPTIONS = {
    "name": ("name: fused", "name: other"),
    "sources": ("fused.cpp]", "fused.cpp, more.cpp]"),
    "include": ("fused.cpp]", "fused.cpp], include: [headers]"),
    "cflags": ("fused.cpp]", "fused.cpp], cflags: [-O3]"),
    "cuda_cflags": ("fused.cpp]", "fused.cpp], cuda_cflags: [-lineinfo]"),
    "path": ("sources: [fused.cpp]", "path: project"),
    "git": ("sources: [fused.cpp]", f"git: 'https://host/a/b', commit: '{'0' * 40}'"),
    "commit": ("sources: [fused.cpp]", f"git: 'https://host/a/b', commit: '{'1' * 40}'"),
    "sdist": ("sources: [fused.cpp]", "sdist: a==1"),
    "url": ("sources: [fused.cpp]", f"url: 'https://host/a.zip', sha256: '{'0' * 64}'"),
    "sha256": ("sources: [fused.cpp]", f"url: 'https://host/a.zip', sha256: '{'1' * 64}'"),
    "capture": ("sources: [fused.cpp]", "path: project, capture: [import it]"),
    "deepspeed": ("sources: [fused.cpp]", "deepspeed: [cpu_adam]"),
    "env": ("sources: [fused.cpp]", "path: project, env: {A: '1'}"),
    "options": ("sources: [fused.cpp]", "path: project, options: ['--cuda_ext']"),
    "patch": ("sources: [fused.cpp]", "path: project, patch: fix.patch"),
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe with its lock, and files that an edit may name."""
    for name in ("fused.cpp", "more.cpp", "headers/a.h", "project/setup.py", "fix.patch"):
        save_text(tmp_path / name, "")
    save_text(tmp_path / "site.yaml", SITE)
    save_text(tmp_path / "below.yaml", RECIPE.replace('A: "1"', 'A: "1", B: "1"').partition("ext")[0])
    path = tmp_path / "x.yaml"
    save_text(path, RECIPE)
    read = load(path)
    fused = LockedExtension(
        name="fused", sources=("fused.cpp",), include=(), cflags=(), cuda_cflags=(), files=own_files(read)["fused"]
    )  # fmt: skip
    lock = dataclasses.replace(make_lock(read), extensions=(fused,))
    save_text(path.with_suffix(".lock"), lock_text(lock))
    return path


def outcome(recipe: Path, edit: tuple[str, str]) -> str:
    """Return what a build does after the edit."""
    store = Store(recipe.parent / "cache")
    before, plan, _ = make_plan(str(recipe), recipe.parent, store)
    text = recipe.read_text()
    assert edit[0] in text
    recipe.write_text(text.replace(*edit))
    try:
        after, edited, _ = make_plan(str(recipe), recipe.parent, store)
    except IncompatibleError:
        return REFUSED
    except RecipeError:
        # The first needs the name of a variant, the second a package.
        if not any(word in recipe.read_text() for word in ("matrix", "deepspeed")):
            raise
        return REFUSED
    except LockError:
        return (
            LOCKED
            if recipe_inputs(load(recipe)) == recipe_inputs(before) and _is_built(recipe, plan)
            else REFUSED
        )
    assert record_key(plan) == record_key(edited)
    if passed_tests(before, image=True) != passed_tests(after, image=True):
        return TESTED
    return LISTED if before.summary != after.summary else "not noticed"


def _is_built(recipe: Path, before: Plan) -> bool:
    """Whether a build makes the artifacts again once the lock names the edited recipe."""
    path, edited = recipe.with_suffix(".lock"), load(recipe)
    save_text(path, lock_text(dataclasses.replace(load_lock(path), recipe=edited.digest)))
    try:
        _, plan, _ = make_plan(str(recipe), recipe.parent, Store(recipe.parent / "cache"))
    except LockError:
        return False
    return record_key(plan) != record_key(before)


@pytest.mark.parametrize("key", [one.name for one in dataclasses.fields(RecipeFile)])
def test_a_build_acts_on_every_key_of_a_recipe(recipe: Path, key: str):
    edit, due = KEYS[key]
    assert outcome(recipe, edit) == due


@pytest.mark.parametrize("key", [one.name for one in dataclasses.fields(Extension) if one.name in OPTIONS])
def test_a_build_acts_on_every_key_of_an_extension(recipe: Path, key: str):
    assert outcome(recipe, OPTIONS[key]) in (LOCKED, REFUSED)


def test_an_extension_that_is_imported_again_is_imported(recipe: Path):
    assert {one.name for one in dataclasses.fields(Extension)} == {*OPTIONS, "is_imported"}
    recipe.write_text(recipe.read_text().replace("fused.cpp]", "fused.cpp], import: false"))
    assert outcome(recipe, ("import: false", "import: true")) == TESTED


def test_an_edited_profile_is_built(recipe: Path):
    store = Store(recipe.parent / "cache")
    plans = []
    for text in (SITE, SITE.replace("mlx5", "mlx4")):
        save_text(recipe.with_name("site.yaml"), text)
        plans.append(make_plan(str(recipe), recipe.parent, store)[1].key)
    assert plans[0] != plans[1]


def test_a_site_of_the_command_line_is_part_of_what_is_compared(recipe: Path):
    store, other = Store(recipe.parent / "cache"), recipe.with_name("other.yaml")
    save_text(other, SITE.replace("mlx5", "mlx4"))
    _, plan, _ = make_plan(str(recipe), recipe.parent, store)
    _, elsewhere, _ = make_plan(str(recipe), recipe.parent, store, other)
    assert record_key(plan) != record_key(elsewhere)


def test_what_was_not_tested_is_tested_by_the_next_build(recipe: Path):
    recipe.write_text(recipe.read_text() + "tests: [python -V]\n")
    tested = load(recipe)
    due = passed_tests(tested, image=True)
    skipped = [
        (Finding(code=code, severity=Severity.WARNING, where="x", message="x"),)
        for code in (BuildCode.UNTESTED, BuildCode.UNTESTED_IMAGE)
    ]
    assert [one.partition(" ")[0] for one in due] == ["SIF", "image"]
    assert [passed_tests(tested, image=True, findings=one) for one in skipped] == [due[1:], due[:1]]
    assert passed_tests(tested, image=False) == due[:1]
