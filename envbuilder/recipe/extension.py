"""The extensions of a recipe: three forms in which projects have them, and what may be wrong with each.

`sources` is what torch's `load()` takes; a folder, a git commit or an sdist is a project with a `setup.py` or
`pyproject.toml`; and `capture` runs a project's own import lines to learn which `load()` calls it would make.
"""

import functools
import keyword
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.core.decode import LINE_OR_EMPTY, Fields, Kind, Mistakes, Shape, read_text, shown
from envbuilder.recipe.fields import BELOW, VARIABLE, RecipeCode, read_path

LONGEST_NAME: Final = 100  # of an extension; its files are called so
SOURCE_SUFFIXES: Final = (".cpp", ".cc", ".cxx", ".c", ".cu")
BUILDS: Final = ("pyproject.toml", "setup.py")  # either makes a folder a project that can be built
ORIGINS: Final = ("path", "git", "sdist")
OPTIONS: Final = ("include", "cflags", "cuda_cflags")
OPTIONAL: Final = ("sources", *OPTIONS, *ORIGINS, "commit", "capture", "env")
_GIT: Final = Shape(
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
SHAPES: Final = {"git": _GIT, "commit": _COMMIT, "sdist": _SDIST}


class Form(StrEnum):
    LOAD = "load"  # sources for torch's `load()`
    PROJECT = "project"  # a setup.py or pyproject.toml, built into a wheel
    CAPTURE = "capture"  # a project's own calls of `load()` and `load_inline()`


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One entry of `extensions`; paths are POSIX, relative to the recipe's folder, and empty stands for what was not asked."""

    name: str
    sources: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    path: str = ""  # the project's folder; with `git` or `sdist`, below what they bring
    git: str = ""  # URL
    commit: str = ""
    sdist: str = ""  # name==version
    capture: tuple[str, ...] = ()  # lines of Python
    env: tuple[tuple[str, str], ...] = ()  # of its build alone, sorted

    @property
    def form(self) -> Form:
        if self.capture:
            return Form.CAPTURE
        return Form.LOAD if self.sources else Form.PROJECT

    def canonical(self) -> dict[str, object]:
        """What decides a build; keys that came later are there only where they say something, so that old locks stay fresh."""
        value: dict[str, object] = {
            "name": self.name,
            "sources": self.sources,
            "include": self.include,
            "cflags": self.cflags,
            "cuda_cflags": self.cuda_cflags,
        }
        later = {key: getattr(self, key) for key in ("path", "git", "commit", "sdist", "capture")}
        later["env"] = dict(self.env)
        return value | {key: given for key, given in later.items() if given}


def read_extensions(fields: Fields, folder: Path, mistakes: Mistakes) -> tuple[Extension, ...]:
    """The extensions of a recipe in `folder`; what is wrong is collected."""
    extensions: list[Extension] = []
    for item in fields.items("extensions"):
        inner = Fields(item, mistakes, required=("name",), optional=OPTIONAL)
        extension = _read(inner, folder, mistakes)
        _check_form(inner, mistakes)
        _check_project(inner, extension.path, folder, mistakes)
        _check_name(inner, extension.name, [other.name for other in extensions], mistakes)
        extensions.append(extension)
    return tuple(extensions)


def _read(inner: Fields, folder: Path, mistakes: Mistakes) -> Extension:
    read = functools.partial(_read_paths, inner, folder=folder, mistakes=mistakes)
    remote = "git" in inner or "sdist" in inner
    path = inner.node.get("path")
    if path is None:
        below = ""
    elif remote:
        below = read_text(path, mistakes, BELOW)
    else:
        below = read_path(path, folder, mistakes, is_folder=True)
    return Extension(
        name=inner.text("name"),
        sources=read("sources", suffixes=SOURCE_SUFFIXES),
        include=read("include"),
        cflags=inner.texts("cflags"),
        cuda_cflags=inner.texts("cuda_cflags"),
        path=below,
        git=inner.text("git", SHAPES["git"]),
        commit=inner.text("commit", SHAPES["commit"]),
        sdist=inner.text("sdist", SHAPES["sdist"]),
        capture=inner.texts("capture"),
        env=tuple(sorted(_read_env(inner, mistakes))),
    )


def _read_env(inner: Fields, mistakes: Mistakes) -> list[tuple[str, str]]:
    pairs = []
    for entry in inner.entries("env"):
        if not re.fullmatch(VARIABLE.pattern, entry.key):
            mistakes.add(
                RecipeCode.VARIABLE,
                entry.where,
                f"{entry.node.path}: {shown(entry.key)} cannot be the name of an environment variable",
            )
        pairs.append((entry.key, read_text(entry.node, mistakes, LINE_OR_EMPTY)))
    return pairs


def _check_form(inner: Fields, mistakes: Mistakes) -> None:
    """Exactly one form, with what belongs to it."""
    given = [key for key in ("sources", *ORIGINS) if key in inner and not (key == "path" and _remote(inner))]
    node = inner.node
    if len(given) != 1:
        found = " and ".join(f"`{key}`" for key in given) or "none of them"
        mistakes.at(
            node, RecipeCode.EXTENSION, f"expected one of `sources`, `path`, `git` or `sdist`, found {found}"
        )
    if "sources" in inner and "capture" in inner:
        mistakes.at(
            node, RecipeCode.EXTENSION, "`capture` finds the sources itself; name the project's `path`"
        )
    if ("commit" in inner) != ("git" in inner):
        mistakes.at(node, RecipeCode.EXTENSION, "`git` and `commit` belong together")
    if "sources" not in inner:
        for key in (key for key in OPTIONS if key in inner):
            mistakes.at(
                node,
                RecipeCode.EXTENSION,
                f"`{key}` belongs to `sources`: a project has its own flags",
                hint="`env` of the extension sets variables that its build reads",
            )


def _check_project(inner: Fields, path: str, folder: Path, mistakes: Mistakes) -> None:
    """A folder that is built as a project must be one; what brings its files later is not known yet."""
    node = inner.node.get("path")
    if node is None or not path or _remote(inner) or "capture" in inner or "sources" in inner:
        return
    if not any((folder / path / name).is_file() for name in BUILDS):
        mistakes.at(
            node,
            RecipeCode.EXTENSION,
            f"the folder `{path}` has neither {' nor '.join(BUILDS)}, so nothing says how it is built",
            hint="`sources` instead of `path` names C++ and CUDA files; `capture` beside it names imports that call torch's `load()`",
        )


def _remote(inner: Fields) -> bool:
    return "git" in inner or "sdist" in inner


def _check_name(inner: Fields, name: str, before: list[str], mistakes: Mistakes) -> None:
    node = inner.node.get("name")
    if node is None or not name:
        return
    if len(name) > LONGEST_NAME or not name.isidentifier() or keyword.iskeyword(name):
        mistakes.at(node, RecipeCode.EXTENSION, f"{shown(name)} cannot be imported: not a Python name")
    elif name in before:
        mistakes.at(node, RecipeCode.EXTENSION, f"a second extension named `{name}`")


def _read_paths(
    fields: Fields, key: str, *, folder: Path, mistakes: Mistakes, suffixes: tuple[str, ...] = ()
) -> tuple[str, ...]:
    node = fields.node.get(key)
    items = fields.items(key)
    if suffixes and node is not None and node.kind is Kind.LIST and not items:
        mistakes.at(node, RecipeCode.EXTENSION, "expected at least one source file")
    paths: list[str] = []
    for item in items:
        path = read_path(item, folder, mistakes, suffixes=suffixes, is_folder=not suffixes)
        # torch names objects after the file alone, `x.o` and `x.cuda.o`: a second `x` would replace the first.
        if suffixes and path and _object(path) in map(_object, paths):
            mistakes.at(
                item,
                RecipeCode.EXTENSION,
                f"a second source that compiles to `{_object(path)}`",
                hint="rename one",
            )
        paths.append(path)
    return tuple(paths)


def _object(source: str) -> str:
    path = PurePosixPath(source)
    return f"{path.stem}.cuda.o" if path.suffix == ".cu" else f"{path.stem}.o"
