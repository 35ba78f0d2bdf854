"""A compiled extension in the store: the call that made it, the key that decides its bytes, and the entry itself.

The fields of a key are kept beside the files, so a miss can be explained by the field that differs. The same key in any recipe is
the same file.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.core.cache import Sha256, Store, save_text, sha256_file, sha256_text
from envbuilder.lock.model import Artefact, LockedExtension
from envbuilder.plan.model import ENV_PREFIX, ExtensionsStep, Plan, extension_lines
from envbuilder.recipe.extension import SOURCE_SUFFIXES, Form

BUILD_DIRECTORY: Final = "/space"  # where the sandbox has the build directory
SOURCE: Final = f"{BUILD_DIRECTORY}/src"
KEPT: Final = (
    f"{BUILD_DIRECTORY}/kept"  # copies of sources that a project itself copied elsewhere before its call
)
KEY_FORMAT: Final = 6  # a new number when the same fields would give other bytes
COMPILED_FILE: Final = "compiled.json"
CAPTURED_FILE: Final = "captured.json"
VERSION: Final = 1  # of both files
TREE: Final = "tree"  # of a project: what it adds to the image
PACKAGE: Final = "package"
# The packages that a compile of plain sources reads: compiler, linker, headers of libraries, Python's own.
_COMPILER: Final = re.compile(
    r".*-dev|linux-libc-dev|(gcc|g\+\+|cpp)(-[\d.]+)?(-base)?|lib(gcc|stdc\+\+|cc1|isl|mpc|mpfr|gmp|crypt|c6).*"
    r"|binutils.*|libbinutils|ninja-build|python3\.\d+.*"
)
_WHEELS: Final = re.compile(
    r"torch|nvidia-.*"
)  # torch's headers and libraries, and those that the toolkit links
# Beside sources, a compiler may read everything of a project but its Python code and its data.
_NOT_COMPILED: Final = (
    ".py", ".pyi", ".pyc", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt", ".md", ".so", ".o"
)  # fmt: skip

# ---- the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments that decide what is compiled; paths are the sandbox's. `functions` is JSON: null, a list or a map."""

    function: str  # load | load_inline
    name: str
    sources: tuple[str, ...] = ()
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    functions: str = "null"
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool | None = None
    with_pytorch_error_handling: bool = True
    is_python_module: bool = True
    is_standalone: bool = False
    others: str = "{}"  # JSON: arguments that only newer releases of torch take

    @property
    def has_cuda(self) -> bool:
        """Whether nvcc is to compile something, by torch's own rule."""
        if self.with_cuda is not None:
            return self.with_cuda
        return bool(self.cuda_sources) or any(source.endswith((".cu", ".cuh")) for source in self.sources)

    @property
    def library(self) -> str:
        """The file that it makes."""
        return self.name if self.is_standalone else f"{self.name}.so"

    @property
    def base(self) -> str:
        """What the paths of sources and headers are relative to, wherever the project lies later."""
        folders = [str(PurePosixPath(source).parent) for source in self.sources] or list(
            self.extra_include_paths
        )
        return posixpath.commonpath(folders) if folders else ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def parse_call(value: Mapping[str, object]) -> Call:
    """Read what `to_json` wrote, or the capture program in the sandbox; raises TypeError for other keys."""
    given = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    return Call(**given)  # type: ignore[arg-type]


def recipe_call(extension: LockedExtension) -> Call:
    """The call that a recipe's `sources` stand for."""
    return Call(
        function="load",
        name=extension.name,
        sources=tuple(f"{SOURCE}/{source}" for source in extension.sources),
        extra_include_paths=tuple(f"{SOURCE}/{folder}" for folder in extension.include),
        extra_cflags=extension.cflags,
        extra_cuda_cflags=extension.cuda_cflags,
        with_cuda=any(source.endswith(".cu") for source in extension.sources),
    )


def relative(path: str, base: str) -> str:
    """A path of the sandbox relative to the base; it may climb."""
    return posixpath.relpath(path, base or "/")


# ---- the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    fields: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> Sha256:
        return sha256_text(json.dumps(self.fields))

    def differences(self, other: "Key") -> tuple[str, ...]:
        """The names of the fields that differ."""
        mine, others = dict(self.fields), dict(other.fields)
        return tuple(name for name in sorted(mine | others) if mine.get(name) != others.get(name))


def surroundings(
    plan: Plan, extension: LockedExtension, *, reads_all: bool = False
) -> tuple[tuple[str, str], ...]:
    """What an extension is compiled with. With `reads_all` that is every package: a project's own programs may read any."""
    os_step, python, cuda = plan.os, plan.python, plan.cuda
    gpus = next(step.architectures for step in plan.steps if isinstance(step, ExtensionsStep))
    torch = next((wheel for wheel in python.artefacts if wheel.name == "torch"), None)
    reads_all = reads_all or ENV_PREFIX in "\n".join(extension_lines(extension))
    wheels = [one for one in python.artefacts if reads_all or _WHEELS.fullmatch(one.name)]
    debs = [one for one in os_step.artefacts if reads_all or _COMPILER.fullmatch(one.name)]
    toolkit = (
        f"{cuda.toolkit.cuda} {_digest(cuda.artefacts)} {sha256_text(repr(cuda.toolkit))}" if cuda else "none"
    )
    return (
        ("format", str(KEY_FORMAT)),
        ("platform", plan.platform),
        ("python", python.python),
        ("torch", f"{torch.version} {torch.sha256}" if torch else "none"),
        ("wheels", _digest(wheels)),
        ("cuda", toolkit),
        (
            "compiler",
            f"gcc {os_step.gcc} {_digest(debs)}" + (f" on {os_step.image}" if os_step.image else ""),
        ),
        ("architectures", " ".join(gpus) or "cpu"),
        ("variables", json.dumps(extension.env)),
        ("epoch", str(plan.epoch) if reads_all else "none"),  # a project may write it into its files
    )


def make_key(common: Iterable[tuple[str, str]], **own: str) -> Key:
    return Key(fields=(*common, *own.items()))


def project_key(plan: Plan, extension: LockedExtension) -> Key:
    """Of what a project's own programs make or do, which may read whatever is there."""
    own = "\n".join(extension_lines(extension))
    return make_key(surroundings(plan, extension, reads_all=True), project=own)


def _digest(artefacts: Iterable[Artefact]) -> Sha256:
    return sha256_text("\n".join(sorted(f"{one.name} {one.version} {one.sha256}" for one in artefacts)))


# ---- the entry of a compiled extension


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
        save_text(folder / COMPILED_FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExtension:
    """An entry of the store: what it is, where it lies, and which entry of the recipe it serves."""

    compiled: Compiled
    folder: Path
    form: Form


def load_compiled(folder: Path) -> Compiled | None:
    """The entry in a folder of the store; None when it is not there or was written by another envbuilder."""
    try:
        value = json.loads((folder / COMPILED_FILE).read_text(encoding="utf-8"))
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


def ninja_timings(build_dir: Path) -> tuple[Timing, ...]:
    """How long each object took in the last run that compiled it, from ninja's own logs below a folder."""
    latest: dict[str, float] = {}
    for log in sorted(build_dir.rglob(".ninja_log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split("\t")
            if not line.startswith("#") and len(words) >= 4 and words[3].endswith(".o"):
                latest[Path(words[3]).name] = (int(words[1]) - int(words[0])) / 1000
    return tuple(Timing(file=name, seconds=seconds) for name, seconds in sorted(latest.items()))


def _pairs(items: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(first), str(second)) for first, second in items)


# ---- the entry of captured calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    calls: tuple[Call, ...]
    files: tuple[
        tuple[str, Sha256], ...
    ]  # path below the compile folder, sorted; each is an artefact of the store

    def save(self, folder: Path) -> None:
        value = {
            "version": VERSION,
            "calls": [asdict(call) for call in self.calls],
            "files": dict(self.files),
        }
        save_text(folder / CAPTURED_FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


def load_captured(folder: Path, store: Store) -> Captured | None:
    """The entry in a folder of the store; None when it is not there, or a file that it names has gone."""
    try:
        value = json.loads((folder / CAPTURED_FILE).read_text(encoding="utf-8"))
        if value["version"] != VERSION:
            return None
        captured = Captured(
            calls=tuple(parse_call(call) for call in value["calls"]), files=_sorted(value["files"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return captured if all(store.artefact(digest).exists() for _, digest in captured.files) else None


def read_captured(build_dir: Path, calls: Path, store: Store) -> Captured:
    """What the program in the sandbox wrote; the files that the calls may read are taken into the store."""
    found = tuple(parse_call(call) for call in json.loads(calls.read_text(encoding="utf-8")))
    files: dict[str, Sha256] = {}
    for folder in (build_dir / "src", build_dir / KEPT.removeprefix(f"{BUILD_DIRECTORY}/")):
        for path in folder.rglob("*"):
            if path.is_file() and (path.suffix in SOURCE_SUFFIXES or path.suffix not in _NOT_COMPILED):
                digest = sha256_file(path)
                store.add_artefact(digest, path)
                files[path.relative_to(build_dir).as_posix()] = digest
    return Captured(calls=found, files=_sorted(files))


def _sorted(files: Mapping[str, str]) -> tuple[tuple[str, Sha256], ...]:
    return tuple((name, Sha256(files[name])) for name in sorted(files))
