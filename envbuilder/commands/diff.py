"""`diff`: what is different between two locks, images or SIFs."""

from pathlib import Path
from typing import Annotated

from envbuilder.artifacts.outputs import SIF
from envbuilder.commands._console import open_console
from envbuilder.commands.context import Recipes, Session, command, open_store, recipe_argument
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.limits import usable_cores
from envbuilder.core.spelling import nearest
from envbuilder.recipe.load import list_recipes
from envbuilder.verify.diff import Contents, Differences, compare
from envbuilder.verify.subjects import find_image, find_lock, open_image, read_image, read_lock, read_sif


@command("diff", ("envbuilder diff a100 h100", "envbuilder diff old/a100.sif build/a100.sif"), Differences)
def diff(
    session: Session,
    one: Annotated[
        str,
        recipe_argument(
            "a lock or its recipe, a SIF, or an image: a layout, an archive, a name in Docker", "A"
        ),
    ],
    other: Annotated[str, recipe_argument("the same", "B")],
    *,
    recipes: Recipes,
) -> None:
    """Compare two locks, images or SIFs: packages, files, sizes, environment, NCCL settings."""
    console = open_console(session)
    # What takes a moment first, so that a mistake in a name does not wait for an image.
    images = [name for name in (one, other) if _is_image(name, recipes)]
    for name in images:
        find_image(name, session.environment, hint=_nearest(name, recipes))
    for name in (one, other):
        if name.endswith(SIF) and not Path(name).exists():
            raise UsageError(f"there is no SIF `{name}`", hint="name two that are there")
    order = sorted((one, other), key=images.__contains__)
    read = {name: _read_subject(name, session, recipes, console) for name in order}
    session.data = found = compare(read[one], read[other])
    session.text = found.text(session.width)


def _is_image(text: str, recipes: Path) -> bool:
    return find_lock(text, recipes) is None and not _is_sif(text)


def _is_sif(text: str) -> bool:
    return Path(text).suffix == SIF and not Path(text).is_dir()


def _nearest(text: str, recipes: Path) -> str:
    return nearest(text, list_recipes(recipes)).strip()


def _read_subject(text: str, session: Session, recipes: Path, console: Console) -> Contents:
    """Read a lock, a SIF or an image; raises UsageError, LockError or VerifyError for what cannot be read."""
    if lock := find_lock(text, recipes):
        return read_lock(*lock)
    step = console.step(f"read `{text}`")
    if _is_sif(text):
        with step:
            return read_sif(Path(text), threads=usable_cores())
    near, store = _nearest(text, recipes), open_store(session)
    with open_image(text, session.environment, store, console, hint=near) as path, step:
        return read_image(text, path)
