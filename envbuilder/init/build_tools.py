"""What builds the compiled code of a project: torch's classes, or another tool that its setup.py or pyproject.toml names."""

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from envbuilder.compat.python_code import PythonCode, plain_texts, read_code
from envbuilder.core.errors import UsageError
from envbuilder.init.requests import read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTool:
    """A build tool, with what it fetches by itself where it may; here the environment must have it."""

    label: str
    packages: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    hint: str = ""


_CMAKE: Final = ("cmake", "ninja")
TORCH: Final = BuildTool(label="torch's classes")
_BACKENDS: Final = {
    "scikit_build_core.build": BuildTool(label="scikit-build-core", packages=_CMAKE),
    "scikit_build_core.setuptools.build_meta": BuildTool(label="scikit-build-core", packages=_CMAKE),
    "py_build_cmake.build": BuildTool(label="py-build-cmake", packages=_CMAKE),
    "mesonpy": BuildTool(label="meson-python", packages=("meson", "ninja"), apt=("patchelf",)),
    "maturin": BuildTool(
        label="maturin", apt=("cargo", "rustc"),
        hint="it fetches crates, and a build has no network: `cargo vendor` puts them into the project",
    ),
}  # fmt: skip
# The tables and keys by which other backends compile code.
_COMPILED: Final = (("setuptools", "ext-modules"), ("poetry", "build"))
# The backend of a file that names none.
_USUAL: Final = {"scikit-build-core": "scikit_build_core.build", "py-build-cmake": "py_build_cmake.build"}


def tool_of_setup(code: PythonCode) -> BuildTool | None:
    """Return what a setup.py builds compiled code with, None if it builds none."""
    if code.builds:
        return TORCH
    setup, imported = code.setup(), {module.partition(".")[0] for module in code.imported}
    modules = code.keyword(setup, "ext_modules")
    if setup is None or (isinstance(modules, ast.List) and not modules.elts):
        return None
    if "skbuild" in imported:
        return BuildTool(label="scikit-build", packages=_CMAKE)
    if modules is None:
        return None
    if any(text.split()[:1] == ["cmake"] for _, text in plain_texts(code)):
        return BuildTool(label="CMake, which setup.py calls", packages=_CMAKE)
    helpers = {"pybind11": "pybind11's helpers", "Cython": "Cython"}
    return BuildTool(label=next((label for name, label in helpers.items() if name in imported), "setuptools"))


def tool_of_pyproject(path: Path, *, is_top: bool) -> BuildTool | None:
    """Return the tool that a pyproject.toml names to build compiled code, None if it names none or cannot be read.

    Below a project's top, it may be somebody else's: only one that needs torch counts.
    """
    try:
        tables = load_toml(path)
    except UsageError:
        return None
    build, tool = tables.get("build-system", {}), tables.get("tool", {})
    needed = list(map(requirement_name, required(build)))
    if not is_top and "torch" not in needed:
        return None
    usual = next((_USUAL[name] for name in needed if name in _USUAL), "")
    if known := _BACKENDS.get(str(build.get("build-backend") or usual)):
        return known
    if any(isinstance(table := tool.get(name), dict) and key in table for name, key in _COMPILED):
        return BuildTool(label="its build backend")
    has_cython = not {"cython", "hatch-cython"}.isdisjoint(needed)
    has_code = has_cython and any(
        any(path.parent.glob(f"{depth}*.pyx")) for depth in ("", "*/", "*/*/", "*/*/*/")
    )
    return BuildTool(label="Cython") if has_code else None


def build_tool(folder: Path) -> BuildTool | None:
    """Return what builds the compiled code of a project that somebody named, None if it has none."""
    code = read_code(folder / "setup.py")
    return (tool_of_setup(code) if code else None) or tool_of_pyproject(
        folder / "pyproject.toml", is_top=True
    )


def requirement_name(text: str) -> str:
    """Return the normal name of a requirement."""
    return canonicalize_name(re.split(r"[\s<>=!~\[;@]", text, maxsplit=1)[0])


def required(build: dict[str, object]) -> list[str]:
    """Return what the table `build-system` of a pyproject.toml requires."""
    needed = build.get("requires", [])
    return list(map(str, needed)) if isinstance(needed, list) else []


def load_toml(path: Path) -> dict[str, dict[str, Any]]:
    """Return a TOML file's tables; raises UsageError for a file that is none."""
    return {key: value for key, value in parse_toml(read_text(path), path).items() if isinstance(value, dict)}


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return all that a TOML file has at its top; raises UsageError for a file that is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"`{path}` is not TOML: {error}") from error
