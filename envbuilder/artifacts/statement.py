"""In-toto statements: a claim about files that are named by their digests.

`plan/documents.py` writes one about the layers, into the image. `signing.py` restates it about the
image and the SIF.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envbuilder.core.cache import Sha256
from envbuilder.core.foreign_json import parse_json

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One file that a statement is about."""

    name: str
    sha256: Sha256

    def data(self) -> dict[str, object]:
        return {"name": self.name, "digest": {"sha256": self.sha256}}


def make_statement(
    subjects: Sequence[Subject], *, predicate_type: str, predicate: Mapping[str, object]
) -> str:
    return _dump({"_type": STATEMENT_TYPE, "predicateType": predicate_type, "predicate": predicate}, subjects)


def restate(statement: str, subjects: Sequence[Subject]) -> str:
    """Return the statement with other subjects; raises ValueError when the text is not a statement."""
    return _dump(_parse(statement), subjects)


def subject_digests(statement: str) -> frozenset[str]:
    """Return the sha256 of each subject; raises ValueError when the text is not a statement."""
    return frozenset(str(subject["digest"]["sha256"]) for subject in _parse(statement)["subject"])


def _parse(statement: str) -> dict[str, Any]:
    value = parse_json(statement)
    if not isinstance(value, dict) or value.get("_type") != STATEMENT_TYPE:
        raise ValueError("it is not an in-toto statement")
    return value


def _dump(statement: Mapping[str, object], subjects: Sequence[Subject]) -> str:
    whole = {**statement, "subject": [subject.data() for subject in subjects]}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
