"""What runs in the image and needs neither torch nor a GPU: the wait for torch, GPUs and what they run, failures in words."""

import ctypes
import functools
import importlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder import runtime as image
from envbuilder.recipe.warm import KINDS
from envbuilder.steps import warm as warm_step

sys.path.insert(0, str(image.path("lib")))

import envbuilder_caches
import envbuilder_extensions
from envbuilder_extensions import compiling, gpus

runs_programs = pytest.mark.programs

A100, A10, H100 = gpus.Gpu("A100", 8, 0), gpus.Gpu("A10", 8, 6), gpus.Gpu("H100", 9, 0)
B200, RTX5090, SPARK = gpus.Gpu("B200", 10, 0), gpus.Gpu("RTX 5090", 12, 0), gpus.Gpu("GB10", 12, 1)


# The wait for torch: a Python with a package `torch` that is only files, and a LIB of the test's own

EVENTS = "import builtins\nbuiltins.events = getattr(builtins, 'events', [])\n"
FILES = {
    "site/torch/__init__.py": EVENTS + "builtins.events.append('torch')\n",
    "site/torch/utils/__init__.py": "",
    "site/torch/utils/cpp_extension.py": EVENTS + "builtins.events.append('cpp_extension')\n",
    "lib/envbuilder_nccl/__init__.py": EVENTS
    + "from envbuilder_nccl import part\ndef prepare(): builtins.events.append('prepare')\n",
    "lib/envbuilder_nccl/part.py": "",
    "lib/envbuilder_extensions/__init__.py": EVENTS
    + "def install(module): builtins.events.append('install ' + module.__name__)\n",
}


def python(folder: Path, script: str, files: dict[str, str] | None = None, **env: str) -> list[str]:
    """What a Python prints that started with the watcher, and its stderr."""
    for name, text in {**FILES, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    begin = (
        f"import sys\nsys.path[:0] = [{str(folder / 'site')!r}, {str(image.path('start'))!r}]\n"
        f"import envbuilder_start\nenvbuilder_start.LIB = {str(folder / 'lib')!r}\n" + EVENTS
    )
    ended = subprocess.run(
        [sys.executable, "-B", "-c", begin + script], env=env, check=True, capture_output=True, text=True
    )
    return [ended.stdout, ended.stderr]


@runs_programs
def test_nccl_is_prepared_before_torch_and_load_is_wrapped_after_it(tmp_path):
    script = "import torch.utils.cpp_extension\nimport importlib\nimportlib.reload(torch)\nprint(events)\n"
    said = ["prepare", "torch", "cpp_extension", "install torch.utils.cpp_extension", "torch"]
    assert python(tmp_path, script) == [f"{said}\n", ""]


@runs_programs
def test_to_look_for_torch_is_not_to_import_it(tmp_path):
    script = (
        "from importlib.util import find_spec\nprint(find_spec('torch').name, find_spec('tor'), events)\n"
    )
    assert python(tmp_path, script) == ["torch None []\n", ""]


@runs_programs
def test_the_loader_is_the_one_it_was(tmp_path):
    script = (
        "import torch, inspect\n"
        "print(vars(torch.__spec__.loader).keys() & {'exec_module'}, inspect.getsource(torch)[:15])\n"
    )
    assert python(tmp_path, script) == ["set() import builtins\n", ""]


@runs_programs
@pytest.mark.parametrize(
    ("name", "function", "failure"),
    [
        ("envbuilder_nccl", "prepare", "NCCL defaults were not set"),
        ("envbuilder_extensions", "install", "prebuilt extensions are not used"),
    ],
)
def test_what_fails_is_one_line_and_torch_comes_up(tmp_path, name, function, failure):
    for text, told in {
        f"def {function}(*_): raise OSError('two\\nlines')": "OSError: two lines",
        "import no_such_thing": "ModuleNotFoundError: No module named 'no_such_thing'",
        "": f"AttributeError: module '{name}' has no attribute '{function}'",
    }.items():
        script = "import torch.utils.cpp_extension\nprint(events[-1])\n"
        said = python(tmp_path, script, {f"lib/{name}/__init__.py": text})
        assert (len(said[0].splitlines()), said[1]) == (1, f"envbuilder: {failure}: {told}\n")


@runs_programs
def test_the_watcher_can_be_switched_off_and_what_is_not_there_is_not_missed(tmp_path):
    script = "import torch.utils.cpp_extension\nprint(events)\n"
    assert python(tmp_path / "off", script, ENVBUILDER_START="off") == ["['torch', 'cpp_extension']\n", ""]
    assert python(tmp_path / "no", "envbuilder_start.LIB = '/nowhere'\n" + script) == [
        "['torch', 'cpp_extension']\n",
        "",
    ]


HIDDEN = """
import sys
from importlib.util import find_spec
opened = []
sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" and "index" in str(given[0]) else None)
envbuilder_start.INDEX = HERE + "/index.json"
sys.path.insert(0, HERE + "/work")
import pkg, json
print(len(opened), end=" ")
for name in NAMES:
    spec = find_spec(name)
    print(spec and spec.origin and spec.origin.replace(HERE, ""), end=" ")
print(len(opened))
"""
SITE = "/opt/env/lib/python3.11/site-packages"


@runs_programs
def test_a_compiled_module_is_found_behind_the_folder_that_hides_it(tmp_path):
    """`pkg` of the working folder hides the installed one. The index is read once, when the first submodule is not found."""
    suffix = f".cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so"
    files = [
        "pkg/_C" + suffix,
        "pkg/own.abi3.so",
        "pkg/other.cpython-27-x86_64-linux-gnu.so",
        "top.so",
        "pkg/ops/deep.so",
        "libx.so.1",
    ]
    entries = [{"function": "load"}, {"function": "package", "libraries": [f"{SITE}/{one}" for one in files]}]
    work = {
        "work/pkg/__init__.py": "", "work/pkg/own.py": "", "work/pkg/ops/x.txt": "", "site/pkg/__init__.py": "",
        "index.json": json.dumps({"version": 2, "extensions": entries}),
    }  # fmt: skip
    names = ["pkg._C", "pkg.own", "pkg.other", "top", "pkg.ops.deep", "pkg.none"]
    script = f"HERE, NAMES = {str(tmp_path)!r}, {names}\n{HIDDEN}"
    found = f"{SITE}/pkg/_C{suffix} /work/pkg/own.py None None {SITE}/pkg/ops/deep.so None"
    assert python(tmp_path, script, work) == [f"0 {found} 1\n", ""]
    said = python(tmp_path, script, ENVBUILDER_DEBUG="1")[1].splitlines()
    assert said[0].endswith(f"/_C{suffix}`: ['{tmp_path}/work/pkg'] hides the installed package")
    nothing = "0 None /work/pkg/own.py None None None None 0\n"
    assert python(tmp_path, script, ENVBUILDER_EXTENSIONS="off") == [nothing, ""]
    lists = [
        f'{{"extensions": {one}}}'
        for one in ("null", "[null]", '[{"libraries": null}]', '[{"libraries": [1]}]')
    ]
    for damaged in ("[]", "null", *lists):
        (tmp_path / "index.json").write_text(damaged)
        assert python(tmp_path, script) == [nothing.replace("0\n", "1\n"), ""], damaged
    (tmp_path / "index.json").unlink()
    assert python(tmp_path, script) == [nothing.replace("0\n", "1\n"), ""], "an image without extensions"


@runs_programs
@pytest.mark.parametrize(
    ("whole", "written"), [({}, 4), ({"ENVBUILDER_WHOLE_LINES": "1"}, 1)], ids=["parts", "whole"]
)
def test_a_line_of_a_rank_is_one_write(tmp_path, whole, written):
    """A packet for each write: what Python writes in parts, another rank's line can come between."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = "import envbuilder_start\nprint('a', 'b')\nprint('no end', end='', flush=True)\n"
    env = {"PYTHONPATH": str(image.path("start")), "PYTHONUNBUFFERED": "1", **whole}
    subprocess.run([sys.executable, "-B", "-c", script], env=env, check=True, stdout=theirs)
    theirs.close()
    with ours:
        packets = list(iter(functools.partial(ours.recv, 100), b""))
    assert b"".join(packets) == b"a b\nno end"
    assert (len(packets) - 1, packets[-1]) == (written, b"no end")


@runs_programs
@pytest.mark.parametrize("variable", ["ENVBUILDER_WHOLE_LINES", "OTHER"])
def test_a_signal_prints_the_stacks_of_a_rank_that_waits_in_c(variable):
    """A handler of Python's own would not run before the call in C returns."""
    script = "import os, envbuilder_start\ndef wait_long():\n  print(os.getpid())\n  os.read(0, 1)\nwait_long()\nprint('end')\n"
    env = {"PYTHONPATH": str(image.path("start")), "PYTHONUNBUFFERED": "1", variable: "1"}
    with subprocess.Popen(
        [sys.executable, "-B", "-c", script],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        if variable != "OTHER":
            os.kill(pid, signal.SIGRTMAX)
            assert rank.stderr is not None
            assert b"most recent call first" in rank.stderr.readline()
            assert b" in wait_long" in rank.stderr.readline()
        caught = int(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1], 16)  # type: ignore[index]
        out, _ = rank.communicate(b"x")
    assert (out, caught >> signal.SIGRTMAX - 1 & 1) == (b"end\n", variable != "OTHER")


# The comparison of transports: what needs no torch


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module, whose `torch` is empty: only what runs without it is called."""
    for name in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]  # type: ignore[attr-defined]
    monkeypatch.syspath_prepend(str(image.path("start")))
    return importlib.import_module("envbuilder_smoke.compare")


def test_every_transport_is_tried_by_the_settings_that_choose_it(compare):
    nccl = {
        words: settings
        for words, backend, settings in compare.attempts(["ib0", "eth1"], True)
        if backend == "nccl"
    }
    assert list(nccl) == [
        "NCCL as it is",
        "NCCL without P2P",
        "NCCL by socket on ib0",
        "NCCL by socket on eth1",
    ]
    assert nccl["NCCL as it is"] == {}
    assert (
        nccl["NCCL by socket on ib0"].items() >= {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "=ib0"}.items()
    )
    assert [words for words, _, _ in compare.attempts(["ib0"], False)] == ["gloo", "gloo on ib0"]


class Library:
    """As much of libnccl.so.2 as says its version."""

    def __init__(self, number: int) -> None:
        self.number = number

    def ncclGetVersion(self, place: object) -> int:  # noqa: N802 - NCCL's name
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = self.number
        return 0


@pytest.mark.parametrize(("number", "version"), [(22705, "2.27.5"), (21801, "2.18.1"), (2708, "2.7.8")])
def test_the_nccl_that_is_loaded_says_its_version(compare, monkeypatch, number: int, version: str):
    asked: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: asked.append(name) or Library(number))
    assert sys.modules["envbuilder_smoke.ranks"].nccl_version() == version
    assert asked == ["libnccl.so.2"]


def test_ranks_with_several_nccls_are_not_one_job(compare):
    ranks = sys.modules["envbuilder_smoke.ranks"]
    for versions, lines, failures in (
        (("", ""), [], 0),
        (("2.27.5", "2.27.5"), [("NCCL", "2.27.5")], 0),
        (("2.27.5", "2.30.7"), [("NCCL", "WRONG: several: 2.27.5, 2.30.7")], 1),
    ):
        smoke = ranks.Smoke.__new__(ranks.Smoke)
        smoke.rank, smoke.lines, smoke.failures = 0, [], []
        smoke.nccl([{"nccl": version} for version in versions])
        assert (smoke.lines, len(smoke.failures)) == (lines, failures)


GOOD, FAST, HANGS = (
    {"seconds": 0.01, "bytes": 1 << 23},
    {"seconds": 0.005, "bytes": 1 << 23},
    {"why": "no answer in 30 s"},
)


@pytest.mark.parametrize(
    ("results", "advice"),
    [
        ((GOOD, GOOD, HANGS), "set nothing: what is used now works, and nothing is clearly faster"),
        ((GOOD, FAST, HANGS), "NCCL without P2P is the best: NCCL_P2P_DISABLE=1"),
        ((HANGS, GOOD, HANGS), "NCCL without P2P is the best: NCCL_P2P_DISABLE=1"),
        (
            (HANGS, HANGS, FAST),
            "nothing of NCCL works here: `envbuilder detect` and `doctor` look at this node",
        ),
    ],
)
def test_the_table_of_transports_ends_with_what_to_set(compare, results, advice):
    settings = ("NCCL as it is", {}), ("NCCL without P2P", {"NCCL_P2P_DISABLE": "1"}), ("gloo", {})
    rows = [(*setting, [result, FAST]) for setting, result in zip(settings, results, strict=True)]
    lines = compare.table(rows).splitlines()
    assert lines[-1] == advice
    assert [" fails: no answer in 30 s (rank 0)" in line for line in lines[:3]] == [
        result is HANGS for result in results
    ]
    assert ("NCCL as it is     8 MiB in 10.0 ms, 0.84 GB/s on the bus" in lines) == (results[0] is GOOD)


# GPUs


@pytest.mark.parametrize(
    ("targets", "runs", "runs_not"),
    [
        (["sm_80"], [A100, A10], [H100, B200]),
        (["sm_86"], [A10], [A100, H100]),
        (["compute_80"], [A100, A10, H100, B200], []),
        (["compute_90"], [H100, B200], [A100, A10]),
        (["sm_75", "sm_90"], [H100], [A100]),
        (["sm_90a"], [H100], [B200]),
        (["compute_90a"], [H100], [B200]),
        (["sm_100f"], [B200], [RTX5090]),
        (["sm_120"], [RTX5090, SPARK], [B200]),
        (["sm_120a"], [RTX5090], [SPARK]),
    ],
)
def test_what_code_a_gpu_runs(targets, runs, runs_not):
    assert [gpu.name for gpu in (*runs, *runs_not) if gpus.covers(targets, gpu)] == [gpu.name for gpu in runs]


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, ["A100", "H100"]),
        ("", []),
        ("-1", []),
        ("GPU-b", ["H100"]),
        ("GPU-b,GPU-a", ["H100", "A100"]),
        ("MIG-c", []),
        ("0", []),  # which of the two that is depends on what CUDA thinks is fastest
    ],
)
def test_which_gpus_the_user_has_chosen(monkeypatch, chosen, seen):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert [gpu.name for gpu in gpus.select([("GPU-a", A100), ("GPU-b", H100)], chosen)] == seen


def test_the_number_of_a_gpu_counts_where_the_order_is_known(monkeypatch):
    assert gpus.select([("GPU-a", A100), ("GPU-b", A100)], "1,5") == [A100]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert gpus.select([("GPU-a", A100), ("GPU-b", H100)], "1") == [H100]


# The check of a node before any rank starts


@runs_programs
def test_a_node_is_told_of_missing_libraries_and_of_code_for_other_gpus(tmp_path):
    entries = [
        {"name": "gone", "file": "/nowhere/gone.so", "targets": ["sm_80"]},
        {"name": "other", "file": str(tmp_path / "index.json"), "targets": ["sm_90"]},
        {"name": "project", "targets": ["sm_80"]},
        {"name": "cpu", "targets": []},
    ]
    (tmp_path / "index.json").write_text(json.dumps({"extensions": entries}))
    script = (
        f"from pathlib import Path\nimport envbuilder_smoke.__main__ as smoke\nsmoke.LIB = {str(image.path('lib'))!r}\n"
        "sys.path.append(smoke.LIB)\nfrom envbuilder_extensions import gpus\n"
        "gpus.visible = lambda: [gpus.Gpu('A100', 8, 0)]\n"
        f"smoke.INDEX = Path({str(tmp_path / 'index.json')!r})\nsmoke.DRIVER = 'libnowhere.so.1'\n"
        "print(*smoke.check_node(gpus_wanted=1), sep='\\n')\nassert len(smoke.check_node(gpus_wanted=0)) == 3\n"
    )
    files = {
        "site/torch/__init__.py": "raise SystemExit('torch takes seconds, and no rank has started')\n",
        "site/torch/version.py": "__version__ = '2.6.0+cu124'\ncuda = '12.4'\n",
    }
    said, _ = python(tmp_path, script, files, ENVBUILDER_START="off", PYTORCH_VERSION="2.7.0")
    assert said.splitlines() == [
        f"torch is 2.6.0+cu124 from {tmp_path}/site/torch/__init__.py, and the environment was made with 2.7.0",
        (
            "torch will see no GPU, for the driver's library is not in the environment: libnowhere.so.1: cannot open "
            "shared object file: No such file or directory (`envbuilder doctor` says more)"
        ),
        "the extension gone is not there: /nowhere/gone.so",
        "the extension other has code for sm_90, not for A100 (sm_80)",
    ]


# Failures


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("Error building extension 'x': …\n/usr/include/python3.9/Python.h:44:10: fatal error: crypt.h: No such file or directory"), "include crypt.h"),
        (RuntimeError("Ninja is required to load C++ extensions"), "torch compiles with ninja"),
        (OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root."), "CUDA compiler was not found"),
        (RuntimeError("Error building extension 'x': /bin/sh: 1: /usr/local/cuda/bin/nvcc: not found"), "CUDA compiler was not found"),
        (FileNotFoundError(2, "No such file or directory", "/usr/local/cuda/bin/nvcc"), "CUDA compiler was not found"),
        (RuntimeError("nvcc fatal   : Unsupported gpu architecture 'compute_120'"), "does not know the GPU"),
        (ImportError("/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /tmp/x.so)"), "newer g++"),
        (ImportError("/tmp/x.so: undefined symbol: _ZN3c106detail14torchCheckFailE"), "another torch"),
        (ImportError("/tmp/x.so: failed to map segment from shared object"), "noexec"),
        (OSError(28, "No space left on device"), "disk is full"),
        (RuntimeError("c++: fatal error: Killed signal terminated program cc1plus"), "out of memory"),
        (OSError(30, "Read-only file system", "/opt/x/lock"), "read-only"),
        (PermissionError(13, "Permission denied", "/data/x/lock"), "somebody else"),
        (FileNotFoundError(2, "No such file or directory", "c++"), "no C++ compiler"),
        (RuntimeError("Error building extension 'x': /bin/sh: 1: c++: not found\nninja: build stopped: subcommand failed."), "no C++ compiler"),
        (RuntimeError("Error building extension 'x': [1/2] c++ …\nx.cu(3): error: identifier \"y\" is undefined\nninja: build stopped"), 'x.cu(3): error: identifier "y"'),
        (IndexError("list index out of range"), "no GPU is visible"),
        (ValueError("anything else"), "ValueError: anything else"),
    ],
)  # fmt: skip
def test_each_failure_of_the_guides_has_its_own_words(monkeypatch, error, told):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert told in compiling._explain("x", error)


def test_the_words_of_the_failures_are_all_reached():
    shown = {row["message"] for row in json.loads(Path(compiling.MESSAGES).read_text(encoding="utf-8"))}
    parameters = test_each_failure_of_the_guides_has_its_own_words.pytestmark[0].args[1]
    reached = {
        meaning for error, _ in parameters for meaning in shown if meaning in compiling._explain("x", error)
    }
    assert reached == shown


def test_a_private_folder_is_made_for_this_user_alone(monkeypatch, tmp_path):
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    folder = Path(compiling.private_folder())
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert compiling.private_folder() == str(folder)


def test_a_private_folder_is_not_made_where_others_can_exchange_it(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o777)
    assert Path(compiling.private_folder()).parent != tmp_path
    tmp_path.chmod(0o1777)
    assert Path(compiling.private_folder()).parent == tmp_path


@runs_programs
def test_ranks_that_start_at_once_find_the_same_places(tmp_path):
    script = (
        f"import os, sys; sys.path.insert(0, {str(image.path('lib'))!r}); sys.stdin.readline()\n"
        "import envbuilder_caches; envbuilder_caches.place(); print(os.environ['TRITON_CACHE_DIR'])\n"
    )
    env = {"HOME": "/proc/no-home", "TMPDIR": str(tmp_path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for rank in ranks:
        rank.stdin.write("\n")
        rank.stdin.flush()
    folder = f"{tmp_path}/envbuilder-{os.geteuid()}/triton\n"
    assert [rank.communicate()[0] for rank in ranks] == [folder] * 8


def test_models_in_a_home_that_is_read_only_stay_in_sight(monkeypatch, tmp_path):
    """And a value that a parent process set leads to this node's folder, wherever it led before."""
    (tmp_path / ".cache/huggingface/hub").mkdir(parents=True)
    for name in list(os.environ):
        if name.startswith(("XDG_", "HF_", "TORCH", "TRITON", "SLURM")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/gone/triton")
    monkeypatch.setenv("TORCH_HOME", "/of/the/user")
    monkeypatch.setenv(envbuilder_caches.MARK, "TRITON_CACHE_DIR=/gone/triton\nTORCH_HOME=/gone/torch")
    monkeypatch.setattr(envbuilder_caches, "_is_writable", lambda *_: False)
    before = dict(os.environ)
    try:
        envbuilder_caches.place()
        after = dict(os.environ)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert after["HF_HOME"] == f"{tmp_path}/.cache/huggingface"
    assert after["TRITON_CACHE_DIR"] == f"{tmp_path}/envbuilder-{os.geteuid()}/triton"
    assert after["TORCH_HOME"] == "/of/the/user"


class Cache:
    """A cache of files as Triton's: a folder for each key, and a list of a kernel's files by their paths."""

    place: Path

    def __init__(self, key: str) -> None:
        self.key, self.cache_dir = key, str(self.place / key)

    def get_group(self, name: str) -> dict[str, str] | None:
        listing = Path(self.cache_dir, f"__grp__{name}")
        return json.loads(listing.read_text()) if listing.exists() else None


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """Triton's cache in a user's folder, and the kernel `add` for sm_90 in the image."""
    monkeypatch.setattr(envbuilder_caches, "WARM", str(tmp_path / "image"))

    class OfTheUser(Cache):
        place = tmp_path / "user"

    for place, key in (("image/run/triton", "add-90"), ("image/0/triton", "add-86"), ("user", "add-75")):
        (tmp_path / place / key).mkdir(parents=True)
        (tmp_path / place / key / "__grp__k.json").write_text(json.dumps({"k.cubin": place}))
    return types.SimpleNamespace(FileCacheManager=OfTheUser)


def test_a_kernel_of_the_image_is_found_behind_the_users_cache_and_for_its_gpu_alone(kernels, tmp_path):
    envbuilder_caches.look_in_image(kernels)
    answers = [kernels.FileCacheManager(f"add-{gpu}").get_group("k.json") for gpu in (90, 86, 75, 80)]
    assert answers == [
        {"k.cubin": "image/run/triton"},
        {"k.cubin": "image/0/triton"},
        {"k.cubin": "user"},
        None,
    ]
    (tmp_path / "user/add-90").mkdir()
    (tmp_path / "user/add-90/__grp__k.json").write_text('{"k.cubin": "user"}')
    assert kernels.FileCacheManager("add-90").get_group("k.json") == {"k.cubin": "user"}
    assert kernels.FileCacheManager("add-90").get_group("other.json") is None


def test_a_cache_of_an_unknown_form_and_an_image_without_kernels_stay_as_they_are(
    kernels, tmp_path, monkeypatch
):
    envbuilder_caches.look_in_image(types.SimpleNamespace())
    monkeypatch.setenv(envbuilder_caches.KEEP, str(tmp_path))
    envbuilder_caches.look_in_image(kernels)
    monkeypatch.delenv(envbuilder_caches.KEEP)
    monkeypatch.setattr(envbuilder_caches, "WARM", str(tmp_path / "none"))
    envbuilder_caches.look_in_image(kernels)
    assert kernels.FileCacheManager.get_group is Cache.get_group


@pytest.fixture
def warm(monkeypatch, tmp_path):
    """A folder for what an image has of jobs, and one that a job has kept for it."""
    monkeypatch.setattr(envbuilder_caches, "WARM", str(tmp_path / "image"))
    monkeypatch.setenv("ENVBUILDER_DEBUG", "1")
    for name in (envbuilder_caches.KEEP, envbuilder_caches.HEADERS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "image/0"


LIBRARY = struct.pack("<16sQQQQI6H", b"\x7fELF", 0, 0, 0, 64, 0, 64, 0, 0, 64, 1, 0) + bytes(64)


def test_what_a_job_keeps_is_where_the_image_has_it(monkeypatch, tmp_path, warm, capsys):
    names = [
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "NUMBA_CACHE_DIR",
        envbuilder_caches.KEEP,
        envbuilder_caches.HEADERS,
    ]
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path)
        inside.setattr(
            os, "environ", {**os.environ, "HOME": str(tmp_path), envbuilder_caches.KEEP: "image/0"}
        )
        envbuilder_caches.place()
        kept = {name: os.environ[name] for name in names}
    assert kept.pop(envbuilder_caches.KEEP) == str(warm)
    assert kept.pop(envbuilder_caches.HEADERS) == "0"
    compiled = Path(kept["TORCHINDUCTOR_CACHE_DIR"]) / "ab/x.py"
    compiled.parent.mkdir(parents=True)
    compiled.write_text("code")
    assert {Path(folder).relative_to(warm).parts[0] for folder in kept.values()} == {
        "inductor",
        "triton",
        "numba",
    }
    envbuilder_caches.fill(types.SimpleNamespace(cache_dir=lambda: f"{tmp_path}/user"))
    assert (tmp_path / "user/ab/x.py").read_text() == "code"
    assert "1 files of torch.compile are from the image" in capsys.readouterr().err


def test_what_cannot_be_kept_is_said_and_the_job_goes_on(monkeypatch, tmp_path, capsys):
    with monkeypatch.context() as inside:
        inside.setattr(os, "environ", {"HOME": str(tmp_path), envbuilder_caches.KEEP: "/proc/none"})
        envbuilder_caches.place()
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") != "/proc/none/inductor"
    assert "`/proc/none` cannot be written: what is compiled is not kept there" in capsys.readouterr().err


def test_a_cache_is_filled_with_whole_files_for_this_cpu_and_keeps_its_own(warm, tmp_path, capsys):
    here = f"inductor/{envbuilder_caches._cpu()}"
    contents = {f"{here}/a/f": b"image", f"{here}/a/g": b"image", "inductor/other/a/h": b"other",
                f"{here}/whole.so": LIBRARY, f"{here}/cut.so": LIBRARY[:-1], f"{here}/short.so": b"\x7fELF"}  # fmt: skip
    for name, content in contents.items():
        (warm / name).parent.mkdir(parents=True, exist_ok=True)
        (warm / name).write_bytes(content)
    (tmp_path / "user/a").mkdir(parents=True)
    (tmp_path / "user/a/g").write_bytes(b"user")
    with ThreadPoolExecutor(8) as ranks:
        for _ in range(8):
            ranks.submit(envbuilder_caches.fill, types.SimpleNamespace(cache_dir=lambda: f"{tmp_path}/user"))
    paths = [path for path in (tmp_path / "user").rglob("*") if path.is_file()]
    files = {path.name: path.read_bytes() for path in paths}
    assert files == {"whole.so": LIBRARY, "f": b"image", "g": b"user"}
    assert "cut.so` is not whole" in capsys.readouterr().err


def test_what_is_for_another_cpu_or_an_unknown_torch_is_left_with_a_reason(
    warm, monkeypatch, tmp_path, capsys
):
    torch = types.SimpleNamespace(cache_dir=lambda: f"{tmp_path}/user")
    (warm / "inductor/other").mkdir(parents=True)
    envbuilder_caches.fill(torch)
    (warm / "inductor" / envbuilder_caches._cpu()).mkdir()
    envbuilder_caches.fill(types.SimpleNamespace())
    (warm / "inductor" / envbuilder_caches._cpu() / "f").touch()
    (tmp_path / "user").touch()
    envbuilder_caches.fill(torch)
    reasons = [
        line for line in capsys.readouterr().err.splitlines() if "is for another" in line or "is not" in line
    ]
    assert [
        re.search(r"another CPU|does not say|Not a directory|File exists", line) is not None
        for line in reasons
    ] == [True] * 3
    monkeypatch.setattr(envbuilder_caches, "WARM", str(tmp_path / "none"))
    envbuilder_caches.fill(torch)
    assert capsys.readouterr().err == ""


class Index:
    """A cache of one function as Numba's: an index in a folder, by name, source and CPU."""

    def __init__(self, folder: Path, key: str) -> None:
        self._cache_path, self._index_name, self.key = str(folder), "ops.f-1.nbi", key
        self._index_path = f"{folder}/{self._index_name}"

    def load(self, key: str) -> str | None:
        path = Path(self._index_path)
        entries = json.loads(path.read_text()) if path.exists() else {}
        return entries.get(key) and f"{entries[key]} of {self._cache_path}"


def test_a_function_of_the_image_is_found_behind_the_users_cache(warm, tmp_path, monkeypatch, capsys):
    folders = {
        tmp_path / "user": '{"a": "user"}',
        warm / "numba/x_1": "{",
        warm / "numba/y_2": '{"a": "0", "b": "0"}',
    }
    for folder, text in folders.items():
        folder.mkdir(parents=True)
        (folder / "ops.f-1.nbi").write_text(text)

    class OfTheUser(Index):
        pass

    envbuilder_caches.look_for_functions(types.SimpleNamespace(IndexDataCacheFile=OfTheUser))
    index = OfTheUser(tmp_path / "user", "")
    answers = [index.load(key) for key in ("a", "b", "c")]
    assert answers == [f"user of {tmp_path}/user", f"0 of {warm}/numba/y_2", None]
    assert index._cache_path == f"{tmp_path}/user"
    assert "x_1/ops.f-1.nbi` is not used: JSONDecodeError" in capsys.readouterr().err
    for unknown in (
        types.SimpleNamespace(),
        types.SimpleNamespace(IndexDataCacheFile=type("Index", (), {"load": len})),
    ):
        envbuilder_caches.look_for_functions(unknown)


@pytest.mark.parametrize(("own", "named"), [(None, "a/x={0}/a/x:b/y={0}/b/y"), ("a/x=/mine", "a/x=/mine")])
def test_kernels_of_the_hub_are_named_unless_the_user_names_others(monkeypatch, tmp_path, own, named):
    for name in ("a/x", "b/y"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(envbuilder_caches, "HUB_KERNELS", str(tmp_path))
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    if own:
        monkeypatch.setenv("LOCAL_KERNELS", own)
    envbuilder_caches.name_kernels()
    assert os.environ.pop("LOCAL_KERNELS") == named.format(tmp_path)
    monkeypatch.setattr(envbuilder_caches, "HUB_KERNELS", str(tmp_path / "none"))
    envbuilder_caches.name_kernels()
    assert "LOCAL_KERNELS" not in os.environ


@runs_programs
def test_triton_looks_in_the_image_once_its_cache_is_imported(tmp_path):
    files = {
        "site/triton/__init__.py": "",
        "site/triton/runtime/__init__.py": "",
        "site/triton/runtime/cache.py": "",
        "lib/envbuilder_caches/__init__.py": "def place(): print('place')\ndef look_in_image(module): print(module.__name__)\n",
    }
    script = "import triton.runtime.cache\n"
    assert python(tmp_path, script, files) == ["place\ntriton.runtime.cache\n", ""]


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_a_folder_that_somebody_else_prepared_is_not_taken(monkeypatch, tmp_path, trap):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SLURM_TMPDIR", str(own))
    name = Path(compiling.private_folder()).name
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(own))
    prepared = tmp_path / name
    if trap == "open":
        prepared.mkdir()
        prepared.chmod(0o770)
    elif trap == "link":
        prepared.symlink_to(own)
    else:
        prepared.touch()
    assert Path(compiling.private_folder()).parent == own


@pytest.mark.parametrize(
    ("modes", "there", "reason"),
    [
        ({"": 0o755}, True, ""),
        ({"": 0o775}, True, ""),  # shared with a group by whoever owns it
        ({"": 0o777}, True, "everybody can write in `{}`"),
        ({"": 0o1777}, True, "everybody can write in `{}`"),  # files in it can be anybody's
        ({"..": 0o1777}, False, ""),  # as below /tmp: what we make there is ours
        ({"..": 0o777}, False, "everybody can write in `{}`"),
    ],
)
def test_code_is_not_loaded_from_where_everybody_can_write(tmp_path, modes, there, reason):
    folder = tmp_path / "above/extensions"
    folder.mkdir(parents=True)
    for name, mode in modes.items():
        (folder / name).resolve().chmod(mode)
    if not there:
        folder.rmdir()
    assert compiling._unsafe(str(folder)) == reason.format(folder if there else folder.parent)


def test_code_of_another_user_is_not_loaded(monkeypatch, tmp_path):
    """What root made is the machine's own."""
    if os.geteuid() == 0:
        assert compiling._unsafe(str(tmp_path)) == ""
        os.chown(tmp_path, 12345, -1)
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(compiling.os, "geteuid", lambda: owner + 1)
    assert compiling._unsafe(str(tmp_path)) == f"`{tmp_path}` belongs to user {owner}"


@runs_programs
def test_what_is_compiled_is_loaded_without_a_compile_until_something_changes(monkeypatch, tmp_path):
    """`load` stands for torch's, and ninja for a program that lists the header that was read."""
    source, header = tmp_path / "a.cpp", tmp_path / "a.h"
    source.touch(), header.touch()
    ninja = tmp_path / "bin/ninja"
    ninja.parent.mkdir()
    ninja.write_text(f"#!/bin/sh\nprintf 'a.o: #deps 2\\n    %s\\n    /usr/include/stdio.h\\n' {header}\n")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ninja.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    torch = types.SimpleNamespace(
        __version__="2", cuda=types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 0)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    cpp_extension = types.SimpleNamespace(_import_module_from_library=lambda name, _, __: f"loaded {name}")

    def load(name, sources, extra_cflags=None, build_directory=None):
        (Path(build_directory) / f"{name}.so").touch()
        return "compiled"

    def start(*flags):
        call = envbuilder_extensions.Call(load, ("op", [str(source)]), {"extra_cflags": list(flags)})
        return compiling.run(call, cpp_extension, architectures=[], edited="it differs")

    for file in (source, header):
        os.utime(file, (1, 1))
    assert [start(), start(), start("-O3"), start("-O3")] == [
        "compiled",
        "loaded op",
        "compiled",
        "loaded op",
    ]
    for file in (header, source):
        times = file.stat().st_atime, file.stat().st_mtime
        file.write_text("// edited, with an old time")
        os.utime(file, times)
        assert [start("-O3"), start("-O3")] == ["compiled", "loaded op"]
    header.unlink()
    assert start("-O3") == "compiled"
    (library,) = tmp_path.glob("envbuilder-*/op-*/op.so")
    library.unlink()
    assert start("-O3") == "compiled"
    monkeypatch.setenv("CXX", "g++-9")
    assert start("-O3") == "compiled"


def test_a_recipe_takes_the_folders_that_a_job_fills():
    kept = {envbuilder_caches.INDUCTOR, envbuilder_caches.TRITON, envbuilder_caches.NUMBA}
    assert kept == set(KINDS)
    assert envbuilder_caches.WARM == warm_step.WARM
