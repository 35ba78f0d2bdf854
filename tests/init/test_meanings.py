"""A name that the package index gives another meaning: an option or an answer says what the project means by it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from envbuilder import cli
from envbuilder.recipe.load import load
from tests.support.tmux import terminal

ENVBUILDER = Path(__file__).parents[2] / ".venv/bin/envbuilder"
SECONDS = 60
Init = Callable[..., tuple[int, str]]
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
pytestmark = pytest.mark.programs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("torch==2.6.0\nNumPy\napex\nkaolin==0.17.0\npytorch3d\n")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose git finds two repositories of GitHub on this disk: apex, and kaolin with a tag before its last commit."""
    for name in ("NVIDIA/apex", "NVIDIAGameWorks/kaolin"):
        folder = tmp_path / "hub" / name
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
        git(folder, "tag", "--annotate", "--message", "a release", "v0.17.0")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "second")
    (tmp_path / ".gitconfig").write_text(f'[url "{tmp_path / "hub"}/"]\n\tinsteadOf = https://github.com/\n')
    return tmp_path


def git(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        [*GIT, "-C", folder, *words], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    return ended.stdout.strip()


@pytest.fixture
def init(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Init:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(home))

    def start(*meanings: str) -> tuple[int, str]:
        words = [word for meaning in meanings for word in ("--meaning", meaning)]
        code = cli.run(["init", "mine", "--from", "requirements.txt", "--gpu", "A100", *words])
        return code, capsys.readouterr().err

    return start


def test_without_a_terminal_each_is_left_out_with_the_option_that_decides(init: Init, project: Path):
    code, err = init()
    assert code == 0, err
    assert load(project / "recipes/mine.yaml").packages == ("NumPy",)
    assert 'requirements.txt:3: left out "apex": `apex` on the package index is a toolkit for Pyramid' in err
    for words in ("apex=source|pypi|none", "kaolin=source|wheel|pypi|none", "pytorch3d=source|none"):
        assert f"`--meaning {words}` decides" in err


def test_options_say_what_each_name_means(init: Init, project: Path, home: Path):
    code, err = init("apex=pypi", "kaolin=wheel", "PyTorch3D=none")
    assert code == 0, err
    recipe = load(project / "recipes/mine.yaml")
    assert set(recipe.packages) == {"NumPy", "apex", "kaolin==0.17.0"}
    assert [(index.name, index.url, index.packages) for index in recipe.indexes] == [
        ("pypi", PYPI_SIMPLE_ENDPOINT, ("apex",))
    ]


def test_the_source_of_a_version_is_the_commit_of_its_tag(init: Init, project: Path, home: Path):
    code, err = init("apex=source", "kaolin=source")
    assert code == 0, err
    apex, kaolin = load(project / "recipes/mine.yaml").extensions
    assert (apex.git, apex.commit) == (
        "https://github.com/NVIDIA/apex",
        git(home / "hub/NVIDIA/apex", "rev-parse", "HEAD"),
    )
    assert kaolin.commit == git(home / "hub/NVIDIAGameWorks/kaolin", "rev-parse", "HEAD~")
    assert "`apex` is the newest commit of NVIDIA/apex, compiled as an extension" in err
    assert "`kaolin==0.17.0` is the tag `v0.17.0` of NVIDIAGameWorks/kaolin" in err


@pytest.mark.parametrize(
    ("meaning", "code", "words"),
    [
        ("apex=pipy", 2, "`apex` cannot mean `pipy`\n\nhint: its meanings: source, pypi, none"),
        ("apex", 2, "`apex` cannot mean ``\n\nhint: its meanings: source, pypi, none"),
        ("pytorch3d=pypi", 2, "`pytorch3d` cannot mean `pypi`"),
        ("numpy=source", 2, "no file names a `numpy` that is another project's"),
        ("apx=source", 2, "hint: did you mean `apex`? they name apex, kaolin, pytorch3d"),
        ("pytorch3d=source", 5, "the repository `https://github.com/facebookresearch/pytorch3d` cannot be read"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_writes_nothing(meaning, code, words, init: Init, project: Path):
    ended, err = init(meaning)
    assert (ended, words in err) == (code, True), err
    assert not (project / "recipes").exists()


def test_on_a_terminal_each_name_is_asked_about_until_the_answer_fits(
    project: Path, home: Path, tmp_path: Path
):
    words = ("init", "mine", "--from", "requirements.txt", "--gpu", "A100", "--python", "3.11")
    with terminal(project, tmp_path, width=100, HOME=str(home)) as screen:
        screen.start(ENVBUILDER, *words, "--meaning", "pytorch3d=none")
        for question, before, answer in (
            (
                "apex (source, pypi, none) [none]:",
                "requirements.txt:3: `apex` on the package index is",
                "nvidia",
            ),
            (
                "apex (source, pypi, none) [none]:",
                "`apex` cannot mean `nvidia`: its meanings: source, pypi, none",
                "source",
            ),
            ("kaolin (source, wheel, pypi, none) [none]:", "requirements.txt:4: `kaolin` on the package", ""),
        ):
            screen.wait(lambda ends=question, line=before: is_asked(screen.screen(), ends, line), SECONDS)
            screen.type(*filter(None, (answer, "Enter")))
        assert screen.code(SECONDS) == 0
    recipe = load(project / "recipes/mine.yaml")
    assert [extension.name for extension in recipe.extensions] == ["apex"]
    assert not any(text.startswith(("apex", "kaolin", "pytorch3d")) for text in recipe.packages)


def is_asked(lines: list[str], question: str, before: str) -> bool:
    return lines[-1:] == [question] and any(line.startswith(before) for line in lines)


def test_what_a_page_or_a_build_of_the_project_brings_is_not_asked_about(
    project: Path, home: Path, tmp_path: Path
):
    page = "--find-links https://nvidia-kaolin.s3.us-east-2.amazonaws.com/torch-2.6.0_cu124.html\n"
    (project / "requirements.txt").write_text(f"{page}torch==2.6.0\nkaolin\n")
    words = ("init", "mine", "--from", "requirements.txt", "--gpu", "A100", "--python", "3.11")
    with terminal(project, tmp_path, width=100, HOME=str(home)) as screen:
        screen.start(ENVBUILDER, *words)
        assert screen.code(SECONDS) == 0
    assert load(project / "recipes/mine.yaml").packages == ("kaolin",)
