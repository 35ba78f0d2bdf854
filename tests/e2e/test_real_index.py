"""Forty sets of requirements against the package index of this machine: a lock has the versions of a plain `uv pip compile`.

`tests/lock/test_like_uv.py` holds the same for every change, in indexes of its own.
"""

import os
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import open_context
from envbuilder.lock.resolve.wheels import ALWAYS, implied_wheels, resolve_wheels, torch_requirement
from tests.support.locks import compiled, make_recipe

pytestmark = [pytest.mark.builds, pytest.mark.release]

SETS = [
    line
    for line in Path(__file__).with_name("real_index.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all sets, whose caches of metadata they share."""
    return tmp_path_factory.mktemp("real-index")


def test_there_are_forty_sets():
    assert len(SETS) == 40


@pytest.mark.parametrize("line", SETS)
def test_a_lock_has_the_versions_of_a_plain_compile(
    line: str, folder: Path, caplog: pytest.LogCaptureFixture
):
    torch, cuda, python, *packages = line.replace("- ", " ").split(" ")
    recipe = make_recipe(
        folder, pytorch=torch, cuda=cuda, python=python, packages=tuple(packages),
        gpus=("A100",) if cuda else (),
    )  # fmt: skip
    target = make_target(recipe)
    environment = dict(os.environ)
    context = open_context(
        Store(folder / "cache"), ProcessRunner(environment), environment, Console(quiet=True), offline=False
    )
    with context.store.in_use():
        resolved = resolve_wheels(recipe, target, context, toolkit=None, prefer=(), before=None)
    pin, build = torch_requirement(recipe, target, folders=context.sources().folders)
    row = target.torch
    bounds = (
        ((f"numpy{row.numpy}", row.numpy), (f"setuptools{row.setuptools}", row.setuptools)) if row else ()
    )
    plain = compiled(
        (*([pin] if pin else []), *ALWAYS, *packages, *implied_wheels(recipe, None)), context.sources(),
        folder, constraints=[text for text, bound in bounds if bound],
        finals=[message.partition(" ")[0] for message in caplog.messages if "it is a pre-release" in message],
        build=build, python=python,
    )  # fmt: skip
    print(*caplog.messages, sep="\n")
    assert {wheel.name: wheel.version for wheel in resolved.artifacts} == plain
