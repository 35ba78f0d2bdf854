"""The apt repositories beside those of the base: the recipe's, and others that its base image has."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from envbuilder.compat.image_facts import Base, Name
from envbuilder.core.cache import sha256_text
from envbuilder.lock.base_image.apt_lists import parse_line
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import IMAGE, Repository, for_processor
from envbuilder.sources.names import URL


def repositories(recipe: Recipe, base: Base | None) -> tuple[Repository, ...]:
    """Return the recipe's repositories, then those of its image that the recipe does not name."""
    processor = recipe.processor
    named = tuple(for_processor(repository, processor) for repository in recipe.apt_sources)
    known = {(repository.url, repository.suite) for repository in named}
    names: dict[str, str] = {}  # address → name
    others = []
    for fact in base.every(Name.APT) if base else ():
        listed = parse_line(fact.value)
        if listed is None or (listed.url, listed.suite) in known:
            continue
        stem = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(fact.path).stem.lower()).strip("-")
        more = (f"{IMAGE}{stem}{number}" for number in ("", *(f"-{at}" for at in range(2, 2 + len(names)))))
        name = names.setdefault(listed.url, next(free for free in more if free not in names.values()))
        place, suite, components = listed.url, listed.suite, listed.components
        others.append(Repository(name=name, url=place, suite=suite, components=components, keys=listed.keys))
    return (*named, *others)


def addresses(recipe: Recipe, base: Base | None) -> Mapping[str, str]:
    """Return the address of each repository, and of the folder of each extension's archive, by its source in a lock."""
    archives = {archive_source(one): f"{one.url.rpartition('/')[0]}/" for one in recipe.extensions if one.url}
    return {one.source: one.url for one in repositories(recipe, base)} | archives


def archive_source(extension: Extension) -> str:
    """Return the source of the archive of an extension with `url`."""
    return f"{URL}{extension.sha256[:12]}"


def tag(found: Sequence[object]) -> str:
    """Return a short text that differs for others of these dataclasses, "" for none."""
    return sha256_text(repr(found))[:8] if found else ""
