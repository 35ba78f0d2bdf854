"""Bring the blobs of a pull here, and give image and SIF their names once each is whole.

A SIF holds the compressed bytes of the image's layers, so it is made of these, with the writer of `build`.
Layers come from the cache, from the image in the output folder and from the registry, each compared with
its digest. Of the SIF only the frame is fetched, by range: the documents before its file system and a
signature behind it. Layers that were fetched for a SIF stay in the cache.
"""

import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.artifacts import history
from envbuilder.artifacts.oci.layout import read_layout, save_layout
from envbuilder.artifacts.oci.model import Descriptor, Manifest, parse_configuration
from envbuilder.artifacts.oci.naming import LATEST, SIF_FRAME, Form, Reference, sif_of
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import SifFrame, parse_frame, read_frame, write_framed_sif
from envbuilder.core.budget import DOCUMENT
from envbuilder.core.cache import Sha256, Store, link_or_copy, sha256_file, sync_file
from envbuilder.core.console import Console
from envbuilder.core.errors import AbsentError, BuildError, ContentError, SpaceError, VerifyError
from envbuilder.core.plain import counted
from envbuilder.core.private import is_trusted
from envbuilder.layers.blob import index_blob
from envbuilder.layers.layer import Layer, find_blobs, load_layer
from envbuilder.registry.client import Client
from envbuilder.registry.download import fetch_blob, read_blob, read_manifest, read_range
from envbuilder.sources.fetch import each


@dataclass(kw_only=True)
class Transfer:
    """One pull into a private `folder`, where partial blobs stay for the next one."""

    client: Client
    reference: Reference
    outputs: Outputs
    folder: Path
    store: Store | None  # the cache; None if it cannot be written
    console: Console
    here: int = 0  # bytes of layers that were on this machine
    _fetched: list[tuple[int, int]] = field(default_factory=list)  # bytes, and those of an earlier attempt
    _blobs: dict[Sha256, Path] = field(default_factory=dict)  # that are here and have their bytes

    @property
    def fetched(self) -> int:
        return sum(size for size, _ in self._fetched)

    @property
    def resumed(self) -> int:
        return sum(resumed for _, resumed in self._fetched)

    def pull(self, manifests: Mapping[Form, Manifest], *, versions: int) -> None:
        """Bring what is missing; raises RegistryError and SpaceError. The folder keeps so many `versions` of the SIF."""
        image = manifests.get("image")
        if image:
            self._find_in_output(_blobs_of(image))
        missing = {
            form: manifest for form, manifest in manifests.items() if not self._is_here(form, manifest)
        }
        if missing and image is None:
            image = self._image_of(missing["sif"])
        layers = dict[Sha256, Layer]()
        if missing and image and self.store:
            layers = find_layers(self.store, [blob.digest for blob in image.layers])
            self._blobs |= {digest: layer.blob for digest, layer in layers.items()}
            self._find_in_output([blob for blob in image.layers if blob.digest not in self._blobs])
            self.here = sum(blob.size for blob in image.layers if blob.digest in self._blobs)
        if image and "image" in missing:
            self._fetch(_blobs_of(image))
        if (sif := missing.get("sif")) and (refusal := self._make_sif(sif, image, layers)):
            self.here = 0
            if sif.layers[0].media_type == SIF_FRAME:
                raise AbsentError(
                    f"the SIF of `{self.reference}` cannot be made of its image: {refusal}",
                    hint="the registry has no whole file of it: push it again without `--thin`",
                )
            self.console.say(f"{self.outputs.sif.name}: the whole file is fetched: {refusal}")
            self._fetch([sif_of(sif)])
        for form, manifest in missing.items():
            self._finish(form, manifest, versions)

    def _find_in_output(self, blobs: Sequence[Descriptor]) -> None:
        """Note the blobs that the output already has, also of an earlier image of that name. Each is hashed."""
        for blob in blobs:
            path = self.outputs.image / "blobs/sha256" / blob.digest
            if _holds(path, blob):
                self._blobs[blob.digest] = path

    def _is_here(self, form: Form, manifest: Manifest) -> bool:
        if form == "sif":
            return _holds(self.outputs.sif, sif_of(manifest))
        try:
            same = read_layout(self.outputs.image).manifest.digest == manifest.digest
        except VerifyError:
            return False
        return (
            same
            and is_trusted(str(self.outputs.image))
            and all(blob.digest in self._blobs for blob in _blobs_of(manifest))
        )

    def _image_of(self, sif: Manifest) -> Manifest | None:
        """Return the manifest of the image that the SIF names, if the registry has it."""
        if sif.subject is None:
            return None
        try:
            return read_manifest(self.client, self.reference.with_digest(sif.subject.digest))
        except AbsentError:
            return None

    def _fetch(self, blobs: Sequence[Descriptor]) -> None:
        """Download those of the blobs that are missing."""
        wanted = list({blob.digest: blob for blob in blobs if blob.digest not in self._blobs}.values())
        if not wanted:
            return
        self._need_space(wanted)
        with self.console.step(
            f"pull {self.reference.repository}", sum(blob.size for blob in wanted)
        ) as step:

            def work(blob: Descriptor, stop: threading.Event) -> None:
                path = self.folder / blob.digest
                resumed = fetch_blob(self.client, self.reference, blob, path, progress=step, stop=stop)
                self._fetched.append((blob.size, resumed))
                self._blobs[blob.digest] = path

            each(sorted(wanted, key=lambda blob: -blob.size), work)

    def _need_space(self, wanted: Sequence[Descriptor], more: int = 0) -> None:
        """Raise SpaceError unless the file system of the output has room for the blobs, and for so many bytes."""
        partial = [path for path in (self.folder / blob.digest for blob in wanted) if path.is_file()]
        needed = sum(blob.size for blob in wanted) + more - sum(path.stat().st_size for path in partial)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise SpaceError(
                f"the pull needs {needed / 1e9:.2f} GB at `{self.outputs.folder}`; {free / 1e9:.2f} GB are free",
                hint="free space there, or choose another --output",
            )

    def _read_frame(self, manifest: Manifest) -> SifFrame:
        """Return the frame of a SIF: what was pushed of it, or by range out of the whole file."""
        pushed, sif = manifest.layers[0], sif_of(manifest)
        if pushed.media_type == SIF_FRAME:
            self._fetched.append((pushed.size, 0))
            return parse_frame(read_blob(self.client, self.reference, pushed, most=2 * DOCUMENT), sif.size)

        def read(start: int, size: int) -> bytes:
            self._fetched.append((size, 0))
            return read_range(self.client, self.reference, sif.digest, start, size)

        return read_frame(read, sif.size)

    def _make_sif(self, manifest: Manifest, image: Manifest | None, layers: Mapping[Sha256, Layer]) -> str:
        """Make the SIF of its image's layers, or return why the whole file must be fetched."""
        if self.store is None:
            return "the cache cannot be written"
        if image is None or image.config is None:
            return "the registry has no image of it"
        sif = sif_of(manifest)
        made = self.folder / f"{sif.digest}.sif"
        try:
            frame = self._read_frame(manifest)
            self._need_space([blob for blob in image.layers if blob.digest not in self._blobs], sif.size)
            self._fetch(image.layers)
            added = self._add_layers(
                image, image.config, [blob for blob in image.layers if blob.digest not in layers]
            )
            with self.console.step(f"write {self.outputs.sif.name}", sif.size):
                every = {**layers, **added}
                written = write_framed_sif(frame, [every[blob.digest] for blob in image.layers], made)
        except (AbsentError, BuildError, ContentError, SpaceError) as error:
            return error.message
        except ValueError as error:
            return f"it cannot be used: {error}"
        if written.sha256 != sif.digest:
            made.unlink()
            return "its layers make another file"
        made.replace(self.folder / sif.digest)
        return ""

    def _add_layers(
        self, image: Manifest, config: Descriptor, blobs: Collection[Descriptor]
    ) -> dict[Sha256, Layer]:
        """Put layers whose blobs are here into the cache. Raises BuildError for those that envbuilder did not write."""
        if not blobs:
            return {}
        diff_ids = parse_configuration(read_blob(self.client, self.reference, config)).diff_ids
        by_blob = dict(zip((blob.digest for blob in image.layers), diff_ids, strict=True))
        layers, store = dict[Sha256, Layer](), self.store
        assert store, "the whole file is fetched without a cache"

        def add(blob: Descriptor, _: threading.Event) -> None:
            entry = store.layer(blob.digest)
            with store.lock(f"layer-{blob.digest}"):  # another pull may add it
                with store.renewed(entry, {"layer.tar.zst": blob.digest}) as folder:
                    link_or_copy(self._blobs[blob.digest], folder / "layer.tar.zst")
                    (folder / "layer.tar.zst").chmod(0o444)  # as its writer leaves it
                    index_blob(
                        folder, name=blob.digest[:12], digest=blob.digest, diff_id=by_blob[blob.digest]
                    )
                layer = load_layer(entry)
            assert layer is not None, "it was written just now"
            layers[blob.digest] = layer

        with self.console.step(f"read {counted(len(blobs), 'layer')}"):
            each(sorted(blobs, key=lambda blob: -blob.size), add)
        return layers

    def _finish(self, form: Form, manifest: Manifest, versions: int) -> None:
        if form == "sif":
            digest = sif_of(manifest).digest
            (self.folder / digest).chmod(0o755)
            sync_file(self.folder / digest)
            history.install(self.folder / digest, self.outputs.sif, digest, versions)
            return
        blobs = {blob.digest: self._blobs[blob.digest] for blob in _blobs_of(manifest)}
        tag = str(self.reference.with_tag(self.reference.tag or LATEST))
        try:
            save_layout(self.outputs.image, name=tag, manifest=manifest, blobs=blobs)
        except ValueError as error:
            raise ContentError(f"`{self.reference}` is no image that can be used: {error}") from error


def find_layers(store: Store, digests: Collection[Sha256]) -> dict[Sha256, Layer]:
    """Return the layers with these blobs that the cache has, built here or pulled. Each blob is hashed."""
    layers: dict[Sha256, Layer] = {}

    def check(folder: Path, _: threading.Event) -> None:
        layer = load_layer(folder)
        if layer and sha256_file(layer.blob) == layer.digest:
            layers[layer.digest] = layer
            os.utime(folder)  # for `cache --gc --unused`

    folders = (*store.layers(), *map(store.layer, digests))  # of two with a digest, the last: a pulled one
    each([blob.parent for blob in find_blobs(folders, digests).values()], check)
    return layers


def _blobs_of(image: Manifest) -> Sequence[Descriptor]:
    return (*((image.config,) if image.config else ()), *image.layers)


def _holds(path: Path, blob: Descriptor) -> bool:
    """Whether the file has these bytes. Another user's file does not count: that user can change it."""
    is_own = path.is_file() and is_trusted(str(path))
    return is_own and path.stat().st_size == blob.size and sha256_file(path) == blob.digest
