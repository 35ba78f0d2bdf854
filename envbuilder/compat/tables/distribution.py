"""The distributions that are known, the suites that an environment can stand on, and what each of them brings."""

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.decode import MAJOR_MINOR, Code, Fields, Shape

FILE: Final = Path(__file__).with_name("distributions.yaml")
_KEYS: Final = (
    "name", "release", "glibc", "python", "gcc", "gccs", "libxcrypt", "crypt_h", "components", "buildable", "source",
)  # fmt: skip
_RELEASE: Final = Shape(pattern=r"\d+(\.\d+)?|unstable", expected='a release such as "12", or unstable')
_PYTHON: Final = Shape(pattern=r"3\.\d+(\.\d+)?", expected='a version such as "3.11.2"')
_PATCH: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "4.4.33"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    name: str  # debian/bookworm, as a recipe's `base` says it
    release: str  # 12
    glibc: str
    python_version: str  # 3.11.2; without its patch number where that is not known
    default_gcc: str  # 12.2.0: a member of gcc_versions
    gcc_versions: tuple[str, ...]  # ascending, one of each major version
    libxcrypt: str  # 4.4.33
    has_crypt_h: bool  # libc6-dev brings libcrypt-dev, and with it crypt.h
    components: tuple[str, ...]
    buildable: bool  # envbuilder can build on it
    note: str
    source: tuple[str, ...]

    @property
    def suite(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def python(self) -> str:
        """3.11"""
        return ".".join(self.python_version.split(".")[:2])

    @property
    def gcc(self) -> str:
        """The default compiler's major version, as recipes say it."""
        return _major(self.default_gcc)

    @property
    def gccs(self) -> tuple[str, ...]:
        """The major versions, ascending."""
        return tuple(_major(version) for version in self.gcc_versions)

    def gcc_version(self, major: str) -> str:
        """12 → 12.2.0; raises KeyError when it is not packaged."""
        return {_major(version): version for version in self.gcc_versions}[major]


def load_distributions(path: Path = FILE) -> Table[Distribution]:
    """Those that an environment can stand on; raises ValueError when the table breaks its own rules."""
    return _buildable(path)


@functools.cache
def load_all_distributions(path: Path = FILE) -> Table[Distribution]:
    """Every row, also of distributions that envbuilder cannot build on."""
    return load_table(path, _KEYS, _row, _order, optional=("note",))


@functools.cache
def _buildable(path: Path) -> Table[Distribution]:
    table = load_all_distributions(path)
    return replace(table, rows=tuple(row for row in table.rows if row.buildable))


def _order(row: Distribution) -> tuple[object, ...]:
    release = (math.inf,) if row.release == "unstable" else version_key(row.release)
    return row.name.partition("/")[0], release


def _major(version: str) -> str:
    return version.partition(".")[0]


def _row(fields: Fields) -> Distribution:
    row = Distribution(
        name=fields.text("name"),
        release=fields.text("release", _RELEASE),
        glibc=fields.text("glibc", MAJOR_MINOR),
        python_version=fields.text("python", _PYTHON),
        default_gcc=fields.text("gcc", _PATCH),
        gcc_versions=fields.texts("gccs", _PATCH),
        libxcrypt=fields.text("libxcrypt", _PATCH),
        has_crypt_h=fields.flag("crypt_h"),
        components=fields.texts("components"),
        buildable=fields.flag("buildable"),
        note=fields.text("note"),
        source=fields.texts("source"),
    )
    if "" in row.gcc_versions or not row.default_gcc:
        return row  # told already
    majors = [version_key(major) for major in row.gccs]
    if row.default_gcc not in row.gcc_versions or majors != sorted(set(majors)):
        fields.mistakes.at(
            fields.node,
            Code.VALUE,
            "`gccs` is ascending, has one of each major version and holds the default, "
            f"found {row.gcc_versions} and {row.default_gcc}",
        )
    return row
