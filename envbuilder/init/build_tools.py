"""What builds the compiled code of a project: torch's classes, or another tool that its setup.py or pyproject.toml names."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.compat.python_code import PythonCode, plain_texts
from envbuilder.core.errors import UsageError
from envbuilder.init.pip import build_requirements, load_toml, requirement_name


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTool:
    """A build tool, with what it fetches by itself where it may; here the environment must have it."""

    label: str
    packages: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    hint: str = ""

    @property
    def is_torchs(self) -> bool:
        return self.label == _TORCH.label


_CMAKE: Final = ("cmake", "ninja")
_TORCH: Final = BuildTool(label="torch's classes")
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
_NAMED: Final = {
    "scikit-build-core": "scikit_build_core.build",
    "py-build-cmake": "py_build_cmake.build",
}  # without `build-backend`


def tool_of_setup(code: PythonCode) -> BuildTool | None:
    """Return what a setup.py builds compiled code with, None if it builds none."""
    if code.builds:
        return _TORCH
    setup, imported = code.setup(), {module.partition(".")[0] for module in code.imported}
    modules = code.keyword(setup, "ext_modules")
    if (
        setup is None
        or (modules is None and "skbuild" not in imported)
        or (isinstance(modules, ast.List) and not modules.elts)
    ):
        return None
    if "skbuild" in imported:
        return BuildTool(label="scikit-build", packages=_CMAKE)
    if any(text.split()[:1] == ["cmake"] for _, text in plain_texts(code)):
        return BuildTool(label="CMake, which setup.py calls", packages=_CMAKE)
    helpers = {"pybind11": "pybind11's helpers", "Cython": "Cython"}
    return BuildTool(label=next((label for name, label in helpers.items() if name in imported), "setuptools"))


def tool_of_pyproject(path: Path) -> BuildTool | None:
    """Return the tool that a pyproject.toml names to build compiled code, None if it names none or cannot be read."""
    try:
        build, needed = load_toml(path).get("build-system", {}), build_requirements(path)
    except UsageError:  # of somebody else's project below
        return None
    named = next((_NAMED[name] for name in map(requirement_name, needed) if name in _NAMED), "")
    return _BACKENDS.get(str(build.get("build-backend") or named))
