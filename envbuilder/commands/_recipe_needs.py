"""What `doctor` says of the recipes: each recipe's needs against this machine's driver and GPUs."""

from collections.abc import Sequence
from pathlib import Path

from envbuilder.compat.context import load_tables, make_case
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
        case = make_case(recipe, tables, host)
        faults = [*check_driver(case), *check_host_gpus(case)]
        errors = [fault for fault in faults if fault.severity is Severity.ERROR]
        messages = tuple(fault.message for fault in errors or faults)
        found.append(RecipeNeeds(name=name, cuda=recipe.cuda, messages=messages))
    return tuple(found)
