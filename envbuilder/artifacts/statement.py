"""In-toto statements: a claim about files that are named by their digests.

`plan/documents.py` writes one about the layers, into the image. `signing.py` restates it about the
image and the SIF.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from envbuilder.core.budget import parse_json
from envbuilder.core.cache import Sha256

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
        found = _parse(statement)["predicate"][RELEASE]
        name, tag, signed = (str(found[key]) for key in ("name", "tag", "signed"))
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
