"""Text → values with places; every mistake collected, nothing dangerous grown."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import places
from envbuilder.core.places import FormCode, Mistakes, PlacedNode, Unquoted, kind_of, text_of


def read(text: str) -> tuple[PlacedNode | None, Mistakes]:
    mistakes = Mistakes()
    return places.parse_yaml(text, "a.yaml", mistakes), mistakes


def only(mistakes: Mistakes) -> tuple[str, str, str]:
    (finding,) = mistakes.findings
    return finding.code, finding.where, finding.message


def test_a_value_knows_its_path_and_its_place():
    node, mistakes = read("a:\n  - b: x\n    'c d': y\n")
    assert node is not None
    inner = node.inner["a"].inner[0]
    assert node.value == {"a": [{"b": "x", "c d": "y"}]}
    assert [(item.path, item.key_where, item.where) for item in inner.inner.values()] == [
        ("$.a[0].b", "a.yaml:2:5", "a.yaml:2:8"),
        ('$.a[0]["c d"]', "a.yaml:3:5", "a.yaml:3:12"),
    ]
    assert mistakes.findings == ()


def test_a_key_there_twice_is_refused_with_the_place_of_the_first():
    _, mistakes = read("a: x\nb: y\na: z\n")
    assert only(mistakes) == (FormCode.DUPLICATE, "a.yaml:3:1", "$.a: this key is there twice")
    assert mistakes.findings[0].hint == "the first is at a.yaml:1:1"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: &x y\nb: *x\n", "a.yaml:1:4"),
        ("a: !!str 12.4\n", "a.yaml:1:4"),
        ("a: !!python/object/apply:os.system [true]\n", "a.yaml:1:4"),
        ("a: b\n---\nc: d\n", "a.yaml:2:1"),
        ("<<: {a: b}\n", "a.yaml:1:1"),
    ],
)
def test_yaml_that_a_recipe_has_no_use_for_is_refused(text, where):
    assert only(read(text)[1])[:2] == (FormCode.FEATURE, where)


def test_a_bomb_of_anchors_costs_nothing():
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 40)]
    _, mistakes = read("\n".join(lines))
    assert {finding.code for finding in mistakes.findings} == {FormCode.FEATURE}


@pytest.mark.parametrize(
    "lines", ["  - numpy\n  -einops\n", "  - numpy\n  -einops\n  - rich\n", "-rich\n-einops\n"]
)
def test_an_item_without_a_blank_after_its_dash_is_answered_with_the_item(lines):
    _, mistakes = read(f"packages:\n{lines}apt: [git]\n")
    assert only(mistakes)[0] == FormCode.SYNTAX
    assert mistakes.findings[0].hint == "a blank follows the dash of a list: `- einops`"


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ("packages:\n  - numpy\n - rich\n", "all lines of one list or map begin in the same column"),
        (" packages:\n  - numpy\n", "all keys of one map begin in the same column, and a text with `: ` stands in quotes"),
        ("packages:\n  - numpy\n  rich\n", "an item of a list begins with `- `, and a key ends with `:` and a blank; or the line above lacks one"),
        ("packages:\n\t- numpy\n", "YAML is indented with blanks, not with tabs"),
        ("packages: [numpy\n", ""),
    ],
)  # fmt: skip
def test_a_line_in_the_wrong_column_is_answered_with_its_repair(lines: str, hint: str):
    _, mistakes = read(f"gcc: x\n{lines}apt: [git]\n")
    assert only(mistakes)[0] == FormCode.SYNTAX
    assert mistakes.findings[0].hint == hint


@pytest.mark.parametrize("depth", [30, 500, 20_000])
def test_deep_nesting_is_refused(depth):
    node, mistakes = read("[" * depth)
    assert node is None
    assert only(mistakes)[0] in {FormCode.FEATURE, FormCode.SYNTAX}


@pytest.mark.parametrize("text", ["? [a, b]\n: c\n", "? {a: b}\n: c\n"])
def test_a_key_that_is_no_text_is_refused(text):
    assert only(read(text)[1])[0] == FormCode.TYPE


@pytest.mark.parametrize("text", ["a: [b\n", "a: b: c\n", "\ta: b\n", 'a: "b\n', "a: \x01\n", "*b\n"])
def test_text_that_is_no_yaml_is_refused_with_a_place(text):
    _, mistakes = read(text)
    code, where, _ = only(mistakes)
    assert code in {FormCode.SYNTAX, FormCode.FEATURE}
    assert where.startswith("a.yaml")


def test_findings_come_in_the_order_of_files_and_lines():
    mistakes = Mistakes()
    for where in ("b.yaml:10:1", "a.yaml:2:1", "b.yaml:9:30", "b.yaml:9:4", "b.yaml"):
        mistakes.add(FormCode.VALUE, where, "")
    assert [finding.where for finding in mistakes.findings] == [
        "b.yaml",
        "b.yaml:9:4",
        "b.yaml:9:30",
        "b.yaml:10:1",
        "a.yaml:2:1",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: \xff\n", "is not UTF-8 text"),
        (b"a: b\n\0", "expected a text file, found a NUL byte"),
        (b"#" * (places.MAX_BYTES + 1), "is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_text_of_ours_is_refused(tmp_path: Path, data, message):
    path = tmp_path / "a.yaml"
    path.write_bytes(data)
    mistakes = Mistakes()
    assert places.load(path, mistakes) is None
    assert only(mistakes)[::2] == (FormCode.UNREADABLE, message)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    mistakes = Mistakes()
    assert places.load(tmp_path / "a.yaml", mistakes) is None
    assert places.load(tmp_path, mistakes) is None
    assert [finding.message for finding in mistakes.findings] == [
        "cannot be read: no such file or directory",
        "cannot be read: is a directory",
    ]


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("word", "word", "text"),
        ('"12"', "12", "text"),
        ("12", 12, "an integer"),
        ("TRUE", True, "a truth value"),
        ("~", None, "nothing"),
        ("off", Unquoted(text="off", kind="a truth value"), "a truth value"),
        ("3.10", Unquoted(text="3.10", kind="a number"), "a number"),
        ("010", Unquoted(text="010", kind="an integer"), "an integer"),  # 8 to YAML 1.1
        ("2026-11-21", Unquoted(text="2026-11-21", kind="a date or a special word"), "a date or a special word"),
    ],
)  # fmt: skip
def test_a_scalar_that_yaml_would_change_keeps_its_text(text, value, kind):
    node, _ = read(text)
    assert node is not None
    assert (node.value, kind_of(node.value)) == (value, kind)
    assert text_of(node.value).casefold() == ("" if value is None else text.strip('"').casefold())


def test_json_is_read_as_it_is_with_the_file_as_each_place():
    mistakes = Mistakes()
    node = places.parse_json('{"a": [1, "x", true, null, 1.5, {"b": 2}]}', "a.json", mistakes)
    assert node is not None
    inner = node.inner["a"].inner
    kinds = ["an integer", "text", "a truth value", "nothing", "a number", "a map"]
    assert [kind_of(item.value) for item in inner.values()] == kinds
    assert (inner[5].inner["b"].path, inner[5].inner["b"].where) == ("$.a[5].b", "a.json")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", FormCode.SYNTAX),
        ("1" * 5000, FormCode.SYNTAX),
        ("[" * 100_000, FormCode.SYNTAX),
        ('[{"a": 1, "b": 2, "a": 3}]', FormCode.DUPLICATE),
    ],
)
def test_json_with_a_mistake_is_refused(text, code):
    mistakes = Mistakes()
    places.parse_json(text, "a.json", mistakes)
    assert only(mistakes)[0] == code


def test_text_of_any_kind_is_shown_on_one_short_line():
    assert places.shown("a\nb") == '"a\\nb"'
    assert len(places.shown("x" * 1000)) == 82


@given(st.text())
def test_any_text_is_read_or_refused_but_never_breaks(text):
    node, mistakes = read(text)
    assert node is not None or mistakes.findings


_SCALARS = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), min_size=1)


@given(
    st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_SCALARS, inner), max_leaves=20)
)
def test_what_yaml_writes_is_read_back(value):
    node, mistakes = read(yaml.safe_dump(value, default_style='"', width=10_000))
    assert node is not None
    assert mistakes.findings == ()
    assert node.value == value
