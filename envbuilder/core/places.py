"""Text (YAML written by people, JSON written by envbuilder) → nodes that know their place, every mistake collected.

PyYAML turns `3.10` into 3.1, `no` into False and an anchor bomb into gigabytes. This module reads its events instead of
its values: it keeps the text of each scalar with its line and column. It rejects anchors, tags and several documents, which no file
here needs, before they use memory. `models.py` turns nodes into dataclasses.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml

from envbuilder.core.findings import CodeEnum, Finding

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 20  # maps and lists inside each other
# libyaml, where PyYAML was built with it, is ten times faster.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Code(CodeEnum):
    """Mistakes of a file's form; `recipe` and `check` have codes of their own."""

    UNREADABLE = "EB101", "a file that is not there, too large or not UTF-8"
    SYNTAX = "EB102", "it is not YAML"
    FEATURE = "EB103", "YAML that is not taken: anchors, tags, several documents, deep nesting"
    DUPLICATE = "EB104", "a key that is given twice"
    UNKNOWN_KEY = "EB105", "with the nearest that is known"
    MISSING_KEY = "EB106", "a key that every file of the kind has"
    TYPE = "EB107", "a list, map or text where another of these is wanted"
    UNQUOTED = "EB108", "a number or a word such as `no` where text is wanted"
    VALUE = "EB109", "a text of another shape than the key takes"


class Kind(StrEnum):
    """The kind of a value; it completes the sentence "found …"."""

    TEXT = "text"
    INTEGER = "an integer"
    NUMBER = "a number"
    BOOLEAN = "a truth value"
    NOTHING = "nothing"
    OTHER = "a date or a special word"
    LIST = "a list"
    MAP = "a map"


_KINDS: Final = {
    "str": Kind.TEXT,
    "int": Kind.INTEGER,
    "float": Kind.NUMBER,
    "bool": Kind.BOOLEAN,
    "null": Kind.NOTHING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    key: str
    where: str  # of the key
    node: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value with its place: `text` for scalars, `items` for lists, `entries` for maps."""

    path: str  # $.extensions[0].sources
    where: str  # file:line:column
    kind: Kind
    text: str = ""
    items: tuple["Node", ...] = ()
    entries: tuple[Entry, ...] = ()

    def get(self, key: str) -> "Node | None":
        return next((entry.node for entry in self.entries if entry.key == key), None)


class Mistakes:
    """A collector of mistakes. Its findings are in the order of files and lines."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def add(self, code: str, where: str, message: str, *, hint: str = "") -> None:
        self._found.append(Finding(code=code, where=where, message=message, hint=hint))

    def at(self, node: Node, code: str, message: str, *, hint: str = "") -> None:
        self.add(code, node.where, f"{node.path}: {message}", hint=hint)

    @property
    def findings(self) -> tuple[Finding, ...]:
        places = [_split_place(finding.where) for finding in self._found]
        files = {name: order for order, (name, _, _) in reversed(list(enumerate(places)))}
        order = sorted(range(len(places)), key=lambda index: (files[places[index][0]], places[index][1:]))
        return tuple(self._found[index] for index in order)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`? " or nothing; letter case does not count."""
    spelling = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), spelling, n=1)
    return f"did you mean `{spelling[found[0]]}`? " if found else ""


def shown(text: str) -> str:
    """Quote any text for a message of one line."""
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...", ensure_ascii=not text.isprintable())


def load(path: Path, mistakes: Mistakes) -> Node | None:
    """Read a YAML file. Returns None after collecting why it cannot be read."""
    text = load_text(path, mistakes)
    return None if text is None else parse_yaml(text, str(path), mistakes)


def load_text(path: Path, mistakes: Mistakes) -> str | None:
    """Read a UTF-8 file of at most MAX_BYTES. Returns None after collecting why it cannot be read."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        mistakes.add(Code.UNREADABLE, str(path), f"cannot be read: {(error.strerror or str(error)).lower()}")
        return None
    if len(data) > MAX_BYTES:
        mistakes.add(Code.UNREADABLE, str(path), f"is larger than {MAX_BYTES >> 20} MiB")
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        mistakes.add(Code.UNREADABLE, f"{path}:{line}", "is not UTF-8 text", hint="save the file as UTF-8")
        return None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        mistakes.add(Code.UNREADABLE, f"{path}:{line}", "holds a NUL byte, so it is not a text file")
        return None
    return text


def parse_yaml(text: str, file: str, mistakes: Mistakes) -> Node | None:
    """Turn one YAML document into nodes. Returns None after collecting why it cannot be read."""
    try:
        return _YamlReader(text, file, mistakes).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        words = ", ".join(part for part in (error.context, error.problem) if part)
        mistakes.add(Code.SYNTAX, where, f"is not YAML: {words}")
    except yaml.YAMLError as error:
        mistakes.add(Code.SYNTAX, file, f"is not YAML: {' '.join(str(error).split())}")
    except _StopReadingError:
        pass
    return None


def parse_json(text: str, file: str, mistakes: Mistakes) -> Node | None:
    """Turn JSON into the same nodes. Each place is the file: no person writes this JSON."""
    try:
        value: object = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
        return _json_node(value, "$", file, mistakes, 0)
    except json.JSONDecodeError as error:
        mistakes.add(Code.SYNTAX, f"{file}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg.lower()}")
    except (ValueError, RecursionError) as error:
        mistakes.add(Code.SYNTAX, file, f"is not JSON that can be read: {error}")
    except _StopReadingError:
        pass
    return None


class _StopReadingError(Exception):
    """Raised after a mistake that makes the rest of the file unreadable."""


class _Pairs(tuple[tuple[str, object], ...]):
    """A JSON object with its duplicate keys."""

    __slots__ = ()


class _YamlReader:
    def __init__(self, text: str, file: str, mistakes: Mistakes) -> None:
        self._loader = _Loader(text)
        self._file = file
        self._mistakes = mistakes
        self._anchors: set[str] = set()  # already reported; their aliases are not reported again

    def document(self) -> Node:
        self._loader.get_event()  # the start of the stream
        start = self._loader.get_event()
        if isinstance(start, yaml.StreamEndEvent):
            return Node(path="$", where=f"{self._file}:1:1", kind=Kind.NOTHING)
        root = self._node(self._loader.get_event(), "$", 0)
        self._loader.get_event()  # the end of the document
        after = self._loader.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            self._mistakes.add(
                Code.FEATURE, self._where(after), "a second YAML document", hint="keep one in a file"
            )
        return root

    def _where(self, event: yaml.Event) -> str:
        mark = event.start_mark
        assert mark is not None
        return f"{self._file}:{mark.line + 1}:{mark.column + 1}"

    def _node(self, event: yaml.Event, path: str, depth: int) -> Node:
        where = self._where(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                self._refuse(
                    where, f"{path}: aliases (`*{event.anchor}`) are not taken", "write the value out"
                )
            return Node(path=path, where=where, kind=Kind.TEXT)
        assert isinstance(event, yaml.NodeEvent)
        if event.anchor is not None:
            self._anchors.add(event.anchor)
            self._refuse(where, f"{path}: anchors (`&{event.anchor}`) are not taken", "write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            self._refuse(
                where, f"{path}: tags (`{tag}`) are not taken", "quote text; nothing else needs a tag"
            )
        if depth > MAX_DEPTH:
            self._refuse(where, f"{path}: nested more than {MAX_DEPTH} deep", "")
            raise _StopReadingError
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path, where, depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._map(path, where, depth)
        assert isinstance(event, yaml.ScalarEvent)
        resolved = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit).rpartition(":")[2]
        return Node(path=path, where=where, kind=_KINDS.get(resolved, Kind.OTHER), text=event.value)

    def _list(self, path: str, where: str, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._node(event, f"{path}[{len(items)}]", depth + 1))
        return Node(path=path, where=where, kind=Kind.LIST, items=tuple(items))

    def _map(self, path: str, where: str, depth: int) -> Node:
        entries: dict[str, Entry] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._node(event, f"{path}.?", depth + 1)
            inner = _inner_path(path, key.text)
            value = self._node(self._loader.get_event(), inner, depth + 1)
            if key.kind in (Kind.LIST, Kind.MAP):
                self._mistakes.at(key, Code.TYPE, f"expected text as a key, found {key.kind.value}")
            elif key.kind is Kind.OTHER:
                self._refuse(key.where, f"{inner}: merge keys and dates are not keys", "write the keys out")
            elif key.text in entries:
                _refuse_double(self._mistakes, key.where, inner, entries[key.text].where)
            else:
                entries[key.text] = Entry(key=key.text, where=key.where, node=value)
        return Node(path=path, where=where, kind=Kind.MAP, entries=tuple(entries.values()))

    def _refuse(self, where: str, message: str, hint: str) -> None:
        self._mistakes.add(Code.FEATURE, where, message, hint=hint)


def _json_node(value: object, path: str, file: str, mistakes: Mistakes, depth: int) -> Node:
    make: Callable[..., Node] = Node
    if depth > MAX_DEPTH:
        mistakes.add(Code.FEATURE, file, f"{path}: nested more than {MAX_DEPTH} deep")
        raise _StopReadingError
    if isinstance(value, _Pairs):
        entries: dict[str, Entry] = {}
        for key, inner_value in value:
            inner = _inner_path(path, key)
            if key in entries:
                _refuse_double(mistakes, file, inner, file)
            node = _json_node(inner_value, inner, file, mistakes, depth + 1)
            entries[key] = Entry(key=key, where=file, node=node)
        return make(path=path, where=file, kind=Kind.MAP, entries=tuple(entries.values()))
    if isinstance(value, list):
        items = tuple(
            _json_node(item, f"{path}[{index}]", file, mistakes, depth + 1)
            for index, item in enumerate(value)
        )
        return make(path=path, where=file, kind=Kind.LIST, items=items)
    kinds = {str: Kind.TEXT, bool: Kind.BOOLEAN, int: Kind.INTEGER, float: Kind.NUMBER}
    return make(path=path, where=file, kind=kinds.get(type(value), Kind.NOTHING), text=str(value))


def _refuse_double(mistakes: Mistakes, where: str, path: str, first: str) -> None:
    mistakes.add(Code.DUPLICATE, where, f"{path}: this key is there twice", hint=f"the first is at {first}")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _inner_path(path: str, key: str) -> str:
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key) else f"{path}[{shown(key)}]"


def _split_place(where: str) -> tuple[str, int, int]:
    found = re.fullmatch(r"(.*?)(?::(\d+))?(?::(\d+))?", where, re.DOTALL)
    assert found is not None
    return found[1], int(found[2] or 0), int(found[3] or 0)
