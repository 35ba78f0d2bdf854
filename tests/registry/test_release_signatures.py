"""`pull --key` takes what the key's holder released under that name and tag, and nothing else that the key signed."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from envbuilder.artifacts.oci import model, naming
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.oci.naming import FORMS, Form, Reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import DataType, read_sif
from envbuilder.artifacts.signing import make_bundle
from envbuilder.artifacts.statement import (
    BUNDLE_TYPE,
    SLSA_PROVENANCE,
    Release,
    Subject,
    make_statement,
    restate,
)
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import VerifyError
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_manifest
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import push
from envbuilder.registry.upload import Source, push_blob, put_manifest
from tests.support.registries import Registry, registry
from tests.support.runner import FakeRunner
from tests.support.toys import make_pair

pytestmark = pytest.mark.programs
KEY = ed25519.Ed25519PrivateKey.generate()
MONDAY, TUESDAY = (datetime(2026, 11, day, 12, tzinfo=UTC) for day in (23, 24))


@dataclass(frozen=True, kw_only=True)
class World:
    real: Registry
    folder: Path
    key: Path
    old: Outputs
    new: Outputs

    @property
    def client(self) -> Client:
        return Client({"HOME": str(self.folder)}, FakeRunner())

    def place(self, tag: str, name: str = "toy") -> Reference:
        return Reference(registry=self.real.host, repository=f"{self.folder.name}/{name}", tag=tag)

    def push(self, outputs: Outputs, tag: str, bundle: str = "", name: str = "toy") -> None:
        """Push a pair, with this statement beside it."""
        outputs.bundle.unlink(missing_ok=True)
        if bundle:
            outputs.bundle.write_text(bundle)
        push(
            outputs, self.place(tag, name), self.client,
            forms=FORMS, memory=self.folder / "memory", console=Console(quiet=True),
        )  # fmt: skip

    def attach(self, subject: model.Manifest, bundle: str, tag: str, name: str = "toy") -> None:
        """Do what whoever may write to the registry can do: list a statement among a manifest's referrers."""
        content = bundle.encode()
        blob, config = (
            model.describe(content, BUNDLE_TYPE),
            model.describe(model.EMPTY_CONTENT, model.EMPTY),
        )
        place = self.place(tag, name)
        for source in (Source(blob=blob, content=content), Source(blob=config, content=model.EMPTY_CONTENT)):
            with Console(quiet=True).step("attach", source.blob.size) as step:
                push_blob(self.client, place, source, sibling="", progress=step, stop=threading.Event())
        manifest = model.make_manifest(
            config=config, layers=[blob], artifact_type=BUNDLE_TYPE, subject=subject.descriptor()
        )
        put_manifest(self.client, place.with_digest(manifest.digest), manifest)

    def pull(
        self, tag: str, forms: tuple[Form, ...] = FORMS, name: str = "toy", oldest: datetime | None = None
    ) -> Pulled:
        return pull(
            self.place(tag, name), self.client, outputs=Outputs(folder=self.folder / "in", name="toy"), forms=forms,
            key=self.key, not_older_than=oldest, store=Store(self.folder / "cache"), console=Console(quiet=True),
        )  # fmt: skip

    @property
    def pulled(self) -> list[str]:
        return [path.name for path in (self.folder / "in").glob("*")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as one:
        yield one


@pytest.fixture
def world(real: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    folder = tmp_path / f"t{abs(hash(request.node.nodeid))}"
    folder.mkdir()
    key = folder / "key.pub"
    key.write_bytes(
        KEY.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    old, new = make_pair(folder)
    return World(real=real, folder=folder, key=key, old=old, new=new)


def subjects(outputs: Outputs) -> tuple[Subject, Subject]:
    return (
        Subject(name="toy.oci", sha256=read_layout(outputs.image).manifest.digest),
        Subject(name="toy.sif", sha256=sha256_file(outputs.sif)),
    )


def signed(outputs: Outputs, tag: str, time: datetime = MONDAY, name: str = "toy") -> str:
    """A statement as `sign` writes it."""
    provenance = read_sif(outputs.sif).read(DataType.JSON).decode()
    return make_bundle(restate(provenance, subjects(outputs), Release(name=name, tag=tag, time=time)), KEY)


def test_a_signed_pair_is_pulled_and_said_to_be_of_a_time(world: World):
    world.push(world.new, "1", signed(world.new, "1"))
    done = world.pull("1", oldest=MONDAY)
    assert (done.signature_verified, done.signed_as, done.signed) == (True, "toy:1", "2026-11-23T12:00:00Z")
    assert done.text().endswith("signature verified: toy:1, signed 2026-11-23T12:00:00Z")
    assert (world.folder / "in/toy.sigstore.json").read_text() == signed(world.new, "1")
    world.pull("1-sif", ("sif",))  # the name that Apptainer pulls


def test_an_image_and_a_sif_of_two_releases_are_no_release(world: World):
    """Both are signed for this name and tag, each with another partner."""
    world.push(world.old, "1", signed(world.old, "1"))
    world.push(world.new, "1", signed(world.new, "1", TUESDAY))
    image = read_layout(world.new.image).manifest
    sif = Source(
        blob=model.Descriptor(
            media_type=naming.SIF_LAYER, digest=sha256_file(world.old.sif), size=world.old.sif.stat().st_size
        ),
        content=world.old.sif,
    )
    config = model.describe(model.EMPTY_CONTENT, naming.SIF_CONFIG)
    mixed = model.make_manifest(config=config, layers=[sif.blob], subject=image.descriptor(), annotations={})
    put_manifest(world.client, world.place("1-sif"), mixed)
    world.attach(mixed, signed(world.old, "1"), "1")
    with pytest.raises(VerifyError, match="not as one release"):
        world.pull("1")
    assert world.pulled == []


@pytest.mark.parametrize(
    "predicate_type", ["https://in-toto.io/attestation/vulns/v0.2", "text", SLSA_PROVENANCE]
)
def test_another_statement_of_the_same_key_releases_nothing(world: World, predicate_type: str):
    """The last is provenance without a release, as earlier versions signed it."""
    world.push(world.new, "1")
    text = make_statement(
        subjects(world.new), predicate_type=predicate_type, predicate={"result": "FAILED: backdoor found"}
    )
    image = read_layout(world.new.image).manifest
    world.attach(image, make_bundle(text, KEY), "1")
    with pytest.raises(VerifyError, match="is not the signed statement of a release") as caught:
        world.pull("1", ("image",))
    assert "sign" in caught.value.hint
    assert world.pulled == []


@pytest.mark.parametrize(("tag", "name"), [("2", "toy"), ("1", "tool")])
def test_a_pair_that_was_signed_for_another_name_or_tag_is_refused(world: World, tag: str, name: str):
    """Whoever may write to the registry gives a signed pair another name, with its statement."""
    world.push(world.old, tag, name=name)
    for place in (world.place(tag, name), world.place(f"{tag}-sif", name)):
        world.attach(read_manifest(world.client, place), signed(world.old, "1"), tag, name)
    forms: tuple[tuple[Form, ...], ...] = (FORMS, ("image",), ("sif",))
    for wanted in forms:
        with pytest.raises(
            VerifyError, match="is signed for `toy:1`, and not for the name and tag asked for"
        ):
            world.pull(tag, wanted, name)
    assert world.pulled == []


def test_a_release_that_is_older_than_asked_for_is_refused(world: World):
    world.push(world.old, "1", signed(world.old, "1", MONDAY))
    with pytest.raises(VerifyError, match="2026-11-23 12:00 UTC, before 2026-11-24 12:00 UTC"):
        world.pull("1", oldest=TUESDAY)
    assert world.pulled == []
    assert world.pull("1").signed == "2026-11-23T12:00:00Z"


def test_of_two_statements_about_a_pair_the_newer_counts(world: World):
    world.push(world.new, "1", signed(world.new, "1", TUESDAY))
    world.attach(read_layout(world.new.image).manifest, signed(world.new, "1", MONDAY), "1")
    assert world.pull("1", oldest=TUESDAY).signed == "2026-11-24T12:00:00Z"


def test_a_pair_that_is_signed_for_another_tag_is_not_pushed(world: World):
    with pytest.raises(VerifyError, match="is signed for `toy:1`, not for `toy:2`") as caught:
        world.push(world.new, "2", signed(world.new, "1"))
    assert "--tag 2" in caught.value.hint


def test_statements_that_are_no_json_of_ours_are_refused_in_words(world: World):
    world.push(world.new, "1")
    image = read_layout(world.new.image).manifest
    for text in (
        "[" * 100_000,
        '{"dsseEnvelope": 1}',
        make_bundle("[" * 100_000, KEY),
        make_bundle("{}", KEY),
    ):
        world.attach(image, text, "1")
        with pytest.raises(VerifyError, match="is not signed with the key"):
            world.pull("1", ("image",))
