"""The blocks of the documentation's pages, and the terminal that runs them.

A fenced block says in its first line what it is:

    ```console          commands after `$ `, each with what it prints; a line after `> ` goes on with its command
    ```console built    the same, where the recipe `cpu` has been built: run by `tests/e2e/test_pages.py`
    ```yaml file=NAME   any block with `file=`: it is written there before the page's commands run
    ```sh               commands that need a cluster, a GPU or a registry: not run, but each must be understood

In what a command prints, `…` stands for anything within a line, and alone on a line for any lines.
"""

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from docs import make_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BIN = ROOT / ".venv/bin"
# What `.gitignore` leaves out: pages that `make docs` writes, or has written here before.
GENERATED = re.compile(r"diagnose/.+|evidence/diagnose\.md|reference/(?!lock\.md$).+")
PAGES = sorted(path for path in DOCS.rglob("*.md") if not GENERATED.fullmatch(str(path.relative_to(DOCS))))
BUILT = "built"
_FENCE = re.compile(r"^```(\S*) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"  # no command prints it


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file(self) -> str:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), "")


@dataclass(frozen=True)
class Command:
    place: str
    text: str
    printed: str
    line: int  # the line of the page where the output begins


@functools.cache
def generated() -> dict[Path, str]:
    """Return the text of each generated page by its path."""
    return {DOCS / name: text for name, text in make_pages.pages().items()}


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """Return the blocks of a page, or of the text that a generated page has."""
    text = page.read_text(encoding="utf-8") if text is None else text
    return [
        Block(page, text.count("\n", 0, fence.start()) + 1, fence[1], tuple(fence[2].split()), fence[3])
        for fence in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """Each command of a console block with what the page says that it prints."""
    assert block.text.startswith("$ "), f"{block.page}:{block.line}: a console block begins with a command"
    shown: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        if line.startswith("$ "):
            shown.append(Command(f"{block.page.relative_to(ROOT)}:{number}", line[2:], "", number + 1))
        elif line.startswith("> ") and not shown[-1].printed:
            shown[-1] = replace(shown[-1], text=f"{shown[-1].text}\n{line[2:]}", line=number + 1)
        else:
            shown[-1] = replace(shown[-1], printed=f"{shown[-1].printed}{line}\n")
    return shown


def agrees(wanted: str, printed: str) -> bool:
    """Whether a command printed what the page says, where `…` stands for what varies."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in wanted.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None


def place(folder: Path) -> None:
    """Make the folder in which a page's commands run, with recipes and sites as in a clone."""
    for name in ("recipes", "sites"):
        shutil.copytree(ROOT / name, folder / name)


def differences(
    page: Path, folder: Path, *, built: bool, env: dict[str, str], seconds: float = 120, programs: Path = BIN
) -> list[tuple[Command, str]]:
    """Run a page's commands in one shell, in order. Return those that print something else, with their output.

    `programs` is the folder whose `envbuilder` the shell runs.
    """
    every = blocks(page)
    for block in every:
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
    kinds = [block for block in every if block.language == "console" and (built or BUILT not in block.words)]
    wanted = [command for block in kinds for command in commands(block)]
    script = "".join(f"{command.text}\n__rc=$?; printf '{_MARK}'; (exit $__rc)\n" for command in wanted)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ENVBUILDER_")}
    path = os.pathsep.join((str(programs), str(BIN), os.environ["PATH"]))
    ended = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=folder, timeout=seconds, text=True, check=False,
        env=clean | {"PATH": path, "TERM": "dumb", "LC_ALL": "C.UTF-8", **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    printed = ended.stdout.split(_MARK)
    assert len(printed) == len(wanted) + 1, f"{page}: the shell ended early\n{ended.stdout[-2000:]}"
    pairs = zip(wanted, printed, strict=False)
    return [(command, output) for command, output in pairs if not agrees(command.printed, output)]


def report(different: list[tuple[Command, str]]) -> str:
    return "\n".join(
        f"{command.place}: $ {command.text}\n--- the page\n{command.printed}--- printed\n{output}"
        for command, output in different
    )


def update(page: Path, different: list[tuple[Command, str]]) -> None:
    """Write the printed lines into the page where they differ. A person then puts `…` where they vary."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for command, output in reversed(different):
        plain = re.sub(
            r"^\$ ", "… ", output, flags=re.MULTILINE
        )  # a text that names a command, not one to run
        before, after = command.printed.splitlines(keepends=True), plain.splitlines(keepends=True)
        if len(before) == len(after):
            after = [old if agrees(old, new) else new for old, new in zip(before, after, strict=True)]
        lines[command.line - 1 : command.line - 1 + len(before)] = after
    page.write_text("".join(lines), encoding="utf-8")
