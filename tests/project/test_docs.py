"""What the documents say is so: files exist, versions agree, the reference lists the code's settings and exit codes."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs import make_reference
from envbuilder import __version__, cli, diagnose
from envbuilder.commands import COMMANDS
from envbuilder.commands.context import SETTINGS
from envbuilder.core import errors
from envbuilder.recipe.load import list_recipes, load
from tests.support import pages

ROOT = Path(__file__).parents[2]
SETTING = r"(?<!_)(?:ENVBUILDER_[A-Z_]+|UV_PYTHON_INSTALL_MIRROR|HF_ENDPOINT)"
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")
MADE = ("build/", "recipes/mine.yaml", "recipes/NAME")  # by the reader, not in the repository
FOLDERS = "envbuilder|tests|recipes|scripts|bench|apptainer|build"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(name: str, head: str) -> list[list[str]]:
    """The cells of the table whose first row starts with `head`."""
    lines = text(name).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize("name", DOCUMENTS[:3])
def test_every_file_that_a_document_names_exists(name: str):
    words = re.findall(
        rf"`((?:{FOLDERS})/[\w./-]+|[\w.]+\.(?:md|toml|lock|base)|\.devcontainer/[\w.]+)`", text(name)
    )
    named = [word for word in words if not word.startswith(MADE) and not word.startswith("NAME")]
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_the_architecture_names_every_folder():
    package = ROOT / "envbuilder"
    architecture = text("ARCHITECTURE.md")
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in folders if f"envbuilder/{name}" not in architecture} == set()


def named_commands(pattern: str) -> set[str]:
    """What follows `envbuilder` in messages and documents."""
    files = [path for folder in ("envbuilder", "docs", "sites") for path in (ROOT / folder).rglob("*")]
    files += [ROOT / name for name in DOCUMENTS]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".md", ".yaml", ".sh")]
    return {line for text in texts for line in re.findall(pattern, text)}


def test_every_command_that_a_message_or_a_page_names_exists():
    named = [line.split() for line in named_commands(r"`envbuilder ([a-z]+(?: [a-z]+)?)[ `]")]
    assert len({words[0] for words in named}) > 15
    assert {words[0] for words in named} - set(COMMANDS) == set()
    groups = {words[0]: getattr(cli.load_command(words[0]), "commands", {}) for words in named}
    assert [
        words for words in named if words[1:] and groups[words[0]] and words[1] not in groups[words[0]]
    ] == []


def options_of(words: list[str]) -> set[str]:
    """The options of the command, or of the one in its group, that a line names."""
    command = cli.load_command(words[0])
    inner = getattr(command, "commands", {}).get(words[1] if words[1:] else "", command)
    return {"--help"}.union(*(param.opts + param.secondary_opts for param in inner.params))


def test_every_option_that_a_message_or_a_page_names_exists():
    lines = named_commands(r"(?:`|\$ )envbuilder ([a-z][^`\n]*)")
    named = [line.partition(" -- ")[0].split() for line in lines]
    given = [
        (words, option[0]) for words in named if words[0] in COMMANDS
        for word in words if (option := re.match(r"--[a-z][a-z-]*", word))
    ]  # fmt: skip
    assert len(given) > 50
    assert [(words, option) for words, option in given if option not in options_of(words)] == []


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert newest
    assert newest[1] == __version__


@pytest.mark.parametrize(
    ("listed", "inside"), [(make_reference.SETTINGS, False), (make_reference.SETTINGS_INSIDE, True)]
)
def test_the_reference_lists_every_setting_and_no_other(listed: dict[str, str], inside: bool):
    package = ROOT / "envbuilder"
    files = [path for path in package.rglob("*.py") if path.is_relative_to(package / "runtime") == inside]
    files += [package / "runtime/shell.sh"] if inside else []
    used = {name for path in files for name in re.findall(SETTING, path.read_text())}
    assert set(listed) == used


def test_every_setting_is_known_and_no_other():
    files = (ROOT / "envbuilder").rglob("*")
    texts = [path.read_text() for path in files if path.is_file() and path.suffix in ("", ".py", ".sh")]
    used = {name for text in texts for name in re.findall(r"(?<!_)ENVBUILDER_(\w+)", text)}
    assert used == SETTINGS


def test_the_reference_lists_every_exit_code_and_no_other():
    kinds = [errors.EnvbuilderError, *errors.EnvbuilderError.__subclasses__()]
    ends = {0, diagnose.UNKNOWN, cli.INTERRUPTED, *(kind.exit_code for kind in kinds)}
    assert set(make_reference.EXIT_CODES) == ends


def test_the_readme_fits_on_two_screens():
    lines = [line for line in text("README.md").splitlines() if not line.startswith("|")]
    assert len(text("README.md").splitlines()) <= 90
    assert [line for line in lines if len(line) > 100] == []


def test_the_picture_of_the_readme_shows_a_verified_build_and_asks_no_host():
    (name,) = re.findall(r"!\[[^\]]*\]\((.+?)\)", text("README.md"))
    drawn = text(name).replace("&#160;", " ")
    assert "$ envbuilder build cpu" in drawn
    assert "cpu: built and verified" in drawn
    assert re.findall(r"(?:url\(\"?|href=\")(?!#)[^)\"]*", drawn) == []


WRITTEN = [page for page in pages.PAGES if page.parent.name != "evidence"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_prose_has_at_most_100_characters_a_line(page: Path):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 100] == []


def test_the_readme_shows_what_the_first_page_shows():
    """Tests run the commands of `docs/start.md`, so they hold for the README too."""
    shown = [part.text for part in pages.blocks(ROOT / "README.md") if part.language == "console"]
    first_page = "".join(part.text for part in pages.blocks(ROOT / "docs/start.md"))
    assert shown
    assert [part for part in shown if part not in first_page] == []


def test_the_documentation_lists_every_recipe_with_its_pins():
    listed = {row[0]: row[1:] for row in rows("docs/how-to/recipes.md", "recipe")}
    assert sorted(listed) == sorted(list_recipes(ROOT / "recipes"))
    for name, (torch, cuda, _, gcc, python, suite) in listed.items():
        recipe = load(ROOT / f"recipes/{name}.yaml")
        assert [torch.strip("-"), cuda.strip("-"), gcc, python, f"debian/{suite}"] == [
            recipe.pytorch, recipe.cuda, recipe.gcc, recipe.python, recipe.base,
        ]  # fmt: skip


def test_the_example_recipe_of_the_readme_is_the_one_in_the_repository(tmp_path: Path):
    example = re.search(r"```yaml\n(.*?)```", text("README.md"), re.DOTALL)
    assert example
    folder = tmp_path / "cpu"
    shutil.copytree(ROOT / "recipes/fused", folder / "fused")
    (folder / "cpu.yaml").write_text(example[1])
    shown, whole = (
        json.loads(load(path).canonical()) for path in (folder / "cpu.yaml", ROOT / "recipes/cpu.yaml")
    )
    left_out = {"summary", "tests"}  # neither is needed to understand a recipe
    assert {key: value for key, value in whole.items() if key not in left_out} == {
        key: value for key, value in shown.items() if key not in left_out
    }


@pytest.mark.parametrize("name", ["requirements.lock", "docs/requirements.lock"])
def test_a_lock_of_the_project_is_complete_and_has_a_hash_for_every_file(name: str):
    """What `scripts/audit` reads, and all that is installed."""
    entries = re.split(r"\n(?=\S)", text(name).partition("\n")[2].rstrip())
    shape = r"[a-z0-9-]+==[^ \\\n]+(?: ; [^\\\n]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+"
    assert [entry for entry in entries if not re.fullmatch(shape, entry)] == []
    known = {entry.partition("==")[0] for entry in entries}
    group = "docs" if name.startswith("docs") else "dev"
    project = tomllib.loads(text("pyproject.toml"))
    wanted = project["dependency-groups"][group] + (
        project["project"]["dependencies"] if group == "dev" else []
    )
    assert {canonicalize_name(Requirement(line).name) for line in wanted} <= known


def test_requirements_lock_names_no_host():
    assert "://" not in text("requirements.lock")
    assert text("requirements.lock").startswith("# Made by `scripts/lock`; do not edit.\n")
