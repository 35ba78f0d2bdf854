"""Sign image and SIF with the user's own PEM key, and verify the signatures.

Apptainer signs the SIF, inside the file. Beside the artifacts lies a Sigstore bundle: the
provenance of image and SIF in a signed envelope. It says for which name and tag they were signed,
and when. Other statements that the same key signed, such as results of scans, are no such release.
No service is contacted.
"""

import base64
import contextlib
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.sif import DataType, read_sif
from envbuilder.artifacts.statement import (
    BUNDLE_TYPE,
    MOST_BUNDLE,
    PROVENANCE_TYPE,
    IsSigned,
    Release,
    Subject,
    encode,
    read_signed_release,
    restate,
)
from envbuilder.core.beneath import read_beneath
from envbuilder.core.cache import beside, commit_path, save_text, sha256_file, sha256_text
from envbuilder.core.errors import CommandError, UsageError, VerifyError, blaming_path
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner

_KEY_HINT: Final = "`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` makes a private key, `openssl pkey -pubout` its public one"
_KINDS: Final = "ECDSA, Ed25519 and RSA of 2048 bits or more are taken"
_RSA_BITS: Final = 2048

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
Passphrase = Callable[[], str | None]  # None when nobody can be asked


def sign(
    image: Path, sif: Path, bundle: Path, *,
    release: Release, key: Path, runner: Runner, passphrase: Passphrase,
) -> None:  # fmt: skip
    """Sign the SIF inside and write the bundle. The SIF is replaced by rename.

    Earlier signatures are removed, since `apptainer verify --key` wants every signature to be of that key.
    Apptainer reads no PEM key with a passphrase, so it gets the decrypted key on stdin, never in a file.
    """
    private = load_private(key, passphrase)
    with beside(sif) as work:
        copy = work / sif.name
        shutil.copy2(sif, copy)  # a killed run leaves the SIF as it was
        for number in read_sif(copy).signatures:
            removal = ("apptainer", "sif", "del", str(number), str(copy))
            runner.run(Command(argv=removal, why="remove the earlier signature from the SIF"))
        argv = ("apptainer", "sign", "--key", "/dev/stdin", str(copy))
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        runner.run(Command(argv=argv, input=pem, why="sign the SIF"))
        commit_path(copy, sif)
    try:
        statement = restate(read_sif(sif).read(DataType.JSON).decode(), _subjects(image, sif), release)
    except ValueError as error:
        raise VerifyError(f"`{sif}` holds no provenance: {error}", hint="build it again") from error
    save_text(bundle, make_bundle(statement, private))


def verify_signatures(image: Path, sif: Path, bundle: Path, *, key: Path, runner: Runner) -> str:
    """Return for what, when and by which key both artifacts were signed; raises VerifyError for another key, and without one."""
    public = load_public(key)  # a file that is no key is a usage error, whatever is signed
    if not bundle.is_file():
        raise VerifyError(
            f"`{sif}` and its image are not signed: there is no `{bundle}`",
            hint=f"`envbuilder sign {pasted(sif.stem)} --key KEY` signs them; "
            "`envbuilder pull --key PUBLIC` pulls a pair that is signed in a registry",
        )
    content = read_beneath(bundle.parent.resolve(), bundle.name, limit=MOST_BUNDLE)
    signed = read_signed_release(content, str(bundle), signed_by(public))
    verify_sif_signature(sif, key=key, runner=runner)
    for subject in _subjects(image, sif):
        if subject.sha256 not in signed.digests:
            raise VerifyError(
                f"`{bundle}` does not cover `{subject.name}` as it is", hint="sign the artifacts again"
            )
    return f"{signed.release} with the key {key_name(public)}"


def verify_sif_signature(sif: Path, *, key: Path, runner: Runner) -> str:
    """Return the name of the key; raises VerifyError unless the SIF is signed with it. This signature has no tag and no time."""
    public = load_public(key)
    argv = ("apptainer", "verify", "--key", str(key.absolute()), str(sif))
    try:
        runner.run(Command(argv=argv, why="verify the signature in the SIF"))
    except CommandError as error:
        raise VerifyError(
            f"`{sif}` is not signed with the key of `{key}`\n{error.message}",
            hint=f"`envbuilder verify {pasted(sif)}` without a key says whether the file is whole; if so, "
            f"`envbuilder sign {pasted(sif.stem)} --key KEY` signs it and replaces the earlier signature",
        ) from error
    return key_name(public)


def make_bundle(statement: str, key: PrivateKey) -> str:
    """Return a Sigstore bundle, version 0.3, around an in-toto statement. It does not contain the public key."""
    signature = sign_bytes(key, encode(statement.encode()))
    envelope = {
        "payload": base64.b64encode(statement.encode()).decode(),
        "payloadType": PROVENANCE_TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
    }
    value = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key_name(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": envelope,
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def key_name(key: PublicKey) -> str:
    """Return the first digits of the sha256 of the public key's PEM text, as `openssl pkey -pubout` writes it."""
    spki = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256_text(spki.decode())[:16]


def _subjects(image: Path, sif: Path) -> tuple[Subject, Subject]:
    return (
        Subject(name=image.name, sha256=read_layout(image).manifest.digest),
        Subject(name=sif.name, sha256=sha256_file(sif)),
    )


def sign_bytes(key: PrivateKey, data: bytes) -> bytes:
    """Return a signature that the same key and bytes always have."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def signed_by(key: PublicKey) -> IsSigned:
    return functools.partial(_is_signed, key)


def _is_signed(key: PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def load_either(path: Path, passphrase: Passphrase) -> tuple[PublicKey, PrivateKey | None]:
    """Return the public key of a PEM file, and the private one when the file holds that."""
    with contextlib.suppress(OSError):
        if b"PRIVATE KEY-----" in path.read_bytes():
            private = load_private(path, passphrase)
            return private.public_key(), private
    return load_public(path), None


def load_private(path: Path, passphrase: Passphrase) -> PrivateKey:
    with blaming_path(f"cannot read the key `{path}`", hint=_KEY_HINT):
        content = path.read_bytes()
    try:
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except TypeError:  # it is locked
            key = serialization.load_pem_private_key(content, password=_ask(path, passphrase))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"`{path}` is not a private key that can be read: {error}", hint=_KEY_HINT
        ) from error
    if not isinstance(key, PrivateKey):
        raise _unfit(path, "a key of another kind")
    _need_bits(path, key)
    return key


def _ask(path: Path, passphrase: Passphrase) -> bytes:
    answer = passphrase()
    if not answer:
        hint = "set ENVBUILDER_KEY_PASSPHRASE; `sign` and `push` ask for it in a terminal"
        raise UsageError(f"`{path}` is locked by a passphrase", hint=hint)
    return answer.encode()


def load_public(path: Path) -> PublicKey:
    with blaming_path(f"cannot read the key `{path}`", hint=_KEY_HINT):
        content = path.read_bytes()
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"`{path}` is not a public key that can be read: {error}", hint=_KEY_HINT) from error
    if not isinstance(key, PublicKey):
        raise _unfit(path, "a key of another kind")
    _need_bits(path, key)
    return key


def _need_bits(path: Path, key: PrivateKey | PublicKey) -> None:
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey) and key.key_size < _RSA_BITS:
        raise _unfit(path, f"an RSA key of {key.key_size} bits")


def _unfit(path: Path, kind: str) -> UsageError:
    return UsageError(f"`{path}` is {kind}", hint=f"{_KINDS}; {_KEY_HINT}")
