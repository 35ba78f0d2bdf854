"""Whether git ignores a file of a project, by the `.gitignore` files of its repository, as gitignore(5) describes them.

A user's own list decides nothing, so one folder has one lock for everybody. git is not asked: a clone's settings may name programs.
Of its index, the names of files are read: what git tracks it does not ignore.
"""

import bisect
import fnmatch
import functools
import os
import re
import stat
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
        self._top = self._repository = _repository(folder)
        on_the_way = [path for path in (place, *place.parents) if self._top in path.parents]
        if any(self.ignores(path, is_folder=True) for path in on_the_way):
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

    def tracks(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether git has a file, or one below a folder."""
        name = os.fsencode(path.relative_to(self._repository)) + (b"/" if is_folder else b"\0")
        at = bisect.bisect_left(self._tracked, name)
        return any(one.startswith(name) for one in self._tracked[at : at + 1])

    @functools.cached_property
    def _tracked(self) -> list[bytes]:
        """The names in git's index up to version 3: a NUL, the length (up to 255), the name, a NUL, by gitformat-index(5)."""
        try:
            folder = self._repository / ".git"
            if folder.is_file():  # of a worktree or a submodule
                text = read_beneath(self._repository, ".git").decode()
                folder = self._repository / text.removeprefix("gitdir: ").rstrip("\n")
            parts = read_beneath(folder, "index").split(b"\0")
        except (OSError, ValueError, BuildError):
            return []
        return sorted(part[1:] + b"\0" for part in parts if part and part[0] == len(part) - 1)


def _repository(folder: Path) -> Path:
    """Return the folder's repository, without places above it that somebody else owns or writes: a `.git` in /tmp."""
    owners = {0, os.geteuid(), folder.stat().st_uid}
    for place in (folder, *folder.parents):
        if place != folder and (place.stat().st_uid not in owners or place.stat().st_mode & stat.S_IWOTH):
            break
        if (place / ".git").exists():
            return place
    return folder


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
