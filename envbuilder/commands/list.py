"""`list`: the recipes of a folder with their pins."""

from envbuilder.commands.context import Recipes, Session, command
from envbuilder.core.answer import Answer, BareAnswer, Reply
from envbuilder.core.errors import RecipeError
from envbuilder.core.plain import columns
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

    def row(self) -> tuple[str, ...]:
        pins = {"torch": self.pytorch, "cuda": self.cuda, "gcc": self.gcc, "python": self.python}
        base = self.base if self.platform == X86_64.platform else f"{self.base} {self.platform}"
        return (self.name, *(f"{title} {pin or '-'}" for title, pin in pins.items()), base, self.summary)


class RecipeList(BareAnswer[tuple[ListedRecipe, ...]]):
    """The recipes of the folder that could be read."""


@command("list", "envbuilder list", "envbuilder list --json")
def list(session: Session, *, recipes: Recipes) -> Reply[RecipeList]:  # noqa: A001
    """List the recipes with their pins."""
    sound, findings = load_all(recipes)
    rows = tuple(map(_listed, sound))
    return Reply(
        data=RecipeList(rows), text=columns([row.row() for row in rows], session.width),
        findings=findings, exit_code=RecipeError.exit_code if findings else 0,
    )  # fmt: skip


def _listed(recipe: Recipe) -> ListedRecipe:
    pins = {key: getattr(recipe, key) for key in ListedRecipe.model_fields if key not in ("base", "platform")}
    return ListedRecipe(base=recipe.base or recipe.image, platform=recipe.processor.platform, **pins)
