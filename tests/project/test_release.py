"""A release: which files it has, that it is the same bytes wherever it is made, and what it refuses."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest

from envbuilder import __version__

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.programs


def git(folder: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env |= {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    ended = subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return ended.stdout


def checkout(folder: Path) -> Path:
    """This working tree as a repository of one commit, whose day is fixed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not what was removed since the last commit
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    shutil.copymode(ROOT / "scripts/release", folder / "scripts/release")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All of it")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / ".git/info/exclude").write_text("/.venv\n")
    return folder


def release(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = ["scripts/release", "--offline"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release of this working tree."""
    folder = checkout(tmp_path_factory.mktemp("release") / "one")
    ended = release(folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "dist"


def test_a_wheel_has_exactly_these_files(made: Path, golden: Callable[[str, str], None]):
    with zipfile.ZipFile(made / f"envbuilder_hpc-{__version__}-py3-none-any.whl") as wheel:
        names = sorted(wheel.namelist())
    golden("release-wheel.txt", "".join(f"{name}\n" for name in names))


def test_an_sdist_has_exactly_these_files(made: Path, golden: Callable[[str, str], None]):
    with tarfile.open(made / f"envbuilder_hpc-{__version__}.tar.gz") as sdist:
        names = sorted(member.name for member in sdist if member.isfile())
    golden("release-sdist.txt", "".join(f"{name}\n" for name in names if "/envbuilder/" not in name))
    with zipfile.ZipFile(made / f"envbuilder_hpc-{__version__}-py3-none-any.whl") as wheel:
        package = sorted(name for name in wheel.namelist() if name.startswith("envbuilder/"))
    package = [name for name in package if "/examples/" not in name]  # the sdist has them in `recipes`
    assert [name.partition("/")[2] for name in names if "/envbuilder/" in name] == package


def test_a_wheel_has_every_file_of_the_recipes(made: Path):
    with zipfile.ZipFile(made / f"envbuilder_hpc-{__version__}-py3-none-any.whl") as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist() if "/examples/" in name}
    listed = subprocess.run(
        ["git", "ls-files", "recipes"], cwd=made.parent, check=True, capture_output=True, text=True
    )
    assert packed == {
        name.replace("recipes/", "envbuilder/examples/", 1): (ROOT / name).read_bytes()
        for name in listed.stdout.splitlines()
    }


def test_the_start_of_the_single_file_can_be_read_by_an_old_python():
    ast.parse((ROOT / "scripts/zipapp_main.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("sys.version_info = (3, 6, 8)", "envbuilder needs Python 3.11 or newer, and this is Python 3.6"),
        ("sys.version_info = (3, 19, 0)", "this file is for Python 3.11, 3.12, and this is Python 3.19"),
        ("platform.machine = lambda: 'aarch64'", "this file is for x86-64 Linux with glibc, and this is Linux aarch64"),
        ("platform.system = lambda: 'Darwin'; del os.confstr", "this is Darwin x86_64"),
        ("os.confstr = lambda name: 'glibc 2.17'", "envbuilder needs glibc 2.28 or newer, and this is glibc 2.17"),
        ("sys.version_info = (3, 11, 0); os.environ['XDG_CACHE_HOME'] = '/dev/null'", "`/dev/null/envbuilder-app` could not be made"),
    ],
)  # fmt: skip
def test_the_single_file_says_in_one_sentence_where_it_cannot_run(change: str, told: str, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "one.pyz", "w") as archive:
        archive.write(ROOT / "scripts/zipapp_main.py", "__main__.py")
        archive.writestr("pythons.txt", "3.11\n3.12")
        archive.writestr("requirements.txt", "")
    code = f"import os, platform, runpy, sys; {change}; runpy.run_path({str(tmp_path / 'one.pyz')!r}, run_name='__main__')"
    ended = subprocess.run([sys.executable, "-I", "-c", code], check=False, capture_output=True, text=True)
    assert (ended.returncode, told in ended.stderr.splitlines()[0]) == (8, True), ended.stderr
    assert ended.stderr.splitlines()[1:2] == [""]
    assert ended.stderr.splitlines()[2].startswith("hint: ")


def test_the_wheel_says_what_it_is(made: Path):
    with zipfile.ZipFile(made / f"envbuilder_hpc-{__version__}-py3-none-any.whl") as wheel:
        told = message_from_bytes(wheel.read(f"envbuilder_hpc-{__version__}.dist-info/METADATA"))
    assert (told["Name"], told["Version"]) == ("envbuilder-hpc", __version__)
    assert (told["License-Expression"], told["License-File"]) == ("MIT", "LICENSE")
    assert told["Requires-Python"] == ">=3.11"
    assert not [one for one in told.get_all("Requires-Dist", []) if "extra" in one]


def test_the_same_commit_gives_the_same_bytes_elsewhere_and_later(made: Path, tmp_path: Path):
    other = checkout(tmp_path / "another folder")
    for path in other.rglob("*.py"):
        os.utime(path, (0, 0))
    ended = release(other)
    assert ended.returncode == 0, ended.stderr
    assert {path.name: path.read_bytes() for path in (other / "dist").iterdir()} == {
        path.name: path.read_bytes() for path in made.iterdir()
    }


def test_what_no_commit_has_or_the_changelog_leaves_out_is_not_released(tmp_path: Path):
    folder = checkout(tmp_path / "folder")
    (folder / "envbuilder/new.py").touch()
    ended = release(folder)
    assert (ended.returncode, ended.stderr.count("uncommitted")) == (1, 1)
    (folder / "envbuilder/__init__.py").write_text('"""One."""\n\n__version__ = "9.9.9"\n')
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "A version without a word")
    ended = release(folder)
    assert (ended.returncode, ended.stderr.count("no heading for 9.9.9")) == (1, 1)
    assert not (folder / "dist").exists()
