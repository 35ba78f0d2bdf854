"""What a check has to say: a severity, a place, a message and a hint.

The lowest module of the story: everything that judges returns findings, and only `cli` prints them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a person should know; `code` is stable and documented, `where` is `file:line:column` or a path."""

    code: str
    severity: Severity
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}"
