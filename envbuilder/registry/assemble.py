"""Put a SIF together from what is on this machine, and fetch the parts that are missing by range.

Sources in their order: the SIF that is replaced, other SIFs in its folder, the image's layers beside
it and in the cache, the registry. The result counts only with the sha256 that the registry names.
"""

import contextlib
import heapq
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.model import Manifest
from envbuilder.artifacts.oci.naming import PARTS_TYPE, sif_of
from envbuilder.artifacts.oci.reference import Reference
from envbuilder.artifacts.outputs import SIF, Outputs
from envbuilder.artifacts.parts import Assembly
from envbuilder.artifacts.parts_index import GAP, MOST, PartsIndex, Pieces, parse_index
from envbuilder.core.cache import Sha256
from envbuilder.core.console import Console, Step
from envbuilder.core.errors import AbsentError, ContentError, RegistryError, SpaceError
from envbuilder.registry.client import Client
from envbuilder.registry.download import fetch_range, read_blob, read_manifest, read_referrers
from envbuilder.sources.fetch import each

log = logging.getLogger(__name__)

OTHERS: Final = 3  # other SIFs of the folder that are read, the newest first
ENOUGH: Final = 0.01  # of a SIF; for less, reading another one takes longer than fetching
LEAST: Final = 0.25  # of a SIF that must be here, otherwise one long download is faster than many ranges
RANGE: Final = 16 << 20  # bytes of one request


LayerFinder = Callable[[Sequence[Sha256]], Mapping[Sha256, Path]]


class Transfer:
    """The bytes of a pull: fetched, resumed among them, and of the SIF those that were here."""

    def __init__(self) -> None:
        self.fetched = self.resumed = self.here = 0
        self._guard = threading.Lock()

    def add(self, fetched: int, resumed: int) -> None:
        with self._guard:
            self.fetched += fetched
            self.resumed += resumed


@dataclass(slots=True)
class _Range:
    """Bytes of a blob that hold missing parts: their numbers, and their pieces in it."""

    blob: Sha256
    start: int
    end: int
    parts: list[tuple[int, Pieces]] = field(default_factory=list)


def find_index(client: Client, reference: Reference, manifest: Manifest) -> PartsIndex | None:
    """Return the index of the SIF's parts, or None: it was pushed by another program, or cannot be read.

    Raises RegistryError where nothing can be had without it.
    """
    if _is_thin(manifest):
        try:
            index = parse_index(read_blob(client, reference, manifest.layers[0], most=MOST))
        except ValueError as error:
            raise ContentError(f"the SIF at `{reference}` cannot be used: {error}") from error
        if index.size == sif_of(manifest).size and index.rest == 0:
            return index
        raise ContentError(f"the SIF at `{reference}` cannot be used: its index is of another SIF")
    try:
        for listed in reversed(read_referrers(client, reference.with_digest(manifest.digest), PARTS_TYPE)):
            holder = read_manifest(client, reference.with_digest(listed.digest))
            index = parse_index(read_blob(client, reference, holder.layers[0], most=MOST))
            if index.size == sif_of(manifest).size:
                return index
    except (RegistryError, ValueError, LookupError) as error:
        log.info("no index of the SIF's parts: %s", error)
    return None


def assemble(
    client: Client, reference: Reference, manifest: Manifest, index: PartsIndex, *, outputs: Outputs, layers: LayerFinder,
    folder: Path, transfer: Transfer, console: Console,
) -> bool:  # fmt: skip
    """Make the SIF as `folder / DIGEST`; False where the whole file must be fetched.

    `layers` finds layers of the image on this machine. Raises RegistryError and SpaceError; what is
    there by then is kept for the next attempt.
    """
    sif, least = sif_of(manifest), 0 if _is_thin(manifest) else LEAST
    path = folder / f"{sif.digest}.parts"
    with console.step(f"put {outputs.sif.name} together", sif.size) as step, _open(path, index) as made:
        need_space(outputs.folder, made.lacks)
        _take_from_here(made, index, outputs, layers)
        transfer.here = made.size - made.lacks
        step.advance(transfer.here)
        is_whole = transfer.here >= least * made.size and _complete(
            client, reference, manifest, index, made, folder=folder, transfer=transfer, step=step
        )
    if is_whole:
        path.replace(folder / sif.digest)
        return True
    path.unlink()
    if _is_thin(manifest):
        raise ContentError(
            f"the layers and the index of `{reference}` do not make its SIF",
            hint="push it again without `--thin`",
        )
    if transfer.here >= least * made.size:
        console.say(f"{outputs.sif.name} could not be put together from its parts: the whole file is fetched")
    transfer.here = 0
    return False


def _is_thin(manifest: Manifest) -> bool:
    """Whether the registry has the SIF's parts in the image's layers, and not as one file."""
    return len(manifest.layers) > 1


def _complete(
    client: Client, reference: Reference, manifest: Manifest, index: PartsIndex, made: Assembly, *, folder: Path,
    transfer: Transfer, step: Step,
) -> bool:  # fmt: skip
    """Fetch what is missing; return whether the SIF has its digest."""
    sif = sif_of(manifest)
    for _ in range(2):
        ranges = _ranges(index, made, None if _is_thin(manifest) else sif.digest)
        try:
            _fetch(client, reference, ranges, made, folder=folder, transfer=transfer, step=step)
        except (AbsentError, ContentError) as error:  # no ranges, or another index than that of this SIF
            log.info("%s", error)
            return False
        if made.finish() == sif.digest:
            return True
        made.check()  # a file changed while it was copied, or a layer in the cache is damaged
    return False


def _open(path: Path, index: PartsIndex) -> contextlib.closing[Assembly]:
    return contextlib.closing(Assembly(str(path), [(part.size, part.digest) for part in index.parts]))


def need_space(folder: Path, size: int) -> None:
    """Raise SpaceError unless the file system of the folder has so many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise SpaceError(
            f"the pull needs {size / 1e9:.2f} GB at `{folder}`; {free / 1e9:.2f} GB are free",
            hint="free space there, or choose another --output",
        )


def _take_from_here(made: Assembly, index: PartsIndex, outputs: Outputs, layers: LayerFinder) -> None:
    for path in _sifs(outputs):
        if made.lacks > ENOUGH * made.size:
            made.take(str(path))
    for blob, path in layers(index.blobs).items() if made.lacks > ENOUGH * made.size else ():
        number = index.blobs.index(blob)
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            for wanted in sorted(made.missing):
                part = index.parts[wanted]
                if part.blob == number and sum(part.pieces[-1]) <= size:
                    made.copy(stream.fileno(), part.pieces, wanted)


def _sifs(outputs: Outputs) -> Iterator[Path]:
    """Yield the SIF that is replaced, then the newest others of the folder."""
    times: dict[Path, int] = {}
    inodes: set[int] = set()  # a version may be another name of a SIF
    for path in (outputs.sif, *outputs.folder.glob(f"*{SIF}")):
        with contextlib.suppress(OSError):  # a dangling link, a file that is just replaced
            status = path.stat()
            if path.is_file() and status.st_ino not in inodes:
                inodes.add(status.st_ino)
                times[path] = status.st_mtime_ns
    if times.pop(outputs.sif, None) is not None:
        yield outputs.sif
    yield from heapq.nlargest(OTHERS, times, key=lambda path: times[path])


def _ranges(index: PartsIndex, made: Assembly, sif: Sha256 | None) -> list[_Range]:
    """Return the ranges that hold the missing parts: of the SIF, or without it of the blobs of the index."""
    wanted = [
        (sif, ((made.places[number], part.size),), number)
        if sif
        else (index.blobs[part.blob], part.pieces, number)
        for number, part in enumerate(index.parts)
        if number in made.missing
    ]
    found: list[_Range] = []
    for blob, pieces, number in sorted(wanted):
        last, at, end = found[-1] if found else None, pieces[0][0], sum(pieces[-1])
        if last is None or last.blob != blob or at - last.end > GAP or end - last.start > RANGE:
            last = _Range(blob, at, at)
            found.append(last)
        last.parts.append((number, pieces))
        last.end = max(last.end, end)  # equal parts have one place in a layer
    return found


def _fetch(
    client: Client,
    reference: Reference,
    ranges: Sequence[_Range],
    made: Assembly,
    *,
    folder: Path,
    transfer: Transfer,
    step: Step,
) -> None:
    """Fetch the ranges and put their parts in place; raises ContentError for wrong bytes."""

    def work(one: _Range, stop: threading.Event) -> None:
        partial, size = folder / f"{one.blob}.{one.start}-{one.end}", one.end - one.start
        saved = fetch_range(
            client, reference, one.blob, one.start, size, partial=partial, progress=step, stop=stop
        )
        content = partial.read_bytes()
        partial.unlink()
        for number, pieces in one.parts:
            places = (at - one.start for at, _ in pieces)
            data = (content[at : at + size] for at, (_, size) in zip(places, pieces, strict=True))
            if not made.put(number, b"".join(data)):
                raise ContentError(f"the registry sends other bytes for `{reference}` than its index says")
        transfer.add(size, saved)

    each(ranges, work)
