"""What a setup.py reads to decide whether it compiles. The shapes are those of public projects."""

from pathlib import Path

import pytest

from envbuilder.compat.gates import find_gates
from envbuilder.compat.python_code import parse_code

MAPPED = """
import os, sys
FLAGS = {"FAST_CPP_EXT": "--cpp_ext", "FAST_CUDA_EXT": "--cuda_ext", "FAST_PROFILER": "--profiler"}
for variable, flag in FLAGS.items():
    if os.environ.get(variable, "0") == "1" and flag not in sys.argv:
        sys.argv.append(flag)
if "--cpp_ext" in sys.argv:
    sys.argv.remove("--cpp_ext")
"""
HELPER = """
import os
def flag(name, default="FALSE"):
    return os.getenv(name, default).upper() == "TRUE"
FORCED = flag("SCAN_FORCE_BUILD")
"""
OPTIONS = """
import sys
for option in ("--cpp_ext", "--xentropy"): pass
if "--cuda_ext" in sys.argv:
    sys.argv.remove("--cuda_ext")
if "--xentropy" in sys.argv: pass
if "--no_cuda_ext" in sys.argv: pass
"""


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ('FORCE = os.getenv("SCAN_FORCE_BUILD", "FALSE") == "TRUE"', ['env: {SCAN_FORCE_BUILD: "TRUE"}']),
        ('if torch.has_cuda or getenv("IABN_FORCE_CUDA") == "1": pass', ['env: {IABN_FORCE_CUDA: "1"}']),
        ('if os.environ.get("NMS_CPP", "OFF").lower() in ("on", "yes"): pass', ['env: {NMS_CPP: "on"}']),
        ('if int(os.environ.get("NMS_CPP", 0)): pass', ['env: {NMS_CPP: "1"}']),
        ('if os.environ["X_WITH_CUDA"] != "0": pass', ['env: {X_WITH_CUDA: "1"}']),
        ('if "X_WITH_CUDA" in os.environ: pass', ['env: {X_WITH_CUDA: "1"}']),
        ('if os.getenv("X_WITH_CUDA", "0") == "0": cpu()', ['env: {X_WITH_CUDA: "1"}']),
        ('if os.getenv("X_WITH_CUDA", "1") == "1": pass', []),
        ('if os.getenv("X_WITH_CUDA", "1"): pass', []),
        ('if os.getenv("X_NO_CUDA_EXT", "0") == "1": pass', []),
        ('if os.getenv("X_SKIP_FORCE_BUILD", "0") == "1": pass', []),
        ('macros = [("WITH_CUDA", None)]; os.getenv("CC")', []),
        ('os.environ["X_FORCE_BUILD"] = "1"', []),
        ('os.environ.get("OTHER"); text = "SCAN_FORCE_BUILD"', []),
        (MAPPED, ['env: {FAST_CPP_EXT: "1"}', 'env: {FAST_CUDA_EXT: "1"}']),
        (HELPER, ['env: {SCAN_FORCE_BUILD: "TRUE"}']),
        (
            'from sys import argv\ndef take(flag, argv): return flag in argv\nF, C = take("--force_cuda", argv), take("--cpu_only", argv)',
            ['options: ["--force_cuda"]'],
        ),
        (OPTIONS, ['options: ["--cuda_ext"]']),
    ],
)  # fmt: skip
def test_the_variables_and_options_of_this_setup_are_found(text: str, settings: list[str]) -> None:
    code = parse_code(f"import os\nfrom os import getenv\n{text}", Path("setup.py"))
    assert code
    assert [gate.setting for gate in find_gates(code)] == settings


def test_a_gate_names_its_line_and_what_lacks_without_it() -> None:
    code = parse_code('import os\nos.getenv("X_FORCE_CUDA")\nos.getenv("X_FORCE_BUILD")', Path("setup.py"))
    assert code
    assert [(gate.line, gate.effect) for gate in find_gates(code)] == [(3, "compile"), (2, "cuda")]
    assert [gate.reason.partition(", ")[2] for gate in find_gates(code)] == [
        "the build looks for a compiled wheel on the network",
        "the build may leave out what is for GPUs",
    ]
