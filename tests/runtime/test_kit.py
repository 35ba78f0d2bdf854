"""The programs that make extensions inside a container, around what compiles: which files are there, what is called, what is left."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder import runtime as image
from envbuilder.core.cache import sha256_file


@dataclass(frozen=True)
class Container:
    """The kit in a root where Python is what a test says: /kit, /context and /out are folders below `folder`."""

    folder: Path

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = [
            "bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
            "--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/usr/local", "--bind", str(self.folder / "out"), "/out",
        ]  # fmt: skip
        binds = {
            "kit": "/kit",
            "context": "/context",
            "env": "/opt/env",
            "space": "/space",
            "cuda": "/usr/local/cuda",
        }
        for source, target in binds.items():
            argv += ["--ro-bind-try", str(self.folder / source), target]
        return subprocess.run([*argv, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    for folder in ("kit/0", "context/csrc/deep", "out", "env/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in image.files("kit"):
        (tmp_path / "kit" / name).write_text(text)
    (tmp_path / "kit/0/environment").write_text("export MINE='a b'\n")
    python = tmp_path / "env/bin/python"
    python.write_text(
        '#!/bin/sh\n{ echo "$MINE" "$PWD" "$@"; find /space/src -type f | sort; } >>/out/said\n'
    )
    python.chmod(0o755)
    return Container(tmp_path)


@pytest.mark.programs
def test_an_extension_is_compiled_from_exactly_its_own_sources(container: Container):
    """Around the compilers: which files are there, what is called, and what is left."""
    folder = container.folder
    for name in ("csrc/a b.cpp", "csrc/deep/c.h", "csrc/other.cpp"):
        (folder / "context" / name).write_text(name)
    listed = [
        f"{sha256_file(folder / 'context' / name)}  {name}\n" for name in ("csrc/a b.cpp", "csrc/deep/c.h")
    ]
    (folder / "kit/0/sources").write_text("".join(listed))
    run = ("sh", "/kit/compile_one.sh", "/kit/0", "/context", "/out")
    assert container.run(*run).returncode == 0
    files = ["/space/src/csrc/a b.cpp", "/space/src/csrc/deep/c.h"]
    assert (folder / "out/said").read_text().splitlines() == [
        "a b /space/src /kit/compile_extension.py /kit/0/spec.json", *files,
        "a b /space/src /kit/install_extension.py /kit/0/entry.json /out", *files,
    ]  # fmt: skip
    (folder / "context/csrc/deep/c.h").write_text("edited since")
    ended = container.run(*run)
    assert ended.returncode != 0
    assert "csrc/deep/c.h: FAILED" in ended.stdout


@pytest.mark.programs
def test_a_project_is_built_in_its_own_folder_from_a_copy_of_its_files(container: Container):
    own = container.folder / "kit/0"
    (own / "src/a project").mkdir(parents=True)
    (own / "src/a project/setup.py").write_text("")
    (own / "src/shared.h").write_text("")
    (own / "project").write_text("/space/src/a project")
    ended = container.run("sh", "/kit/compile_one.sh", "/kit/0", "/context", "/out")
    assert ended.returncode == 0, ended.stderr
    files = ["/space/src/a project/setup.py", "/space/src/shared.h"]
    assert (container.folder / "out/said").read_text().splitlines() == [
        "a b /space/src/a project /kit/build_project.py /kit/0/spec.json", *files,
        "a b /space/src/a project /kit/install_extension.py /kit/0/entry.json /out", *files,
    ]  # fmt: skip


FACTS = {"torch": "2.0", "cuda": "12.4", "cxx11_abi": True, "python": "cpython-311", "files": {}}


def place(container: Container, name: str, *gpus: str) -> "subprocess.CompletedProcess[str]":
    """Put what lies in /space/tree into /out as the project `name`."""
    (container.folder / "space/facts.json").write_text(json.dumps(FACTS))
    spec = {
        "entry": {"name": name, "function": "package", "key": "k"},
        "head": {"version": 2, "architectures": list(gpus)},
        "architectures": list(gpus),
        "project": "/space/src",
    }
    (container.folder / "space/entry.json").write_text(json.dumps(spec))
    return container.run("/usr/bin/python3", "/kit/install_extension.py", "/space/entry.json", "/out")


def write_tree(container: Container, *names: str) -> None:
    """What a project installed, and a source for a GPU among its files."""
    shutil.rmtree(container.folder / "space", ignore_errors=True)
    for name in names:
        path = container.folder / "space/tree/opt/env" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (container.folder / "space/src").mkdir()
    (container.folder / "space/src/a.cu").write_text("")


@pytest.mark.programs
def test_what_projects_installed_is_placed_and_listed_in_their_order(container: Container):
    for name in ("zeta", "alpha"):
        write_tree(container, f"lib/{name}/core.so", f"lib/{name}/__init__.py")
        (container.folder / f"space/tree/opt/env/lib/{name}/core.so.1").symlink_to("core.so")
        assert place(container, name).returncode == 0
    lib = container.folder / "out/opt/env/lib"
    placed = {str(path.relative_to(lib)) for path in lib.rglob("*.*")}
    assert placed == {
        f"{name}/{file}" for name in ("zeta", "alpha") for file in ("core.so", "core.so.1", "__init__.py")
    }
    assert (lib / "zeta/core.so.1").is_symlink()
    index = json.loads((container.folder / "out/opt/envbuilder/extensions/index.json").read_text())
    assert [(one["name"], one["size"], one["targets"]) for one in index["extensions"]] == [
        ("zeta", 16, []),
        ("alpha", 17, []),
    ]
    assert (index["torch"], index["python"]) == ("2.0", "cpython-311")
    write_tree(container, "lib/alpha/core.so")
    ended = place(container, "other")
    assert ended.returncode == 1
    assert ended.stderr == "the extension other installs /opt/env/lib/alpha/core.so, as another does\n"


@pytest.mark.programs
@pytest.mark.parametrize(
    ("held", "targets", "told"),
    [
        ("ELF file    1: core.so.1.sm_80.cubin", ["sm_80"], ""),
        ("", [], "holds code for no GPU; the recipe's GPUs need sm_80"),
        ("ELF file    1: core.so.1.sm_70.cubin", [], "holds code for sm_70; the recipe's GPUs need sm_80"),
        ("PTX file    1: core.so.1.sm_80.ptx", [], "holds code for compute_80; the recipe's GPUs need sm_80"),
        (
            "ELF file    1: core.so.1.sm_75.cubin\nELF file    2: core.so.2.sm_80.cubin",
            ["sm_75", "sm_80"],
            "",
        ),
    ],
)
def test_a_project_holds_code_for_the_recipes_gpus_or_is_refused(
    container: Container, held: str, targets: list[str], told: str
):
    write_tree(container, "lib/core.so")
    tool = container.folder / "cuda/bin/cuobjdump"
    tool.parent.mkdir(parents=True)
    kind = "--list-elf" if "cubin" in held else "--list-ptx"
    tool.write_text(f'#!/bin/sh\n[ "$1" != {kind} ] || echo "{held}"\n')
    tool.chmod(0o755)
    ended = place(container, "x", "8.0")
    assert told in ended.stderr
    assert bool(told) == bool(ended.returncode)
    if not told:
        index = json.loads((container.folder / "out/opt/envbuilder/extensions/index.json").read_text())
        assert index["extensions"][0]["targets"] == targets


NVCC = """
#include <stdio.h>
int main(int count, char **words) { for (int at = 1; at < count; at++) printf("%s%c", words[at], at + 1 < count ? ' ' : '\\n'); }
"""
FOR_80, FOR_90 = (f"-gencode=arch=compute_{gpu},code=sm_{gpu}" for gpu in (80, 90))


@pytest.mark.programs
def test_nvcc_gets_the_recipes_gpus_whichever_a_project_names(container: Container):
    """A program in place of nvcc prints its arguments; `steady.sh` compiles its library with the machine's gcc."""
    tools = container.folder / "cuda/bin"
    tools.mkdir(parents=True)
    (tools / "cudafe++").touch()
    subprocess.run(["gcc", "-x", "c", "-o", tools / "nvcc", "-"], input=NVCC, text=True, check=True)
    script = (container.folder / "kit/steady.sh").read_text().replace("/space", "/tmp")
    (container.folder / "kit/steady.sh").write_text(script)
    asked = {
        f"-c a.cu {FOR_80}": f"-c a.cu {FOR_80}",
        "-c a.cu": f"-c a.cu {FOR_80}",
        "-gencode arch=compute_37,code=sm_37 -gencode=arch=compute_75,code=compute_75 -c a.cu": f"-c a.cu {FOR_80}",
        "-arch=sm_70 -rdc=true -c a.cpp": f"-rdc=true -c a.cpp {FOR_80}",
        "--gpu-architecture native -dlink a.o": f"-dlink a.o {FOR_80}",
        "-arch=sm_75 -ptx a.cu": "-arch=sm_75 -ptx a.cu",
        "--version": "--version",
    }
    call = "for words in {}; do /usr/local/cuda/bin/nvcc $words; done".format(
        " ".join(f"'{one}'" for one in asked)
    )
    run = ("env", "_ENVBUILDER_GPUS=8.0", "sh", "/kit/steady.sh", "sh", "-c", call)
    assert container.run(*run).stdout.splitlines() == list(asked.values())
    run = ("env", "_ENVBUILDER_GPUS=8.0;9.0", "sh", "/kit/steady.sh", "/usr/local/cuda/bin/nvcc")
    assert (
        container.run(*run, "-arch=sm_90a", "a.cu").stdout == f"a.cu {FOR_80} {FOR_90.replace('90', '90a')}\n"
    )
    own = container.run("sh", "/kit/steady.sh", "/usr/local/cuda/bin/nvcc", "-arch=sm_75", "a.cu")
    assert own.stdout == "-arch=sm_75 a.cu\n", "the sources of a recipe keep their flags"
