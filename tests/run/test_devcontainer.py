"""devcontainer.json and the label: valid by the specification's rules, the same in both, and never in place of a person's own."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import docker.errors
import jsonschema
import pytest
import yaml

from envbuilder import __version__, cli
from envbuilder.artifacts import docker_engine
from envbuilder.artifacts.docker_engine import DockerEngine
from envbuilder.core.errors import UsageError
from envbuilder.lock.model import LockedBase
from envbuilder.plan.model import OsStep, Plan, PythonStep, RuntimeStep
from envbuilder.run import exec as exec_module
from envbuilder.run.devcontainer import (
    FILE,
    LABEL,
    EditorFacts,
    image_labels,
    make_files,
    metadata,
    save_files,
)
from tests.support.bases import BASE

ROOT = Path(__file__).parents[2]
CPU = EditorFacts(python="3.11", has_cuda=False)
CUDA = EditorFacts(python="3.10", has_cuda=True)

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
FLAG = {"type": "boolean"}
COMMAND = {"type": ["string", "array", "object"]}
# The rules of containers.dev's devContainer.base.schema.json for what has an image or a Dockerfile, with every name that may
# stand in a label first.
IN_A_LABEL = {
    "hostRequirements": {
        "properties": {
            "cpus": {"type": "integer"}, "memory": TEXT, "storage": TEXT,
            "gpu": {"oneOf": [{"enum": [True, False, "optional"]}, {"type": "object"}]},
        },
        "additionalProperties": False,
    },
    "init": FLAG, "privileged": FLAG, "overrideCommand": FLAG, "updateRemoteUserUID": FLAG,
    "capAdd": TEXTS, "securityOpt": TEXTS,
    "mounts": {"type": "array", "items": {"anyOf": [TEXT, {"type": "object", "required": ["type", "target"]}]}},
    "containerEnv": {"type": "object", "additionalProperties": TEXT},
    "remoteEnv": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    "containerUser": TEXT, "remoteUser": TEXT,
    "userEnvProbe": {"enum": ["none", "loginShell", "loginInteractiveShell", "interactiveShell"]},
    "customizations": {"type": "object"},
    "onCreateCommand": COMMAND, "updateContentCommand": COMMAND, "postCreateCommand": COMMAND,
    "postStartCommand": COMMAND, "postAttachCommand": COMMAND,
    "shutdownAction": {"enum": ["none", "stopContainer"]},
}  # fmt: skip
IN_A_FILE = IN_A_LABEL | {
    "name": TEXT, "image": TEXT, "runArgs": TEXTS, "workspaceFolder": TEXT, "workspaceMount": TEXT,
    "features": {"type": "object"}, "initializeCommand": COMMAND, "forwardPorts": {"type": "array"},
    "build": {
        "properties": {"dockerfile": TEXT, "context": TEXT, "target": TEXT, "args": {"type": "object"}},
        "required": ["dockerfile"],
        "additionalProperties": False,
    },
}  # fmt: skip
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2019-09/schema",
    "type": "object",
    "properties": IN_A_FILE,
    "additionalProperties": False,
    "oneOf": [{"required": ["image"]}, {"required": ["build"]}],
    "dependentRequired": {"workspaceMount": ["workspaceFolder"], "workspaceFolder": ["workspaceMount"]},
}
LABEL_SCHEMA = {"type": "array", "items": {"properties": IN_A_LABEL, "additionalProperties": False}}


def written(facts: EditorFacts, image: str = "envbuilder/x:latest", **more: str) -> dict[str, str]:
    return make_files(
        "x", image, facts, base="debian/bookworm", mirror="http://mirror.example/debian/", **({"compose": ""} | more)
    )  # fmt: skip


def make_file(facts: EditorFacts) -> str:
    return written(facts)[FILE]


def check_schema(value: object, schema: dict[str, object]) -> None:
    jsonschema.Draft201909Validator.check_schema(schema)
    jsonschema.Draft201909Validator(schema).validate(value)


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))


@pytest.mark.parametrize("facts", [CPU, CUDA], ids=["cpu", "cuda"])
def test_the_file_is_valid(facts: EditorFacts):
    check_schema(json.loads(make_file(facts)), SCHEMA)


@pytest.mark.parametrize("cuda", ["", "12.4"])
def test_the_label_is_valid_and_says_nothing_that_only_a_file_can(cuda: str):
    name, text = image_labels(make_plan(cuda=cuda))[-1]
    assert name == LABEL
    check_schema(json.loads(text), LABEL_SCHEMA)


def test_the_projects_own_file_is_valid():
    text = (ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8")
    value = json.loads(without_comments(text))
    check_schema(value, SCHEMA)
    folder = ROOT / ".devcontainer"
    assert (folder / value["build"]["dockerfile"]).is_file()
    assert (folder / value["build"]["context"]).resolve() == ROOT


def test_the_schema_refuses_what_the_specification_has_not():
    with pytest.raises(jsonschema.ValidationError, match="gpus"):
        check_schema({"image": "x", "gpus": "all"}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        check_schema([{"runArgs": []}], LABEL_SCHEMA)


def test_the_whole_file(golden):
    files = written(CUDA, compose="My project") | {FILE: make_file(CUDA)}
    for name, text in files.items():
        golden(f"devcontainer-{name}" if name != FILE else name, text.replace(__version__, "VERSION"))


def test_the_compose_form_is_valid_and_leaves_gpus_to_a_second_file():
    files = written(CPU, compose="My project")
    value = json.loads(files[FILE])
    assert {"build", "image", "runArgs", "mounts"}.isdisjoint(value)
    check_schema(
        {"image": "x"}
        | {
            key: one
            for key, one in value.items()
            if key not in ("dockerComposeFile", "service", "workspaceFolder")
        },
        SCHEMA,
    )
    services = [
        yaml.safe_load(files[name])["services"][value["service"]]
        for name in ("compose.yaml", "compose.gpu.yaml")
    ]
    assert "deploy" not in services[0]
    assert services[1] == {
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
            }
        }
    }
    assert services[0]["working_dir"] == value["workspaceFolder"]


def test_on_an_image_of_others_the_second_environment_is_roots():
    files = make_files("x", "y", replace(CPU, has_user=False), base="", mirror="", compose="")
    assert "/root/venv/bin/python" in files[FILE]
    assert "vscode" not in files["Dockerfile"]


@pytest.mark.programs
def test_the_script_of_the_dockerfile_is_sound(tmp_path: Path):
    scripts = re.findall(r"<<'SCRIPT'\n(.*?)\nSCRIPT\n", written(CPU)["Dockerfile"], re.DOTALL)
    assert len(scripts) == 2
    # The dev container tools take any line that begins with `from` for a base image.
    assert not re.search(r"^\s*from\s", "\n".join(scripts), re.MULTILINE | re.IGNORECASE)
    for number, script in enumerate(scripts):
        (tmp_path / str(number)).write_text(script)
    found = subprocess.run(
        ["shellcheck", "--exclude=SC2086", *tmp_path.iterdir()], capture_output=True, text=True, check=False
    )  # SC2086: the list of packages is split
    assert found.stdout == ""


def test_an_environment_without_cuda_points_at_no_cuda():
    assert "cuda" not in make_file(CPU).lower()
    assert "nvidia" not in make_file(CPU)


def test_an_image_of_others_gets_no_user_of_ours():
    assert "remoteUser" not in metadata(EditorFacts(python="3.11", has_cuda=False, has_user=False))


def test_the_editor_reads_the_headers_of_the_python_that_is_used():
    assert "/usr/include/python3.11" in make_file(CPU)
    own = make_file(replace(CPU, has_standalone=True))
    assert "/opt/python/include/python3.11" in own
    assert "/usr/include/python3.11" not in own


def make_plan(base: LockedBase | None = None, cuda: str = "/usr/local/cuda") -> Plan:
    return Plan(
        name="x",
        platform="linux/amd64",
        epoch=0,
        steps=(
            OsStep(suite="bookworm", gcc="12", artifacts=(), base=base),
            PythonStep(python="3.10", artifacts=()),
            RuntimeStep(env=(("CUDA_HOME", cuda),) if cuda else (), labels=(("a", "b"),), files=()),
        ),
    )


def test_an_image_says_what_its_file_says():
    labels = dict(image_labels(make_plan()))
    assert labels["a"] == "b"
    (label,) = json.loads(labels[LABEL])
    written = {key: value for key, value in json.loads(make_file(CUDA)).items() if key in label}
    settings = written["customizations"]["vscode"]["settings"]
    # In the image alone there is no second environment.
    assert settings.pop("python.defaultInterpreterPath") == "/home/vscode/venv/bin/python"
    assert (
        label["customizations"]["vscode"]["settings"].pop("python.defaultInterpreterPath")
        == "/opt/env/bin/python"
    )
    assert label == written


def test_what_stands_on_an_image_of_others_has_no_user_of_ours():
    labels = dict(image_labels(make_plan(base=BASE, cuda="")))
    (label,) = json.loads(labels[LABEL])
    assert "remoteUser" not in label
    assert "cuda" not in labels[LABEL].lower()


def test_a_file_is_written_once_and_again(tmp_path: Path):
    (path,) = save_files(tmp_path, {FILE: "{}\n"}, force=False)
    assert (path, path.read_text()) == (tmp_path / ".devcontainer/devcontainer.json", "{}\n")
    assert save_files(tmp_path, {FILE: "{}\n"}, force=False) == (path,)


def test_a_persons_edits_are_kept_unless_they_say_otherwise(tmp_path: Path):
    (path,) = save_files(tmp_path, {FILE: "{}\n"}, force=False)
    path.write_bytes(b"\xff mine")
    with pytest.raises(UsageError, match="exists with other content") as refused:
        save_files(tmp_path, {FILE: "{}\n"}, force=False)
    assert "--force" in refused.value.hint
    assert path.read_bytes() == b"\xff mine"
    save_files(tmp_path, {FILE: "{}\n"}, force=True)
    assert path.read_text() == "{}\n"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / ".devcontainer").touch()
    with pytest.raises(UsageError, match="cannot write"):
        save_files(tmp_path, {FILE: "{}\n"}, force=False)


def test_a_link_that_a_project_brings_is_not_followed(tmp_path: Path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.devcontainer").symlink_to("../precious")
    with pytest.raises(UsageError, match="expected a folder, found a link"):
        save_files(tmp_path / "project", {FILE: "{}\n"}, force=True)
    assert list((tmp_path / "precious").iterdir()) == []


@pytest.mark.programs
def test_the_verb_writes_and_prints(
    clean_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.run(["devcontainer", "cpu", "--write", str(tmp_path), "--image", "registry.local/cpu:1"]) == 0
    path = tmp_path / ".devcontainer/devcontainer.json"
    dockerfile = path.with_name("Dockerfile")
    assert capsys.readouterr() == (f"{path}\n{dockerfile}\n", "")  # nobody knows what that registry has
    assert "ARG ENVIRONMENT=registry.local/cpu:1\n" in dockerfile.read_text()
    assert cli.run(["devcontainer", "cpu", "--write", str(tmp_path)]) == 2
    assert cli.run(["devcontainer", "cpu", "--write", str(tmp_path), "--print"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown.partition("\n==> .devcontainer/Dockerfile <==\n")[0])["name"] == "cpu"
    assert "ARG ENVIRONMENT=envbuilder/cpu:latest\n" in shown


@pytest.mark.programs
def test_an_image_that_the_engine_lacks_is_told_with_the_command_that_builds_it(
    clean_environment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    def get(_: str) -> NoReturn:
        raise docker.errors.ImageNotFound("404")

    engine = DockerEngine(SimpleNamespace(images=SimpleNamespace(get=get)))
    monkeypatch.setattr(docker_engine, "connect", lambda _: engine)
    words = ["devcontainer", "cpu", "--compose", "--write", str(tmp_path)]
    assert cli.run(words) == 0
    out, err = capsys.readouterr()
    assert sorted(map(Path, out.split())) == sorted((tmp_path / ".devcontainer").iterdir())
    assert "warning: the Docker engine has no image `envbuilder/cpu:latest`; `envbuilder build cpu`" in err
    monkeypatch.setattr(docker_engine, "connect", lambda _: None)
    assert cli.run(words) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.programs
@pytest.mark.parametrize(("machine", "warned"), [("x86_64", True), ("aarch64", False), ("arm64", False)])
def test_the_files_for_arm_are_written_on_any_machine_which_says_where_they_open(
    clean_environment: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    warned: bool,
):
    monkeypatch.setattr("envbuilder.core.processor.machine_name", lambda: machine)
    monkeypatch.setattr(exec_module, "EMULATORS", str(tmp_path))
    monkeypatch.setattr(docker_engine, "connect", lambda _: None)
    assert cli.run(["devcontainer", "gh200", "--write", str(tmp_path)]) == 0
    words = "the image of `gh200` is for 64-bit Arm, and this machine is x86-64; open the folder on a machine that is 64-bit Arm"
    assert capsys.readouterr().err == (f"warning: {words}\n" if warned else "")


def test_no_file_is_written_where_one_would_be_lost(tmp_path: Path):
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/Dockerfile").write_text("mine\n")
    with pytest.raises(UsageError, match="Dockerfile` exists with other content"):
        save_files(tmp_path, {FILE: "{}\n", "Dockerfile": "theirs\n"}, force=False)
    assert not (tmp_path / ".devcontainer" / FILE).exists()
