"""Reads from a registry: manifests and small blobs as values, large blobs into files; every byte is checked by digest."""

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urljoin

from envbuilder.artifacts.oci.model import (
    MANIFESTS,
    Descriptor,
    Manifest,
    digest_of,
    make_index,
    parse_manifest,
)
from envbuilder.artifacts.oci.reference import Reference, parse_reference
from envbuilder.core.errors import AbsentError, ContentError, RegistryError
from envbuilder.core.fetch.request import Wanted
from envbuilder.core.http.failure import SourceError
from envbuilder.core.http.session import Response, download, pieces
from envbuilder.core.http.transfer import Progress
from envbuilder.registry.client import Client

log = logging.getLogger(__name__)

MOST: Final = 4 << 20  # bytes of a manifest, and of what else is read as a value
MOST_LISTED: Final = 1000  # of what belongs to a manifest; more pages than that are somebody's mistake
Answer = TypeVar("Answer")


def read_manifest(client: Client, reference: Reference) -> Manifest:
    """The manifest or index behind a reference; raises RegistryError."""

    def ask(place: Reference) -> Manifest:
        url = client.url(place, f"manifests/{reference.key}")
        headers = {"Accept": ", ".join(MANIFESTS)}
        with client.ask(place, "GET", url, headers=headers) as response:
            content, kind = _read(response, MOST), response.headers.get("Content-Type", "")
        if reference.digest and digest_of(content) != reference.digest:
            raise SourceError(url, f"its sha256 is {digest_of(content)}", kind="wrong")
        try:
            return parse_manifest(content, kind.partition(";")[0].strip())
        except ValueError as error:
            raise ContentError(f"what the registry has as `{place}` cannot be used: it is {error}") from error

    return _anywhere(client, reference, ask)


def read_image(client: Client, reference: Reference, platform: str) -> Manifest:
    """The manifest of an image for this platform: behind an index, that platform's; raises RegistryError."""
    manifest = read_manifest(client, reference)
    if not manifest.is_index:
        return manifest
    for one in manifest.manifests:
        if one.platform == platform or one.platform.startswith(f"{platform}/"):
            return read_manifest(client, reference.with_digest(one.digest))
    there = ", ".join(sorted({one.platform for one in manifest.manifests if one.platform})) or "none"
    raise AbsentError(f"`{reference}` has no image for {platform}", hint=f"it has them for: {there}")


def read_blob(client: Client, reference: Reference, blob: Descriptor) -> bytes:
    """A small blob: a config, a signature; raises RegistryError."""
    if blob.size > MOST:
        raise ContentError(f"`{reference}` has a description of {blob.size} bytes, which nobody needs")

    def ask(place: Reference) -> bytes:
        url = client.url(place, f"blobs/sha256:{blob.digest}")
        with client.ask(place, "GET", url) as response:
            content = _read(response, blob.size)
        if digest_of(content) != blob.digest:
            raise SourceError(url, f"the sha256 of blob {blob.digest} is {digest_of(content)}", kind="wrong")
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
    """Complete the file `partial` to the whole blob, from where an earlier attempt ended; raises RegistryError.

    Returns how many bytes did not have to come again. When the transfer breaks for good, what has come stays there for a later attempt; what is wrong does not.
    """

    def fetch(place: Reference) -> int:
        url = client.url(place, f"blobs/sha256:{blob.digest}")

        def ask(headers: Mapping[str, str]) -> Response:
            return client.ask(place, "GET", url, headers=headers, accept=(200, 206))

        return download(
            url, sha256=blob.digest, size=blob.size, partial=partial, progress=progress, stop=stop, request=ask
        )  # fmt: skip

    return _anywhere(client, reference, fetch, patient=False)


def fetch_part(
    client: Client, artefact: Wanted, partial: Path, *, progress: Progress, stop: threading.Event
) -> None:
    """Complete the file `partial` to one of the files of a locked image; raises RegistryError, or SourceError when it is gone."""
    reference = parse_reference(artefact.name)
    try:
        if artefact.path.startswith("manifests/"):
            partial.write_bytes(read_manifest(client, reference.with_digest(artefact.sha256)).content)
            progress.advance(artefact.size)
        else:
            blob = Descriptor(media_type="", digest=artefact.sha256, size=artefact.size)
            fetch_blob(client, reference, blob, partial, progress=progress, stop=stop)
    except AbsentError as error:
        raise SourceError(client.url(reference, artefact.path), "not found", kind="gone") from error


def read_referrers(client: Client, reference: Reference, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """What says of itself that it belongs to the manifest with the reference's digest."""
    for tag in (None, fallback_tag(reference)):
        index = _referrers_at(client, reference, tag)
        if index is not None:
            return tuple(
                one for one in index.manifests if not artifact_type or one.artifact_type == artifact_type
            )
    return ()


def fallback_tag(reference: Reference) -> str:
    """Where registries without the referrers API have the index that it would give."""
    return f"sha256-{reference.digest}"


def _referrers_at(client: Client, reference: Reference, tag: str | None) -> Manifest | None:
    try:
        if tag is not None:
            return read_manifest(client, reference.with_tag(tag))
        url = client.url(reference, f"referrers/sha256:{reference.digest}")

        def ask() -> Manifest:
            listed, page = list[Descriptor](), url
            while page:
                with client.ask(reference, "GET", page) as response:
                    listed += parse_manifest(_read(response, MOST)).manifests
                    following = response.links.get("next", {}).get("url", "")
                page = urljoin(page, following) if following and len(listed) < MOST_LISTED else ""
            return make_index(listed)

        return client.retry(reference, ask)
    except AbsentError:
        return None
    except (RegistryError, ValueError) as error:
        if tag is not None:
            raise
        log.info("no referrers API: %s", error)  # some answer with anything but 404
        return None


def _places(client: Client, reference: Reference) -> Iterator[Reference]:
    """Where to ask: the mirrors of the registry, then itself."""
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
    """Try each place in turn; the error is that of the registry itself, which comes last."""
    *mirrors, last = _places(client, reference)
    for place in mirrors:
        try:
            return _at(client, place, work, patient=patient)
        except RegistryError as error:
            log.warning("the mirror is passed over: %s", error.message)
    return _at(client, last, work, patient=patient)


def _at(client: Client, place: Reference, work: Callable[[Reference], Answer], *, patient: bool) -> Answer:
    if patient:
        return client.retry(place, functools.partial(work, place))
    with client.translate_errors(place):
        return work(place)


def _read(response: Response, most: int) -> bytes:
    found = bytearray()
    for piece in pieces(response):
        found += piece
        if len(found) > most:
            raise ContentError(f"the registry sends more than the {most} bytes expected")
    return bytes(found)
