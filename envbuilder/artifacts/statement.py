"""In-toto statements: a claim about files that are named by their digests, and the signed envelopes around them.

`plan/documents.py` writes one about the layers, into the image. `signing.py` restates it about the
image and the SIF, and signs it. Here no library for keys is needed.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from envbuilder.core.budget import parse_json
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import VerifyError

PROVENANCE_TYPE: Final = "application/vnd.in-toto+json"
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
MOST_BUNDLE: Final = 64 << 20  # bytes of a bundle that is read

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
SLSA_PROVENANCE: Final = "https://slsa.dev/provenance/v1"
# SLSA: a producer's own fields begin with its name, and readers ignore those that they do not know.
RELEASE: Final = "envbuilder_release"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One file that a statement is about."""

    name: str
    sha256: Sha256

    def data(self) -> dict[str, object]:
        return {"name": self.name, "digest": {"sha256": self.sha256}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a signature is for: the name and the tag that artifacts are released under, and when they were signed."""

    name: str
    tag: str
    time: datetime

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}, signed {self.time:%Y-%m-%d %H:%M} UTC"

    def data(self) -> dict[str, str]:
        return {"name": self.name, "tag": self.tag, "signed": self.time.astimezone(UTC).strftime(_TIME)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRelease:
    """A signed statement: the digests of the artifacts, and what they were signed for."""

    digests: frozenset[str]
    release: Release
    text: bytes  # of the bundle


# Whether a key made this signature of these bytes.
IsSigned = Callable[[bytes, bytes], bool]


def make_statement(
    subjects: Sequence[Subject], *, predicate_type: str, predicate: Mapping[str, object]
) -> str:
    return _dump({"_type": STATEMENT_TYPE, "predicateType": predicate_type, "predicate": predicate}, subjects)


def restate(provenance: str, subjects: Sequence[Subject], release: Release) -> str:
    """Return the provenance with other subjects, as the statement of a release. Raises ValueError for another text."""
    value = _parse(provenance)
    if value.setdefault("predicateType", SLSA_PROVENANCE) != SLSA_PROVENANCE:
        raise ValueError(f"its type is {value['predicateType']!r}")
    try:
        predicate = {**value["predicate"], RELEASE: release.data()}
    except (LookupError, TypeError) as error:
        raise ValueError("it has no predicate") from error
    return _dump({**value, "predicate": predicate}, subjects)


def subject_digests(statement: str, predicate_type: str = SLSA_PROVENANCE) -> frozenset[str]:
    """Return the sha256 of each subject; raises ValueError when the text is no statement of this type."""
    value = _parse(statement)
    if value.get("predicateType") != predicate_type:
        raise ValueError(
            f"it is a statement of type {value.get('predicateType')!r}, expected {predicate_type!r}"
        )
    try:
        return frozenset(str(subject["digest"]["sha256"]) for subject in value["subject"])
    except (LookupError, TypeError) as error:
        raise ValueError("its subjects have no sha256") from error


def read_release(statement: str) -> Release:
    """Return the release that a statement is about; raises ValueError when it does not say that."""
    try:
        release = _parse(statement)["predicate"][RELEASE]
        name, tag, signed = (str(release[key]) for key in ("name", "tag", "signed"))
    except (LookupError, TypeError) as error:
        raise ValueError("it does not say for which name and tag, and when it was signed") from error
    return Release(name=name, tag=tag, time=datetime.strptime(signed, _TIME).replace(tzinfo=UTC))


def _parse(statement: str) -> dict[str, Any]:
    value = parse_json(statement)
    if not isinstance(value, dict) or value.get("_type") != STATEMENT_TYPE:
        raise ValueError("it is not an in-toto statement")
    return value


def _dump(statement: Mapping[str, object], subjects: Sequence[Subject]) -> str:
    whole = {**statement, "subject": [subject.data() for subject in subjects]}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def encode(payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's encoding of the payload, version 1."""
    return b"DSSEv1 %d %b %d %b" % (len(PROVENANCE_TYPE), PROVENANCE_TYPE.encode(), len(payload), payload)


def read_bundle(content: bytes, name: str, is_signed: IsSigned | None = None) -> str:
    """Return the statement in a Sigstore bundle; raises VerifyError unless it is signed. None skips the check."""
    try:
        if len(content) > MOST_BUNDLE:
            raise ValueError("it is too large")  # noqa: TRY301 - damage of the bundle, as all below
        envelope = parse_json(content)["dsseEnvelope"]
        if envelope["payloadType"] != PROVENANCE_TYPE:
            raise ValueError(f"it holds {envelope['payloadType']!r}")  # noqa: TRY301
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(item["sig"], validate=True) for item in envelope["signatures"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise VerifyError(
            f"`{name}` is not a signed statement: {error}", hint="`envbuilder sign` writes it"
        ) from error
    if is_signed and not any(is_signed(signature, encode(payload)) for signature in signatures):
        raise VerifyError(
            f"`{name}` is not signed with this key", hint="ask for the public key of the person who signed it"
        )
    return payload.decode(errors="replace")


def read_signed_release(content: bytes, name: str, is_signed: IsSigned | None = None) -> SignedRelease:
    """Return the release that a bundle is about; raises VerifyError as `read_bundle`, and for any other statement."""
    statement = read_bundle(content, name, is_signed)
    try:
        return SignedRelease(
            digests=subject_digests(statement), release=read_release(statement), text=content
        )
    except ValueError as error:
        raise VerifyError(
            f"`{name}` is not the signed statement of a release: {error}",
            hint="`envbuilder sign` and `push --sign` write it; sign again what an earlier version signed",
        ) from error
