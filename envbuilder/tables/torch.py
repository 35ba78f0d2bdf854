"""The releases of PyTorch: when, for which Pythons, and against which CUDA each was built."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.decode import DATE, Code, Fields, Shape
from envbuilder.tables.table import Table, load_table

FILE: Final = Path(__file__).with_name("torch.yaml")
_KEYS: Final = ("version", "released", "pythons", "pypi", "others")
_VERSION: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "2.6.0"')
_PYTHON: Final = Shape(pattern=r"3\.\d+t?", expected='a Python such as "3.13" or "3.13t"')
_BUILD: Final = Shape(pattern=r"cu\d{2,3}", expected="a build such as cu124")


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """One release for Linux x86-64."""

    version: str
    released: str  # YYYY-MM-DD
    pythons: tuple[str, ...]  # with a wheel; 3.13t is a free-threaded build
    pypi: str  # the build on PyPI, e.g. cu124
    others: tuple[str, ...]  # builds that only PyTorch's own index has

    @property
    def builds(self) -> tuple[str, ...]:
        return (self.pypi, *self.others)


@functools.cache
def load_torches(path: Path = FILE) -> Table[Torch]:
    """The table; raises ValueError when it breaks its own rules."""
    return load_table(path, _KEYS, _row, lambda row: version_key(row.version))


def version_key(version: str) -> tuple[int, ...]:
    """What plain versions such as 2.10.0 are sorted by."""
    return tuple(int(part) for part in version.split("."))


def build_of(cuda: str) -> str:
    """12.4 → cu124"""
    return f"cu{cuda.replace('.', '')}"


def cuda_of(build: str) -> str:
    """cu124 → 12.4; every minor version of CUDA so far has one digit."""
    return f"{build[2:-1]}.{build[-1]}"


def _row(fields: Fields) -> Torch:
    row = Torch(
        version=fields.text("version", _VERSION),
        released=fields.text("released", DATE),
        pythons=fields.texts("pythons", _PYTHON),
        pypi=fields.text("pypi", _BUILD),
        others=fields.texts("others", _BUILD),
    )
    if len(set(row.builds)) != len(row.builds) or len(set(row.pythons)) != len(row.pythons):
        fields.mistakes.at(fields.node, Code.VALUE, "each build and each Python stands there once")
    return row
