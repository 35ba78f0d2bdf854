"""Why an extension does not compile: what compilers say, and what it means."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table
from envbuilder.core.decode import LINE, Code, Fields, Shape

FILE: Final = Path(__file__).with_name("failures.yaml")
_CODE: Final = Shape(pattern=r"EB6\d\d", expected="a code such as EB610")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    code: str
    pattern: re.Pattern[str]  # of one line
    message: str
    repair: str

    def message_for(self, match: re.Match[str]) -> str:
        return self.message.format(**match.groupdict())

    def repair_for(self, match: re.Match[str]) -> str:
        return self.repair.format(**match.groupdict())


@functools.cache
def load_failures(path: Path = FILE) -> Table[Failure]:
    """The table, most telling row first; raises ValueError when it breaks its own rules."""
    keys = ("code", "pattern", "message", "repair", "source")
    return load_table(path, keys, _row, lambda row: (row.code,))


def _row(fields: Fields) -> Failure:
    text = fields.text("pattern", LINE)
    try:
        pattern = re.compile(text)
    except re.error as error:
        fields.mistakes.at(fields.node, Code.VALUE, f"`{text}` is no regular expression: {error}")
        pattern = re.compile("")
    return Failure(
        code=fields.text("code", _CODE),
        pattern=pattern,
        message=fields.text("message"),
        repair=fields.text("repair"),
    )
