"""A repository in which machines share what their builds made: layers, compiled extensions and built wheels.

The tag of an entry is its build key. An entry has the four files of a layer. A compiled extension or a
wheel is packed as such a layer. An entry is code that will run, so a signed statement names its key and
the digests of its files, and only an entry with the right signature is used. No failure here fails a build.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.model import EMPTY, EMPTY_CONTENT, Descriptor, Manifest, describe, make_manifest
from envbuilder.artifacts.oci.naming import BUNDLE_TYPE, ENTRY_KEY, ENTRY_TYPE, TITLE, find_reference
from envbuilder.artifacts.oci.reference import Reference
from envbuilder.artifacts.signing import PrivateKey, PublicKey, load_either, make_bundle, signed_digests
from envbuilder.artifacts.statement import Subject, make_statement
from envbuilder.core.cache import Sha256, Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import (
    AbsentError,
    BuildError,
    ContentError,
    RegistryError,
    SpaceError,
    UsageError,
    VerifyError,
)
from envbuilder.core.process import ProcessRunner
from envbuilder.layers.layer import Layer, extract, load_layer, write_layer
from envbuilder.registry.client import Client
from envbuilder.registry.download import fetch_blob, read_blob, read_manifest
from envbuilder.registry.upload import Source, push_blob, put_manifest

KEY: Final = "ENVBUILDER_STORE_KEY"
ANYONE: Final = "none"  # in place of a key
FILES: Final = ("layer.tar.zst", "manifest.txt", "blocks.json", "layer.json")
FILE_TYPE: Final = "application/octet-stream"
MOST_SMALL: Final = 256 << 20  # bytes of a file that is not the layer's blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Whose entries are believed, and who signs new ones. Without a public key, the registry is believed."""

    public: PublicKey | None = None
    private: PrivateKey | None = None

    @property
    def may_put(self) -> bool:
        return self.private is not None or self.public is None


class _NoEntryError(Exception):
    """The store has no entry that can be used."""


class SharedStore:
    """One repository of entries; safe to use from several threads. After a failure it is not asked again."""

    def __init__(
        self, client: Client, place: Reference, *, keys: Keys, cache: Store, console: Console
    ) -> None:
        self._client, self._place, self._keys = client, place, keys
        self._cache, self._console = cache, console
        self._guard = threading.Lock()
        self._is_lost = False
        self._stop = threading.Event()
        self._refused: set[Sha256] = set()
        self._fetched: set[Sha256] = set()

    def fetch(self, key: Sha256, folder: Path, name: str, *, packed: bool) -> bool:
        """Put the entry of the key into the cache as `folder`. Returns False when there is none that can be used.

        The folder gets the files of the layer, or with `packed` the files that the layer holds.
        """
        contents: dict[str, str] | None = None if packed else {}  # a layer names the digests of its own files
        with contextlib.suppress(_NoEntryError), self._cache.renewed(folder, contents) as out:
            self._fetch(key, out.parent / "layer" if packed else out, out if packed else None, name)
            self._fetched.add(key)
            return True
        return False

    def put(self, key: Sha256, folder: Path, name: str, *, packed: bool) -> None:
        """Send the entry of the key unless the store has it. A refused entry is replaced."""
        reference = self._place.with_tag(key)
        if self._is_lost or key in self._fetched or not self._keys.may_put:
            return
        try:
            if key not in self._refused and self._find(reference):
                return
            with self._cache.workspace() as work, self._console.step(f"share {name}") as step:
                if packed:
                    write_layer(name="entry", tree=folder, folder=work / "layer", epoch=0, threads=1)
                files = work / "layer" if packed else folder
                sources = [_source(files / file) for file in FILES]
                if self._keys.private:
                    bundle = _sign(key, sources, self._keys.private)
                    sources.append(Source(blob=describe(bundle, BUNDLE_TYPE), content=bundle))
                config = Source(blob=describe(EMPTY_CONTENT, EMPTY), content=EMPTY_CONTENT)
                for source in (*sources, config):
                    push_blob(self._client, reference, source, progress=step, stop=self._stop)
                put_manifest(
                    self._client,
                    reference,
                    make_manifest(
                        config=config.blob,
                        layers=[source.blob for source in sources],
                        artifact_type=ENTRY_TYPE,
                        annotations={ENTRY_KEY: f"sha256:{key}"},
                    ),
                )
        except (RegistryError, VerifyError, BuildError) as error:
            self._lose(error.message)

    def _fetch(self, key: Sha256, files: Path, out: Path | None, name: str) -> None:
        reference = self._place.with_tag(key)
        if self._is_lost:
            raise _NoEntryError
        try:
            manifest = self._find(reference)
            if manifest is None:
                raise _NoEntryError
            blobs = self._need_believed(key, reference, manifest)
            layer = self._download(reference, blobs, files, name)
            if out:
                extract(layer, out)
        except SpaceError:
            raise
        except (AbsentError, ContentError, VerifyError, BuildError, ValueError, RecursionError) as error:
            self._refused.add(key)
            self._console.say(f"warning: the entry `{reference}` is refused: {error}")
            raise _NoEntryError from error
        except RegistryError as error:
            self._lose(error.message)
            raise _NoEntryError from error

    def _find(self, reference: Reference) -> Manifest | None:
        try:
            return read_manifest(self._client, reference)
        except AbsentError:
            return None

    def _need_believed(
        self, key: Sha256, reference: Reference, manifest: Manifest
    ) -> Mapping[str, Descriptor]:
        """Return the blobs by the names of the files; raises ContentError or VerifyError for what may not be used."""
        names = [dict(one.annotations).get(TITLE, "") for one in manifest.layers[: len(FILES)]]
        if manifest.artifact_type != ENTRY_TYPE or names != list(FILES):
            raise ContentError("it is no entry of a store of envbuilder")
        if dict(manifest.annotations).get(ENTRY_KEY) != f"sha256:{key}":
            raise VerifyError("it is the entry of another key")
        blobs = dict(zip(FILES, manifest.layers, strict=False))
        if self._keys.public:
            signatures = [one for one in manifest.layers[len(FILES) :] if one.media_type == BUNDLE_TYPE]
            if not signatures:
                raise VerifyError("it is not signed")
            bundle = read_blob(self._client, reference, signatures[0])
            signed = signed_digests(bundle, self._keys.public, "its statement", ENTRY_TYPE)
            if not {key, *(blob.digest for blob in blobs.values())} <= signed:
                raise VerifyError("its signature is that of another entry")
        return blobs

    def _download(
        self, reference: Reference, blobs: Mapping[str, Descriptor], files: Path, name: str
    ) -> Layer:
        files.mkdir(exist_ok=True)
        with self._console.step(f"fetch {name}", sum(one.size for one in blobs.values())) as step:
            for file, blob in blobs.items():
                if file != FILES[0] and blob.size > MOST_SMALL:
                    raise ContentError(f"its {file} has {blob.size} bytes")
                fetch_blob(self._client, reference, blob, files / file, progress=step, stop=self._stop)
        layer = load_layer(files)
        if layer is None or layer.digest != blobs[FILES[0]].digest:
            raise ContentError("its files do not belong together")
        return layer

    def _lose(self, why: str) -> None:
        """Say once that the store cannot be used, and leave it alone from then on."""
        with self._guard:
            if not self._is_lost:
                self._is_lost = True
                self._console.say(f"warning: the build goes on without the store `{self._place}`: {why}")


def open_store(
    setting: str, environment: Mapping[str, str], cache: Store, console: Console
) -> SharedStore | None:
    """Return the store that the setting names, None without one; raises UsageError.

    Without ENVBUILDER_STORE_KEY nothing is believed, and a warning says so.
    """
    if not environment.get(setting):
        return None
    # Credential helpers see the whole environment: those of clouds have their own settings.
    client = Client(environment, ProcessRunner(environment, whole=True), console.waiting)
    place = find_reference(environment[setting], client.settings.prefix)
    if place.tag or place.digest:
        raise UsageError(f"{setting} is `{place}`", hint="name a repository, without a tag")
    named = environment.get(KEY, "")
    if not named:
        console.say(
            f"warning: the store `{place}` is not used: an entry is code that will run, and {KEY} does not say whose is believed"
        )
        return None
    keys = Keys()
    if named != ANYONE:
        public, private = load_either(Path(named), lambda: environment.get("ENVBUILDER_KEY_PASSPHRASE"))
        keys = Keys(public=public, private=private)
    return SharedStore(client, place, keys=keys, cache=cache, console=console)


def _source(path: Path) -> Source:
    blob = Descriptor(
        media_type=FILE_TYPE, digest=sha256_file(path), size=path.stat().st_size, annotations=((TITLE, path.name),)
    )  # fmt: skip
    return Source(blob=blob, content=path)


def _sign(key: Sha256, sources: list[Source], private: PrivateKey) -> bytes:
    subjects = [Subject(name="key", sha256=key)]
    subjects += [
        Subject(name=file, sha256=source.blob.digest) for file, source in zip(FILES, sources, strict=True)
    ]
    statement = make_statement(subjects, predicate_type=ENTRY_TYPE, predicate={})
    return make_bundle(statement, private).encode()
