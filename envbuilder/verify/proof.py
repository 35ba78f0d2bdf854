"""Remember what `verify` found in which bytes, so that bytes that are the same are only hashed the next time.

A proof is named by everything that decides it: the sha256 of each file of image and SIF, what they were compared with, and the
code that read and compared them. What the stored bytes of a SIF unpack to is remembered for each layer, so that after an edit only
new bytes are unpacked. Every byte is read again each time. Names, sizes and times prove nothing.
"""

import contextlib
import functools
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, Store, read_proved, save_proved, sha256_file, sha256_text
from envbuilder.core.findings import Finding
from envbuilder.core.models import adapter
from envbuilder.layers.layer import Layer, read_manifest

_LIBRARIES: Final = ("pyelftools", "zstandard")  # that read what is checked
_State = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of a verification without an error."""

    paths: int
    tree: Sha256
    passed_over: tuple[str, ...]
    findings: tuple[Finding, ...]  # warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPair:
    """The digests of all files of an image and a SIF, and the files' state before they were read."""

    image: Path
    sif: Path
    digests: Mapping[Path, Sha256]
    states: Mapping[Path, _State]

    def key(self, settings: Sequence[str]) -> Sha256:
        """Return the name of the proof that the present code finds for these bytes and settings."""
        files = {
            path.relative_to(self.image).as_posix(): self.digests[path] for path in _files_of(self.image)
        }
        return sha256_text(json.dumps([_code(), *settings, self.digests[self.sif], sorted(files.items())]))

    def is_unchanged(self) -> bool:
        """Whether the files are those that were hashed. A file may be replaced while it is verified."""
        with contextlib.suppress(OSError):
            return {path: _state(path) for path in (self.sif, *_files_of(self.image))} == self.states
        return False


def hash_pair(image: Path, sif: Path, *, threads: int) -> HashedPair | None:
    """Hash every file of both; None when one cannot be read, or the layout has links or special files."""
    try:
        states = {path: _state(path) for path in (sif, *_files_of(image))}
        largest_first = sorted(states, key=lambda path: -path.stat().st_size)
        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="hash") as pool:
            digests = dict(zip(largest_first, pool.map(sha256_file, largest_first), strict=True))
    except OSError:
        return None
    return HashedPair(image=image, sif=sif, digests=digests, states=states)


def load_proof(store: Store, key: Sha256) -> Proof | None:
    with contextlib.suppress(OSError, ValueError):
        proof: Proof = adapter(Proof).validate_json(read_proved(store.proof(key)))
        return proof
    return None


def save_proof(store: Store, key: Sha256, proof: Proof) -> None:
    save_proved(store.proof(key), json.dumps(asdict(proof)) + "\n")


def load_contents(store: Store, layers: Sequence[Layer]) -> dict[str, str]:
    """Return what the stored bytes of these layers' files unpack to, by `Squashfs.stored_digest`."""
    known: dict[str, str] = {}
    for layer in layers:
        with contextlib.suppress(OSError, ValueError):
            text = read_proved(store.proof(_contents_key(layer)))
            known |= adapter(dict[str, str]).validate_json(text)
    return known


def save_contents(store: Store, layers: Sequence[Layer], known: Mapping[str, str]) -> None:
    """Remember them after a verification without an error."""
    for layer in layers:
        path = store.proof(_contents_key(layer))
        with contextlib.suppress(OSError, ValueError):
            read_proved(path)
            continue
        digests = {entry.sha256 for entry in read_manifest(layer)}
        contents = {stored: digest for stored, digest in known.items() if digest in digests}
        save_proved(path, json.dumps(contents))


def _contents_key(layer: Layer) -> Sha256:
    return sha256_text(json.dumps(["contents", _code(), layer.digest]))


def _files_of(image: Path) -> Iterator[Path]:
    """Yield an archive, or the files of a layout; raises OSError for anything else in it."""
    if not image.is_dir():
        yield image
        return
    for parent, folders, names in os.walk(image):
        for path in (Path(parent, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise OSError(f"`{path}` is neither a file nor a folder")


def _state(path: Path) -> _State:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _code() -> Sha256:
    """Return the sha256 of envbuilder's code and tables, and of the versions of what it reads with."""
    digest = hashlib.sha256(sys.version.encode())
    for name in _LIBRARIES:
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    package = Path(__file__).parents[1]
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(package)} {sha256_file(path)}\n".encode())
    return Sha256(digest.hexdigest())
