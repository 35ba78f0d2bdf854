"""The documentation cannot go stale: every code has its words, commands print what is written, links lead somewhere."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from docs import make_reference
from envbuilder import cli
from envbuilder.diagnose.catalogue import load_catalogue
from tests.support import pages
from tests.support.pages import DOCS, PAGES, ROOT

SECONDS = 120  # for what takes five, on a machine that builds as well
DOCUMENTS = [
    *PAGES,
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")),
]
WITH_COMMANDS = [page for page in PAGES if any(block.language == "console" for block in pages.blocks(page))]
LANGUAGES = {"console", "sh", "yaml", "json", "python", "text", "", "{toctree}", "{include}"}
# What else a block of commands that are not run may start with: programs that people have.
OTHERS = set(
    ". a100-exec apptainer buildah docker enroot export kubectl ln make module nvcc nvidia-smi openssl pip podman sha256sum"  # noqa: SIM905
    " python python3 rsync sed srun ssh torchrun uv".split()
)


def short(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_generated_pages_are_those_that_git_ignores():
    names = {str(page.relative_to(DOCS)) for page in pages.generated()}
    assert [name for name in names if not pages.GENERATED.fullmatch(name)] == []
    assert {f"diagnose/{failure.code}.md" for failure in load_catalogue()} < names


def test_every_code_is_explained():
    used = {
        code
        for path in (ROOT / "envbuilder").rglob("*.py")
        for code in re.findall(r'"(EB[0-8]\d\d)"', path.read_text(encoding="utf-8"))
    }
    explained = make_reference.codes()
    assert used - set(explained) == set()
    assert [code for code, (_, words) in explained.items() if not words] == []


@pytest.mark.programs
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=short)
def test_commands_print_what_the_page_says(
    page: Path, tmp_path: Path, warm: Path, request: pytest.FixtureRequest
):
    """Without a network, a Docker engine or anything that was built."""
    folder = tmp_path / "project"
    pages.place(folder)
    env = {
        "ENVBUILDER_CACHE": str(tmp_path / "cache"),
        "DOCKER_HOST": "unix:///nonexistent",
        **dict.fromkeys(
            ("ENVBUILDER_INDEX", "ENVBUILDER_PYTORCH_INDEX", "ENVBUILDER_DEBIAN_MIRROR"),
            "http://127.0.0.1:9/",
        ),
        "HOME": str(tmp_path),
    }
    different = pages.differences(page, folder, built=False, env=env, seconds=SECONDS, programs=warm)
    if request.config.getoption("--update-golden"):
        pages.update(page, different)
    assert not different, pages.report(different)


@pytest.mark.parametrize("page", [*DOCUMENTS, DOCS / "reference/commands.md"], ids=short)
def test_commands_that_are_not_run_are_understood(page: Path):
    for block in pages.blocks(page, pages.generated().get(page)):
        assert block.language in LANGUAGES, f"{short(page)}:{block.line}"
        if block.language != "sh" or block.file:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            for words in simple_commands(line):
                if words[0] == "envbuilder":
                    understand(words[1:])
                else:
                    assert words[0] in OTHERS, f"{short(page)}:{block.line}: {line}"


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without variables before it and without where its output goes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_command, words in itertools.groupby(lexer, lambda word: word not in ("|", "&&", ";")):
        if is_command:
            plain = itertools.takewhile(lambda word: word not in (">", ">>", "<"), words)
            command = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), plain))
            if command:
                yield command


def understand(words: list[str]) -> None:
    context = typer.Context(get_command(cli.app))
    command = cli.load_command(words.pop(0))
    context = command.make_context(str(command.name), list(words), parent=context)
    if hasattr(command, "commands"):
        inner = command.commands[words.pop(0)]
        context = inner.make_context(str(inner.name), list(words), parent=context)
    assert context.params


def text_of(page: Path) -> str:
    """Return the text of a page, made anew if it is a generated one, without its blocks."""
    text = pages.generated().get(page) or page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links_to_nowhere(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text_of(page))):
        name, _, anchor = target.partition("#")
        goal = (page.parent / name).resolve() if name else page
        there = goal in pages.generated() or goal.is_file()
        if not re.match(r"https?://|mailto:", target) and not (
            there and (not anchor or anchor in anchors(goal))
        ):
            yield f"{short(page)}: {target}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_links_lead_somewhere(page: Path):
    assert list(links_to_nowhere(page)) == []


def test_links_of_generated_pages_lead_somewhere():
    assert [
        link for page in pages.generated() if page.suffix == ".md" for link in links_to_nowhere(page)
    ] == []


def test_the_readme_can_be_read_without_the_site():
    """Its links are those of a repository, in which no generated page is."""
    links = re.findall(r"\]\(docs/([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if pages.GENERATED.fullmatch(link)] == []


def test_every_page_has_its_place_in_the_site():
    """The site's own making says so too, but only where it is made."""
    made = {page for page in pages.generated() if page.suffix == ".md"}
    placed = {page for page in made if page.parent.name == "diagnose" and page.stem != "README"}
    for page in PAGES:
        for block in pages.blocks(page):
            if block.language == "{toctree}":
                entries = [line for line in block.text.split() if not line.startswith(":")]
                placed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert {*PAGES, *made} - placed == {DOCS / "index.md"}


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_files_that_a_page_names_exist(page: Path):
    folders = "envbuilder|tests|scripts|bench|apptainer|docs"
    named = re.findall(rf"`((?:{folders})/[\w./-]+\w)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a … c\n", "a 0.1 c\n", True),
        ("a … c\n", "a 0.1 d\n", False),
        ("a …\n", "a b\nc\n", False),  # within its line
        ("…\nz\n", "a\nb\nz\n", True),
        ("…\nz\n", "z\n", True),
        ("…\nz\n", "a\nb\n", False),
        ("", "a\n", False),
        ("a.\n", "ab\n", False),
    ],
)
def test_what_varies_is_the_only_thing_that_may_differ(wanted: str, printed: str, same: bool):
    assert pages.agrees(wanted, printed) is same


@pytest.mark.programs
def test_a_page_that_says_something_else_is_found_and_can_be_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "folder").mkdir()
    page = tmp_path / "page.md"
    page.write_text(
        "```text file=folder/x\n7\n```\n\n"
        "```console\n$ cd folder\n$ echo a \\\n> b\nb\n$ cat x; (exit 3)\n7\n$ echo $?\n…\n$ date; echo x\n…\ny\n```\n\n"
        "```console built\n$ false\nnot run\n```\n"
    )
    different = pages.differences(page, tmp_path, built=False, env={})
    assert [command.place for command, _ in different] == ["page.md:7", "page.md:14"]
    assert [output.endswith(end) for (_, output), end in zip(different, ("a b\n", "x\n"), strict=True)] == [
        True,
        True,
    ]
    pages.update(page, different)
    assert pages.differences(page, tmp_path, built=False, env={}) in ([], different[1:])  # the date goes on
    assert "$ echo a \\\n> b\na b\n$ cat x" in page.read_text()
