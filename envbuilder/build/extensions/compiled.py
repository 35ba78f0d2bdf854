"""A compiled extension as the store keeps it: its files, and what a reader must know of them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from envbuilder.build.extensions.call import Call, parse_call
from envbuilder.build.extensions.key import Key
from envbuilder.core.cache import save_text

FILE: Final = "compiled.json"
VERSION: Final = 1
TREE: Final = "tree"  # of a project: what it adds to the image
PACKAGE: Final = "package"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the sandbox's own torch says of itself; an extension works with that one alone."""

    torch: str  # torch.__version__
    cuda: str | None  # torch.version.cuda
    cxx11_abi: bool
    python: str  # sys.implementation.cache_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    file: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One entry. `call` is None for a project, whose libraries are below `tree`."""

    name: str
    key: Key
    facts: Facts
    call: Call | None
    targets: tuple[str, ...]  # sm_80 machine code, compute_80 PTX; of a project all libraries together
    headers: tuple[
        tuple[str, str], ...
    ]  # files of the project that the compile read beside the sources, with sha256
    sources: tuple[tuple[str, str], ...]  # likewise
    size: int  # bytes of all libraries
    seconds: float  # that it took
    timings: tuple[Timing, ...]  # of each compiled file
    recipe: str  # that it was compiled for first

    @property
    def function(self) -> str:
        return self.call.function if self.call else PACKAGE

    def save(self, folder: Path) -> None:
        value = asdict(self) | {"version": VERSION, "key": list(map(list, self.key.fields))}
        save_text(folder / FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


def load_compiled(folder: Path) -> Compiled | None:
    """The entry in a folder of the store; None when it is not there or was written by another envbuilder."""
    try:
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if value.pop("version") != VERSION:
            return None
        call = value.pop("call")
        compiled = Compiled(
            key=Key(fields=_pairs(value.pop("key"))),
            facts=Facts(**value.pop("facts")),
            call=parse_call(call) if call else None,
            targets=tuple(value.pop("targets")),
            headers=_pairs(value.pop("headers")),
            sources=_pairs(value.pop("sources")),
            timings=tuple(Timing(**one) for one in value.pop("timings")),
            **value,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    there = folder / (TREE if compiled.call is None else compiled.call.library)
    return compiled if there.exists() else None


def read_facts(path: Path) -> tuple[Facts, Mapping[str, str]]:
    """What the program in the sandbox wrote: its facts, and path → sha256 of the project's files that it read."""
    value = json.loads(path.read_text(encoding="utf-8"))
    files = value.pop("files")
    return Facts(**value), files


def ninja_timings(space: Path) -> tuple[Timing, ...]:
    """How long each object took in the last run that compiled it, from ninja's own logs below a folder."""
    latest: dict[str, float] = {}
    for log in sorted(space.rglob(".ninja_log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split("\t")
            if not line.startswith("#") and len(words) >= 4 and words[3].endswith(".o"):
                latest[Path(words[3]).name] = (int(words[1]) - int(words[0])) / 1000
    return tuple(Timing(file=name, seconds=seconds) for name, seconds in sorted(latest.items()))


def _pairs(items: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(first), str(second)) for first, second in items)
