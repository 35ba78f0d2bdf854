"""Nodes → dataclasses: values have their types, and each of pydantic's errors is a finding with its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, Field, Tag

from envbuilder.core.findings import Finding
from envbuilder.core.models import (
    FieldRule,
    Flag,
    Line,
    LineOrEmpty,
    MajorMinor,
    Mistake,
    RawRule,
    ReadAs,
    Whole,
    keys_of,
    read_node,
)
from envbuilder.core.places import FormCode, Mistakes, parse_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: Line
    first: Annotated[Line, Field(alias="from")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    cuda: MajorMinor = ""
    line: LineOrEmpty = ""
    count: Whole = 0
    flag: Flag = False
    choice: Literal["one", "two"] = "one"
    names: tuple[Line, ...] = ()
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    either: Annotated[
        Annotated[Line, Tag("a text")] | Annotated[Inner, Tag("a map")],
        Discriminator(lambda value: "a map" if isinstance(value, dict) else "a text"),
    ] = ""
    by_name: Annotated[tuple[str, ...], ReadAs(dict[MajorMinor, Line], tuple)] = ()


def read(text: str, kind: Any = Outer, **more: Any) -> tuple[Any, tuple[Finding, ...]]:
    mistakes = Mistakes()
    node = parse_yaml(text, "a.yaml", mistakes)
    assert node is not None
    return read_node(kind, node, mistakes, **more), mistakes.findings


def only(text: str, kind: Any = Outer, **more: Any) -> Finding:
    found, (finding,) = read(text, kind, **more)
    assert found is None
    return finding


def test_values_get_their_types():
    found, findings = read(
        'cuda: "3.10"\ncount: 12\nflag: true\nchoice: two\nnames: [a, b]\ninner: {name: x, from: y}\n'
        'either: {name: z}\nby_name: {"1.2": c}\n'
    )
    assert findings == ()
    assert (found.cuda, found.count, found.flag, found.choice) == ("3.10", 12, True, "two")
    assert (found.names, found.inner, found.either) == (
        ("a", "b"),
        Inner(name="x", first="y"),
        Inner(name="z"),
    )
    assert found.by_name == ("1.2",)


@pytest.mark.parametrize(
    "written", ["12.4", "3.10", "12", "no", "1:30", "2026-11-21", "0x10", "1.5e+3", "on", "true"]
)
def test_an_unquoted_version_must_be_quoted(written):
    finding = only(f"cuda: {written}\n")
    assert (finding.code, finding.where) == (FormCode.UNQUOTED, "a.yaml:1:7")
    assert finding.message.startswith("$.cuda: expected text, found ")
    assert finding.hint.startswith(f'write "{written}" in quotes')


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('cuda: "12"', FormCode.VALUE, '$.cuda: expected a version such as "3.11", found "12"'),
        ("names: [[x]]", FormCode.TYPE, "$.names[0]: expected one line of text, found a list"),
        ("names: [~]", FormCode.TYPE, "$.names[0]: expected one line of text, found nothing"),
        ("names: x", FormCode.TYPE, "$.names: expected a list, found text"),
        ("inner: x", FormCode.TYPE, "$.inner: expected a map, found text"),
        ("by_name: x", FormCode.TYPE, "$.by_name: expected a map, found text"),
        ("count: -1", FormCode.TYPE, "$.count: expected a whole number, found -1"),
        ("count: '3'", FormCode.TYPE, "$.count: expected a whole number, found text"),
        ("count: 0x10", FormCode.TYPE, "$.count: expected a whole number, found 0x10"),
        ("flag: yes", FormCode.TYPE, "$.flag: expected true or false, found yes"),
        ("choice: onw", FormCode.VALUE, '$.choice: expected one or two, found "onw"'),
        ("inner: {}", FormCode.MISSING_KEY, "$.inner: the key `name` is missing"),
        ("inners: [{name: a}, {}]", FormCode.MISSING_KEY, "$.inners[1]: the key `name` is missing"),
        ("either: {}", FormCode.MISSING_KEY, "$.either: the key `name` is missing"),
        ("either: [x]", FormCode.TYPE, "$.either: expected one line of text, found a list"),
        ('by_name: {"1": x}', FormCode.VALUE, '$.by_name["1"]: expected a version such as "3.11", found "1"'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_finding_at_its_path(text, code, message):
    finding = only(text)
    assert (finding.code, finding.message) == (code, message)


def test_a_missing_key_is_shown_with_what_belongs_there():
    assert only("inner: {}").hint == "write `name:` with one line of text"


@pytest.mark.parametrize("items", ["-x", "-x\n  -y", "-x\n  - y"])
def test_a_list_without_blanks_after_its_dashes_is_answered_with_its_first_item(items):
    finding = only(f"names:\n  {items}\n")
    assert (finding.code, finding.hint) == (FormCode.TYPE, "a blank follows the dash of a list: `- x`")


@pytest.mark.parametrize("text", ["", "# nothing\n", "just text", "[a]"])
def test_a_document_that_is_no_map_lists_the_keys(text):
    finding = only(text)
    assert finding.code == FormCode.TYPE
    assert finding.hint == f"keys: {', '.join(keys_of(Outer))}"


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        (
            "count: 1\nCunt: x\n",
            "a.yaml:2:1",
            f"did you mean `count`? known keys: {', '.join(keys_of(Outer))}",
        ),
        ("inner:\n  name: x\n  form: y\n", "a.yaml:3:3", "did you mean `from`? known keys: name, from"),
        ("inners: [{name: x, nam: y}]", "a.yaml:1:20", "did you mean `name`? known keys: name, from"),
        ("either: {name: x, nam: y}", "a.yaml:1:19", "did you mean `name`? known keys: name, from"),
    ],
)
def test_an_unknown_key_has_the_nearest_known_as_hint(text, where, hint):
    finding = only(text)
    assert (finding.code, finding.where, finding.hint) == (FormCode.UNKNOWN_KEY, where, hint)


def test_every_mistake_of_a_file_is_found_at_once():
    found, findings = read('cuda: 1.0\nextra: x\ncount: a\ninners: [{nam: b}, c]\nby_name: {"1": [x]}\n')
    assert found is None
    assert [finding.where.removeprefix("a.yaml:") for finding in findings] == [
        "1:7", "2:1", "3:8", "4:10", "4:11", "4:20", "5:11", "5:16",
    ]  # fmt: skip


def test_unknown_keys_are_skipped_on_request():
    found, findings = read("extra: x\ncount: 3\ninners: [{name: a, more: {b: c}}]\n", skip_unknown=True)
    assert findings == ()
    assert (found.count, found.inners) == (3, (Inner(name="a"),))
    assert only("extra: x\ncount: a\n", skip_unknown=True).message.startswith("$.count:")


def same(inner: Inner) -> Iterator[Mistake]:
    if inner.name == inner.first:
        yield Mistake(message="the same", code="EB999", hint="differ", at=("from",))


def given(value: object, context: object) -> Iterator[Mistake]:
    if value != context:
        yield Mistake(message="elsewhere", where="b.yaml:1:1")


RULED = Annotated[Inner, FieldRule(same), RawRule(given)]


def test_a_rule_has_its_own_code_hint_and_place():
    finding = only("name: a\nfrom: a\n", RULED, context={"name": "a", "from": "a"})
    assert (finding.code, finding.where, finding.message, finding.hint) == (
        "EB999", "a.yaml:2:7", "$.from: the same", "differ",
    )  # fmt: skip


def test_a_raw_rule_is_told_with_the_mistakes_of_the_keys():
    _, findings = read("name: [a]\n", RULED)
    assert sorted((one.where, one.message) for one in findings) == [
        ("a.yaml:1:7", "$.name: expected one line of text, found a list"),
        ("b.yaml:1:1", "elsewhere"),
    ]
