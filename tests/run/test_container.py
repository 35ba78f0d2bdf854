"""Running inside an artifact: as few options as each runtime needs, and how it ended."""

import dataclasses
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import NoReturn

import docker.errors
import pytest

from envbuilder.artifacts import docker_engine
from envbuilder.artifacts.docker_engine import DockerEngine
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.core.errors import ToolError, UsageError
from envbuilder.core.process import Completed
from envbuilder.core.processor import PROCESSORS
from envbuilder.plan.shell import left_out
from envbuilder.run import container as run_module
from envbuilder.run import exec as exec_module
from envbuilder.run.container import (
    START_FILE,
    Surroundings,
    image_argv,
    image_options,
    keep_out,
    need_docker,
    probe_surroundings,
    project_folder,
    run_in_sif,
    sif_argv,
    sif_options,
    want_bind,
)
from envbuilder.run.exec import ExecOptions, Form, execute, need_processor
from envbuilder.run.launch.script import PARTS, quoted_list
from envbuilder.run.launch.site import Site
from envbuilder.run.named import need_image
from tests.support.toys import write_recipe_sif

HERE = Surroundings(folder=Path("/home/me/project"), binds=("/home/me/project",), user="1:2")
WITH_GPU = replace(HERE, gpu=True)
NAMES = [name.replace("*", "X") for name in left_out()]


def test_a_sif_gets_the_project_and_what_keeps_foreign_packages_out_and_no_more():
    assert sif_options(HERE) == [
        "--bind", "/home/me/project", "--bind", f"{START_FILE}:/etc/profile:ro",
        "--env", "PYTHONNOUSERSITE=1", "--env", "SHELL=/bin/bash",
    ]  # fmt: skip


@pytest.mark.programs
@pytest.mark.parametrize(
    ("environment", "changes"),
    [
        ({"PYTHONHOME": "/a", "CONDA_PREFIX": "/b", "MINE": "1"}, {"PYTHONHOME": None, "CONDA_PREFIX": None}),
        (dict.fromkeys(NAMES, "/x"), dict.fromkeys(NAMES)),
        ({"PYTHONPATH": "src:/p/lib"}, {}),
        ({"PYTHONPATH": "/elsewhere:/p/lib::src"}, {"PYTHONPATH": "/p/lib:src"}),
        ({"PYTHONPATH": "/p/.venv/lib/python3.9/site-packages"}, {"PYTHONPATH": None}),
        ({"PYTHONPATH": "/p/lib", "HOME": "/p"}, {"PYTHONPATH": None}),  # the home is no project
    ],
)
def test_another_python_is_kept_out_and_the_projects_own_folders_stay(environment, changes):
    home = {"HOME": environment["HOME"]} if "HOME" in environment else {}
    assert dict(keep_out(environment, Path("/p"))) == changes
    path = environment.get("PYTHONPATH")
    shell = subprocess.run(
        ["bash", "-euc", f'left_out={quoted_list(left_out())} untold=(); . "$0/keep_out.sh"; keep_out /p; env', PARTS],
        env={"PATH": os.environ["PATH"], **home, **environment}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = dict(line.split("=", 1) for line in shell.splitlines())
    assert found.get("PYTHONPATH") == changes.get("PYTHONPATH", path)
    assert not {name for name, value in changes.items() if value is None} & set(found)


def test_a_variable_that_is_given_on_purpose_reaches_both_forms(tmp_path):
    around = probe_surroundings(
        tmp_path, environment={"PYTHONPATH": "/x"}, ids=(1, 2), given={"PYTHONPATH": "/x"}
    )
    line = sif_argv(Path("x.sif"), ["true"], around)
    assert line[:5] == ("env", "-u", "PYTHONPATH", "APPTAINERENV_PYTHONPATH=/x", "apptainer")
    assert image_options(around)["environment"]["PYTHONPATH"] == "/x"


def test_a_sif_gets_the_driver_where_there_is_one():
    assert sif_options(WITH_GPU)[0] == "--nv"


def test_a_sif_is_not_given_again_what_apptainer_shares_with_it():
    around = replace(HERE, binds=("/tmp/x", "/var/tmp", "/scratch", "/tmp/data:/data"))
    assert sif_options(around)[:4] == ["--bind", "/scratch", "--bind", "/tmp/data:/data"]


def test_the_command_line_of_a_sif():
    argv = sif_argv(Path("/out/x.sif"), ["python", "-c", "print('two words')"], WITH_GPU)
    assert argv[:3] == ("apptainer", "exec", "--nv")
    assert argv[-5:] == ("/out/x.sif", "env", "python", "-c", "print('two words')")


def test_a_sif_without_a_command_is_a_shell():
    assert sif_argv(Path("x.sif"), [], HERE)[1] == "shell"


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("/home/me/project", True),
        ("/scratch", True),
        ("/opt/mine", True),
        ("/", False),
        ("/usr/share/x", False),
        ("/opt", False),
        ("/opt/env/lib", False),
        ("/tmp", False),
        ("relative", False),
    ],
)
def test_no_mount_may_hide_the_environment(folder, wanted):
    assert want_bind(PurePosixPath(folder)) is wanted


def test_the_project_is_the_checkout_around_the_folder(tmp_path):
    inner = tmp_path / "src/deep"
    inner.mkdir(parents=True)
    assert project_folder(inner) == inner
    (tmp_path / ".git").mkdir()
    assert project_folder(inner) == tmp_path


@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_seen_of_this_machine(tmp_path, monkeypatch, gpu):
    device, temporary = tmp_path / "nvidiactl", tmp_path / "scratch"
    temporary.mkdir()
    if gpu:
        device.touch()
    monkeypatch.setattr(run_module, "GPU_DEVICE", device)
    environment = {"TMPDIR": str(temporary), "USER": "me", "SECRET": "x"}
    around = probe_surroundings(tmp_path, environment=environment, ids=(1, 2), binds=("/data",))
    assert around == Surroundings(
        folder=tmp_path, gpu=gpu, user="1:2", binds=(str(tmp_path), str(temporary), "/data"),
        names=(("HOME", "/tmp"), ("USER", "me"), ("TMPDIR", str(temporary))),
    )  # fmt: skip


def test_start_files_are_replaced_in_the_home_of_the_account_too(tmp_path, monkeypatch):
    for name in ("account", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".bashrc").touch()
    monkeypatch.setattr(run_module, "home_of", lambda user: str(tmp_path / "account"))
    around = probe_surroundings(tmp_path, environment={"HOME": str(tmp_path / "other")}, ids=(1, 2))
    assert around.start_files == (f"{tmp_path}/other/.bashrc", f"{tmp_path}/account/.bashrc")


@pytest.mark.programs
def test_without_apptainer_a_sif_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="Apptainer is not installed"):
        run_in_sif(tmp_path / "x.sif", ["true"], HERE)


@pytest.mark.programs
def test_an_apptainer_that_may_not_be_started_is_a_tool_error(tmp_path, monkeypatch):
    """A folder of PATH that is closed to the user gives the same error of the kernel, though nothing is installed."""
    for name in ("apptainer", "singularity"):
        (tmp_path / name).touch(mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="Apptainer does not start: Permission denied"):
        run_in_sif(tmp_path / "x.sif", ["true"], HERE)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("script", "ran"),
    [
        ("echo out", Completed(code=0, output="out\n")),
        ("echo one; echo two; exit 3", Completed(code=3, output="one\ntwo\n")),
        ("echo why >&2; exit 4", Completed(code=4, output="why\n")),
        ("true", Completed(code=0, output="")),
    ],
)
def test_a_run_in_a_sif_ends_with_its_code_and_all_it_said(tmp_path, monkeypatch, script, ran):
    """A stand-in for Apptainer, which runs what follows the SIF."""
    stand_in = tmp_path / "singularity"  # the name by which spython calls Apptainer
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != x.sif ]; do shift; done\nshift\nexec "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_in_sif(Path("x.sif"), ["sh", "-c", script], HERE) == ran


@pytest.mark.programs
def test_a_test_of_a_sif_has_a_home_that_it_can_read(tmp_path, monkeypatch):
    """spconv looks for its settings there when it is imported, and Apptainer sets the account's, which is root's."""
    stand_in = tmp_path / "singularity"
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != x.sif ]; do shift; done\nshift\nHOME=/root exec "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    alone = dataclasses.replace(HERE, alone=tmp_path)
    assert run_in_sif(Path("x.sif"), ["sh", "-c", "echo $HOME"], alone).output == "/tmp\n"


@pytest.mark.programs
def test_an_apptainer_that_may_start_nothing_is_no_failure_of_the_program(tmp_path, monkeypatch):
    stand_in = tmp_path / "singularity"
    says = "ERROR  : Failed to create mount namespace: maximum number of mount namespaces exceeded"
    stand_in.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ToolError, match="may start no container here: Failed to create mount namespace"):
        run_in_sif(Path("x.sif"), ["true"], HERE)


def test_an_image_gets_the_project_the_user_and_the_host_memory():
    assert image_options(replace(HERE, names=(("USER", "me"),))) == {
        "entrypoint": "/opt/envbuilder/start",
        "user": "1:2",
        "volumes": ["/home/me/project:/home/me/project"],
        "working_dir": "/home/me/project",
        "environment": {"PYTHONNOUSERSITE": "1", "SHELL": "/bin/bash", "USER": "me"},
        "ipc_mode": "host",
        "init": True,
        "device_requests": None,
    }


def test_an_image_gets_all_gpus_where_there_are_any():
    (request,) = image_options(WITH_GPU)["device_requests"]
    assert (request["count"], request["capabilities"]) == (-1, [["gpu"]])


def test_the_command_line_of_an_image():
    line = shlex.join(image_argv("envbuilder/x", ("true", "two words"), WITH_GPU, terminal=True))
    assert line == (
        "docker --context=default run --rm --pull=never --init --interactive --tty "
        "--entrypoint=/opt/envbuilder/start --user=1:2 --ipc=host --gpus=all "
        "--volume=/home/me/project:/home/me/project --workdir=/home/me/project --env=PYTHONNOUSERSITE=1 --env=SHELL=/bin/bash "
        "envbuilder/x true 'two words'"
    )


def test_without_the_docker_command_an_image_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="its command `docker` is not installed") as caught:
        need_docker()
    assert "--in sif" in caught.value.hint


def held() -> DockerEngine:
    """An engine that has one image."""
    identity = "sha256:" + "a" * 64
    image = SimpleNamespace(id=identity, attrs={"Id": identity, "RootFS": {"Layers": ["sha256:1"]}})
    return DockerEngine(SimpleNamespace(images=SimpleNamespace(get=lambda _: image)))


def record(manifest: str, folder: Path) -> Outputs:
    outputs = Outputs(folder=folder, name="x")
    Record(key="k", manifest=manifest, sif="c" * 64, sif_size=1, content_size=1).save(outputs.record)
    return outputs


def test_an_image_of_another_checkout_is_told_and_run(tmp_path, caplog):
    outputs = record("b" * 64, tmp_path)
    assert need_image(held(), "x", outputs, tmp_path) == "sha256:" + "a" * 64
    (warning,) = caplog.messages
    assert "`envbuilder/x:latest` is sha256:aaaaaaaaaaaa, but the build in" in warning
    assert "is sha256:bbbbbbbbbbbb; " in warning
    assert warning.endswith("`envbuilder build x` loads it")


def test_the_image_that_was_built_here_or_where_nothing_was_is_run_in_silence(tmp_path, caplog):
    need_image(held(), "x", record("a" * 64, tmp_path), tmp_path)
    need_image(held(), "x", Outputs(folder=tmp_path, name="other"), tmp_path)
    assert caplog.messages == []


@pytest.mark.parametrize("form", ["", "image"])
def test_without_a_sif_it_is_said_that_the_command_runs_in_the_image(
    form: Form, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    class Ended(Exception):  # noqa: N818
        """The process was replaced."""

    def replaced(*_: object) -> NoReturn:
        raise Ended

    monkeypatch.setattr(docker_engine, "connect", lambda _: held())
    monkeypatch.setattr(exec_module, "exec_process", replaced)
    monkeypatch.setattr(run_module, "need_docker", lambda: None)
    options = ExecOptions(
        name="x", argv=("true",), form=form, terminal=False, output=tmp_path, site=Site(), folder=tmp_path, ids=(1, 2)
    )  # fmt: skip
    with pytest.raises(Ended):
        execute(options, {})
    said = f"there is no SIF `{tmp_path}/x.sif`, and the command runs in the image `envbuilder/x:latest`"
    assert caplog.messages == ([] if form else [said])


@pytest.mark.programs
def test_a_sif_of_another_processor_is_refused_unless_the_kernel_emulates_it(tmp_path, monkeypatch):
    monkeypatch.setattr(exec_module, "EMULATORS", str(tmp_path))
    own, other = sorted(PROCESSORS, key=lambda one: one.machine != os.uname().machine)
    sif = write_recipe_sif(tmp_path / "x.sif", "{}")
    for processor in (own, other):
        with sif.open("r+b") as stream:
            stream.seek(45)  # in the header
            stream.write(processor.sif.encode())
        if processor is own:
            need_processor(sif)
    with pytest.raises(UsageError, match=rf"x\.sif` is for {other.title}, and this machine is {own.title}"):
        need_processor(sif)
    options = ExecOptions(
        name=str(sif), argv=("true",), form="sif", terminal=False, output=tmp_path, site=Site(), folder=tmp_path, ids=(1, 2)
    )  # fmt: skip
    monkeypatch.setattr(run_module, "need_apptainer", lambda _: None)
    with pytest.raises(UsageError, match="and this machine is"):
        execute(options, {})
    (tmp_path / f"qemu-{other.machine}").touch()
    need_processor(sif)


@pytest.mark.programs
@pytest.mark.parametrize("line", ["pip list", "pip3 install einops", "python -m pip list"])
@pytest.mark.parametrize("has_pip", [False, True])
def test_pip_in_an_environment_without_it_is_answered_with_what_adds_packages(
    tmp_path, monkeypatch, line, has_pip
):
    """A stand-in for Apptainer, which runs what follows the SIF with the programs of a folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    programs = {"python": "#!/bin/sh\necho '/bin/python: No module named pip' >&2\nexit 1\n"}
    if has_pip:
        programs = dict.fromkeys(("pip", "pip3", "python"), "#!/bin/sh\necho pip 26\n")
    stand_in = (
        f'while [ "$1" != {tmp_path}/x.sif ]; do shift; done\nshift 2\nPATH={inside} exec /usr/bin/env "$@"\n'
    )
    for name, text in programs.items():
        (inside / name).write_text(text)
        (inside / name).chmod(0o755)
    (tmp_path / "apptainer").write_text(f"#!/bin/sh\n{stand_in}")
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = []
    monkeypatch.setattr(exec_module, "exec_process", lambda argv, _: started.append(argv))
    sif = write_recipe_sif(tmp_path / "x.sif", "{}")
    options = ExecOptions(
        name=str(sif), argv=tuple(line.split()), form="", terminal=True, output=tmp_path, site=Site(),
        folder=tmp_path, ids=(1, 2),
    )  # fmt: skip
    if has_pip:
        execute(options, os.environ)
        assert started[0][-len(options.argv) :] == options.argv
        return
    with pytest.raises(UsageError, match="there is no pip in") as caught:
        execute(options, os.environ)
    assert "`envbuilder add x PACKAGE`" in caught.value.hint
    assert f"`envbuilder exec {sif} --writable -- {line}`" in caught.value.hint
    assert not started


def test_an_image_that_is_not_there_has_the_hint_to_build_it(tmp_path):
    def get(_: str) -> NoReturn:
        raise docker.errors.ImageNotFound("404")

    engine = DockerEngine(SimpleNamespace(images=SimpleNamespace(get=get)))
    with pytest.raises(UsageError) as caught:
        need_image(engine, "x", Outputs(folder=tmp_path, name="x"), tmp_path)
    assert str(caught.value) == "the Docker engine has no image `envbuilder/x:latest`"
    assert "`envbuilder build x`" in caught.value.hint
