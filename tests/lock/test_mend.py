"""What `lock` keeps of a lock that was edited or merged: which parts it resolves again, and which versions it prefers."""

import dataclasses
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import LockError
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Lock, LockedBuild
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.lock.resolve.mend import LOST, read_old, without_lost
from envbuilder.recipe.load import load

RECIPES = Path(__file__).parents[2] / "recipes"
CPU, ARM = load_lock(RECIPES / "cpu.lock"), load_lock(RECIPES / "gh200.lock")
OPTIONS = LockOptions(today=date(2026, 11, 27))
Body = dict[str, Any]


def mended(
    folder: Path,
    edit: Callable[[Body], object],
    lock: Lock = CPU,
    options: LockOptions = OPTIONS,
    recipe: str = "cpu",
) -> tuple[Lock, tuple[str, ...]]:
    """The lock that `lock` goes on with, and the packages that it upgrades."""
    body = json.loads(lock_text(lock))
    edit(body)
    path = folder / "x.lock"
    path.write_text(json.dumps(body))
    old, changed = read_old(path, "x", load(RECIPES / f"{recipe}.yaml"), options=options, save=True)
    assert old is not None
    return old, changed.upgrade_only


def remove(body: Body, part: str, name: str) -> None:
    body[part] = [one for one in body[part] if one["name"] != name]


def test_a_lost_wheel_is_preferred_in_its_version(tmp_path: Path):
    old, moving = mended(tmp_path, lambda body: remove(body, "wheels", "numpy"))
    (numpy,) = (one for one in old.wheels if one.name == "numpy")
    (before,) = (one for one in CPU.wheels if one.name == "numpy")
    assert (numpy.version, numpy.sha256, moving) == (before.version, LOST, ())
    assert old.inputs == dataclasses.replace(CPU.inputs, wheels=LOST)
    assert (old.debs, old.epoch) == (CPU.debs, CPU.epoch)
    assert set(CPU.wheels) - set(without_lost(old).wheels) == {before}


def test_a_lost_deb_moves_alone(tmp_path: Path):
    old, moving = mended(tmp_path, lambda body: remove(body, "debs", "libc6"))
    assert moving == ("libc6",)
    assert (old.inputs, old.wheels) == (CPU.inputs, CPU.wheels)


def test_a_day_for_all_packages_stays_one_for_all(tmp_path: Path):
    options = dataclasses.replace(OPTIONS, before=date(2026, 11, 1))
    assert mended(tmp_path, lambda body: remove(body, "debs", "libc6"), options=options)[1] == ()


def test_a_list_of_two_sides_is_resolved_again(tmp_path: Path):
    def join(body: Body) -> None:
        remove(body, "debs", "libc6")
        del body["entries"]["debs libc6"]

    old, moving = mended(tmp_path, join)
    assert (old.inputs, moving) == (dataclasses.replace(CPU.inputs, debs=LOST), ())


def test_whole_parts_of_two_sides_are_kept(tmp_path: Path):
    theirs = json.loads(lock_text(dataclasses.replace(CPU, wheels=CPU.wheels[:-1], epoch=86400)))

    def join(body: Body) -> None:
        seals = {key: seal for key, seal in body["entries"].items() if not key.startswith("wheels")}
        body["entries"] = seals | {
            key: one for key, one in theirs["entries"].items() if key.startswith("wheels")
        }
        body["wheels"] = theirs["wheels"]

    old, moving = mended(tmp_path, join)
    assert (old.inputs, old.wheels, old.debs, moving) == (CPU.inputs, CPU.wheels[:-1], CPU.debs, ())


def test_a_source_distribution_without_its_tools_is_resolved_again(tmp_path: Path):
    lock = dataclasses.replace(CPU, builds=(LockedBuild(name="numpy", wheels=CPU.wheels[:1]),))
    assert mended(tmp_path, lambda _: None, lock)[0] == lock
    old, _ = mended(tmp_path, lambda body: body["builds"][0].update(wheels=[]), lock)
    assert (old.builds, old.inputs.wheels) == ((), LOST)


@pytest.mark.parametrize(
    ("edit", "field", "value"),
    [
        (lambda body: body.update(epoch=7), "epoch", 0),
        (lambda body: body.update(platform="linux/amd64"), "platform", "linux/arm64"),
        (lambda body: body["tools"]["debs"].pop(), "tools", None),
        (lambda body: body["tools"]["emulator"].update(size=1), "tools", None),
        (lambda body: body["inputs"].update(wheels="1" * 64), "inputs", dataclasses.replace(ARM.inputs, wheels=LOST)),
        (lambda body: body["toolkit"].pop(), "inputs", dataclasses.replace(ARM.inputs, toolkit=LOST)),
    ],
)  # fmt: skip
def test_another_edited_value_is_chosen_anew(
    tmp_path: Path, edit: Callable[[Body], object], field: str, value: object
):
    assert getattr(mended(tmp_path, edit, ARM, recipe="gh200")[0], field) == value


def test_tools_that_no_lock_wrote_are_dropped(tmp_path: Path):
    tools = json.loads(lock_text(ARM))["tools"]
    assert mended(tmp_path, lambda body: body.update(tools=tools))[0].tools is None


@pytest.mark.parametrize(
    ("edit", "save"),
    [
        (lambda body: remove(body, "debs", "libc6"), False),
        (lambda body: body.update(version=2), True),
        (lambda body: body.pop("entries"), True),
    ],
)
def test_what_cannot_be_mended_is_refused(tmp_path: Path, edit: Callable[[Body], object], save: bool):
    body = json.loads(lock_text(CPU))
    edit(body)
    (tmp_path / "x.lock").write_text(json.dumps(body))
    with pytest.raises(LockError):
        read_old(tmp_path / "x.lock", "x", load(RECIPES / "cpu.yaml"), options=OPTIONS, save=save)
