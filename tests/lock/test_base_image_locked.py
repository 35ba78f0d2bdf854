"""A base image in a lock: read back as it was written, told in differences, and part of what decides a build."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.errors import LockError
from envbuilder.lock.changes import diff_locks
from envbuilder.lock.file import (
    REVISION,
    _parse_whole,
    kept_folder,
    lock_path,
    lock_text,
    parse_lock,
    recall,
    seal,
)
from envbuilder.lock.model import Lock, LockedBase, recipe_inputs
from envbuilder.plan import make as plan_make
from envbuilder.plan.model import SYSTEM_PATH
from envbuilder.recipe.load import load
from tests.support import bases
from tests.support.bases import BASE, locked
from tests.support.plans import LOCK, make_plan

RECIPE = """\
base: {image: "site/base:1"}
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.6.0"
"""


def on(base: LockedBase | None) -> Lock:
    return dataclasses.replace(LOCK, base=base)


@pytest.mark.parametrize("shape", [bases.debian(), bases.devel()])
def test_a_lock_on_an_image_is_read_back_with_every_fact_and_its_place(shape: bases.Shape):
    lock = on(locked(shape))
    assert parse_lock(lock_text(lock), "x.lock") == lock


def test_a_lock_on_a_suite_says_nothing_of_images():
    assert "base" not in json.loads(lock_text(LOCK))


def test_docker_pulls_the_locked_manifest_from_the_recipes_registry():
    assert BASE.pinned == f"site/base@sha256:{BASE.manifest.digest}"
    named = locked(bases.debian(), "127.0.0.1:5000/site/base:1", "127.0.0.1:5000")
    assert named.pinned == f"127.0.0.1:5000/site/base@sha256:{named.manifest.digest}"


def test_the_lock_of_a_recipe_on_an_image_is_read_once(tmp_path: Path):
    (tmp_path / "x.yaml").write_text(RECIPE)
    recipe, base = load(tmp_path / "x.yaml"), locked(bases.debian())
    lock = replace(
        LOCK, recipe=recipe.digest, inputs=recipe_inputs(recipe), toolkit=(), extensions=(), base=base
    )
    lock_path(recipe).write_text(lock_text(lock))
    _parse_whole.cache_clear()
    assert plan_make.load_locked("x", tmp_path, Store(tmp_path / "cache"))[1] == lock
    assert _parse_whole.cache_info().misses == 1


def test_what_no_line_of_text_can_hold_is_written_out():
    shape = dataclasses.replace(bases.debian(), env=("A=one\ntwo\x1b[31m", "B=\udcff"))
    lock = on(locked(shape))
    again = parse_lock(lock_text(lock), "x.lock")
    assert again == lock
    assert again.base
    assert again.base.inside.env == {"A": "one\\x0atwo\\x1b[31m", "B": "\\udcff"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("manifest", ...),
        ("manifest.digest", "sha256:1"),
        ("facts", {}),
        ("facts.0.source", ""),
        ("layers.0.size", "x"),
    ],
)
def test_a_damaged_base_is_refused_with_its_place(path: str, value: object):
    whole = json.loads(lock_text(on(BASE)))
    *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = whole["base"]
    for part in parts:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    with pytest.raises(LockError) as caught:
        parse_lock(json.dumps(seal(whole)), "x.lock")
    assert all("$.base" in one.message for one in caught.value.findings)


def difference(old: Lock, new: Lock) -> tuple[str, ...]:
    return tuple(map(str, diff_locks(old, new)))


def test_a_difference_of_images_is_told_by_what_they_have():
    newer = locked(bases.over(bases.devel(), bases.gcc("13.2.0")))
    lines = difference(on(BASE), on(newer))
    assert lines[0].startswith("~ base site/base:1: sha256:")
    assert "+ base has gcc 13.2.0 /usr/bin/gcc-13" in lines
    assert difference(on(BASE), on(BASE)) == ()
    assert difference(LOCK, on(BASE)) == ("+ base site/base:1",)
    assert difference(on(BASE), LOCK) == ("- base site/base:1",)
    moved = dataclasses.replace(BASE, reference="site/base:2")
    assert difference(on(BASE), on(moved)) == ("~ base site/base:1 → site/base:2",)


def test_a_newer_revision_may_say_more_of_a_base():
    whole = json.loads(lock_text(on(BASE)))
    whole["revision"] = REVISION + 1
    whole["base"]["signature"] = whole["base"]["facts"][0]["sure"] = "yes"
    assert parse_lock(json.dumps(seal(whole)), "x.lock").base == BASE


def test_the_image_decides_the_build_and_its_variables_stay():
    plain, image = make_plan(), make_plan(lock=on(BASE))
    other = make_plan(lock=on(locked(bases.over(bases.devel(), {"x": ""}))))
    assert len({plan.key for plan in (plain, image, other)}) == 3
    assert f"step os on {BASE.pinned}\n" in image.canonical()
    env = dict(image.runtime.env)
    assert env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    own = BASE.inside.env["PATH"]
    assert env["PATH"] == f"/opt/env/bin:/usr/local/cuda/bin:{own}"


def test_plain_compiler_names_are_found_though_path_lacks_their_folder():
    image = make_plan(lock=on(locked(replace(bases.debian(), env=("PATH=/site:/usr/bin",)))))
    assert dict(image.runtime.env)["PATH"].endswith(":/usr/local/bin:/site:/usr/bin")
    assert "/usr/local/bin" in SYSTEM_PATH


def test_an_images_own_python_and_gcc_are_the_environments():
    shape = bases.over(bases.debian(), bases.python("3.11.9", "usr/local"))
    lock = replace(on(locked(shape)), debs=())
    first, python, *_ = make_plan(lock=lock).steps
    assert (first.driver, python.program) == ("/usr/bin/gcc-12", "/usr/local/bin/python3.11")
    assert "step python 3.11 by /usr/local/bin/python3.11" in make_plan(lock=lock).canonical()
    assert make_plan().steps[1].program == "/usr/bin/python3.11"


@pytest.mark.parametrize("name", ["base.json", "keys/0-key.gpg"])
def test_damaged_facts_of_an_image_in_the_cache_are_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
):
    store, base = Store(tmp_path / "cache"), locked(bases.debian())
    entry = kept_folder(store, base.reference)
    with store.renewed(entry) as folder:
        (folder / "keys").mkdir()
        (folder / "keys/0-key.gpg").write_bytes(b"key")
        (folder / "base.json").write_text(json.dumps(dataclasses.asdict(base)))
    assert recall(store, base.reference) == base
    content = (entry / name).read_bytes()
    (entry / name).write_bytes(content.replace(b"e", b"E", 1))
    assert recall(store, base.reference) is None
    assert caplog.messages == [f"cache: bases/{entry.name} is damaged: `{name}` differs; made again"]
