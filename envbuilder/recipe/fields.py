"""The values of a recipe that a type cannot judge: paths below its folder, and requirements."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.core.decode import (
    LINE,
    Fields,
    Kind,
    Mistakes,
    Node,
    Shape,
    load_text,
    nearest,
    read_text,
    shown,
)
from envbuilder.core.findings import CodeEnum

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
    """What can be wrong with a recipe beyond its form as a file."""

    EXTENDS = "EB120", "an unknown base recipe, or a circle"
    REQUIREMENT = "EB121", "not a requirement of PEP 508, or one that envbuilder decides itself"
    PATH = "EB122", "a path that is absolute, outside the recipe's folder, or not there"
    EXTENSION = "EB123", "keys that exclude each other, a name or a source of no known kind"
    VARIABLE = "EB124", "a variable that envbuilder sets itself"
    NAME = "EB125", "a file name that cannot name a recipe"
    PAIR = "EB126", "a key that makes sense only with another"


def read_packages(fields: Fields, folder: Path, mistakes: Mistakes) -> Iterator[tuple[str, str]]:
    """Each requirement in its normal spelling, with the place where it was written."""
    for item in fields.items("packages"):
        if item.kind is Kind.MAP:
            inner = Fields(item, mistakes, required=("requirements",))
            given = inner.node.get("requirements")
            if given is not None and (relative := read_path(given, folder, mistakes)):
                yield from _read_requirements(folder / relative, mistakes)
        elif text := read_text(item, mistakes, LINE, hint="a PEP 508 text, or {requirements: FILE}"):
            yield from _read_requirement(text, item.where, f"{item.path}: ", mistakes)


def _read_requirements(file: Path, mistakes: Mistakes) -> Iterator[tuple[str, str]]:
    text = load_text(file, mistakes)
    for number, line in enumerate((text or "").splitlines(), start=1):
        if wanted := re.sub(r"(^|\s)#.*", "", line).strip():
            yield from _read_requirement(wanted, f"{file}:{number}:1", "", mistakes)


def _read_requirement(text: str, where: str, prefix: str, mistakes: Mistakes) -> Iterator[tuple[str, str]]:
    if text.startswith("-") or text.endswith("\\"):
        mistakes.add(
            RecipeCode.REQUIREMENT,
            where,
            f"{prefix}expected one requirement, found an option of pip: {shown(text)}",
            hint="indexes and hashes are for the lock; list every package by its name",
        )
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0].rstrip(":")
        mistakes.add(
            RecipeCode.REQUIREMENT,
            where,
            f"{prefix}{shown(text)} is not a PEP 508 requirement: {reason}",
            hint=_doubled(text),
        )
        return
    if requirement.url:
        mistakes.add(
            RecipeCode.REQUIREMENT,
            where,
            f"{prefix}{shown(text)} names a place to download from",
            hint="packages come from the configured indexes; name the version instead",
        )
        return
    if canonicalize_name(requirement.name) == "torch":
        mistakes.add(RecipeCode.REQUIREMENT, where, f"{prefix}torch is pinned by the key `pytorch`, not here")
        return
    yield str(requirement), where


def _doubled(text: str) -> str:
    """What one meant who wrote a single `=`, as conda has it; "" where that is not all that is wrong."""
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


def read_path(
    node: Node, folder: Path, mistakes: Mistakes, *, suffixes: tuple[str, ...] = (), is_folder: bool = False
) -> str:
    """A path below the recipe's folder that exists, or "" after collecting the mistake."""
    text = read_text(node, mistakes)
    if not text:
        return ""
    path = PurePosixPath(text)
    what = "folder" if is_folder else "file"
    if path.is_absolute() or ".." in path.parts or "\\" in text or not path.parts or str(path) != text:
        mistakes.at(
            node,
            RecipeCode.PATH,
            f"expected the plain relative path of a {what} below the recipe's folder, found {shown(text)}",
            hint=_way_to(text, folder),
        )
        return ""
    if suffixes and path.suffix not in suffixes:
        mistakes.at(
            node,
            RecipeCode.PATH,
            f"expected a source file, found {shown(text)}",
            hint=f"endings that compile: {', '.join(suffixes)}; headers are found through `include`",
        )
        return ""
    file = folder / text
    if not (file.is_dir() if is_folder else file.is_file()):
        siblings = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        beside = f"../{text}"  # as one who stands in the project, and not in its `recipes`, would write it
        hint = nearest(path.name, siblings).strip()
        mistakes.at(
            node,
            RecipeCode.PATH,
            f"there is no {what} `{text}` below `{folder}`",
            hint=hint or (_way_to(beside, folder) if (folder / beside).exists() else ""),
        )
        return ""
    if not file.resolve().is_relative_to(folder.resolve()):
        mistakes.at(
            node,
            RecipeCode.PATH,
            f"`{text}` is a link to a place outside the recipe's folder",
            hint=_way_to(text, folder),
        )
        return ""
    return text


def _way_to(text: str, folder: Path) -> str:
    """Where the recipe would have to lie for a path that leads out of its folder, and what the path would then be."""
    start, target = folder.resolve(), (folder / text).resolve()
    if not target.exists():
        return f"paths start at the recipe's folder, `{start}`, and stay below it: no `..`, no `\\`, no leading `/` or `./`"
    home = Path(os.path.commonpath([start, target.parent]))
    move = "" if home == start else f"move the recipe to `{home}` and "
    return f"paths start at the recipe's folder, `{start}`; for `{target}` {move}write `{target.relative_to(home)}`"
