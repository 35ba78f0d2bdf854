"""Dev containers by the real CLI and a real engine: the image alone, and the file that `devcontainer` writes.

VS Code does the same steps with the same code.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, ROOT, Built, attempt, open_folder, run

pytestmark = pytest.mark.builds

PERSON = 1234  # who works at the desk in these tests, and is nobody in the image
LOADED = "import torch, fused; print('loaded')"


@pytest.fixture(params=["image", "file"])
def project(request: pytest.FixtureRequest, cpu: Built) -> Iterator[Path]:
    """A project of that person's, with the image alone or with the file; its containers and images go afterwards."""
    with open_folder() as folder:
        if request.param == "image":
            (folder / ".devcontainer").mkdir()
            (folder / ".devcontainer/devcontainer.json").write_text(json.dumps({"image": cpu.image}))
        else:
            run(ENVBUILDER, "devcontainer", "cpu", "--write", folder)
        (folder / "home").mkdir()
        run("chown", "-R", f"{PERSON}:{PERSON}", folder)
        yield folder
        label = f"label=devcontainer.local_folder={folder}"
        for container in run("docker", "ps", "--all", "--quiet", "--filter", label).split():
            image = run("docker", "inspect", "--format={{.Image}}", container).strip()
            run("docker", "rm", "--force", container)
            attempt("docker", "image", "rm", image)  # fails for the environment's own, which has another name


@pytest.fixture
def devcontainer(project: Path) -> Callable[..., str]:
    """The CLI as that person, who needs a name for it, and the right to speak with the engine."""
    passwd = project / "home/passwd"
    passwd.write_text(
        Path("/etc/passwd").read_text() + f"person:x:{PERSON}:{PERSON}::{project}/home:/bin/sh\n"
    )
    engine = Path("/var/run/docker.sock").stat().st_gid
    script = f'mount --bind {passwd} /etc/passwd && exec setpriv --reuid {PERSON} --regid {PERSON} --groups {engine} "$@"'

    def call(verb: str, *words: str) -> str:
        command = ("devcontainer", verb, "--workspace-folder", project, *words)
        env = {"HOME": f"{project}/home", "TMPDIR": f"{project}/home"}
        return run("unshare", "--mount", "sh", "-c", script, "sh", *command, env=env, timeout=300)

    return call


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another person")
def test_a_project_opens_in_the_environment(project: Path, devcontainer: Callable[..., str]):
    said = json.loads(devcontainer("read-configuration", "--include-merged-configuration").splitlines()[-1])
    merged = said["mergedConfiguration"]
    assert merged["remoteUser"] == "vscode"
    assert merged["hostRequirements"]["gpu"] == "optional"
    for vscode in merged["customizations"]["vscode"]:
        assert vscode["settings"]["python.defaultInterpreterPath"] == "/opt/env/bin/python"

    built = json.loads(devcontainer("build", "--image-name", "envbuilder-e2e-devcontainer").splitlines()[-1])
    run("docker", "image", "rm", "envbuilder-e2e-devcontainer")
    assert built["outcome"] == "success"

    up = json.loads(devcontainer("up").splitlines()[-1])
    assert (up["outcome"], up["remoteUser"]) == ("success", "vscode")
    assert devcontainer("exec", "python", "-c", LOADED) == "loaded\n"
    # Files belong to the person on both sides, and a home is there for VS Code's server and for compile caches.
    devcontainer("exec", "sh", "-c", "touch mine ~/cache")
    assert (project / "mine").stat().st_uid == PERSON
    megabytes = devcontainer("exec", "df", "--output=size", "-BM", "/dev/shm").split()[1]
    assert int(megabytes.rstrip("M")) > 64
    for header in merged["customizations"]["vscode"][-1]["settings"]["C_Cpp.default.includePath"][1:]:
        devcontainer("exec", "test", "-d", header)
    devcontainer(
        "exec", "test", "-x", merged["customizations"]["vscode"][-1]["settings"]["C_Cpp.default.compilerPath"]
    )


def test_the_projects_own_file_is_read_by_the_cli():
    """It is not built here: that fetches a base image and every program of `scripts/setup`, which CI has just installed."""
    said = run("devcontainer", "read-configuration", "--workspace-folder", ROOT)
    configuration = json.loads(said.splitlines()[-1])["configuration"]
    assert configuration["build"] == {"dockerfile": "Dockerfile", "context": ".."}
    assert configuration["postStartCommand"] == "make setup"
