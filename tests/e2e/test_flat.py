"""A project in its usual shape, from lock to run: setup.py, package and `train.py` in one folder, which is the working folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    Built,
    attempt,
    build,
    open_folder,
    recipe_like,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.torch]

FILES = {
    "setup.py": """
from setuptools import Extension, find_packages, setup
setup(name="flat", version="1", packages=find_packages(), ext_modules=[Extension("pkg._C", ["csrc/op.c"], include_dirs=["common"])])
""",
    "csrc/op.c": """
#include <Python.h>
#include "answer.h"
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", 0, 0, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
""",
    "common/answer.h": "#define ANSWER 42\n",
    "pkg/__init__.py": "from pkg import _C\nfrom .more import double\n",
    "pkg/more.py": "from . import _C as compiled\n\n\ndef double():\n    return 2 * compiled.answer()\n",
    "train.py": """
import json, subprocess, sys
import pkg
print(json.dumps([pkg.__file__, pkg._C.__file__, pkg.double()]))
if len(sys.argv) > 1:
    print(subprocess.check_output([sys.executable, "-c", "import pkg; print(pkg.double())"], text=True).strip())
""",
}


@dataclass(frozen=True)
class Flat:
    folder: Path
    recipe: Path
    built: Built

    def inside(self, *words: str, cwd: Path | None = None, **env: str) -> str:
        binds = ("--bind", f"{self.folder}:/work", "--pwd", "/work") if cwd is None else ("--pwd", cwd)
        settings = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        ended = attempt("apptainer", "exec", "--no-home", *binds, *settings, self.built.sif, *words)
        return ended.stdout if ended.returncode == 0 else ended.stderr

    def check_lock(self) -> str:
        ended = attempt(ENVBUILDER, "lock", "--check", self.recipe)
        assert ended.returncode in (0, 3), ended.stderr
        return ended.stderr if ended.returncode else ""


@pytest.fixture(scope="module")
def flat(cpu: Built) -> Iterator[Flat]:
    with open_folder() as folder:
        write(folder, FILES)
        recipe = recipe_like("cpu", folder / "flat.yaml", "{name: flat, path: .}")
        recipe.write_text(
            recipe.read_text()
            + "tests:\n  - python -c \"import pkg; assert pkg.__file__.startswith('/opt/env')\"\n"
        )
        run(ENVBUILDER, "lock", recipe)
        yield Flat(folder, recipe, build(str(recipe), folder / "out", env=NO_ENGINE))


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_folders_python_runs_with_the_environments_compiled_module(flat: Flat):
    site = "/opt/env/lib/python3.11/site-packages/pkg"
    for words in (("python", "train.py", "again"), ("python", "-m", "train", "again")):
        shown, again = flat.inside(*words).splitlines()
        python, compiled, answer = json.loads(shown)
        assert (python, answer, again) == ("/work/pkg/__init__.py", 84, "84")
        assert compiled.startswith(f"{site}/_C.")
    ranks = flat.inside("torchrun", "--standalone", "--nproc-per-node=2", "train.py").splitlines()
    assert [json.loads(line)[::2] for line in ranks] == [["/work/pkg/__init__.py", 84]] * 2
    assert json.loads(flat.inside("python", "-P", "train.py"))[0] == f"{site}/__init__.py"


def test_start(flat: Flat):
    print(flat.check_lock())
