"""Whether git ignores a file of a project, by the `.gitignore` files of its repository, as gitignore(5) describes them.

A user's own list decides nothing, so one folder has one lock for everybody. git is not asked: a clone's settings may name programs.
"""

import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder.core.beneath import read_beneath
from envbuilder.core.errors import BuildError

_ANY: Final = "**"


class _Rule(NamedTuple):
    pattern: tuple[str, ...]
    ignores: bool
    for_folders: bool


class GitIgnored:
    """The rules for `place`, a folder in or below `folder`. A place that git ignores has its own rules alone."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._rules: dict[Path, tuple[_Rule, ...]] = {}
        self._top = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
        on_the_way = [one for one in (place, *place.parents) if self._top in one.parents]
        if any(self.ignores(one, is_folder=True) for one in on_the_way):
            self._top = place

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether the rules leave out a path, in a folder that they do not leave out."""
        ignored, inside = False, path.relative_to(self._top).parts
        for depth in range(len(inside)):
            base = self._top.joinpath(*inside[:depth])
            if base not in self._rules:
                self._rules[base] = tuple(_read_rules(base))
            for rule in self._rules[base]:
                if (is_folder or not rule.for_folders) and _matches(rule.pattern, inside[depth:]):
                    ignored = rule.ignores
        return ignored


def _read_rules(folder: Path) -> Iterator[_Rule]:
    try:
        lines = read_beneath(folder, ".gitignore").decode(errors="replace").splitlines()
    except (OSError, BuildError):  # git follows no link there either
        return
    for line in lines:
        text = re.sub(r"(?<!\\)\s+$", "", line)
        if text and not text.startswith("#"):
            pattern = text.removeprefix("!")
            parts = pattern.strip("/").split("/")
            if "/" not in pattern.rstrip("/"):  # at any depth
                parts = [_ANY, *parts]
            parts = [part for at, part in enumerate(parts) if part != _ANY or parts[at - 1 : at] != [_ANY]]
            yield _Rule(tuple(parts), not text.startswith("!"), pattern.endswith("/"))


@functools.lru_cache(1 << 16)
def _matches(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    first, rest = pattern[0], pattern[1:]
    if first == _ANY:
        starts = range(len(parts)) if _ANY in rest else range(max(0, len(parts) - len(rest)), len(parts))
        return not rest or any(_matches(rest, parts[start:]) for start in starts)
    return bool(_component(first).match(parts[0])) and _matches(rest, parts[1:])


@functools.lru_cache(1 << 12)
def _component(text: str) -> re.Pattern[str]:
    """Return the expression of one part of a pattern. What `fnmatch` makes is searched in linear time."""
    text = re.sub(r"\\([*?[])", r"[\1]", text).replace("[^", "[!")
    return re.compile(fnmatch.translate(re.sub(r"\\(.)", r"\1", text)))
