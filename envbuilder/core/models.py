"""Nodes → dataclasses, by pydantic: each of its errors becomes a finding with its place and the nearest key.

A dataclass describes a file: its fields are the keys, `Shape` is the pattern of a text, and `Rule` and `RawRule` compare
several keys. `read_node` reports every mistake of a file at once.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    GetCoreSchemaHandler,
    Strict,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from envbuilder.core.places import Code, Entry, Kind, Mistakes, Node, nearest, shown

T = TypeVar("T")
Location = tuple[int | str, ...]

KEY: Final = "[key]"  # pydantic's last step to the key of a map
LIST_HINT: Final = "a list is written as [one, two], or with one `- ` line each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unquoted:
    """A scalar that YAML reads as a number, a date or a word such as `no`."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The pattern of a text. `expected` completes the sentence "expected …"."""

    pattern: str
    expected: str
    hint: str = ""

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, object]:
        return self.json_schema()

    def json_schema(self) -> dict[str, object]:
        """Return the schema of such a text; `patternErrorMessage` is what editors show, in the loader's words."""
        words = f"expected {self.expected}" + (f" ({self.hint})" if self.hint else "")
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "patternErrorMessage": words}

    def check(self, value: object) -> str:
        """Return the text; raises PydanticCustomError for a value that is no text of this shape."""
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        raise PydanticCustomError(
            "shape", "expected {expected}", {"expected": self.expected, "hint": self.hint}
        )


LINE: Final = Shape(pattern=r"(?=.*\S)[^\x00-\x1f\x7f]+", expected="one line of text")
LINE_OR_EMPTY: Final = Shape(pattern=r"[^\x00-\x1f\x7f]*", expected="one line of text")
DATE: Final = Shape(pattern=r"[0-9]{4}-[0-9]{2}-[0-9]{2}", expected='a date such as "2026-11-21"')
MAJOR_MINOR: Final = Shape(
    pattern=r"[0-9]+\.[0-9]+", expected='a version such as "3.11"', hint="two numbers with a dot"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake that a rule found. `at` is the path from the value of the rule to the mistake."""

    message: str
    code: str = Code.VALUE
    hint: str = ""
    at: Location = ()
    where: str = ""  # instead of `at`: a place in another file

    def error(self) -> PydanticCustomError:
        context = {"message": self.message, "code": self.code, "hint": self.hint, "where": self.where}
        return PydanticCustomError("mistake", "{message}", context)


@dataclass(frozen=True, slots=True)
class Rule:
    """Metadata of a type: `check` judges the dataclass, after each of its values is valid."""

    check: Callable[[Any], Iterable[Mistake]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._run, handler(source))

    def _run(self, value: T) -> T:
        raise_mistakes(self.check(value))
        return value


@dataclass(frozen=True, slots=True)
class RawRule:
    """Metadata of a type: `check` judges the value of the file, so that its mistakes come with those of the parts.

    `check` also gets the context of `read_node`.
    """

    check: Callable[[Any, Any], Iterable[Mistake]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._run, handler(source))

    def _run(
        self, value: object, read: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        errors = _details(self.check(value, info.context))
        found = None
        try:
            found = read(value)
        except ValidationError as error:
            errors += [
                InitErrorDetails(
                    type=PydanticCustomError(one["type"], one["msg"], one.get("ctx")),
                    loc=one["loc"],
                    input=one["input"],
                )
                for one in error.errors(include_url=False)
            ]
        if errors:
            raise ValidationError.from_exception_data("rule", errors)
        return found


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Metadata of a type: the file holds `kind`, and `make` turns that into the value."""

    kind: Any
    make: Callable[[Any], object] = lambda value: value

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.make, handler.generate_schema(self.kind))


def raise_mistakes(mistakes: Iterable[Mistake]) -> None:
    """Raise what pydantic collects from a validator, if there are any mistakes."""
    if errors := _details(mistakes):
        raise ValidationError.from_exception_data("rule", errors)


def _details(mistakes: Iterable[Mistake]) -> list[InitErrorDetails]:
    return [InitErrorDetails(type=one.error(), loc=one.at, input=None) for one in mistakes]


Line = Annotated[str, LINE]
LineOrEmpty = Annotated[str, LINE_OR_EMPTY]
Date = Annotated[str, DATE]
MajorMinor = Annotated[str, MAJOR_MINOR]
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise Mistake(message=f"`{text}` is no regular expression: {error}").error() from error


Pattern = Annotated[re.Pattern[str], ReadAs(Line, _compile)]


def plain(node: Node) -> Any:
    """Return a node's value: text, whole number, boolean, None, list or map; `Unquoted` for another scalar."""
    match node.kind:
        case Kind.MAP:
            return {entry.key: plain(entry.node) for entry in node.entries}
        case Kind.LIST:
            return [plain(item) for item in node.items]
        case Kind.TEXT:
            return node.text
        case Kind.NOTHING:
            return None
        case Kind.INTEGER if re.fullmatch(r"[0-9]{1,18}", node.text):
            return int(node.text)
        case Kind.BOOLEAN if node.text.lower() in ("true", "false"):
            return node.text.lower() == "true"
        case _:
            return Unquoted(text=node.text)


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of a type, which takes milliseconds to make."""
    return TypeAdapter(kind)


def read_node(
    kind: type[T], node: Node, mistakes: Mistakes, *, context: object = None, skip_unknown: bool = False
) -> T | None:
    """Read a node as a dataclass or another type of pydantic. Returns None after collecting every mistake.

    Validators get `context` as pydantic's `ValidationInfo.context`. With `skip_unknown` a key that the dataclass does not
    have is no mistake.
    """
    data = plain(node)
    try:
        found: T = adapter(cast("Any", kind)).validate_python(
            data, context=context, extra="ignore" if skip_unknown else "forbid"
        )
    except ValidationError as error:
        errors = error.errors(include_url=False)
    else:
        return found
    for one in sorted(
        errors, key=lambda one: (one["type"] != "unexpected_keyword_argument", one["type"] != "missing")
    ):
        _report(_Place.find(kind, node, one["loc"]), one["type"], one.get("ctx", {}), mistakes)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a pydantic error. Its steps also name union members, which a file does not have."""

    parent: Any  # the type of what holds it
    kind: Any  # the type that is read there
    node: Node
    entry: Entry | None  # that the node is the value of
    last: int | str  # step

    @classmethod
    def find(cls, kind: Any, node: Node, location: Location) -> "_Place":
        parent, entry = kind, None
        for step in location:
            parent = kind
            if isinstance(step, int) and step < len(node.items):
                kind, node, entry = _inside(kind, step), node.items[step], None
            elif found := next((one for one in node.entries if one.key == step), None):
                kind, node, entry = _inside(kind, step), found.node, found
            else:
                kind = _inside(kind, step)
        return cls(parent=parent, kind=kind, node=node, entry=entry, last=location[-1] if location else "")


def _bare(kind: Any) -> Any:
    """Return the type in the file, without metadata and without `| None`."""
    if get_origin(kind) is Annotated:
        bare, *metadata = get_args(kind)
        return _bare(next((one.kind for one in metadata if isinstance(one, ReadAs)), bare))
    members = [one for one in get_args(kind) if one is not types.NoneType]
    if get_origin(kind) in (Union, types.UnionType) and len(members) == 1:
        return _bare(members[0])
    return kind


def _inside(kind: Any, step: int | str) -> Any:
    """Return the type of an item, of a key's value, or of the union's member with this tag; None if there is none."""
    bare = _bare(kind)
    if dataclasses.is_dataclass(bare):
        return _fields(cast("Any", bare)).get(str(step))
    members = [one for one in get_args(bare) if one not in (Ellipsis, types.NoneType)]
    if get_origin(bare) in (Union, types.UnionType):
        tagged = (one for one in members if Tag(str(step)) in get_args(one)[1:])
        return next(tagged, _inside(members[0], step))
    return members[-1] if members else None


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the keys of a dataclass in a file, each with its type."""
    found = {}
    names = {one.name for one in dataclasses.fields(kind)}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in names:
            aliases = (one.alias for one in get_args(hint)[1:] if isinstance(one, FieldInfo) and one.alias)
            found[next(aliases, name)] = hint
    return found


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the keys of a dataclass in a file, in the order of its fields."""
    bare = _bare(kind)
    return tuple(_fields(cast("Any", bare))) if dataclasses.is_dataclass(bare) else ()


def _report(place: _Place, error: str, context: Mapping[str, Any], mistakes: Mistakes) -> None:
    node, entry = place.node, place.entry
    match error:
        case "mistake":
            where = context["where"] or (entry.where if entry and place.last == KEY else node.where)
            message = context["message"] if context["where"] else f"{node.path}: {context['message']}"
            mistakes.add(context["code"], where, message, hint=context["hint"])
        case "shape" if place.last == KEY and entry:
            key = Node(path=node.path, where=entry.where, kind=Kind.TEXT, text=entry.key)
            _report_text(key, context["expected"], context["hint"], mistakes)
        case "shape":
            _report_text(node, context["expected"], context["hint"], mistakes)
        case "missing":
            mistakes.at(node, Code.MISSING_KEY, f"the key `{place.last}` is missing")
        case "unexpected_keyword_argument":  # a key that the dataclass does not have
            known = keys_of(place.parent)
            hint = f"{nearest(str(place.last), known)}known keys: {', '.join(known)}"
            message = f"{node.path}: unknown key `{place.last}`"
            mistakes.add(Code.UNKNOWN_KEY, entry.where if entry else node.where, message, hint=hint)
        case "dataclass_type" | "dict_type":
            keys = ", ".join(keys_of(place.kind))
            _report_kind(node, "a map", f"keys: {keys}" if keys else "", mistakes)
        case "tuple_type":
            _report_kind(node, "a list", LIST_HINT, mistakes)
        case "bool_type":
            found = node.text or node.kind.value
            mistakes.at(node, Code.TYPE, f"expected true or false, found {found}")
        case "int_type":
            found = node.text if node.kind is Kind.INTEGER else node.kind.value
            mistakes.at(node, Code.TYPE, f"expected a whole number, found {found}")
        case "enum" | "literal_error":
            choices = str(context["expected"])
            hint = nearest(node.text, re.findall("'([^']+)'", choices)).strip()
            _report_text(node, choices.replace("'", ""), hint, mistakes)
        case _:
            raise AssertionError(f"pydantic reports {error} at {node.path}, for which there is no sentence")


def _report_kind(node: Node, expected: str, hint: str, mistakes: Mistakes) -> None:
    mistakes.at(node, Code.TYPE, f"expected {expected}, found {node.kind.value}", hint=hint)


def _report_text(node: Node, expected: str, hint: str, mistakes: Mistakes) -> None:
    if node.kind in (Kind.LIST, Kind.MAP, Kind.NOTHING):
        _report_kind(node, expected, hint, mistakes)
    elif node.kind is not Kind.TEXT:
        mistakes.at(
            node,
            Code.UNQUOTED,
            f"expected text, found {node.kind.value} ({node.text})",
            hint=f'write "{node.text}" in quotes: without them YAML reads a value that is not text',
        )
    else:
        mistakes.at(node, Code.VALUE, f"expected {expected}, found {shown(node.text)}", hint=hint)
