"""Read and write lockfiles: JSON beside the recipe, sealed. Every mistake is reported at once.

The seal finds a later edit or merge, and names each entry that it changed. The key `sha256` is the digest of all else in the
file. The key `entries` has the version and a digest of each package, and a digest of each part. Layout does not count: a lock
that another program indented anew is the same.
"""

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.compat.image_facts import PLATFORM, Base
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.errors import EnvbuilderError, LockError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.models import Line, Whole, adapter, read_node
from envbuilder.core.places import (
    Map,
    Mistakes,
    PlacedNode,
    check_credentials,
    load_text,
    parse_json,
    parse_yaml,
)
from envbuilder.core.plain import pasted
from envbuilder.core.text.redact import has_credentials, redacted
from envbuilder.lock.changes import check_fresh
from envbuilder.lock.model import Artifacts, Lock, LockCode, LockedBase, SourceFile
from envbuilder.lock.source_files import digest_source, own_files, reasons, source_digests
from envbuilder.recipe.extension import Form
from envbuilder.recipe.model import SUFFIX, Recipe

VERSION: Final = 1  # another version is refused
ENTRIES: Final = "entries"
SHA256: Final = "sha256"
_DIGITS: Final = 12  # of a digest in `entries`: it names a change that `sha256` finds
MOST: Final = 64 << 20  # bytes; a project of 7,000 headers has 1.1 MB
REVISION: Final = 1  # a later revision adds keys that may be ignored
_MARKER: Final = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: |\r?$)", re.MULTILINE)  # as git writes them
_MOST: Final = 20  # edits that a message names
FORMAT: Final = 3  # of the cached facts of images; with a new number, every image is inspected again
BASE: Final = "base.json"  # with those facts
_OUTSIDE: Final = ("_", "version", "revision", ENTRIES, SHA256)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The keys of the file that are not the lock's own."""

    made_by: Annotated[Line, Field(alias="_")]
    version: Whole
    revision: Whole


def lock_text(lock: Lock) -> str:
    """Return the text of a lockfile, with its seal. Equal locks give equal bytes."""
    tidy = replace(
        lock, debs=_sorted(lock.debs), toolkit=_sorted(lock.toolkit), wheels=_sorted(lock.wheels), conda=_sorted(lock.conda)
    )  # fmt: skip
    head = {"_": "made by `envbuilder lock NAME`; do not edit", "version": VERSION, "revision": REVISION}
    body = adapter(Lock).dump_python(tidy, mode="json", exclude_defaults=True)
    return json.dumps(seal(head | body), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load_lock(path: Path, *, recipe: str = "") -> Lock:
    """Read a lockfile. Raises LockError if it is missing or unusable; its hint names `recipe`, as typed."""
    recipe = recipe or str(path.with_suffix(SUFFIX))
    if not path.is_file():
        raise LockError(f"there is no lock `{path}`", hint=f"`envbuilder lock {pasted(recipe)}` makes it")
    mistakes = Mistakes()
    text = load_text(path, mistakes, most=MOST)
    if text is None:
        raise _unusable(str(path), recipe, mistakes.findings)
    return parse_lock(text, str(path), recipe=recipe)


def parse_lock(text: str, where: str, *, recipe: str = "NAME") -> Lock:
    """Read the text of a lockfile. Raises LockError with every mistake, and every edit after `lock` wrote it.

    A newer revision may hold more keys.
    """
    if lock := _parse_whole(text):
        return lock
    mistakes, placed = Mistakes(), Mistakes()
    root = parse_json(text, where, mistakes)
    if root is None:
        raise _unusable(where, recipe, mistakes.findings, text)
    node = parse_yaml(text, where, placed)  # JSON is YAML, whose slower reader knows the lines
    if node is None:
        node, placed = root, Mistakes()
    _read(node, placed, text=text, recipe=recipe)
    for place, message in () if is_whole(root.value) else find_edits(node):
        placed.add(LockCode.EDITED, place.where, redacted(message))
    mends = isinstance(root.value, dict) and isinstance(root.value.get(ENTRIES), dict)
    raise _unusable(where, recipe, placed.findings or mistakes.findings, mends=mends)


@functools.lru_cache(maxsize=8)  # a command asks for the same lock several times
def _parse_whole(text: str) -> Lock | None:
    """Return the lock of a text without a mistake, None for any other text."""
    mistakes = Mistakes()
    root = parse_json(text, "", mistakes)
    if root is None or not is_whole(root.value):
        return None
    with contextlib.suppress(LockError):
        lock = _read(root, mistakes, text=text, recipe="")
        return None if mistakes.findings else lock
    return None


def _read(root: PlacedNode, mistakes: Mistakes, *, text: str, recipe: str) -> Lock | None:
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


def _sorted(artifacts: Artifacts) -> Artifacts:
    return tuple(sorted(artifacts, key=lambda artifact: artifact.name))


def _unusable(where: str, recipe: str, findings: tuple[Finding, ...], text: str = "", *, mends: bool = False) -> LockError:  # fmt: skip
    """Return the error of a lock with these findings. `text` is that of one that is no JSON."""
    is_edited = any(finding.code == LockCode.EDITED for finding in findings)
    reason = "was edited or merged after `lock` wrote it" if is_edited else "cannot be used"
    repair = f"`envbuilder lock {pasted(recipe)} --upgrade` chooses every version anew"
    if is_edited and mends:
        repair = f"`envbuilder lock {pasted(recipe)}` repairs it, and keeps the versions of all else where possible"
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


# ---- the seal


def seal(body: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON of a lock with its seal, instead of the one that it has."""
    bare = {key: body[key] for key in body if key != SHA256}
    sealed = bare | {ENTRIES: seals(PlacedNode(value=bare, where=""))}
    return sealed | {SHA256: _digest(sealed)}


def is_whole(body: object) -> bool:
    """Return whether a lock is as `lock` wrote it, by its seal. What is no lock at all is another mistake."""
    bare = {key: body[key] for key in body if key != SHA256} if isinstance(body, dict) else {}
    return not isinstance(body, dict) or bool(body.get(SHA256) == _digest(bare))


def parts(root: PlacedNode) -> dict[str, PlacedNode]:
    """Return the values of a lock by key. Those of `inputs` and `tools` are parts of their own, such as `tools.debs`."""
    nodes: dict[str, PlacedNode] = {}
    for key, node in root.inner.items():
        if key in ("inputs", "tools"):
            nodes |= {f"{key}.{inner}": value for inner, value in node.inner.items()}
        elif key not in (ENTRIES, SHA256):
            nodes[str(key)] = node
    return nodes


def entries(part: str, node: PlacedNode) -> dict[str, PlacedNode]:
    """Return the packages or extensions of a part by `part name`, nothing for a part without names."""
    items = node.inner.values() if isinstance(node.value, list) else ()
    named = (item for item in items if isinstance(item.value, dict) and "name" in item.value)
    return {f"{part} {item.value['name']}": item for item in named}


def seals(root: PlacedNode) -> dict[str, str]:
    """Return what `entries` of a lock should be."""
    digests: dict[str, str] = {}
    for part, node in parts(root).items():
        items = {
            label: f"{item.value.get('version', '')} {part_seal(item.value)}".strip()
            for label, item in entries(part, node).items()
        }
        digests |= {**items, part: part_seal(items or node.value)}
    return digests


def part_seal(value: object) -> str:
    """Return the seal of a part, given the seals of its entries or, if it has none, its value."""
    return _digest(value)[:_DIGITS]


def find_edits(root: PlacedNode) -> Iterator[tuple[PlacedNode, str]]:
    """Yield the place of each edit of a lock that is not whole, with a sentence."""
    wrote, now, nodes = root.value.get(ENTRIES), seals(root), parts(root)
    wrote = wrote if isinstance(wrote, dict) else now
    items = {label: item for part, node in nodes.items() for label, item in entries(part, node).items()}
    digests = {f"{item.value.get('sha256')}": label for label, item in items.items()}
    different = [label for label in wrote.keys() | now.keys() if wrote.get(label) != now.get(label)]
    edited = {label.partition(" ")[0] for label in different if " " in label}
    for label in sorted(different):
        part, _, name = label.partition(" ")
        was, version = (f"{written.get(label, '')}".rpartition(" ")[0] for written in (wrote, now))
        item, place = items.get(label), nodes.get(part, root)
        if not name:
            if part not in edited:
                yield place, f"`{part}` is not as `lock` wrote it"
        elif item is None:
            yield place, f"{f'`{name}` {was}'.strip()} is gone from `{part}`"
        elif label not in wrote:
            yield item, f"{f'`{name}` {version}'.strip()} in `{part}` is not from `lock`"
        else:
            twin = digests[f"{item.value.get('sha256')}"].partition(" ")[2]
            file = f"{item.value.get('path', '')}".rpartition("/")[2]
            details = (
                f"{f'`{name}` {version}'.strip()} in `{part}` is not as `lock` wrote it",
                f"`lock` wrote {was}" if was != version else "",
                f"its sha256 is that of `{twin}`" if twin != name else "",
                f"its file is `{file}`" if file else "",
            )
            yield item, "; ".join(filter(None, details))
    if not different:
        yield root, f"its order, or one of its keys `{ENTRIES}` and `{SHA256}`, is not as `lock` wrote it"


def _digest(value: object) -> str:
    return sha256_text(json.dumps(value, sort_keys=True, default=str))


# ---- the lock of a recipe


def lock_path(recipe: Recipe) -> Path:
    return recipe.path.with_name(f"{recipe.name}.lock")


def load_fresh(recipe: Recipe, name: str) -> Lock:
    """Return the lock of a recipe, which the user named `name`. Raises LockError if it is missing or stale."""
    path = lock_path(recipe)
    lock = load_lock(path, recipe=name)
    stale = check_fresh(recipe, lock, source_digests(own_files(recipe)), lambda: reasons(recipe, lock))
    if stale:
        raise LockError(
            f"the lock `{path}` no longer fits its recipe:\n" + "\n".join(f"  {reason}" for reason in stale),
            hint=f"`envbuilder lock {pasted(name)}` renews what changed and keeps the rest",
        )
    return lock


def stale_warning(error: LockError, where: str, code: CodeEnum = LockCode.STALE, prefix: str = "") -> Finding:
    """Return an error of `load_fresh` as a warning. Raises that of a lock that was edited: it can be used for nothing."""
    if error.findings:
        raise error
    message = prefix + " ".join(error.message.split())
    return Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=error.hint)


def changed_sources(lock: Lock, folder: Path) -> tuple[str, ...]:
    """Return the files of projects in the recipe's folder that are not as they were locked. `load()` compiles its own when it runs."""
    files = (file for project in lock.extensions if project.form is Form.PROJECT for file in project.files)
    return tuple(file.path for file in files if not _is_as_locked(file, folder))


def _is_as_locked(file: SourceFile, folder: Path) -> bool:
    try:
        return digest_source(folder, file.path) == file
    except EnvbuilderError:
        return False


# ---- a recipe's base image, without a request to its registry


def known_base(recipe: Recipe, *, store: Store) -> Base | None:
    """Return the facts about the base image from the lock, otherwise from the last attempt to lock it."""
    base = known_locked_base(recipe, store=store)
    return base.inside if base else None


def known_locked_base(recipe: Recipe, *, store: Store) -> LockedBase | None:
    """Return the base image with its packages, as `known_base` finds it."""
    try:
        base = load_lock(lock_path(recipe)).base
    except LockError:
        base = None
    return base if base and base.reference == recipe.image else recall(store, recipe.image)


def recall(store: Store, reference: str) -> LockedBase | None:
    """Return the cached facts of the image, or None if no envbuilder with this format has read it, or they are damaged."""
    folder = kept_folder(store, reference)
    mistakes = Mistakes()
    text = load_text(folder / BASE, mistakes) if store.holds(folder, whole=True) else None
    root = parse_json(text, str(folder / BASE), mistakes) if text else None
    return read_node(LockedBase, root, mistakes) if root else None


def kept_folder(store: Store, reference: str) -> Path:
    """Return the cache folder with the facts of an image."""
    return store.base(sha256_text(f"{FORMAT} {PLATFORM} {reference}"))
