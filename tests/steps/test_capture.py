"""The capture of a project's calls: what it records, and that torch and its users get torch's own answers.

torch is a package of files that asks and answers as torch does; `tests/e2e/test_projects.py` captures with the real one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder import steps

pytestmark = pytest.mark.programs
TORCH = {
    "__init__.py": """
class Schema:
    def __init__(self, name): self.name = name
known = ["aten::add", "prims::add"]
class _C:
    _jit_get_all_schemas = staticmethod(lambda: [Schema(name) for name in known])
    _jit_get_schemas_for_operator = staticmethod(lambda name: [Schema(name)] if name in known else [])
from torch import _ops, library
ops = _ops.Ops()
""",
    "_ops.py": """
import types, torch
class _OpNamespace(types.ModuleType):
    def __init__(self, name): super().__init__("torch.ops." + name); self.name = name
    def __getattr__(self, name):
        if self.name + "::" + name.strip() not in torch.known or name != name.strip(): raise AttributeError(name)
        return "defined"
class Ops:
    def __getattr__(self, name): return _OpNamespace(name)
""",
    "library.py": """
import torch
def define(space, schema):
    name = schema.partition("(")[0]
    torch.known.append(space + "::" + name.strip())
    if hasattr(getattr(torch.ops, space), name): assert getattr(getattr(torch.ops, space), name) == "defined"
class Library:
    def __init__(self, ns, kind): self.ns = ns
    def impl(self, op_name, function, dispatch_key=""):
        name = self.ns + "::" + op_name
        if dispatch_key == "Meta" and name not in torch.known: raise RuntimeError("operator " + name + " does not exist")
        return "implemented"
def register_fake(operator):
    if operator not in torch.known: raise RuntimeError(operator + " does not exist")
    return lambda function: "registered"
""",
    "_dynamo.py": "import torch\nassert not hasattr(torch.ops.fbgemm, 'permute')\n",
    "utils/__init__.py": "",
    "utils/cpp_extension.py": "def load(name, sources, is_python_module=True): pass\ndef load_inline(name, cpp_sources): pass\n",
}
LOAD = (
    "import torch; from torch.utils.cpp_extension import load; load('op', 'op.cpp', is_python_module=False); "
)


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ("import torch._dynamo", 0),
        ("import torch; torch.library.define('mine', '\\n  f(\\n Tensor x) -> Tensor')", 0),
        ("import torch; torch.library.define('mine', 'f(Tensor x) -> Tensor')", 0),
        ("import torch; assert not hasattr(torch.ops.aten, 'newer') and not hasattr(torch.ops.prims, 'newer')", 0),
        ("import torch; assert torch.ops.aten.add == 'defined'", 0),
        (LOAD + "torch.ops.op.forward.default(1)", 1),
        (LOAD + "assert torch.library.register_fake('op::forward')(len) is len", 1),
        (LOAD + "assert torch.library.Library('op', 'IMPL').impl('forward', len, 'Meta') is None", 1),
        (LOAD + "assert torch.library.Library('aten', 'IMPL').impl('add', len, 'Meta') == 'implemented'", 1),
        (LOAD + "assert torch.library.register_fake('aten::add')(len) == 'registered'", 1),
        (LOAD + "raise RuntimeError('CUDA error: no CUDA-capable device is detected')", 1),
    ],
)  # fmt: skip
def test_a_line_gets_torchs_answers_and_unknown_operators_are_those_of_the_project(
    tmp_path: Path, line: str, calls: int
):
    assert len(capture(tmp_path, line)) == calls


def test_an_unknown_operator_of_torch_is_as_unknown_as_without_a_capture(tmp_path: Path):
    with pytest.raises(AssertionError, match="aten::newer does not exist"):
        capture(tmp_path, LOAD + "torch.library.register_fake('aten::newer')")


@pytest.mark.parametrize(
    "line", ["raise RuntimeError('CUDA error: x')", LOAD + "raise RuntimeError('x: CUDA error')"]
)
def test_a_line_that_ends_before_a_call_or_not_for_want_of_a_gpu_is_an_error(tmp_path: Path, line: str):
    with pytest.raises(AssertionError, match=r'envbuilder capture: \{"line"'):
        capture(tmp_path, line)


def capture(folder: Path, line: str) -> list[dict[str, object]]:
    """The calls that a line makes in a folder with `op.cpp`."""
    for name, text in TORCH.items():
        path = folder / "site/torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = folder / "src"
    source.mkdir(exist_ok=True)
    (source / "op.cpp").touch()
    given = {
        "lines": [line],
        "source": str(source),
        "kept": str(folder / "kept"),
        "calls": str(folder / "calls.json"),
        "places": str(folder / "places.json"),
    }
    (folder / "spec.json").write_text(json.dumps(given))
    program = [sys.executable, "-B", steps.FOLDER / "capture_calls.py", folder / "spec.json"]
    env = os.environ | {"PYTHONPATH": str(folder / "site")}
    ended = subprocess.run(program, cwd=source, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, object]] = json.loads((folder / "calls.json").read_text())
    return found


def test_each_call_is_noted_with_the_line_of_the_project_that_makes_it(tmp_path: Path):
    (tmp_path / "src/net").mkdir(parents=True)
    (tmp_path / "src/net/ops.py").write_text(
        "from torch.utils.cpp_extension import load\ndef get(name):\n    return load(name, ['op.cpp'])\n"
    )
    capture(tmp_path, "from net.ops import get; get('a'); get('b'); load = __import__('torch.utils.cpp_extension'); "
            "load.utils.cpp_extension.load('c', ['op.cpp'])")  # fmt: skip
    assert json.loads((tmp_path / "places.json").read_text()) == ["net/ops.py:3", "net/ops.py:3", ""]
