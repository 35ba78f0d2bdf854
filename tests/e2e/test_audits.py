"""The audits on real environments: what they say of them is known, and all of it is true."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, ROOT, Built, attempt, findings, run

pytestmark = pytest.mark.builds

# Wheels that bring second copies of CUPTI; libraries of torch and NVIDIA with run paths of their builders' machines.
KNOWN = {"EB715", "EB720"}


def test_the_recipes_have_no_errors_and_only_known_warnings(built: Built):
    answer = json.loads(run(ENVBUILDER, "verify", built.name, "--artifacts", built.output, "--json"))
    assert {finding["severity"] for finding in answer["findings"]} <= {"warning"}
    assert {finding["code"] for finding in answer["findings"]} <= KNOWN
    assert answer["data"]["plan"]


def test_an_older_host_is_told_what_it_could_not_load(cpu: Built):
    answer = json.loads(run(ENVBUILDER, "verify", "cpu", "--artifacts", cpu.output, "--oldest-host", "debian/bullseye", "--json"))  # fmt: skip
    (finding,) = [one for one in answer["findings"] if one["code"] == "EB714"]
    assert "fused.so" in finding["where"]


def test_torch_without_a_toolkit_refuses_a_cuda_extension_as_check_says(cpu: Built, tmp_path: Path):
    text = "from torch.utils.cpp_extension import CUDAExtension\nfrom setuptools import setup\n"
    (tmp_path / "setup.py").write_text(f"{text}setup(ext_modules=[CUDAExtension('a', ['a.cpp'])])\n")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: cpu\nextensions: [{name: mine, path: .}]\n")
    shutil.copy(ROOT / "recipes/cpu.yaml", tmp_path)
    shutil.copytree(ROOT / "recipes/fused", tmp_path / "fused")
    (finding,) = findings(attempt(ENVBUILDER, "check", recipe, "--json"))
    assert (finding["code"], "CUDAExtension" in finding["message"]) == ("EB312", True)
    said = attempt(
        "apptainer", "exec", "--bind", f"{tmp_path}:/mine", cpu.sif, "python", "/mine/setup.py", "--version"
    )
    assert said.returncode != 0
    assert "CUDA_HOME environment variable is not set" in said.stderr
