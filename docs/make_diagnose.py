"""Make the pages `docs/diagnose`, and the messages that load() reads in an image, from the catalogue of `diagnose`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from envbuilder.diagnose.catalogue import Failure, Mark, Message, Stage, load_catalogue
from tests.support.excerpts import EXCERPTS

TABLES: Final = Path(__file__).parents[1] / "tests/diagnose"
SOURCES: Final = TABLES / "sources.yaml"

STAGES = {
    Stage.MACHINE: "the machine: hardware, kernel, driver, disks and limits of the node, or who runs it",
    Stage.ENVIRONMENT: "the environment: image, libraries, settings, network",
    Stage.PROGRAM: "the program: what one process did by itself",
    Stage.SYMPTOM: "a symptom: how others notice that something failed",
    Stage.AFTERMATH: "the aftermath: signals, exit codes, the launcher's summary",
}


def pages() -> dict[str, str]:
    """Return the pages of `docs/diagnose` by their file names."""
    catalogue = load_catalogue()
    return {"README.md": index(catalogue), **{f"{failure.code}.md": page(failure) for failure in catalogue}}


def page(failure: Failure) -> str:
    marks = [f"- `{mark.has.decode()}`" for mark in failure.lines]
    shown = (
        ["A log shows one of:", "", *marks]
        if marks
        else ["It is concluded from the timeouts of all ranks together."]
    )
    command = ["", "```", failure.command, "```"] if failure.command else []
    alone = "is a note alone" if failure.note else "is not reported alone"
    role = f"It explains another failure and {alone}. " if failure.is_hint else ""
    lines = [
        f"# {failure.code}: {failure.title}",
        "",
        f"`{failure.name}` · {role}{_sentence(STAGES[failure.stage])}",
        "",
        *shown,
        "",
        "## Cause",
        "",
        _sentence(failure.cause),
        "",
        "## Repair",
        "",
        _sentence(failure.repair),
        *command,
        "",
        f"Source: {failure.source}",
    ]
    return "\n".join(lines) + "\n"


def sources_page() -> str:
    """The tables of what the patterns were derived from."""
    sources = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    excerpts = Counter(excerpt.code for excerpt in EXCERPTS)
    lines = [
        "# Sources of the messages that `diagnose` knows",
        "",
        "Made from `tests/diagnose/sources.yaml`, which has each string with its file and its versions. A test fills",
        "each string in and reads it.",
        "",
        "Read on 2026-11-23: sources where they are public, otherwise the strings of the published binaries.",
        "",
        "| program | source | versions gone through | files | strings | failures |",
        "|:--|:--|:--|--:|--:|--:|",
    ]
    for program in sources["programs"]:
        strings, files = program["strings"], program["files"]
        codes = {row["code"] for row in strings}
        lines.append(
            f"| {program['name']} | {program['repository']} | {', '.join(files)} | {sum(files.values())} | {len(strings)} | {len(codes)} |"
        )
    lines += [
        "",
        "A pattern that matches no string of these sources is proven by excerpts alone. The file says why, and the test",
        "refuses a new pattern without either:",
        "",
        "| reason | patterns | meaning |",
        "|:--|--:|:--|",
    ]
    unproven = Counter((row["code"], row["why"]) for row in sources["without"])
    for reason, meaning in sources["reasons"].items():
        count = sum(number for (_, why), number in unproven.items() if why == reason)
        lines.append(f"| {reason} | {count} | {meaning} |")
    lines += [
        "",
        "| code | failure | patterns | without a source | excerpts |",
        "|:--|:--|--:|:--|--:|",
    ]
    for failure in load_catalogue():
        reasons = [f"{number} {why}" for (code, why), number in unproven.items() if code == failure.code]
        lines.append(
            f"| [{failure.code}](../diagnose/{failure.code}.md) | {failure.title} | {len(failure.lines)} | {', '.join(reasons)} | {excerpts[failure.code]} |"
        )
    return "\n".join(lines) + "\n" + _words()


def _words() -> str:
    """The tables of what each release prints."""
    words = yaml.safe_load((TABLES / "words.yaml").read_text("utf-8"))
    reading = yaml.safe_load((TABLES / "reading.yaml").read_text("utf-8"))
    packages = (package for row in reading["programs"] for package in row["packages"])
    lines = [
        "\n## Words of each release\n",
        "`python -m scripts.read_words` reads the Python files and the libraries of these packages, and keeps what they print when",
        "something fails that has to do with collectives, stores, NCCL, CUDA or shared memory.",
        f"Anyone can fetch them: {', '.join(f'`pip download {package}`' for package in packages)}.\n",
        "A message is matched by a pattern, or quoted: it is an exception of Python or a warning of NCCL, which `diagnose` shows",
        "as it is. A silent one needs no pattern, for one of these reasons:\n",
        *(f"- {row['why']}" for row in reading["silent"]),
        "\n| program | package | release | matched | quoted | silent | unknown |",
        "|:--|:--|:--|--:|--:|--:|--:|",
        *("| " + " | ".join(map(str, row.values())) + " |" for row in words["releases"]),
        "\nStrings that older releases have and the newest does not. Their patterns stay for logs of those releases:\n",
        "| program | failure | last release | string |",
        "|:--|:--|:--|:--|",
        *(f"| {row['program']} | {row['code']} | {row['last']} | `{row['says']}` |" for row in words["gone"]),
    ]
    return "\n".join(lines) + "\n"


def load_messages_text(messages: Sequence[Message]) -> str:
    """The file that load() reads inside an image: the messages that it has words for."""
    rows = [
        {
            "lines": [_mark(mark) for mark in message.all_lines],
            "message": message.load.message,
            "repair": message.load.repair,
        }
        for message in messages
        if message.load
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _mark(mark: Mark) -> dict[str, str]:
    parts = {"has": mark.has.decode(), "like": mark.like, "unless": mark.unless}
    return {name: part for name, part in parts.items() if part}


def index(catalogue: Sequence[Failure]) -> str:
    """The page that lists them all."""
    rows = [
        f"| [{failure.code}]({failure.code}.md) | {failure.title} | {failure.stage.value} |"
        for failure in catalogue
    ]
    head = [
        "# What `envbuilder diagnose` knows",
        "",
        "Made from `envbuilder/diagnose/catalogue`.",
        "",
        "| code | failure | stage |",
        "|:--|:--|:--|",
    ]
    stages = [f"- `{stage.value}`: {meaning}" for stage, meaning in STAGES.items()]
    contents = ["```{toctree}", ":hidden:", ":glob:", "", "EB*", "```"]
    return "\n".join(
        [*head, *rows, "", "Stages, the nearest to the root first:", "", *stages, "", *contents, ""]
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"
