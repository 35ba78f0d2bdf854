"""Text → nodes with kinds and places; every mistake collected, nothing dangerous grown."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import decode
from envbuilder.core.decode import LINE, MAJOR_MINOR, Code, Fields, Kind, Mistakes, Node


def read(text: str) -> tuple[Node | None, Mistakes]:
    mistakes = Mistakes()
    return decode.parse_yaml(text, "a.yaml", mistakes), mistakes


def fields_of(text: str, *keys: str) -> Fields:
    node, mistakes = read(text)
    assert node is not None
    return Fields(node, mistakes, required=keys)


def only(mistakes: Mistakes) -> tuple[str, str, str]:
    (finding,) = mistakes.findings
    return finding.code, finding.where, finding.message


def test_a_value_knows_its_path_and_its_place():
    node, mistakes = read("a:\n  - b: x\n    'c d': y\n")
    assert node is not None
    (entry,) = node.entries
    inner = entry.node.items[0]
    assert [(item.node.path, item.node.where) for item in inner.entries] == [
        ("$.a[0].b", "a.yaml:2:8"),
        ('$.a[0]["c d"]', "a.yaml:3:12"),
    ]
    assert mistakes.findings == ()


@pytest.mark.parametrize(
    "written", ["12.4", "3.10", "12", "no", "1:30", "2026-11-21", "0x10", "1.5e+3", "on"]
)
def test_an_unquoted_version_is_told_to_be_quoted_as_it_was_written(written):
    fields = fields_of(f"cuda: {written}\n", "cuda")
    assert fields.text("cuda", MAJOR_MINOR) == ""
    (finding,) = fields.mistakes.findings
    assert finding.code == Code.UNQUOTED
    assert finding.where == "a.yaml:1:7"
    assert finding.message.startswith("$.cuda: expected text, found ")
    assert finding.hint.startswith(f'write "{written}" in quotes')


def test_a_quoted_version_keeps_its_last_zero():
    assert fields_of('python: "3.10"', "python").text("python", MAJOR_MINOR) == "3.10"


def test_text_of_the_wrong_shape_is_refused_with_what_was_expected():
    fields = fields_of('cuda: "12"', "cuda")
    assert fields.text("cuda", MAJOR_MINOR) == ""
    assert only(fields.mistakes) == (
        Code.VALUE,
        "a.yaml:1:7",
        '$.cuda: expected a version such as "3.11", found "12"',
    )


@pytest.mark.parametrize(
    ("value", "found"), [("[x]", "a list"), ("{x: y}", "a map"), ("", "nothing"), ("~", "nothing")]
)
def test_something_else_where_text_is_wanted_is_refused(value, found):
    fields = fields_of(f"a: {value}", "a")
    assert fields.text("a") == ""
    assert only(fields.mistakes)[::2] == (Code.TYPE, f"$.a: expected one line of text, found {found}")


def test_text_where_a_list_or_a_map_is_wanted_is_refused():
    fields = fields_of("a: x\nb: y", "a", "b")
    assert fields.texts("a") == ()
    assert fields.entries("b") == ()
    assert [finding.message for finding in fields.mistakes.findings] == [
        "$.a: expected a list, found text",
        "$.b: expected a map, found text",
    ]


def test_a_whole_number_is_read_and_nothing_else_passes_for_one():
    fields = fields_of("a: 12\nb: -1\nc: '3'\nd: 0x10\n", "a", "b", "c", "d")
    assert [fields.integer(key) for key in "abcde"] == [12, 0, 0, 0, 0]
    assert [finding.message for finding in fields.mistakes.findings] == [
        "$.b: expected a whole number, found -1",
        "$.c: expected a whole number, found text",
        "$.d: expected a whole number, found 0x10",
    ]


def test_keys_that_are_not_there_read_as_empty():
    fields = fields_of("{}")
    assert "a" not in fields
    assert (fields.text("a"), fields.texts("a"), fields.items("a"), fields.entries("a")) == ("", (), (), ())
    assert fields.mistakes.findings == ()


def test_an_unknown_key_is_refused_where_it_stands_with_the_nearest_known():
    node, mistakes = read("base: x\nPytorc: y\n")
    assert node is not None
    Fields(node, mistakes, optional=("base", "pytorch"))
    (finding,) = mistakes.findings
    assert (finding.code, finding.where) == (Code.UNKNOWN_KEY, "a.yaml:2:1")
    assert finding.hint == "did you mean `pytorch`? known keys: base, pytorch"


def test_a_missing_key_is_refused_at_its_map():
    assert only(fields_of("a: b", "a", "c").mistakes) == (
        Code.MISSING_KEY,
        "a.yaml:1:1",
        "$: the key `c` is missing",
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "just text", "[a]"])
def test_a_document_that_is_no_map_is_refused(text):
    assert only(fields_of(text, "a").mistakes)[0] == Code.TYPE


def test_a_key_there_twice_is_refused_with_the_place_of_the_first():
    _, mistakes = read("a: x\nb: y\na: z\n")
    assert only(mistakes) == (Code.DUPLICATE, "a.yaml:3:1", "$.a: this key is there twice")
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
    assert only(read(text)[1])[:2] == (Code.FEATURE, where)


def test_a_bomb_of_anchors_costs_nothing():
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 40)]
    _, mistakes = read("\n".join(lines))
    assert {finding.code for finding in mistakes.findings} == {Code.FEATURE}


@pytest.mark.parametrize("depth", [30, 500, 20_000])
def test_deep_nesting_is_refused(depth):
    node, mistakes = read("[" * depth)
    assert node is None
    assert only(mistakes)[0] in {Code.FEATURE, Code.SYNTAX}


@pytest.mark.parametrize("text", ["? [a, b]\n: c\n", "? {a: b}\n: c\n"])
def test_a_key_that_is_no_text_is_refused(text):
    assert only(read(text)[1])[0] == Code.TYPE


@pytest.mark.parametrize("text", ["a: [b\n", "a: b: c\n", "\ta: b\n", 'a: "b\n', "a: \x01\n", "*b\n"])
def test_text_that_is_no_yaml_is_refused_with_a_place(text):
    _, mistakes = read(text)
    code, where, _ = only(mistakes)
    assert code in {Code.SYNTAX, Code.FEATURE}
    assert where.startswith("a.yaml")


def test_findings_come_in_the_order_of_files_and_lines():
    mistakes = Mistakes()
    for where in ("b.yaml:10:1", "a.yaml:2:1", "b.yaml:9:30", "b.yaml:9:4", "b.yaml"):
        mistakes.add(Code.VALUE, where, "")
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
        (b"a: b\n\0", "holds a NUL byte, so it is not a text file"),
        (b"#" * (decode.MAX_BYTES + 1), "is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_text_of_ours_is_refused(tmp_path: Path, data, message):
    path = tmp_path / "a.yaml"
    path.write_bytes(data)
    mistakes = Mistakes()
    assert decode.load(path, mistakes) is None
    assert only(mistakes)[::2] == (Code.UNREADABLE, message)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    mistakes = Mistakes()
    assert decode.load(tmp_path / "a.yaml", mistakes) is None
    assert decode.load(tmp_path, mistakes) is None
    assert [finding.message for finding in mistakes.findings] == [
        "cannot be read: no such file or directory",
        "cannot be read: is a directory",
    ]


def test_json_gives_the_same_nodes():
    mistakes = Mistakes()
    node = decode.parse_json('{"a": [1, "x", true, null, 1.5, {"b": 2}]}', "a.json", mistakes)
    assert node is not None
    items = node.entries[0].node.items
    assert [item.kind for item in items] == [
        Kind.INTEGER,
        Kind.TEXT,
        Kind.BOOLEAN,
        Kind.NOTHING,
        Kind.NUMBER,
        Kind.MAP,
    ]
    assert items[5].entries[0].node.path == "$.a[5].b"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", Code.SYNTAX),
        ("NaN", Code.SYNTAX),
        ("1" * 5000, Code.SYNTAX),
        ("[" * 100_000, Code.SYNTAX),
        ("[" * 30 + "]" * 30, Code.FEATURE),
        ('{"a": 1, "a": 2}', Code.DUPLICATE),
    ],
)
def test_json_with_a_mistake_is_refused(text, code):
    mistakes = Mistakes()
    decode.parse_json(text, "a.json", mistakes)
    assert only(mistakes)[0] == code


def test_text_of_any_kind_is_shown_on_one_short_line():
    assert decode.shown("a\nb") == '"a\\nb"'
    assert len(decode.shown("x" * 1000)) == 82


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
    assert plain(node) == value


def plain(node: Node) -> object:
    if node.kind is Kind.LIST:
        return [plain(item) for item in node.items]
    if node.kind is Kind.MAP:
        return {entry.key: plain(entry.node) for entry in node.entries}
    return decode.read_text(node, Mistakes(), LINE) or node.text
