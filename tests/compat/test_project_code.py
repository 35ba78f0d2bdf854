"""What `check` reads in a project's own files: standards that torch refuses, and GPUs that are not the recipe's."""

import dataclasses
from pathlib import Path

import pytest

from envbuilder.compat.project_code import check_code, check_cuda_code, check_modules, describe_layout
from envbuilder.core.findings import Severity
from envbuilder.recipe.extension import Extension
from tests.support.locks import RECIPE, TABLES

PROJECT = Extension(name="ops", path="ops")
CAPTURE = Extension(name="ops", path="ops", capture=("import ops",))
LOAD = "from torch.utils.cpp_extension import load\nload('ops', ['a.cu'], extra_cflags=['-std=c++14'])\n"


@pytest.mark.parametrize(
    ("extension", "file", "text", "said"),
    [
        (PROJECT, "setup.py", "flags = ['-O3', '-std=c++14']\n", ["sets `-std=c++14` at ops/setup.py:1, and the headers of torch 2.6.0 need C++17"]),
        (PROJECT, "setup.py", "flags = ['-std=c++17', 'sm_80', 'compute_80']\n", []),
        (PROJECT, "setup.py", "from distutils.core import Extension\nExtension('a', ['a.cpp'], extra_compile_args=['-std=c++11'])\n", []),
        (PROJECT, "setup.py", "a = 1\nflags = ['-gencode=arch=compute_37,code=sm_37', '-gencode', 'arch=compute_80,code=sm_80']\n",
         ["names GPUs of its own at ops/setup.py:2 (3.7), and is compiled for those of the recipe"]),
        (PROJECT, "setup.py", "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '3.7+PTX;8.0;9.0'\n", ["at ops/setup.py:2 (3.7, 9.0)"]),
        (PROJECT, "setup.py", "print(f'-gencode=arch=compute_{arch}')\n", []),
        (PROJECT, "setup.py", "not python at all\n", []),
        (PROJECT, "other.py", "flags = ['-std=c++14']\n", []),
        (CAPTURE, "net/ops.py", LOAD, ["sets `-std=c++14` at ops/net/ops.py:2"]),
        (CAPTURE, "net/ops.py", "flags = ['-std=c++14']\n", []),
    ],
)  # fmt: skip
def test_a_projects_flags_are_read_before_anything_is_compiled(
    extension: Extension, file: str, text: str, said: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "ops" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    recipe = dataclasses.replace(RECIPE, path=tmp_path / "x.yaml", extensions=(extension,))
    found = [finding.message.replace(f"{tmp_path}/", "") for finding in check_code(recipe, TABLES)]
    assert len(found) == len(said)
    assert all(words in message for words, message in zip(said, found, strict=True)), found


FROM_TORCH = (
    "import os, sys, torch\nfrom setuptools import setup\nfrom torch.utils.cpp_extension import *\n".replace(
        "*", "BuildExtension, CppExtension, CUDAExtension, CUDA_HOME, load, load_inline"
    )
)
BOTH = "kind = CUDAExtension if {} else CppExtension\nsetup(ext_modules=[kind('a', ['a.cpp'])])\n"
NEEDS_CUDA = {
    "an extension of CUDA": "setup(ext_modules=[CUDAExtension('a', ['a.cpp'])])\n",
    "by its whole name": "from torch.utils import cpp_extension as c\nsetup(ext_modules=[c.CUDAExtension('a', [])])\n",
    "as a program": "if __name__ == '__main__':\n    setup(ext_modules=[CUDAExtension('a', [])])\n",
    "a source for nvcc": "SOURCES = ['a.cpp', 'a.cu']\nsetup(ext_modules=[CppExtension('a', SOURCES)])\n",
    "beside one for the CPU": "setup(ext_modules=[CppExtension('a', ['a.cpp']), CUDAExtension('b', ['b.cpp'])])\n",
    "in a list with a name": "modules = [CUDAExtension('a', [])]\nsetup(ext_modules=modules)\n",
    "in a function that is called": "def main():\n    setup(ext_modules=[CppExtension('a', ['x/' + 'a.cu'])])\nmain()\n",
    "after a branch": "if os.name == 'nt':\n    flags = []\nsetup(ext_modules=[CUDAExtension('a', [])])\n",
}
MAY_NEED = {
    "by another name": "def modules():\n    return [CUDAExtension('a', [])]\nsetup(ext_modules=modules())\n",
    "chosen later": "gpu, cpu = CUDAExtension('a', []), CppExtension('a', [])\n"
    "setup(ext_modules=[gpu if os.environ.get('GPU_BUILD') else cpu])\n",
    "a list that is changed": "m = [CUDAExtension('a', [])]\nif os.getenv('CPU'):\n    m = []\nsetup(ext_modules=m)\n",
    "where one branch has no extension": "m = [CUDAExtension('a', [])]\n(setup(ext_modules=m) if os.getenv('GPU') else setup())\n",
}
DECIDES = {
    "by the toolkit of torch": "setup(ext_modules=[CppExtension('a', ['a.cpp'] + (['a.cu'] if torch.version.cuda else []))])\n",
    "by torch's version": "s = ['a.cpp']\nif torch.version.cuda:\n    s = ['a.cu']\nsetup(ext_modules=[CppExtension('a', s)])\n",
    "by an index": "setup(ext_modules=[[CppExtension('a', []), CUDAExtension('a', [])][bool(torch.version.cuda)]])\n",
    "by a count": "setup(ext_modules=[CppExtension('a', ['a.cu'] * len(os.getenv('GPU', '')))])\n",
    "by a name": "USE_CUDA = os.getenv('A') == '1'\nif not USE_CUDA:\n    print('CPU')\nsetup(ext_modules=[CUDAExtension('a', [])])\n",
    "a list that is replaced": "s = ['a.cu']\nif os.getenv('CPU'):\n    s = ['a.cpp']\nsetup(ext_modules=[CppExtension('a', s)])\n",
    "a file that is no source": "setup(ext_modules=[CppExtension('a', ['a.cpp'], depends=['a.cu'])])\n",
    "in a called function": "def early():\n    if os.getenv('CPU'):\n        setup()\n        sys.exit()\nearly()\n"
    "setup(ext_modules=[CUDAExtension('a', [])])\n",
    "by a function in a branch": "def early():\n    sys.exit(setup())\nif os.getenv('CPU'):\n    early()\n"
    "setup(ext_modules=[CUDAExtension('a', [])])\n",
    "by the GPU": BOTH.format("torch.cuda.is_available()"),
    "by the toolkit": BOTH.format("CUDA_HOME"),
    "by a variable": BOTH.format("os.getenv('WITH_CUDA')"),
    "in a branch": "modules = []\nif os.getenv('WITH_CUDA'):\n    modules += [CUDAExtension('a', ['a.cu'])]\n",
    "in a value": "modules = [CUDAExtension('a', [])] if os.getenv('WITH_CUDA') else []\n",
    "by leaving": "if not os.getenv('WITH_CUDA'):\n    sys.exit(setup())\nsetup(ext_modules=[CUDAExtension('a', [])])\n",
    "by returning": "def modules():\n    if not os.getenv('WITH_CUDA'):\n        return []\n    return [CUDAExtension('a', [])]\n"
    "setup(ext_modules=modules())\n",
    "by trying": "try:\n    setup(ext_modules=[CUDAExtension('a', [])])\nexcept OSError:\n    setup()\n",
    "never": "def modules():\n    return [CUDAExtension('a', [])]\nsetup(ext_modules=[CppExtension('a', ['a.cpp'])])\n",
    "through a list": "setup(ext_modules=[CUDAExtension(one, []) for one in os.environ.get('OPS', '').split()])\n",
}


def cuda_findings(folder: Path, extension: Extension, file: str, text: str, **change: object) -> list[str]:
    path = folder / "ops" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FROM_TORCH + text)
    without = {"cuda": "", "gpus": (), "path": folder / "x.yaml", "extensions": (extension,)}
    recipe = dataclasses.replace(RECIPE, **{**without, **change})  # type: ignore[arg-type]
    found = list(check_cuda_code(recipe))
    assert all(one.code == "EB312" and "`gpus: [A100]`" in one.hint for one in found)
    return [one.severity for one in found]


@pytest.mark.parametrize("case", NEEDS_CUDA)
def test_a_project_that_surely_needs_cuda_is_refused_without(case: str, tmp_path: Path) -> None:
    text = NEEDS_CUDA[case]
    assert cuda_findings(tmp_path, PROJECT, "setup.py", text) == [Severity.ERROR]
    assert cuda_findings(tmp_path, PROJECT, "setup.py", text, image="base:1") == [Severity.WARNING]
    assert cuda_findings(tmp_path, PROJECT, "setup.py", text, cuda="12.4", gpus=("A100",)) == []


@pytest.mark.parametrize("case", MAY_NEED)
def test_a_project_that_may_not_take_what_needs_cuda_is_warned_of(case: str, tmp_path: Path) -> None:
    assert cuda_findings(tmp_path, PROJECT, "setup.py", MAY_NEED[case]) == [Severity.WARNING]


@pytest.mark.parametrize("case", DECIDES)
def test_a_project_that_decides_for_itself_is_not_refused(case: str, tmp_path: Path) -> None:
    assert cuda_findings(tmp_path, PROJECT, "setup.py", DECIDES[case]) == []


@pytest.mark.parametrize(
    ("file", "text", "refused"),
    [
        ("ops.py", "load('a', ['a.cpp', 'a.cu'])\n", True),
        ("ops/__init__.py", "load(name='a', sources=[os.path.join('x', 'a.cu')])\n", True),
        ("ops.py", "load_inline('a', '', cuda_sources='')\n", True),
        ("ops.py", "load('a', ['a.cpp'])\n", False),
        ("ops.py", "if torch.cuda.is_available():\n    load('a', ['a.cu'])\n", False),
        ("ops.py", "def get():\n    return load('a', ['a.cu'])\n", False),
        ("others.py", "load('a', ['a.cu'])\n", False),
    ],
)
def test_a_captured_call_that_surely_needs_cuda_is_refused_without(
    file: str, text: str, refused: bool, tmp_path: Path
) -> None:
    assert cuda_findings(tmp_path, CAPTURE, file, text) == [Severity.ERROR] * refused


def test_two_projects_that_build_one_module_are_told_before_they_are_compiled(tmp_path: Path) -> None:
    setup = "from torch.utils.cpp_extension import CUDAExtension\nmodules = [CUDAExtension(NAME)]\n"
    names = {
        "a": "'ops', []",
        "b": "sources=[], name='ops'",
        "c": "'other', []",
        "d": "f'{x}', []",
        "e": "f'{x}', []",
    }
    for folder, name in names.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "setup.py").write_text(setup.replace("NAME", name))
    extensions = tuple(Extension(name=one, path=one) for one in names)
    (found,) = check_modules(dataclasses.replace(RECIPE, path=tmp_path / "x.yaml", extensions=extensions))
    assert found.code == "EB355"
    assert found.message.replace(f"{tmp_path}/", "") == (
        "`a` and `b` both build the module `ops` (a/setup.py:2, b/setup.py:2), and one environment can have one of them"
    )


@pytest.mark.parametrize(("folder", "name", "shown"), [
    ("pkg", "'pkg._C'", "run that folder's `pkg` with the environment's compiled `pkg._C`, as with an editable install"),
    ("pkg/ops", "name='pkg.ops._C'", "run that folder's `pkg` with the environment's compiled `pkg.ops._C`"),
    ("src/pkg", "'pkg._C'", ""),
    ("pkg", "'pkg_cuda'", ""),
    ("pkg", "f'{pkg}._C'", ""),
])  # fmt: skip
def test_how_a_flat_project_runs_is_one_line(folder: str, name: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "setup.py").write_text(
        f"from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension({name}, sources=['a.cu'])\n"
    )
    extension = Extension(name="pkg", path=".")
    recipe = dataclasses.replace(RECIPE, path=tmp_path / "x.yaml", extensions=(extension, CAPTURE))
    lines = list(describe_layout(recipe))
    assert len(lines) == bool(shown)
    assert all(line.startswith(f"programs in `{tmp_path}` {shown}") for line in lines)
