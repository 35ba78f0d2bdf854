"""Lock the sources of extensions: the recipe's own files, a git commit or an sdist, with digests."""

from dataclasses import asdict

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from envbuilder.core.cache import sha256_bytes, sha256_file
from envbuilder.core.errors import FetchError, LockError
from envbuilder.lock.model import Artifact, Lock, LockedExtension
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.git import export_commit
from envbuilder.lock.source_files import own_files
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe


def lock_extensions(
    recipe: Recipe, context: ResolveContext, *, old: Lock | None
) -> tuple[LockedExtension, ...]:
    """Find and hash the sources of the extensions. Raises RecipeError, FetchError or BuildError.

    An archive of the old lock with the same commit or version is kept without a request.
    """
    known = {one.name: one for one in old.extensions} if old else {}
    files = own_files(recipe)
    return tuple(
        LockedExtension(
            **asdict(one), files=files[one.name], archive=_archive(one, known.get(one.name), context)
        )
        for one in recipe.extensions
    )


def store_sources(
    recipe: Recipe, extensions: tuple[LockedExtension, ...], context: ResolveContext, *, offline: bool = False
) -> None:
    """Put the extensions' own files and git commits into the store. Sdists are fetched like wheels."""
    for extension in extensions:
        for file in extension.files:
            context.store.add_artifact(file.sha256, recipe.path.parent / file.path)
        archive = extension.archive
        if archive and archive.kind == "git" and not context.store.artifact(archive.sha256).exists():
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
    found = export_commit(extension.git, extension.commit, store=context.store, runner=context.runner)
    if found.sha256 != archive.sha256:
        raise LockError(
            f"the commit {extension.commit} of `{extension.git}` gives other files than when it was locked",
            hint="a submodule that is gone, or a repository that was replaced: find out which before you lock again",
        )


def _archive(extension: Extension, old: LockedExtension | None, context: ResolveContext) -> Artifact | None:
    origin = (extension.git, extension.commit, extension.sdist)
    if not any(origin):
        return None
    if old is not None and origin == (old.git, old.commit, old.sdist):
        return old.archive
    if extension.sdist:
        name, _, version = extension.sdist.partition("==")
        return _find_sdist(name, version, context)
    return export_commit(extension.git, extension.commit, store=context.store, runner=context.runner)


def _find_sdist(name: str, version: str, context: ResolveContext) -> Artifact:
    """Fetch a source distribution from a folder or an index. Raises FetchError with the known versions."""
    from envbuilder.core.fetch.remote_zip import Index  # noqa: PLC0415 - requests takes 0.15 s, for sdists alone

    project, wanted = canonicalize_name(name), Version(version)
    sources = context.sources()
    for folder in sources.folders:
        for path in sorted(folder.glob("*.tar.gz")):
            if _sdist_version(path.name, project) == wanted:
                return _add_sdist(project, version, path.name, path.read_bytes(), context)
    index = Index(sources)
    files = {one: _sdist_version(one.filename, project) for one in index.files(project)}
    for listed, found in files.items():
        if found == wanted:
            return _add_sdist(project, version, listed.filename, index.read(listed), context)
    there = [str(one) for one in sorted(filter(None, set(files.values())), reverse=True)]
    raise FetchError(
        f"no package index here has a source distribution of {name} {version}",
        hint=f"it has those of {', '.join(there[:8])}"
        if there
        else "it has none of this project; name `git` and `commit`",
    )


def _sdist_version(filename: str, project: str) -> Version | None:
    """Return the version of a source distribution of the project, None for another file."""
    try:
        name, version = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return None
    return version if name == project and filename.endswith(".tar.gz") else None


def _add_sdist(
    project: str, version: str, filename: str, content: bytes, context: ResolveContext
) -> Artifact:
    digest = sha256_bytes(content)
    with context.store.workspace() as work:
        file = work / "sdist"
        file.write_bytes(content)
        context.store.add_artifact(digest, file)
    return Artifact(
        kind="sdist", name=project, version=version, sha256=digest, size=len(content), source="pypi", path=f"{project}/{filename}"
    )  # fmt: skip
