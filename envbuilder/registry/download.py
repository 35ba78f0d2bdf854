"""Read from a registry: manifests and small blobs as values, large blobs into files. Every byte is checked by digest."""

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from envbuilder.artifacts.oci.model import (
    MANIFESTS,
    MOST_JSON,
    Descriptor,
    Manifest,
    parse_configuration,
    parse_manifest,
)
from envbuilder.artifacts.oci.naming import Reference, parse_reference
from envbuilder.core.cache import Sha256, sha256_bytes
from envbuilder.core.errors import AbsentError, ContentError, RegistryError
from envbuilder.registry.client import Client, translate_errors
from envbuilder.sources.http import Progress, SourceError, TransientError
from envbuilder.sources.http.session import Response, download, join, pieces
from envbuilder.sources.names import Wanted

log = logging.getLogger(__name__)

MOST_LISTED: Final = 1000  # referrers of a manifest
MOST_PAGES: Final = 100  # of their lists; registries list 50 on each or more
Answer = TypeVar("Answer")


def read_manifest(client: Client, reference: Reference) -> Manifest:
    """Read a manifest or an index; raises RegistryError."""

    def ask(place: Reference) -> Manifest:
        url = client.url(place, f"manifests/{reference.key}")
        headers = {"Accept": ", ".join(MANIFESTS)}
        with client.ask(place, "GET", url, headers=headers) as response:
            content, kind = client.read(response, MOST_JSON), response.headers.get("Content-Type", "")
        if reference.digest and sha256_bytes(content) != reference.digest:
            raise SourceError(url, f"its sha256 is {sha256_bytes(content)}", kind="wrong")
        try:
            return parse_manifest(content, kind.partition(";")[0].strip())
        except ValueError as error:
            raise ContentError(f"what the registry has as `{place}` cannot be used: it is {error}") from error

    return _anywhere(client, reference, ask)


def read_image(client: Client, reference: Reference, platform: str) -> Manifest:
    """Read the manifest of an image for this platform, also behind an index; raises RegistryError."""
    manifest = read_manifest(client, reference)
    if not manifest.is_index:
        return manifest
    for listed in manifest.manifests:
        if f"{listed.platform}/".startswith(f"{platform}/"):
            return read_manifest(client, reference.with_digest(listed.digest))
    there = ", ".join(sorted({listed.platform for listed in manifest.manifests} - {""})) or "none"
    raise AbsentError(f"`{reference}` has no image for {platform}", hint=f"it has them for: {there}")


def read_platform(client: Client, reference: Reference, manifest: Manifest) -> str:
    """Read which platform an image's manifest is for, "" if it is no image's; raises RegistryError."""
    try:
        config = read_blob(client, reference, manifest.config) if manifest.config else b""
        return parse_configuration(config).platform
    except ValueError:
        return ""


def read_blob(client: Client, reference: Reference, blob: Descriptor, *, most: int = MOST_JSON) -> bytes:
    """Read a small blob, such as a config or a signature; raises RegistryError."""
    if blob.size > most:
        raise ContentError(f"`{reference}` has a manifest or config of {blob.size} bytes, which is too large")

    def ask(place: Reference) -> bytes:
        url = client.url(place, f"blobs/sha256:{blob.digest}")
        with client.ask(place, "GET", url) as response:
            content = client.read(response, blob.size)
        if sha256_bytes(content) != blob.digest:
            raise SourceError(
                url, f"the sha256 of blob {blob.digest} is {sha256_bytes(content)}", kind="wrong"
            )
        return content

    return _anywhere(client, reference, ask)


def fetch_blob(
    client: Client,
    reference: Reference,
    blob: Descriptor,
    partial: Path,
    *,
    progress: Progress,
    stop: threading.Event,
) -> int:
    """Download a blob into the file `partial`, from where an earlier attempt ended; raises RegistryError.

    Returns how many bytes were resumed. After a failure the file stays for a later attempt, unless
    its bytes are wrong.
    """

    def fetch(place: Reference) -> int:
        url = client.url(place, f"blobs/sha256:{blob.digest}")

        def ask(headers: Mapping[str, str]) -> Response:
            return client.ask(place, "GET", url, headers=headers, accept=(200, 206))

        return download(
            url, sha256=blob.digest, size=blob.size, partial=partial, progress=progress, stop=stop, request=ask
        )  # fmt: skip

    return _anywhere(client, reference, fetch, patient=False)


def stream_blob(
    client: Client, reference: Reference, blob: Descriptor, use: Callable[[Iterator[bytes]], Answer]
) -> Answer:
    """Give the bytes of a blob to `use` as they come, again from the first one after a failure; raises RegistryError.

    They are not compared with the digest, because `use` may stop before the last one.
    """

    def ask(place: Reference) -> Answer:
        with client.ask(place, "GET", client.url(place, f"blobs/sha256:{blob.digest}")) as response:
            return use(pieces(response))

    return _anywhere(client, reference, ask)


def read_range(client: Client, reference: Reference, blob: Sha256, start: int, size: int) -> bytes:
    """Read a range of a blob, which the caller checks. Raises RegistryError: AbsentError when the registry sends no ranges."""

    def ask(place: Reference) -> bytes:
        url = client.url(place, f"blobs/sha256:{blob}")
        headers = {"Range": f"bytes={start}-{start + size - 1}"}
        with client.ask(place, "GET", url, headers=headers, accept=(200, 206, 400, 416, 501)) as response:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise AbsentError(f"`{place.registry}` sends no ranges of a blob")
            content = client.read(response, size)
        if len(content) < size:
            raise TransientError(f"it ended after {len(content)} of {size} bytes")
        return content

    return _anywhere(client, reference, ask)


def fetch_part(
    client: Client, artifact: Wanted, partial: Path, progress: Progress, stop: threading.Event
) -> None:
    """Download a file of a locked image into `partial`; raises RegistryError, or SourceError when it is gone."""
    reference = parse_reference(artifact.name)
    try:
        if artifact.path.startswith("manifests/"):
            partial.write_bytes(read_manifest(client, reference.with_digest(artifact.sha256)).content)
            progress.advance(artifact.size)
        else:
            blob = Descriptor(media_type="", digest=artifact.sha256, size=artifact.size)
            fetch_blob(client, reference, blob, partial, progress=progress, stop=stop)
    except AbsentError as error:
        raise SourceError(client.url(reference, artifact.path), "not found", kind="gone") from error


def read_referrers(client: Client, reference: Reference, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """Return the referrers of the manifest: artifacts that name it as their subject.

    Raises ContentError for a list without end.
    """
    try:
        listed = client.retry(reference, lambda: _ask_referrers(client, reference))
    except ContentError:
        raise
    except (RegistryError, ValueError) as error:
        if not isinstance(error, AbsentError):
            log.info("no referrers API: %s", error)  # some registries answer with another status than 404
        try:
            listed = read_manifest(client, reference.with_tag(fallback_tag(reference))).manifests
        except AbsentError:
            listed = ()
    return tuple(blob for blob in listed if not artifact_type or blob.artifact_type == artifact_type)


def fallback_tag(reference: Reference) -> str:
    """Return the tag under which registries without the referrers API keep the index of referrers."""
    return f"sha256-{reference.digest}"


def _ask_referrers(client: Client, reference: Reference) -> tuple[Descriptor, ...]:
    listed, page = list[Descriptor](), client.url(reference, f"referrers/sha256:{reference.digest}")
    for _ in range(MOST_PAGES):
        with client.ask(reference, "GET", page) as response:
            listed += parse_manifest(client.read(response, MOST_JSON)).manifests
            following = response.links.get("next", {}).get("url", "")
        if not following or len(listed) >= MOST_LISTED:
            return tuple(listed[:MOST_LISTED])
        page = join(page, following)
    raise ContentError(
        f"`{reference.registry}` lists what belongs to `{reference}` on more than {MOST_PAGES} pages"
    )


def _places(client: Client, reference: Reference) -> Iterator[Reference]:
    """Yield the mirrors of the registry, then the registry itself."""
    for registry, mirror in client.settings.mirrors:
        if registry == reference.registry:
            base = parse_reference(f"{mirror}/{reference.repository}")
            yield Reference(
                registry=base.registry, repository=base.repository, tag=reference.tag, digest=reference.digest
            )
    yield reference


def _anywhere(
    client: Client, reference: Reference, work: Callable[[Reference], Answer], *, patient: bool = True
) -> Answer:
    """Try the mirrors, then the registry, whose error is raised."""
    for place in _places(client, reference):
        try:
            if patient:
                return client.retry(place, functools.partial(work, place))
            with translate_errors(place):
                return work(place)
        except RegistryError as error:
            if place is reference:
                raise
            log.warning("the mirror is passed over: %s", error.message)
    raise AssertionError("`_places` ends with the registry")
