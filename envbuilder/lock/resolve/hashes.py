"""Compare the files of a lock with the hashes in requirements files, as pip does."""

import logging
from collections.abc import Callable, Collection, Iterator

from packaging.version import Version

from envbuilder.core.errors import RecipeError
from envbuilder.core.findings import Finding
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.held import TORCH, Choice
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.model import Recipe

log = logging.getLogger(__name__)


def need_hashes(
    recipe: Recipe, found: tuple[Artifact, ...], given: Collection[str], choose: Callable[[], Choice]
) -> None:
    """Raise RecipeError for each file with another hash, and for packages without one that hashed ones require.

    `given` are the packages that the recipe brings. What they and torch require needs no hash.
    """
    if not recipe.hashes:
        return
    findings = [*_other_files(recipe, found), *_unhashed(recipe, found, given, choose)]
    if findings:
        count = f"{len(findings)} package" + ("s do" if len(findings) > 1 else " does")
        raise RecipeError(f"{count} not have the hashes of the requirements files", findings=tuple(findings))


def _other_files(recipe: Recipe, found: tuple[Artifact, ...]) -> Iterator[Finding]:
    for one in found:
        lines = [line for line in recipe.hashes if line.is_about(one.name, one.version)]
        expected = dict.fromkeys(digest for line in lines for digest in line.sha256)
        if not lines or one.sha256 in expected:
            continue
        if Version(one.version).local and not any("+" in line.requirement for line in lines):
            log.warning(
                "%s: the hashes of %s are not compared: the recipe chooses the build %s",
                lines[0].where,
                one.name,
                one.version,
            )
            continue
        message = f"`{one.filename}` has sha256 {one.sha256}, and for {one.name} the file expects {' or '.join(expected)}"
        hint = "compare the two with the package's page; the index may have another file under this name"
        yield Finding(code=RecipeCode.HASH, where=lines[0].where, message=message, hint=hint)


def _unhashed(
    recipe: Recipe, found: tuple[Artifact, ...], given: Collection[str], choose: Callable[[], Choice]
) -> Iterator[Finding]:
    """Yield the packages that only hashed ones require. pip refuses these too."""
    hashed = {line.name for line in recipe.hashes}
    if not {one.name for one in found} - hashed - set(given):
        return
    choice = choose()
    free = choice.needed_by({TORCH, *given} - hashed)
    for one in found:
        if one.name not in hashed and one.name not in free:
            parents = ", ".join(name for name in choice.parents.get(one.name, ()) if name not in free)
            where = next((line.where for line in recipe.hashes if line.name in parents.split(", ")), "")
            yield Finding(
                code=RecipeCode.HASH,
                where=where or recipe.hashes[0].where,
                message=f"{parents} requires {one.name} {one.version}, and the file has no hash of it",
                hint=f"`uv pip compile --generate-hashes` writes all; or write `{one.name}` into `packages` of the recipe",
            )
