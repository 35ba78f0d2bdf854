"""A project in its usual shape, from lock to run: setup.py, package and `train.py` in one folder, which is the working folder."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.diagnose import diagnose
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, attempt, open_folder, recipe_like, run

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
sys.stdout.write(json.dumps([pkg.__file__, pkg._C.__file__, pkg.double()]) + "\\n")
sys.stdout.flush()
if len(sys.argv) > 1:
    print(subprocess.check_output([sys.executable, "-c", "import pkg; print(pkg.double())"], text=True).strip())
""",
}


SITE = "/opt/env/lib/python3.11/site-packages/pkg"
# In the folder that `build` is started in, it would find that folder's package, and files.
TEST = f"import os, pkg; assert pkg.__file__ == '{SITE}/__init__.py' and not os.listdir('.')"


@dataclass(frozen=True)
class Flat:
    folder: Path
    recipe: Path
    sif: Path

    @property
    def inside(self) -> tuple[object, ...]:
        return (
            "apptainer", "exec", "--no-home", "--bind", f"{self.folder}:/work", "--pwd", "/work", self.sif,
        )  # fmt: skip

    def lock_check(self) -> tuple[int, str]:
        ended = attempt(ENVBUILDER, "lock", "--check", self.recipe)
        return ended.returncode, ended.stdout


@pytest.fixture(scope="module")
def flat(cpu: Built) -> Iterator[Flat]:
    assert cpu.sif.is_file(), "its layers are in the cache"
    with open_folder() as folder:
        write(folder, FILES)
        recipe = recipe_like("cpu", folder / "flat.yaml", "{name: flat, path: .}")
        recipe.write_text(f"{recipe.read_text()}tests:\n  - {json.dumps(f'python -c {shlex.quote(TEST)}')}\n")
        run(ENVBUILDER, "lock", recipe)
        run(ENVBUILDER, "build", "flat.yaml", "--output", folder / "out", env=NO_ENGINE, cwd=folder)
        yield Flat(folder, recipe, folder / "out/flat.sif")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_folders_python_runs_with_the_environments_compiled_module(flat: Flat):
    shown, again = run(*flat.inside, "python", "train.py", "again").splitlines()
    python, compiled, answer = json.loads(shown)
    assert (python, answer, again) == ("/work/pkg/__init__.py", 84, "84")
    assert compiled.startswith(f"{SITE}/_C.")
    ranks = run(*flat.inside, "torchrun", "--standalone", "--nproc-per-node=2", "-m", "train").splitlines()
    assert [json.loads(line) for line in ranks] == [[python, compiled, 84]] * 2


def test_where_the_folder_hides_the_module_its_error_is_known(flat: Flat):
    ended = attempt(*flat.inside, "env", "ENVBUILDER_EXTENSIONS=off", "python", "train.py")
    assert ended.returncode == 1
    incidents = diagnose(["-"], io.BytesIO(ended.stderr.encode())).incidents
    assert [incident.failure.code for incident in incidents] == ["EB848"]


def test_what_a_training_writes_leaves_the_lock_fresh_and_a_source_does_not(flat: Flat):
    written = {
        "train.py": "import pkg\n",
        "logs/flat/1.txt": "",
        "runs/x/metrics.json": "{}",
        "recipes/other.yaml": "base: x\n",
    }
    write(flat.folder, written | {"pkg/__pycache__/more.pyc": "", "notes.md": ""})
    assert flat.lock_check() == (0, f"the lock of {flat.recipe} is up to date\n")
    write(flat.folder, {"csrc/op.c": FILES["csrc/op.c"] + "// edited\n", "common/new.h": ""})
    code, printed = flat.lock_check()
    assert code == 4
    assert re.fullmatch(
        r"\+ extension flat: common/new\.h \w+ \(it lies in `common`, which `setup\.py` names at line 3\)\n"
        r"~ extension flat: csrc/op\.c \w+ → \w+ \(it lies in `csrc`, which `setup\.py` names at line 3\)\n", printed,
    )  # fmt: skip
    words = ("exec", flat.recipe, "--artifacts", flat.folder / "out", "--print", "--", "true")
    started = attempt(ENVBUILDER, *words)
    assert "`csrc/op.c` changed since it was locked, and the compiled code is older" in started.stderr
    refused = attempt(ENVBUILDER, "build", flat.recipe, "--output", flat.folder / "out", env=NO_ENGINE)
    assert refused.returncode == code
    assert "`csrc/op.c` changed: it lies in `csrc`, which `setup.py` names at line 3" in refused.stderr
