"""Types of recipe values that need more than a `Shape`: paths and variables."""

import glob
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from envbuilder.core.beneath import leads_out
from envbuilder.core.findings import CodeEnum
from envbuilder.core.models import (
    LINE,
    LINE_OR_EMPTY,
    FieldRule,
    LineOrEmpty,
    Mistake,
    ReadAs,
    Shape,
    raise_mistakes,
)
from envbuilder.core.places import shown
from envbuilder.core.spelling import nearest_name

BELOW: Final = Shape(
    pattern=r"(?!(?:.*/)?\.{0,2}(?:/|$))[^\x00-\x1f\x7f\\]+",
    expected="a plain relative path with `/` and no `..`",
)
VARIABLE: Final = Shape(
    pattern=r"[A-Za-z_][A-Za-z0-9_]*",
    expected="the name of an environment variable",
    hint="letters, digits and `_`, with no digit first",
)


class RecipeCode(CodeEnum):
    """The mistakes in a recipe's values. Those in a file's form are `core.places.Code`."""

    EXTENDS = "EB120", "an unknown base recipe, or a circle"
    REQUIREMENT = "EB121", "not a requirement of PEP 508, or one that envbuilder decides itself"
    PATH = "EB122", "a path that is absolute, outside the recipe's folder, or not there"
    EXTENSION = "EB123", "keys that exclude each other, a name or a source of no known kind"
    VARIABLE = "EB124", "a variable that is not the recipe's to set, or no name or value of one"
    NAME = "EB125", "a file name that cannot name a recipe"
    PAIR = "EB126", "a key that makes sense only with another"
    MATRIX = "EB127", "a matrix without the variant that is asked for, or whose variants cannot be told apart"
    DECIDED = "EB128", "a line of a requirements file that the recipe or the machine that locks decides"
    OTHER_LOCK = "EB130", "the lock of another tool that cannot be read, or that contradicts the recipe"
    HASH = "EB129", "a hash of a requirements file that the locked file does not have, or a package without one"  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPath:
    """Mark a text as a path below the recipe's folder, which is pydantic's validation context."""

    suffixes: tuple[str, ...] = ()
    is_folder: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._run, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        parts: list[object] = [handler(schema), BELOW.json_schema()]
        if self.suffixes:
            endings = "|".join(map(re.escape, self.suffixes))
            expected = f"a source file: {endings}".replace("\\", "")
            parts.append(Shape(pattern=rf".*({endings})", expected=expected).json_schema())
        return {"allOf": parts}

    def _run(self, text: str, info: ValidationInfo) -> str:
        assert isinstance(info.context, Path)
        raise_mistakes(check_path(text, info.context, suffixes=self.suffixes, is_folder=self.is_folder))
        return text


OwnFile = Annotated[str, LINE, OwnPath()]
OwnFolder = Annotated[str, LINE, OwnPath(is_folder=True)]


def check_path(
    text: str, folder: Path, *, suffixes: tuple[str, ...] = (), is_folder: bool = False
) -> Iterator[Mistake]:
    """Report a path that is not plain, lacks the suffix, or does not exist below the recipe's folder."""
    path = PurePosixPath(text)
    what = "folder" if is_folder else "file"
    message = hint = ""
    if path.is_absolute() or ".." in path.parts or "\\" in text or not path.parts or str(path) != text:
        expected = f"expected the plain relative path of a {what} below the recipe's folder"
        message = f"{expected}, found {shown(text)}"
    elif suffixes and path.suffix not in suffixes:
        message = f"expected a source file, found {shown(text)}"
        hint = f"endings that compile: {', '.join(suffixes)}; headers are found through `include`"
    elif not _is_kind(folder / text, is_folder=is_folder):
        message = f"there is no {what} `{text}` below `{folder}`"
        hint = _way_to_like(path, folder, is_folder=is_folder)
    elif leads_out(folder, folder / text):
        message = f"`{text}` is a link to a place outside the recipe's folder, or to a hidden one in it"
    if message:
        yield Mistake(message=message, code=RecipeCode.PATH, hint=hint or _way_to(text, folder))


def _way_to_like(path: PurePosixPath, folder: Path, *, is_folder: bool) -> str:
    """Return the hint for a path that is not there, by what is like it: beside it, above the recipe or further down."""
    parent, beside = (folder / path).parent, f"../{path}"  # as a user writes it from the project's folder
    entries = parent.iterdir() if parent.is_dir() else ()
    siblings = [entry.name for entry in entries if _is_kind(entry, is_folder=is_folder)]
    if near := nearest_name(path.name, siblings):
        return f"did you mean `{path.parent / near}`?"
    if (folder / beside).exists():
        return _way_to(beside, folder)
    name = glob.escape(path.name)
    for below in (place for above in ("*", "*/*") for place in sorted(folder.glob(f"{above}/{name}"))):
        if _is_kind(below, is_folder=is_folder):
            return f"did you mean `{below.relative_to(folder).as_posix()}`?"
    return f"it is a {'file' if is_folder else 'folder'}" if (folder / path).exists() else ""


def _is_kind(path: Path, *, is_folder: bool) -> bool:
    return path.is_dir() if is_folder else path.is_file()


def _way_to(text: str, folder: Path) -> str:
    """Return the hint for a path outside the recipe's folder: where to move the recipe, and the path from there."""
    start, target = folder.resolve(), (folder / text).resolve()
    if not target.exists():
        return f"paths start at the recipe's folder, `{start}`, and stay below it: no `..`, no `\\`, no leading `/` or `./`"
    home = Path(os.path.commonpath([start, target.parent]))
    move = "" if home == start else f"move the recipe to `{home}` and "
    return f"paths start at the recipe's folder, `{start}`; for `{target}` {move}write `{target.relative_to(home)}`"


def check_command(line: str) -> Iterator[Mistake]:
    """Report words that no shell can read."""
    try:
        shlex.split(line)
    except ValueError as error:
        hint = 'quote as for a shell: `python -c "import torch"`'
        yield Mistake(message=f"no command: {str(error).lower()} in {shown(line)}", hint=hint)


def _check_variable(name: str) -> Iterator[Mistake]:
    if not re.fullmatch(VARIABLE.pattern, name):
        message = f"{shown(name)} cannot be the name of an environment variable"
        yield Mistake(message=message, code=RecipeCode.VARIABLE, hint=VARIABLE.hint)


def own_reference(name: str) -> str:
    """Return the pattern of `$NAME` and `${NAME}`. In the value of NAME, they stand for what it would be without the recipe."""
    return rf"\$(?:{name}\b|\{{{name}\}})"


def expand_own(name: str, value: str, before: str) -> str:
    """Put what the variable would be in place of its own name. An empty one leaves no empty entry in a list."""
    expanded = re.sub(own_reference(name), lambda _: before, value)
    return expanded if before or expanded == value else ":".join(filter(None, expanded.split(":")))


# A map in the file; sorted by name.
Variables = Annotated[
    tuple[tuple[str, str], ...],
    ReadAs(
        dict[Annotated[str, FieldRule(_check_variable)], LineOrEmpty], lambda env: tuple(sorted(env.items()))
    ),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": VARIABLE.json_schema()["pattern"]},
            "additionalProperties": LINE_OR_EMPTY.json_schema(),
        }
    ),
]
