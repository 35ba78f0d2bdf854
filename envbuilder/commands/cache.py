"""`cache`: what the cache holds, what of it goes by itself, how to free its space, and how to copy out what a lock needs."""

import math
import shutil
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from envbuilder.commands._console import build_context
from envbuilder.commands.context import Recipes, Session, command, open_store
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.cache import KEYED, KINDS, REMADE, WORK, Store, cache_limit
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import columns
from envbuilder.core.spelling import nearest


class VendoredLock(Answer):
    """The folder with all that a lock names, and the command that builds from it."""

    folder: Path
    files: int
    bytes: int
    command: str


class LockedKeys(Answer):
    """The build keys that the locks of a folder name: those of layers, extensions and wheels."""

    keys: tuple[str, ...]


class CacheSizes(Answer):
    """The bytes of each kind, after what `--gc` removed. Above `limit`, builds remove what is `removable`."""

    folder: Path
    bytes: dict[str, int]
    removable: dict[str, int]
    limit: int | None


@command(
    "cache",
    "envbuilder cache",
    "envbuilder cache --gc --unused 30",
    "envbuilder cache vendor a100 /media/disk/a100",
)
def cache(
    session: Session,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND | vendor NAME DIR | keys",
            help="with --gc: what to remove (default: all but `layers` and `extensions`); "
            "`vendor NAME DIR`: copy every file of NAME's lock to DIR; `keys`: print what the locks name")
    ] = None,
    *,
    gc: Annotated[bool, typer.Option("--gc", help="remove what a later build can fetch or build again")] = False,
    unused: Annotated[
        int | None, typer.Option("--unused", metavar="DAYS", min=0,
            help="with --gc: only what no build made or used for so many days and no lock of the recipes names")
    ] = None,
    recipes: Recipes,
) -> Reply[CacheSizes | VendoredLock | LockedKeys]:  # fmt: skip
    """Show what the cache holds, free its space (`cache --gc`), or copy out what a lock needs (`cache vendor a100 DIR`)."""
    match words or []:
        case ["vendor", name, folder] if not gc:
            return _vendor(session, name, recipes, Path(folder).absolute())
        case ["keys"] if not gc:
            keys = tuple(sorted(_pipeline().upkeep.locked_keys(build_context(session, recipes))))
            return Reply(data=LockedKeys(keys=keys), text="\n".join(keys))
        case ["vendor" | "keys" as word, *_]:
            usage = {"keys": "envbuilder cache keys", "vendor": "envbuilder cache vendor cpu DIR"}[word]
            raise UsageError(f"`{word}` takes other words", hint=usage)
        case kinds:
            store = open_store(session)
    if unknown := next((kind for kind in kinds if kind not in (*KINDS, WORK)), ""):
        near = nearest(unknown, ("vendor", "keys", *KINDS, WORK))
        raise UsageError(f"the cache has no `{unknown}`", hint=f"{near}it has {', '.join((*KINDS, WORK))}")
    if kinds and not gc:
        raise UsageError("KIND requires `--gc`", hint=f"envbuilder cache --gc {' '.join(kinds)}")
    if unused is not None and (not gc or not set(kinds) <= set(KEYED)):
        hint = f"these are {', '.join(KEYED)}"
        raise UsageError("`--unused` requires `--gc`, and kinds that have an entry for each key", hint=hint)
    if gc:
        _pipeline().clear(build_context(session, recipes), kinds, days=unused)
    return _sizes(session, store)


def _sizes(session: Session, store: Store) -> Reply[CacheSizes]:
    sizes, removable = store.sizes(), dict.fromkeys(REMADE, 0)
    for entry, size in store.removable():
        removable[entry.parent.name] += size
    total = sum(sizes.values())
    limit = cache_limit(session.environment, total + shutil.disk_usage(store.root).free)
    most = None if math.isinf(limit) else int(limit)
    goes = removable | {"all": sum(removable.values())}
    rows = [("  kind", "size", "goes by itself")]
    for kind, size in (sizes | {"all": total}).items():
        rows.append((f"  {kind}", _gigabytes(size), _gigabytes(goes[kind]) if kind in goes else "-"))
    named = "none" if most is None else _gigabytes(most)
    below = f"limit {named}: above it, builds remove what goes by itself, longest unused first"
    head, foot = (columns([(text,)], session.width) for text in (str(store.root), below))
    return Reply(
        data=CacheSizes(folder=store.root, bytes=sizes, removable=removable, limit=most),
        text="\n".join((head, columns(rows, session.width), foot)),
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _pipeline() -> ModuleType:
    from envbuilder.builder import pipeline  # noqa: PLC0415 - all of a build

    return pipeline


def _vendor(session: Session, name: str, recipes: Path, folder: Path) -> Reply[VendoredLock]:
    context = build_context(session, recipes)
    with context.console.group(f"vendor {name}"):
        vendored = _pipeline().vendor_recipe(name, context, folder)
    return Reply(
        data=VendoredLock(folder=folder, **asdict(vendored)),
        text=f"{folder}: {vendored.files} files, {_gigabytes(vendored.bytes)}\n$ {vendored.command}",
    )
