"""Files of an image about its nodes: fixed NCCL settings, and the oldest driver that works."""

import json
from pathlib import Path
from typing import Final

from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import driver_floor
from envbuilder.compat.host_file import load_host_facts
from envbuilder.core.errors import UsageError
from envbuilder.recipe.model import AUTO, Recipe

NEEDS: Final = "opt/envbuilder/needs.json"
BAKED: Final = "opt/envbuilder/nccl.json"
NCCL_CONF: Final = "etc/nccl.conf"


def site_files(recipe: Recipe, host: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the files of the site, path → text: the NCCL profile and its fixed settings.

    The profile is that of `host`, otherwise the recipe's. Raises UsageError for a file without a profile.
    """
    if host is None and recipe.nccl == AUTO:
        return ()
    if host is None and recipe.nccl == "off":
        return ((BAKED, json.dumps({"mode": "off"}) + "\n"),)
    path = host or recipe.path.parent / recipe.nccl
    facts = load_host_facts(path)
    if facts.profile is None:
        raise UsageError(f"`{path}` holds no profile", hint="`envbuilder detect --save FILE` writes one")
    text = json.dumps({"mode": "profile", "profile": facts.profile_data}, indent=1, sort_keys=True) + "\n"
    fixed = "".join(f"{name}={value}\n" for name, value in facts.profile.fixed)
    return ((BAKED, text), *(((NCCL_CONF, fixed),) if fixed else ()))


def need_files(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    """Return the file with the driver floor, path → text, which is checked at start-up. Empty without CUDA."""
    floor = driver_floor(recipe, load_tables())
    return ((NEEDS, json.dumps({"driver": floor}) + "\n"),) if floor else ()
