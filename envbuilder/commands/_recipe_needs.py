"""What `doctor` says of the recipes: each recipe's needs against this machine's driver and GPUs."""

from collections.abc import Sequence
from pathlib import Path

from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules.driver import check_driver, check_host_gpus
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.findings import Severity
from envbuilder.node.doctor import RecipeNeeds
from envbuilder.recipe.model import list_recipes, load


def recipe_needs(folder: Path, driver: str, gpus: Sequence[str]) -> tuple[RecipeNeeds, ...]:
    """Compare each recipe with CUDA with a driver and GPUs, by the rules of `check --host`.

    A recipe that cannot be read is left out: `check` says what is wrong with it.
    """
    tables = load_tables(load_toolkits())
    host = HostFacts(path=Path("this machine"), driver=driver, gpus=tuple(gpus) or None)
    found = []
    for name in list_recipes(folder):
        try:
            recipe = load(folder / f"{name}.yaml")
        except EnvbuilderError:
            continue
        if not recipe.cuda:
            continue
        context = make_context(recipe, tables, host)
        problems = [*check_driver(context), *check_host_gpus(context)]
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        messages = tuple(problem.message for problem in errors or problems)
        found.append(RecipeNeeds(name=name, cuda=recipe.cuda, messages=messages))
    return tuple(found)
