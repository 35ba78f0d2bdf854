"""Read and write lockfiles: JSON beside the recipe. Every mistake is reported at once."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.core.errors import LockError
from envbuilder.core.models import Line, Whole, read_node
from envbuilder.core.places import Mistakes, check_credentials, load_text, parse_json
from envbuilder.core.plain import has_credentials, pasted
from envbuilder.lock.model import Artifact, Lock
from envbuilder.recipe.model import SUFFIX

VERSION: Final = 1  # another version is refused
REVISION: Final = 0  # a later revision adds keys that may be ignored
# Keys of an extension that are written only with a value.
_LATER: Final = ("path", "git", "commit", "sdist", "url", "sha256", "capture", "env", "patch", "archive")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The keys of the file that are not the lock's own."""

    made_by: Annotated[Line, Field(alias="_")]
    version: Whole
    revision: Whole


def lock_text(lock: Lock) -> str:
    """Return the text of a lockfile. Equal locks give equal bytes."""
    tidy = replace(lock, debs=_sorted(lock.debs), toolkit=_sorted(lock.toolkit), wheels=_sorted(lock.wheels))
    head = {"_": "made by `envbuilder lock NAME`; do not edit", "version": VERSION, "revision": REVISION}
    body = asdict(tidy)
    for later in ("base", "interpreter", "added", "builds", "tools"):  # written only with a value
        if not body[later]:
            del body[later]
    body["extensions"] = [
        {key: value for key, value in one.items() if value or key not in _LATER} for one in body["extensions"]
    ]
    return json.dumps(head | body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load_lock(path: Path, *, recipe: str = "") -> Lock:
    """Read a lockfile. Raises LockError if it is missing or unusable; its hint names `recipe`, as typed."""
    recipe = recipe or str(path.with_suffix(SUFFIX))
    if not path.is_file():
        raise LockError(f"there is no lock `{path}`", hint=f"`envbuilder lock {pasted(recipe)}` makes it")
    mistakes = Mistakes()
    text = load_text(path, mistakes)
    if text is None:
        raise _unusable(str(path), recipe, mistakes)
    return parse_lock(text, str(path), recipe=recipe)


def parse_lock(text: str, where: str, *, recipe: str = "NAME") -> Lock:
    """Read the text of a lockfile. Raises LockError with every mistake. A newer revision may hold more keys."""
    mistakes = Mistakes()
    root = parse_json(text, where, mistakes)
    head = read_node(_Head, root, mistakes, skip_unknown=True) if root else None
    if head and head.version != VERSION:
        raise LockError(
            f"the lock `{where}` has version {head.version}; this envbuilder reads version {VERSION}",
            hint=f"use the envbuilder that made it; or remove the file, and `envbuilder lock {pasted(recipe)}` makes it anew",
        )
    lock = None
    if root and has_credentials(text):
        check_credentials(root, mistakes)
    if root:
        own = root.value
        if isinstance(own, dict):
            own = {key: value for key, value in own.items() if key not in ("_", "version", "revision")}
        is_newer = head is not None and head.revision > REVISION
        lock = read_node(Lock, replace(root, value=own), mistakes, skip_unknown=is_newer)
    if lock is None or mistakes.findings:
        raise _unusable(where, recipe, mistakes)
    return lock


def _sorted(artifacts: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    return tuple(sorted(artifacts, key=lambda artifact: artifact.name))


def _unusable(where: str, recipe: str, mistakes: Mistakes) -> LockError:
    return LockError(
        f"the lock `{where}` cannot be used",
        hint=f"a lock is not edited by hand; remove the file, and `envbuilder lock {pasted(recipe)}` makes it anew",
        findings=mistakes.findings,
    )
