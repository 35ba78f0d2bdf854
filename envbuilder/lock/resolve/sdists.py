"""Find the source distribution of an extension in folders and package indexes, and hash it."""

import contextlib
from collections.abc import Iterator

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import FetchError
from envbuilder.core.fetch.remote_zip import Index
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext


def find_sdist(name: str, version: str, context: ResolveContext) -> Artifact:
    """Find and fetch an sdist for its digest. Raises FetchError with the versions that exist."""
    project = canonicalize_name(name)
    sources = context.sources()
    for folder in sources.folders:
        for path in sorted(folder.glob("*.tar.gz")):
            if _is_it(path.name, project, version):
                return _artefact(project, version, path.name, path.read_bytes(), context)
    index = Index(sources)
    files = index.files(project)
    for listed in files:
        if _is_it(listed.filename, project, version):
            return _artefact(project, version, listed.filename, index.read(listed), context)
    there = sorted(
        {str(found) for listed in files for found in _versions(listed.filename)}, key=Version, reverse=True
    )
    raise FetchError(
        f"no package index here has a source distribution of {name} {version}",
        hint=f"it has those of {', '.join(there[:8])}"
        if there
        else "it has none of this project; name `git` and `commit`",
    )


def _artefact(project: str, version: str, filename: str, content: bytes, context: ResolveContext) -> Artifact:
    with context.store.workspace() as work:
        file = work / "sdist"
        file.write_bytes(content)
        digest = sha256_file(file)
        context.store.add_artefact(digest, file)
    return Artifact(
        kind="sdist",
        name=project,
        version=version,
        sha256=digest,
        size=len(content),
        source="pypi",
        path=f"{project}/{filename}",
    )


def _versions(filename: str) -> Iterator[Version]:
    with contextlib.suppress(InvalidSdistFilename):
        yield parse_sdist_filename(filename)[1]


def _is_it(filename: str, project: str, version: str) -> bool:
    try:
        name, found = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return False
    return name == project and found == Version(version) and filename.endswith(".tar.gz")
