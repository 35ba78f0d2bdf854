"""The pins nearest to what was asked for, of all that envbuilder offers: every combination is judged by `check` itself.

What decides most comes first: the version of torch, then Python, then CUDA, then the compiler. Where nothing was asked, the
newest torch counts, with the CUDA that it was built against and the Python in the middle of those that it has wheels for,
because other packages have wheels for that one too.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.compat.check import judge
from envbuilder.compat.context import Tables
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.init.gathered import Asked, Gathered, Wanted
from envbuilder.compat.problem import Fault
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.torch import Torch
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.findings import Severity
from envbuilder.recipe.model import Recipe

_WORDS: Final = {"pytorch": "torch", "python": "Python", "cuda": "CUDA", "gcc": "gcc"}
_FOLLOW: Final = (
    "packages that were pinned for the other version may need another one; `envbuilder lock` says which"
)
_Rank = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    rank: _Rank  # by what was asked; the fewer warnings and then `taste` decide among equals
    taste: _Rank
    recipe: Recipe


def choose(gathered: Gathered, tables: Tables, *, name: str, path: Path) -> Recipe:
    """The recipe, sound by every rule; raises IncompatibleError where no pins are. What moved is noted in `gathered`."""
    host = HostFacts(path=path, driver=gathered.driver) if gathered.driver else None
    bare = functools.partial(_recipe, gathered, name=name, path=path)
    candidates = sorted(_candidates(gathered, tables, bare), key=lambda one: (one.rank, one.taste))
    for _, group in itertools.groupby(candidates, key=lambda one: one.rank):
        sound = []
        for one in group:
            found = judge(one.recipe, tables, host)
            if not any(fault.severity is Severity.ERROR for fault in found):
                sound.append((len(found), one))
                if not found:  # those that follow are less to the taste
                    break
        if sound:
            best = min(sound, key=lambda pair: pair[0])[1].recipe
            _note_moves(gathered, best, tables)
            return _with_packages(gathered, best, tables, host)
    gpus = ", ".join(gathered.gpus or ()) or "none"
    raise IncompatibleError(
        f"no pins that envbuilder offers work together for the GPUs {gpus}",
        hint=_why(candidates, tables, host),
    )


def _why(candidates: Sequence[_Candidate], tables: Tables, host: HostFacts | None) -> str:
    found = judge(candidates[0].recipe, tables, host)
    return "; ".join(fault.message for fault in found if fault.severity is Severity.ERROR)


def _recipe(
    gathered: Gathered, base: Distribution, gcc: str, cuda: str, torch: Torch, *, name: str, path: Path
) -> Recipe:
    return Recipe(
        name=name,
        path=path,
        summary="",
        gpus=gathered.gpus or (),
        base=base.name,
        python=base.python,
        cuda=cuda,
        gcc=gcc,
        libxcrypt=".".join(base.libxcrypt.split(".")[:2]),
        pytorch=torch.version,
        packages=(),
        apt=tuple(gathered.apt),
        extensions=tuple(gathered.extensions.values()),
        env=tuple(sorted(gathered.env.items())),
        tests=(),
        places=(),
    )


def _candidates(gathered: Gathered, tables: Tables, bare: functools.partial[Recipe]) -> Iterator[_Candidate]:
    asked = gathered.pins
    cudas = sorted(tables.toolkits) if gathered.gpus else [""]
    pairs = [(base, gcc) for base in tables.bases for gcc in base.gccs]
    for (base, gcc), cuda, torch in itertools.product(pairs, cudas, tables.torches.rows):
        plain = [python for python in torch.pythons if not python.endswith("t")]  # t: free-threaded
        middle = plain[len(plain) // 2]
        own = torch.build.cuda
        yield _Candidate(
            rank=(
                _far(asked.get("pytorch"), torch.version),
                _far(asked.get("python"), base.python),
                _far(asked.get("cuda"), cuda) if cuda else (),
                _far(asked.get("gcc"), gcc),
            ),
            taste=(
                _down(torch.version),
                _apart(base.python, middle),
                _apart(cuda, own) if cuda else (),
                base.gcc.partition(".")[0] != gcc,
                _down(gcc),
            ),
            recipe=bare(base, gcc, cuda, torch),
        )


def _far(asked: Asked | None, version: str) -> tuple[int, ...]:
    """How far this is from what was asked; nothing where it is that, or nothing was asked."""
    if asked is None or asked.specifier.contains(version) or not asked.version:
        return ()
    return _apart(version, asked.version)


def _apart(one: str, other: str) -> tuple[int, ...]:
    """By the first number that differs; the newer side is the nearer of two."""
    pairs = itertools.zip_longest(_numbers(one), _numbers(other), fillvalue=0)
    return tuple(2 * abs(mine - yours) + (mine < yours) for mine, yours in pairs)


def _down(version: str) -> tuple[int, ...]:
    return tuple(-number for number in _numbers(version))


@functools.cache
def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _note_moves(gathered: Gathered, recipe: Recipe, tables: Tables) -> None:
    """Say what was asked and is not what is pinned."""
    chosen = {"pytorch": recipe.pytorch, "python": recipe.python, "cuda": recipe.cuda, "gcc": recipe.gcc}
    for key, value in chosen.items():
        asked = gathered.pins.get(key)
        if asked is None or not asked.text or (value and asked.specifier.contains(value)):
            continue
        if not value:
            gathered.note(asked.where, f"no CUDA, where `{asked.text}` was asked: there is no GPU to use it")
            continue
        why = _refusal(asked, recipe, tables) if key == "cuda" else ""
        nearest = f"is the nearest to `{asked.text}` that works with the other pins"
        reason = f"instead of `{asked.text}`: {why}" if why else nearest
        gathered.note(
            asked.where,
            f"{_WORDS[key]} {value} {reason}",
            hint=_FOLLOW if key in ("pytorch", "python") else "",
        )


def _refusal(asked: Asked, recipe: Recipe, tables: Tables) -> str:
    """What `check` says of the CUDA that was asked for, where no other pin has a part in that."""
    version = re.match(r"\d+\.\d+", asked.version)
    faults = judge(replace(recipe, cuda=version[0]), tables) if version else ()
    alone = (fault for fault in faults if fault.severity is Severity.ERROR and fault.pins == ("cuda",))
    return next((fault.message for fault in alone), "")


# Of each of these there is one release for one release of torch.
_WITH_TORCH: Final[tuple[str, ...]] = (
    "torchvision",
    "torchaudio",
    "torchtext",
    "torchdata",
    "xformers",
    "functorch",
    "triton",
)


def _with_packages(gathered: Gathered, recipe: Recipe, tables: Tables, host: HostFacts | None) -> Recipe:
    """The recipe with the packages that its pins allow; each of the others is left with the rule that refuses it."""
    asked = gathered.pins.get("pytorch")
    is_asked = asked is None or asked.specifier.contains(recipe.pytorch)
    for name in () if is_asked else (name for name in _WITH_TORCH if name in gathered.packages):
        wanted = gathered.packages[name]
        if wanted.text != name:
            gathered.note(wanted.where, f"`{name}` stands for `{wanted.text}`: its version goes with torch's")
            gathered.packages[name] = replace(wanted, text=name)
    _bound(gathered, recipe, tables)
    kept = dict(gathered.packages)
    while True:
        whole = replace(recipe, packages=tuple(wanted.text for wanted in kept.values()))
        refused = _refused(judge(whole, tables, host), tuple(kept))
        if not refused:
            return whole
        for name, fault in refused.items():
            wanted = kept.pop(name)
            gathered.leave(wanted.where, wanted.text, fault.message, hint=fault.advice)


def _bound(gathered: Gathered, recipe: Recipe, tables: Tables) -> None:
    """Where nobody said which numpy or setuptools, what this torch works with stands in the recipe for people to see."""
    if gathered.extensions:
        for name in ("setuptools", "wheel"):  # what an sdist is built with
            gathered.packages.setdefault(name, Wanted(text=name, where=""))
    row = tables.torch.get(recipe.pytorch)
    for name, bound in (("numpy", row.numpy), ("setuptools", row.setuptools)) if row else ():
        wanted = gathered.packages.get(name)
        if wanted and wanted.text == name:
            gathered.packages[name] = replace(wanted, text=f"{name}{bound}")


def _refused(faults: Iterable[Fault], names: tuple[str, ...]) -> dict[str, Fault]:
    """Errors about an item of `packages`, by its name."""
    items = {f"packages[{index}]": name for index, name in enumerate(names)}
    errors = (fault for fault in faults if fault.severity is Severity.ERROR)
    return {items[fault.key]: fault for fault in errors if fault.key in items}
