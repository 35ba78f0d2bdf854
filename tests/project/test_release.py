"""A release: which files it has, that it is the same bytes wherever it is made, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from pathlib import Path

import pytest

from envbuilder import __version__
from envbuilder.artifacts.signing import load_public, signed_by
from envbuilder.artifacts.statement import read_signed_release
from envbuilder.core.cache import sha256_file
from envbuilder.core.processor import X86_64
from scripts.make_single_file import pack, start_of

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


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A single file whose program prints its words."""
    app = tmp_path / "app"
    (app / "usr/bin").mkdir(parents=True)
    for name, text in {"python3": "exit 0", "envbuilder": "printf '%s,' \"$@\""}.items():
        (app / "usr/bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (app / "usr/bin" / name).chmod(0o755)
    payload = pack(app)
    (tmp_path / "one.run").write_bytes(start_of(payload, X86_64) + payload)
    (tmp_path / "one.run").chmod(0o755)
    return tmp_path / "one.run"


def start(single: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    env = {"HOME": str(single.parent / "home"), "PATH": "/usr/bin:/bin"} | env
    return subprocess.run([single, *words], env=env, check=False, capture_output=True, text=True)


def test_the_single_file_is_unpacked_once_and_then_started_with_its_words(single: Path):
    first, second = (start(single, "a b", "") for _ in range(2))
    assert (first.stdout, first.stderr.count("once")) == ("a b,,", 1), first.stderr
    assert (second.stdout, second.stderr) == ("a b,,", "")
    (folder,) = (single.parent / "home/.cache/envbuilder-app").iterdir()
    assert folder.name.startswith(f"{__version__}-")
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_single_files_that_start_at_once_leave_one_folder(single: Path):
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: start(single, "x"), range(4)))
    assert [(one.returncode, one.stdout) for one in ended] == [(0, "x,")] * 4
    assert len(list((single.parent / "home/.cache/envbuilder-app").iterdir())) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cut", "envbuilder could not be unpacked into"),
        ("flipped", "envbuilder could not be unpacked into"),
        ("processor", "this file is for x86_64 Linux, and this is Linux aarch64"),
        ("home", "`/dev/null/.cache/envbuilder-app` could not be made"),
        ("open", "must be a folder of yours that nobody else can write"),
        ("noexec", "no program can be started in"),
    ],
)
def test_the_single_file_says_in_one_sentence_where_it_cannot_run(fault: str, words: str, single: Path):
    content, env = single.read_bytes(), {}
    if fault == "cut":
        single.write_bytes(content[:-40])
    elif fault == "flipped":
        single.write_bytes(content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])  # in the sum of its tar
    elif fault == "processor":
        (single.parent / "uname").write_text(
            "#!/bin/sh\ncase $1 in -s) echo Linux ;; *) echo aarch64 ;; esac\n"
        )
        (single.parent / "uname").chmod(0o755)
        env = {"PATH": f"{single.parent}:/usr/bin:/bin"}
    elif fault == "home":
        env = {"HOME": "/dev/null"}
    elif fault == "open":
        (single.parent / "home/.cache/envbuilder-app").mkdir(parents=True)
        (single.parent / "home/.cache/envbuilder-app").chmod(0o777)
    else:
        payload = pack(
            shutil.copytree(single.parent / "app", single.parent / "other", ignore=lambda *_: ["python3"])
        )
        single.write_bytes(start_of(payload, X86_64) + payload)
    ended = start(single, "list", **env)
    lines = ended.stderr.removeprefix(
        next(iter(re.findall(r"envbuilder: unpacking.*\n", ended.stderr)), "")
    ).splitlines()
    assert (ended.returncode, lines[1]) == (8, ""), ended.stderr
    assert words in lines[0]
    assert lines[2].startswith("hint: ")
    home = single.parent / "home/.cache/envbuilder-app"
    assert not home.exists() or not list(home.iterdir())


def test_a_release_has_the_sums_and_the_provenance_of_its_files(made: Path):
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, check=True, capture_output=True
    )
    names = {path.name for path in made.iterdir()} - {"SHA256SUMS"}
    assert {line.split()[1] for line in (made / "SHA256SUMS").read_text().splitlines()} == names
    statement = json.loads((made / f"envbuilder-hpc-{__version__}.provenance.json").read_text())
    subjects = {subject["name"] for subject in statement["subject"]}
    assert subjects == {name for name in names if not name.endswith(".provenance.json")}
    commit = git(made.parent, "rev-parse", "HEAD").strip()
    assert statement["predicate"]["buildDefinition"]["externalParameters"]["commit"] == commit


@pytest.mark.parametrize("kind", [("EC", "-pkeyopt", "ec_paramgen_curve:P-256"), ("ed25519",)])
def test_a_key_signs_sums_and_provenance_so_that_others_can_check(tmp_path: Path, kind: tuple[str, ...]):
    key, public, files = tmp_path / "key.pem", tmp_path / "public.pem", tmp_path / "dist"
    files.mkdir()
    (files / "a.whl").write_bytes(b"one")
    make = ["openssl", "genpkey", "-algorithm", *kind, "-out", str(key)]
    for command in (make, ["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)]):
        subprocess.run(command, check=True, capture_output=True)
    words = [sys.executable, "-m", "scripts.sign_release", str(files), "0" * 40, "1700000000", str(key)]
    subprocess.run(words, cwd=ROOT, check=True)
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin",
             "-in", "SHA256SUMS", "-sigfile", "SHA256SUMS.sig"]  # fmt: skip
    subprocess.run(check, cwd=files, check=True, capture_output=True)
    bundle = (files / f"envbuilder-hpc-{__version__}.provenance.sigstore.json").read_bytes()
    signed = read_signed_release(bundle, "bundle", signed_by(load_public(public)))
    assert signed.digests == {sha256_file(files / "a.whl")}
    assert str(signed.release) == f"envbuilder-hpc:v{__version__}, signed 2023-11-14 22:13 UTC"


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


@pytest.mark.parametrize(
    ("word", "status", "said"), [("--help", 0, "--key KEY"), ("--nonsense", 2, "unknown option")]
)
def test_no_option_of_a_release_is_taken_for_its_folder(word: str, status: int, said: str):
    ended = subprocess.run(["scripts/release", word], cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == status
    assert said in (ended.stderr if status else ended.stdout)


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
