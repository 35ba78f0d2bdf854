"""`init --from LOCK`: each tool's lock gives exactly its versions, and what a recipe cannot keep is listed."""

import contextlib
import copy
import functools
import json
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from uv import find_uv_bin

from envbuilder import cli
from envbuilder.core.errors import UsageError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.init import read_source
from envbuilder.init.requests import Requests
from envbuilder.recipe.load import load
from tests.support.other_locks import (
    COMMIT,
    CONDA_LOCK,
    PIPENV,
    PIXI,
    POETRY,
    PYLOCK,
    UV,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    text: str
    packages: tuple[str, ...]
    pins: tuple[str, ...]
    left: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()


SITE = "https://site.example/"
FAST = f"fast https://host.example/fast {COMMIT}"
CASES = {
    "uv.lock": Case(
        text=UV,
        homes=("special",),
        packages=("numpy==2.2.6", "pysocks==1.7.1", "requests==2.32.0", "special==1.0"),
        pins=("python ==3.11.*", "cuda ==12.4", "pytorch ==2.6.0"),
        extensions=("far https://host.example/far-1.0.tar.gz", f"{FAST} py", "ops"),
        left=("read for Python 3.11", "dev, old, vis", "out colorama: for another", "nvidia-cublas-cu12==12.4.5.8: torch", "hashes"),
    ),
    "uv.lock of an extra that excludes another": Case(
        text=UV,
        wanted=("old", "vis"),
        homes=("special",),
        packages=("cycler==0.12.1", "pysocks==1.7.1", "requests==2.32.0", "special==1.0"),
        pins=("python ==3.11.*", "pytorch ==2.5.1"),
        extensions=("far https://host.example/far-1.0.tar.gz", f"{FAST} py", "ops"),
        left=("read for Python 3.11", ": dev: none", "out colorama: for another", "hashes"),
    ),
    "poetry.lock": Case(
        text=POETRY,
        packages=(),
        pins=("python ==3.11.*", "cuda ==12.4", "pytorch ==2.6.0"),
        extensions=(FAST,),
        left=("read for Python 3.11", "dev, vis", "out async-timeout: for", "nvidia-cuda-runtime-cu12==12.4.127: torch", "hashes"),
    ),
    "poetry.lock with an extra and a group": Case(
        text=POETRY,
        wanted=("vis", "dev"),
        packages=("cycler==0.12.1", "pytest==8.0"),
        pins=("python ==3.11.*", "cuda ==12.4", "pytorch ==2.6.0"),
        extensions=(FAST,),
        left=("read for Python 3.11", "out async-timeout: for", "nvidia-cuda-runtime-cu12==12.4.127: torch", "hashes"),
    ),
    "Pipfile.lock": Case(
        text=PIPENV,
        homes=("special",),
        packages=("einops==0.8.0", "special==1.0"),
        pins=("python ==3.11.*",),
        extensions=(FAST,),
        left=("develop", "out colorama: for another", '".": the environment holds', "hashes"),
    ),
    "pylock.toml": Case(
        text=PYLOCK,
        wanted=("dev",),
        packages=("einops==0.8.0", "pytest==8.0"),
        pins=("python ==3.13.*",),
        left=("read for Python 3.13", "hashes"),
    ),
    "pixi.lock": Case(
        text=PIXI,
        packages=("einops==0.8.0", "xxhash==3.5.0.*"),
        pins=("python ==3.11.*", "cuda ==12.6", "pytorch ==2.6.0"),
        extensions=(FAST,),
        left=("dev", "libgomp==14.2.0=h7_1: Debian", "stand for conda's ffmpeg 7.1.0", "out arm 0.1, assimp 5.4.3: only conda", "hashes"),
    ),
    "pixi.lock of another environment and version": Case(
        text=re.sub(r"^version: 6", "version: 7\nplatforms:\n- name: cluster\n  subdir: linux-64", PIXI).replace("      linux-64:", "      cluster:"),
        wanted=("dev",),
        packages=("pytest==8.0",),
        pins=(),
        left=("hashes",),
    ),
    "pixi.lock of an older version": Case(
        text=re.sub(r"^- (conda|pypi):", r"- kind: \1\n  url:", PIXI.replace("version: 6", "version: 4"), flags=re.MULTILINE),
        packages=("einops==0.8.0", "xxhash==3.5.0.*"),
        pins=("python ==3.11.*", "cuda ==12.6", "pytorch ==2.6.0"),
        extensions=(FAST,),
        left=("dev", "libgomp==14.2.0=h7_1: Debian", "stand for conda's ffmpeg 7.1.0", "out arm 0.1, assimp 5.4.3: only conda", "hashes"),
    ),
    "conda-lock.yml": Case(
        text=CONDA_LOCK,
        packages=("einops==0.8.0", "numpy==1.26.4.*"),
        pins=("cuda ==12.4", "python ==3.11.*"),
        left=("dev", "hashes"),
    ),
}  # fmt: skip


def place(folder: Path, name: str, text: str) -> Path:
    """Write a lock, with the folders that it names."""
    (folder / "ops").mkdir(exist_ok=True)
    (folder / "ops/pyproject.toml").write_text('[project]\nname = "ops"\n')
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("name", CASES)
def test_a_lock_gives_its_versions_and_names_the_rest(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    requests = Requests(gpus=("A100",), wanted=case.wanted, top=tmp_path)
    read_source(place(tmp_path, name.split(maxsplit=1)[0], case.text), requests)
    assert tuple(request.text for request in requests.packages.values()) == case.packages
    assert sorted(f"{key} {request.text}" for key, request in requests.pins.items()) == sorted(case.pins)
    extensions = [
        " ".join(filter(None, (known.name, known.git or known.url, known.commit, known.path if known.git else "")))
        for known in requests.extensions.values()
    ]  # fmt: skip
    assert tuple(extensions) == case.extensions
    assert {name: url for name, (url, _) in requests.homes.items()} == dict.fromkeys(case.homes, SITE)
    messages = [left.message for left in requests.left]
    assert all(any(words in message for message in messages) for words in case.left), messages
    assert len(messages) == len(case.left), messages


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("uv.lock", "version = 2\n", "version 2 of uv's format, which is not known"),
        ("poetry.lock", '[metadata]\nlock-version = "3.0"\n', "version 3.0 of Poetry's format"),
        ("Pipfile.lock", "{}", "version none of Pipenv's"),
        ("pixi.lock", "version: 8\n", "version 8 of pixi's"),
        ("conda-lock.yml", "version: 2\n", "version 2 of conda-lock's"),
        ("pylock.toml", 'lock-version = "2.0"\n', "version 2.0 of PEP 751's"),
        ("uv.lock", "[", "is not TOML"),
        (
            "poetry.lock",
            POETRY.replace("platform_machine ==", "platform_machine ="),
            "has a marker that cannot be read",
        ),
        ("Pipfile.lock", "[", "is not JSON"),
        ("pixi.lock", "[", "cannot be read as a lock"),
        ("pixi.lock", PIXI.replace("linux-64:", "osx-64:"), "has packages for osx-64, and none for linux-64"),
        ("conda-lock.yml", CONDA_LOCK.replace("linux-64", "win-64"), "osx-64, win-64, and none for linux-64"),
    ],
)
def test_a_lock_that_cannot_be_read_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        read_source(place(tmp_path, name, text), Requests())


def parts(tables: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The ways to each value of a lock."""
    yield path
    steps = (
        tables.items() if isinstance(tables, dict) else enumerate(tables) if isinstance(tables, list) else ()
    )
    for step, value in steps:
        yield from parts(value, (*path, step))


@pytest.mark.parametrize("name", ["pixi.lock", "Pipfile.lock", "conda-lock.yml"])
def test_a_lock_with_a_value_of_another_type_is_read_or_refused(name: str, tmp_path: Path) -> None:
    lock = yaml.safe_load(CASES[name].text)
    for *above, last in list(parts(lock))[1::5]:
        changed = copy.deepcopy(lock)
        table = functools.reduce(operator.getitem, above, changed)
        for value in (None, {"a": 1}, ["x"]):
            table[last] = value
            with contextlib.suppress(UsageError):
                read_source(place(tmp_path, name, json.dumps(changed)), Requests(gpus=("A100",)))


def test_a_lock_is_read_for_the_processor_of_the_gpus(tmp_path: Path) -> None:
    requests = Requests(gpus=("GH200",))
    read_source(place(tmp_path, "conda-lock.yml", CONDA_LOCK.replace("linux-64", "linux-aarch64")), requests)
    assert list(requests.packages) == ["einops", "numpy"]


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_python_of_an_option_decides_a_locks_markers(python: str, tmp_path: Path) -> None:
    requests = Requests(gpus=("A100",), python=python)
    read_source(place(tmp_path, "uv.lock", UV), requests)
    assert requests.packages["numpy"].text == {"3.11": "numpy==2.2.6", "3.12": "numpy==2.4.0"}[python]
    assert requests.pins["python"].text == f"=={python}.*"


def test_a_lock_wins_over_the_files_that_it_was_made_of(tmp_path: Path) -> None:
    place(tmp_path, "uv.lock", UV)
    needs = '["numpy<2", "requests", "torch", "fast @ git+https://host.example/fast@main", "new>=1"]'
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "mine"\ndependencies = {needs}\n')
    requests = Requests(gpus=("A100",))
    read_source(tmp_path, requests)
    packages = {name: request.text for name, request in requests.packages.items()}
    assert (packages["numpy"], packages["requests"], packages["new"]) == (
        "numpy==2.2.6",
        "requests==2.32.0",
        "new>=1",
    )
    assert requests.extensions["fast"].commit == COMMIT
    messages = [left.message for left in requests.left]
    for words in (
        "this lock's versions win over the ranges of `pyproject.toml`",
        "`numpy==2.2.6` of `uv.lock` is taken: the lock is older than `numpy<2`",
        "`new>=1` is not in `uv.lock`, which may be older",
    ):
        assert any(words in message for message in messages), messages
    assert not [message for message in messages if "fast" in message]


def test_a_lock_of_a_script_or_a_group_is_not_a_folder_s(tmp_path: Path) -> None:
    for name, text in (("pylock.dev.toml", PYLOCK), ("plot.py.lock", UV), ("gpu.conda-lock.yml", CONDA_LOCK)):
        place(tmp_path, name, text)
    (tmp_path / "requirements.txt").write_text("einops\n")
    requests = Requests()
    read_source(tmp_path, requests)
    assert [request.text for request in requests.packages.values()] == ["einops"]
    assert [left.message for left in requests.left] == ["this file is not read"] * 3


def test_a_group_that_no_file_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place(tmp_path, "uv.lock", UV)
    assert cli.run(["init", "a", "--from", "uv.lock", "--gpu", "A100", "--with", "test"]) == 2
    assert "no file has a group, an extra or an environment `test`" in capsys.readouterr().err
    assert (
        cli.run(["init", "a", "--from", "uv.lock", "--gpu", "A100", "--with", "dev", "--python", "3.12"]) == 0
    )
    recipe = load(Path("a.yaml"))
    assert (recipe.python, recipe.pytorch, recipe.cuda) == ("3.12", "2.6.0", "12.4")
    assert {"pytest==8.0", "numpy==2.4.0"} <= set(recipe.packages)


PROJECTS = {  # what each needs and has
    "top": (["left[more]", "mac; sys_platform == 'darwin'"], {"dependency-groups": {"dev": ["tool"]}, "tool.uv.workspace": {"members": ["left"]}}),
    "left": ([], {"project.optional-dependencies": {"more": ["right"]}}), "right": (["deep"], {}), "deep": ([], {}), "mac": ([], {}), "tool": ([], {}),
}  # fmt: skip


@pytest.mark.programs
def test_the_lock_that_uv_writes_is_read_as_uv_reads_it(tmp_path: Path) -> None:
    """Own projects alone, one of them a member of the workspace, so that no index is asked."""
    for name, (needs, tables) in PROJECTS.items():
        lines = [
            "[project]",
            f'name = "{name}"',
            'version = "1.0"',
            'requires-python = ">=3.11"',
            f"dependencies = {needs}",
        ]
        for title, table in tables.items():
            lines += [f"[{title}]", *(f"{key} = {texts}" for key, texts in table.items())]
        places = {
            other: f'{{path = "{tmp_path}/{other}"}}' for other in PROJECTS if other not in ("top", name)
        }
        places |= {"left": "{workspace = true}"} if name == "top" else {}
        lines += ["[tool.uv.sources]", *(f"{other} = {place}" for other, place in places.items())]
        folder = tmp_path if name == "top" else tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    argv = (find_uv_bin(), "lock", "--offline", "--no-config", "--project", str(tmp_path), "--cache-dir", str(tmp_path / "cache"))  # fmt: skip
    ProcessRunner({}).run(Command(argv=argv, why="write a lock"))
    for wanted, names in (((), {"left", "right", "deep"}), (("dev",), {"left", "right", "deep", "tool"})):
        requests = Requests(gpus=(), wanted=wanted)
        read_source(tmp_path / "uv.lock", requests)
        assert set(requests.extensions) == names


def test_groups_and_extras_of_a_project_without_a_lock_are_chosen_by_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\ndependencies = ["einops"]\n[project.optional-dependencies]\nvis = ["cycler"]\nweb = ["flask"]\n'
        '[dependency-groups]\ndev = ["pytest", {include-group = "lint"}]\nlint = ["ruff"]\n'
    )
    requests = Requests(wanted=("vis", "dev"))
    read_source(tmp_path / "pyproject.toml", requests)
    assert list(requests.packages) == ["einops", "cycler", "pytest", "ruff"]
    messages = [left.message for left in requests.left]
    assert [re.search(r"left out \"(.*?)\"", message)[1] for message in messages] == [
        "optional-dependencies: web",
        "dependency-groups: lint",
    ]  # type: ignore[index]
