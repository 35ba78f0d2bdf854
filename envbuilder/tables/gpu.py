"""The GPUs by the names that recipes use, each with its compute capability."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.decode import MAJOR_MINOR, Fields
from envbuilder.tables.table import Table, load_table

FILE: Final = Path(__file__).with_name("gpus.yaml")
_KEYS: Final = ("name", "capability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    capability: str  # 8.0, as TORCH_CUDA_ARCH_LIST says it

    @property
    def target(self) -> str:
        """As the compiler says it: sm_80."""
        return f"sm_{self.capability.replace('.', '')}"


@functools.cache
def load_gpus(path: Path = FILE) -> Table[Gpu]:
    """The table; raises ValueError when it breaks its own rules."""
    return load_table(path, _KEYS, _row, lambda row: (*_numbers(row.capability), row.name))


def capabilities(names: Iterable[str], known: Iterable[Gpu]) -> tuple[str, ...]:
    """The compute capabilities of these GPUs, ascending and each once; raises KeyError for an unknown name."""
    by_name = {gpu.name: gpu.capability for gpu in known}
    return tuple(sorted({by_name[name] for name in names}, key=_numbers))


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def _row(fields: Fields) -> Gpu:
    return Gpu(name=fields.text("name"), capability=fields.text("capability", MAJOR_MINOR))
