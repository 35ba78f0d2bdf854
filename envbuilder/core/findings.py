"""Findings: a severity, a place, a message and a hint.

The lowest module of the story: everything that judges returns findings, and only `cli` prints them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


class CodeEnum(StrEnum):
    """Codes of findings. Declare a member as `NAME = "EB301", "what the code means"`; a code never changes its meaning."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem or note. `code` is stable and documented, `where` is `file:line:column` or a path."""

    code: str
    severity: Severity = Severity.ERROR
    where: str = ""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}"
