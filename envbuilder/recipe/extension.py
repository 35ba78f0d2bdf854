"""Extensions of a recipe: the three forms in which projects have them, and the rules of each.

`sources` is what torch's `load()` takes; a folder, a git commit or an sdist is a project with a `setup.py` or
`pyproject.toml`; and `capture` runs a project's own import lines to learn which `load()` calls it would make.
"""

import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema

from envbuilder.core.models import LINE, Flag, Line, Mistake, Shape
from envbuilder.core.places import shown
from envbuilder.recipe.fields import BELOW, OwnFile, OwnFolder, OwnPath, RecipeCode, Variables, check_path

HERE: Final = "."  # the path of a project whose folder is the recipe's
# Where a build has the recipe's folder, or what `git`, `sdist` or `url` brings.
BUILD_SOURCE: Final = "/space/src"
LONGEST_NAME: Final = 100  # letters of an extension's name; its files have that name too
SOURCE_SUFFIXES: Final = (".cpp", ".cc", ".cxx", ".c", ".cu")
BUILDS: Final = ("pyproject.toml", "setup.py")  # either makes a folder a project that can be built
ORIGINS: Final = ("path", "git", "sdist", "url")
_FIRST_KEYS: Final = ("name", "sources", "include", "cflags", "cuda_cflags")
OPTIONS: Final = ("include", "cflags", "cuda_cflags")
_BESIDE_OPS: Final = ("name", "deepspeed", "env", "import")
GIT_URL: Final = Shape(
    pattern=r"(https?|ssh|git|file)://[^\s\x00-\x1f\x7f]+",
    expected="the URL of a git repository",
    hint="such as `https://host/owner/project`",
)
_COMMIT: Final = Shape(
    pattern=r"[0-9a-f]{40}",
    expected="the 40 hexadecimal digits of a commit",
    hint="a branch or tag can move; `git ls-remote URL` lists what they stand for now",
)
_SDIST: Final = Shape(
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9A-Za-z.!+_-]+",
    expected="`name==version` of a source distribution",
)
_URL: Final = Shape(
    pattern=r"(https?://[^\s?#@]+|file:///[^\s?#]*)/[^\s?#/]+\.(tar\.gz|tgz|zip)",
    expected="the address of a .tar.gz, .tgz or .zip, without user, password and query",
)
_SHA256: Final = Shape(
    pattern=r"[0-9a-f]{64}",
    expected="the 64 hexadecimal digits of a sha256",
    hint="`sha256sum FILE` prints that of a file which you have looked at",
)
_OPTION: Final = Shape(pattern=r"--?[A-Za-z][^\x00-\x1f\x7f]*", expected="an option such as `--cuda_ext`")
_OP: Final = Shape(
    pattern=r"[a-z][a-z0-9_]*",
    expected="the name of an op",
    hint="`ds_report` lists them, such as fused_adam",
)
# What a program calls when it first uses an op of DeepSpeed (deepspeed/ops/op_builder/all_ops.py); it compiles by torch's `load()`.
_DEEPSPEED: Final = "from deepspeed.ops.op_builder.all_ops import ALL_OPS; ALL_OPS[{!r}].load()"
_PYTHON_NAME: Final = Shape(pattern=r"(?![0-9])(?:[A-Za-z0-9_]|[^\x00-\x7f])+", expected="a Python name")
_NAME_SCHEMA: Final = WithJsonSchema(_PYTHON_NAME.json_schema() | {"maxLength": LONGEST_NAME})


class Form(StrEnum):
    LOAD = "load"  # sources for torch's `load()`
    PROJECT = "project"  # a setup.py or pyproject.toml, built into a wheel
    CAPTURE = "capture"  # a project's own calls of `load()` and `load_inline()`


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One entry of `extensions`. Paths are POSIX and relative to the recipe's folder; an absent key is empty.

    The text below each key is its description in the schema.
    """

    name: Annotated[Line, _NAME_SCHEMA]
    """What Python imports."""
    sources: Annotated[
        tuple[Annotated[str, LINE, OwnPath(suffixes=SOURCE_SUFFIXES)], ...],
        Field(json_schema_extra={"minItems": 1}),
    ] = ()
    """C++ and CUDA files, as torch's load() takes them; paths from the recipe's own folder, and below it."""
    include: tuple[OwnFolder, ...] = ()
    """Folders of headers; paths as those of `sources`."""
    cflags: tuple[Line, ...] = ()
    """Options for the C++ compiler."""
    cuda_cflags: tuple[Line, ...] = ()
    """Options for nvcc."""
    path: Annotated[
        Line,
        WithJsonSchema({"anyOf": [{"const": HERE}, {"allOf": [LINE.json_schema(), BELOW.json_schema()]}]}),
    ] = ""
    """A folder with a setup.py or pyproject.toml: `.` for the recipe's own folder, or one below it; with `git`, `sdist` or `url`, below what they bring."""
    git: Annotated[str, GIT_URL] = ""
    """The URL of a repository with a setup.py or pyproject.toml."""
    commit: Annotated[str, _COMMIT] = ""
    """The commit of that repository."""
    sdist: Annotated[str, _SDIST] = ""
    """A source distribution, as name==version."""
    url: Annotated[str, _URL] = ""
    """The address of an archive with one folder at its top, such as a release of a project."""
    sha256: Annotated[str, _SHA256] = ""
    """The sha256 of that archive."""
    capture: tuple[Line, ...] = ()
    """Lines of Python: every load() that they reach is compiled. Without a project, they import installed packages."""
    deepspeed: tuple[Annotated[str, _OP], ...] = ()
    """Ops of the DeepSpeed that `packages` brings, such as fused_adam, which a job would compile when it first uses them."""
    env: Variables = ()
    """Environment variables of its build alone."""
    options: tuple[Annotated[str, _OPTION], ...] = ()
    """Options for its setup.py, which some projects look for: --cuda_ext."""
    patch: OwnFile = ""
    """A patch for the project's files, as `git diff` writes it in the project's own folder; a path from the recipe's own folder."""
    is_imported: Annotated[Flag, Field(alias="import")] = True
    """Whether the build imports what was compiled, as a test in the SIF (default: true)."""

    @property
    def form(self) -> Form:
        if self.capture:
            return Form.CAPTURE
        return Form.LOAD if self.sources else Form.PROJECT

    @property
    def as_capture(self) -> "Extension":
        """Return it with the lines that reach the ops of its `deepspeed`."""
        return replace(
            self, capture=tuple(map(_DEEPSPEED.format, self.deepspeed)) or self.capture, deepspeed=()
        )

    @property
    def is_remote(self) -> bool:
        """Return whether its sources are not in the recipe's folder."""
        return bool(self.git or self.sdist or self.url)

    def at(self, top: Path) -> "Extension":
        """Return it with variables that name a folder of this machine below `top` as its build has the folder."""
        places = ((name, Path(text)) for name, text in self.env)
        moved = {
            name: f"{BUILD_SOURCE}/{path.relative_to(top).as_posix()}"
            for name, path in places
            if path.is_relative_to(top)
        }
        return replace(self, env=tuple((name, moved.get(name, text)) for name, text in self.env))

    def canonical(self) -> dict[str, object]:
        """Return what decides a build. Later keys appear only with a value, so old locks stay fresh."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given |= {"env": dict(self.env), "is_imported": None}  # what a test does decides no build
        return {key: value for key, value in given.items() if value or key in _FIRST_KEYS}


def check_extensions(items: object, _folder: Path) -> Iterator[Mistake]:
    """Report extensions whose name is already taken."""
    given = items if isinstance(items, list) else []
    names = [item.get("name") if isinstance(item, dict) else None for item in given]
    for at, name in enumerate(names):
        if name in names[:at] and isinstance(name, str) and not _name_mistake(name):
            message = f"a second extension named `{name}`"
            yield Mistake(message=message, code=RecipeCode.EXTENSION, hint="rename one", at=(at, "name"))


def check_extension(given: object, folder: Path) -> Iterator[Mistake]:
    """Report what is wrong with an entry of `extensions`: its form, its name, its path and its sources."""
    if not isinstance(given, dict):
        return
    for message, hint in _form_mistakes(given):
        yield Mistake(message=message, code=RecipeCode.EXTENSION, hint=hint)
    name, path, sources = given.get("name"), given.get("path"), given.get("sources")
    if isinstance(name, str) and (message := _name_mistake(name, is_module=sources is not None)):
        plain = re.sub(r"\W|^\d", "_", name)
        hint = f"write the name that Python imports, such as `{plain}{'_' * (plain == name)}`"
        yield Mistake(message=message, code=RecipeCode.EXTENSION, hint=hint, at=("name",))
    if isinstance(path, str) and re.fullmatch(LINE.pattern, path):
        yield from (replace(mistake, at=("path",)) for mistake in _path_mistakes(given, path, folder))
    if isinstance(sources, list):
        yield from (replace(mistake, at=("sources", *mistake.at)) for mistake in _source_mistakes(sources))


def _form_mistakes(given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    forms = [
        key for key in ("sources", *ORIGINS) if key in given and (key != "path" or not _is_remote(given))
    ]
    if "deepspeed" in given:
        others = [f"`{key}`" for key in given if key not in _BESIDE_OPS]
        if others or not given["deepspeed"]:
            yield (
                f"`deepspeed` takes one op or more, and no {' and '.join(others) or 'empty list'} beside it",
                "",
            )
        return
    if len(forms) != 1 and (forms or "capture" not in given):
        listing = " and ".join(f"`{key}`" for key in forms) or "none of them"
        yield f"expected one of `sources`, `path`, `git`, `sdist` or `url`, found {listing}", ""
    if not forms and "patch" in given:
        yield "`patch` is for a project; this `capture` imports installed packages", ""
    if "sources" in given and "capture" in given:
        yield "`capture` finds the sources itself; name the project's `path`", ""
    if ("commit" in given) != ("git" in given):
        yield "`git` and `commit` belong together", "`git ls-remote URL` lists the commits"
    if ("sha256" in given) != ("url" in given):
        yield "`url` and `sha256` belong together", "`sha256sum FILE` prints that of the archive"
    if "options" in given and not {"sources", "capture"}.isdisjoint(given):
        yield "`options` are for the setup.py of a project, and nothing runs one here", ""
    if "sources" in given and "patch" in given:
        hint = "edit them, or name the project by `path`"
        yield "`patch` is for a project; `sources` are the recipe's own files", hint
    for key in OPTIONS:
        if key in given and "sources" not in given:
            hint = "`env` of the extension sets variables that its build reads"
            yield f"`{key}` belongs to `sources`: a project has its own flags", hint


def _path_mistakes(given: Mapping[str, object], path: str, folder: Path) -> Iterator[Mistake]:
    """Report a local path that is no project, or a remote one that is not plain."""
    if _is_remote(given):
        if not re.fullmatch(BELOW.pattern, path):
            yield Mistake(message=f"expected {BELOW.expected}, found {shown(path)}")
        return
    mistakes = [] if path == HERE else list(check_path(path, folder, is_folder=True))
    yield from mistakes
    if mistakes or "capture" in given or "sources" in given:
        return
    if not any((folder / path / name).is_file() for name in BUILDS):
        yield Mistake(
            message=f"the folder `{path}` has neither {' nor '.join(BUILDS)}, so nothing says how it is built",
            code=RecipeCode.EXTENSION,
            hint="`sources` instead of `path` names C++ and CUDA files; `capture` beside it names imports that call torch's `load()`",
        )


def _source_mistakes(sources: list[object]) -> Iterator[Mistake]:
    if not sources:
        yield Mistake(message="expected at least one source file", code=RecipeCode.EXTENSION)
    # torch names objects after the file alone (`x.o`, `x.cuda.o`): a second `x` would replace the first.
    objects = [_object(source) if isinstance(source, str) else "" for source in sources]
    for at, name in enumerate(objects):
        if name and name in objects[:at]:
            message = f"a second source that compiles to `{name}`"
            yield Mistake(message=message, code=RecipeCode.EXTENSION, hint="rename one", at=(at,))


def _name_mistake(name: str, *, is_module: bool = False) -> str:
    if len(name) > LONGEST_NAME or not name.isidentifier() or keyword.iskeyword(name):
        return f"{shown(name)} cannot be imported: not a Python name"
    if name == "torch" or (is_module and name in sys.stdlib_module_names):
        return f"{shown(name)} is a module already, which this extension would hide"
    return ""


def _is_remote(given: Mapping[str, object]) -> bool:
    return not {"git", "sdist", "url"}.isdisjoint(given)


def _object(source: str) -> str:
    path = PurePosixPath(source)
    return f"{path.stem}.cuda.o" if path.suffix == ".cu" else f"{path.stem}.o"
