"""`cache`: what the cache holds, how to free its space, and how to copy out what a lock needs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.build.context import BuildContext
from envbuilder.build.pipeline import vendor_recipe
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import (
    RECIPES,
    Answer,
    Json,
    NoColor,
    Recipes,
    Session,
    Verbose,
    examples,
    new_app,
    open_session,
)
from envbuilder.core.cache import KEPT, KINDS, WORK
from envbuilder.core.console import columns
from envbuilder.core.errors import UsageError

EXAMPLES: Final = (
    "envbuilder cache",
    "envbuilder cache --gc trees",
    "envbuilder cache vendor a100 /media/disk/a100",
)
app = new_app()


class CacheSizes(Answer):
    """The bytes of each kind of content, after what `--gc` removed."""

    folder: Path
    bytes: dict[str, int]


class VendoredLock(Answer):
    """The folder with all that a lock names, and the command that builds from it."""

    folder: Path
    files: int
    bytes: int
    command: str


ANSWER: Final = CacheSizes | VendoredLock


@app.command(epilog=examples(EXAMPLES))
def cache(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="with --gc: what to remove, all but `layers` and `extensions` if nothing is named; `vendor`: write all that the lock of NAME names into DIR",
            metavar="KIND | vendor NAME DIR",
        ),
    ] = None,
    *,
    gc: Annotated[
        bool, typer.Option("--gc", help="remove what a later build can fetch or build again")
    ] = False,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Show what the cache holds, free its space (`cache --gc trees`), or copy out what a lock needs (`cache vendor a100 DIR`)."""
    with open_session("cache", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        context = build_context(session, recipes)
        match words or []:
            case ["vendor", name, folder] if not gc:
                _vendor(session, context, name, Path(folder))
                return
            case ["vendor", *_]:
                raise UsageError(
                    "`vendor` takes a recipe and a folder", hint="envbuilder cache vendor cpu DIR"
                )
            case kinds:
                pass
        store = context.store
        if unknown := sorted(set(kinds) - {*KINDS, WORK}):
            raise UsageError(f"the cache has no `{unknown[0]}`", hint=f"it has {', '.join((*KINDS, WORK))}")
        if kinds and not gc:
            raise UsageError("KIND requires `--gc`", hint=f"envbuilder cache --gc {' '.join(kinds)}")
        if gc:
            store.sweep()
            named = kinds or [kind for kind in KINDS if kind not in KEPT]
            if chosen := [kind for kind in named if kind != WORK]:  # `sweep` has cleared `work`
                store.clear(chosen)
        sizes = store.sizes()
        session.data = CacheSizes(folder=store.root, bytes=sizes)
        rows = [(f"  {kind}", f"{size / 1e9:.2f} GB") for kind, size in sizes.items()]
        session.text = "\n".join(columns(part, session.width) for part in ([(str(store.root),)], rows))


def _vendor(session: Session, context: BuildContext, name: str, folder: Path) -> None:
    with context.console.group(f"vendor {name}"):
        done = vendor_recipe(name, context, folder.absolute())
    session.data = VendoredLock(folder=done.folder, files=done.count, bytes=done.size, command=done.command)
    session.text = f"{done.folder}: {done.count} files, {done.size / 1e9:.2f} GB\n$ {done.command}"
