"""The keys of a recipe file, the effective recipe made from them, and their JSON schema for editors.

The schema describes one file and accepts every file that the loader accepts. Only the loader checks that
paths exist, that requirements parse, and what `extends` and `matrix` add. Editors' YAML servers support draft 7 best.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, with_config

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.findings import Finding
from envbuilder.core.models import MAJOR_MINOR, FieldRule, Flag, Line, Mistake, RawRule, Shape
from envbuilder.core.places import Unquoted
from envbuilder.core.processor import PROCESSORS, X86_64, Processor, processor_for
from envbuilder.recipe.channels import CONDA_BIN, NO_CONDA, Conda, check_conda
from envbuilder.recipe.extension import OPTIONS, Extension, check_extension, check_extensions
from envbuilder.recipe.fields import OwnFile, RecipeCode, Variables, check_command, expand_own
from envbuilder.recipe.packages import IMAGE_TORCH, NO_TORCH, Hashed, OtherPins, Packages
from envbuilder.recipe.repository import Repositories, Repository, RepositoryFile
from envbuilder.recipe.warm import NO_WARM, Warm, WarmKey
from envbuilder.recipe.wheel_sources import Indexes, WheelIndex

FORMAT: Final = 1  # of Recipe.canonical(); a new number makes every lock stale
SUFFIX: Final = ".yaml"
SCHEMA_FILE: Final = "schema.json"  # beside the recipes
MODELINE: Final = f"# yaml-language-server: $schema={SCHEMA_FILE}"
_Schema = dict[str, object]

NAME: Final = Shape(
    pattern=r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*",
    expected="a recipe name of lower-case letters and digits with single `.`, `_` or `-` between them",
    hint="the name of the recipe is also the name of its image",
)
AUTO: Final = "auto"
_ENV_BIN: Final = "/opt/env/bin"
WANTS_TORCH: Final = 'name a version, such as `pytorch: "2.6.0"`'
# The form of each key's text, or of each item of its list. A key that is not here takes any line of text.
SHAPES: Final = {
    "gpus": Shape(pattern=r"[A-Za-z][A-Za-z0-9 -]*", expected="the name of a GPU such as A100"),
    "platform": Shape(
        pattern="|".join(re.escape(one.platform) for one in PROCESSORS),
        expected=" or ".join(one.platform for one in PROCESSORS),
        hint="without it, the GPUs decide",
    ),
    "base": Shape(
        pattern=r"[a-z]+/[a-z0-9.]+",
        expected="distribution/suite, or {image: REFERENCE}",
        hint="`base: debian/bookworm`, or `base: {image: registry/repository:tag@sha256:…}`",
    ),
    "image": Shape(  # of `base`
        pattern=r"(?:(?=[^/]*[.:]|localhost/)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
        rf"{NAME.pattern}(?:/{NAME.pattern})*"
        r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
        expected="a reference such as registry/repository:tag@sha256:…",
        hint="a tag alone serves as well: `lock` finds its digest",
    ),
    "python": MAJOR_MINOR,
    "cuda": Shape(
        pattern=r"[0-9]+\.[0-9]+(\.[0-9]+)?",
        expected='a version such as "12.4", or a release such as "12.4.1"',
        hint="two or three numbers with dots",
    ),
    "gcc": Shape(
        pattern=r"[0-9]+", expected='a major version such as "12"', hint="the suite decides the rest"
    ),
    "libxcrypt": Shape(pattern=r"[0-9]+\.[0-9]+(\.[0-9]+)?", expected='a version such as "4.4"'),
    "pytorch": Shape(
        pattern=r"[0-9]+\.[0-9]+\.[0-9]+|none|image",
        expected='a full version such as "2.6.0", none, or image',
        hint="three numbers; `cuda:` chooses the build, so no `+cu124` here",
    ),
    "apt": Shape(
        pattern=r"[a-z0-9][a-z0-9+.-]{1,99}",
        expected="the name of a Debian package",
        hint="the lock chooses its version",
    ),
    "kernels": Shape(
        pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*@[0-9a-f]{40}",
        expected="OWNER/NAME@COMMIT of a kernel on the Hugging Face hub",
        hint="a branch can move; `git ls-remote https://huggingface.co/OWNER/NAME` lists the commits",
    ),
    "extends": NAME,
    "nccl": Shape(
        pattern="auto|off",
        expected="auto, off, or {profile: FILE, version: VERSION}",
        hint="`auto` lets each node decide; `envbuilder detect --save FILE` writes a profile",
    ),
    "nccl.version": Shape(
        pattern=r"2\.[0-9]+\.[0-9]+(\.post[0-9]+)?",
        expected='a release of NCCL such as "2.27.5"',
        hint="in quotes; `pip index versions nvidia-nccl-cu12` lists them, cu13 for CUDA 13",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    image: Annotated[str, SHAPES["image"]]


def _check_nccl(given: object, _folder: object) -> Iterator[Mistake]:
    if given == {}:
        yield Mistake(message="expected `profile` or `version`", hint=SHAPES["nccl"].hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclChoice:
    """The keys of `nccl` as a map: at least one of them."""

    profile: OwnFile = ""
    version: Annotated[str, SHAPES["nccl.version"]] = ""


def _check_values(values: tuple[object, ...]) -> Iterator[Mistake]:
    if not values or len(set(values)) < len(values):
        yield Mistake(message="expected one or more values, each once", code=RecipeCode.MATRIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The keys that differ between the variants of a recipe, each with its values."""

    base: Annotated[tuple[Annotated[str, SHAPES["base"]], ...], FieldRule(_check_values)] = ()
    python: Annotated[tuple[Annotated[str, SHAPES["python"]], ...], FieldRule(_check_values)] = ()
    gcc: Annotated[tuple[Annotated[str, SHAPES["gcc"]], ...], FieldRule(_check_values)] = ()
    pytorch: Annotated[tuple[Annotated[str, SHAPES["pytorch"]], ...], FieldRule(_check_values)] = ()
    cuda: Annotated[tuple[Annotated[str, SHAPES["cuda"]], ...], FieldRule(_check_values)] = ()
    gpus: Annotated[
        tuple[
            Annotated[
                Annotated[str, SHAPES["gpus"], Tag("a text")]
                | Annotated[tuple[Annotated[str, SHAPES["gpus"]], ...], Tag("a list")],
                Discriminator(lambda value: "a list" if isinstance(value, list | tuple) else "a text"),
            ],
            ...,
        ],
        FieldRule(_check_values),
    ] = ()


def _unquoted_off(value: object) -> object:
    """Return the word `off` for an unquoted `off`, which YAML 1.1 reads as false."""
    return "off" if isinstance(value, Unquoted) and value.text == "off" else value


_MAP_OR_TEXT: Final = Discriminator(lambda value: "a map" if isinstance(value, dict) else "a text")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """The keys of a recipe file. The text below each is its description in the schema."""

    base: Annotated[
        Annotated[str, SHAPES["base"], Tag("a text")] | Annotated[BaseImage, Tag("a map")], _MAP_OR_TEXT
    ]
    """Where the C library and the compilers come from, and Python if it has that version: a suite, or an image of a registry."""
    python: Annotated[str, SHAPES["python"]]
    """The version of Python, in quotes: the suite's own, otherwise a standalone build."""
    gcc: Annotated[str, SHAPES["gcc"]]
    """The major version of the compiler, in quotes."""
    pytorch: Annotated[str, SHAPES["pytorch"]]
    """The full version of torch, without `+cu124`: `cuda` chooses the build. `none` is an environment without it, `image` takes that of the base image."""
    summary: Line = ""
    """One line for `envbuilder list`."""
    gpus: tuple[Annotated[str, SHAPES["gpus"]], ...] = ()
    """The GPUs that it is to run on, such as A100: they decide what extensions are compiled for."""
    platform: Annotated[str, SHAPES["platform"]] = ""
    """The processor that it runs on, linux/amd64 or linux/arm64; without it, GPUs that sit beside an Arm processor alone decide."""
    cuda: Annotated[str, SHAPES["cuda"]] = ""
    """The CUDA toolkit with nvcc, in quotes: "12.4" for its newest release, or "12.4.1"; leave it out, with `gpus`, for PyTorch's build for the CPU."""
    libxcrypt: Annotated[str, SHAPES["libxcrypt"]] = ""
    """Brings crypt.h, which the Python.h of some versions includes."""
    packages: Packages = ()
    """Requirements as pip knows them, {requirements: FILE} with a path from the recipe's own folder, or {from: uv.lock, with: [dev]} for exactly the versions of another tool's lock; the lock fixes each version and file."""
    indexes: Indexes = ()
    """Package indexes, and pages or folders of wheels, each with the packages that come from it and from nowhere else."""
    apt: tuple[Annotated[str, SHAPES["apt"]], ...] = ()
    """Packages of the suite by name; the lock fixes each version."""
    apt_sources: Repositories = ()
    """Apt repositories beside the base's: `nvidia/ubuntu2004`, or a map with name, url, suite, components and key."""
    conda: Annotated[Conda, FieldRule(check_conda)] = NO_CONDA
    """Packages of conda channels, in a folder of their own beside the environment: programs and libraries that neither pip nor apt has."""
    security: Flag = True
    """Whether `lock` takes packages from the suite's -updates and -security too; `false` takes the release's alone."""
    extensions: Annotated[
        tuple[Annotated[Extension, RawRule(check_extension)], ...], RawRule(check_extensions)
    ] = ()
    """C++ and CUDA extensions, compiled while building, for exactly the GPUs named."""
    kernels: tuple[Annotated[str, SHAPES["kernels"]], ...] = ()
    """Kernels of the Hugging Face hub as OWNER/NAME@COMMIT: the lock fixes the build for the recipe's torch, CUDA and processor, and each file of it."""
    warm: WarmKey = NO_WARM
    """Programs that the build runs with a simulated GPU: the Triton kernels that they launch are compiled for each of `gpus`, before a job starts. A command, a list of them, or a map with `run` and `files`; its `caches` are folders of what an earlier job compiled."""
    env: Variables = ()
    """Environment variables inside."""
    nccl: Annotated[
        Annotated[str, SHAPES["nccl"], Tag("a text")]
        | Annotated[
            NcclChoice, RawRule(_check_nccl), Field(json_schema_extra={"minProperties": 1}), Tag("a map")
        ],
        _MAP_OR_TEXT,
        BeforeValidator(_unquoted_off),
    ] = AUTO
    """`auto`: each node decides when torch starts; `off`; or a map with a site's profile, or the version of an NCCL in the place of torch's."""
    tests: tuple[Annotated[Line, FieldRule(check_command)], ...] = ()
    """Commands that run in image and SIF before a build gives them their names."""
    run: Line = ""
    """The command that `docker run` and `apptainer run` start with their arguments; without it, they start what is named."""
    extends: Annotated[str, SHAPES["extends"]] = ""
    """Another recipe in this folder: maps merge, lists append. Its `matrix` stays with it."""
    matrix: Matrix = Matrix()
    """Values of other keys: each combination is an environment of its own, such as a100@torch2.6.0."""


def check_pairs(given: object, _folder: Path) -> Iterator[Mistake]:
    """Report `cuda` without `gpus`, and the reverse: `gpus` decides what the toolkit compiles for. Both serve torch."""
    if not isinstance(given, dict):
        return
    gpus = given.get("gpus")
    if "cuda" in given and gpus in (None, []) and (gpus is not None or "gpus" not in given):
        hint = "add `gpus: [A100]`: it decides what code is compiled for"
        yield Mistake(message="`cuda` needs `gpus`", code=RecipeCode.PAIR, hint=hint, at=("cuda",))
    if isinstance(gpus, list) and gpus and "cuda" not in given:
        hint = 'add `cuda: "12.4"`, or leave out `gpus`'
        yield Mistake(message="`gpus` needs `cuda`", code=RecipeCode.PAIR, hint=hint, at=("gpus",))
    nccl = given.get("nccl")
    if isinstance(nccl, dict) and "version" in nccl and "cuda" not in given:
        hint = "leave it out: PyTorch's build for the CPU has no NCCL"
        yield Mistake(
            message="`nccl: {version: …}` needs `cuda`",
            code=RecipeCode.PAIR,
            hint=hint,
            at=("nccl", "version"),
        )
    warm = given.get("warm")
    if (warm.get("run") if isinstance(warm, dict) else warm) and "cuda" not in given:
        hint = "add `cuda` and `gpus`: they say what the kernels are compiled for"
        yield Mistake(message="`warm` needs `cuda`", code=RecipeCode.PAIR, hint=hint, at=("warm",))
    for key in ("cuda", "extensions", "kernels"):
        if given.get("pytorch") in (NO_TORCH, IMAGE_TORCH) and given.get(key):
            message = f"`{key}` needs `pytorch`"
            yield Mistake(message=message, code=RecipeCode.PAIR, hint=WANTS_TORCH, at=(key,))
    if given.get("pytorch") == IMAGE_TORCH and "base" in given and not isinstance(given["base"], dict):
        hint = "write `base: {image: REFERENCE}`, or the version of torch"
        yield Mistake(
            message="`pytorch: image` needs a base image", code=RecipeCode.PAIR, hint=hint, at=("pytorch",)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The effective recipe, merged with those it extends. An absent key is an empty text or tuple."""

    name: str  # a100, or a100@torch2.6.0 for a variant of a matrix
    path: Path  # of the recipe file; extension sources are relative to its folder
    summary: str = ""
    gpus: tuple[str, ...]
    platform: str = ""  # as written; `processor` decides
    base: str  # distribution/suite, e.g. debian/bookworm; "" if the base is an image
    image: str = ""  # the reference of that image, as written
    python: str
    cuda: str  # as written: 12.4 or 12.4.1; "" without CUDA
    gcc: str
    libxcrypt: str
    pytorch: str  # "" without torch, and for that of the image
    keeps_torch: bool = False  # of its base image
    packages: tuple[str, ...] = ()  # PEP 508, requirement files folded in
    constraints: tuple[str, ...] = ()  # of those files: bounds for what the packages require
    hashes: tuple[Hashed, ...] = ()  # of those files: if there is one, each package that they bring has one
    locks: tuple[OtherPins, ...] = ()  # of other tools, from which packages are; sorted by path
    indexes: tuple[WheelIndex, ...] = ()
    apt: tuple[str, ...]
    apt_sources: tuple[Repository, ...] = ()
    conda: Conda = NO_CONDA
    extensions: tuple[Extension, ...]
    warm: Warm = NO_WARM
    kernels: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...]  # sorted by name
    security: bool = True  # with the suite's -updates and -security
    nccl: str = "auto"  # "auto", "off", or the path of a profile below the recipe's folder
    nccl_version: str = ""  # "" for the one that torch requires
    tests: tuple[str, ...] = ()  # commands that run in image and SIF after a build
    run: str = ""
    files: tuple[Path, ...] = ()  # every file it was read from: recipes that it extends, lists of packages
    places: tuple[tuple[str, str], ...] = ()  # `$.cuda` → `recipes/a100.yaml:4:7`
    notes: tuple[Finding, ...] = ()  # lines of requirements files that the recipe decides otherwise
    # What `lock` chose for packages with CUDA code: requirements in place of those in `packages` and beside them, and builds.
    chosen: tuple[str, ...] = ()
    implied: tuple[Extension, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return `packages`, in their order, with what `lock` chose."""
        if not self.chosen:
            return self.packages
        chosen = {canonicalize_name(Requirement(text).name): text for text in self.chosen}
        named = tuple(chosen.pop(canonicalize_name(Requirement(text).name), text) for text in self.packages)
        return (*named, *chosen.values())

    @property
    def processor(self) -> Processor:
        """Return the processor that it names, otherwise that of its GPUs. A rule refuses a recipe that contradicts itself."""
        return processor_for(self.platform, self.gpus)

    @property
    def digest(self) -> Sha256:
        """The digest of the values that decide a build, so without summary, tests, places and notes."""
        return sha256_text(self.canonical())

    @property
    def starts_conda(self) -> bool:
        """Return whether `python` starts that of conda's packages, whose folder then stands before the environment's in PATH."""
        folders = expand_own("PATH", dict(self.env).get("PATH", ""), _ENV_BIN).split(":")
        return CONDA_BIN in folders[: folders.index(_ENV_BIN) if _ENV_BIN in folders else None]

    def is_seen_by(self, version: str) -> bool:
        """Return whether `python` is conda's of this version, and loads what is compiled for the environment's."""
        return self.starts_conda and version.startswith(f"{self.python}.")

    def canonical(self) -> str:
        """Return as JSON what decides a build. GPUs and apt names are sets; packages keep their order."""
        as_written = ("python", "cuda", "gcc", "libxcrypt", "pytorch", "packages")
        value = {key: getattr(self, key) for key in as_written} | {
            "format": FORMAT,
            "gpus": sorted(set(self.gpus)),
            "base": {"image": self.image} if self.image else self.base,
            "apt": sorted(set(self.apt)),
            "extensions": [extension.canonical() for extension in self.extensions],
            "env": dict(self.env),
        }
        if self.keeps_torch:
            value["pytorch"] = IMAGE_TORCH
        if self.platform not in ("", X86_64.platform):
            value["platform"] = self.platform
        if self.nccl != AUTO:
            value["nccl"] = self.nccl
        if self.nccl_version:
            value["nccl.version"] = self.nccl_version
        if not self.security:
            value["security"] = False
        if self.run:
            value["run"] = self.run
        bounds: dict[str, object] = {"constraints": self.constraints} if self.constraints else {}
        if self.hashes:
            bounds["hashes"] = [(hashed.requirement, *hashed.sha256) for hashed in self.hashes]
        if bounds:
            value["packages"] = [*self.packages, bounds]
        if self.indexes:
            value["indexes"] = [asdict(index) for index in self.indexes]
        if self.apt_sources:
            value["apt_sources"] = [source.canonical() for source in self.apt_sources]
        if self.conda.packages:
            value["conda"] = self.conda.canonical()
        if self.kernels:
            value["kernels"] = sorted(self.kernels)
        if self.warm != NO_WARM:
            value["warm"] = {"run": self.warm.commands, "files": self.warm.files}
            value["warm"] |= {"caches": self.warm.caches} if self.warm.caches else {}
        return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def cuda_minor(self) -> str:
        """Return the minor version of CUDA: 12.4 of 12.4.1; "" without CUDA."""
        return ".".join(self.cuda.split(".")[:2])

    def place(self, path: str) -> str:
        """Return the place of the value at `$.key[0]`; for an absent value, the place of its parent."""
        known = dict(self.places)
        while path not in known and path != "$":
            path = path[: max(path.rfind("."), path.rfind("["))]
        return known.get(path, str(self.path))


def schema_text() -> str:
    """Return the text of the schema's file, the same on each machine."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


def make_schema() -> _Schema:
    # Not in the loader: pydantic reads these texts from the source, in 0.04 s.
    for kind in (RecipeFile, Extension, RepositoryFile, Warm):
        with_config(ConfigDict(use_attribute_docstrings=True))(kind)
    raw = TypeAdapter(RecipeFile).json_schema()
    made: Any = _plain(raw, raw["$defs"])
    required = made.pop("required")
    del made["description"]
    packages = made["properties"]["packages"]
    alone = [
        kind for kind in packages["items"]["anyOf"] if kind["type"] == "object"
    ]  # of which the loader makes a list
    made["properties"]["packages"] = {"description": packages.pop("description"), "anyOf": [packages, *alone]}
    remote = ("git", "commit", "sdist", "url", "sha256")
    forms = made["properties"]["extensions"]["items"]["oneOf"] = [
        {"required": ["sources"], "not": _any_of("path", "capture", "patch", "deepspeed", *remote)},
        {"required": ["path"], "not": _any_of("sources", "deepspeed", *remote, *OPTIONS)},
        {
            "required": ["capture"],
            "not": _any_of("sources", "path", "patch", "options", "deepspeed", *remote, *OPTIONS),
        },
        {
            "required": ["deepspeed"],
            "not": _any_of("sources", "path", "capture", "patch", "options", *remote, *OPTIONS),
            "properties": {"deepspeed": {"minItems": 1}},
        },
    ]
    for keys in (["git", "commit"], ["sdist"], ["url", "sha256"]):
        others = (key for key in remote if key not in keys)
        forms.append({"required": keys, "not": _any_of("sources", "deepspeed", *others, *OPTIONS)})
    some_gpus = {"required": ["gpus"], "properties": {"gpus": {"minItems": 1}}}
    pairs = [
        {"if": {"required": ["cuda"]}, "then": some_gpus},
        {"if": some_gpus, "then": {"required": ["cuda"]}},
    ]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A recipe of envbuilder",
        **made,
        "if": _any_of("extends", "matrix"),
        "else": {"required": required, "allOf": pairs},
    }


def _plain(schema: Any, definitions: Any) -> Any:
    """Return pydantic's schema as draft 7: definitions inlined, without defaults and titles."""
    if isinstance(schema, list):
        return [_plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        named = {key: value for key, value in definitions[name].items() if key != "description"}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain(named | rest, definitions)
    if "properties" in schema:
        properties = {key: _plain(value, definitions) for key, value in schema["properties"].items()}
        schema = {"additionalProperties": False} | schema | {"properties": properties}
    dropped = ("title", "default", "$defs")
    return {
        "anyOf" if key == "oneOf" else key: value if key == "properties" else _plain(value, definitions)
        for key, value in schema.items()
        if key not in dropped
    }


def _any_of(*keys: str) -> _Schema:
    return {"anyOf": [{"required": [key]} for key in keys]}
