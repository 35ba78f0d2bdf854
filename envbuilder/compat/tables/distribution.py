"""The known distributions, and the suites that an environment can be built on, with their packages."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from envbuilder.compat.tables.table import Sources, reader, version_key
from envbuilder.core.models import Flag, Line, MajorMinor, Mistake, Shape

_RELEASE: Final = Shape(
    pattern=r"\d+(\.\d+)?|testing|unstable", expected='a release such as "12", testing or unstable'
)
_MOVING: Final = ("testing", "unstable")  # releases whose versions change
_PYTHON: Final = Shape(pattern=r"3\.\d+(\.\d+)?", expected='a version such as "3.11.2"')
_PATCH: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "4.4.33"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    name: Line  # debian/bookworm, as a recipe's `base` says it
    release: Annotated[str, _RELEASE]  # 12
    glibc: MajorMinor
    python_version: Annotated[str, _PYTHON, Field(alias="python")]  # 3.11.2; the patch number may be unknown
    default_gcc: Annotated[str, _PATCH, Field(alias="gcc")]  # 12.2.0: a member of gcc_versions
    # Ascending, one of a major.
    gcc_versions: Annotated[tuple[Annotated[str, _PATCH], ...], Field(alias="gccs")]
    libxcrypt: Annotated[str, _PATCH]  # 4.4.33
    has_crypt_h: Annotated[Flag, Field(alias="crypt_h")]  # libc6-dev brings libcrypt-dev, and with it crypt.h
    components: tuple[Line, ...]  # those whose packages `lock` chooses from
    pockets: tuple[Line, ...]  # updates, security; none for a suite without a release
    note: Line = ""
    source: Sources

    @property
    def family(self) -> str:
        """Return the distribution, such as debian."""
        return self.name.partition("/")[0]

    @property
    def suite(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_released(self) -> bool:
        """Whether its versions stay, so that `init` and hints may choose it."""
        return self.release not in _MOVING

    @property
    def python(self) -> str:
        """3.11"""
        return ".".join(self.python_version.split(".")[:2])

    @property
    def short_libxcrypt(self) -> str:
        """4.4, as recipes pin it."""
        return ".".join(self.libxcrypt.split(".")[:2])

    @property
    def gcc(self) -> str:
        """The default compiler's major version, as recipes say it."""
        return _major(self.default_gcc)

    @property
    def gccs(self) -> tuple[str, ...]:
        """The major versions, ascending."""
        return tuple(_major(version) for version in self.gcc_versions)

    def gcc_version(self, major: str) -> str:
        """Return 12.2.0 for 12. Raises KeyError if it is not packaged."""
        return {_major(version): version for version in self.gcc_versions}[major]


def _order(row: Distribution) -> tuple[object, ...]:
    release = version_key(row.release) if row.is_released else (math.inf, _MOVING.index(row.release))
    return row.family, release


def _major(version: str) -> str:
    return version.partition(".")[0]


def _check(row: Distribution) -> Iterator[Mistake]:
    majors = [version_key(major) for major in row.gccs]
    if row.default_gcc not in row.gcc_versions or majors != sorted(set(majors)):
        yield Mistake(
            message="`gccs` is ascending, has one of each major version and holds the default, "
            f"found {row.gcc_versions} and {row.default_gcc}"
        )


load_distributions = reader("distributions.yaml", Distribution, key="name", order=_order, check=_check)
