"""What a project's own programs see in the sandbox: a GPU of the recipe, its architectures, and sorted folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder import steps

pytestmark = pytest.mark.programs
FILES = {
    "torch/__init__.py": "class cuda: is_available = staticmethod(lambda: False)\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "import os\ndef _get_cuda_arch_flags(cflags=None): return os.environ['TORCH_CUDA_ARCH_LIST']\n"
    "def is_ninja_available(): return True\n"
    "class BuildExtension:\n    use_ninja = force = False\n"
    "    def build_extensions(self): print('ninja', self.use_ninja, self.force)\n",
    "triton/__init__.py": "",
    "triton/runtime/__init__.py": "",
    "triton/runtime/driver.py": """
class Config:
    active = None
    def set_active(self, driver): self.active = driver
driver = Config()
""",
    "triton/backends/__init__.py": "",
    "triton/backends/compiler.py": "GPUTarget = lambda *given: given\n",
}
LOOKED_FOR = "import importlib.util; assert importlib.util.find_spec('torch'); "
# What a setup.py does with a class as torch's.
BUILD = """
import types
from torch.utils.cpp_extension import BuildExtension
build = BuildExtension()
build.extensions = [types.SimpleNamespace(include_dirs=["csrc"], extra_compile_args={{"cxx": [{flags}]}})]
build.build_extensions()
print(build.extensions[0].include_dirs[0].startswith("/"))
"""
OWN_LIST = "import os; os.environ['TORCH_CUDA_ARCH_LIST'] = '3.7+PTX'; "


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import torch; print(torch.cuda.is_available(), torch.cuda.get_device_capability())", "True (9, 0)"),
        (LOOKED_FOR + "import torch; print(torch.cuda.is_available())", "True"),
        (OWN_LIST + "from torch.utils import cpp_extension as one; print(one._get_cuda_arch_flags(['-O3']))", "8.0;9.0a"),
        ("from triton.runtime.driver import driver; print(driver.active.get_current_target())", "('cuda', 90, 32)"),
        ("from triton.runtime.driver import driver; print(driver.active.get_benchmarker()(len))", "[0.0]"),
        (BUILD.format(flags="'-O3'"), "ninja True True\nTrue"),
        (BUILD.format(flags="'-Icsrc'"), "ninja False False\nFalse"),
        ("import os; print(sorted(os.listdir('.')) == os.listdir('.'))", "True"),
    ],
)  # fmt: skip
def test_a_program_sees_the_recipes_gpu(tmp_path: Path, line: str, said: str):
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/sitecustomize.py").write_text(steps.text("sitecustomize.py"))
    env = os.environ | {
        "PYTHONPATH": f"{tmp_path}/custom:{tmp_path}/site",
        "_ENVBUILDER_CAPABILITY": "9.0a",
        "_ENVBUILDER_GPUS": "8.0;9.0a",
    }
    words = [sys.executable, "-B", "-c", line]
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == (said, "")
