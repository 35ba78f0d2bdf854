"""The GPUs by the names that recipes use, each with its compute capability."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.models import STRICT, Flag, Line, MajorMinor

FILE: Final = Path(__file__).with_name("gpus.yaml")


class Market(StrEnum):
    """The market of a GPU. NVIDIA promises forward compatibility of the driver for data centers only."""

    DATA_CENTER = "data-center"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    __pydantic_config__ = STRICT
    name: Line
    capability: MajorMinor  # 8.0, as TORCH_CUDA_ARCH_LIST says it
    market: Market
    interconnect: Line  # how GPUs of this kind reach each other, for people
    arm_host: Flag = False  # exists only beside an aarch64 processor, for which envbuilder builds nothing
    note: Line = ""
    source: tuple[Line, ...]

    @property
    def target(self) -> str:
        """As the compiler says it: sm_80."""
        return f"sm_{self.capability.replace('.', '')}"

    @property
    def has_forward_compatibility(self) -> bool:
        return self.market is Market.DATA_CENTER


@functools.cache
def load_gpus(path: Path = FILE) -> Table[Gpu]:
    """Return the table. Raises ValueError if it breaks its own rules."""
    return load_table(path, Gpu, lambda row: (*version_key(row.capability), row.name))


def capabilities(names: Iterable[str], known: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the compute capabilities of these GPUs, ascending and unique. Raises KeyError for an unknown name."""
    by_name = {gpu.name: gpu.capability for gpu in known}
    return tuple(sorted({by_name[name] for name in names}, key=version_key))
