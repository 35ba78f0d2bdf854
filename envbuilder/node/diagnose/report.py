"""The diagnosis as text for a person, as data for a program, and the catalogue as pages of the documentation."""

import json
from collections.abc import Iterator, Sequence

from envbuilder.node.diagnose import Diagnosis
from envbuilder.node.diagnose.catalogue import Failure, Mark, Message, Stage
from envbuilder.node.diagnose.collectives import named
from envbuilder.node.diagnose.judge import Found, Role

_STAGES = {
    Stage.MACHINE: "the machine: hardware, kernel, driver, disks and limits of the node, or who runs it",
    Stage.ENVIRONMENT: "the environment: image, libraries, settings, network",
    Stage.PROGRAM: "the program: what one process did by itself",
    Stage.SYMPTOM: "a symptom: how others notice that something failed",
    Stage.AFTERMATH: "the aftermath: signals, exit codes, the launcher's summary",
}


def text(diagnosis: Diagnosis) -> str:
    """The cause in full, the others in full, the consequences with a line each."""
    if not diagnosis.found:
        read = f"{_number(diagnosis.logs, 'log')}, {_number(diagnosis.lines, 'line')}"
        return "\n".join([f"no known failure ({read})", *_skipped(diagnosis)])
    parts = [_full(one) for one in diagnosis.found if one.role is not Role.CONSEQUENCE]
    after = [one for one in diagnosis.found if one.role is Role.CONSEQUENCE]
    if after:
        parts.append("\n".join(["what followed, most likely from it:", *map(_short, after)]))
    return "\n\n".join([*parts, *_skipped(diagnosis)])


def data(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "logs": diagnosis.logs,
        "lines": diagnosis.lines,
        "skipped": list(diagnosis.skipped),
        "failures": [_row(one) for one in diagnosis.found],
    }


def page(failure: Failure) -> str:
    """One page of `docs/diagnose`."""
    marks = [f"- `{mark.has.decode()}`" for mark in failure.marks]
    shown = (
        ["A log shows one of:", "", *marks]
        if marks
        else ["It is concluded from the timeouts of all ranks together."]
    )
    command = ["", "```", failure.command, "```"] if failure.command else []
    role = "It explains another failure and is not reported alone. " if failure.is_hint else ""
    lines = [
        f"# {failure.code}: {failure.title}",
        "",
        f"`{failure.name}` · {role}{_sentence(_STAGES[failure.stage])}",
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
    parts = {
        "has": mark.has,
        "like": mark.like and mark.like.pattern,
        "unless": mark.unless and mark.unless.pattern,
    }
    return {name: part.decode() for name, part in parts.items() if part}


def index(catalogue: Sequence[Failure]) -> str:
    """The page that lists them all."""
    rows = [f"| [{one.code}]({one.code}.md) | {one.title} | {one.stage.name.lower()} |" for one in catalogue]
    head = [
        "# What `envbuilder diagnose` knows",
        "",
        "Made from `envbuilder/node/diagnose/catalogue`; `pytest --update-golden tests/node/test_diagnose.py` writes these pages anew.",
        "",
        "| code | failure | stage |",
        "|:--|:--|:--|",
    ]
    stages = [f"- `{stage.name.lower()}`: {meaning}" for stage, meaning in _STAGES.items()]
    return "\n".join([*head, *rows, "", "Stages, the nearest to the root first:", "", *stages]) + "\n"


def _full(one: Found) -> str:
    label = "cause" if one.role is Role.CAUSE else "also"
    lines = [f"{label}: {one.failure.title} [{one.failure.code}]"]
    lines += [f"  {place.where}: {place.text}" for place in one.places[:3] or (one.place,)]
    lines += [f"  {line}" for line in (*one.details, _count(one)) if line and line not in one.place.text]
    lines += [f"  why: {one.failure.cause}", f"  repair: {one.failure.repair}"]
    if one.failure.command:
        lines.append(f"  try: {one.failure.command}")
    return "\n".join(lines)


def _short(one: Found) -> str:
    count = _count(one)
    return (
        f"  {one.failure.code} {one.failure.title}{f' ({count})' if count else ''}; first {one.place.where}"
    )


def _count(one: Found) -> str:
    ranks = named(one.ranks) if one.ranks else ""
    times = f"{one.count} lines" if one.count > 1 else ""
    return ", ".join(part for part in (times, ranks) if part)


def _row(one: Found) -> dict[str, object]:
    failure = one.failure
    return {
        "code": failure.code,
        "name": failure.name,
        "title": failure.title,
        "role": one.role.value,
        "stage": failure.stage.name.lower(),
        "where": one.place.where,
        "evidence": one.place.text,
        "rank": one.place.rank,
        "ranks": list(one.ranks),
        "count": one.count,
        "places": [{"where": place.where, "text": place.text, "rank": place.rank} for place in one.places],
        "details": list(one.details),
        "cause": failure.cause,
        "repair": failure.repair,
        "command": failure.command,
        "source": failure.source,
    }


def _skipped(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.skipped:
        yield f"not read, since it is neither text nor a dump of the flight recorder, or not open to you: {', '.join(diagnosis.skipped)}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"
