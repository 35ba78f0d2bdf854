"""Variables by which projects are told to compile for a GPU where none is."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import Table, load_table
from envbuilder.core.decode import Fields, Shape

FILE: Final = Path(__file__).with_name("switches.yaml")
_VARIABLE: Final = Shape(pattern=r"[A-Z][A-Z0-9_]*", expected="the name of a variable")
_EFFECT: Final = Shape(pattern="cuda|architectures|compile", expected="cuda, architectures or compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    variable: str
    effect: str
    value: str
    projects: tuple[str, ...]

    def setting(self, architectures: tuple[str, ...]) -> str:
        """As the recipe's `env` of an extension has it, for these GPUs."""
        digits = [one.replace(".", "") for one in architectures]
        value = self.value.format(
            digits=";".join(digits),
            dots=";".join(architectures),
            gencode=" ".join(f"-gencode=arch=compute_{one},code=sm_{one}" for one in digits),
        )
        return f'{self.variable}: "{value}"'


@functools.cache
def load_switches(path: Path = FILE) -> Table[Switch]:
    """The table; raises ValueError when it breaks its own rules."""
    keys = ("variable", "effect", "value", "projects", "source")
    return load_table(path, keys, _row, lambda row: (row.variable,))


def _row(fields: Fields) -> Switch:
    return Switch(
        variable=fields.text("variable", _VARIABLE),
        effect=fields.text("effect", _EFFECT),
        value=fields.text("value"),
        projects=fields.texts("projects"),
    )
