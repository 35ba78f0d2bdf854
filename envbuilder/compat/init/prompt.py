"""The three questions that decide most: for which GPU, which PyTorch, which Python."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from envbuilder.compat.context import Tables
from envbuilder.compat.host_file import find_name
from envbuilder.compat.init.requests import Requests
from envbuilder.core.errors import UsageError
from envbuilder.core.places import nearest

NONE: Final = "none"
_ANY: Final = "whatever fits best"
Ask = Callable[[str, str], str]  # a question and what Enter stands for → the answer
Tell = Callable[[str], None]


def take_gpus(words: Iterable[str], tables: Tables, requests: Requests) -> None:
    """The GPUs that were named, or `none`; raises UsageError for one that is not known."""
    names: list[str] = []
    for word in words:
        known = tuple(tables.gpus.by_name)
        name = next((one for one in known if one.casefold() == word.casefold()), None) or find_name(
            word, known
        )
        if name is None and word != NONE:
            raise UsageError(
                f"no GPU `{word}` is known", hint=f"{nearest(word, known)}GPUs: {', '.join(known)}, or {NONE}"
            )
        names += [name] if name else []
    requests.gpus = tuple(dict.fromkeys(names))


def take_version(key: str, text: str, known: Sequence[str], requests: Requests, where: str) -> None:
    """A version that was named: one of those known, or the beginning of some; raises UsageError for any other."""
    if not any(one == text or one.startswith(f"{text}.") for one in known):
        raise UsageError(
            f"no {key} {text} is offered", hint=f"{nearest(text, known)}offered: {', '.join(known)}"
        )
    requests.pin(key, f"=={text}" if text in known else f"=={text}.*", where)


def offered(tables: Tables) -> dict[str, tuple[str, ...]]:
    """The versions that a person may choose from."""
    return {
        "pytorch": tuple(row.version for row in tables.torches.rows),
        "python": tuple(base.python for base in tables.bases),
    }


def ask_missing(requests: Requests, tables: Tables, ask: Ask, tell: Tell) -> None:
    """Ask for what no flag and no file has said, each question until its answer is one."""
    questions: list[tuple[str, str, Callable[[str], None]]] = []
    if requests.gpus is None:
        take_answer = functools.partial(_take_gpus, tables, requests)
        questions.append((f"GPU model, such as A100, or {NONE}", NONE, take_answer))
    for key, title in (("pytorch", "PyTorch version"), ("python", "Python version")):
        if key not in requests.pins:
            known = offered(tables)[key]
            question = f"{title} ({', '.join(known[-4:])})"
            questions.append((question, _ANY, functools.partial(_take_version, key, known, requests)))
    for question, default, take in questions:
        while True:
            try:
                take(ask(question, default))
            except UsageError as error:
                tell(f"{error.message}: {error.hint}")
            else:
                break


def _take_gpus(tables: Tables, requests: Requests, answer: str) -> None:
    take_gpus([word.strip() for word in answer.split(",") if word.strip()], tables, requests)


def _take_version(key: str, known: Sequence[str], requests: Requests, answer: str) -> None:
    if answer != _ANY:
        take_version(key, answer.strip(), known, requests, "your answer")
