"""Text (YAML written by people, JSON written by envbuilder) → plain data that knows its places, every mistake collected.

PyYAML turns `3.10` into 3.1, `no` into False and an anchor bomb into gigabytes. This module reads its events instead of
its values: it keeps the text of such a scalar, and the line and column of each value. It rejects anchors, tags and several
documents, which no file here needs, before they use memory. `models.py` turns the data into dataclasses.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.core.plain import GIVE_BY
from envbuilder.core.text.redact import has_credentials, is_secret, redacted

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 20  # maps and lists inside each other
# libyaml, where PyYAML was built with it, is ten times faster.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Final = yaml.resolver.Resolver()

Step = int | str
Location = tuple[Step, ...]


class FormCode(CodeEnum):
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
    CREDENTIALS = "EB110", "a password or a token, which everybody who gets the file or the image would have"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unquoted:
    """A scalar that YAML reads as a number, a date or a word such as `no`."""

    text: str
    kind: str


# By the names of YAML and of Python. They complete the sentence "found …".
_KINDS: Final = {
    "bool": "a truth value", "int": "an integer", "float": "a number", "str": "text", "NoneType": "nothing",
    "list": "a list", "List": "a list", "dict": "a map", "Map": "a map",
}  # fmt: skip
_OTHER: Final = "a date or a special word"


class Map(dict[str, Any]):
    """A map of a YAML file, with the places of each key and its value."""

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(values)
        self.places = dict(places)


class List(list[Any]):
    """A list of a YAML file, with the place of each item, twice."""

    def __init__(self, items: Iterable[Any], places: Iterable[tuple[str, str]]) -> None:
        super().__init__(items)
        self.places = list(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A value of a file with its place: a text, whole number, boolean, None, `Unquoted`, list or map."""

    value: Any
    where: str  # file:line:column
    path: str = "$"  # $.extensions[0].sources
    key_where: str = ""  # of its key

    @property
    def inner(self) -> Mapping[Step, "PlacedNode"]:
        """The values of a map by key, or the items of a list by index."""
        steps = range(len(self.value)) if isinstance(self.value, list) else self.value
        return {step: self._at(step) for step in steps} if isinstance(self.value, list | dict) else {}

    def get(self, key: str) -> "PlacedNode | None":
        return self._at(key) if isinstance(self.value, dict) and key in self.value else None

    def _at(self, step: Step) -> "PlacedNode":
        has_places = isinstance(self.value, Map | List)
        key, where = self.value.places[step] if has_places else (self.where, self.where)
        return PlacedNode(
            value=self.value[step], where=where, path=_inner_path(self.path, step), key_where=key
        )


def kind_of(value: object) -> str:
    return value.kind if isinstance(value, Unquoted) else _KINDS[type(value).__name__]


def text_of(value: object) -> str:
    """Return a scalar as the file has it; "" for nothing, a list or a map."""
    if isinstance(value, Unquoted):
        return value.text
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, int | float) else ""


class Mistakes:
    """A collector of mistakes. Its findings are in the order of files and lines."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def add(self, code: str, where: str, message: str, *, hint: str = "") -> None:
        self._found.append(Finding(code=code, where=where, message=message, hint=hint))

    def at(self, node: PlacedNode, code: str, message: str, *, hint: str = "") -> None:
        self.add(code, node.where, f"{node.path}: {message}", hint=hint)

    @property
    def findings(self) -> tuple[Finding, ...]:
        places = [_split_place(finding.where) for finding in self._found]
        files = {name: order for order, (name, _, _) in reversed(list(enumerate(places)))}
        order = sorted(range(len(places)), key=lambda index: (files[places[index][0]], places[index][1:]))
        return tuple(self._found[index] for index in order)


def shown(text: str) -> str:
    """Quote any text for a message of one line."""
    text = redacted(text)  # before a password is cut off from the `@` that gives it away
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...", ensure_ascii=not text.isprintable())


def load(path: Path, mistakes: Mistakes) -> PlacedNode | None:
    """Read a YAML file. Returns None after collecting why it cannot be read."""
    text = load_text(path, mistakes)
    return None if text is None else parse_yaml(text, str(path), mistakes)


def load_text(path: Path, mistakes: Mistakes, *, most: int = MAX_BYTES) -> str | None:
    """Read a UTF-8 file of at most `most` bytes. Returns None after collecting why it cannot be read."""
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        message = f"cannot be read: {(error.strerror or str(error)).lower()}"
        mistakes.add(FormCode.UNREADABLE, str(path), message, hint="name a file that you may read")
        return None
    if len(data) > most:
        mistakes.add(FormCode.UNREADABLE, str(path), f"is larger than {most >> 20} MiB")
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        mistakes.add(
            FormCode.UNREADABLE, f"{path}:{line}", "is not UTF-8 text", hint="save the file as UTF-8"
        )
        return None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        mistakes.add(FormCode.UNREADABLE, f"{path}:{line}", "expected a text file, found a NUL byte")
        return None
    return text


def parse_yaml(text: str, file: str, mistakes: Mistakes) -> PlacedNode | None:
    """Read one YAML document. Returns None after collecting why it cannot be read."""
    try:
        return _YamlReader(text, file, mistakes).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        words = ", ".join(part for part in (error.context, error.problem) if part)
        near = text.splitlines()[max(0, mark.line - 1) : mark.line + 1] if mark else []
        hint = hint_to_part(*reversed(near)) or _hint_to_syntax(words, near, mark.column if mark else 0)
        mistakes.add(FormCode.SYNTAX, where, f"is not YAML: {words}", hint=hint)
    except yaml.YAMLError as error:
        mistakes.add(FormCode.SYNTAX, file, f"is not YAML: {' '.join(str(error).split())}")
    except _StopReadingError:
        pass
    return None


def hint_to_part(*lines: str) -> str:
    """Return the repair of the first line that is a list's item without a blank after its dash, or nothing."""
    items = (re.match(r"\s*-([^\s-].*)", line) for line in lines)
    return next((f"a blank follows the dash of a list: `- {item[1].strip()}`" for item in items if item), "")


def _hint_to_syntax(words: str, near: list[str], column: int) -> str:
    """Return how to repair the last of these lines, or the one above it, "" if that is not known."""
    line = near[-1] if near else ""
    if any(re.match(r"<{7}|={7}$|>{7}", other) for other in near):
        return "git left two versions here: keep one, and remove the lines with its marks"
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "YAML is indented with blanks, not with tabs"
    if "cannot start any token" in words or "scanning an alias" in words:
        return "write this text in quotes"
    if "expected ':'" in words:
        return "an item of a list begins with `- `, and a key ends with `:` and a blank; or the line above lacks one"
    if "parsing a block" in words and line[:column].strip():
        return "a quote may have no end, in this line or above"
    if "mapping values are not allowed" in words:
        return "all keys of one map begin in the same column, and a text with `: ` stands in quotes"
    return "all lines of one list or map begin in the same column" if "parsing a block" in words else ""


def parse_json(text: str, file: str, mistakes: Mistakes) -> PlacedNode | None:
    """Read JSON. Each place is the file: no person writes this JSON."""

    def make_map(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                mistakes.add(FormCode.DUPLICATE, file, f"the key {shown(key)} is there twice in a map")
        return dict(pairs)

    try:
        return PlacedNode(value=json.loads(text, object_pairs_hook=make_map), where=file)
    except json.JSONDecodeError as error:
        mistakes.add(
            FormCode.SYNTAX, f"{file}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg.lower()}"
        )
    except (ValueError, RecursionError) as error:
        mistakes.add(FormCode.SYNTAX, file, f"is not JSON that can be read: {error}")
    return None


def check_credentials(node: PlacedNode, mistakes: Mistakes, name: str = "") -> None:
    """Report each text of a file that holds a password in a URL or a token, or is a secret by its key."""
    if isinstance(node.value, str) and is_secret(name, node.value):
        secret = shown(node.value) if has_credentials(node.value) else "this"
        mistakes.at(node, FormCode.CREDENTIALS, f"{secret} holds a password or a token", hint=GIVE_BY)
    for step, inner in node.inner.items():
        check_credentials(inner, mistakes, str(step))


class _StopReadingError(Exception):
    """Raised after a mistake that makes the rest of the file unreadable."""


class _YamlReader:
    def __init__(self, text: str, file: str, mistakes: Mistakes) -> None:
        self._loader = _Loader(text)
        self._file = file
        self._mistakes = mistakes
        self._anchors: set[str] = set()  # already reported; their aliases are not reported again

    def document(self) -> PlacedNode:
        self._loader.get_event()  # the start of the stream
        start = self._loader.get_event()
        if isinstance(start, yaml.StreamEndEvent):
            return PlacedNode(value=None, where=f"{self._file}:1:1")
        first = self._loader.get_event()
        root = PlacedNode(value=self._value(first, ()), where=self._where(first))
        self._loader.get_event()  # the end of the document
        after = self._loader.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            self._mistakes.add(
                FormCode.FEATURE, self._where(after), "a second YAML document", hint="keep one in a file"
            )
        return root

    def _where(self, event: yaml.Event) -> str:
        mark = event.start_mark
        assert mark is not None
        return f"{self._file}:{mark.line + 1}:{mark.column + 1}"

    def _value(self, event: yaml.Event, at: Location) -> Any:
        """Return the value that begins with this event."""
        assert isinstance(event, yaml.NodeEvent)
        if event.anchor is not None and event.anchor not in self._anchors:
            self._anchors.add(event.anchor)
            message = f"anchors and aliases (`{event.anchor}`) are not taken"
            self._refuse(FormCode.FEATURE, event, at, message, "write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            hint = "quote text; nothing else needs a tag"
            self._refuse(FormCode.FEATURE, event, at, f"tags (`{tag}`) are not taken", hint)
        if len(at) > MAX_DEPTH:
            self._refuse(FormCode.FEATURE, event, at, f"nested more than {MAX_DEPTH} deep")
            raise _StopReadingError
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(at)
        if isinstance(event, yaml.MappingStartEvent):
            return self._map(at)
        if isinstance(event, yaml.AliasEvent):
            return ""
        assert isinstance(event, yaml.ScalarEvent)
        return _scalar(event.value, _yaml_kind(event.value, event.implicit))

    def _list(self, at: Location) -> List:
        items = List((), ())
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*at, len(items))))
            items.places.append((self._where(event),) * 2)
        return items

    def _map(self, at: Location) -> Map:
        values = Map({}, {})
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            read = self._value(event, (*at, "?"))
            key = event.value if isinstance(event, yaml.ScalarEvent) else "?"
            inner, value_event = (*at, key), self._loader.get_event()
            value = self._value(value_event, inner)
            if isinstance(read, list | dict):
                self._refuse(FormCode.TYPE, event, inner, f"expected text as a key, found {kind_of(read)}")
            elif isinstance(read, Unquoted) and read.kind == _OTHER:
                hint = "write the keys out"
                self._refuse(FormCode.FEATURE, event, inner, "merge keys and dates are not keys", hint)
            elif key in values:
                hint = f"the first is at {values.places[key][0]}"
                self._refuse(FormCode.DUPLICATE, event, inner, "this key is there twice", hint)
            else:
                values[key] = value
                values.places[key] = (self._where(event), self._where(value_event))
        return values

    def _refuse(self, code: FormCode, event: yaml.Event, at: Location, message: str, hint: str = "") -> None:
        path = functools.reduce(_inner_path, at, "$")
        self._mistakes.add(code, self._where(event), f"{path}: {message}", hint=hint)


@functools.lru_cache(4096)
def _yaml_kind(text: str, implicit: tuple[bool, bool]) -> str:
    """Return what YAML takes a scalar for; `implicit` is that of its event. Tables repeat most of their words."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, implicit)  # type: ignore[no-untyped-call]
    return tag.rpartition(":")[2]


def _scalar(text: str, kind: str) -> str | int | bool | Unquoted | None:
    """Return the value of a scalar of the kind that YAML takes it for."""
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "int" if re.fullmatch(r"0|[1-9][0-9]{0,17}", text):
            return int(text)
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
    return Unquoted(text=text, kind=_KINDS.get(kind, _OTHER))


def _inner_path(path: str, step: Step) -> str:
    if isinstance(step, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", step):
        return f"{path}.{step}"
    return f"{path}[{shown(step) if isinstance(step, str) else step}]"


def _split_place(where: str) -> tuple[str, int, int]:
    found = re.fullmatch(r"(.*?)(?::(\d+))?(?::(\d+))?", where, re.DOTALL)
    assert found is not None
    return found[1], int(found[2] or 0), int(found[3] or 0)
