"""What of envbuilder lies in an image: files that run there, and no other one, since each is part of the layer's key."""

import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder import runtime as image

LIB = dict((*image.files("lib"), *image.modules("node/nccl")))
START = dict(image.files("start"))
# What is started or read by its path, each where this test or the named file does so.
PROGRAMS = {"envbuilder_nccl/__main__.py", "envbuilder_nccl/rank.py", "envbuilder_smoke/__main__.py"}
READ = {"envbuilder.pth": "", "envbuilder_extensions/messages.json": "envbuilder_extensions/compiling.py"}
# As much of torch as the programs of an image ask for.
TORCH = {
    "torch/__init__.py": "import sys\nsys.stdout.write(f'torch in {sys.argv[0]}\\n')\nclass cuda:\n    device_count = staticmethod(lambda: 0)\n",
    "torch/distributed.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "def load(): ...\ndef load_inline(): ...\n",
    "torch-2.6.0+cu124.dist-info/METADATA": "",
}
TRAINING = """
import site, sys
site.addsitedir({site!r})
import envbuilder_start
envbuilder_start.LIB = {lib!r}
import torch.utils.cpp_extension
sys.path.insert(0, {lib!r})
import envbuilder_nccl
envbuilder_nccl.prepare(envbuilder_nccl.Node({root!r}, [{site!r}]))
"""


@pytest.mark.programs
def test_each_module_in_an_image_is_imported_there(tmp_path: Path):
    lib, site, root = (tmp_path / name for name in ("lib", "site", "root"))
    files = {lib: LIB, site: START | TORCH, root: {"dev/nvidiactl": ""}}
    for folder, texts in files.items():
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": f"{site}:{lib}",
    }  # fmt: skip

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    said = [
        run("-S", "-c", TRAINING.format(lib=str(lib), site=str(site), root=str(root))),
        run("-S", str(lib / "envbuilder_nccl"), "--measure"),
        run("-m", "envbuilder_smoke", "--check"),
        run("-m", "envbuilder_smoke"),
        run("-m", "envbuilder_smoke", "--compare"),
    ]
    # Python leaves the code of each module that it imports.
    compiled = {path.relative_to(folder) for folder in (lib, site) for path in folder.rglob("*.pyc")}
    imported = {str(path.parents[1] / path.name.partition(".")[0]) + ".py" for path in compiled}
    shipped = {name for name in (*LIB, *START) if name not in READ}
    assert shipped - PROGRAMS - imported == set(), "\n".join(said)
    assert "0 GPUs are visible to torch" in said[1]  # so says the program rank.py


def test_each_other_file_in_an_image_is_read_there():
    every = LIB | START
    assert {name for name in every if not name.endswith(".py")} == set(READ)
    for name, reader in READ.items():
        assert not reader or Path(name).name in every[reader]
    assert "rank.py" in every["envbuilder_nccl/__main__.py"]
