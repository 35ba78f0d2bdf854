"""A Jupyter kernel: what Jupyter reads, what starts it, and what is refused. `tests/e2e/test_jupyter.py` starts real ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.core.errors import UsageError
from envbuilder.run.kernel import BOOT, Form, Kernel, render_files, save_kernel
from envbuilder.run.launch.site import Site
from envbuilder.run.ssh_session import parse_srun

CONNECTION = '{\n  "shell_port": 4001,\n "iopub_port": 4002,\n  "key": "secret",\n "ip": "127.0.0.1"\n}\n'
# Stands in for ipykernel: shows that the file arrived, starts a program that reads stdin, and waits.
STAND_IN = """
import json, subprocess, sys, time
def launch_new_instance(argv):
    read = subprocess.run(["cat"], capture_output=True, text=True).stdout
    print(json.load(open(argv[1]))["shell_port"], repr(read), flush=True)
    time.sleep(60)
"""


def make_kernel(form: Form = "sif", **more: str) -> Kernel:
    sif = Path("/data/a100@x.sif")
    return Kernel(name="a100@x", form=form, sif=sif, site=Site(), **({"place": ""} | more))


def test_jupyter_takes_the_name_and_the_file(tmp_path: Path):
    spec = save_kernel(make_kernel(), tmp_path, force=False)
    assert spec == tmp_path / "envbuilder-a100-x/kernel.json"
    value = json.loads(spec.read_text())
    assert value["argv"] == [str(spec.with_name("start")), "{connection_file}"]
    assert os.access(value["argv"][0], os.X_OK)
    assert value["interrupt_mode"] == "message"
    other = make_kernel("ssh", place="slurm-me@login", config="/c", host="envbuilder-a100-slurm")
    assert other.folder == "envbuilder-a100-x-slurm-me-login"


def test_a_persons_edits_of_a_kernel_are_kept(tmp_path: Path):
    spec = save_kernel(make_kernel(), tmp_path, force=False)
    spec.write_text("{}")
    with pytest.raises(UsageError, match="exists with other content"):
        save_kernel(make_kernel(), tmp_path, force=False)
    save_kernel(make_kernel(), tmp_path, force=True)
    assert json.loads(spec.read_text())["language"] == "python"


@pytest.mark.programs
def test_the_kernels_script_is_sound(tmp_path: Path):
    for form in ("sif", "image", "ssh"):
        (tmp_path / form).write_text(render_files(make_kernel(form), tmp_path)["start"])
    found = subprocess.run(["shellcheck", *tmp_path.iterdir()], capture_output=True, text=True, check=False)
    assert found.stdout == ""


@pytest.mark.programs
def test_over_ssh_every_port_is_forwarded_and_nothing_else_is_open(tmp_path: Path):
    spec = save_kernel(
        make_kernel("ssh", place="n1", config="/my settings", host="there"), tmp_path / "k", force=False
    )
    (tmp_path / "ssh").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nhead -n 1\n')
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "connection").write_text(CONNECTION)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = subprocess.run(
        [spec.with_name("start"), tmp_path / "connection"],
        env={"PATH": path}, capture_output=True, text=True, check=True, timeout=300,
    ).stdout.splitlines()  # fmt: skip
    assert said[:2] == ["-F", "/my settings"]
    assert [said[at + 1] for at, word in enumerate(said) if word == "-L"] == [
        "127.0.0.1:4001:127.0.0.1:4001",
        "127.0.0.1:4002:127.0.0.1:4002",
    ]
    assert json.loads(said[-1])["key"] == "secret"
    assert said[-1].count("secret") == 1
    assert not any("secret" in word for word in said[:-1])  # arguments are visible to everybody


@pytest.mark.programs
def test_a_kernel_ends_with_its_client_and_programs_cannot_read_its_stdin(tmp_path: Path):
    (tmp_path / "ipykernel").mkdir()
    (tmp_path / "ipykernel/__init__.py").touch()
    (tmp_path / "ipykernel/kernelapp.py").write_text(STAND_IN)
    with subprocess.Popen(
        [sys.executable, "-c", BOOT.read_text()],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as kernel:  # fmt: skip
        assert kernel.stdin is not None
        assert kernel.stdout is not None
        kernel.stdin.write(CONNECTION.replace("\n", "") + "\n")
        kernel.stdin.flush()
        assert kernel.stdout.readline() == "4001 ''\n"
        assert kernel.poll() is None
        kernel.stdin.close()
        assert kernel.wait(20) == 0


@pytest.mark.programs
def test_without_ipykernel_the_recipes_line_is_said(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-S", "-c", BOOT.read_text()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "add `ipykernel` to the `packages` of its recipe" in ended.stderr


def test_options_of_srun():
    assert parse_srun("--gpus=1 '--comment=my job'") == ("--gpus=1", "--comment=my job")
    assert parse_srun("") is None
    with pytest.raises(UsageError, match="found `1`"):
        parse_srun("--gpus 1")
    with pytest.raises(UsageError, match="open quote"):
        parse_srun("'--gpus")


def test_a_link_in_place_of_a_kernels_folder_is_not_followed(tmp_path: Path):
    """A folder of kernels may be shared, and come with a project."""
    (tmp_path / "precious").mkdir()
    kernels, kernel = tmp_path / "kernels", make_kernel()
    kernels.mkdir()
    (kernels / kernel.folder).symlink_to("../precious")
    with pytest.raises(UsageError, match="expected a folder, found a link"):
        save_kernel(kernel, kernels, force=True)
    assert list((tmp_path / "precious").iterdir()) == []
