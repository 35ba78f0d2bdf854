"""Rules before building: what of a recipe cannot work, from the tables alone, every finding at once.

Each rule is one small function in `RULES`, yields findings, and is silent where another rule has the word (an unknown
suite has no Python to compare with). Codes are stable; a new rule takes the next free one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from envbuilder.decode import nearest
from envbuilder.findings import Finding, Severity
from envbuilder.recipe import Recipe
from envbuilder.tables.distribution import Distribution, load_distributions
from envbuilder.tables.gpu import Gpu, load_gpus
from envbuilder.tables.table import Table
from envbuilder.tables.torch import Torch, build_of, cuda_of, load_torches, version_key


class CheckCode(StrEnum):
    BASE = "EB301"  # no such suite in the tables
    GPU = "EB302"  # no such GPU
    PYTHON = "EB303"  # not the suite's Python
    GCC = "EB304"  # not packaged in the suite
    LIBXCRYPT = "EB305"  # not the suite's version
    TORCH = "EB306"  # no such release
    TORCH_NEWER = "EB307"  # newer than the tables
    TORCH_PYTHON = "EB308"  # no wheel of this torch for this Python
    TORCH_CUDA = "EB309"  # toolkit and torch of different major versions of CUDA
    TORCH_CUDA_MINOR = "EB310"  # the same major version, but no build of torch with this minor one
    TOOLKIT = "EB311"  # a CUDA that envbuilder cannot lay out
    CUDA_SOURCE = "EB312"  # a .cu file and no CUDA


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the rules look things up in."""

    distributions: Table[Distribution]
    gpus: Table[Gpu]
    torches: Table[Torch]
    toolkits: frozenset[str]  # the CUDA versions that can be laid out, e.g. 12.4

    def distribution(self, name: str) -> Distribution | None:
        return next((row for row in self.distributions.rows if row.name == name), None)

    def torch(self, version: str) -> Torch | None:
        return next((row for row in self.torches.rows if row.version == version), None)


def load_tables(toolkits: Iterable[str]) -> Tables:
    """The tables that envbuilder brings, with the CUDA versions of `tables.toolkit`."""
    return Tables(
        distributions=load_distributions(),
        gpus=load_gpus(),
        torches=load_torches(),
        toolkits=frozenset(toolkits),
    )


def check(recipe: Recipe, tables: Tables) -> tuple[Finding, ...]:
    """Every finding of every rule, in the order of the rules."""
    return tuple(finding for rule in RULES for finding in rule(recipe, tables))


def _check_base(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    if tables.distribution(recipe.base) is None:
        names = [row.name for row in tables.distributions.rows]
        yield _error(
            CheckCode.BASE,
            recipe,
            "base",
            f"no suite `{recipe.base}` is known",
            hint=f"{nearest(recipe.base, names)}suites: {', '.join(names)}",
        )


def _check_gpus(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    names = [row.name for row in tables.gpus.rows]
    for index, name in enumerate(recipe.gpus):
        if name not in names:
            yield _error(
                CheckCode.GPU,
                recipe,
                f"gpus[{index}]",
                f"no GPU `{name}` is known",
                hint=nearest(name, names).strip() or f"GPUs: {', '.join(names)}",
            )


def _check_python(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    distribution = tables.distribution(recipe.base)
    if distribution and recipe.python != distribution.python:
        having = [row.name for row in tables.distributions.rows if row.python == recipe.python]
        other = f", or `base: {having[0]}`, which has Python {recipe.python}" if having else ""
        yield _error(
            CheckCode.PYTHON,
            recipe,
            "python",
            f"{recipe.base} has Python {distribution.python}, not {recipe.python}",
            hint=f'write `python: "{distribution.python}"`{other}',
        )


def _check_gcc(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    distribution = tables.distribution(recipe.base)
    if distribution and recipe.gcc not in distribution.gccs:
        having = [row.name for row in tables.distributions.rows if recipe.gcc in row.gccs]
        other = f"; gcc {recipe.gcc} is in {_either(having)}" if having else ""
        yield _error(
            CheckCode.GCC,
            recipe,
            "gcc",
            f"{recipe.base} has gcc {_either(distribution.gccs)}, not {recipe.gcc}",
            hint=f'write `gcc: "{distribution.gcc}"`{other}',
        )


def _check_libxcrypt(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    distribution = tables.distribution(recipe.base)
    if not (distribution and recipe.libxcrypt):
        return
    if not f"{distribution.libxcrypt}.".startswith(f"{recipe.libxcrypt}."):
        short = ".".join(distribution.libxcrypt.split(".")[:2])
        yield _error(
            CheckCode.LIBXCRYPT,
            recipe,
            "libxcrypt",
            f"{recipe.base} has libxcrypt {distribution.libxcrypt}, not {recipe.libxcrypt}",
            hint=f'write `libxcrypt: "{short}"`',
        )


def _check_torch(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    if tables.torch(recipe.pytorch):
        return
    versions = [row.version for row in tables.torches.rows]
    if version_key(recipe.pytorch) > version_key(versions[-1]):
        yield _finding(
            CheckCode.TORCH_NEWER,
            Severity.WARNING,
            recipe,
            "pytorch",
            f"torch {recipe.pytorch} is newer than the tables ({versions[-1]}, read {tables.torches.read}): "
            "it is not checked",
            hint="`envbuilder tables refresh` brings newer rows",
        )
        return
    closest = min(versions, key=lambda version: _distance(version, recipe.pytorch))
    yield _error(
        CheckCode.TORCH,
        recipe,
        "pytorch",
        f"there is no torch {recipe.pytorch}",
        hint=f'the closest is `pytorch: "{closest}"`',
    )


def _check_torch_python(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    torch = tables.torch(recipe.pytorch)
    if torch is None or recipe.python in torch.pythons:
        return
    having = [row.version for row in tables.torches.rows if recipe.python in row.pythons]
    closest = min(having, key=lambda version: _distance(version, torch.version)) if having else ""
    yield _error(
        CheckCode.TORCH_PYTHON,
        recipe,
        "pytorch",
        f"torch {torch.version} has no wheel for Python {recipe.python}; it has {', '.join(torch.pythons)}",
        hint=f'the closest with one is `pytorch: "{closest}"`' if closest else "",
    )


def _check_torch_cuda(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    """Torch's own check of extensions refuses another major version of CUDA and warns of another minor one."""
    torch = tables.torch(recipe.pytorch)
    if torch is None or not recipe.cuda or build_of(recipe.cuda) in torch.builds:
        return
    built = [cuda_of(build) for build in torch.builds]
    major = recipe.cuda.partition(".")[0]
    listing = f"torch {torch.version} is built against CUDA {_either(built)}"
    if major in [cuda.partition(".")[0] for cuda in built]:
        yield _finding(
            CheckCode.TORCH_CUDA_MINOR,
            Severity.WARNING,
            recipe,
            "cuda",
            f"{listing}, not {recipe.cuda}: extensions compile and load, as the major version is the same",
            hint=f'an exact match is `cuda: "{built[0]}"`',
        )
        return
    having = [row.version for row in tables.torches.rows if build_of(recipe.cuda) in row.builds]
    closest = min(having, key=lambda version: _distance(version, torch.version)) if having else ""
    yield _error(
        CheckCode.TORCH_CUDA,
        recipe,
        "cuda",
        f"{listing}, not {recipe.cuda}",
        hint=f'write `cuda: "{built[0]}"`' + (f', or `pytorch: "{closest}"`' if closest else ""),
    )


def _check_toolkit(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    if recipe.cuda and recipe.cuda not in tables.toolkits:
        versions = sorted(tables.toolkits, key=version_key)
        yield _error(
            CheckCode.TOOLKIT,
            recipe,
            "cuda",
            f"CUDA {recipe.cuda} cannot be laid out by this envbuilder",
            hint=f"toolkits: {', '.join(versions)}",
        )


def _check_cuda_sources(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    del tables
    if recipe.cuda:
        return
    for index, extension in enumerate(recipe.extensions):
        for number, source in enumerate(extension.sources):
            if PurePosixPath(source).suffix == ".cu":
                yield _error(
                    CheckCode.CUDA_SOURCE,
                    recipe,
                    f"extensions[{index}].sources[{number}]",
                    f"`{source}` needs CUDA, and the recipe has none",
                    hint="add `cuda` and `gpus`, or leave this source out",
                )


RULES: Final[tuple[Callable[[Recipe, Tables], Iterator[Finding]], ...]] = (
    _check_base,
    _check_gpus,
    _check_python,
    _check_gcc,
    _check_libxcrypt,
    _check_torch,
    _check_torch_python,
    _check_torch_cuda,
    _check_toolkit,
    _check_cuda_sources,
)


def _error(code: CheckCode, recipe: Recipe, key: str, message: str, *, hint: str) -> Finding:
    return _finding(code, Severity.ERROR, recipe, key, message, hint=hint)


def _finding(
    code: CheckCode, severity: Severity, recipe: Recipe, key: str, message: str, *, hint: str
) -> Finding:
    path = f"$.{key}"
    return Finding(
        code=code, severity=severity, where=recipe.place(path), message=f"{path}: {message}", hint=hint
    )


def _distance(first: str, second: str) -> tuple[int, ...]:
    """How far two versions are from each other: the first number that differs counts most."""
    return tuple(abs(a - b) for a, b in zip(version_key(first), version_key(second), strict=True))


def _either(names: Iterable[str]) -> str:
    return " or ".join(names)
