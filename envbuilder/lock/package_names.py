"""Find the packages of a recipe's `apt` list that its suite lacks.

`lock` asks the suite. `check` goes by the names that the last lock left in the cache, and asks no mirror.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from envbuilder.compat.image_facts import suite_of
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.cache import Store
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.spelling import nearest
from envbuilder.lock.known_base import known_locked_base
from envbuilder.lock.repositories import repositories, tag
from envbuilder.lock.security import has_lists, lists_folder
from envbuilder.recipe.model import Recipe

NAMES: Final = "names"  # in a folder with package lists: the names of all packages


class PackageCode(CodeEnum):
    UNKNOWN = "EB413", "a package of `apt` that the suite lacks, by the lists in the cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """A package that a suite lacks."""

    name: str
    place: str  # in the recipe
    hint: str


def find_unlisted(recipe: Recipe, names: Collection[str]) -> Iterator[Unlisted]:
    """Yield the packages of the recipe's `apt` list that are not among the names of a suite."""
    for number, package in enumerate(recipe.apt):
        if package not in names:
            renamed = {f"{package}t64"} & set(names)  # Debian 13 and Ubuntu 24.04 renamed many
            yield Unlisted(
                name=package,
                place=recipe.place(f"$.apt[{number}]"),
                hint=nearest(package, renamed or names).strip(),
            )


def check_packages(recipe: Recipe, store: Store) -> tuple[Finding, ...] | None:
    """Return a warning for each package that the suite lacks; None if the cache does not know the suite's packages.

    A warning and no error, because the suite may have the package by now.
    """
    if not recipe.apt:
        return ()
    base = known_locked_base(recipe, store=store) if recipe.image else None
    rows = load_distributions().by_name
    row = suite_of(base.inside, rows) if base else rows.get(recipe.base)
    if row is None:
        return None
    more = tag(repositories(recipe, base.inside if base else None))
    folder = lists_folder(store, row, row.components, recipe.processor, security=recipe.security, more=more)
    path = folder / NAMES
    if not has_lists(store, folder):
        return None
    have = {package.partition("=")[0] for package in base.packages} if base else set()
    read = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    return tuple(
        Finding(
            code=PackageCode.UNKNOWN,
            severity=Severity.WARNING,
            where=one.place,
            message=f"{row.suite} has no package `{one.name}` (package lists read {read})",
            hint=one.hint,
        )
        for one in find_unlisted(recipe, have.union(path.read_text(encoding="utf-8").split()))
    )
