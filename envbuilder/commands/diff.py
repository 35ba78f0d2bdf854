"""`diff`: what is different between two locks, images or SIFs."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from envbuilder.commands._console import open_console
from envbuilder.commands.context import (
    RECIPES,
    Answer,
    Json,
    NoColor,
    Recipes,
    Session,
    Verbose,
    complete_recipe,
    examples,
    new_app,
    open_session,
    open_store,
)
from envbuilder.core.console import Console
from envbuilder.core.limits import usable_cores
from envbuilder.core.places import nearest
from envbuilder.lock.diff import Change
from envbuilder.recipe.load import list_recipes
from envbuilder.verify.diff import Contents, compare
from envbuilder.verify.subjects import find_lock, open_image, read_image, read_lock, read_sif

EXAMPLES: Final = ("envbuilder diff a100 h100", "envbuilder diff old/a100.sif build/a100.sif")
app = new_app()


class ComparedSubject(Answer):
    """One of the two that were compared."""

    kind: Literal["lock", "image", "sif"]
    name: str


class ComparedSizes(Answer):
    """Bytes: of the files, or of what a lock fetches. `folders` has the growth of those that changed most."""

    before: int
    after: int
    folders: dict[str, int]


class Differences(Answer):
    """What differs. `files` is null where one of the two is a lock."""

    subjects: tuple[ComparedSubject, ComparedSubject]
    packages: tuple[Change, ...]
    environment: tuple[Change, ...]
    nccl: tuple[Change, ...]
    sizes: ComparedSizes
    files: tuple[Change, ...] | None


ANSWER: Final = Differences


@app.command(epilog=examples(EXAMPLES))
def diff(
    one: Annotated[
        str,
        typer.Argument(
            help="a lock or its recipe, a SIF, or an image: a layout, an archive, a name in Docker",
            metavar="A",
            autocompletion=complete_recipe,
        ),
    ],
    other: Annotated[str, typer.Argument(help="the same", metavar="B", autocompletion=complete_recipe)],
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Compare two locks, images or SIFs: packages, files, sizes, environment, NCCL settings."""
    with open_session("diff", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        console = open_console(session)
        found = compare(*(_read_subject(name, session, recipes, console) for name in (one, other)))
        session.data = Differences.model_validate(found.data())
        session.text = found.text(session.width)


def _read_subject(text: str, session: Session, recipes: Path, console: Console) -> Contents:
    """Read a lock, a SIF or an image; raises UsageError, LockError or VerifyError for what cannot be read."""
    if lock := find_lock(text, recipes):
        return read_lock(*lock)
    step = console.step(f"read `{text}`")
    if Path(text).suffix == ".sif":
        with step:
            return read_sif(Path(text), threads=usable_cores())
    near = nearest(text, list_recipes(recipes)).strip()
    store = open_store(session)
    with open_image(text, session.environment, store, console, hint=near) as path, step:
        return read_image(text, path)
