"""Data of files → dataclasses, by pydantic: each of its errors becomes a finding with its place and the nearest key.

A dataclass describes a file: its fields are the keys, `Shape` is the pattern of a text, and `FieldRule` and `RawRule` compare
several keys. `read_node` reports every mistake of a file at once.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import Field, GetCoreSchemaHandler, Strict, Tag, TypeAdapter, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from envbuilder.core.places import (
    FormCode,
    Location,
    Mistakes,
    PlacedNode,
    hint_to_part,
    kind_of,
    shown,
    text_of,
)
from envbuilder.core.spelling import nearest

T = TypeVar("T")

KEY: Final = "[key]"  # pydantic's last step to the key of a map
LIST_HINT: Final = "a list is written as [one, two], or with one `- ` line each"


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern. `re.fullmatch` looks for it much longer, and tables hold thousands of texts."""
    return re.compile(text)


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
        if isinstance(value, str) and _pattern(self.pattern).fullmatch(value):
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
    code: str = FormCode.VALUE
    hint: str = ""
    at: Location = ()
    where: str = ""  # instead of `at`: a place in another file

    def error(self) -> PydanticCustomError:
        context = {"message": self.message, "code": self.code, "hint": self.hint, "where": self.where}
        return PydanticCustomError("mistake", "{message}", context)


@dataclass(frozen=True, slots=True)
class FieldRule:
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
        mistakes = _details(self.check(value, info.context))
        try:
            result = read(value)
        except ValidationError as error:
            for part in error.errors(include_url=False):
                kind = PydanticCustomError(part["type"], part["msg"], part.get("ctx"))
                mistakes.append(InitErrorDetails(type=kind, loc=part["loc"], input=part["input"]))
            result = None
        if mistakes:
            raise ValidationError.from_exception_data("rule", mistakes)
        return result


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Metadata of a type: the file holds `kind`, and `make` turns that into the value."""

    kind: Any
    make: Callable[[Any], object] = lambda value: value

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.make, handler.generate_schema(self.kind))


def raise_mistakes(mistakes: Iterable[Mistake]) -> None:
    if errors := _details(mistakes):
        raise ValidationError.from_exception_data("rule", errors)


def _details(mistakes: Iterable[Mistake]) -> list[InitErrorDetails]:
    return [InitErrorDetails(type=mistake.error(), loc=mistake.at, input=None) for mistake in mistakes]


Line = Annotated[str, LINE]
LineOrEmpty = Annotated[str, LINE_OR_EMPTY]
Date = Annotated[str, DATE]
MajorMinor = Annotated[str, MAJOR_MINOR]
Whole = Annotated[int, Strict(), Field(ge=0, lt=10**18)]
Seconds = Annotated[int, Strict(), Field(ge=0, lt=1 << 32)]  # since 1970: squashfs and tar keep no later time
Flag = Annotated[bool, Strict()]


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of a type, which takes milliseconds to make."""
    return TypeAdapter(kind)


def read_node(
    kind: type[T], node: PlacedNode, mistakes: Mistakes, *, context: object = None, skip_unknown: bool = False
) -> T | None:
    """Read a node as a dataclass or another type of pydantic. Returns None after collecting every mistake.

    Validators get `context` as pydantic's `ValidationInfo.context`. With `skip_unknown` a key that the dataclass does not
    have is no mistake.
    """
    extra: Literal["ignore", "forbid"] = "ignore" if skip_unknown else "forbid"
    try:
        return cast("T", adapter(cast("Any", kind)).validate_python(node.value, context=context, extra=extra))
    except ValidationError as error:
        errors = error.errors(include_url=False)
    listed: set[tuple[str, ...]] = set()  # lists of keys, each of which comes once
    first = ("unexpected_keyword_argument", "missing")
    for part in sorted(
        errors, key=lambda part: first.index(part["type"]) if part["type"] in first else len(first)
    ):
        _report(kind, node, part, mistakes, listed)
    return None


def _bare(kind: Any) -> Any:
    """Return the type in the file, without metadata and without `| None`."""
    if get_origin(kind) is Annotated:
        bare, *metadata = get_args(kind)
        return _bare(next((data.kind for data in metadata if isinstance(data, ReadAs)), bare))
    members = [member for member in get_args(kind) if member is not types.NoneType]
    if get_origin(kind) in (Union, types.UnionType) and len(members) == 1:
        return _bare(members[0])
    return kind


def _inside(kind: Any, step: int | str) -> Any:
    """Return the type of an item, of a key's value, or of the union's member with this tag; None if there is none."""
    bare = _bare(kind)
    if dataclasses.is_dataclass(bare):
        return _fields(cast("Any", bare)).get(str(step))
    members = [member for member in get_args(bare) if member not in (Ellipsis, types.NoneType)]
    if get_origin(bare) in (Union, types.UnionType):
        tagged = (member for member in members if Tag(str(step)) in get_args(member)[1:])
        return next(tagged, _inside(members[0], step))
    return members[-1] if members else None


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the keys of a dataclass in a file, each with its type."""
    hints, keys = get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        aliases = (data.alias for data in get_args(hint)[1:] if isinstance(data, FieldInfo) and data.alias)
        keys[next(aliases, field.name)] = hint
    return keys


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the keys of a dataclass in a file, in the order of its fields."""
    bare = _bare(kind)
    return tuple(_fields(cast("Any", bare))) if dataclasses.is_dataclass(bare) else ()


def _report(
    kind: Any, node: PlacedNode, error: ErrorDetails, mistakes: Mistakes, listed: set[tuple[str, ...]]
) -> None:
    """Report an error of pydantic. Its steps also name union members, which a file does not have."""
    location, context = error["loc"], error.get("ctx", {})
    parent = kind
    for step in location:
        parent, kind, node = kind, _inside(kind, step), node.inner.get(step, node)
    last = location[-1] if location else ""
    if last == KEY:
        node = replace(node, value=location[-2], where=node.key_where)
    match error["type"]:
        case "mistake" if context["where"]:
            mistakes.add(context["code"], context["where"], context["message"], hint=context["hint"])
        case "mistake":
            mistakes.at(node, context["code"], context["message"], hint=context["hint"])
        case "shape":
            _report_text(node, context["expected"], context["hint"], mistakes)
        case "missing":
            shape = next((data for data in get_args(kind)[1:] if isinstance(data, Shape)), None)
            hint = f"write `{last}:` with {shape.expected}" if shape else ""
            mistakes.at(node, FormCode.MISSING_KEY, f"the key `{last}` is missing", hint=hint)
        case "unexpected_keyword_argument":  # a key that the dataclass does not have
            known = keys_of(parent)
            listing = "" if known in listed else f"known keys: {', '.join(known)}"
            listed.add(known)
            hint = f"{nearest(str(last), known)}{listing}".strip()
            message = f"{node.path}: unknown key `{last}`"
            mistakes.add(FormCode.UNKNOWN_KEY, node.key_where or node.where, message, hint=hint)
        case "dataclass_type" | "dict_type":
            keys = ", ".join(keys_of(kind))
            _report_kind(node, "a map", f"keys: {keys}" if keys else "", mistakes)
        case "tuple_type":
            items = text_of(node.value).split()  # YAML joins the lines of a text
            is_below = node.key_where.rpartition(":")[0] != node.where.rpartition(":")[0]
            hint = hint_to_part(*items[:1]) if is_below else ""
            _report_kind(node, "a list", hint or LIST_HINT, mistakes)
        case "bool_type":
            _report_kind(node, "true or false", "", mistakes, text_of(node.value))
        case "int_type" | "greater_than_equal" | "less_than":
            number = text_of(node.value) if kind_of(node.value) == "an integer" else ""
            below = f" below {context['lt']}" if "lt" in context else ""
            _report_kind(node, f"a whole number{below}", "", mistakes, number)
        case "enum" | "literal_error":
            choices = str(context["expected"])
            hint = nearest(text_of(node.value), re.findall("'([^']+)'", choices)).strip()
            _report_text(node, choices.replace("'", ""), hint, mistakes)
        case _:
            raise AssertionError(
                f"pydantic reports {error['type']} at {node.path}, for which there is no sentence"
            )


def _report_kind(node: PlacedNode, expected: str, hint: str, mistakes: Mistakes, text: str = "") -> None:
    mistakes.at(node, FormCode.TYPE, f"expected {expected}, found {text or kind_of(node.value)}", hint=hint)


def _report_text(node: PlacedNode, expected: str, hint: str, mistakes: Mistakes) -> None:
    if node.value is None or isinstance(node.value, list | dict):
        _report_kind(node, expected, hint, mistakes)
    elif not isinstance(node.value, str):
        text = text_of(node.value)
        hint = f'write "{text}" in quotes: without them YAML reads a value that is not text'
        mistakes.at(
            node, FormCode.UNQUOTED, f"expected text, found {kind_of(node.value)} ({text})", hint=hint
        )
    else:
        mistakes.at(node, FormCode.VALUE, f"expected {expected}, found {shown(node.value)}", hint=hint)
