"""The GPUs by the names that recipes use, each with its compute capability."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envbuilder.compat.tables.table import Sources, reader, version_key
from envbuilder.core.models import Line, MajorMinor
from envbuilder.core.processor import AARCH64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: Line
    capability: MajorMinor  # 8.0, as TORCH_CUDA_ARCH_LIST says it
    market: Literal["data-center", "workstation", "consumer", "embedded"]
    interconnect: Line  # how GPUs of this kind reach each other, for people
    refused: Line = ""  # why no environment can be made for it
    note: Line = ""
    source: Sources

    @property
    def target(self) -> str:
        """As the compiler says it: sm_80."""
        return target(self.capability)

    @property
    def arm_host(self) -> bool:
        """Whether it exists only beside a 64-bit Arm processor."""
        return self.name in AARCH64.gpus

    @property
    def has_forward_compatibility(self) -> bool:
        """NVIDIA promises that of the driver for data centers only."""
        return self.market == "data-center"


def target(capability: str) -> str:
    """8.0 → sm_80"""
    return f"sm_{capability.replace('.', '')}"


def capabilities(names: Iterable[str], known: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the compute capabilities of these GPUs, ascending and unique. Raises KeyError for an unknown name."""
    by_name = {gpu.name: gpu.capability for gpu in known}
    return tuple(sorted({by_name[name] for name in names}, key=version_key))


load_gpus = reader("gpus.yaml", Gpu, key="name", order=lambda row: (*version_key(row.capability), row.name))
