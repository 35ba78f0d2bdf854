"""A lock that was edited or merged after `lock` wrote it: each edit is found, offline, and named with its line."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import LockError
from envbuilder.lock.file import lock_text, our_side, parse_lock

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "recipes/a100.lock").read_text(encoding="utf-8")
GREATER = (ROOT / "recipes/gh200.lock").read_text(encoding="utf-8")
Body = dict[str, Any]


def refusal(text: str) -> LockError:
    with pytest.raises(LockError) as caught:
        parse_lock(text, "recipes/a100.lock", recipe="a100")
    return caught.value


def written(body: Body) -> str:
    """The text as an editor leaves it: the form of `lock_text`."""
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def entry(body: Body, part: str, name: str) -> Body:
    return next(one for one in body[part] if one["name"] == name)


def without(part: str, name: str) -> Callable[[Body], object]:
    return lambda body: body[part].remove(entry(body, part, name))


def with_value(part: str, name: str, /, **values: object) -> Callable[[Body], object]:
    return lambda body: entry(body, part, name).update(values)


def twice(body: Body) -> None:
    """What a merge of two locks with different numpys leaves."""
    at = body["wheels"].index(entry(body, "wheels", "numpy"))
    body["wheels"].insert(at, entry(body, "wheels", "numpy") | {"version": "1.26.3"})


def swap_sha256(body: Body) -> None:
    entry(body, "wheels", "numpy")["sha256"] = entry(body, "wheels", "sympy")["sha256"]


def move_to_end(body: Body) -> None:
    body["debs"].append(body["debs"].pop(0))


NUMPY = entry(json.loads(TEXT), "wheels", "numpy")
EDITS: dict[str, tuple[Callable[[Body], object], str]] = {
    "libc6 gone": (without("debs", "libc6"), r"`libc6` 2\.36-\S+ is gone from `debs`"),
    "wheel gone": (without("wheels", "numpy"), r"`numpy` \S+ is gone from `wheels`"),
    "toolkit part gone": (lambda body: body["toolkit"].pop(0), r"is gone from `toolkit`"),
    "extension gone": (without("extensions", "fused"), r"`fused` is gone from `extensions`"),
    "another version": (
        with_value("wheels", "numpy", version="9.9"),
        r"`numpy` 9\.9 in `wheels` is not as `lock` wrote it; `lock` wrote \S+; its file is `numpy-",
    ),
    "another file": (swap_sha256, "`numpy` .* not as `lock` wrote it; its sha256 is that of `sympy`"),
    "no sha256": (with_value("wheels", "numpy", sha256="12"), "sha256: expected 64 hexadecimal digits"),
    "size 0": (with_value("wheels", "numpy", size=0), "`numpy` .* is not as `lock` wrote it"),
    "size below 0": (with_value("wheels", "numpy", size=-1), "size: expected a whole number"),
    "other Python": (
        with_value("wheels", "numpy", path=NUMPY["path"].replace("cp311", "cp312")),
        "`numpy` .* is not as `lock` wrote it; its file is `numpy-.*cp312",
    ),
    "other platform": (
        with_value("wheels", "numpy", path=NUMPY["path"].replace("x86_64", "aarch64")),
        "`numpy` .* is not as `lock` wrote it; its file is `numpy-.*aarch64",
    ),
    "other source": (with_value("debs", "libc6", source="debian-security"), "`libc6` .* not as `lock` wrote"),
    "renamed": (with_value("debs", "libc6", name="libc6x"), "`libc6x` .* in `debs` is not from `lock`"),
    "doubled": (twice, "`numpy` follows `numpy`"),
    "out of order": (move_to_end, "`adduser` follows"),
    "another day": (lambda body: body.update(epoch=1), "`epoch` is not as `lock` wrote it"),
    "another platform": (lambda body: body.update(platform="linux/arm64"), "`platform` is not as `lock`"),
    "no seal of entries": (lambda body: body.pop("entries"), "its keys `entries` and `sha256`, is not as `lock` wrote it"),
    "no seal": (lambda body: body.pop("sha256"), "its keys `entries` and `sha256`, is not as `lock` wrote it"),
    "an older revision": (lambda body: body.update(revision=0), "`revision` is not as `lock` wrote it"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_named_with_its_line(name: str):
    edit, message = EDITS[name]
    body = json.loads(TEXT)
    edit(body)
    error = refusal(written(body))
    matching = [one for one in error.findings if re.search(message, one.message)]
    assert matching, [one.message for one in error.findings]
    assert re.fullmatch(r"recipes/a100\.lock:\d+:\d+", matching[0].where)
    anew = (
        " --upgrade" if name == "no seal of entries" else ""
    )  # nothing says which entries are as `lock` wrote them
    assert f"`envbuilder lock a100{anew}`" in error.hint
    assert "remove" not in error.hint


def test_the_line_is_that_of_the_entry():
    body = json.loads(TEXT)
    with_value("wheels", "numpy", size=1)(body)
    text = written(body)
    line = int(refusal(text).findings[0].where.split(":")[1])
    assert '"name": "numpy"' in "".join(text.splitlines()[line - 1 : line + 3])


def test_a_part_of_another_lock_is_named_by_some_of_its_entries():
    """A merge took all Debian packages of the other branch, whose lock was whole as well."""
    error = refusal(written(json.loads(TEXT) | {"debs": json.loads(GREATER)["debs"]}))
    assert len(error.findings) == 21
    assert re.fullmatch(r"and \d+ more", error.findings[-1].message)


def test_an_entry_that_went_with_its_seal_is_found():
    """As git joins lines of two sides that do not touch."""
    body = json.loads(TEXT)
    without("debs", "libc6")(body)
    del body["entries"]["debs libc6"]
    assert [one.message for one in refusal(written(body)).findings] == ["`debs` is not as `lock` wrote it"]


def test_another_layout_is_the_same_lock():
    lock = parse_lock(TEXT, "a.lock")
    body = json.loads(TEXT)
    assert parse_lock(json.dumps(body), "a.lock") == lock
    assert parse_lock(TEXT.replace("\n", "\r\n"), "a.lock") == lock
    assert parse_lock(json.dumps(dict(reversed(body.items())), indent=4), "a.lock") == lock
    assert lock_text(lock) == TEXT


PATHS: list[tuple[str | int, ...]] = []


def _collect(value: object, path: tuple[str | int, ...]) -> None:
    if path:
        PATHS.append(path)
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        _collect(inner, (*path, step))


_collect(json.loads(GREATER), ())


@given(st.sampled_from(PATHS), st.sampled_from(("remove", "change", "double")))
def test_no_edit_of_any_value_is_used(path: tuple[str | int, ...], action: str):
    body = json.loads(GREATER)
    *above, last = path
    place = body
    for step in above:
        place = place[step]
    if action == "remove":
        del place[last]
    elif action == "double" and isinstance(place, list):
        place.insert(int(last), place[int(last)])
    else:
        old = place[last]
        place[last] = old + 1 if isinstance(old, int) else f"{old}x" if isinstance(old, str) else []
        if place[last] == old:
            place[last] = ["x"]
    assert refusal(written(body)).findings


@given(st.integers(0, len(TEXT) - 1), st.sampled_from(("", "0", "a", "\n", '"', ",")))
def test_no_other_letter_is_used(at: int, letter: str):
    """A letter of the file is removed or replaced: the lock is refused, or it was the layout."""
    text = TEXT[:at] + letter + TEXT[at + 1 :]
    try:
        lock = parse_lock(text, "recipes/a100.lock")
    except LockError as error:
        assert error.findings or "version" in error.message  # noqa: PT017 - every refusal says where
    else:
        assert lock == parse_lock(TEXT, "recipes/a100.lock")


def conflict(ours: str, base: str, theirs: str) -> str:
    middle = f"||||||| base\n{base}" if base else ""
    return f"<<<<<<< HEAD\n{ours}{middle}=======\n{theirs}>>>>>>> other\n"


@pytest.mark.parametrize("base", ["", '   "version": "0"\n'])
def test_merge_markers_are_named_with_both_repairs(base: str):
    line = next(one for one in TEXT.splitlines(keepends=True) if '"version": "2.36-9' in one)
    text = TEXT.replace(line, conflict(line, base, '   "version": "1"\n'), 1)
    error = refusal(text)
    number = text[: text.index("<<<<<<<")].count("\n") + 1
    assert [str(one) for one in error.findings] == [
        f"recipes/a100.lock:{number}: holds merge markers at line {number}"
    ]
    assert "`git checkout --ours recipes/a100.lock`" in error.hint
    assert "`envbuilder lock a100`" in error.hint
    assert our_side(text) == TEXT
    assert our_side(text.replace("\n", "\r\n")) == TEXT.replace("\n", "\r\n")


def test_many_markers_are_read_in_one_pass():
    before = time.process_time()
    assert our_side("a\n" + "=======\n" * 20_000) == "a"
    assert time.process_time() - before < 1


@pytest.mark.parametrize("text", [TEXT[:9000], "", TEXT.replace("{", "", 1)])
def test_what_is_no_json_says_how_to_get_the_lock_back(text: str):
    error = refusal(text)
    assert "is not JSON" in error.findings[0].message
    assert "`git checkout recipes/a100.lock`" in error.hint
    assert "`envbuilder lock a100 --upgrade`" in error.hint


def test_a_whole_lock_is_read_in_milliseconds():
    """Processor time, the least of some: a busy machine adds none."""
    times = []
    for spaces in range(6):  # another text each time: a text that was read is remembered
        before = time.process_time()
        parse_lock(TEXT + " " * spaces, "a.lock")
        times.append(time.process_time() - before)
    assert min(times) < 0.05
