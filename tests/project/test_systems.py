"""Other systems and processors: what is refused there, and a clone whose line ends git would change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.errors import ToolError
from envbuilder.runners.toolbox import make_toolbox

ROOT = Path(__file__).parents[2]


@pytest.mark.programs
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_is_refused_in_a_sentence(system: str):
    code = f"import sys; sys.platform = {system!r}; import envbuilder.cli"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, "envbuilder runs on Linux alone\n")


def test_the_toolbox_is_refused_on_another_processor(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("envbuilder.core.processor.machine_name", lambda: "aarch64")
    with pytest.raises(ToolError, match="for x86-64, and this machine is 64-bit Arm") as caught:
        make_toolbox(Store(tmp_path), None, None)
    assert "run `envbuilder lock` on x86-64" in caught.value.hint


@pytest.mark.programs
def test_a_clone_has_the_same_bytes_whatever_git_makes_of_line_ends_elsewhere(tmp_path: Path):
    for name in ("repository", "clone"):
        (tmp_path / name).mkdir()
    source = tmp_path / "repository"
    (source / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    (source / "a.cpp").write_bytes(b"int a;\n")
    (source / "a.bin").write_bytes(b"\x00\r\n\x00")

    def git(*words: object) -> None:
        user = ("-c", "user.name=a", "-c", "user.email=a", "-c", "core.autocrlf=true")
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *user, *map(str, words)], cwd=source, env=env, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "All of it")
    git("clone", source, tmp_path / "clone")
    for name in ("a.cpp", "a.bin"):
        assert (tmp_path / "clone" / name).read_bytes() == (source / name).read_bytes()
