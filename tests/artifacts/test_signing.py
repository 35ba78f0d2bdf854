"""Signed statements: what one key signed another library reads, and no other key or text passes."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from envbuilder.artifacts.signing import make_bundle, sign, signed_by, verify_signatures
from envbuilder.artifacts.statement import PROVENANCE_TYPE, Release, read_bundle
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.layers.layer import write_layer
from tests.support.runner import FakeRunner
from tests.support.sifs import write_sif

STATEMENT = '{"_type": "https://in-toto.io/Statement/v1", "subject": []}'
KEYS = {
    "P-256": ec.generate_private_key(ec.SECP256R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate(),
    "RSA": rsa.generate_private_key(65537, 2048),
}


@pytest.fixture(params=KEYS)
def key(request):
    return KEYS[request.param]


def others_view(text: str, key: object) -> tuple[Envelope, SSlibKey]:
    scheme = "rsa-pkcs1v15-sha256" if isinstance(key, rsa.RSAPrivateKey) else None
    public = SSlibKey.from_crypto(key.public_key(), scheme=scheme)
    public.keyid = ""  # DSSE leaves it open; this library compares it
    return Envelope.from_dict(json.loads(text)["dsseEnvelope"]), public


def test_the_envelope_is_one_that_secure_systems_lab_verifies(key):
    envelope, public = others_view(make_bundle(STATEMENT, key), key)
    assert (envelope.payload.decode(), envelope.payload_type) == (STATEMENT, PROVENANCE_TYPE)
    assert envelope.verify([public], threshold=1)


def test_it_refuses_another_payload(key):
    envelope, public = others_view(make_bundle(STATEMENT, key), key)
    envelope.payload += b" "
    with pytest.raises(VerificationError):
        envelope.verify([public], threshold=1)


def test_a_bundle_is_read_with_its_own_key_only(key, tmp_path):
    path = tmp_path / "x.sigstore.json"
    path.write_text(make_bundle(STATEMENT, key))
    assert read_bundle(path.read_bytes(), str(path), signed_by(key.public_key())) == STATEMENT
    for other in (ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(VerifyError, match="not signed with this key"):
            read_bundle(path.read_bytes(), str(path), signed_by(other.public_key()))


def test_signing_twice_gives_the_same_bytes(key):
    assert make_bundle(STATEMENT, key) == make_bundle(STATEMENT, key)


def test_a_changed_statement_is_refused(key, tmp_path):
    bundle = json.loads(make_bundle(STATEMENT, key))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(STATEMENT.encode() + b"\n").decode()
    path = tmp_path / "x.sigstore.json"
    path.write_text(json.dumps(bundle))
    with pytest.raises(VerifyError, match="not signed"):
        read_bundle(path.read_bytes(), str(path), signed_by(key.public_key()))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dsseEnvelope": {"payload": "%"}}'])
def test_what_is_no_bundle_is_said_to_be_none(key, tmp_path, text):
    path = tmp_path / "x.sigstore.json"
    path.write_text(text)
    with pytest.raises(VerifyError, match="not a signed statement"):
        read_bundle(path.read_bytes(), str(path), signed_by(key.public_key()))


PASSPHRASE = "correct horse"
RELEASE = Release(name="x", tag="1", time=datetime(2026, 11, 23, tzinfo=UTC))


def write_key(path: Path, key: object, *, passphrase: str = "") -> Path:
    lock = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    return path


def attempt(folder: Path, pem: Path, *, passphrase: str | None = None) -> FakeRunner:
    """Sign an empty SIF, as far as it goes: to where its provenance is read."""
    sif, runner = folder / "x.sif", FakeRunner()
    (folder / "tree").mkdir()
    (folder / "tree/file").write_text("")
    layer = write_layer(name="os", tree=folder / "tree", folder=folder / "layer", epoch=0, threads=1)
    write_sif(layers=[layer], out=sif, epoch=0, definition="", labels={})
    with pytest.raises(VerifyError):
        sign(
            folder / "x.oci",
            sif,
            folder / "b",
            release=RELEASE,
            key=pem,
            runner=runner,
            passphrase=lambda: passphrase,
        )
    return runner


@pytest.mark.parametrize("passphrase", ["", PASSPHRASE])
def test_apptainer_gets_the_opened_key_as_its_input(key, tmp_path, passphrase):
    pem = write_key(tmp_path / "key.pem", key, passphrase=passphrase)
    (command,) = attempt(tmp_path, pem, passphrase=passphrase or None).commands
    assert command.argv[:4] == ("apptainer", "sign", "--key", "/dev/stdin")
    opened = serialization.load_pem_private_key(command.input, password=None)
    assert opened.public_key() == key.public_key()
    assert PASSPHRASE not in str(command)
    assert "PRIVATE KEY" not in repr(command)


@pytest.mark.parametrize(
    ("passphrase", "said"),
    [(None, "is locked by a passphrase"), ("wrong", "not a private key that can be read")],
)
def test_a_locked_key_without_its_passphrase_is_refused(key, tmp_path, passphrase, said):
    pem = write_key(tmp_path / "key.pem", key, passphrase=PASSPHRASE)
    with pytest.raises(UsageError, match=said):
        attempt(tmp_path, pem, passphrase=passphrase)


@pytest.mark.parametrize(
    ("private", "said"),
    [
        (None, "not a private key"),
        (x25519.X25519PrivateKey.generate(), "of another kind"),
        (rsa.generate_private_key(65537, 1024), "of 1024 bits"),
    ],
)
def test_keys_of_other_kinds_and_files_that_are_none_are_refused(tmp_path, private, said):
    pem = tmp_path / "key.pem"
    pem.write_bytes(b"nonsense")
    if private is not None:
        write_key(pem, private)
    with pytest.raises(UsageError, match=said):
        attempt(tmp_path, pem)
    places = {"image": tmp_path / "x.oci", "sif": tmp_path / "x.sif", "bundle": tmp_path / "b"}
    with pytest.raises(UsageError, match="not a public key"):
        verify_signatures(**places, key=pem, runner=FakeRunner())
