"""Read and write lockfiles: JSON beside the recipe. Every mistake is reported at once."""

import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.core.errors import LockError
from envbuilder.core.findings import Finding
from envbuilder.core.models import Line, Whole, adapter, read_node
from envbuilder.core.places import Map, Mistakes, Node, check_credentials, load_text, parse_json, parse_yaml
from envbuilder.core.plain import has_credentials, pasted, redacted
from envbuilder.lock.model import Artifact, Lock, LockCode
from envbuilder.lock.seal import ENTRIES, SHA256, find_edits, is_whole, seal
from envbuilder.recipe.model import SUFFIX

VERSION: Final = 1  # another version is refused
REVISION: Final = 1  # a later revision adds keys that may be ignored
_MARKER: Final = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: |\r?$)", re.MULTILINE)  # as git writes them
_MOST: Final = 20  # edits that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The keys of the file that are not the lock's own."""

    made_by: Annotated[Line, Field(alias="_")]
    version: Whole
    revision: Whole


_OUTSIDE: Final = ("_", "version", "revision", ENTRIES, SHA256)


def lock_text(lock: Lock) -> str:
    """Return the text of a lockfile, with its seal. Equal locks give equal bytes."""
    tidy = replace(lock, debs=_sorted(lock.debs), toolkit=_sorted(lock.toolkit), wheels=_sorted(lock.wheels))
    head = {"_": "made by `envbuilder lock NAME`; do not edit", "version": VERSION, "revision": REVISION}
    body = adapter(Lock).dump_python(tidy, mode="json", exclude_defaults=True)
    return json.dumps(seal(head | body), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load_lock(path: Path, *, recipe: str = "") -> Lock:
    """Read a lockfile. Raises LockError if it is missing or unusable; its hint names `recipe`, as typed."""
    recipe = recipe or str(path.with_suffix(SUFFIX))
    if not path.is_file():
        raise LockError(f"there is no lock `{path}`", hint=f"`envbuilder lock {pasted(recipe)}` makes it")
    mistakes = Mistakes()
    text = load_text(path, mistakes)
    if text is None:
        raise _unusable(str(path), recipe, mistakes.findings)
    return parse_lock(text, str(path), recipe=recipe)


@functools.lru_cache(maxsize=8)  # a command asks for the same lock several times
def parse_lock(text: str, where: str, *, recipe: str = "NAME") -> Lock:
    """Read the text of a lockfile. Raises LockError with every mistake, and every edit after `lock` wrote it.

    A newer revision may hold more keys.
    """
    mistakes = Mistakes()
    root = parse_json(text, where, mistakes)
    if root is None:
        raise _unusable(where, recipe, mistakes.findings, text)
    lock, is_edited = _read(root, mistakes, text=text, recipe=recipe), not is_whole(root.value)
    if lock is not None and not is_edited and not mistakes.findings:
        return lock
    placed = Mistakes()
    node = parse_yaml(text, where, placed)  # JSON is YAML, whose slower reader knows the lines
    if node is None:
        node, placed = root, Mistakes()
    _read(node, placed, text=text, recipe=recipe)
    for place, message in find_edits(node) if is_edited else ():
        placed.add(LockCode.EDITED, place.where, redacted(message))
    mends = isinstance(root.value, dict) and isinstance(root.value.get(ENTRIES), dict)
    raise _unusable(where, recipe, placed.findings or mistakes.findings, mends=mends)


def _read(root: Node, mistakes: Mistakes, *, text: str, recipe: str) -> Lock | None:
    head = read_node(_Head, root, mistakes, skip_unknown=True)
    if head and head.version != VERSION:
        raise LockError(
            f"the lock `{root.where}` has version {head.version}; this envbuilder reads version {VERSION}",
            hint=f"use the envbuilder that made it; or `envbuilder lock {pasted(recipe)} --upgrade` makes it anew",
        )
    if has_credentials(text):
        check_credentials(root, mistakes)
    body = root.value
    if isinstance(body, dict):
        inner = {key: value for key, value in body.items() if key not in _OUTSIDE}
        body = Map(inner, body.places) if isinstance(body, Map) else inner
    is_newer = head is not None and head.revision > REVISION
    return read_node(Lock, replace(root, value=body), mistakes, skip_unknown=is_newer)


def our_side(text: str) -> str:
    """Return a text with merge markers as it was on our side."""
    lines, is_ours = [], True
    for line in text.split("\n"):
        if _MARKER.match(line):
            is_ours = line[0] in "<>"
        elif is_ours:
            lines.append(line)
    return "\n".join(lines)


def _sorted(artifacts: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    return tuple(sorted(artifacts, key=lambda artifact: artifact.name))


def _unusable(where: str, recipe: str, findings: tuple[Finding, ...], text: str = "", *, mends: bool = False) -> LockError:  # fmt: skip
    """Return the error of a lock with these findings. `text` is that of one that is no JSON."""
    is_edited = any(finding.code == LockCode.EDITED for finding in findings)
    reason = "was edited or merged after `lock` wrote it" if is_edited else "cannot be used"
    repair = (
        f"`envbuilder lock {pasted(recipe)}` repairs it, and keeps the versions of all else where possible"
        if is_edited and mends
        else f"`envbuilder lock {pasted(recipe)} --upgrade` chooses every version anew"
    )
    hint = f"`git checkout {pasted(where)}` takes back an edit that is not committed; {repair}"
    if marker := _MARKER.search(text):
        line, reason = text.count("\n", 0, marker.start()) + 1, "holds merge markers"
        message = f"{reason} at line {line}"
        findings = (Finding(code=LockCode.EDITED, where=f"{where}:{line}", message=message),)
        hint = (
            f"`git checkout --ours {pasted(where)}`, or `--theirs`, takes one side; then "
            f"`envbuilder lock {pasted(recipe)}` fits it to the merged recipe, and keeps its versions where possible"
        )
    if len(findings) > _MOST:
        rest = Finding(code=LockCode.EDITED, where=where, message=f"and {len(findings) - _MOST} more")
        findings = (*findings[:_MOST], rest)
    return LockError(f"the lock `{where}` {reason}", hint=hint, findings=findings)
