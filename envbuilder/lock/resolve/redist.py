"""Resolve components of NVIDIA's redistributable archive, from the manifest of a release (`redistrib_X.Y.Z.json`).

A manifest names each component's file for each platform by path, sha256 and size. The table has the digests of the
manifests that are known. A newer manifest is trusted as it comes, because a lock names each component by its own digest.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from envbuilder.compat.tables.toolkit import ArchivePart, Layout, newer_releases
from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.foreign_json import parse_json
from envbuilder.core.models import adapter
from envbuilder.core.processor import Processor
from envbuilder.lock.model import Artifact, Digest, RelativePath, Version
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.sources.fetch import ACCESS_HINT, NETWORK_HINT
from envbuilder.sources.http.failure import SourceError
from envbuilder.sources.names import CUDA, shown

log = logging.getLogger(__name__)

SETTING: Final = "ENVBUILDER_CUDA_REDIST names a mirror of NVIDIA's archive, or a folder that holds its files"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    relative_path: RelativePath
    sha256: Digest
    size: Annotated[int, Field(ge=0)]  # a text in the manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of one release."""

    release: str
    released: str  # YYYY-MM-DD; "" where it does not say
    content: Mapping[str, Any]

    def component(self, name: str, processor: Processor) -> Artifact:
        """Return a component's file for a processor. Raises IncompatibleError if there is none, FetchError if it is not understood."""
        entry, platform = self.content.get(name), processor.redist
        if not isinstance(entry, dict) or platform not in entry:
            raise IncompatibleError(
                f"the manifest of CUDA {self.release} has no `{name}` for {platform}",
                hint="the archive has another layout than this envbuilder knows: take an older release",
            )
        try:
            version = adapter(_Component).validate_python(entry).version
            file = adapter(_File).validate_python(entry[platform])
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"]))
            raise _not_understood(self.release, f"`{name}` has a wrong `{place}`: {wrong['msg']}") from error
        return Artifact(
            kind="archive", name=name, version=version, sha256=file.sha256, size=file.size, source=CUDA, path=file.relative_path
        )  # fmt: skip


def parse_manifest(release: str, text: bytes) -> Manifest:
    """Read a manifest. Raises FetchError if it is none."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise _not_understood(release, str(error)) from error
    if not isinstance(content, dict):
        raise _not_understood(release, "expected a map")
    released = content.get("release_date", "")
    if not isinstance(released, str):
        raise _not_understood(release, "`release_date` is no text")
    return Manifest(release=release, released=released, content=content)


def _not_understood(release: str, why: str) -> FetchError:
    return FetchError(f"could not understand the manifest of CUDA {release}: {why}", hint=SETTING)


def resolve_archives(
    cuda: str, parts: Iterable[ArchivePart], layout: Layout, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the components of the newest release that the archive has of a recipe's `cuda`.

    Raises FetchError if the archive is not reached, IncompatibleError if it does not have the release.
    """
    manifest = _find(cuda, layout, context, before=options.before)
    return tuple(manifest.component(part.name, context.processor) for part in parts)


def _find(cuda: str, layout: Layout, context: ResolveContext, *, before: date | None) -> Manifest:
    base = context.sources().cuda
    for release in _newest_first(cuda, layout, context):
        manifest = _ask(release, layout, context)
        if manifest and (before is None or manifest.released <= before.isoformat()):
            log.info("CUDA %s is %s of %s", cuda, release, shown(base))
            return manifest
    by = f" by {before}" if before else ""
    raise IncompatibleError(f"{shown(base)} has no CUDA {cuda}{by}")


def _newest_first(cuda: str, layout: Layout, context: ResolveContext) -> Iterator[str]:
    """Yield the releases to ask for."""
    if cuda.count(".") == 2:
        yield cuda
        return
    known = layout.releases_of(cuda)
    newer = [release for release, _ in newer_releases(cuda, known, lambda one: _ask(one, layout, context))]
    yield from (*reversed(newer), *known)


def _ask(release: str, layout: Layout, context: ResolveContext) -> Manifest | None:
    """Return the manifest of a release, None if the archive has none. Raises FetchError."""
    url = f"{context.sources().cuda}redistrib_{release}.json"
    try:
        text = context.fetcher.page(url)
    except SourceError as refusal:
        if refusal.kind == "gone":
            return None
        hint = ACCESS_HINT if refusal.kind == "refused" else NETWORK_HINT
        raise FetchError(f"could not read NVIDIA's archive\n  {refusal}", hint=hint) from refusal
    digest, known = sha256_bytes(text), layout.manifests.get(release)
    if known is None:
        log.warning(
            "the digest of the manifest of CUDA %s is not known: its components are taken as it names them",
            release,
        )
    elif digest != known:
        raise FetchError(
            f"{shown(url)} is not the manifest that NVIDIA published: its sha256 is {digest}, expected {known}",
            hint=f"find out who changed it; {SETTING}",
        )
    return parse_manifest(release, text)
