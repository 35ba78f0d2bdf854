"""A repository in which machines share what their builds made: layers, compiled extensions and built wheels.

The tag of an entry is its build key. An entry has the four files of a layer. A compiled extension or a
wheel is packed as such a layer. An entry is code that will run, so a signed statement names its key and
the digests of its files, and only an entry with the right signature is used. No failure here fails a build.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.model import EMPTY, EMPTY_CONTENT, Descriptor, Manifest, make_manifest
from envbuilder.artifacts.oci.naming import TITLE, Reference, find_reference
from envbuilder.artifacts.signing import PrivateKey, PublicKey, load_either, make_bundle, signed_by
from envbuilder.artifacts.statement import BUNDLE_TYPE, Subject, make_statement, read_bundle, subject_digests
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
from envbuilder.registry.upload import Source, push_blob, put_manifest, small_source

ENTRY_TYPE: Final = "application/vnd.envbuilder.entry.v1"
ENTRY_KEY: Final = "io.envbuilder.key"  # annotation: the build key of the entry
_KEY: Final = "ENVBUILDER_STORE_KEY"
_ANYONE: Final = "none"  # in place of a key
_FILES: Final = ("layer.tar.zst", "manifest.txt", "blocks.json", "layer.json")
_FILE_TYPE: Final = "application/octet-stream"
_MOST_SMALL: Final = 256 << 20  # bytes of a file that is not the layer's blob


@dataclass(kw_only=True)
class SharedStore:
    """One repository of entries; safe to use from several threads. After a failure it is not asked again."""

    client: Client
    place: Reference
    public: PublicKey | None = None  # whose entries are believed; without one, the registry is
    private: PrivateKey | None = None  # which signs new entries
    cache: Store
    console: Console
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _is_lost: bool = False
    _refused: set[Sha256] = field(default_factory=set)
    _fetched: set[Sha256] = field(default_factory=set)

    def fetch(self, key: Sha256, folder: Path, name: str, *, packed: bool) -> bool:
        """Put the entry of the key into the cache as `folder`. Returns False when there is none that can be used.

        The folder gets the files of the layer, or with `packed` the files that the layer holds.
        """
        reference = self.place.with_tag(key)
        if self._is_lost:
            return False
        try:
            manifest = self._find(reference)
            if manifest is None:
                return False
            blobs = self._need_believed(key, reference, manifest)
            contents: dict[str, str] | None = (
                None if packed else {}
            )  # a layer names the digests of its own files
            with self.cache.renewed(folder, contents) as out:
                layer = self._download(reference, blobs, out.parent / "layer" if packed else out, name)
                if packed:
                    extract(layer, out)
        except SpaceError:
            raise
        except (AbsentError, ContentError, VerifyError, BuildError, ValueError, RecursionError) as error:
            self._refused.add(key)
            self.console.say(f"warning: the entry `{reference}` is refused: {error}")
            return False
        except RegistryError as error:
            self._lose(error.message)
            return False
        self._fetched.add(key)
        return True

    def put(self, key: Sha256, folder: Path, name: str, *, packed: bool) -> None:
        """Send the entry of the key unless the store has it. A refused entry is replaced."""
        reference = self.place.with_tag(key)
        if self._is_lost or key in self._fetched or (self.public and not self.private):
            return
        try:
            if key not in self._refused and self._find(reference):
                return
            with self.cache.workspace() as work, self.console.step(f"share {name}") as step:
                if packed:
                    write_layer(name="entry", tree=folder, folder=work / "layer", epoch=0, threads=1)
                files = work / "layer" if packed else folder
                sources = [_source(files / file) for file in _FILES]
                if self.private:
                    sources.append(_signature(key, sources, self.private))
                config = small_source(EMPTY, EMPTY_CONTENT)
                for source in (*sources, config):
                    push_blob(self.client, reference, source, progress=step, stop=self.client.stop)
                entry = make_manifest(
                    config=config.blob,
                    layers=[source.blob for source in sources],
                    artifact_type=ENTRY_TYPE,
                    annotations={ENTRY_KEY: f"sha256:{key}"},
                )
                put_manifest(self.client, reference, entry)
        except (RegistryError, VerifyError, BuildError) as error:
            self._lose(error.message)

    def _find(self, reference: Reference) -> Manifest | None:
        try:
            return read_manifest(self.client, reference)
        except AbsentError:
            return None

    def _need_believed(
        self, key: Sha256, reference: Reference, manifest: Manifest
    ) -> Mapping[str, Descriptor]:
        """Return the blobs by the names of the files; raises ContentError or VerifyError for what may not be used."""
        layers, others = manifest.layers[: len(_FILES)], manifest.layers[len(_FILES) :]
        names = [dict(layer.annotations).get(TITLE, "") for layer in layers]
        if manifest.artifact_type != ENTRY_TYPE or names != list(_FILES):
            raise ContentError("it is no entry of a store of envbuilder")
        if dict(manifest.annotations).get(ENTRY_KEY) != f"sha256:{key}":
            raise VerifyError("it is the entry of another key")
        if self.public:
            signature = next((blob for blob in others if blob.media_type == BUNDLE_TYPE), None)
            if signature is None:
                raise VerifyError("it is not signed")
            bundle = read_blob(self.client, reference, signature)
            statement = read_bundle(bundle, "its statement", signed_by(self.public))
            if not {key, *(layer.digest for layer in layers)} <= subject_digests(statement, ENTRY_TYPE):
                raise VerifyError("its signature is that of another entry")
        return dict(zip(_FILES, layers, strict=True))

    def _download(
        self, reference: Reference, blobs: Mapping[str, Descriptor], files: Path, name: str
    ) -> Layer:
        files.mkdir(exist_ok=True)
        with self.console.step(f"fetch {name}", sum(blob.size for blob in blobs.values())) as step:
            for file, blob in blobs.items():
                if file != _FILES[0] and blob.size > _MOST_SMALL:
                    raise ContentError(f"its {file} has {blob.size} bytes")
                fetch_blob(self.client, reference, blob, files / file, progress=step, stop=self.client.stop)
        layer = load_layer(files)
        if layer is None or layer.digest != blobs[_FILES[0]].digest:
            raise ContentError("its files do not belong together")
        return layer

    def _lose(self, why: str) -> None:
        """Say once that the store cannot be used, and leave it alone from then on."""
        with self._guard:
            if not self._is_lost:
                self._is_lost = True
                self.console.say(f"warning: the build goes on without the store `{self.place}`: {why}")


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
    key = environment.get(_KEY, "")
    if not key:
        console.say(
            f"warning: the store `{place}` is not used: an entry is code that will run, and {_KEY} does not say whose is believed"
        )
        return None
    public, private = None, None
    if key != _ANYONE:
        public, private = load_either(Path(key), lambda: environment.get("ENVBUILDER_KEY_PASSPHRASE"))
    return SharedStore(
        client=client, place=place, public=public, private=private, cache=cache, console=console
    )


def _source(path: Path) -> Source:
    blob = Descriptor(
        media_type=_FILE_TYPE, digest=sha256_file(path), size=path.stat().st_size, annotations=((TITLE, path.name),)
    )  # fmt: skip
    return Source(blob=blob, content=path)


def _signature(key: Sha256, sources: list[Source], private: PrivateKey) -> Source:
    digests = (key, *(source.blob.digest for source in sources))
    names = zip(("key", *_FILES), digests, strict=True)
    subjects = [Subject(name=name, sha256=digest) for name, digest in names]
    statement = make_statement(subjects, predicate_type=ENTRY_TYPE, predicate={})
    return small_source(BUNDLE_TYPE, make_bundle(statement, private).encode())
