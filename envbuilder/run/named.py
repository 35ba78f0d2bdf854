"""What is started is what was named: compare the SIF or the image under a recipe's name with that recipe and its lock.

Image and SIF say in their labels of which recipe and lock they are, so this takes milliseconds and comes before Apptainer or
Docker. Where the user names a file, or no recipe of that name is here, only what the file itself can say is checked.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuilder.artifacts import history
from envbuilder.artifacts.outputs import SIF, Outputs, Record, find_outputs, need_no_folder, read_record
from envbuilder.core.cache import sha256_file, sha256_text
from envbuilder.core.errors import (
    EnvbuilderError,
    ForeignError,
    OtherRecipeError,
    OtherUserError,
    StaleError,
    UsageError,
)
from envbuilder.core.places import shown
from envbuilder.core.plain import pasted
from envbuilder.core.private import is_in_place
from envbuilder.lock.file import changed_sources, load_fresh, load_lock, lock_path, lock_text
from envbuilder.plan.model import LOCK_LABEL, PLAN_LABEL, RECIPE_LABEL, TITLE
from envbuilder.recipe.extension import Form
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.load import find_recipe, hint_to_build, mistaken, read
from envbuilder.recipe.model import Recipe

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine

MADE_BY: Final = "`envbuilder build NAME` makes one from a recipe"
log = logging.getLogger(__name__)


def need_sif(name: str, output: Path, recipes: Path) -> Outputs:
    """Return the output files of the environment, whose SIF is what `name` says.

    Raises UsageError for a SIF that is not there or may not be read, ForeignError, DamagedError, and what `_need_own` raises.
    """
    from envbuilder.artifacts.sif import DataType, read_labels, read_sif  # noqa: PLC0415 - `exec --help` does without zstandard

    outputs = find_outputs(name, output)
    sif = outputs.sif
    need_file(sif, name, recipes)
    head = read_sif(sif)
    here = _recipe_here(name, outputs, recipes, lambda record: record.knows_sif(sif))
    if here is None:
        if PLAN_LABEL.encode() in head.read(DataType.LABELS):  # Apptainer knows more of somebody else's SIF
            read_labels(sif)
        return outputs
    if not is_in_place(str(sif)):
        raise OtherUserError(
            f"`{sif}` belongs to user {sif.lstat().st_uid}, to whom its folder does not belong",
            hint=f"`{sif}` in place of `{name}` takes it as it is",
        )
    _need_own(f"`{sif}`", read_labels(sif), here, name, sif=sif)
    return outputs


def need_file(sif: Path, name: str, recipes: Path) -> None:
    """Raise UsageError unless there is a file that this user may read, ForeignError for a device or a pipe."""
    if not os.path.lexists(sif):
        raise absent(f"there is no SIF `{sif}`", name, recipes)
    if not sif.exists():
        raise absent(f"`{sif}` is a link to `{sif.readlink()}`, which is not there", name, recipes)
    need_no_folder(str(sif))
    if not sif.is_file():
        raise ForeignError(f"`{sif}` is a device or a pipe, not a SIF", hint="name another file")
    if not os.access(sif, os.R_OK):
        why = f"permission denied; it belongs to user {sif.stat().st_uid}"
        raise UsageError(f"`{sif}` cannot be read: {why}", hint="`chmod a+r` lets everybody read it")


def need_image(docker: "DockerEngine", name: str, outputs: Outputs, recipes: Path, *, also: str = "") -> str:
    """Return the ID of the recipe's image in the engine, which is what `name` says.

    All checkouts use the same image name. Raises UsageError when the engine lacks the image, and what `_need_own` raises.
    """
    image = outputs.image_name
    try:
        identity = docker.image_id(image)
    except UsageError as error:
        raise absent(f"{also}{error.message}", name, recipes) from error
    if here := _recipe_here(name, outputs, recipes, lambda record: docker.holds(image, record.manifest)):
        _need_own(f"the Docker engine's `{image}`", docker.labels(image), here, name)
    record = read_record(outputs)
    if record is not None and not docker.holds(image, record.manifest):
        log.warning(
            "warning: the Docker engine's `%s` is %.19s, but the build in `%s` is sha256:%.12s; `envbuilder build %s` loads it",
            image, identity, outputs.image, record.manifest, name,
        )  # fmt: skip
    return identity


def need_pair(name: str, output: Path, recipes: Path, *, forms: Collection[str] = ("image", "sif")) -> None:
    """Raise what `need_sif` raises for the SIF and for the image in the folder of artifacts, of which `forms` are wanted."""
    from envbuilder.artifacts.oci.layout import read_layout  # noqa: PLC0415 - as above

    outputs = find_outputs(name, output)
    if "image" in forms:
        if not outputs.image.exists():
            raise absent(f"there is no `{outputs.image}`", name, recipes)
        if here := _recipe_here(name, outputs, recipes, lambda record: record.knows_image(outputs.image)):
            labels = dict(read_layout(outputs.image).config.image.labels)
            _need_own(f"`{outputs.image}`", labels, here, name)
    if "sif" in forms:
        need_sif(name, output, recipes)


def absent(missing: str, name: str, recipes: Path) -> UsageError:
    """Return the error for artifacts that are not there."""
    return UsageError(missing, hint=hint_to_build(name, recipes))


def _recipe_here(
    name: str, outputs: Outputs, recipes: Path, is_built: Callable[[Record], bool]
) -> tuple[Recipe, bool] | None:
    """Return the recipe of that name, and whether all its files are here; None for a SIF's path or if there is none to compare.

    A build record for which `is_built` holds is of this artifact, and names the recipe's file: of a name alone, that counts.
    """
    if name.endswith(SIF):
        return None
    path, record = None, None if "/" in name else read_record(outputs)
    with contextlib.suppress(UsageError):
        path = find_recipe(name, recipes)
    if record and record.path and Path(record.path).is_file() and is_built(record):
        path = Path(record.path)
    if path is None:
        return None
    recipe, mistakes = read(path.with_stem(outputs.name))  # of several processors, this machine's variant
    if recipe is None or any(mistake.code != RecipeCode.PATH for mistake in mistakes):
        log.warning(
            "warning: %s, so nothing is compared with it; `envbuilder check %s` lists them", mistaken(path, mistakes), pasted(name),
        )  # fmt: skip
        return None
    return recipe, not mistakes


def _need_own(
    what: str, labels: Mapping[str, str], here: tuple[Recipe, bool], name: str, *, sif: Path | None = None
) -> None:
    """Raise ForeignError, OtherRecipeError or StaleError unless the labels are of this recipe and its lock.

    An earlier version of the SIF that the user chose is only said to be one. Where the recipe's sources are missing, as on a
    cluster, its lock alone is compared.
    """
    recipe, is_whole = here
    if PLAN_LABEL not in labels:
        raise ForeignError(f"{what} was not made by envbuilder: it names no plan", hint=MADE_BY)
    differs, lock = "", lock_path(recipe)
    if RECIPE_LABEL not in labels:
        differs = "an older envbuilder made it, so it does not say of which recipe and lock"
    elif is_whole and labels[RECIPE_LABEL] != f"sha256:{recipe.digest}":
        differs = f"its recipe is not `{recipe.path}` as it is now"
    elif lock.is_file() and not _is_of_lock(labels.get(LOCK_LABEL, ""), lock):
        differs = f"its lock is not `{lock}` as it is now"
    if not differs:
        _warn_of_sources(recipe, name)
        return
    hint = f"`envbuilder build {pasted(name)}` makes it"
    try:
        load_fresh(recipe, name)
    except EnvbuilderError:  # of what lies beside the recipe: `lock` names it
        hint = f"`envbuilder lock {pasted(name)}`, then {hint}"
    if sif:
        hint += f"; `{sif}` in place of `{name}` takes it as it is"
    if labels.get(TITLE, recipe.name) != recipe.name:
        message = f"{what} is the environment {shown(labels[TITLE])}, not `{recipe.name}`"
        raise OtherRecipeError(message, hint=hint)
    if RECIPE_LABEL not in labels:
        log.warning("warning: %s: %s; %s", what, differs, hint)
    elif sif and any(version.current for version in history.versions(sif)[1:]):
        log.warning("%s is an earlier version, as chosen: %s", what, differs)
    else:
        raise StaleError(f"{what} is of another version: {differs}", hint=hint)


def _warn_of_sources(recipe: Recipe, name: str) -> None:
    """Say which sources of projects changed since they were compiled. Python of the working folder counts at once."""
    lock = lock_path(recipe)
    projects = (part for part in recipe.extensions if part.form is Form.PROJECT and not part.is_remote)
    if not lock.is_file() or not any(projects):
        return
    sources = changed_sources(load_lock(lock), recipe.path.parent)
    if changed := [path for path in sources if not path.endswith(".py")]:
        log.warning(
            "warning: `%s` changed since it was locked, and the compiled code is older; `envbuilder lock %s`, then `build`, compiles it",
            "`, `".join(changed[:3]), pasted(name),
        )  # fmt: skip


def _is_of_lock(label: str, lock: Path) -> bool:
    """Whether the label is of this lock, whose text may be written in another way. Raises LockError for one that cannot be read."""
    of_file = f"sha256:{sha256_file(lock)}"
    return label == of_file or label == f"sha256:{sha256_text(lock_text(load_lock(lock)))}"
