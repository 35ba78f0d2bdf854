"""Push the image by its tag, the SIF beside it, and the documents of both.

The image keeps the digest of the build, so its manifest cannot name the SIF. The SIF's manifest
names the image instead, as its subject and in its annotations. The registry then lists the SIF
among the image's referrers (OCI distribution specification). SBOM, provenance and signature are
listed in the same way.

A thin push sends only the SIF's frame. `pull` makes the SIF of it and of the image's layers, in which the
rest lies already; Apptainer pulls only a whole file.

A tag has one image for each platform, and a SIF tag of each. Pushing one keeps the others.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci import model, naming
from envbuilder.artifacts.oci.layout import Layout, read_layout
from envbuilder.artifacts.oci.naming import LATEST, Reference
from envbuilder.artifacts.outputs import Outputs, load_record
from envbuilder.artifacts.sif import DataType, need_recorded, processor_in, read_frame, read_sif
from envbuilder.artifacts.statement import BUNDLE_TYPE, PROVENANCE_TYPE, read_signed_release
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Sha256, parse_sha256, save_text
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.core.plain import pasted
from envbuilder.core.processor import X86_64, processor_of
from envbuilder.registry.client import Client
from envbuilder.registry.upload import Sent, Source, damaged, push_blob, put_image, put_manifest, small_source
from envbuilder.sources.fetch import each

_LOCK: Final = "opt/envbuilder/lock.json"


class SentBlobs(Answer):
    """How many blobs were sent, were there before, or were mounted from another repository."""

    sent: int
    there: int
    mounted: int


class Pushed(Answer):
    """References by digest; null for what was not pushed."""

    image: str | None
    platforms: tuple[str, ...]  # of all images that its tag has
    sif: str | None
    sif_sha256: str | None
    thin: bool  # only the frame of the SIF was pushed
    attached: int  # SBOM, provenance and signatures
    blobs: SentBlobs
    bytes_sent: int
    bytes_resumed: int

    def text(self) -> str:
        every = f"  for {' and '.join(self.platforms)}" if len(self.platforms) > 1 else ""
        lines = [f"image  {self.image}{every}"] if self.image else []
        if self.sif:
            scheme = "" if self.thin else "oras://"  # which Apptainer pulls
            lines.append(f"SIF    {scheme}{self.sif}  sha256:{self.sif_sha256}")
        there = self.blobs.there + self.blobs.mounted
        total = there + self.blobs.sent
        return "\n".join(
            [*lines, f"{self.bytes_sent / 1e6:.1f} MB sent, {there} of {total} blobs were there"]
        )


def push(
    outputs: Outputs,
    reference: Reference,
    client: Client,
    *,
    forms: Sequence[naming.Form],
    thin: bool = False,
    memory: Path,
    console: Console,
) -> Pushed:
    """Push what was built under the reference's tag; raises RegistryError, UsageError or VerifyError.

    `thin`: of the SIF only its frame, beside the image that has the rest.
    The file `memory` records which repositories have which blobs, so that a registry can mount
    them.
    """
    tagged = reference.with_tag(reference.tag or LATEST)
    layout = read_layout(outputs.image) if outputs.image.exists() else None
    processor = (processor_of(layout.config.platform) if layout else processor_in(outputs.sif)) or X86_64
    sif_tag = naming.sif_reference(tagged, processor)
    marks, documents = _documents(outputs)
    if layout and "sif" in forms:
        marks[naming.IMAGE_KEY] = f"sha256:{layout.manifest.digest}"
    manifests, sources = _artifacts(outputs, layout, forms, marks, thin=thin)
    documents += _signature(outputs, tagged, manifests)
    attached = [
        _attachment(document, manifest, marks) for manifest in manifests.values() for document in documents
    ]
    sources += [small_source(model.EMPTY, model.EMPTY_CONTENT), *documents]
    unique = {source.blob.digest: source for source in sources}
    noted, sent, platforms = _noted(memory, tagged), list[Sent](), tuple[str, ...]()
    total = sum(source.blob.size for source in unique.values())
    with console.step(f"push {reference.repository}", total) as transfer:

        def work(source: Source, stop: threading.Event) -> None:
            sibling = noted.get(source.blob.digest, "")
            sent.append(push_blob(client, tagged, source, sibling=sibling, progress=transfer, stop=stop))

        each(sorted(unique.values(), key=lambda source: -source.blob.size), work)
        image, sif = manifests.get("image"), manifests.get("sif")
        if image:
            platforms = put_image(client, tagged, image, processor.platform)
        if sif:
            put_manifest(client, sif_tag, sif)
        for document in attached:
            put_manifest(client, tagged.with_digest(document.digest), document)
    _note(memory, tagged, tuple(unique))
    return Pushed(
        image=str(tagged.with_digest(image.digest)) if image else None,
        platforms=platforms,
        sif=str(sif_tag.with_digest(sif.digest)) if sif else None,
        sif_sha256=naming.sif_of(sif).digest if sif else None,
        thin=thin,
        attached=len(attached),
        blobs=SentBlobs(
            sent=sum(not blob.there and not blob.mounted for blob in sent),
            there=sum(blob.there for blob in sent),
            mounted=sum(blob.mounted for blob in sent),
        ),
        bytes_sent=sum(blob.sent for blob in sent),
        bytes_resumed=sum(blob.saved for blob in sent),
    )


def _artifacts(
    outputs: Outputs,
    layout: Layout | None,
    forms: Sequence[naming.Form],
    marks: Mapping[str, str],
    *,
    thin: bool,
) -> tuple[dict[naming.Form, model.Manifest], list[Source]]:
    """Return the manifest of each form, and their blobs."""
    manifests: dict[naming.Form, model.Manifest] = {}
    sources: list[Source] = []
    if "image" in forms:
        if layout is None:
            raise _absent(outputs, str(outputs.image))
        sources += _blobs(layout)
        manifests["image"] = layout.manifest
    if "sif" in forms:
        source = _frame(_sif(outputs)) if thin else _sif(outputs)
        config = small_source(naming.SIF_CONFIG, model.EMPTY_CONTENT)
        sources += [source, config]
        manifests["sif"] = model.make_manifest(
            config=config.blob,
            layers=[source.blob],
            subject=layout.manifest.descriptor() if layout else None,
            annotations={naming.TITLE: outputs.name, **marks},
        )
    return manifests, sources


def _noted(memory: Path, reference: Reference) -> dict[str, str]:
    """Return by digest another repository of this registry that has the blob."""
    registry = _remembered(memory).get(reference.registry, {})
    return {digest: name for digest, name in registry.items() if name != reference.repository}


def _note(memory: Path, reference: Reference, digests: Sequence[Sha256]) -> None:
    known = _remembered(memory)
    known[reference.registry] = known.get(reference.registry, {}) | dict.fromkeys(
        digests, reference.repository
    )
    save_text(memory, json.dumps(known, indent=1, sort_keys=True) + "\n")


def _remembered(memory: Path) -> dict[str, dict[str, str]]:
    """Return the record of pushed blobs. An unreadable one counts as empty, and all is sent."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        return {
            str(registry): {str(key): str(name) for key, name in blobs.items()}
            for registry, blobs in known.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _blobs(layout: Layout) -> Iterator[Source]:
    for blob in layout.blobs:
        path = layout.path(blob)
        if not path.is_file() or path.stat().st_size != blob.size:
            raise damaged(path, f"it is no file of {blob.size} bytes")
        yield Source(blob=blob, content=path)


def _sif(outputs: Outputs) -> Source:
    if not outputs.sif.is_file():
        raise _absent(outputs, str(outputs.sif))
    record = load_record(outputs)
    digest = parse_sha256(record.sif) if record else need_recorded(outputs)
    blob = model.Descriptor(
        media_type=naming.SIF_LAYER, digest=digest, size=outputs.sif.stat().st_size,
        annotations=((naming.TITLE, outputs.sif.name),),
    )  # fmt: skip
    return Source(blob=blob, content=outputs.sif)


def _frame(whole: Source) -> Source:
    """Return what is pushed of a SIF beside its image; raises VerifyError when the file is damaged."""
    whole.need_right()
    with whole.open() as stream:

        def read(start: int, size: int) -> bytes:
            stream.seek(start)
            return stream.read(size)

        content = read_frame(read, whole.blob.size).content
    return Source(blob=naming.describe_frame(content, whole.blob), content=content)


def _attachment(document: Source, subject: model.Manifest, marks: Mapping[str, str]) -> model.Manifest:
    return model.make_manifest(
        config=small_source(model.EMPTY, model.EMPTY_CONTENT).blob,
        layers=[document.blob],
        artifact_type=document.blob.media_type,
        subject=subject.descriptor(),
        annotations=marks,
    )


def _documents(outputs: Outputs) -> tuple[dict[str, str], list[Source]]:
    """Return the annotation with the digest of the lock, and SBOM and provenance from the SIF, if there is one."""
    if not outputs.sif.is_file():
        return {}, []
    sif = read_sif(outputs.sif)
    provenance = sif.read(DataType.JSON)
    texts = ((naming.SBOM_TYPE, sif.read(DataType.SBOM)), (PROVENANCE_TYPE, provenance))
    documents = [small_source(kind, text) for kind, text in texts if text]
    with contextlib.suppress(ValueError, LookupError, TypeError):  # another program's provenance
        files = model.load_json(provenance)["predicate"]["buildDefinition"]["externalParameters"]["files"]
        digests = [parse_sha256(file["digest"]["sha256"]) for file in files if file["name"] == _LOCK]
        return {naming.LOCK_KEY: f"sha256:{digests[0]}"}, documents
    return {}, documents


def _signature(
    outputs: Outputs, tagged: Reference, manifests: Mapping[naming.Form, model.Manifest]
) -> list[Source]:
    """Return the signed statement, if there is one; raises VerifyError when it covers other artifacts or another tag."""
    if not outputs.bundle.is_file():
        return []
    content = outputs.bundle.read_bytes()
    signed = read_signed_release(content, str(outputs.bundle))
    for form, manifest in manifests.items():
        if naming.digest_that_is_signed(form, manifest) not in signed.digests:
            hint = "push with `--sign KEY`, or sign the artifacts again"
            raise VerifyError(f"`{outputs.bundle}` does not cover the {form} as it is", hint=hint)
    release = signed.release
    if (release.name, release.tag) != (tagged.name, tagged.tag):
        raise VerifyError(
            f"`{outputs.bundle}` is signed for `{release.name}:{release.tag}`, not for `{tagged.name}:{tagged.tag}`",
            hint=f"push with `--sign KEY`, or `envbuilder sign {pasted(outputs.name)} --key KEY --tag {tagged.tag}` first",
        )
    return [small_source(BUNDLE_TYPE, content)]


def _absent(outputs: Outputs, path: str) -> UsageError:
    return UsageError(f"there is no `{path}`", hint=f"`envbuilder build {pasted(outputs.name)}` makes it")
