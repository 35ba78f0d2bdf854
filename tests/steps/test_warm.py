"""The program of `warm`: what it runs, what of a cache it keeps, and how its simulated GPU answers Triton.

`tests/e2e/test_warm.py` runs it with the real Triton.
"""

import importlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder import steps
from envbuilder.recipe.warm import KINDS

pytestmark = pytest.mark.programs
# Stands for Triton and a user's program: fills the cache as a launch does for the GPU of the sandbox.
PYTHON = shlex.quote(sys.executable)
LAUNCH = """
import os, sys
cache, gpu = os.environ["TRITON_CACHE_DIR"], os.environ["_ENVBUILDER_CAPABILITY"]
for name in sys.argv[1:]:
    os.makedirs(f"{cache}/{name}-{gpu}")
    for file in ("__grp__k.json", "k.cubin"):
        open(f"{cache}/{name}-{gpu}/{file}", "w").write(f"{cache} {os.environ['SETTING']}")
assert os.stat("launch.py").st_mtime == 86400, "ptxas writes this time"
os.makedirs(f"{cache}/measured-{gpu}")
open(f"{cache}/measured-{gpu}/k.autotune.json", "w").close()
"""
RUN = """
import sys
sys.path.insert(0, {folder!r})
import warm
warm.SCRATCH, warm.FILES, warm.WARM = {scratch!r}, {scratch!r} + "/files", {place!r}
warm.CACHE = {place!r} + "/run/triton"
warm.main(*sys.argv[1:])
"""


def run(tmp_path: Path, *commands: str) -> "subprocess.CompletedProcess[str]":
    caches = ["kept/a", "kept/b"] if not commands else []
    spec = {
        "run": commands, "gpus": ["8.0", "9.0"], "env": [["SETTING", "1"]], "epoch": 86400, "caches": caches,
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    (tmp_path / "inputs/files").mkdir(parents=True, exist_ok=True)
    (tmp_path / "inputs/files/launch.py").write_text(LAUNCH)
    script = RUN.format(folder=str(steps.FOLDER), scratch=f"{tmp_path}/scratch", place=f"{tmp_path}/opt/warm")
    words = [
        sys.executable,
        "-B",
        "-c",
        script,
        tmp_path / "spec.json",
        tmp_path / "inputs",
        tmp_path / "out",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_each_gpu_has_its_kernels_and_nothing_that_was_measured(tmp_path: Path):
    ended = run(tmp_path, f"{PYTHON} launch.py add scale")
    assert (ended.returncode, ended.stderr) == (0, "")
    tree = Path(f"{tmp_path}/out{tmp_path}/opt/warm/run/triton")
    names = ["add-8.0", "add-9.0", "scale-8.0", "scale-9.0"]
    assert sorted(folder.name for folder in tree.iterdir()) == names
    assert (tree / "add-8.0/k.cubin").read_text() == f"{tmp_path}/opt/warm/run/triton 1"
    assert [path.name for path in tmp_path.glob("opt/warm/*")] == []
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("{python} launch.py", "the programs of `warm` launched no Triton kernel for sm_80"),
        ("{python} -c 'import none'", "`{python} -c 'import none'` ended with exit code 1, for sm_80"),
        ("none --at-all", "`none --at-all` cannot be started: No such file or directory"),
    ],
)
def test_a_program_that_fails_is_named_in_the_last_line(tmp_path: Path, command: str, reason: str):
    ended = run(tmp_path, command.format(python=PYTHON))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == reason.format(python=PYTHON)


def test_what_jobs_kept_is_taken_folder_by_folder_and_kernels_get_their_place(tmp_path: Path):
    group = {"child_paths": {"k.cubin": "/home/of/a/user/kept/a/triton/add/k.cubin"}}
    texts = {
        "a/triton/add/__grp__k.json": json.dumps(group), "a/triton/add/k.cubin": "code",
        "b/triton/add/__grp__k.json": '{"child_paths": ["k.cubin"]}', "b/inductor/cpu/x.so": "code",
    }  # fmt: skip
    for name, text in texts.items():
        path = tmp_path / "inputs/files/kept" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    ended = run(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    place = f"{tmp_path}/opt/warm"
    tree = Path(f"{tmp_path}/out{place}")
    files = {str(path.relative_to(tree)): path for path in tree.rglob("*") if path.is_file()}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o644}
    assert {name: path.read_text() for name, path in files.items()} == {
        "0/triton/add/__grp__k.json": json.dumps(
            {"child_paths": {"k.cubin": f"{place}/0/triton/add/k.cubin"}}
        ),
        "0/triton/add/k.cubin": "code",
        "1/triton/add/__grp__k.json": '{"child_paths": ["k.cubin"]}',
        "1/inductor/cpu/x.so": "code",
    }


def test_the_list_of_a_kept_kernel_that_is_damaged_is_left_out(tmp_path: Path):
    for name in ("a/numba/f.nbi", "b/triton/add/__grp__k.json"):
        (tmp_path / "inputs/files/kept" / name).parent.mkdir(parents=True)
        (tmp_path / "inputs/files/kept" / name).write_text("{")
    ended = run(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("triton/add/__grp__k.json is damaged and left out\n")
    paths = Path(f"{tmp_path}/out{tmp_path}/opt/warm").rglob("*")
    assert [path.name for path in paths if path.is_file()] == ["f.nbi"]


FILES = {
    "torch/__init__.py": """
class device:
    def __init__(self, name): self.type = name.partition(":")[0]
class cuda: pass
""",
    "torch/overrides.py": """
class TorchFunctionMode:
    def __enter__(self): type(self).entered = self
""",
    "triton/__init__.py": "",
    "triton/compiler/__init__.py": "",
    "triton/compiler/compiler.py": "class CompiledKernel:\n    def load(self): self.n_regs, self.n_max_threads = 0, 0\n",
    "triton/runtime/__init__.py": "",
    "triton/runtime/driver.py": "class Config:\n    def set_active(self, driver): self.active = driver\ndriver = Config()\n",
    "triton/backends/__init__.py": "",
    "triton/backends/compiler.py": "GPUTarget = lambda *given: given\n",
}
DRIVER = "from triton.runtime.driver import driver; gpu = driver.active; "
MODE = """
import torch
from torch.overrides import TorchFunctionMode as mode
show = lambda *args, **kwargs: [given.type for given in (*args, *kwargs.values())]
"""


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (DRIVER + "print(gpu.get_current_target(), gpu.get_current_stream(0))", "('cuda', 90, 32) 0"),
        (DRIVER + "import triton.compiler.compiler; print(len(gpu.utils.load_binary('k', b'', 0, 0)))", "5"),
        (DRIVER + "print(gpu.launcher_cls(None, None)(1, 1, 1), gpu.utils.unload_module(0))", "None None"),
        (DRIVER + "print(gpu.get_benchmarker()(lambda: print('launched'), quantiles=()))", "launched\n[0.0, 0.0, 0.0]"),
        ("import torch; print(torch.cuda.is_available(), torch.cuda.get_device_capability())", "True (9, 0)"),
        (MODE + "import gc; host = next(one for one in gc.get_objects() if isinstance(one, mode))\n"
         "print(host.__torch_function__(show, (), ('cuda:1',), {'device': torch.device('cuda')}))", "['cpu', 'cpu']"),
    ],
)  # fmt: skip
def test_a_launch_ends_after_the_compile(tmp_path: Path, line: str, shown: str):
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/simulated.py").write_text(steps.text("sitecustomize.py"))
    (tmp_path / "custom/sitecustomize.py").write_text(steps.text("warm_customize.py"))
    env = {"PYTHONPATH": f"{tmp_path}/custom:{tmp_path}/site", "_ENVBUILDER_CAPABILITY": "9.0"}
    ended = subprocess.run(
        [sys.executable, "-B", "-c", line], env=env, capture_output=True, text=True, check=False
    )
    assert (ended.stdout.strip(), ended.stderr) == (shown, "")


def test_the_image_has_the_cache_where_the_program_writes_it():
    sys.path.insert(0, str(steps.FOLDER.parent / "runtime/lib"))
    caches = importlib.import_module("envbuilder_caches")
    assert f'WARM = "{caches.WARM}"\n' in steps.text("warm.py")
    assert {caches.INDUCTOR, caches.NUMBA, caches.TRITON} == set(KINDS)
