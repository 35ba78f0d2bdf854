"""`init --from-env`: an environment of pip or conda becomes a recipe of all its packages, and what no tool noted is listed."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from uv import find_uv_bin

from envbuilder import cli
from envbuilder.core.errors import UsageError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.init.live import read_live
from envbuilder.init.requests import Requests
from envbuilder.recipe.load import load
from tests.support.runner import FakeRunner
from tests.support.sdists import own_backend

SITE = "lib/python3.11/site-packages"
COMMIT = "d" * 40


def install(
    prefix: Path,
    name: str,
    version: str,
    *,
    by: str = "pip",
    files: Mapping[str, str] | None = None,
    **noted: str,
) -> Path:
    """Write what a tool leaves of a package: its metadata, its files and their list."""
    info = prefix / SITE / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    files = files or {f"{name}/__init__.py": ""}
    for path, text in files.items():
        (prefix / SITE / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / SITE / path).write_text(text)
    noted |= {"INSTALLER": by, "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    noted["RECORD"] = "".join(f"{path},,\n" for path in files)
    for key, text in noted.items():
        (info / key.replace("_json", ".json")).write_text(text)
    return info


def conda_installs(prefix: Path, name: str, version: str, build: str, files: tuple[str, ...] = ()) -> None:
    record = {"name": name, "version": version, "build": build, "files": [f"{SITE}/{file}" for file in files]}
    (prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
    (prefix / "conda-meta" / f"{name}-{version}-{build}.json").write_text(json.dumps(record))


def read(prefix: Path) -> tuple[Requests, list[str]]:
    requests = Requests(gpus=("A100",))
    read_live(prefix, FakeRunner(), requests)
    return requests, [left.message for left in requests.left]


def has_each(messages: list[str], *words: str) -> bool:
    """Whether each of the words stands in one message, and no message is without."""
    return len(messages) == len(words) and all(any(word in message for message in messages) for word in words)


def test_the_packages_of_pip_are_pinned_and_torchs_file_says_its_cuda(tmp_path: Path) -> None:
    version = "from typing import Optional\n__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n"
    install(tmp_path, "torch", "2.6.0", files={"torch/version.py": version})
    install(tmp_path, "einops", "0.8.0", by="uv")
    install(tmp_path, "nvidia_cublas_cu12", "12.4.5.8", files={"nvidia/cublas/__init__.py": ""})
    install(tmp_path, "pip", "24.0")
    archive = {"url": "https://host.example/far-1.0.tar.gz", "archive_info": {"hash": f"sha256={'c' * 64}"}}
    install(tmp_path, "far", "1.0", direct_url_json=json.dumps(archive))
    git = {
        "url": "https://host.example/fast",
        "vcs_info": {"vcs": "git", "commit_id": COMMIT},
        "subdirectory": "py",
    }
    install(tmp_path, "fast", "0.3", direct_url_json=json.dumps(git))
    requests, messages = read(tmp_path)
    assert {key: request.text for key, request in requests.pins.items()} == {
        "python": "==3.11.*", "pytorch": "==2.6.0", "cuda": "==12.4",
    }  # fmt: skip
    assert [request.text for request in requests.packages.values()] == ["einops==0.8.0"]
    fast, far = requests.extensions["fast"], requests.extensions["far"]
    assert (fast.git, fast.commit, fast.path) == ("https://host.example/fast", COMMIT, "py")
    assert (far.url, far.sha256) == (archive["url"], "c" * 64)
    assert has_each(messages, '"pip"', "nvidia-cublas-cu12==12.4.5.8", "all that is installed"), messages


def test_a_torch_without_cuda_is_for_no_gpu(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.6.0", files={"torch/version.py": "cuda: Optional[str] = None\n"})
    requests = Requests()
    read_live(tmp_path, FakeRunner(), requests)
    assert (requests.gpus, "cuda" in requests.pins) == ((), False)


def test_what_no_tool_noted_is_listed(tmp_path: Path) -> None:
    install(tmp_path, "einops", "0.8.0")
    site = tmp_path / SITE
    (site / "_fused.cpython-311-x86_64-linux-gnu.so").touch()
    (site / "ops").mkdir()
    (site / "ops/core.so").touch()
    (site / "helper.py").touch()
    (site / "~umpy-1.0.dist-info").mkdir()
    (site / "mine.pth").write_text(f"import os\n{tmp_path}\n")
    egg = site / "built-0.1-py3.11-linux-x86_64.egg/EGG-INFO"
    egg.mkdir(parents=True)
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: built\nVersion: 0.1\n")
    requests, messages = read(tmp_path)
    assert list(requests.packages) == ["einops"]
    compiled = "left out _fused.cpython-311-x86_64-linux-gnu.so, ops: compiled"
    expected = (compiled, "left out helper.py: no package", '"built 0.1": its setup.py', "~umpy", "on Python's path", "all that is installed")  # fmt: skip
    assert has_each(messages, *expected), messages


def test_conda_s_packages_are_taken_by_their_names_of_the_index(tmp_path: Path) -> None:
    conda_installs(tmp_path, "python", "3.11.9", "h955ad1f_0_cpython")
    conda_installs(
        tmp_path,
        "pytorch",
        "2.5.1",
        "py3.11_cuda12.4_cudnn9.1.0_0",
        ("torch-2.5.1.dist-info/METADATA", "torch/__init__.py"),
    )
    install(tmp_path, "torch", "2.5.1", by="conda")
    conda_installs(tmp_path, "python-xxhash", "3.5.0", "py311_0", ("xxhash-3.5.0.dist-info/METADATA",))
    install(tmp_path, "xxhash", "3.5.0", by="conda")
    conda_installs(tmp_path, "ffmpeg", "7.1", "h8_0")
    conda_installs(tmp_path, "assimp", "5.4.3", "h8_0")
    conda_installs(tmp_path, "libgomp", "14.2.0", "h7_1")
    # pip has put another version in the place of conda's numpy, and the same version over its six.
    conda_installs(tmp_path, "numpy", "1.26.4", "py311_0", ("numpy-1.26.4.dist-info/METADATA",))
    install(tmp_path, "numpy", "2.1.0")
    conda_installs(tmp_path, "six", "1.16.0", "pyh_0", ("six-1.16.0.dist-info/METADATA",))
    install(tmp_path, "six", "1.16.0")
    requests, messages = read(tmp_path)
    assert {key: request.text for key, request in requests.pins.items()} == {
        "python": "==3.11.*", "pytorch": "==2.5.1", "cuda": "==12.4",
    }  # fmt: skip
    assert sorted(request.text for request in requests.packages.values()) == [
        "numpy==2.1.0",
        "six==1.16.0.*",
        "xxhash==3.5.0.*",
    ]
    assert list(requests.apt) == ["ffmpeg"]
    expected = ("conda noted `numpy` 1.26.4, and 2.1.0 is in its place", "conda and pip both claim `six` 1.16.0", "left out libgomp==14.2.0=h7_1", "stand for conda's ffmpeg 7.1", "left out assimp 5.4.3: only conda", "all that is installed")  # fmt: skip
    assert has_each(messages, *expected), messages


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "loop", Path("/none")):
        with pytest.raises(UsageError, match="is no environment and no Python of one"):
            read(path)
    install(tmp_path, "far", "1.0", direct_url_json="[")
    with pytest.raises(UsageError, match=r"`direct_url\.json` cannot be read"):
        read(tmp_path)
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/a.json").write_text("[]")
    with pytest.raises(UsageError, match=r"a\.json` is no record of conda"):
        read(tmp_path)


def test_an_environment_over_another_has_the_packages_of_both(tmp_path: Path) -> None:
    install(tmp_path / "base", "einops", "0.7.0")
    install(tmp_path / "base", "tqdm", "4.60.0")
    install(tmp_path / "venv", "einops", "0.8.0")
    settings = f"home = {tmp_path}/base/bin\ninclude-system-site-packages = true\n"
    (tmp_path / "venv/pyvenv.cfg").write_text(settings)
    requests, _ = read(tmp_path / "venv")
    assert [request.text for request in requests.packages.values()] == ["einops==0.8.0", "tqdm==4.60.0"]


@pytest.mark.programs
def test_a_real_environment_with_editable_and_git_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ProcessRunner(os.environ).run
    for name in ("plain", "cloned", "taken"):
        Path(name).mkdir()
        for file, text in own_backend(name, "0.1").items():
            Path(name, file).write_text(text)
        with Path(name, "backend.py").open("a") as backend:
            backend.write("build_editable = build_wheel\n")
        if name != "plain":
            address = ("remote", "add", "origin", f"https://host.example/{name}")
            for words in (("init", "-q"), ("add", "."), ("-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"), address):  # fmt: skip
                run(Command(argv=("git", "-C", name, *words), why="make a repository"))
    common = (find_uv_bin(), "--offline", "--no-config", "--cache-dir", "cache")
    run(Command(argv=(*common, "venv", "-q", "--python", sys.executable, "venv"), why="make an environment"))
    taken = f"taken @ git+file://{tmp_path}/taken"
    run(Command(argv=(*common, "pip", "install", "-q", "--no-deps", "--python", "venv", "-e", "plain", "-e", "cloned", taken), why="install"))  # fmt: skip
    commits = {
        name: run(Command(argv=("git", "-C", name, "rev-parse", "HEAD"), why="ask")).strip()
        for name in ("cloned", "taken")
    }
    Path("cloned/backend.py").write_text("# changed\n")
    assert cli.run(["init", "mine", "--from-env", "venv/bin/python", "--gpu", "none"]) == 0
    places = {
        known.name: (known.path, known.git, known.commit) for known in load(Path("mine.yaml")).extensions
    }
    assert places == {
        "plain": ("plain", "", ""),
        "cloned": ("", "https://host.example/cloned", commits["cloned"]),
        "taken": ("", f"file://{tmp_path}/taken", commits["taken"]),
    }
    err = capsys.readouterr().err
    assert f"files differ from commit {commits['cloned']}, which is taken" in err
