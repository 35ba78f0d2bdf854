"""Environment variables that make projects compile for a GPU on a machine without one."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from envbuilder.compat.tables.table import Sources, reader
from envbuilder.core.models import Line, Shape

_VARIABLE: Final = Shape(pattern=r"[A-Z][A-Z0-9_]*", expected="the name of a variable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    """A package with CUDA sources and without wheels for every torch: a build compiles its sdist."""

    newest: Line  # for lines without a version
    needs: tuple[Line, ...] = ()  # what its setup.py imports


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    variable: Annotated[str, _VARIABLE]
    effect: Literal["cuda", "architectures", "compile"]
    value: Line
    projects: tuple[Line, ...]
    sdists: dict[str, Sdist] = field(default_factory=dict)
    source: Sources

    def setting(self, architectures: tuple[str, ...]) -> str:
        """Return the line for the extension's `env` in a recipe, for these GPUs."""
        digits = [one.replace(".", "") for one in architectures]
        value = self.value.format(
            digits=";".join(digits),
            dots=";".join(architectures),
            gencode=" ".join(f"-gencode=arch=compute_{one},code=sm_{one}" for one in digits),
        )
        return f'{self.variable}: "{value}"'


load_switches = reader("switches.yaml", Switch, key="variable", order=lambda row: (row.variable,))
