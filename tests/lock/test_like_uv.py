"""A lock has the versions of one plain `uv pip compile`, whatever a universe of packages looks like.

The universes are drawn by fixed seeds: releases and pre-releases that require others, with extras and markers, for other
Pythons and platforms, and source distributions. uv itself is the measure.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from packaging.specifiers import SpecifierSet

from envbuilder.core.errors import IncompatibleError
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.sources.names import Sources
from tests.support.locks import compiled, make_means, make_recipe, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.sdists import own_backend, write_sdist

pytestmark = pytest.mark.programs

SEEDS, SETS = (1, 2, 4, 7, 8, 12, 20, 22), 5  # their universes have every kind of remark
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
VERSIONS = ("1.0", "1.1", "2.0", "2.1rc1", "3.0b1", "3.0")
BOUNDS = ("", "", "", "", ">=1.1", ">=2", "<2", "<3", "~=1.0", "==2.*", "==3.0b1")
MARKERS = ("", "", "", "; python_version < '3.10'", "; sys_platform == 'win32'", "; extra == 'more'")
HOLDING = ("<2", "<3", "~=1.0")
EXTRAS = ("", "", "", "[more]")
TAGS = ("cp310-cp310-linux_x86_64", "cp311-cp311-macosx_11_0_arm64", "cp311-cp311-manylinux_2_39_x86_64")
HELD = re.compile(r"(\S+) is (\S+), not (\S+): (.+)")


def write_release(files: Path, name: str, version: str, random: Random) -> Path:
    """Write one release: most fit the target, some are for others, few are source distributions."""
    others = random.sample([one for one in NAMES if one != name], k=random.choice((0, 0, 1, 1, 2)))
    requires = tuple(
        f"{one}{random.choice(('', '', '', '[more]'))}{random.choice(BOUNDS)}{random.choice(MARKERS)}"
        for one in others
    )
    form = random.random()
    if form < 0.03:
        return write_sdist(files, name, version, own_backend(name, version, requires=requires))
    tag = random.choice(TAGS) if form < 0.13 else "py3-none-any"
    python = "Requires-Python: >=3.12" if 0.13 < form < 0.2 else "Requires-Python: >=3.8"
    return write_wheel(
        files, name, version, tag=tag, requires=requires, headers=("Provides-Extra: more", python)
    )


def write_universe(folder: Path, random: Random) -> Sources:
    files, torch = folder / "files", folder / "torch"
    held = f"{random.choice(NAMES)}{random.choice(HOLDING)}"
    write_wheel(torch, "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64", requires=(held,))
    releases = [
        write_release(files, name, version, random)
        for name in NAMES
        for version in random.sample(VERSIONS, k=random.randint(2, 5))
    ]
    write_index(folder / "simple", write_wheel(files, "setuptools", "80.0.0"), *releases)
    return Sources(debian=(), indexes=(f"{(folder / 'simple').as_uri()}/",), folders=(torch,))


@contextlib.contextmanager
def remembered() -> Iterator[list[str]]:
    """Yield the warnings of `lock`. pytest's `caplog` ends with a test."""
    messages: list[str] = []
    handler, log = logging.Handler(logging.WARNING), logging.getLogger("envbuilder")
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    yield messages
    log.removeHandler(handler)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One set of requirements: the versions of our lock and of uv, by name; empty where nothing fits."""

    requirements: tuple[str, ...]
    ours: dict[str, str]
    uv: dict[str, str]
    remarks: tuple[str, ...]
    unproven: tuple[str, ...]  # remarks that uv contradicts


def compare(requirements: tuple[str, ...], sources: Sources, folder: Path) -> Compared:
    recipe = make_recipe(folder, packages=requirements)
    ours = {}
    with remembered() as remarks, contextlib.suppress(IncompatibleError):
        found = resolve_wheels(make_task(recipe, make_means(folder, sources)))
        ours = {one.name: one.version for one in found.artifacts}
    asked = functools.partial(
        compiled, sources=sources, folder=folder, constraints=("setuptools>=77.0.3",),
        finals=[one.partition(" ")[0] for one in remarks if "it is a pre-release" in one],
    )  # fmt: skip
    every = ("torch==2.13.0+cpu", "setuptools", *requirements)
    unproven = tuple(one for one in remarks if not is_proven(one, every, asked))
    return Compared(
        requirements=requirements, ours=ours, uv=asked(every), remarks=tuple(remarks), unproven=unproven
    )


def is_proven(remark: str, every: tuple[str, ...], asked: Callable[..., dict[str, str]]) -> bool:
    """Return whether a remark on an older release is true: of a bound by its words, of the rest by uv."""
    held = HELD.fullmatch(remark)
    if held is None:
        return True
    name, version, newest, why = held.groups()
    if why == "nothing newer fits all requirements":
        return not asked((*every, f"{name}>={version},!={version}"))
    if taking := re.fullmatch(r"`(\S+)` in `packages` takes it", why):
        return bool(asked((*every, taking[1])))
    (bound,) = re.findall(rf"requires `(?:{name})?([^`]*)`", why)
    return "and" in why or not SpecifierSet(bound).contains(newest, prereleases=True)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compared, ...]:
    every = []
    for seed in SEEDS:
        folder, random = tmp_path_factory.mktemp("universe"), Random(seed)
        sources = write_universe(folder, random)
        for _ in range(SETS):
            names = random.sample(NAMES, k=random.randint(1, 3))
            requirements = tuple(f"{one}{random.choice(EXTRAS)}{random.choice(BOUNDS)}" for one in names)
            every.append(compare(requirements, sources, folder))
    return tuple(every)


def test_a_lock_has_the_versions_of_a_plain_compile(compared: tuple[Compared, ...]):
    assert len(compared) == 40
    assert [one for one in compared if one.ours != one.uv] == []


def test_what_is_said_of_older_releases_is_true(compared: tuple[Compared, ...]):
    assert [one for one in compared if one.unproven] == []


def test_the_sets_are_of_every_kind(compared: tuple[Compared, ...]):
    """Otherwise the tests above would say little."""
    versions = [set(one.ours.values()) for one in compared]
    assert any({"3.0b1", "2.1rc1"} & found for found in versions)
    assert any(not found for found in versions)
    remarks = [remark for one in compared for remark in one.remarks]
    for part in ("it is a pre-release", "nothing newer", "requires `", "to fit torch"):
        assert any(part in one for one in remarks), part
