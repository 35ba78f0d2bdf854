"""Projects that other tools than torch's classes build: read by `init`, built and imported in the SIF, the same bytes twice."""

from pathlib import Path

import pytest
import yaml

from tests.support.workbench import ENVBUILDER, ROOT, build, cache_with_artifacts, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]
MODULE = """\
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_NAME() {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "ANSWER", 42);
    return made;
}
"""
SETUP = """\
import pathlib, subprocess, sys
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class CMakeBuild(build_ext):
    def build_extension(self, ext):
        out = pathlib.Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        options = [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={out}", f"-DPython_EXECUTABLE={sys.executable}"]
        subprocess.check_call(["cmake", "-S", ".", "-B", self.build_temp, *options])
        subprocess.check_call(["cmake", "--build", self.build_temp])

setup(name="by_cmake", version="1.0", ext_modules=[Extension("by_cmake", sources=[])], cmdclass={"build_ext": CMakeBuild})
"""
PYPROJECT = '[build-system]\nrequires = [{needs}]\nbuild-backend = "{backend}"\n[project]\nname = "{name}"\nversion = "1.0"\n'
CMAKE = "cmake_minimum_required(VERSION 3.18)\nproject(one LANGUAGES CXX)\nfind_package(Python COMPONENTS Interpreter Development.Module REQUIRED)\n"
PROJECTS = {
    "by_cmake": {
        "setup.py": SETUP,
        "CMakeLists.txt": f"{CMAKE}Python_add_library(by_cmake MODULE src/module.cpp WITH_SOABI)\n",
        "src/module.cpp": MODULE,
    },
    "by_pybind11": {
        "pyproject.toml": PYPROJECT.format(name="by_pybind11", backend="scikit_build_core.build", needs='"scikit-build-core", "pybind11"'),
        "CMakeLists.txt": f"{CMAKE}find_package(pybind11 CONFIG REQUIRED)\npybind11_add_module(by_pybind11 a.cpp)\ninstall(TARGETS by_pybind11 DESTINATION .)\n",
        "a.cpp": '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(by_pybind11, m) { m.attr("ANSWER") = 42; }\n',
    },
    "by_nanobind": {
        "pyproject.toml": PYPROJECT.format(name="by_nanobind", backend="scikit_build_core.build", needs='"scikit-build-core", "nanobind"'),
        "CMakeLists.txt": f"{CMAKE}find_package(nanobind CONFIG REQUIRED)\nnanobind_add_module(by_nanobind a.cpp)\ninstall(TARGETS by_nanobind DESTINATION .)\n",
        "a.cpp": '#include <nanobind/nanobind.h>\nNB_MODULE(by_nanobind, m) { m.attr("ANSWER") = 42; }\n',
    },
    "by_helper": {
        "setup.py": "from setuptools import setup\nfrom pybind11.setup_helpers import Pybind11Extension\nsetup(name='by_helper', version='1.0', ext_modules=[Pybind11Extension('by_helper', ['a.cpp'])])\n",
        "a.cpp": '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(by_helper, m) { m.attr("ANSWER") = 42; }\n',
    },
    "by_cython": {
        "setup.py": "from setuptools import setup\nfrom Cython.Build import cythonize\nsetup(name='by_cython', version='1.0', ext_modules=cythonize('by_cython.pyx'))\n",
        "by_cython.pyx": "ANSWER = 42\n",
    },
    "by_meson": {
        "pyproject.toml": PYPROJECT.format(name="by_meson", backend="mesonpy", needs='"meson-python"'),
        "meson.build": "project('by_meson', 'cpp', version: '1.0')\nimport('python').find_installation(pure: false).extension_module('by_meson', 'a.cpp', install: true)\n",
        "a.cpp": MODULE,
    },
}  # fmt: skip


@pytest.fixture
def recipe(spacious: Path) -> Path:
    """The recipe of `cpu` with all projects, and with what `init` asks for each."""
    pins = ("--gpu", "none", "--pytorch", "2.13.0", "--python", "3.11")
    whole = {key: [] for key in ("packages", "apt", "extensions")}
    for name, files in PROJECTS.items():
        folder = spacious / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text.replace("NAME", name))
        run(ENVBUILDER, "init", name, "--from", ".", *pins, cwd=folder)
        written = yaml.safe_load((folder / f"{name}.yaml").read_text())
        assert written["extensions"] == [{"name": name, "path": "."}]
        (folder / f"{name}.yaml").unlink()
        (folder / "schema.json").unlink(missing_ok=True)
        whole["extensions"].append({"name": name, "path": name})
        for key in ("packages", "apt"):
            whole[key] += [item for item in written.get(key, []) if item not in whole[key]]
    pinned = yaml.safe_load((ROOT / "recipes/cpu.yaml").read_text())
    whole |= {key: pinned[key] for key in ("base", "python", "gcc", "libxcrypt", "pytorch")}
    imports = "; ".join(f"import {name}; assert {name}.ANSWER == 42" for name in PROJECTS)
    tools = spacious / "tools.yaml"
    tools.write_text(yaml.safe_dump(whole | {"tests": [f'python -c "{imports}"']}))
    run(ENVBUILDER, "lock", tools)
    return tools


def test_each_tool_builds_a_project_that_is_imported_and_the_same_twice(recipe: Path, spacious: Path):
    first = build(str(recipe), spacious / "first", "--no-load")
    apart = {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, recipe))}
    second = build(str(recipe), spacious / "second", "--no-load", env=apart)
    assert first.digests == second.digests
