"""A compiled extension in the store: its call, its key and its entry.

The key decides the bytes, so recipes with the same key share the entry. The entry keeps the fields of the key, so a miss can be explained
by the field that differs.
"""

import contextlib
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from envbuilder.core.beneath import copy_beneath, files_beneath, open_beneath, read_beneath
from envbuilder.core.cache import Sha256, Store, save_text, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.core.models import Shape, adapter
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.model import ENV_PREFIX, ExtensionsStep, Plan, extension_lines
from envbuilder.recipe.extension import SOURCE_SUFFIXES, Form

BUILD_DIRECTORY: Final = "/space"  # in the sandbox
SOURCE: Final = f"{BUILD_DIRECTORY}/src"
# Copies of the sources that a project moves to another folder before its call.
KEPT: Final = f"{BUILD_DIRECTORY}/kept"
KEY_FORMAT: Final = 6  # raise it when the same fields give other bytes
COMPILED_FILE: Final = "compiled.json"
CAPTURED_FILE: Final = "captured.json"
VERSION: Final = 1  # of both files
# A line of ninja's log: start and end in milliseconds, a time, and the object.
_TIMED: Final = re.compile(r"(\d{1,12})\t(\d{1,12})\t[^\t]*\t([^\t]+\.o)(?:\t|$)")
TREE: Final = "tree"  # the files that a project adds to the image
PACKAGE: Final = "package"
# The packages that a compile of `sources` reads: compiler, linker, libraries' and Python's headers.
_COMPILER: Final = re.compile(
    r".*-dev|linux-libc-dev|(gcc|g\+\+|cpp)(-[\d.]+)?(-base)?|lib(gcc|stdc\+\+|cc1|isl|mpc|mpfr|gmp|crypt|c6).*"
    r"|binutils.*|libbinutils|ninja-build|python3\.\d+.*"
)
# The wheels with torch's headers and libraries, and with those that the toolkit links.
_WHEELS: Final = re.compile(r"torch|nvidia-.*")
# What torch requires, in any release, and what builds with it. Their makers are trusted as torch's are.
_OF_TORCH: Final = re.compile(
    r"torch|nvidia-.*|cuda-.*|triton|pytorch-triton|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|ninja|numpy|packaging"
    r"|pybind11|setuptools|sympy|typing-extensions|wheel"
)
_OF_SUITES: Final = re.compile(
    r"debian|debian-security|ubuntu|cuda"
)  # sources whose packages are signed by their makers
# A compiler may read all files of a project except these.
_NOT_COMPILED: Final = (
    ".py", ".pyi", ".pyc", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt", ".md", ".so", ".o"
)  # fmt: skip

# A call's name is chosen by foreign code, and becomes part of paths in the build directory and in the image.
_CALL_NAME: Final = Shape(pattern=r"(?!\.)[^\x00-\x1f\x7f/]{1,100}", expected="the name of a module")

# ---- the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call of torch's `load()` or `load_inline()`. Paths are those of the sandbox."""

    function: str  # load | load_inline
    name: Annotated[str, _CALL_NAME]
    sources: tuple[str, ...] = ()
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    functions: str = "null"  # JSON: null, a list or a map
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool | None = None
    with_pytorch_error_handling: bool = True
    is_python_module: bool = True
    is_standalone: bool = False
    others: str = "{}"  # JSON: arguments of newer releases of torch

    @property
    def has_cuda(self) -> bool:
        """Return whether nvcc compiles a source, by torch's own rule."""
        if self.with_cuda is not None:
            return self.with_cuda
        return bool(self.cuda_sources) or any(source.endswith((".cu", ".cuh")) for source in self.sources)

    @property
    def library(self) -> str:
        """Return the name of the compiled file."""
        return self.name if self.is_standalone else f"{self.name}.so"

    @property
    def base(self) -> str:
        """Return the folder that paths in the index are relative to, because the project may be elsewhere at run time."""
        folders = [posixpath.dirname(source) for source in self.sources] or self.extra_include_paths
        return posixpath.commonpath(folders) if folders else ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def recipe_call(extension: LockedExtension) -> Call:
    """Return the call for a recipe's `sources`."""
    return Call(
        function="load",
        name=extension.name,
        sources=tuple(f"{SOURCE}/{source}" for source in extension.sources),
        extra_include_paths=tuple(f"{SOURCE}/{folder}" for folder in extension.include),
        extra_cflags=extension.cflags,
        extra_cuda_cflags=extension.cuda_cflags,
        with_cuda=any(source.endswith(".cu") for source in extension.sources),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one extension, and the files that they may read."""

    calls: tuple[Call, ...]
    files: tuple[tuple[str, Sha256], ...]  # path below the build directory, and sha256

    def save(self, folder: Path) -> None:
        """Write the entry of captured calls."""
        calls = [asdict(call) for call in self.calls]
        value = {"version": VERSION, "calls": calls, "files": dict(self.files)}
        save_text(folder / CAPTURED_FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


def recipe_calls(extension: LockedExtension) -> Calls:
    """Return the call for a recipe's `sources`, with its files."""
    files = tuple((f"src/{file.path}", file.sha256) for file in extension.files)
    return Calls(calls=(recipe_call(extension),), files=files)


def relative(path: str, base: str) -> str:
    """Return a path of the sandbox relative to the base. It may start with `..`."""
    return posixpath.relpath(path, base or "/")


# ---- the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The inputs that decide the bytes of an extension.

    `beside` names the packages that should not, and whose code runs beside the compilers: a wheel's `.pth` file, a script of
    a third party's package. The cache has an entry for each such company, so that the code of one recipe's packages leaves
    no result for another recipe.
    """

    fields: tuple[tuple[str, str], ...]
    beside: str = ""

    @property
    def digest(self) -> Sha256:
        return sha256_text(json.dumps(self.fields))

    @property
    def entry(self) -> Sha256:
        """Return the name of the entry in the cache."""
        return sha256_text(json.dumps([*self.fields, self.beside])) if self.beside else self.digest


def gpus_of(plan: Plan) -> tuple[str, ...]:
    """Return the compute capabilities that extensions are compiled for."""
    return next(step.architectures for step in plan.steps if isinstance(step, ExtensionsStep))


def surroundings(
    plan: Plan, extension: LockedExtension, *, reads_all: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the fields of a key that describe compilers, packages and GPUs.

    With `reads_all`, all packages are in it, because a project's own programs may read any of them.
    """
    python, cuda = plan.python, plan.cuda
    torch = next((wheel for wheel in python.artifacts if wheel.name == "torch"), None)
    reads_all = reads_all or ENV_PREFIX in "\n".join(extension_lines(extension))
    # With the packages that its sdists are built with.
    wheels = python.inputs if reads_all else [one for one in python.artifacts if _WHEELS.fullmatch(one.name)]
    debs = [one for one in plan.os.artifacts if reads_all or _COMPILER.fullmatch(one.name)]
    toolkit = "none"
    if cuda:
        toolkit = f"{cuda.toolkit.cuda} {_digest(cuda.artifacts)} {sha256_text(repr(cuda.toolkit))}"
    return (
        ("format", str(KEY_FORMAT)),
        ("platform", plan.platform),
        ("python", _python(plan)),
        ("torch", f"{torch.version} {torch.sha256}" if torch else "none"),
        ("wheels", _digest(wheels)),
        ("cuda", toolkit),
        ("compiler", _compiler(plan, debs)),
        ("architectures", " ".join(gpus_of(plan)) or "cpu"),
        ("variables", json.dumps(extension.env)),
        ("epoch", str(plan.epoch) if reads_all else "none"),  # a project may write it into its files
        *_tools(plan),
    )


def _tools(plan: Plan) -> tuple[tuple[str, str], ...]:
    return (("tools for another processor", _digest(plan.tools.artifacts)),) if plan.tools else ()


def _python(plan: Plan) -> str:
    version = plan.python.python
    return f"{version} {_digest(plan.interpreter.artifacts)}" if plan.interpreter else version


def _compiler(plan: Plan, debs: Iterable[Artifact]) -> str:
    image = f" on {plan.os.image}" if plan.os.image else ""
    return f"gcc {plan.os.gcc} {_digest(debs)}{image}"


def make_key(common: Iterable[tuple[str, str]], **own: str) -> Key:
    return Key(fields=(*common, *own.items()))


def call_key(plan: Plan, extension: LockedExtension, call: Call, calls: Calls) -> Key:
    """Return the key of one call of an extension."""
    key = make_key(surroundings(plan, extension), call=call.to_json(), files=json.dumps(calls.files))
    wheels = [wheel for wheel in plan.python.inputs if not _OF_TORCH.fullmatch(wheel.name)]
    debs = [deb for deb in plan.os.artifacts if not _OF_SUITES.fullmatch(deb.source)]
    return replace(key, beside=_digest([*wheels, *debs]) if wheels or debs else "")


def project_key(plan: Plan, extension: LockedExtension) -> Key:
    """Return the key of a project's own build or capture, which may read every package."""
    own = "\n".join(extension_lines(extension))
    return make_key(surroundings(plan, extension, reads_all=True), project=own)


def _digest(artifacts: Iterable[Artifact]) -> Sha256:
    return sha256_text("\n".join(sorted(f"{one.name} {one.version} {one.sha256}" for one in artifacts)))


# ---- the entry of a compiled extension


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The torch of the sandbox. An extension works only with the same torch."""

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
    """The entry of an extension. `call` is None for a project, whose libraries lie below `tree`."""

    name: str
    key: Key
    facts: Facts
    call: Call | None
    targets: tuple[str, ...]  # sm_80: machine code, compute_80: PTX; of all libraries of a project
    sources: tuple[tuple[str, str], ...]  # path and sha256
    headers: tuple[tuple[str, str], ...]  # the same, of the other files that the compile read
    size: int  # bytes of all libraries
    seconds: float  # of the compile
    timings: tuple[Timing, ...]  # of each compiled file
    recipe: str  # the first recipe that needed it

    @property
    def function(self) -> str:
        return self.call.function if self.call else PACKAGE

    def save(self, folder: Path) -> None:
        value = asdict(self) | {"version": VERSION, "key": list(map(list, self.key.fields))}
        save_text(folder / COMPILED_FILE, json.dumps(value, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExtension:
    """An entry of the store, its folder, and the form of the recipe's extension."""

    compiled: Compiled
    folder: Path
    form: Form


def load_compiled(folder: Path) -> Compiled | None:
    """Return the entry in a folder of the store, None if it is missing or has another version."""
    try:
        value = json.loads((folder / COMPILED_FILE).read_text(encoding="utf-8"))
        compiled = adapter(Compiled).validate_python(value | {"key": {"fields": value["key"]}})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    there = folder / (TREE if compiled.call is None else compiled.call.library)
    return compiled if value.get("version") == VERSION and there.exists() else None


@contextlib.contextmanager
def answers(name: str) -> Iterator[None]:
    """Raise BuildError for a result of the sandbox that is not there or cannot be read: foreign code may have written it."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:  # a full disk is another error
        raise BuildError(f"the build left no `{name}`: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError(f"the build left a `{name}` that cannot be read: {error}") from error


def read_facts(build_dir: Path, name: str) -> tuple[Facts, Mapping[str, str]]:
    """Read the output of the program in the sandbox: facts, and path → sha256 of the files that it read."""
    with answers(name):
        value = json.loads(read_beneath(build_dir, name))
        files = adapter(dict[str, str]).validate_python(value.pop("files"))
        return adapter(Facts).validate_python(value), files


def ninja_timings(build_dir: Path) -> tuple[Timing, ...]:
    """Return the time of each object's last compile, from the logs of ninja below the folder."""
    latest: dict[str, float] = {}
    with contextlib.suppress(BuildError):  # a tree or a log without a reasonable end
        logs = [name for name in files_beneath(build_dir) if PurePosixPath(name).name == ".ninja_log"]
        for line in (line for log in logs for line in read_beneath(build_dir, log).splitlines()):
            if found := _TIMED.match(line.decode(errors="replace")):
                start, end, file = found.groups()
                latest[PurePosixPath(file).name] = (int(end) - int(start)) / 1000
    return tuple(Timing(file=name, seconds=seconds) for name, seconds in sorted(latest.items()))


# ---- the entry of captured calls


def load_calls(folder: Path, store: Store) -> Calls | None:
    """Return the captured calls in a folder of the store, None if they or one of their files are missing or damaged."""
    if not store.holds(folder, whole=True):
        return None
    try:
        value = json.loads((folder / CAPTURED_FILE).read_text(encoding="utf-8"))
        calls = Calls(
            calls=adapter(tuple[Call, ...]).validate_python(value["calls"]), files=_sorted(value["files"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    are_there = all(store.has_artifact(digest) for _, digest in calls.files)
    return calls if value.get("version") == VERSION and are_there else None


def read_calls(build_dir: Path, name: str, store: Store) -> Calls:
    """Read the calls from the program in the sandbox, and copy the files that they may read into the store.

    Links of the project are left out. Raises BuildError for a call with a source that is one, or is not there.
    """
    with answers(name):
        found = adapter(tuple[Call, ...]).validate_json(read_beneath(build_dir, name))
    files: dict[str, Sha256] = {}
    folders = ("src/", f"{KEPT.removeprefix(f'{BUILD_DIRECTORY}/')}/")
    for path in files_beneath(build_dir):
        suffix = PurePosixPath(path).suffix
        if path.startswith(folders) and (suffix in SOURCE_SUFFIXES or suffix not in _NOT_COMPILED):
            files[path] = _keep(build_dir, path, store)
    for call in found:
        for source in call.sources:
            inside = posixpath.normpath(source).removeprefix(f"{BUILD_DIRECTORY}/")
            if inside != source and inside not in files:
                raise BuildError(
                    f"the call that compiles `{call.name}` names the source `{source}`, which is no regular file",
                    hint="a link is not followed: let the project name the file itself",
                )
    return Calls(calls=found, files=_sorted(files))


def _keep(build_dir: Path, path: str, store: Store) -> Sha256:
    """Put a file of the build directory into the store."""
    with os.fdopen(open_beneath(build_dir, path), "rb") as stream:
        digest = Sha256(hashlib.file_digest(stream, "sha256").hexdigest())
    if not store.artifact(digest).exists():
        with store.workspace() as work:
            copy_beneath(build_dir, path, work / "file")
            store.add_artifact(digest, work / "file")
    return digest


def _sorted(files: Mapping[str, str]) -> tuple[tuple[str, Sha256], ...]:
    return tuple((name, Sha256(files[name])) for name in sorted(files))
