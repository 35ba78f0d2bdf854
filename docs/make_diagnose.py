"""The pages `docs/diagnose`, and the messages that load() reads in an image, made from the catalogue of `diagnose`.

`pytest --update-golden tests/diagnose/test_diagnose.py` writes them; the same tests say when they are not what the catalogue says.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envbuilder.diagnose.catalogue import Failure, Mark, Message, Stage

STAGES = {
    Stage.MACHINE: "the machine: hardware, kernel, driver, disks and limits of the node, or who runs it",
    Stage.ENVIRONMENT: "the environment: image, libraries, settings, network",
    Stage.PROGRAM: "the program: what one process did by itself",
    Stage.SYMPTOM: "a symptom: how others notice that something failed",
    Stage.AFTERMATH: "the aftermath: signals, exit codes, the launcher's summary",
}


def page(failure: Failure) -> str:
    """One page of `docs/diagnose`."""
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


def sources_page(
    catalogue: Sequence[Failure],
    sources: Mapping[str, Any],
    proven: Mapping[str, int],
    excerpts: Mapping[str, int],
) -> str:
    """The tables of what the patterns were derived from. `proven` counts a failure's patterns that match a source's string."""
    lines = [
        "# Sources of the messages that `diagnose` knows",
        "",
        "Made from `tests/diagnose/sources.yaml`, which has each string with its file and its versions. A test fills",
        "each string in and reads it. `pytest --update-golden tests/diagnose/test_diagnose_sources.py` writes this page anew.",
        "",
        "Read on 2026-11-23: sources where they are public, otherwise the strings of the published binaries.",
        "",
        "| program | source | versions gone through | files | strings | failures |",
        "|:--|:--|:--|--:|--:|--:|",
    ]
    for one in sources["programs"]:
        versions, strings = list(one["files"]), one["strings"]
        codes = {row["code"] for row in strings}
        lines.append(
            f"| {one['name']} | {one['repository']} | {', '.join(versions)} | {sum(one['files'].values())} | {len(strings)} | {len(codes)} |"
        )
    lines += [
        "",
        "A pattern that matches no string of these sources is proven by excerpts alone. The file says why, and the test",
        "refuses a new pattern without either:",
        "",
        "| reason | patterns | meaning |",
        "|:--|--:|:--|",
    ]
    why = {
        name: [row["code"] for row in sources["without"] if row["why"] == name] for name in sources["reasons"]
    }
    lines += [f"| {name} | {len(why[name])} | {meaning} |" for name, meaning in sources["reasons"].items()]
    lines += [
        "",
        "| code | failure | patterns | with a source | without one | excerpts |",
        "|:--|:--|--:|--:|:--|--:|",
    ]
    for one in catalogue:
        reasons = [f"{codes.count(one.code)} {name}" for name, codes in why.items() if one.code in codes]
        lines.append(
            f"| [{one.code}](../diagnose/{one.code}.md) | {one.title} | {len(one.lines)} | {proven.get(one.code, 0)} | {', '.join(reasons)} | {excerpts.get(one.code, 0)} |"
        )
    return "\n".join(lines) + "\n"


def load_messages_text(messages: Sequence[Message]) -> str:
    """The file that load() reads inside an image: the messages that it has words for."""
    rows = [
        {
            "lines": [_mark(mark) for mark in one.all_lines],
            "message": one.load.message,
            "repair": one.load.repair,
        }
        for one in messages
        if one.load
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _mark(mark: Mark) -> dict[str, str]:
    parts = {"has": mark.has.decode(), "like": mark.like, "unless": mark.unless}
    return {name: part for name, part in parts.items() if part}


def index(catalogue: Sequence[Failure]) -> str:
    """The page that lists them all."""
    rows = [f"| [{one.code}]({one.code}.md) | {one.title} | {one.stage.value} |" for one in catalogue]
    head = [
        "# What `envbuilder diagnose` knows",
        "",
        "Made from `envbuilder/diagnose/catalogue`; `pytest --update-golden tests/diagnose/test_diagnose.py` writes these pages anew.",
        "",
        "| code | failure | stage |",
        "|:--|:--|:--|",
    ]
    stages = [f"- `{stage.value}`: {meaning}" for stage, meaning in STAGES.items()]
    return "\n".join([*head, *rows, "", "Stages, the nearest to the root first:", "", *stages]) + "\n"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"
