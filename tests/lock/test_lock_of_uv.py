"""A recipe with `{from: uv.lock}` follows what uv itself locked: its versions, its files, and what has moved since."""

import dataclasses
from pathlib import Path

import pytest
from uv import find_uv_bin

from envbuilder.core.errors import LockError, RecipeError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.lock.changes import diff_locks
from envbuilder.lock.file import load_fresh, lock_path, lock_text
from envbuilder.lock.model import Lock, SourceFile, recipe_inputs
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.load import load
from envbuilder.sources.names import Sources
from tests.support.locks import make_means, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.plans import LOCK

RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.13.0"
packages: {from: uv.lock}
"""
PROJECT = """\
[project]
name = "mine"
version = "0"
requires-python = "==3.11.*"
dependencies = ["needy", "%s"]
[[tool.uv.index]]
url = "%s"
default = true
"""


def lock_by_uv(folder: Path, plain: str) -> None:
    (folder / "pyproject.toml").write_text(PROJECT % (plain, (folder / "simple").as_uri()))
    argv = (find_uv_bin(), "lock", "--no-cache", "--upgrade", "--no-python-downloads", "--quiet")
    ProcessRunner({"PATH": "/usr/bin:/bin"}).run(Command(argv=argv, why="lock", cwd=folder))


def lock_ours(folder: Path) -> Lock:
    recipe = load(folder / "x.yaml")
    sources = Sources(debian=(), indexes=(f"{(folder / 'simple').as_uri()}/",), folders=(folder / "base",))
    wheels = resolve_wheels(make_task(recipe, make_means(folder, sources))).artifacts
    files = tuple(SourceFile(path=pins.path, sha256=pins.sha256, size=pins.size) for pins in recipe.locks)
    return dataclasses.replace(
        LOCK, recipe=recipe.digest, inputs=recipe_inputs(recipe), wheels=wheels, extensions=(), toolkit=(),
        locks=files,
    )  # fmt: skip


@pytest.mark.programs
def test_a_recipe_follows_what_uv_locked(tmp_path: Path) -> None:
    files = tmp_path / "files"
    there = [
        *(write_wheel(files, "plain", version) for version in ("1.0", "1.1")),
        write_wheel(files, "needy", "2.0", requires=("plain",)),
    ]
    write_wheel(tmp_path / "base", "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    there.append(write_wheel(files, "setuptools", "80.0.0"))
    write_index(tmp_path / "simple", *there)
    lock_by_uv(tmp_path, "plain<1.1")
    (tmp_path / "x.yaml").write_text(RECIPE)
    old = lock_ours(tmp_path)
    versions = {wheel.name: wheel.version for wheel in old.wheels}
    assert (versions["plain"], versions["needy"]) == ("1.0", "2.0")  # the newest would be 1.1
    path = lock_path(load(tmp_path / "x.yaml"))
    path.write_text(lock_text(old))
    assert load_fresh(load(tmp_path / "x.yaml"), "x") == old

    before = (tmp_path / "uv.lock").read_text()
    (tmp_path / "uv.lock").write_text(f"{before}\n# a comment\n")  # which moves nothing
    assert load_fresh(load(tmp_path / "x.yaml"), "x") == old
    assert [change.name for change in diff_locks(old, lock_ours(tmp_path))] == ["uv.lock"]

    lock_by_uv(tmp_path, "plain")
    with pytest.raises(LockError, match=r"`uv.lock` moved on: ~ plain 1.0 → 1.1$"):
        load_fresh(load(tmp_path / "x.yaml"), "x")
    new = lock_ours(tmp_path)
    shown = [str(change).partition(" sha256")[0] for change in diff_locks(old, new)]
    assert [line for line in shown if "recipe" not in line] == ["~ uv.lock", "~ plain 1.0 → 1.1"]

    other = next(line for line in before.splitlines() if "plain-1.0" in line).partition("sha256:")[2][:64]
    (tmp_path / "uv.lock").write_text(before.replace(other, "0" * 64))
    with pytest.raises(RecipeError) as caught:
        lock_ours(tmp_path)
    (finding,) = caught.value.findings
    assert finding.where == str(tmp_path / "uv.lock")
    assert "for plain the file expects" in finding.message
