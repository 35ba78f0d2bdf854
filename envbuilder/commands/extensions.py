"""`extensions`: what a recipe compiles, and what the cache has of it."""

from pydantic import Field

from envbuilder.builder.extensions.list import HEAD, ExtensionStatus, cells, find_extensions, origin
from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.core.answer import Answer, BareAnswer
from envbuilder.core.columns import columns
from envbuilder.plan.make import make_plan


class ListedExtension(Answer):
    """An extension; one that was not compiled yet has no more than its name, form, key and origin."""

    name: str
    extension: str
    form: str
    key: str
    decided_by: dict[str, str]
    function: str = ""
    targets: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0
    files: dict[str, float] = Field(default={})
    compiled_for: str = ""
    torch: str = ""
    origin: str


class ExtensionList(BareAnswer[tuple[ListedExtension, ...]]):
    """The compiled extensions of the recipe."""


@command("extensions", ("envbuilder extensions a100",), ExtensionList)
def extensions(session: Session, name: Name, *, recipes: Recipes) -> None:
    """List a recipe's compiled extensions: key, architectures, size, compile time, and where each came from."""
    store = open_store(session, writes=False)
    recipe, plan, _ = make_plan(name, recipes, store)
    found = tuple(find_extensions(plan, store))
    session.data = ExtensionList(tuple(_listed(one, recipe.name) for one in found))
    rows = [cells(one, recipe.name) for one in found]
    session.text = columns([HEAD, *rows], session.width) if rows else f"{name} has no extensions"


def _listed(found: ExtensionStatus, recipe: str) -> ListedExtension:
    head = ListedExtension(
        name=found.name,
        extension=found.extension.name,
        form=str(found.extension.form),
        key=found.key.digest,
        decided_by=dict(found.key.fields),
        origin=origin(found, recipe),
    )
    compiled = found.compiled
    if compiled is None:
        return head
    return head.model_copy(
        update={
            "function": compiled.entry.function,
            "targets": compiled.entry.targets,
            "size": compiled.entry.size,
            "seconds": compiled.seconds,
            "files": compiled.timings,
            "compiled_for": compiled.recipe,
            "torch": compiled.facts["torch"],
        }
    )
