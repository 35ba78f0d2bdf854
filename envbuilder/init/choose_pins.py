"""Choose the pins nearest to the requested versions: `check` judges each combination that envbuilder offers.

Torch counts first, then Python, CUDA and the compiler. Without a request the newest torch is taken, with the CUDA that it
was built against. Its Python is the middle one of those with a wheel, because other packages have wheels for that one too.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.check import judge
from envbuilder.compat.context import Problem, Tables, distance, make_context
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules import find_problems
from envbuilder.compat.suggest import Rank, Try, search
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.torch import Torch
from envbuilder.core.errors import IncompatibleError
from envbuilder.init.requests import Request, Requests
from envbuilder.recipe.extension import Form
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import DEBIAN

_WORDS: Final = {"pytorch": "torch", "python": "Python", "cuda": "CUDA", "gcc": "gcc"}
# Each release of these belongs to one release of torch.
_WITH_TORCH: Final[tuple[str, ...]] = (
    "torchvision", "torchaudio", "torchtext", "torchdata", "xformers", "functorch", "triton",
)  # fmt: skip
_NEAR: Final = 4  # toolkits beside those against which torch was built
_NEWER: Final = "9999"
_COUNT_MORE: Final = {"pytorch": 0, "python": 2}  # the places of a rank before that of a pin
_OTHER: Final = "`--pytorch` names another one"
_LATER: Final = "; `lock` names the torch that a package requires"
_FOLLOW: Final = (
    "packages that were pinned for the other version may need another one; `envbuilder lock` says which"
)


def choose(requests: Requests, tables: Tables, *, name: str, path: Path) -> Recipe:
    """Return the recipe, sound by every rule. `requests` gets a note of each move.

    Raises IncompatibleError where no pins are sound, and where a version that the user typed is not among them.
    """
    host = HostFacts(path=path, driver=requests.driver) if requests.driver else None
    tries = list(_candidates(requests, tables, host, name=name, path=path))
    # Of equally near recipes, the fewest warnings decide, then the preference.
    best = next(search(tries, lambda tried: (tried.rank[0], len(tried.found or ()), tried.rank[2])), None)
    if best is None:
        target = f"for the GPUs {', '.join(requests.gpus)}" if requests.gpus else "without a GPU"
        message = f"no pins that envbuilder offers work together {target}"
        raise IncompatibleError(message, hint=_errors(min(tries)))
    recipe = best.context.recipe
    _need_typed(requests, recipe, tries)
    _note_moves(requests, recipe, tables)
    return _with_packages(requests, recipe, tables, host)


def _errors(tried: Try) -> str:
    return "; ".join(problem.message for _, problem in find_problems(tried.context) if problem.is_error)


def _need_typed(requests: Requests, recipe: Recipe, tries: Iterable[Try]) -> None:
    """Raise IncompatibleError if the nearest recipe lacks a version that the user typed: only what files say is moved."""
    for key in requests.typed:
        asked, word = requests.pins[key], _WORDS[key]
        if _far(asked, getattr(recipe, key)):
            refused = min(tried for tried in tries if not _far(asked, getattr(tried.context.recipe, key)))
            version = getattr(refused.context.recipe, key)
            nearest = " ".join(f"--{key} {getattr(recipe, key)}" for key in requests.typed)
            message = f"{word} {version} does not work with the other pins: {_errors(refused)}"
            raise IncompatibleError(message, hint=f"the nearest that does: `{nearest}`")


def fitting(key: str, requests: Requests, tables: Tables) -> tuple[str, ...]:
    """Return the versions of a pin that can be chosen beside the known ones: those that move no pin that counts more."""
    host = HostFacts(path=Path(), driver=requests.driver) if requests.driver else None
    every = replace(requests, pins={**requests.pins, key: Request(text="==0", where="")})
    versions: dict[str, Rank] = {}
    for tried in sorted(_candidates(every, tables, host, name="", path=Path())):
        recipe, counts_more = tried.context.recipe, tried.rank[0][: _COUNT_MORE[key]]
        is_typed = all(not _far(requests.pins[typed], getattr(recipe, typed)) for typed in requests.typed)
        is_moved = counts_more > next(iter(versions.values()), counts_more)
        version = getattr(recipe, key)
        if version not in versions and is_typed and not is_moved and not _errors(tried):
            versions[version] = counts_more
    return tuple(sorted(versions, key=version_key))


def _asked_companions(requests: Requests, torch: Torch) -> list[tuple[Request, bool]]:
    """Return the requests with a version for torchvision and torchaudio, and whether the release of this torch meets each.

    Where the tables know no release for this torch, a newer one than they know counts.
    """
    versions = {"torchvision": _NEWER, "torchaudio": _NEWER, **dict(torch.companions)}
    asked = [
        (requests.packages[name], version) for name, version in versions.items() if name in requests.packages
    ]
    bounds = [(wanted, Requirement(wanted.text).specifier, version) for wanted, version in asked]
    return [(wanted, bound.contains(version)) for wanted, bound, version in bounds if bound]


def _candidates(
    requests: Requests, tables: Tables, host: HostFacts | None, *, name: str, path: Path
) -> Iterator[Try]:
    """Yield every recipe that envbuilder offers, ranked by its distance from the request, then by preference."""
    asked = requests.pins
    day = requests.day.isoformat() if requests.day else "9999"
    days = [row.released for row in tables.torches.rows]
    # Releases since the project last changed, which it did not know.
    later = {row.version: sum(day < other <= row.released for other in days) for row in tables.torches.rows}
    companions = {row.version: _asked_companions(requests, row) for row in tables.torches.rows}
    suite = requests.suite.name if requests.suite and requests.apt else ""  # whose names its packages have
    pairs = [
        (base, gcc, python)
        for base in tables.distributions.rows
        if base.is_released and (base.family == DEBIAN or base.name == suite)
        for gcc in base.gccs
        for python in _pythons(asked.get("python"), base, tables)
    ]
    builds = [
        (torch, cuda)
        for torch in tables.torches.rows
        for cuda in (_cudas(asked.get("cuda"), torch, tables) if requests.gpus else ("",))
    ]
    for number, ((base, gcc, python), (torch, cuda)) in enumerate(itertools.product(pairs, builds)):
        plain = [python for python in torch.pythons if not python.endswith("t")]  # t: free-threaded
        rank = (
            _far(asked.get("pytorch"), torch.version),
            (sum(not is_met for _, is_met in companions[torch.version]),),
            _far(asked.get("python"), python),
            (bool(suite) and base.name != suite,),
            _far(asked.get("cuda"), cuda) if cuda else (),
            _far(asked.get("gcc"), gcc),
            (later[torch.version],),
        )
        taste = (
            _down(torch.version),
            distance(python, plain[len(plain) // 2]),
            python != base.python,
            distance(cuda, torch.build.cuda) if cuda else (),
            base.gcc != gcc,
            _down(gcc),
        )
        recipe = Recipe(
            name=name, path=path, gpus=requests.gpus or (), base=base.name, python=python, cuda=cuda, gcc=gcc,
            libxcrypt=base.short_libxcrypt, pytorch=torch.version, apt=tuple(requests.apt),
            extensions=tuple(requests.extensions.values()), env=tuple(sorted(requests.env.items())),
        )  # fmt: skip
        yield Try((rank, 0, taste), number, make_context(recipe, tables, host))


def _pythons(asked: Request | None, base: Distribution, tables: Tables) -> tuple[str, ...]:
    """Return the suite's Python, and if another one was requested, every standalone build."""
    if not _far(asked, base.python):
        return (base.python,)
    return tuple(dict.fromkeys((base.python, *tables.standalones.by_name)))


def _cudas(asked: Request | None, torch: Torch, tables: Tables) -> tuple[str, ...]:
    """Return the toolkits against which torch was built, and those nearest to the requested one."""
    own = tuple(cuda for cuda in tables.toolkits if torch.build_for(cuda))
    near = sorted(tables.toolkits, key=lambda cuda: _far(asked, cuda)) if asked or not own else []
    return tuple(dict.fromkeys((*near[:_NEAR], *own)))


@functools.cache
def _far(asked: Request | None, version: str) -> tuple[int, ...]:
    """Return the distance from the requested version; () where it fits or none was requested.

    A version may be the one that a bound names and still not fit: 2.7.0 is not below 2.7.
    """
    if asked is None or asked.specifier.contains(version):
        return ()
    return (1, *(distance(version, asked.version) if asked.version else ()))


def _down(version: str) -> tuple[int, ...]:
    return tuple(-number for number in version_key(version))


def _note_moves(requests: Requests, recipe: Recipe, tables: Tables) -> None:
    """Report each requested version that the pins do not meet."""
    image, where = ("", "") if requests.base else requests.image
    if image and "python" not in requests.pins:
        message = f"Python {recipe.python} is chosen: the name `{image}` does not say its own"
        requests.note(where, message, hint="`--python` names another one")
    torch = requests.pins.get("pytorch")
    if image and torch and torch.where == where:
        message = f"torch {recipe.pytorch} is that of `{image}`"
        requests.note(where, message, hint=_OTHER)
    keeps = requests.base and requests.base.keeps_torch and not torch
    if (requests.packages or requests.extensions or torch) and not keeps and not (torch and torch.is_exact):
        row, day = tables.torches.by_name[recipe.pytorch], requests.day
        order = "oldest" if day and row.released > str(day) else "newest"
        changed = f", and the project last changed on {day}" if day else ""
        companion = next((wanted for wanted, is_met in _asked_companions(requests, row) if is_met), None)
        fits = (
            f"`{companion.text}` belongs to"
            if companion
            else "fits the other pins: no file names its version"
        )
        place = torch.where if torch else companion.where if companion else ""
        message = f"torch {row.version} is the {order} that {fits}{changed}"
        requests.note(place, message, hint=f"{_OTHER}{_LATER if requests.packages else ''}")
    for key, word in _WORDS.items():
        asked, value = requests.pins.get(key), getattr(recipe, key)
        if asked is None or not asked.text or (value and asked.specifier.contains(value)):
            continue
        if not value:
            requests.note(asked.where, f"no CUDA, where `{asked.text}` was asked: there is no GPU to use it")
            continue
        why = _refusal(asked, recipe, tables) if key == "cuda" else ""
        nearest = f"is the nearest to `{asked.text}` that works with the other pins"
        reason = f"instead of `{asked.text}`: {why}" if why else nearest
        hint = _FOLLOW if key in ("pytorch", "python") else ""
        requests.note(asked.where, f"{word} {value} {reason}", hint=hint)


def _refusal(asked: Request, recipe: Recipe, tables: Tables) -> str:
    """Return the error of `check` about the requested CUDA alone, or ""."""
    version = re.match(r"\d+\.\d+", asked.version)
    problems = judge(replace(recipe, cuda=version[0]), tables) if version else ()
    alone = (problem for problem in problems if problem.is_error and problem.pins == ("cuda",))
    return next((problem.message for problem in alone), "")


def _with_packages(requests: Requests, recipe: Recipe, tables: Tables, host: HostFacts | None) -> Recipe:
    """Add the packages that the pins allow; leave out the others, with the rule that rejects each."""
    asked = requests.pins.get("pytorch")
    is_asked = asked is None or asked.specifier.contains(recipe.pytorch)
    for name in () if is_asked else (name for name in _WITH_TORCH if name in requests.packages):
        wanted = requests.packages[name]
        if wanted.text != name:
            requests.note(wanted.where, f"`{name}` stands for `{wanted.text}`: its version goes with torch's")
            requests.packages[name] = replace(wanted, text=name)
    _drop_extensions(requests)
    _bound(requests, recipe, tables)
    kept, torch = dict(requests.packages), tables.torches.by_name[recipe.pytorch]
    fitting = {name: f"{name}=={version}" for name, version in torch.companions}
    fitting |= {"setuptools": f"setuptools{torch.setuptools}"} if torch.setuptools else {}
    while True:
        whole = replace(recipe, packages=tuple(wanted.text for wanted in kept.values()))
        rejected = _rejected(judge(whole, tables, host), tuple(kept))
        if not rejected:
            return whole
        for name, problem in rejected.items():
            wanted = kept.pop(name)
            if wanted.text != (fits := fitting.get(name, wanted.text)):
                requests.note(wanted.where, f"`{fits}` stands for `{wanted.text}`: {problem.message}")
                kept[name] = replace(wanted, text=fits)
            else:
                requests.leave(wanted.where, wanted.text, problem.message, hint=problem.advice)


def _drop_extensions(requests: Requests) -> None:
    """Request what is an extension once: not as a package too."""
    for name in (name for name, each in requests.extensions.items() if each.form is Form.PROJECT):
        key = canonicalize_name(name)
        if replaced := requests.packages.pop(key, None) or requests.misnamed.pop(key, None):
            requests.note(replaced.where, f"`{name}` of `extensions` stands for `{replaced.text}`")


def _bound(requests: Requests, recipe: Recipe, tables: Tables) -> None:
    """Write the bounds of this torch for numpy and setuptools into the recipe, unless the request has bounds."""
    needed = ("setuptools", "wheel", "ninja") if requests.extensions else ()
    added = [name for name in needed if name not in requests.packages]
    requests.packages |= {name: Request(text=name, where="") for name in added}
    row = tables.torches.by_name[recipe.pytorch]
    for name, bound in (("numpy", row.numpy), ("setuptools", row.setuptools)):
        wanted = requests.packages.get(name)
        if wanted and wanted.text == name:
            if bound and wanted.where:
                message = f"`{name}{bound}` stands for `{name}`: torch {recipe.pytorch} needs it"
                requests.note(wanted.where, message)
            requests.packages[name] = replace(wanted, text=f"{name}{bound}")
    if added:
        texts = ", ".join(f"`{requests.packages[name].text}`" for name in added)
        requests.note("extensions", f"added {texts}: torch compiles extensions with them")


def _rejected(problems: Iterable[Problem], names: tuple[str, ...]) -> dict[str, Problem]:
    """Return the errors about items of `packages`, by name."""
    items = {f"packages[{index}]": name for index, name in enumerate(names)}
    errors = (problem for problem in problems if problem.is_error)
    return {items[problem.key]: problem for problem in errors if problem.key in items}
