"""Types of recipe values that need more than a `Shape`: paths, variables and requirements."""

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from envbuilder.core.findings import CodeEnum
from envbuilder.core.models import (
    LINE,
    LINE_OR_EMPTY,
    LineOrEmpty,
    Mistake,
    ReadAs,
    Rule,
    Shape,
    raise_mistakes,
)
from envbuilder.core.places import Mistakes, load_text, nearest_name, shown

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
    VARIABLE = "EB124", "a variable that envbuilder sets itself"
    NAME = "EB125", "a file name that cannot name a recipe"
    PAIR = "EB126", "a key that makes sense only with another"
    MATRIX = "EB127", "a matrix without the variant that is asked for, or whose variants cannot be told apart"


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
        message = (
            f"expected the plain relative path of a {what} below the recipe's folder, found {shown(text)}"
        )
        hint = _way_to(text, folder)
    elif suffixes and path.suffix not in suffixes:
        message = f"expected a source file, found {shown(text)}"
        hint = f"endings that compile: {', '.join(suffixes)}; headers are found through `include`"
    elif not ((folder / text).is_dir() if is_folder else (folder / text).is_file()):
        parent = (folder / text).parent
        siblings = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
        beside = f"../{text}"  # as a user writes it from the project's folder
        message = f"there is no {what} `{text}` below `{folder}`"
        near = nearest_name(path.name, siblings)
        below = [str(path.parent / near)] if near else _found_below(folder, path.name)
        if not near and (folder / beside).exists():
            hint = _way_to(beside, folder)
        elif below:
            hint = f"did you mean `{below[0]}`?"
    elif not (folder / text).resolve().is_relative_to(folder.resolve()):
        message = f"`{text}` is a link to a place outside the recipe's folder"
        hint = _way_to(text, folder)
    if message:
        yield Mistake(message=message, code=RecipeCode.PATH, hint=hint)


def _found_below(folder: Path, name: str) -> list[str]:
    """Return the files or folders of that name up to two folders further down."""
    found = (
        path for pattern in ("*", "*/*") for path in sorted(folder.glob(f"{pattern}/{glob.escape(name)}"))
    )
    return [str(path.relative_to(folder)) for path in found]


def _way_to(text: str, folder: Path) -> str:
    """Return the hint for a path outside the recipe's folder: where to move the recipe, and the path from there."""
    start, target = folder.resolve(), (folder / text).resolve()
    if not target.exists():
        return f"paths start at the recipe's folder, `{start}`, and stay below it: no `..`, no `\\`, no leading `/` or `./`"
    home = Path(os.path.commonpath([start, target.parent]))
    move = "" if home == start else f"move the recipe to `{home}` and "
    return f"paths start at the recipe's folder, `{start}`; for `{target}` {move}write `{target.relative_to(home)}`"


def _check_variable(name: str) -> Iterator[Mistake]:
    if not re.fullmatch(VARIABLE.pattern, name):
        message = f"{shown(name)} cannot be the name of an environment variable"
        yield Mistake(message=message, code=RecipeCode.VARIABLE, hint=VARIABLE.hint)


# A map in the file; sorted by name.
Variables = Annotated[
    tuple[tuple[str, str], ...],
    ReadAs(dict[Annotated[str, Rule(_check_variable)], LineOrEmpty], lambda env: tuple(sorted(env.items()))),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": VARIABLE.json_schema()["pattern"]},
            "additionalProperties": LINE_OR_EMPTY.json_schema(),
        }
    ),
]


_AS_EXTENSION: Final = (
    "a project of your own or of a repository is an entry of `extensions`, also without compiled code: "
    "`{name: NAME, path: FOLDER}` or `{name: NAME, git: URL, commit: COMMIT}`"
)


def _parse_requirement(text: str) -> str:
    """Return a requirement in its normal spelling."""
    message = hint = found = ""
    if text.startswith("-") or text.endswith("\\"):
        message = f"expected one requirement, found an option of pip: {shown(text)}"
        hint = "indexes and hashes are for the lock; list every package by its name"
    else:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0].rstrip(":")
            message = f"{shown(text)} is not a PEP 508 requirement: {reason}"
            hint = _AS_EXTENSION if re.match(r"(git\+|https?://|\.{0,2}/)", text) else _doubled(text)
        else:
            found = str(requirement)
            if requirement.url:
                message = f"{shown(text)} names a place to download from"
                hint = f"name the version instead, for a configured index; {_AS_EXTENSION}"
            elif canonicalize_name(requirement.name) == "torch":
                message = "torch is pinned by the key `pytorch`, not here"
    if message:
        raise Mistake(message=message, code=RecipeCode.REQUIREMENT, hint=hint).error()
    return found


def _doubled(text: str) -> str:
    """Return the hint for a single `=`, as conda writes it; "" if more is wrong."""
    written = re.fullmatch(r"([^\s=<>!~;]+) *= *([0-9][^\s=;]*)(?:=[^\s=;]+)?( *;.*)?", text)
    if written is None:
        return ""
    name, version, marker = written[1], written[2], written[3] or ""
    try:
        Requirement(f"{name}=={version}{marker}")
    except InvalidRequirement:
        return ""
    any_of_them = "" if version.endswith("*") else f", or `{name}=={version}.*{marker}` as conda means it"
    return f"did you mean `{name}=={version}{marker}`{any_of_them}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    requirements: OwnFile


def _read_requirements(file: _File, info: ValidationInfo) -> tuple[tuple[str, str], ...]:
    """Return the requirements of a file, each with its place."""
    assert isinstance(info.context, Path)
    path = info.context / file.requirements
    unreadable = Mistakes()
    text = load_text(path, unreadable) or ""
    mistakes = [
        Mistake(message=one.message, code=one.code, hint=one.hint, where=one.where)
        for one in unreadable.findings
    ]
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if wanted := re.sub(r"(^|\s)#.*", "", line).strip():
            where = f"{path}:{number}:1"
            try:
                found.append((_parse_requirement(wanted), where))
            except PydanticCustomError as error:
                mistakes.append(Mistake(**{**(error.context or {}), "where": where}))
    raise_mistakes(mistakes)
    return tuple(found)


# A PEP 508 text, or the lines of a file, each with its place.
Packages = tuple[
    Annotated[
        Annotated[
            str,
            replace(LINE, hint="a PEP 508 text, or {requirements: FILE}"),
            AfterValidator(_parse_requirement),
            Tag("a requirement"),
        ]
        | Annotated[
            tuple[tuple[str, str], ...],
            ReadAs(Annotated[_File, AfterValidator(_read_requirements)]),
            Tag("a file"),
        ],
        Discriminator(lambda item: "a file" if isinstance(item, dict) else "a requirement"),
    ],
    ...,
]
