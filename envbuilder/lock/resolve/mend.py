"""Read what is left of a lock that was edited or merged badly, so that `lock` repairs it and keeps the other versions."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import LockError
from envbuilder.core.places import Mistakes, PlacedNode, load_text, parse_json
from envbuilder.lock import file as lockfile
from envbuilder.lock.model import PARTS, Lock
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.recipe.model import Recipe

log = logging.getLogger(__name__)

LOST: Final = Sha256("0" * 64)  # of an entry whose file is not known
_LISTS: Final = ("debs", "toolkit", "wheels", "builds", "extensions", "conda")


def read_old(
    path: Path, name: str, recipe: Recipe, *, options: LockOptions, save: bool
) -> tuple[Lock | None, LockOptions]:
    """Return the lock so far. One that was edited or merged badly is mended, and the options then name its lost .debs.

    Raises LockError for one that cannot be mended, unless all is chosen anew, and for any such lock without `save`.
    """
    if not path.exists():
        return None, options
    try:
        return lockfile.load_lock(path, recipe=name), options
    except LockError as error:
        old = (
            _mend(load_text(path, Mistakes(), most=lockfile.MOST) or "", str(path), recipe) if save else None
        )
        if not save or (old is None and not options.upgrade):
            raise
        action = "all is chosen anew" if options.upgrade else "that is repaired, and the rest is kept"
        log.warning("%s; %s:\n%s", error.message, action, "\n".join(map(str, error.findings)))
    if old and not options.is_anew:
        lost = (deb.name for deb in old.debs if deb.sha256 == LOST)
        options = replace(options, upgrade_only=(*options.upgrade_only, *lost))
    return old, options


def _mend(text: str, where: str, recipe: Recipe) -> Lock | None:
    """Return the entries that are as `lock` wrote them, on our side of a merge. None if that cannot be told.

    Lost .debs and wheels are there without a file: wheels with the version that `lock` wrote, .debs older than any. A part
    that is to be resolved again has no valid inputs. These are parts of two locks, and all but .debs that lost an entry.
    An epoch that was edited is 0.
    """
    root = parse_json(lockfile.our_side(text), where, Mistakes())
    body = root.value if root and isinstance(root.value, dict) else {}
    wrote = body.get(lockfile.ENTRIES)
    if root is None or not isinstance(wrote, dict) or body.get("version") != lockfile.VERSION:
        return None
    now, there = lockfile.seals(root), lockfile.parts(root)
    intact = {part: node.value for part, node in there.items() if now[part] == wrote.get(part)}
    inputs = {
        part: intact.get(f"inputs.{part}", LOST)
        for part in PARTS
        if part != "conda" or f"inputs.{part}" in wrote
    }
    mended: dict[str, Any] = {
        "_": "mended", "version": lockfile.VERSION, "revision": 0, "recipe": LOST,
        "epoch": 0, "platform": recipe.processor.platform,
    } | {key: intact[key] for key in ("epoch", "platform", "base", "interpreter", "chosen") if key in intact}  # fmt: skip
    for part in _LISTS:
        items = lockfile.entries(part, there.get(part, PlacedNode(value=[], where=where)))
        written = {label: f"{entry}" for label, entry in wrote.items() if label.startswith(f"{part} ")}
        gone = {label: entry for label, entry in written.items() if now.get(label) != entry}
        is_one = part not in wrote or wrote[part] == lockfile.part_seal(written or [])
        if not is_one or (gone and part != "debs"):
            inputs["wheels" if part == "builds" else part] = LOST
        good = [item.value for label, item in items.items() if now[label] == written.get(label)]
        if part == "wheels" or (part == "debs" and is_one):
            good += [_lost(label, entry, recipe) for label, entry in gone.items()]
        mended[part] = sorted(good, key=lambda item: str(item["name"]))
    tools = [label for label in wrote if label.startswith("tools.")]
    if tools and all(now.get(label) == wrote[label] for label in tools):
        mended["tools"] = body["tools"]
    mended["inputs"] = inputs
    return lockfile.parse_lock(json.dumps(lockfile.seal(mended)), where)


def without_lost(lock: Lock) -> Lock:
    """Return a lock with the entries alone whose file is known."""
    parts = (lock.debs, lock.wheels)
    debs, wheels = (tuple(file for file in part if file.sha256 != LOST) for part in parts)
    return replace(lock, debs=debs, wheels=wheels)


def _lost(label: str, written: str, recipe: Recipe) -> dict[str, object]:
    part, name = label.split(" ", 1)
    is_deb, version = part == "debs", written.rpartition(" ")[0]
    path = f"{name}_0_{recipe.processor.debian}.deb" if is_deb else f"{name}/{name}"
    return {
        "kind": "deb" if is_deb else "wheel", "name": name, "version": "0" if is_deb else version, "sha256": LOST,
        "size": 0, "source": "debian" if is_deb else "pypi", "path": path,
    }  # fmt: skip
