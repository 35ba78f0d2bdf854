"""The CUDA toolkits: which compilers and C libraries each takes, what it compiles for, and the drivers that run it.

What envbuilder lays out of a toolkit is another table, `toolkits.yaml`: a toolkit can be known here and not be built.
"""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.decode import DATE, MAJOR_MINOR, Code, Fields, Mistakes, Node, Shape

FILE: Final = Path(__file__).with_name("cuda.yaml")
_KEYS: Final = (
    "cuda", "read", "source", "gcc_min", "gcc_max", "clang_max", "std_max", "architectures", "confidence",
)  # fmt: skip
_OPTIONAL: Final = (
    "compiler", "glibc_below", "unpinned", "broken_gccs", "driver", "minor_driver", "forward_branches", "note",
)  # fmt: skip
MAJOR: Final = Shape(pattern=r"\d+", expected='a major version such as "12"')
VERSION: Final = Shape(pattern=r"\d+(\.\d+)+", expected='a version such as "12.4.131"')
ARCHITECTURES: Final = Shape(
    pattern=r"\d+\.\d[af]?(\+PTX)?( \d+\.\d[af]?(\+PTX)?)*",
    expected='compute capabilities such as "8.0 9.0a 12.0+PTX"',
)


class Confidence(StrEnum):
    """How sure a row is: read in what was shipped; told by others; told differently by different ones."""

    VERIFIED = "verified"
    SECONDARY = "secondary"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGcc:
    """Releases of gcc inside the range that the compiler accepts, with which it fails nevertheless."""

    first: str  # 10.3
    below: str  # 10.4
    certain: bool
    why: str

    def holds(self, gcc: str) -> bool:
        return version_key(self.first) <= version_key(gcc) < version_key(self.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """One toolkit for Linux x86-64."""

    cuda: str  # 12.4
    compiler: str  # the nvcc that was read, 12.4.131; "" for none
    gcc_min: str  # documented, not enforced
    gcc_max: str  # enforced by its header
    broken_gccs: tuple[BrokenGcc, ...]
    clang_max: str
    std_max: int  # the newest C++ standard that nvcc takes: 17
    architectures: tuple[str, ...]  # ascending: 8.0, 9.0, 9.0a, 10.0f
    glibc_below: str  # its headers clash with this glibc and newer ones; "" where none is known to
    driver: str  # what it was released with: everything works from there; "" where not known
    minor_driver: str  # minor-version compatibility begins here; "" where there is none
    forward_branches: tuple[str, ...] | None  # older drivers for cuda-compat; None: unknown
    unpinned: tuple[str, ...]  # cuda-toolkit releases with loose compiler parts
    confidence: Confidence
    note: str
    source: tuple[str, ...]
    read: str

    @property
    def major(self) -> str:
        return self.cuda.partition(".")[0]

    @property
    def driver_floor(self) -> str:
        """The oldest driver that runs it, forward compatibility aside; "" where not known."""
        return self.minor_driver or self.driver

    def can_target(self, capability: str) -> bool:
        """Whether it compiles for this architecture, by its very name."""
        return capability in self.architectures


@functools.cache
def load_cudas(path: Path = FILE) -> Table[Cuda]:
    """The table, oldest first; raises ValueError when it breaks its own rules."""
    return load_table(
        path, _KEYS, _row, lambda row: version_key(row.cuda), optional=_OPTIONAL, overridden="cuda",
    )  # fmt: skip


def architecture_key(name: str) -> tuple[int, int, str]:
    """What architectures are sorted by: 9.0 before 9.0a before 10.0."""
    found = re.fullmatch(r"(\d+)\.(\d+)([a-z]*)", name)
    if found is None:
        raise ValueError(f"expected an architecture such as 9.0a, found {name!r}")
    return int(found[1]), int(found[2]), found[3]


def read_architectures(fields: Fields, key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The architectures with machine code in a text such as "8.0 9.0+PTX", and those with PTX; collects mistakes."""
    text = fields.text(key, ARCHITECTURES)
    names = tuple(name.removesuffix("+PTX") for name in text.split())
    order = [architecture_key(name) for name in names]
    if order != sorted(set(order)):
        fields.mistakes.at(fields.node, Code.VALUE, f"`{key}` is ascending, each once, found {text}")
    return names, tuple(name.removesuffix("+PTX") for name in text.split() if name.endswith("+PTX"))


def read_confidence(fields: Fields) -> Confidence:
    text = fields.text("confidence")
    if text in list(Confidence):
        return Confidence(text)
    fields.mistakes.at(fields.node, Code.VALUE, f"`confidence` is one of {', '.join(Confidence)}")
    return Confidence.UNCERTAIN


def _row(fields: Fields) -> Cuda:
    row = Cuda(
        cuda=fields.text("cuda", MAJOR_MINOR),
        compiler=fields.text("compiler", VERSION),
        gcc_min=fields.text("gcc_min", MAJOR),
        gcc_max=fields.text("gcc_max", MAJOR),
        broken_gccs=tuple(_broken(node, fields.mistakes) for node in fields.items("broken_gccs")),
        clang_max=fields.text("clang_max", MAJOR),
        std_max=fields.integer("std_max"),
        architectures=read_architectures(fields, "architectures")[0],
        glibc_below=fields.text("glibc_below", MAJOR_MINOR),
        driver=fields.text("driver", VERSION),
        minor_driver=fields.text("minor_driver", VERSION),
        forward_branches=fields.texts("forward_branches", MAJOR) if "forward_branches" in fields else None,
        unpinned=fields.texts("unpinned", VERSION),
        confidence=read_confidence(fields),
        note=fields.text("note"),
        source=fields.texts("source"),
        read=fields.text("read", DATE),
    )
    for low, high, rule in (
        (row.gcc_min, row.gcc_max, "`gcc_min` is not above `gcc_max`"),
        (row.minor_driver, row.driver, "`minor_driver` is not above `driver`"),
        # A toolkit can be older than the driver branch that the minor-version promise of its major begins with.
    ):
        if low and high and version_key(low) > version_key(high) and row.cuda.partition(".")[2] != "0":
            fields.mistakes.at(fields.node, Code.VALUE, f"{rule}, found {low} and {high}")
    if row.compiler and not f"{row.compiler}.".startswith(f"{row.cuda}."):
        fields.mistakes.at(fields.node, Code.VALUE, f"the compiler {row.compiler} is not one of {row.cuda}")
    return row


def _broken(node: Node, mistakes: Mistakes) -> BrokenGcc:
    fields = Fields(node, mistakes, required=("from", "below", "certain", "why"))
    broken = BrokenGcc(
        first=fields.text("from", VERSION),
        below=fields.text("below", VERSION),
        certain=fields.flag("certain"),
        why=fields.text("why"),
    )
    if broken.first and broken.below and not version_key(broken.first) < version_key(broken.below):
        mistakes.at(node, Code.VALUE, "`from` is not below `below`")
    return broken
