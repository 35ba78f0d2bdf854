"""Ask the three questions that decide most: which GPU, which PyTorch, which Python."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from envbuilder.compat.context import Tables
from envbuilder.compat.host_file import find_name
from envbuilder.compat.tables.table import version_key
from envbuilder.core.errors import UsageError
from envbuilder.core.spelling import nearest
from envbuilder.init.requests import Requests

NONE: Final = "none"
_ANY: Final = "whatever fits best"
Ask = Callable[[str, str], str]  # question and default → answer
Report = Callable[[str], None]


def take_gpus(words: Iterable[str], tables: Tables, requests: Requests) -> None:
    """Request the named GPUs, or `none`; raises UsageError for an unknown one."""
    known = tuple(tables.gpus.by_name)
    names: list[str] = []
    for word in ",".join(words).split(","):
        name = find_name(word, known)
        if name is None and word != NONE:
            near = (
                f"did you mean `{NONE}`? " if word.casefold() in ("cpu", "no", "0") else nearest(word, known)
            )
            raise UsageError(f"no GPU `{word}` is known", hint=f"{near}GPUs: {', '.join(known)}, or {NONE}")
        names += [name] if name else []
    requests.gpus = tuple(dict.fromkeys(names))


def take_version(key: str, text: str, known: Sequence[str], requests: Requests, where: str) -> None:
    """Request a named version: a known one, or the beginning of some; raises UsageError for another one."""
    if not any(one == text or one.startswith(f"{text}.") for one in known):
        raise UsageError(
            f"no {key} {text} is offered", hint=f"{nearest(text, known)}offered: {', '.join(known)}"
        )
    requests.pin(key, f"=={text}" if text in known else f"=={text}.*", where)


def offered(tables: Tables) -> dict[str, tuple[str, ...]]:
    return {
        "pytorch": tuple(row.version for row in tables.torches.rows),
        "python": tuple(
            sorted(
                {*tables.standalones.by_name, *(base.python for base in tables.distributions.rows)},
                key=version_key,
            )
        ),
    }


def ask_missing(requests: Requests, tables: Tables, ask: Ask, report: Report) -> None:
    """Ask for each value that no option and no file gives, until the answer is valid."""

    def settle(question: str, default: str, take: Callable[[str], None]) -> None:
        while True:
            try:
                return take(ask(question, default))
            except UsageError as error:
                report(f"{error.message}: {error.hint}")

    def take_words(answer: str) -> None:
        take_gpus(filter(None, map(str.strip, answer.split(","))), tables, requests)

    if requests.gpus is None:
        settle(f"GPU model, such as A100, or {NONE}", NONE, take_words)
    for key, title in (("pytorch", "PyTorch version"), ("python", "Python version")):
        if key not in requests.pins:
            known = offered(tables)[key]
            take = functools.partial(_take_version, key, known, requests)
            settle(f"{title} ({', '.join(known[-4:])})", _ANY, take)


def _take_version(key: str, known: Sequence[str], requests: Requests, answer: str) -> None:
    if answer != _ANY:
        take_version(key, answer.strip(), known, requests, "your answer")
