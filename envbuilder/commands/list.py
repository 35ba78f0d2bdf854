"""`list`: the recipes of a folder with their pins."""

from envbuilder.commands.context import Recipes, Session, command
from envbuilder.core.answer import Answer, BareAnswer
from envbuilder.core.columns import columns
from envbuilder.core.errors import RecipeError
from envbuilder.core.processor import X86_64
from envbuilder.recipe.load import load_all
from envbuilder.recipe.model import Recipe


class ListedRecipe(Answer):
    """A recipe and its pins; an empty text stands for a pin that it does not have. `platform` is linux/amd64 or linux/arm64."""

    name: str
    summary: str
    gpus: tuple[str, ...]
    platform: str
    base: str
    python: str
    pytorch: str
    cuda: str
    gcc: str


class RecipeList(BareAnswer[tuple[ListedRecipe, ...]]):
    """The recipes of the folder that could be read."""


@command("list", ("envbuilder list", "envbuilder list --json"), RecipeList)
def list(session: Session, *, recipes: Recipes) -> None:  # noqa: A001
    """List the recipes with their pins."""
    sound, session.findings = load_all(recipes)
    if session.findings:
        session.exit_code = RecipeError.exit_code
    rows = tuple(_listed(recipe) for recipe in sound)
    session.data = RecipeList(rows)
    session.text = columns([_row(row) for row in rows], session.width)


def _listed(recipe: Recipe) -> ListedRecipe:
    pins = {key: getattr(recipe, key) for key in ListedRecipe.model_fields if key not in ("base", "platform")}
    platform = recipe.processor.platform
    return ListedRecipe(base=recipe.base or recipe.image, platform=platform, **pins)


def _row(one: ListedRecipe) -> tuple[str, ...]:
    pins = {"torch": one.pytorch, "cuda": one.cuda, "gcc": one.gcc, "python": one.python}
    base = one.base if one.platform == X86_64.platform else f"{one.base} {one.platform}"
    return (one.name, *(f"{title} {value or '-'}" for title, value in pins.items()), base, one.summary)
