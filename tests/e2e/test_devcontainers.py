"""Dev containers by the real CLI and a real engine: the image alone, and the file that `devcontainer` writes.

VS Code does the same steps with the same code.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, ROOT, Built, attempt, open_folder, run

pytestmark = pytest.mark.builds

PERSON = 1234  # who works at the desk in these tests, and is nobody in the image
LOADED = "import torch, fused; print('loaded')"


PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
version = "1"
dependencies = ["torch"]
[tool.setuptools]
py-modules = ["mine"]
"""


@contextlib.contextmanager
def open_project() -> Iterator[Path]:
    """A folder whose containers and images go afterwards.

    Compose names its image after the folder, and `-_`, which a random name may hold, is no name of an image.
    """
    with open_folder() as parent:
        folder = parent / f"desk{os.getpid()}"
        folder.mkdir(mode=0o755)
        yield folder
        label = f"label=devcontainer.local_folder={folder}"
        for container in run("docker", "ps", "--all", "--quiet", "--filter", label).split():
            run("docker", "rm", "--force", container)
        # The tool makes an image of the project's own, and of that another with the person's numbers.
        filtered = ("--filter", f"reference=vsc-{folder.name}-*")
        made = run("docker", "images", "--format", "{{.Repository}}", *filtered)
        for image in made.split():
            run("docker", "image", "rm", "--force", image)


@pytest.fixture(params=["image", "file"])
def project(request: pytest.FixtureRequest, cpu: Built) -> Iterator[Path]:
    """A project of that person's, with the image alone or with the files."""
    with open_project() as folder:
        if request.param == "image":
            (folder / ".devcontainer").mkdir()
            (folder / ".devcontainer/devcontainer.json").write_text(json.dumps({"image": cpu.image}))
        else:
            run(ENVBUILDER, "devcontainer", "cpu", "--write", folder)
            (folder / "pyproject.toml").write_text(PYPROJECT)
            (folder / "mine.py").write_text("WHERE = __file__\n")
        (folder / "home").mkdir()
        run("chown", "-R", f"{PERSON}:{PERSON}", folder)
        yield folder


@pytest.fixture
def devcontainer(project: Path) -> Callable[..., str]:
    """The CLI as that person, who needs a name for it, and the right to speak with the engine."""
    passwd = project / "home/passwd"
    line = f"person:x:{PERSON}:{PERSON}::{project}/home:/bin/sh\n"
    passwd.write_text(Path("/etc/passwd").read_text() + line)
    engine = Path("/var/run/docker.sock").stat().st_gid
    script = f'mount --bind {passwd} /etc/passwd && exec setpriv --reuid {PERSON} --regid {PERSON} --groups {engine} "$@"'

    def call(verb: str, *words: str) -> str:
        command = ("devcontainer", verb, "--workspace-folder", project, *words)
        env = {"HOME": f"{project}/home", "TMPDIR": f"{project}/home"}
        return run("unshare", "--mount", "sh", "-c", script, "sh", *command, env=env, timeout=300)

    return call


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another person")
def test_a_project_opens_in_the_environment(project: Path, devcontainer: Callable[..., str]):
    answer = json.loads(devcontainer("read-configuration", "--include-merged-configuration").splitlines()[-1])
    merged = answer["mergedConfiguration"]
    assert merged["remoteUser"] == "vscode"
    assert merged["hostRequirements"]["gpu"] == "optional"
    for vscode in merged["customizations"]["vscode"]:
        assert vscode["settings"]["python.defaultInterpreterPath"] in (
            "/opt/env/bin/python", "/home/vscode/venv/bin/python"
        )  # fmt: skip

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

    if (project / "pyproject.toml").exists():
        check_second_environment(project, devcontainer)


def check_second_environment(project: Path, devcontainer: Callable[..., str]) -> None:
    """The person's tools and own packages, beside an environment that stays as it is."""
    assert devcontainer("exec", "git", "-C", "/opt", "--version").startswith("git version")
    assert "sleep" in devcontainer("exec", "ps", "-e")
    for words in (("which", "python"), ("bash", "-lc", "which python")):
        assert devcontainer("exec", *words) == "/home/vscode/venv/bin/python\n"
    before = devcontainer("exec", "sh", "-c", "find /opt/env -newer /opt/env/pyvenv.cfg | sort")
    devcontainer("exec", "pip", "install", "--no-build-isolation", "--no-index", "--editable", ".")
    mine = 'import torch, fused, mine; assert torch.__file__.startswith("/opt/env"); print(mine.WHERE)'
    assert devcontainer("exec", "python", "-c", mine) == f"/workspaces/{project.name}/mine.py\n"
    # Programs of the environment see the project, too.
    (project / "run.py").write_text("import mine\nprint('by torchrun', mine.WHERE)\n")
    assert "by torchrun /workspaces" in devcontainer("exec", "torchrun", "--standalone", "run.py")
    assert devcontainer("exec", "sh", "-c", "find /opt/env -newer /opt/env/pyvenv.cfg | sort") == before
    printed = devcontainer("exec", "sh", "-c", "pip install --no-index torch==2.6.0 2>&1 || true")
    assert "constraint" in printed


@pytest.mark.release
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what root's own project does")
def test_a_project_of_root_opens_by_compose(cpu: Built):
    """The files of a host's root can be written inside, and are root's afterwards. `tests/run/test_devcontainer.py` has the files."""
    with open_project() as folder:
        run(ENVBUILDER, "devcontainer", "cpu", "--compose", "--write", folder)
        (folder / "theirs").write_text("of root\n")
        base = ("docker-compose", "--file", "compose.yaml")
        for files in (base, (*base, "--file", "compose.gpu.yaml")):
            printed = run(*files, "config", cwd=folder / ".devcontainer")
            assert ("nvidia" in printed) == (files != base)
        try:
            up = json.loads(run("devcontainer", "up", "--workspace-folder", folder).splitlines()[-1])
            assert (up["outcome"], up["remoteUser"]) == ("success", "vscode")
            inside = ("devcontainer", "exec", "--workspace-folder", folder)
            run(*inside, "sh", "-c", "echo more >>theirs && git init --quiet && git status --short")
            assert run(*inside, "python", "-c", LOADED) == "loaded\n"
            assert (folder / "theirs").read_text() == "of root\nmore\n"
            assert (folder / ".git").stat().st_uid == 0
        finally:
            project = ("--project-name", f"{folder.name}_devcontainer")  # the tool reads no `.env` there
            run("docker-compose", *project, "down", "--rmi", "local", cwd=folder / ".devcontainer")


def test_the_projects_own_file_is_read_by_the_cli():
    """`test_the_projects_own_image_is_built` builds it before a release: CI has just installed every program of it."""
    printed = run("devcontainer", "read-configuration", "--workspace-folder", ROOT)
    configuration = json.loads(printed.splitlines()[-1])["configuration"]
    assert configuration["build"] == {"dockerfile": "Dockerfile", "context": ".."}
    assert configuration["postStartCommand"] == "make setup"


@pytest.mark.release
def test_the_projects_own_image_is_built(spacious: Path):
    """On a base that mmdebstrap makes, since a hub may be out of reach; with a site's certificate, as the hook says."""
    base, image = "envbuilder-e2e-own-base", "envbuilder-e2e-own"
    shutil.copytree(ROOT / ".devcontainer", spacious / "context/.devcontainer")
    (spacious / "context/scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", spacious / "context/scripts/setup")
    certificate = spacious / "context/.devcontainer/site.crt"
    run(
        "openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=site",
        "-keyout", spacious / "key", "-out", certificate,
    )  # fmt: skip
    run("mmdebstrap", "--variant=apt", "bookworm", spacious / "base.tar")
    run("docker", "import", spacious / "base.tar", base)
    try:
        dockerfile = spacious / "context/.devcontainer/Dockerfile"
        run(
            "docker", "build", "--file", dockerfile, "--tag", image, "--build-arg", f"BASE={base}",
            spacious / "context", timeout=1800,
        )  # fmt: skip
        tried = "command -v dockerd apptainer bwrap git && openssl verify /opt/setup/certificates/site.crt"
        assert run("docker", "run", "--rm", image, "sh", "-c", tried).endswith("site.crt: OK\n")
    finally:
        attempt("docker", "image", "rm", image, base)
