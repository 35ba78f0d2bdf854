"""What an image holds of its site and for its nodes: NCCL settings that the recipe fixes, and what a node must have."""

import json
from pathlib import Path
from typing import Final

from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import driver_floor
from envbuilder.compat.host_file import load_host_facts
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.errors import UsageError
from envbuilder.recipe.model import AUTO, Recipe

NEEDS: Final = "opt/envbuilder/needs.json"
BAKED: Final = "opt/envbuilder/nccl.json"
NCCL_CONF: Final = "etc/nccl.conf"


def site_files(recipe: Recipe, host: Path | None) -> tuple[tuple[str, str], ...]:
    """What an image holds of its site, path → text: the recipe's profile, or that of `host`, and its fixed settings.

    Raises UsageError for a profile that cannot be read.
    """
    if host is None and recipe.nccl == AUTO:
        return ()
    if host is None and recipe.nccl == "off":
        return ((BAKED, json.dumps({"mode": "off"}) + "\n"),)
    from envbuilder.node.nccl.profile import profile_data  # noqa: PLC0415 - few recipes bake a profile

    path = host or recipe.path.parent / recipe.nccl
    profile = load_host_facts(path).profile
    if profile is None:
        raise UsageError(f"`{path}` holds no profile", hint="`envbuilder detect --save FILE` writes one")
    text = json.dumps({"mode": "profile", "profile": profile_data(profile)}, indent=1, sort_keys=True) + "\n"
    fixed = "".join(f"{name}={value}\n" for name, value in profile.fixed)
    return ((BAKED, text), *(((NCCL_CONF, fixed),) if fixed else ()))


def need_files(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    """What the environment needs of its node, for the check at its start; nothing without CUDA."""
    floor = driver_floor(recipe, load_tables(load_toolkits()))
    return ((NEEDS, json.dumps({"driver": floor}) + "\n"),) if floor else ()
