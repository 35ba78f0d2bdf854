"""`diff`: what is different between two locks, images or SIFs."""

from typing import Annotated

from envbuilder.commands._console import open_console
from envbuilder.commands.context import Recipes, Session, command, open_store, recipe_argument
from envbuilder.core.answer import Reply
from envbuilder.core.system import usable_cores
from envbuilder.verify.diff import Differences, Subjects, compare


@command("diff", "envbuilder diff a100 h100", "envbuilder diff old/a100.sif build/a100.sif")
def diff(
    session: Session,
    first: Annotated[
        str, recipe_argument("a lock or its recipe, a SIF, or an image: a layout, an archive, a name in Docker", "A")
    ],
    second: Annotated[str, recipe_argument("the same", "B")],
    *, recipes: Recipes,
) -> Reply[Differences]:  # fmt: skip
    """Compare two locks, images or SIFs: packages, files, sizes, environment, NCCL settings."""
    subjects = Subjects(
        environment=session.environment, store=lambda: open_store(session), console=open_console(session),
        recipes=recipes, threads=usable_cores(),
    )  # fmt: skip
    differences = compare(*subjects.read(first, second))
    return Reply(data=differences, text=differences.text(session.width))
