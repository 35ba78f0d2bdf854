"""Write requirements and projects into the text of a recipe. Its comments, its order and all else stay as they are."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic_core import PydanticCustomError

from envbuilder.core.errors import UsageError
from envbuilder.core.places import Mistakes, parse_yaml
from envbuilder.core.plain import need_no_credentials, pasted
from envbuilder.recipe.packages import parse_requirement
from envbuilder.recipe.requirement_file import Direct, parse_direct

# Requirements that YAML reads as they are, in a block and in brackets.
_PLAIN: Final = re.compile(r"[A-Za-z][\w.<>=!~*+-]*(,[\w.<>=!~*+-]+)*")
_PLAIN_IN_BRACKETS: Final = re.compile(r"[A-Za-z][\w.<>=!~*+-]*")


def need_writable(recipe: Path, packages: Sequence[str]) -> None:
    """Raise UsageError for a recipe that this user may not write, such as one of a folder that a site shares."""
    if os.access(recipe, os.W_OK) and os.access(recipe.parent, os.W_OK):
        return
    copy = f"cp -R --no-preserve=mode {pasted(recipe.parent.resolve())} my-recipes"
    again = f"envbuilder add {pasted(recipe.stem, *packages, '--recipes', 'my-recipes')}"
    raise UsageError(
        f"you may not write the recipe `{recipe}`", hint=f"`{copy}` copies its folder; then `{again}`"
    )


def parse_added(text: str) -> str | Direct:
    """Return a requirement as it was typed, or a project of a git repository. Raises UsageError for any other text."""
    need_no_credentials(text)
    place = parse_direct(text.strip())
    if place and place.git:
        return place
    try:
        parse_requirement(text.strip())
    except PydanticCustomError as error:
        context = error.context or {}
        raise UsageError(context["message"], hint=context["hint"]) from error
    return text.strip()


def put(
    text: str, asked: Sequence[str | Direct], find_commit: Callable[[Direct], str]
) -> tuple[str, tuple[str, ...]]:
    """Put requirements and projects into the text of a recipe. Returns the text and a line for each change.

    Raises UsageError where the recipe cannot take one.
    """
    edits = []
    for package in asked:
        if isinstance(package, Direct):
            text, edit = put_project(text, package, find_commit(package))
        else:
            text, edit = put_package(text, package)
        edits.append(edit)
    return text, tuple(edits)


def put_package(text: str, requirement: str) -> tuple[str, str]:
    """Put a requirement into `packages`, instead of the one with the same name. Returns the recipe's text and the change.

    A name without a version leaves the requirement that is there. Raises UsageError if the name is there twice.
    """
    asked = Requirement(requirement)
    items = list(_items(text, "packages"))
    there = [item for item in items if _name(item) == canonicalize_name(asked.name)]
    if not there:
        return _append(text, "packages", lambda plain: _scalar(requirement, plain)), f"+ {requirement}"
    if len(there) > 1:
        message = f"`packages` of the recipe has `{asked.name}` {len(there)} times"
        raise UsageError(message, hint="leave one of them in the recipe")
    old, mark = there[0].value, there[0].start_mark
    if str(asked) in (asked.name, str(Requirement(old))):
        return text, f"{old} is there already"
    new = _scalar(requirement, _PLAIN_IN_BRACKETS)
    edited = text[: mark.index] + new + text[there[0].end_mark.index :]
    root = _root(text)
    values = [*root["packages"]]
    values[items.index(there[0])] = requirement
    return _checked(edited, root | {"packages": values}, requirement), f"~ {old} → {requirement}"


def put_project(text: str, project: Direct, commit: str) -> tuple[str, str]:
    """Put the commit of a repository into `extensions`. Returns the recipe's text and the change.

    Raises UsageError if there is an extension with its name.
    """
    names = [dict(_pairs(item)).get("name") for item in _items(text, "extensions")]
    if project.name in names:
        message = f"the recipe has an extension `{project.name}`"
        raise UsageError(message, hint=f"write its new `commit: {commit}` there")
    entry = project.entry(commit=commit)
    return _append(text, "extensions", lambda _: entry), f"+ extension {project.name} {commit}"


def _append(text: str, key: str, write: Callable[[re.Pattern[str]], str]) -> str:
    """Put an item at the end of a list, which is made if it is not there. `write` gets the texts that need no quotes."""
    node, line = _node(text, key), "\r\n" if "\r\n" in text else "\n"
    if node is None:
        item = write(_PLAIN)
        before = re.sub(r"(?<=[^\n])\Z", line, text)
        edited = f"{before}{line}{key}:{line}  - {item}{line}"
    elif isinstance(node, yaml.MappingNode):
        message = f"`{key}` of the recipe is one file, and `add` puts items into a list"
        raise UsageError(
            message, hint=f"write `{key}: [{text[node.start_mark.index : node.end_mark.index].strip()}]`"
        )
    elif node.flow_style:
        item = write(_PLAIN_IN_BRACKETS)
        at = node.value[-1].end_mark.index if node.value else node.start_mark.index + 1
        edited = f"{text[:at]}{', ' if node.value else ''}{item}{text[at:]}"
    else:
        item = write(_PLAIN)
        ended = re.compile(r"\r?\n|\Z").search(text, _last(node).end_mark.index)
        assert ended, "every line ends"
        indent = " " * node.start_mark.column
        edited = f"{text[: ended.start()]}{line}{indent}- {item}{text[ended.start() :]}"
    values = _root(text)
    return _checked(edited, values | {key: [*values.get(key, ()), _parsed(item)]}, item)


def _checked(text: str, expected: dict[str, Any], item: str) -> str:
    """Return the edited text. Raises UsageError if it does not say what it should."""
    if _parsed(text) != expected:
        message = f"the recipe is written in a way that `add` does not edit, and `{item}` is not in it"
        raise UsageError(
            message, hint="write it into the recipe, then `envbuilder lock` and `envbuilder build`"
        )
    return text


def _scalar(text: str, plain: re.Pattern[str]) -> str:
    is_plain = plain.fullmatch(text) and _parsed(text) == text
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _parsed(text: str) -> Any:
    node = parse_yaml(text, "", Mistakes())
    return node.value if node else None


def _root(text: str) -> dict[str, Any]:
    return dict(_parsed(text))


def _node(text: str, key: str) -> yaml.CollectionNode | None:
    """Return the list of a key of a recipe without mistakes, or the map that stands for one of its items."""
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    return next((value for name, value in root.value if name.value == key), None)


def _items(text: str, key: str) -> Iterator[yaml.Node]:
    node = _node(text, key)
    yield from node.value if node else ()


def _pairs(node: yaml.Node) -> Iterator[tuple[str, str]]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return ((key.value, value.value) for key, value in pairs)


def _name(item: yaml.Node) -> str:
    return canonicalize_name(Requirement(item.value).name) if isinstance(item, yaml.ScalarNode) else ""


def _last(node: yaml.Node) -> yaml.Node:
    """Return the last value of a block: that of a block itself ends where the next one begins."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node
