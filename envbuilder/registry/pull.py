"""Pull image and SIF from a registry. Each gets its final name when it is whole and matches its digest.

Neither Docker nor Apptainer is needed. Partial files lie in a hidden folder beside the output,
where the next pull resumes them. `envbuilder/registry/transfer.py` moves the bytes.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from envbuilder.artifacts.oci.model import Manifest
from envbuilder.artifacts.oci.naming import (
    LATEST,
    SIF_CONFIG,
    Form,
    Reference,
    digest_that_is_signed,
    is_sif,
    sif_reference,
)
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.statement import BUNDLE_TYPE, IsSigned, Release, SignedRelease, read_signed_release
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Store, held, remove_tree, save_text, space_errors
from envbuilder.core.console import Console
from envbuilder.core.errors import AbsentError, UsageError, VerifyError
from envbuilder.core.private import make_folder_for_all, private_folder
from envbuilder.core.processor import PROCESSORS, X86_64, Processor, own_processor, processor_of
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_blob, read_image, read_manifest, read_platform, read_referrers
from envbuilder.registry.transfer import Transfer


class PulledFile(Answer):
    """An artifact that was pulled."""

    form: Form
    path: Path
    digest: str  # of the image's manifest, of the SIF's bytes


class Pulled(Answer):
    """What was pulled, and whether its signature was checked."""

    files: tuple[PulledFile, ...]
    signature_verified: bool
    signed_as: str  # "" without --key; the name and the tag that the key's holder released
    signed: str  # when
    bytes: int  # that were not here before
    bytes_resumed: int  # of them: kept from before a break
    bytes_here: int  # of layers that were on this machine

    def text(self) -> str:
        lines = [f"{file.form:<6} {file.path}  {file.digest}" for file in self.files]
        parts = [f"{self.bytes / 1e6:.1f} MB pulled" if self.bytes else "nothing to do"]
        if self.bytes_resumed:
            parts.append(f"{self.bytes_resumed / 1e6:.1f} MB kept from before a break")
        if self.bytes_here:
            parts.append(f"{self.bytes_here / 1e6:.1f} MB of its layers were here")
        if self.signature_verified:
            parts.append(f"signature verified: {self.signed_as}, signed {self.signed}")
        return "\n".join([*lines, ", ".join(parts)])


def pull(
    reference: Reference,
    client: Client,
    *,
    outputs: Outputs,
    forms: Sequence[Form],
    key: Path | None,
    not_older_than: datetime | None = None,
    store: Store | None,
    platform: str = "",
    versions: int = 1,
    console: Console,
) -> Pulled:
    """Download what is missing. After a RegistryError, VerifyError, SpaceError or UsageError, earlier files stay.

    Without a `platform`, this machine's is taken, or the only one that is there. Layers come from the cache `store`,
    and stay in it; None: it cannot be written, and the SIF is fetched whole. The folder keeps so many `versions` of the SIF.
    """
    is_signed = _key_check(key) if key else None  # a mistake in the key ends a pull at its start
    manifests = find_artifacts(client, reference, forms, platform)
    with space_errors(outputs.folder), _partial_folder(outputs) as folder:
        signed = None
        if key and is_signed:
            signed = _signed_release(client, reference, manifests, key=key, is_signed=is_signed)
            if not_older_than and signed.release.time < not_older_than:
                raise VerifyError(
                    f"`{reference}` is {signed.release}, before {not_older_than:%Y-%m-%d %H:%M} UTC",
                    hint="the registry may serve an old release under this tag; nothing was pulled",
                )
        transfer = Transfer(
            client=client, reference=reference, outputs=outputs, folder=folder, store=store, console=console
        )
        transfer.pull(manifests, versions=versions)
        if signed:
            save_text(outputs.bundle, signed.text.decode())
        for path in folder.iterdir():
            if path.is_dir():  # of a run that was killed while it wrote
                remove_tree(path)
            else:
                path.unlink()
    places = {"image": outputs.image, "sif": outputs.sif}
    return Pulled(
        files=tuple(
            PulledFile(form=form, path=places[form], digest=f"sha256:{digest_that_is_signed(form, manifest)}")
            for form, manifest in manifests.items()
        ),
        signature_verified=signed is not None,
        signed_as=f"{signed.release.name}:{signed.release.tag}" if signed else "",
        signed=signed.release.data()["signed"] if signed else "",
        bytes=transfer.fetched,
        bytes_resumed=transfer.resumed,
        bytes_here=transfer.here,
    )


def parse_date(text: str) -> datetime:
    """Return a date or a time of ISO 8601. Without an offset it is UTC. Raises UsageError for another text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write a date: 2026-11-30, or 2026-11-30T12:00"
        raise UsageError(f"`--not-older-than` is `{text}`", hint=hint) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _key_check(key: Path) -> IsSigned:
    from envbuilder.artifacts.signing import load_public, signed_by  # noqa: PLC0415 - cryptography, for `--key` alone

    return signed_by(load_public(key))


def find_artifacts(
    client: Client, reference: Reference, forms: Sequence[Form], platform: str = ""
) -> dict[Form, Manifest]:
    """Return the manifests of the forms; raises RegistryError, and VerifyError when image and SIF do not belong together."""
    if tuple(forms) == ("sif",):
        return {"sif": _find_sif(client, reference, None, platform)}
    image = _find_image(client, reference, platform)
    if is_sif(image):
        if image.subject is None:
            raise AbsentError(f"`{reference}` is a SIF that names no image", hint="pull it with `--only sif`")
        sif, image = image, read_manifest(client, reference.with_digest(image.subject.digest))
        return {"image": image, "sif": sif}
    if "sif" not in forms:
        return {"image": image}
    return {"image": image, "sif": _find_sif(client, reference, image, platform)}


def _wanted(platform: str) -> Processor:
    return processor_of(platform) or own_processor() or X86_64


def _find_image(client: Client, reference: Reference, platform: str) -> Manifest:
    """Return the image for the platform; without one, that for this machine or the only one."""
    manifest = read_image(client, reference, _wanted(platform).platform)
    if platform and not is_sif(manifest):
        available = read_platform(client, reference, manifest)
        if processor_of(available) != processor_of(platform):
            raise AbsentError(
                f"`{reference}` has no image for {platform}", hint=f"it has one for {available}"
            )
    return manifest


def _find_sif(client: Client, reference: Reference, image: Manifest | None, platform: str) -> Manifest:
    """Find the SIF by the image's tag, otherwise among the referrers of the image."""
    sif = sif_reference(reference, _wanted(platform))
    places = [reference] if reference.digest else [sif, reference]
    for place in places if image is None else places[:-1]:
        with contextlib.suppress(AbsentError):
            manifest = _find_image(client, place, platform)
            subject = manifest.subject.digest if manifest.subject else None
            if is_sif(manifest) and (image is None or subject == image.digest):
                return manifest
            image = image or (None if is_sif(manifest) else manifest)
    if image is not None:
        for listed in reversed(read_referrers(client, reference.with_digest(image.digest), SIF_CONFIG)):
            return read_manifest(client, reference.with_digest(listed.digest))
    if image is None:
        raise AbsentError(
            f"there is neither a SIF nor an image `{sif.with_tag(reference.tag or LATEST)}`",
            hint=f"look at the tag: without one it is `{LATEST}`, and `push` takes the same name",
        )
    raise AbsentError(
        f"there is no SIF of `{reference}`",
        hint=f"`envbuilder push` puts it beside the image, as `{sif}`; `--only image` pulls the image alone",
    )


def _signed_release(
    client: Client,
    reference: Reference,
    manifests: Mapping[Form, Manifest],
    *,
    key: Path,
    is_signed: IsSigned,
) -> SignedRelease:
    """Return the newest statement of the key that names all these artifacts together, for the name and tag asked for.

    Raises VerifyError when there is none.
    """
    statements: list[SignedRelease] = []
    reasons: list[str] = []
    digests = {form: digest_that_is_signed(form, manifest) for form, manifest in manifests.items()}
    for form, digest in digests.items():
        subject = reference.with_digest(manifests[form].digest)
        about = _statements(client, subject, is_signed, reasons)
        signed = [statement for statement in about if digest in statement.digests]
        if not signed:
            why = f": {reasons[-1]}" if reasons else ""
            raise VerifyError(
                f"the {form} at `{subject}` is not signed with the key of `{key}`{why}",
                hint="ask who pushed it; `envbuilder push NAME --sign KEY` signs, and nothing was pulled",
            )
        statements += signed
    together = [statement for statement in statements if statement.digests.issuperset(digests.values())]
    if not together:
        raise VerifyError(
            f"image and SIF at `{reference}` are signed with the key of `{key}`, but not as one release",
            hint="the registry serves the image of one release and the SIF of another; nothing was pulled",
        )
    asked = [statement for statement in together if _is_asked_for(statement.release, reference)]
    if not asked:
        release = together[-1].release
        raise VerifyError(
            f"`{reference}` is signed for `{release.name}:{release.tag}`, and not for the name and tag asked for",
            hint=f"the registry may serve another release under this tag; `{release.name}:{release.tag}` asks for that one",
        )
    return max(asked, key=lambda statement: statement.release.time)


def _statements(
    client: Client, subject: Reference, is_signed: IsSigned, reasons: list[str]
) -> Iterator[SignedRelease]:
    """Yield the releases that the key signed, among the referrers of the manifest. `reasons` gets why others do not count."""
    for listed in read_referrers(client, subject, BUNDLE_TYPE):
        holder = read_manifest(client, subject.with_digest(listed.digest))
        for layer in holder.layers[:1]:
            bundle = read_blob(client, subject, layer)
            try:
                yield read_signed_release(bundle, f"sha256:{layer.digest}", is_signed)
            except VerifyError as error:
                reasons.append(error.message)


def _is_asked_for(release: Release, reference: Reference) -> bool:
    """Whether a release has the name and tag of the reference. A digest alone asks for no tag."""
    if reference.name != release.name:
        return False
    tags = {
        release.tag,
        *(sif_reference(reference.with_tag(release.tag), processor).tag for processor in PROCESSORS),
    }
    return (not reference.tag and reference.digest is not None) or (reference.tag or LATEST) in tags


@contextlib.contextmanager
def _partial_folder(outputs: Outputs) -> Iterator[Path]:
    """Yield the folder of partial blobs, locked for one pull at a time. Raises UsageError for another user's folder."""
    folder = outputs.folder / f".{outputs.name}.pull"
    make_folder_for_all(str(outputs.folder))
    try:
        with private_folder(str(folder)) as inside, held(Path(inside)):
            try:
                yield Path(inside)
            finally:
                with contextlib.suppress(OSError):  # gone after success; kept with what came before a failure
                    folder.rmdir()
    except PermissionError as error:
        if error.filename != str(folder):
            raise
        raise UsageError(
            f"cannot pull into `{folder}`: {error.strerror}", hint="remove it, or choose another --output"
        ) from error
    except BlockingIOError as error:
        raise UsageError(
            f"another pull to `{outputs.folder / outputs.name}` is running",
            hint="wait for it, or choose another --output",
        ) from error
