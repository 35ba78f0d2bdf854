"""Signed statements: what one key signed another library reads, and no other key or text passes."""

import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from envbuilder.command import FakeRunner
from envbuilder.errors import UsageError, VerifyError
from envbuilder.sign import PAYLOAD_TYPE, make_bundle, read_bundle, sign, verify_signatures

STATEMENT = '{"_type": "https://in-toto.io/Statement/v1", "subject": []}'
KEYS = {"P-256": ec.generate_private_key(ec.SECP256R1()), "Ed25519": ed25519.Ed25519PrivateKey.generate()}


@pytest.fixture(params=KEYS)
def key(request):
    return KEYS[request.param]


def others_view(text: str, key: object) -> tuple[Envelope, SSlibKey]:
    public = SSlibKey.from_crypto(key.public_key())
    public.keyid = ""  # DSSE leaves it open; this library compares it
    return Envelope.from_dict(json.loads(text)["dsseEnvelope"]), public


def test_the_envelope_is_one_that_secure_systems_lab_verifies(key):
    envelope, public = others_view(make_bundle(STATEMENT, key), key)
    assert (envelope.payload.decode(), envelope.payload_type) == (STATEMENT, PAYLOAD_TYPE)
    assert envelope.verify([public], threshold=1)


def test_it_refuses_another_payload(key):
    envelope, public = others_view(make_bundle(STATEMENT, key), key)
    envelope.payload += b" "
    with pytest.raises(VerificationError):
        envelope.verify([public], threshold=1)


def test_a_bundle_is_read_with_its_own_key_only(key, tmp_path):
    path = tmp_path / "x.sigstore.json"
    path.write_text(make_bundle(STATEMENT, key))
    assert read_bundle(path, key.public_key()) == STATEMENT
    for other in (ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(VerifyError, match="not signed with this key"):
            read_bundle(path, other.public_key())


def test_signing_twice_gives_the_same_bytes(key):
    assert make_bundle(STATEMENT, key) == make_bundle(STATEMENT, key)


def test_a_changed_statement_is_refused(key, tmp_path):
    bundle = json.loads(make_bundle(STATEMENT, key))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(STATEMENT.encode() + b"\n").decode()
    path = tmp_path / "x.sigstore.json"
    path.write_text(json.dumps(bundle))
    with pytest.raises(VerifyError, match="not signed"):
        read_bundle(path, key.public_key())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dsseEnvelope": {"payload": "%"}}'])
def test_what_is_no_bundle_is_said_to_be_none(key, tmp_path, text):
    path = tmp_path / "x.sigstore.json"
    path.write_text(text)
    with pytest.raises(VerifyError, match="not a signed statement"):
        read_bundle(path, key.public_key())


def test_keys_of_other_kinds_and_files_that_are_none_are_refused(tmp_path):
    pem = tmp_path / "key.pem"
    private = rsa.generate_private_key(65537, 2048)
    places = {"image": tmp_path / "x.oci", "sif": tmp_path / "x.sif", "bundle": tmp_path / "b"}
    places["sif"].write_text("")
    for text, said in (
        (b"nonsense", "not a private key"),
        (
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            "of another kind",
        ),
    ):
        pem.write_bytes(text)
        with pytest.raises(UsageError, match=said):
            sign(**places, key=pem, runner=FakeRunner())
    with pytest.raises(UsageError, match="not a public key"):
        verify_signatures(**places, key=pem, runner=FakeRunner())
