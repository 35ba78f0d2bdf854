"""Lock the sources of extensions: the recipe's own files, a git commit, an sdist or an archive, with digests."""

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from functools import partial

from envbuilder.compat.repositories import archive_source
from envbuilder.core.beneath import FILE_LIMIT, read_beneath
from envbuilder.core.cache import Store, sha256_bytes, sha256_file
from envbuilder.core.errors import FetchError, LockError
from envbuilder.core.findings import Finding
from envbuilder.core.process import Runner
from envbuilder.lock.model import Artifact, Lock, LockedExtension, LockedWarm
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.sdists import add_sdist, find_sdist
from envbuilder.lock.source_files import WARM, own_files, store_source
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.warm import NO_WARM
from envbuilder.sources.git import check_out
from envbuilder.sources.http import ARCHIVE, SourceError
from envbuilder.sources.http.reachable import silent
from envbuilder.steps import fetch_commit


def lock_extensions(
    recipe: Recipe, context: ResolveContext, *, old: Lock | None
) -> tuple[LockedExtension, ...]:
    """Find and hash the sources of the extensions. Raises RecipeError, FetchError or BuildError.

    An archive of the old lock with the same commit or version is kept without a request.
    """
    known = {extension.name: extension for extension in old.extensions} if old else {}
    files = own_files(recipe)
    locked: list[LockedExtension] = []
    for extension in (*recipe.extensions, *recipe.implied):
        keys = (key.name for key in fields(extension) if key.name not in ("is_imported", "deepspeed"))
        given = {key: getattr(extension, key) for key in keys}
        with _naming(recipe, extension.name):
            archive = _archive(extension, known.get(extension.name), context)
        locked.append(LockedExtension(**given, files=files.get(extension.name, ()), archive=archive))
    return tuple(locked)


def lock_warm(recipe: Recipe) -> LockedWarm | None:
    """Hash the files that the programs of `warm` read, and those of its `caches`."""
    if recipe.warm == NO_WARM:
        return None
    files = own_files(recipe)[WARM]
    return LockedWarm(run=recipe.warm.commands, files=files, caches=recipe.warm.caches)


@contextlib.contextmanager
def _naming(recipe: Recipe, name: str) -> Iterator[None]:
    """Add the extension and its place in the recipe to a FetchError of the block."""
    try:
        yield
    except FetchError as error:
        names = [extension.name for extension in recipe.extensions]
        where = recipe.place(f"$.extensions[{names.index(name)}]") if name in names else ""
        message = f"the sources of the extension `{name}`: {error.message}"
        finding = Finding(code=error.code, where=where, message=message, hint=error.hint)
        raise FetchError(message, hint=error.hint, findings=(finding,)) from error


def store_sources(
    recipe: Recipe,
    extensions: tuple[LockedExtension, ...],
    context: ResolveContext,
    *,
    offline: bool = False,
    warm: LockedWarm | None = None,
) -> None:
    """Put the files of the recipe's folder and git commits into the store. Sdists are fetched like wheels."""
    for file in warm.files if warm else ():
        store_source(recipe.path.parent, file, context.store)
    for extension in extensions:
        for file in extension.files:
            store_source(recipe.path.parent, file, context.store)
        archive = extension.archive
        if archive and archive.kind == "git" and not context.store.has_artifact(archive.sha256):
            with _naming(recipe, extension.name):
                _store_commit(extension, archive, context, offline=offline)


def _store_commit(
    extension: LockedExtension, archive: Artifact, context: ResolveContext, *, offline: bool
) -> None:
    """Take the commit from a folder written by `cache vendor`, otherwise from the repository."""
    for folder in context.sources().folders:
        path = folder / archive.filename
        if path.is_file() and sha256_file(path) == archive.sha256:
            context.store.add_artifact(archive.sha256, path)
            return
    if offline:
        raise FetchError(
            f"this run is offline, and the commit {extension.commit} of `{extension.git}` is not in the cache",
            hint=f"run it once without `--offline`, or put `{archive.filename}` into a folder that ENVBUILDER_FOLDERS names",
        )
    exported = _export(extension.git, extension.commit, context)
    if exported.sha256 != archive.sha256:
        raise LockError(
            f"the commit {extension.commit} of `{extension.git}` gives other files than when it was locked",
            hint="a submodule that is gone, or a repository that was replaced: find out which before you lock again",
        )


def _archive(extension: Extension, old: LockedExtension | None, context: ResolveContext) -> Artifact | None:
    origin = (extension.git, extension.commit, extension.sdist, extension.url, extension.sha256)
    if not any(origin):
        return None
    if old is not None and origin == (old.git, old.commit, old.sdist, old.url, old.sha256):
        return old.archive
    if extension.sdist:
        name, _, version = extension.sdist.partition("==")
        return find_sdist(name, version, context)
    if extension.url:
        return _download(extension, context)
    return _export(extension.git, extension.commit, context)


def _download(extension: Extension, context: ResolveContext) -> Artifact:
    """Fetch the archive of an address. Raises FetchError if it is not there, LockError if it is another file."""
    filename = extension.url.rpartition("/")[2]
    here = (folder / filename for folder in context.sources().folders)
    try:
        content = next((path.read_bytes() for path in here if path.is_file()), None)
        content = content or context.fetcher.page(extension.url, most=ARCHIVE)
    except SourceError as error:
        raise FetchError(f"the archive of the extension `{extension.name}` cannot be had: {error}") from error
    digest = sha256_bytes(content)
    if digest != extension.sha256:
        raise LockError(
            f"`{extension.url}` of the extension `{extension.name}` has the sha256 {digest}, and the recipe says {extension.sha256}",
            hint="find out why the file is another one before you write its sha256",
        )
    name, source = extension.name.strip("_"), archive_source(extension)
    return add_sdist(name, digest[:12], filename, content, context, source=source)


def _export(url: str, commit: str, context: ResolveContext) -> Artifact:
    with context.waiting(lambda: silent((url,), context.sources().certificates)):
        return export_commit(url, commit, store=context.store, runner=context.runner)


def export_commit(url: str, commit: str, *, store: Store, runner: Runner) -> Artifact:
    """Fetch a commit and put its tree into the store. Raises FetchError if git cannot, ToolError without git."""
    with store.workspace() as work:
        tree = work / "tree"
        check_out(url, commit, tree, runner)
        archive = work / "tree.tar"
        fetch_commit.pack(tree, archive, partial(read_beneath, limit=FILE_LIMIT))
        digest, size = sha256_file(archive), archive.stat().st_size
        store.add_artifact(digest, archive)
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return Artifact(
        kind="git", name=name, version=commit, sha256=digest, size=size, source="git", path=f"{commit}.tar"
    )
