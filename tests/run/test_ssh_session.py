"""The way into a SIF on another machine: the settings for `ssh`, the keys, and what the other side says."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder import __version__, cli
from envbuilder.core.errors import CommandError, LaunchError, UsageError
from envbuilder.run.launch.site import Site, SshSite
from envbuilder.run.ssh_session import SshSession, ensure_key, render_config, render_setup, set_up_session
from tests.support.runner import FakeRunner

SITE = Site(modules=("apptainer/1.3",), ssh=SshSite(options=("-p", "22%2")), binds=("$SCRATCH",))
ANSWER = {"ssh": "welcome to the cluster\nme\nssh-ed25519 AAAA envbuilder-a100\n"}


def session(folder: Path) -> SshSession:
    return SshSession(
        name="a100", sif=Path("/scratch/it's mine/a100.sif"), host="me@login", site=SITE, folder=folder
    )


def test_the_whole_texts(golden):
    setup = render_setup(session(Path("/home/me/.ssh/envbuilder")), "ssh-ed25519 BBBB")
    golden("remote-setup.sh", setup.replace(f"envbuilder {__version__}", "envbuilder VERSION"))
    golden("remote.config", render_config(session(Path("/home/me/.ssh/envbuilder")), "me"))


@pytest.mark.programs
def test_shellcheck_finds_nothing(tmp_path: Path):
    script = tmp_path / "setup.sh"
    script.write_text("#!/usr/bin/env bash\n" + render_setup(session(tmp_path), "ssh-ed25519 BBBB"))
    checked = subprocess.run(
        ["shellcheck", "--exclude=SC2016", script], capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""


def test_the_other_machine_is_asked_once_and_believed_from_then_on(tmp_path: Path):
    runner = FakeRunner(ANSWER)
    config = set_up_session(session(tmp_path / "doors"), runner, force=False)
    (asked,) = runner.commands
    assert asked.argv == ("ssh", "-p", "22%2", "--", "me@login", "bash", "-s")
    assert asked.input.decode() == render_setup(session(tmp_path), ensure_key(tmp_path / "doors/a100.key"))
    assert config.read_text() == render_config(session(tmp_path / "doors"), "me")
    known = tmp_path / "doors/a100.known_hosts"
    assert known.read_text() == "envbuilder-a100 ssh-ed25519 AAAA envbuilder-a100\n"


@pytest.mark.programs
def test_a_key_is_ours_alone_and_kept(tmp_path: Path):
    path = tmp_path / "keys/x.key"
    public = ensure_key(path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    told = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True).stdout
    assert told.split()[:2] == public.split()[:2]
    assert ensure_key(path) == public


def test_a_folder_without_room_for_a_key_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot keep a key"):
        ensure_key(tmp_path / "file/x.key")


def test_what_ssh_says_comes_with_what_to_try(tmp_path: Path):
    class Refusing(FakeRunner):
        def run(self, command: object, **_: object) -> str:
            raise CommandError("could not set up sessions: Permission denied")

    with pytest.raises(LaunchError, match="Permission denied") as refused:
        set_up_session(session(tmp_path), Refusing(), force=False)
    assert refused.value.hint == "`ssh me@login` must work first"


def test_a_host_that_is_an_option_of_ssh_is_refused_before_anything_is_done(tmp_path: Path):
    runner = FakeRunner(ANSWER)
    with pytest.raises(UsageError, match="`--ssh` takes a host such as"):
        set_up_session(replace(session(tmp_path / "doors"), host="-oProxyCommand=id"), runner, force=False)
    assert not runner.commands
    assert not (tmp_path / "doors").exists()


def test_an_answer_of_another_kind_is_no_answer(tmp_path: Path):
    with pytest.raises(LaunchError, match="did not print"):
        set_up_session(session(tmp_path), FakeRunner({"ssh": "\n"}), force=False)


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("option", ["--print", "--image=x"])
def test_what_is_of_docker_alone_is_refused_before_anything_is_done(option: str, tmp_path: Path):
    folder = tmp_path / "doors"
    assert cli.run(["devcontainer", "cpu", "--ssh", "nowhere.invalid", "--write", str(folder), option]) == 2
    assert not folder.exists()
