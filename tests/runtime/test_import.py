"""The import of compiled extensions in the SIF, without one: real modules, in this machine's Python without torch."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from envbuilder import runtime as image

pytestmark = pytest.mark.programs
MODULE = """
#include <Python.h>
{before}
static struct PyModuleDef made = {{PyModuleDef_HEAD_INIT, "made", NULL, -1}};
PyMODINIT_FUNC PyInit_{name}(void) {{ {init} return PyModule_Create(&made); }}
"""
MADE = {
    "good": ("", ""),
    "lacking": ("void somewhere(void);", "somewhere();"),
    "driver": (
        "",
        'PyErr_SetString(PyExc_ImportError, "libcuda.so.1: cannot open shared object file"); return NULL;',
    ),
    "crashing": ("#include <signal.h>", "raise(SIGSEGV);"),
}


def test_each_import_is_tried_in_a_process_of_its_own(tmp_path: Path):
    for name, (before, init) in MADE.items():
        source = MODULE.format(name=name, before=before, init=init)
        headers = f"-I{sysconfig.get_path('include')}"
        words = ["gcc", "-shared", "-fPIC", headers, "-x", "c", "-o", tmp_path / f"{name}.so", "-"]
        subprocess.run(words, input=source, text=True, check=True)
    installed, project = tmp_path / "installed", tmp_path / "project"
    for folder, text in (
        (installed, "print('said')\nimport no_such_package\n"),
        (project, "from package import core\n"),
    ):
        (folder / "package").mkdir(parents=True)
        (folder / "package/__init__.py").write_text(text)
    items = [{"name": name, "file": f"{tmp_path}/{name}.so", "is_python_module": True} for name in MADE]
    items += [{"name": name, "module": name} for name in ("json", "package.core")]
    program = image.path("import_extensions.py").read_text()
    words = [sys.executable, "-c", program, json.dumps(items)]
    env = os.environ | {"PYTHONPATH": str(installed)}
    said = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=True).stdout
    failed = {
        item["name"]: item["error"].partition(str(tmp_path))[2] or item["error"]
        for item in json.loads(said.removeprefix("envbuilder imports: "))
    }
    assert failed == {
        "lacking": "/lacking.so: undefined symbol: somewhere",
        "crashing": "the process was ended by signal 11",
        "package.core": "ModuleNotFoundError: No module named 'no_such_package'",
    }
