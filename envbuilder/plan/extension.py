"""What decides the bytes of an extension: its key, and the programs that make it.

The cache keeps each call of torch's `load()` and each project under its key, so recipes with the same key share the entry. The calls
of a capture are known after it has run: the cache keeps them under the key of the capture, and each has a program of its own.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Final, assert_never

from envbuilder import steps
from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.models import Shape
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.program import PACKAGES, Program, spec_text
from envbuilder.recipe.extension import BUILD_SOURCE, Form

# The program, what it starts and what it imports.
FILES: Final = (
    "extension.py", "byte_code.py", "gpu_code.py", "capture_calls.py", "compile_call.py", "sitecustomize.py", "steady.c", "no_comment.ld", "git.sh"
)  # fmt: skip
PREFIX: Final = "/opt/env"
PYTHON: Final = f"{PREFIX}/bin/python"
EXTENSIONS: Final = "/opt/envbuilder/extensions"
BUILD_DIRECTORY: Final = "/space"  # in the root of the program
_NO_COMMIT: Final = "0" * 40  # as git writes it: the sources are a folder of this machine
CAPTURED: Final = "captured"  # in INPUTS of a captured call, and in OUT of a capture
# The packages that a compile of `sources` reads: compiler, linker, libraries' and Python's headers.
_COMPILER: Final = re.compile(
    r".*-dev|linux-libc-dev|(gcc|g\+\+|cpp)(-[\d.]+)?(-base)?|lib(gcc|stdc\+\+|cc1|isl|mpc|mpfr|gmp|crypt|c6).*"
    r"|binutils.*|libbinutils|ninja-build|python3\.\d+.*"
)
# What torch requires, in any release, and what builds with it. Their makers are trusted as torch's are.
_OF_TORCH: Final = re.compile(
    r"torch|nvidia-.*|cuda-.*|triton|pytorch-triton|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|ninja|numpy|packaging"
    r"|pybind11|setuptools|sympy|typing-extensions|wheel"
)
# Sources whose packages are signed by their makers.
_OF_SUITES: Final = re.compile(r"debian|debian-security|ubuntu|cuda")
# A call's name is chosen by foreign code, and becomes part of paths in the build directory and in the image.
_CALL_NAME: Final = Shape(pattern=r"(?!\.)[^\x00-\x1f\x7f/]{1,100}", expected="the name of a module")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCall:
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
    def library(self) -> str:
        """Return the name of the compiled file."""
        return self.name if self.is_standalone else f"{self.name}.so"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one extension, and the files that they may read."""

    calls: tuple[LoadCall, ...]
    files: tuple[tuple[str, Sha256], ...]  # path below the build directory, and sha256
    places: tuple[str, ...] = ()  # of each captured call the line that makes it: net/ops.py:12

    def place(self, call: LoadCall) -> str:
        """Return the line of the project that makes a call, "" where it is not known."""
        return dict(zip(self.calls, self.places, strict=False)).get(call, "")


def recipe_calls(extension: LockedExtension) -> Calls:
    """Return the one call for a recipe's `sources`, with its files."""
    call = LoadCall(
        function="load",
        name=extension.name,
        sources=tuple(f"{BUILD_SOURCE}/{source}" for source in extension.sources),
        extra_include_paths=tuple(f"{BUILD_SOURCE}/{folder}" for folder in extension.include),
        extra_cflags=extension.cflags,
        extra_cuda_cflags=extension.cuda_cflags,
        with_cuda=any(source.endswith(".cu") for source in extension.sources),
    )
    files = tuple((f"src/{file.path}", file.sha256) for file in extension.files)
    return Calls(calls=(call,), files=files)


# ---- the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The inputs that decide the bytes of an extension: its surroundings, and what is specific to it.

    `beside` names what the plan does not have in the key, and what runs beside the compilers: uv where it builds, whose version is this
    machine's; the packages that should decide nothing, as a wheel's `.pth` file. The cache has an entry for each such company, so
    that another uv builds anew, and the code of one recipe's packages leaves no result for another recipe.
    """

    surroundings: tuple[tuple[str, str], ...]
    specific: tuple[tuple[str, str], ...]
    beside: str = ""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        return (*self.surroundings, *self.specific)

    @property
    def digest(self) -> Sha256:
        """Return the sha256 that `extension.py` makes of a captured call too."""
        return sha256_text(json.dumps([_base(self.surroundings), *(value for _, value in self.specific)]))

    @property
    def entry(self) -> Sha256:
        """Return the name of the entry in the cache."""
        return sha256_text(f"{self.digest} {self.beside}") if self.beside else self.digest


def is_linked(name: str) -> bool:
    """Return whether a toolkit has links to the headers and libraries of this wheel: of torch, or of NVIDIA."""
    return name == "torch" or name.startswith("nvidia-")


def is_of_torch(name: str) -> bool:
    """Return whether a package is torch, or one that some release of torch needs to run or to build with."""
    return bool(_OF_TORCH.fullmatch(name))


def _reads_packages(extension: LockedExtension) -> bool:
    """Return whether packages that torch does not need are there. Code of a recipe's own `sources` compiles without them."""
    return extension.form is not Form.LOAD or _names_prefix(extension)


def root_of(extension: LockedExtension) -> tuple[str, ...]:
    """Return the names of the steps in which an extension is compiled."""
    more = (PACKAGES,) if _reads_packages(extension) else ()
    return ("os", "interpreter", "python", *more, "cuda")


def _names_prefix(extension: LockedExtension) -> bool:
    """Return whether files of the environment's packages are among the sources of an extension."""
    is_of_packages = extension.form is Form.CAPTURE and not (extension.path or extension.archive)
    return is_of_packages or PREFIX in "\n".join(extension_lines(extension))


def _base(surroundings: tuple[tuple[str, str], ...]) -> Sha256:
    return sha256_text(json.dumps(surroundings))


def install_path(name: str, key: Key) -> str:
    """Return the folder of a compiled call in the image. Its name holds the key, so two builds never share a path."""
    return f"{EXTENSIONS}/{name}-{key.digest[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What extensions are compiled in, and for which GPUs."""

    platform: str
    epoch: int
    gpus: tuple[str, ...]  # compute capabilities
    python: str  # the version
    program: str  # the path of the Python that the environment uses
    standalone: tuple[Artifact, ...]  # the standalone Python
    wheels: tuple[Artifact, ...]
    builds: tuple[Artifact, ...]  # these and what their builds need
    compiler: str  # the version of gcc, and the image that it is on
    debs: tuple[Artifact, ...]
    toolkit: str  # the version of CUDA and the toolkit's row, "none" without CUDA
    parts: tuple[Artifact, ...]  # of the toolkit
    tools: tuple[Artifact, ...] | None  # with which another processor's machine builds

    def surroundings(
        self, extension: LockedExtension, *, reads_all: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Return the fields of a key that describe processor, compilers, packages and GPUs.

        With `reads_all`, all packages are in it, because a project's own programs may read any of them.
        """
        reads_all = reads_all or _names_prefix(extension)
        torch = [f"{wheel.version} {wheel.sha256}" for wheel in self.wheels if wheel.name == "torch"]
        wheels = [wheel for wheel in self.wheels if is_linked(wheel.name)]
        debs = [deb for deb in self.debs if reads_all or _COMPILER.fullmatch(deb.name)]
        standalone = f" {_digest(self.standalone)}" if self.standalone else ""
        return (
            ("program", sha256_text(" ".join(map(steps.digest, FILES)))),
            ("platform", self.platform),
            ("python", f"{self.python}{standalone}"),
            ("compiler", f"gcc {self.compiler} {_digest(debs)}"),
            *(() if self.tools is None else (("tools for another processor", _digest(self.tools)),)),
            ("torch", torch[0] if torch else "none"),
            ("wheels", _digest(self.builds if reads_all else wheels)),
            ("cuda", f"{self.toolkit} {_digest(self.parts)}"),
            ("architectures", " ".join(self.gpus) or "cpu"),
            ("variables", json.dumps(extension.env)),
            ("epoch", str(self.epoch) if reads_all else "none"),  # a project may write it into its files
        )


def _digest(artifacts: Iterable[Artifact]) -> Sha256:
    return sha256_text("\n".join(sorted(f"{file.name} {file.sha256}" for file in artifacts)))


def call_key(ground: Ground, extension: LockedExtension, call: LoadCall, calls: Calls) -> Key:
    """Return the key of one call of an extension."""
    wheels = [wheel for wheel in ground.builds if _reads_packages(extension) and not is_of_torch(wheel.name)]
    debs = [deb for deb in ground.debs if not _OF_SUITES.fullmatch(deb.source)]
    return Key(
        surroundings=ground.surroundings(extension),
        specific=(("call", call.to_json()), ("files", json.dumps(calls.files))),
        beside=_digest([*wheels, *debs]) if wheels or debs else "",
    )


def project_key(ground: Ground, extension: LockedExtension) -> Key:
    """Return the key of a project's own build or capture, which may read every package."""
    from importlib import metadata  # noqa: PLC0415 - it takes 0.02 s, and few recipes have a project

    return Key(
        surroundings=ground.surroundings(extension, reads_all=True),
        specific=(("project", "\n".join(extension_lines(extension))),),
        beside=f"uv {metadata.version('uv')}" if extension.form is Form.PROJECT else "",
    )


# ---- the programs


def extension_lines(extension: LockedExtension) -> tuple[str, ...]:
    """Return everything in the recipe that decides an extension's bytes."""
    options: dict[str, tuple[str, ...]] = {
        "path": (extension.path,) if extension.path else (),
        "include": extension.include,
        "cflags": extension.cflags,
        "cuda_cflags": extension.cuda_cflags,
        "env": tuple(f"{name}={value}" for name, value in extension.env),
        "options": extension.options,
        "patch": (extension.patch,) if extension.patch else (),
    }
    lines = [f"  extension {' '.join((extension.name, *extension.sources))}"]
    lines += [f"    {name} {shlex.join(values)}" for name, values in options.items() if values]
    lines += [f"    capture {line}" for line in extension.capture]
    if archive := extension.archive:
        commit = f" {extension.commit}" if extension.commit else ""  # a version may hold it
        lines.append(f"    {archive.kind} {archive.name}{commit} sha256:{archive.sha256}")
    return (*lines, *(f"    file {file.path} sha256:{file.sha256}" for file in extension.files))


def extension_program(
    ground: Ground, extension: LockedExtension, name: str = "", *, only: bool = False
) -> Program:
    """Return the program that makes an extension, a captured one with all of its calls. With `only`, it compiles none of them."""
    archive = extension.archive
    match extension.form:
        case Form.LOAD:
            calls = recipe_calls(extension)
            key, verb = call_key(ground, extension, calls.calls[0], calls).digest, "compile"
            values: dict[str, object] = {"call": asdict(calls.calls[0])}
        case Form.PROJECT:
            key, verb = project_key(ground, extension).digest, "build"
            values = {"epoch": ground.epoch, "options": extension.options}
        case Form.CAPTURE:
            key = _base(ground.surroundings(extension))
            verb = "run the imports of" if only else "capture and compile"
            values = {"lines": extension.capture, "only": only}
        case _:
            assert_never(extension.form)
    values |= {
        "path": extension.path, "files": {file.path: file.sha256 for file in extension.files}, "patch": extension.patch,
        "archive": archive is not None, "strip": archive is not None and archive.kind == "sdist", "key": key,
    }  # fmt: skip
    inputs = [(f"files/{file.path}", file) for file in extension.files]
    program = _program(ground, extension, values, f"{verb} the extension `{extension.name}`")
    return replace(program, name=name, inputs=(*inputs, *([("archive", archive)] if archive else [])))


def call_program(ground: Ground, extension: LockedExtension, call: LoadCall, calls: Calls) -> Program:
    """Return the program that compiles one call of a capture. The result of the capture lies in its INPUTS as `CAPTURED`."""
    values = {"key": call_key(ground, extension, call, calls).digest, "call": asdict(call)}
    return _program(ground, extension, values, f"compile the extension `{call.name}`")


def _program(ground: Ground, extension: LockedExtension, values: Mapping[str, object], why: str) -> Program:
    commit = extension.commit or ("" if extension.archive else _NO_COMMIT)
    common = {
        "name": extension.name, "form": extension.form, "gpus": ground.gpus, "env": extension.env, "commit": commit,
    }  # fmt: skip
    return Program(
        name="", files=FILES, interpreter=PYTHON, root=root_of(extension), spec=spec_text({**common, **values}), why=why
    )  # fmt: skip


def join_program(ground: Ground, name: str, extensions: Sequence[LockedExtension]) -> Program:
    """Return the program that makes the layer of these extensions, each of which is a part."""
    named = {f"extension-{number}": extension for number, extension in enumerate(extensions)}
    parts = tuple(extension_program(ground, extension, part) for part, extension in named.items())
    forms = [(part, extension.form) for part, extension in named.items()]
    return Program(
        name=name, files=("extensions.py",), interpreter=ground.program, root=("os", "interpreter"),
        spec=spec_text({"parts": forms, "gpus": ground.gpus}), parts=parts, why="join the extensions",
    )  # fmt: skip
