"""Read what is left of a lock that was edited or merged badly, so that `lock` repairs it and keeps the other versions."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import LockError
from envbuilder.core.places import Mistakes, Node, load_text, parse_json
from envbuilder.lock.file import VERSION, load_lock, our_side, parse_lock
from envbuilder.lock.model import PARTS, Lock
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.lock.seal import ENTRIES, entries, part_seal, parts, seals
from envbuilder.recipe.model import Recipe

log = logging.getLogger(__name__)

LOST: Final = Sha256("0" * 64)  # of an entry whose file is not known
_LISTS: Final = ("debs", "toolkit", "wheels", "added", "builds", "extensions")
_WHEELS: Final = ("wheels", "added")


def read_old(
    path: Path, name: str, recipe: Recipe, *, options: LockOptions, save: bool
) -> tuple[Lock | None, LockOptions]:
    """Return the lock so far. One that was edited or merged badly is mended, and the options then name its lost .debs.

    Raises LockError for one that cannot be mended, unless all is chosen anew, and for any such lock without `save`.
    """
    if not path.exists():
        return None, options
    try:
        return load_lock(path, recipe=name), options
    except LockError as error:
        old = _mend(load_text(path, Mistakes()) or "", str(path), recipe, options.epoch) if save else None
        if not save or (old is None and not options.upgrade):
            raise
        action = (
            "every version is chosen anew" if options.upgrade else "that is repaired, and the rest is kept"
        )
        log.warning("%s; %s:\n%s", error.message, action, "\n".join(map(str, error.findings)))
    anew = options.upgrade or (options.before is not None and not options.upgrade_only)
    if old and not anew and not recipe.parent:
        lost = (deb.name for deb in old.debs if deb.sha256 == LOST)
        options = replace(options, upgrade_only=(*options.upgrade_only, *lost))
    return old, options


def _mend(text: str, where: str, recipe: Recipe, epoch: int) -> Lock | None:
    """Return the entries that are as `lock` wrote them, on our side of a merge. None if that cannot be told.

    Lost .debs and wheels are there without a file: wheels with the version that `lock` wrote, .debs older than any. A part
    that is to be resolved again has no valid inputs. These are parts of two locks, and all but .debs that lost an entry.
    `epoch` replaces one that was edited.
    """
    ours = our_side(text)
    if ours != text:
        try:
            return parse_lock(ours, where)
        except LockError:
            pass  # lines that git merged without a conflict
    root = parse_json(ours, where, Mistakes())
    body = root.value if root and isinstance(root.value, dict) else {}
    wrote = body.get(ENTRIES)
    if root is None or not isinstance(wrote, dict) or body.get("version") != VERSION:
        return None
    now, there = seals(root), parts(root)
    true = {part: node.value for part, node in there.items() if now[part] == wrote.get(part)}
    inputs = dict.fromkeys(PARTS, LOST) | true.get("inputs", {})
    mended: dict[str, Any] = {
        "_": "mended", "version": VERSION, "revision": 0, "recipe": LOST, "inputs": inputs, "epoch": true.get("epoch", epoch),
        "platform": recipe.processor.platform,
    }  # fmt: skip
    for part in _LISTS:
        written = {label: f"{one}" for label, one in wrote.items() if label.startswith(f"{part} ")}
        items = entries(part, there.get(part, Node(value=[], where=where)))
        good = [item.value for label, item in items.items() if now[label] == written.get(label)]
        is_one = wrote.get(part) == part_seal(written or [])
        gone = {
            label.partition(" ")[2]: one.rpartition(" ")[0]
            for label, one in written.items()
            if now.get(label) != one
        }
        if part in PARTS and not (is_one and (part == "debs" or not gone)):
            inputs[part] = LOST
        if part in _WHEELS or (part == "debs" and is_one):
            good += [_lost(part, name, version, recipe) for name, version in gone.items()]
        mended[part] = sorted(good, key=lambda item: str(item["name"]))
    tools = {label: one for label, one in wrote.items() if label.startswith("tools.")}
    if tools and all(now.get(label) == one for label, one in tools.items()):
        mended["tools"] = body["tools"]
    mended |= {key: true[key] for key in ("base", "interpreter") if key in true}
    return parse_lock(json.dumps(mended), where)


def without_lost(lock: Lock) -> Lock:
    """Return a lock with the entries alone whose file is known."""
    debs, wheels, added = (
        tuple(one for one in some if one.sha256 != LOST) for some in (lock.debs, lock.wheels, lock.added)
    )
    return replace(lock, debs=debs, wheels=wheels, added=added)


def _lost(part: str, name: str, version: str, recipe: Recipe) -> dict[str, object]:
    is_deb = part == "debs"
    path = f"{name}_0_{recipe.processor.debian}.deb" if is_deb else f"{name}/{name}"
    return {
        "kind": "deb" if is_deb else "wheel", "name": name, "version": "0" if is_deb else version, "sha256": LOST,
        "size": 0, "source": "debian" if is_deb else "pypi", "path": path,
    }  # fmt: skip
