"""The suites that an environment can stand on, and what each of them brings."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.decode import MAJOR_MINOR, Code, Fields, Shape
from envbuilder.tables.table import Table, load_table

FILE: Final = Path(__file__).with_name("distributions.yaml")
_KEYS: Final = ("name", "release", "glibc", "python", "gcc", "gccs", "libxcrypt", "components")
_MAJOR: Final = Shape(pattern=r"\d+", expected='a major version such as "12"')
_PATCH: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "4.4.33"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    name: str  # debian/bookworm, as a recipe's `base` says it
    release: str  # 12
    glibc: str
    python: str  # 3.11
    gcc: str  # the default: a member of gccs
    gccs: tuple[str, ...]  # ascending
    libxcrypt: str  # 4.4.33
    components: tuple[str, ...]

    @property
    def suite(self) -> str:
        return self.name.rpartition("/")[2]


@functools.cache
def load_distributions(path: Path = FILE) -> Table[Distribution]:
    """The table; raises ValueError when it breaks its own rules."""
    return load_table(path, _KEYS, _row, lambda row: (row.name.partition("/")[0], int(row.release)))


def _row(fields: Fields) -> Distribution:
    row = Distribution(
        name=fields.text("name"),
        release=fields.text("release", _MAJOR),
        glibc=fields.text("glibc", MAJOR_MINOR),
        python=fields.text("python", MAJOR_MINOR),
        gcc=fields.text("gcc", _MAJOR),
        gccs=fields.texts("gccs", _MAJOR),
        libxcrypt=fields.text("libxcrypt", _PATCH),
        components=fields.texts("components"),
    )
    if row.gcc not in row.gccs or list(row.gccs) != sorted(row.gccs, key=lambda gcc: (len(gcc), gcc)):
        fields.mistakes.at(
            fields.node,
            Code.VALUE,
            f"`gccs` is ascending and holds the default, found {row.gccs} and {row.gcc}",
        )
    return row
