"""Resolve the standalone Python of a recipe whose suite or image has another one."""

from datetime import datetime
from typing import Final
from urllib.parse import quote

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import STANDALONE

NAME: Final = "cpython"


def resolve_interpreter(
    recipe: Recipe, target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the newest build of the tables, nothing if none is needed.

    Raises IncompatibleError for a build after `options.before`, or FetchError if no source tells its size.
    """
    build = target.standalone
    if build is None:
        return ()
    day = datetime.strptime(build.release, "%Y%m%d").date()  # noqa: DTZ007 - a day, not a time
    if options.before and day >= options.before:
        raise IncompatibleError(
            f"{recipe.place('$.python')}: the tables have Python {build.version} of {day}, which is not before {options.before}",
            hint="lock without `--before`, or take a suite with this Python",
        )
    digest, path = Sha256(build.digest(target.processor)), build.path(target.processor)
    size = _size(path, digest, context)
    return (
        Artifact(
            kind="archive", name=NAME, version=f"{build.version}+{build.release}", sha256=digest, size=size,
            source=STANDALONE, path=path,
        ),
    )  # fmt: skip


def _size(path: str, digest: Sha256, context: ResolveContext) -> int:
    """Return the size of an archive in bytes: from the cache, a folder, or the first release that answers."""
    sources = context.sources()
    name = path.rpartition("/")[2]
    if context.store.has_artifact(digest):
        return context.store.artifact(digest).stat().st_size
    for file in (folder / name for folder in sources.folders):
        if file.is_file():
            return file.stat().st_size
    *others, last = (base + quote(path) for base in sources.standalone)
    for url in others:
        try:
            return context.fetcher.measure([url])[0]
        except FetchError:
            continue
    return context.fetcher.measure([last])[0]
