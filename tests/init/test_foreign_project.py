"""`init --from` of a stranger's project: no file of the user's is shown or written into the recipe, and no program of it runs."""

import os
import subprocess
from pathlib import Path

import pytest

from envbuilder.core.process import ProcessRunner
from envbuilder.init import read_source
from envbuilder.init.project import read_git
from envbuilder.init.requests import Requests
from tests.support.projects import deadline

SECRET = "the-users-password"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "work/project"
    (folder / ".git").mkdir(parents=True)
    for place in (tmp_path / "secret.txt", folder / ".git/config"):
        place.write_text(f"{SECRET} and words\n")
    return folder


def told(path: Path) -> str:
    requests = Requests()
    with deadline(20):
        read_source(path, requests)
    return f"{requests}"


@pytest.mark.parametrize(
    "name", ["requirements.txt", "environment.yml", "Dockerfile", "setup.cfg", "pyproject.toml"]
)
@pytest.mark.parametrize("target", ["../../secret.txt", ".git/config"])
def test_a_link_to_the_users_files_is_not_read(project: Path, name: str, target: str) -> None:
    (project / name).symlink_to(target)
    assert SECRET not in told(project)


@pytest.mark.parametrize("target", ["../../secret.txt", "ABSOLUTE", ".git/../../../secret.txt", "link.txt"])
@pytest.mark.parametrize("form", ["folder", "file", "dockerfile"])
def test_a_requirements_file_outside_the_project_is_left_out(project: Path, target: str, form: str) -> None:
    (project / "link.txt").symlink_to("../../secret.txt")
    given = target.replace("ABSOLUTE", str(project.parents[1] / "secret.txt"))
    (project / "requirements.txt").write_text(f"-r {given}\nnumpy\n")
    (project / "Dockerfile").write_text(f"FROM python:3.11\nCOPY . .\nRUN pip install -r {given}\n")
    path = {"folder": project, "file": project / "requirements.txt", "dockerfile": project / "Dockerfile"}[
        form
    ]
    text = told(path)
    assert SECRET not in text
    assert "numpy" in text or form == "dockerfile"


def test_a_project_outside_is_not_taken_over(project: Path) -> None:
    private = project.parents[1] / "private"
    private.mkdir()
    (private / "setup.py").write_text(f"from setuptools import setup\nsetup(name='{SECRET}')\n")
    (project / "requirements.txt").write_text("-e ../../private\n")
    assert "extensions={}" in told(project)


@pytest.mark.parametrize("name", ["setup.py", "requirements.txt", "net/op.cpp", ".gitmodules", "x.toml"])
def test_a_fifo_in_a_project_does_not_hang(project: Path, name: str) -> None:
    (project / "net").mkdir()
    (project / "net/op.cu").touch()
    (project / "pyproject.toml").write_text('[build-system]\nrequires = ["torch", "scikit-build-core"]\n')
    os.mkfifo(project / name)
    told(project)


@pytest.mark.programs
def test_the_settings_of_the_projects_repository_start_no_program(project: Path, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(project), *identity, *words], check=True, capture_output=True)

    (project / ".git/config").unlink()
    git("init", "--quiet")
    (project / "a.txt").touch()
    git("add", ".")
    key = tmp_path / "sign"
    key.write_text(
        "#!/bin/sh\ncat >/dev/null\nprintf '[GNUPG:] SIG_CREATED \\n' >&2\n"
        "printf -- '-----BEGIN PGP SIGNATURE-----\\nx\\n-----END PGP SIGNATURE-----\\n'\n"
    )
    key.chmod(0o755)
    git("-c", f"gpg.program={key}", "commit", "-S", "-qm", "signed")
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    for name, value in {
        "log.showSignature": "true",
        "gpg.program": str(evil),
        "core.fsmonitor": str(evil),
    }.items():
        git("config", name, value)
    requests = Requests()
    read_git(project, ProcessRunner({"PATH": os.environ["PATH"], "HOME": str(tmp_path)}), requests)
    assert requests.day
    assert not (tmp_path / "ran").exists()
