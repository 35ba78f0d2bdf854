"""Write to a registry: missing blobs, manifests and referrers.

A blob is first sent in one request, which every registry accepts. When that breaks, the registry is
asked how much it has, and the rest follows in pieces. A proxy that forwards whole requests then
loses one piece at most.
"""

import io
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlencode

from envbuilder.artifacts.oci.model import Descriptor, Manifest, describe, make_index
from envbuilder.artifacts.oci.naming import Reference
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import AbsentError, AccessError, ContentError, RegistryError, VerifyError
from envbuilder.core.processor import processor_of
from envbuilder.registry.client import Client, translate_errors
from envbuilder.registry.download import fallback_tag, read_manifest, read_platform
from envbuilder.sources.http import Progress, TransientError
from envbuilder.sources.http.session import PAUSES, WORTHWHILE, Response, Stopped, give_up, join, wait

log = logging.getLogger(__name__)

BLOCK: Final = 1 << 20  # bytes that are read and sent at once
PIECE: Final = 16 << 20  # bytes of one request after a break
RIGHT: Final = "pull,push"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The result of pushing one blob. `saved` counts bytes that were not sent again after a break."""

    sent: int = 0
    saved: int = 0
    there: bool = False
    mounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    blob: Descriptor
    content: Path | bytes

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")

    def need_right(self) -> None:
        """Raise VerifyError when the file does not match the digest."""
        if isinstance(self.content, Path) and (digest := sha256_file(self.content)) != self.blob.digest:
            raise damaged(self.content, f"its sha256 is {digest}, not {self.blob.digest}")


def small_source(media_type: str, content: bytes) -> Source:
    return Source(blob=describe(content, media_type), content=content)


def damaged(path: Path, why: str) -> VerifyError:
    return VerifyError(
        f"`{path}` is damaged: {why}",
        hint="remove the image or the SIF that it is of, and build or pull it again",
    )


def push_blob(
    client: Client, reference: Reference, source: Source, *, sibling: str = "", progress: Progress,
    stop: threading.Event,
) -> Sent:  # fmt: skip
    """Push a blob unless the repository has it; raises RegistryError, and VerifyError when the file is damaged.

    `sibling` is a repository of the same registry that may have the blob, which is then mounted.
    """
    if client.retry(reference, lambda: _is_there(client, reference, source.blob)):
        progress.advance(source.blob.size)
        return Sent(there=True)
    try:
        url = client.retry(reference, lambda: _begin(client, reference, source.blob, sibling))
    except AccessError:  # perhaps the sibling refuses: ask again without it
        url = client.retry(reference, lambda: _begin(client, reference, source.blob))
    if url is None:
        progress.advance(source.blob.size)
        return Sent(mounted=True)
    with translate_errors(reference):
        upload = _Upload(
            client=client, reference=reference, source=source, progress=progress, stop=stop, url=url
        )
        return upload.run()


def put_manifest(client: Client, reference: Reference, manifest: Manifest) -> None:
    """Put a manifest under the reference's tag or digest; raises RegistryError.

    For a registry without the referrers API, the index of referrers is kept under the fallback tag
    of the OCI specification. Two pushes at the same moment may lose one entry; pushing again adds
    it.
    """

    def put() -> bool:
        url = client.url(reference, f"manifests/{reference.key}")
        headers = {"Content-Type": manifest.media_type}
        with client.ask(
            reference, "PUT", url, right=RIGHT, headers=headers, body=manifest.content, accept=(201,)
        ) as response:
            return "OCI-Subject" in response.headers

    is_listed = client.retry(reference, put)
    if manifest.subject and not is_listed:
        _add_referrer(client, reference.with_digest(manifest.subject.digest), manifest.descriptor())


def put_image(client: Client, reference: Reference, manifest: Manifest, platform: str) -> tuple[str, ...]:
    """Put an image's manifest under a tag, and return the platforms that the tag then has; raises RegistryError.

    If the tag has images for other platforms, they stay: the tag becomes an index. Two pushes at the
    same moment may lose one entry; pushing again adds it.
    """
    others = _others(client, reference, platform)
    if not others:
        put_manifest(client, reference, manifest)
        return (platform,)
    put_manifest(client, reference.with_digest(manifest.digest), manifest)
    listed = sorted((*others, _in_index(manifest, platform)), key=lambda image: image.platform)
    put_manifest(client, reference, make_index(listed))
    return tuple(image.platform for image in listed)


def _others(client: Client, reference: Reference, platform: str) -> tuple[Descriptor, ...]:
    """Return the images under the tag that are for other platforms."""
    try:
        there = read_manifest(client, reference)
    except AbsentError:
        return ()
    listed = there.manifests
    if not there.is_index:
        listed = (_in_index(there, read_platform(client, reference, there)),)
    ours = processor_of(platform)
    return tuple(image for image in listed if processor_of(image.platform) not in (None, ours))


def _in_index(manifest: Manifest, platform: str) -> Descriptor:
    """Return the entry of an image in an index of platforms."""
    size = len(manifest.content)
    return Descriptor(media_type=manifest.media_type, digest=manifest.digest, size=size, platform=platform)


def _add_referrer(client: Client, subject: Reference, referrer: Descriptor) -> None:
    """Add an entry to the index of referrers under the fallback tag."""
    place = subject.with_tag(fallback_tag(subject))
    try:
        listed = read_manifest(client, place).manifests
    except AbsentError:
        listed = ()
    if referrer not in listed:
        others = tuple(other for other in listed if other.digest != referrer.digest)
        put_manifest(client, place, make_index((*others, referrer)))


def _is_there(client: Client, reference: Reference, blob: Descriptor) -> bool:
    url = client.url(reference, f"blobs/sha256:{blob.digest}")
    with client.ask(reference, "HEAD", url, right=RIGHT, accept=(200, 404)) as response:
        return response.status_code == 200


def _begin(client: Client, reference: Reference, blob: Descriptor, sibling: str = "") -> str | None:
    """Begin an upload and return its URL, or None when the registry mounted the blob from the sibling."""
    url = client.url(reference, "blobs/uploads/")
    if sibling:
        url += "?" + urlencode({"mount": f"sha256:{blob.digest}", "from": sibling})
    with client.ask(
        reference, "POST", url, right=RIGHT, headers={"Content-Length": "0"}, accept=(201, 202)
    ) as response:
        return _location(response, url) if response.status_code == 202 else None


def _location(response: Response, url: str) -> str:
    """Return where the registry wants the next part; raises SourceError unless it is an address of HTTP."""
    return join(url, response.headers.get("Location", ""))


@dataclass(slots=True, kw_only=True)
class _Upload:
    """The upload of one blob, and how much the registry has of it."""

    client: Client
    reference: Reference
    source: Source
    progress: Progress
    stop: threading.Event
    url: str  # "" where it has to begin anew
    have: int = 0  # bytes that the registry has
    shown: int = 0  # bytes that the progress shows
    sent: int = 0
    saved: int = 0
    broken: bool = False  # a request broke; the rest is sent in pieces

    def run(self) -> Sent:
        """Send the blob and resume after breaks, as long as the upload makes progress."""
        best, failures, done = 0, 0, False
        while not done:
            try:
                done = self._step()
            except TransientError as broken:
                failures += 1
                if failures > len(PAUSES):
                    raise give_up(self.url, broken) from broken
                log.info("%s: %s at byte %d, trying again", self.reference, broken, self.have)
                wait(max(PAUSES[failures - 1], broken.pause), self.stop)
                done = self._recover()
            if self.have > best + WORTHWHILE:
                best, failures = self.have, 0
        return Sent(sent=self.sent, saved=self.saved)

    def _step(self) -> bool:
        """Send the next part. Returns whether the registry has the whole blob and accepted its digest."""
        blob, size = self.source.blob, self.source.blob.size - self.have
        headers = {"Content-Type": "application/octet-stream"}
        is_piece = self.broken and size > 0
        if is_piece:
            size, method, url = min(size, PIECE), "PATCH", self.url
            headers["Content-Range"] = f"{self.have}-{self.have + size - 1}"
        else:
            joint = "&" if "?" in self.url else "?"
            method, url = "PUT", f"{self.url}{joint}{urlencode({'digest': f'sha256:{blob.digest}'})}"
        body = _Piece(self.source, self.have, size, self._advance) if size else b""
        accept = (202, 400, 404, 416) if is_piece else (201, 400, 404, 413, 416)
        try:
            with self.client.ask(
                self.reference, method, url, right=RIGHT, headers=headers, body=body, accept=accept
            ) as response:
                status = response.status_code
        finally:
            self.sent += body.sent if isinstance(body, _Piece) else 0
        if status == 202:
            self.url = _location(response, self.url)
            self.have += size
        if status in (201, 202):
            self._show(self.have if is_piece else blob.size)
            return not is_piece
        if status == 400:  # also when the bytes do not match the digest
            self.source.need_right()
        if status != 413:
            self.url = ""
        what = "lost what it had" if is_piece else "did not accept what was sent"
        raise TransientError(f"the registry {what} ({status})")

    def _recover(self) -> bool:
        """Ask how much the registry has. Returns True when it has the whole blob."""
        client, reference, blob = self.client, self.reference, self.source.blob
        self.broken = True
        if client.retry(reference, lambda: _is_there(client, reference, blob)):
            self._show(self.source.blob.size)
            return True
        self.have = client.retry(reference, self._ask_state) if self.url else 0
        if not self.url:
            self.url = client.retry(reference, lambda: _begin(client, reference, blob)) or ""
        self.saved += self.have
        self._show(self.have)
        return False

    def _ask_state(self) -> int:
        """Return the bytes that the registry has of the upload. Forget its URL when the registry does not know it."""
        try:
            with self.client.ask(self.reference, "GET", self.url, right=RIGHT, accept=(204,)) as response:
                self.url = _location(response, self.url)
                last = response.headers.get("Range", "").rpartition("-")[2]
        except RegistryError as error:
            log.info("the upload cannot be resumed: %s", error)
            self.url = ""
            return 0
        return int(last) + 1 if last.isdecimal() and last != "0" else 0  # 0-0 stands for nothing at all

    def _advance(self, count: int) -> None:
        if self.stop.is_set():
            raise Stopped
        self.shown += count
        self.progress.advance(count)

    def _show(self, have: int) -> None:
        """Correct the progress shown."""
        self.progress.advance(have - self.shown)
        self.shown = have


class _Piece:
    """A part of a blob, as the body of a request."""

    def __init__(self, source: Source, start: int, size: int, advance: Callable[[int], None]) -> None:
        self._source, self._start, self._size, self._advance = source, start, size, advance
        self.sent = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        self._advance(-self.sent)  # the piece is sent again
        self.sent = 0
        with self._source.open() as stream:
            stream.seek(self._start)
            while self.sent < self._size:
                block = stream.read(min(self._size - self.sent, BLOCK))
                if not block:
                    raise ContentError(f"blob {self._source.blob.digest} became shorter while it was sent")
                yield block
                self.sent += len(block)
                self._advance(len(block))
