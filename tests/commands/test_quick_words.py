"""Verbs start soon: words are converted as Typer does it but without pydantic."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.main import get_command

from envbuilder import cli
from envbuilder.commands.quick_words import quick_command


def parameters(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    for one in command.params:  # type: ignore[attr-defined]
        yield f"{' '.join(words)} {one.name}", one
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, (*words, name))


def outcome(parameter: object, value: object) -> object:
    """What the parameter makes of a value, or with which words it refuses it."""
    context = typer.Context(TYPER)
    try:
        made = parameter.process_value(context, value)  # type: ignore[attr-defined]
    except typer.TyperException as error:
        return error.format_message()
    return type(made), made


TYPER = get_command(cli.app)
OWN = dict(parameters(TYPER))
QUICK = dict(parameters(quick_command(cli.app)))


def test_no_parameter_is_lost():
    assert set(OWN) == set(QUICK)
    assert len(OWN) > 100


def helps(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    context = typer.Context(command, info_name=" ".join(words))
    yield words, command.get_help(context)  # type: ignore[attr-defined]
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, (*words, name))


WHOLE = dict(helps(quick_command(cli.app)))
VERBS = sorted({words[0] for words in WHOLE if words})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_made_alone_is_the_same_as_among_all(verb: str):
    alone = dict(helps(quick_command(cli.app, verb)))
    assert {words: text for words, text in alone.items() if words} == {
        words: text for words, text in WHOLE.items() if words[:1] == (verb,)
    }


@pytest.mark.parametrize("word", ["", "--json", "chekc", "cpu"])
def test_all_verbs_are_made_where_none_is_named(word: str):
    assert dict(helps(quick_command(cli.app, word))) == WHOLE


# Those of Typer's own with a callback act instead of giving a value: they install the completion.
@pytest.mark.parametrize("name", [name for name, one in OWN.items() if one.callback is None])  # type: ignore[attr-defined]
def test_a_word_becomes_what_typer_makes_of_it(name: str):
    own, quick = OWN[name], QUICK[name]
    several = own.multiple or own.nargs == -1  # type: ignore[attr-defined]
    for word in ("cpu", "", "7", "-3", "a/b.yaml", "2026-11-21", "ä"):
        assert outcome(quick, [word] if several else word) == outcome(own, [word] if several else word)
    for value in (None, own.default):  # type: ignore[attr-defined]
        assert outcome(quick, value) == outcome(own, value)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        (("check", "cpu"), {"pydantic", "rich", "docker", "requests", "jinja2", "zstandard"}),
        (("list",), {"pydantic", "docker", "requests", "zstandard"}),
        (("--help",), {"pydantic", "rich", "yaml"}),
    ],
)
def test_a_verb_imports_only_what_it_needs(arguments: tuple[str, ...], never: set[str]):
    program = (
        "import sys\nfrom envbuilder.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    modules = set(ended.stdout.splitlines()[-1].split())
    assert "envbuilder.cli" in modules
    assert not modules & never
