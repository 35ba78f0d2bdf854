"""The virtual environment of `exec --writable`: what it shows a program, and what pip was asked for in it."""

import configparser
import json
import subprocess
import venv
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.errors import UsageError
from envbuilder.run.desk import through_venv
from envbuilder.run.desk_packages import installed, requested_names, venv_of

START = Path(__file__).parents[2] / "envbuilder/run/desk_start.py"
SHOW = "import os, sys, kept; print(sys.prefix, os.environ['PIP_CONSTRAINT'], kept.__file__, sep='\\n')"


def put(folder: Path, name: str, *, asked: bool = True, origin: dict[str, object] | None = None) -> None:
    """Write what pip writes of an installed package."""
    info = venv_of("a100", folder) / f"lib/python3.11/site-packages/{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    if asked:
        (info / "REQUESTED").touch()
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))


def test_what_pip_was_asked_for_becomes_requirements(tmp_path: Path):
    put(tmp_path, "einops")
    put(tmp_path, "needed", asked=False)
    commit = "0" * 40
    git = {"url": "https://host/team/project", "vcs_info": {"vcs": "git", "commit_id": commit}}
    put(tmp_path, "project", origin=git)
    assert installed("a100", tmp_path) == ("einops==1.2", f"git+https://host/team/project@{commit}")
    assert requested_names("a100", tmp_path) == ("einops", "project")
    assert requested_names("h100", tmp_path) == ()


def test_a_package_of_a_folder_and_an_empty_environment_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="pip has installed nothing in"):
        installed("a100", tmp_path)
    put(tmp_path, "mine", origin={"url": "file:///home/me/mine", "dir_info": {"editable": True}})
    with pytest.raises(UsageError, match="`mine` was installed from `file:///home/me/mine`"):
        installed("a100", tmp_path)


def test_pip_has_the_indexes_and_the_certificates_of_the_machine(tmp_path: Path):
    """The container has another `/etc`, and folders of the machine are not in it."""
    place, authorities = venv_of("a100", tmp_path), tmp_path / "site.pem"
    (place / "pip/pip").mkdir(parents=True)  # as if it was fetched
    authorities.write_text("-----BEGIN CERTIFICATE-----\n")
    indexes = "https://index.example/simple https://team.example/simple file:///srv/simple"
    environment = {"ENVBUILDER_INDEX": indexes, "PIP_CERT": str(authorities)}
    argv = through_venv(Outputs(folder=tmp_path, name="a100"), tmp_path, ("pip", "list"), environment)
    assert argv[1:] == (str(place / "start.py"), "pip", "list")
    settings = configparser.RawConfigParser()
    settings.read(place / "pip.conf")
    assert dict(settings["global"]) == {
        "index-url": "https://index.example/simple/", "extra-index-url": "https://team.example/simple/",
    }  # fmt: skip
    assert (place / "pip.conf").stat().st_mode & 0o077 == 0  # an address may hold a password
    assert (place / "certificates.pem").read_text() == authorities.read_text()


@pytest.mark.programs
def test_a_program_sees_the_packages_of_both_and_ends_with_its_own_code(tmp_path: Path):
    environment, place = tmp_path / "env", tmp_path / "my project"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "kept.py").touch()
    (packages / "kept-1.2.dist-info").mkdir()
    (packages / "kept-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: kept\nVersion: 1.2\n")
    program = environment / "bin/show-prefix"
    program.write_text(f"#!{environment}/bin/python\nimport sys; print(sys.prefix)\n")
    program.chmod(0o755)
    place.mkdir()
    start = place / "start.py"
    start.write_text(START.read_text())

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        python = environment / "bin/python"
        return subprocess.run([python, start, *words], capture_output=True, text=True, check=False)

    prefix, constraints, file = run("python", "-c", SHOW).stdout.splitlines()
    assert (prefix, file) == (str(place), str(packages / "kept.py"))
    assert Path(constraints).read_text() == "kept==1.2\n"
    assert run("show-prefix").stdout == f"{place}\n"
    assert run("python", "-c", "raise SystemExit(7)").returncode == 7
    show = "import os; print(os.environ.get('PIP_CERT'), os.environ.get('SSL_CERT_FILE'))"
    (place / "certificates.pem").touch()
    assert run("python", "-c", show).stdout.count(str(place / "certificates.pem")) == 2
    missing = run("no-such-program")
    assert (missing.returncode, missing.stderr) == (127, "no-such-program: No such file or directory\n")
