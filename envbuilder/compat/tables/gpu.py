"""The GPUs by the names that recipes use, each with its compute capability."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.decode import MAJOR_MINOR, Code, Fields

FILE: Final = Path(__file__).with_name("gpus.yaml")
_KEYS: Final = ("name", "capability", "market", "interconnect", "source")


class Market(StrEnum):
    """Whom a GPU is sold to: forward compatibility of the driver is promised for data centres only."""

    DATA_CENTER = "data-center"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    capability: str  # 8.0, as TORCH_CUDA_ARCH_LIST says it
    market: Market
    interconnect: str  # how GPUs of this kind reach each other, for people
    arm_host: bool  # exists only beside an aarch64 processor, for which envbuilder builds nothing
    note: str
    source: tuple[str, ...]

    @property
    def target(self) -> str:
        """As the compiler says it: sm_80."""
        return f"sm_{self.capability.replace('.', '')}"

    @property
    def has_forward_compatibility(self) -> bool:
        return self.market is Market.DATA_CENTER


@functools.cache
def load_gpus(path: Path = FILE) -> Table[Gpu]:
    """The table; raises ValueError when it breaks its own rules."""
    return load_table(
        path,
        _KEYS,
        _row,
        lambda row: (*version_key(row.capability), row.name),
        optional=("arm_host", "note"),
    )


def capabilities(names: Iterable[str], known: Iterable[Gpu]) -> tuple[str, ...]:
    """The compute capabilities of these GPUs, ascending and each once; raises KeyError for an unknown name."""
    by_name = {gpu.name: gpu.capability for gpu in known}
    return tuple(sorted({by_name[name] for name in names}, key=version_key))


def _row(fields: Fields) -> Gpu:
    market = fields.text("market")
    if market not in list(Market):
        fields.mistakes.at(fields.node, Code.VALUE, f"`market` is one of {', '.join(Market)}")
        market = Market.CONSUMER
    return Gpu(
        name=fields.text("name"),
        capability=fields.text("capability", MAJOR_MINOR),
        market=Market(market),
        interconnect=fields.text("interconnect"),
        arm_host=fields.flag("arm_host"),
        note=fields.text("note"),
        source=fields.texts("source"),
    )
