"""The first line of a failed build is its cause, however long what was printed is."""

import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.builder.extensions.compiler_errors import explain_failure
from envbuilder.core.errors import CommandError
from envbuilder.lock.cause import find_cause

CMAKE = """\
-- Configuring
CMake Error at lib/CMakeLists.txt:12 (find_package):
  By not providing "FindFoo.cmake" in CMAKE_MODULE_PATH this project has
  asked CMake to find a package configuration file provided by "Foo".

  Could not find a package configuration file

-- Configuring incomplete, errors occurred!
Traceback (most recent call last):
  File "setup.py", line 40, in run
    subprocess.check_call(['cmake', '.'])
subprocess.CalledProcessError: Command '['cmake', '.']' returned non-zero exit status 1.
"""
PIP = """\
  error: subprocess-exited-with-error

  x Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [20 lines of output]
      Traceback (most recent call last):
        File "/opt/env/lib/python3.11/site-packages/pip/__main__.py", line 389, in <module>
          main()
        File "<string>", line 22, in <module>
      ModuleNotFoundError: No module named 'torch'
      [end of output]
"""
TORCH = """\
Traceback (most recent call last):
  File "setup.py", line 9, in <module>
    setup(ext_modules=modules)
  File "/opt/env/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 503, in _check_cuda_version
    raise RuntimeError(CUDA_MISMATCH_MESSAGE)
RuntimeError:
The detected CUDA version (12.4) mismatches the version that was used to compile
PyTorch (11.8). Please make sure to use the same CUDA versions.

"""
CHAIN = """\
Traceback (most recent call last):
  File "build_ops.py", line 7, in find
    return os.environ["OPS_HOME"]
KeyError: 'OPS_HOME'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "setup.py", line 3, in <module>
    find()
setuptools.errors.CompileError: ops
"""
PROBE = """\
conftest.c:3:10: fatal error: foo.h: No such file or directory
Traceback (most recent call last):
  File "setup.py", line 3, in <module>
    find()
"""


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        (CMAKE, 'By not providing "FindFoo.cmake" in CMAKE_MODULE_PATH this project has asked CMake', "lib/CMakeLists.txt:12"),
        (PIP, "ModuleNotFoundError: No module named 'torch'", "setup.py:22"),
        (TORCH, "RuntimeError: The detected CUDA version (12.4) mismatches", "setup.py:9"),
        (CHAIN, "KeyError: 'OPS_HOME'", "build_ops.py:7"),
        ('meson.build:3:0: ERROR: Dependency "openblas" not found\n', 'Dependency "openblas" not found', "meson.build:3"),
        ("[1/2] c++ a.o\nFAILED: a.o\na.cpp:4:3: error: expected ';'\nninja: build stopped\n", "expected ';'", "a.cpp:4"),
        (f"ops.cu(7): error: expected a ;\n{CHAIN}", "expected a ;", "ops.cu:7"),
        (f"{PROBE}RuntimeError: FOO_HOME is not set\n", "RuntimeError: FOO_HOME is not set", "setup.py:3"),
        (f"{PROBE}Exception: the build failed\n", "foo.h: No such file", "conftest.c:3"),
        ("Collecting x\nERROR: Could not find a version that satisfies x\n", "Could not find a version that satisfies x", ""),
    ],
    ids=["cmake", "pip", "torch", "chain", "meson", "ninja", "nvcc", "probe", "vague", "plain"],
)  # fmt: skip
def test_the_cause_is_found(text: str, message: str, where: str):
    cause = find_cause(text.splitlines())
    assert cause is not None
    assert cause.message.startswith(message)
    assert cause.where == where


def test_an_output_without_an_error_names_no_cause():
    assert find_cause(["compiling a.cpp", "a note about errors: none"]) is None


@pytest.mark.programs
def test_a_real_traceback_of_hundreds_of_lines_ends_in_its_last_line_first(tmp_path: Path):
    (tmp_path / "setup.py").write_text(
        "import json\n"
        "def first(depth): second(depth)\n"
        "def second(depth):\n"
        "    first(depth - 1) if depth else json.loads('{')\n"
        "first(200)\n"
    )
    ended = subprocess.run(
        [sys.executable, "setup.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lines = ended.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert len(lines) > 400
    failure = explain_failure("ops", lines, CommandError("could not compile"), folder="third/ops")
    assert failure.message.splitlines()[0].startswith("json.decoder.JSONDecodeError: Expecting property name")
    (finding,) = failure.findings
    assert (finding.code, finding.where) == ("EB637", "third/ops/setup.py:4")
    assert "third/ops/setup.py:4" in failure.hint
