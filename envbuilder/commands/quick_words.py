"""Words of the command line → texts, paths and lists, without pydantic, and without making the verbs that were not named.

Typer converts every word with pydantic, whose import costs more CPU time than most verbs need for all else. What needs no
conversion is taken as it is; numbers, dates and whatever is wrong are left to Typer, with its words.
"""

import copy
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import typer
from typer.main import get_command
from typer.models import CommandInfo

_PLAIN: Final = (str, Path)


def quick_command(app: typer.Typer, word: str = "") -> Any:
    """The command that `app` is, as `typer.main.get_command` makes it; its parameters convert what is plain themselves.

    `word`, the first of the command line, may name a verb: the others are then left out.
    """
    command = get_command(_only(app, word))
    _prepare(command)
    return command


def _only(app: typer.Typer, word: str) -> typer.Typer:
    """The same program with the verb or the group of this name alone; all of it where there is none."""
    parts = [group.typer_instance for group in app.registered_groups if group.typer_instance]
    verbs = [one for part in parts for one in part.registered_commands if _name(one) == word]
    groups = [one for part in parts for one in part.registered_groups if one.name == word]
    if not verbs and not groups:
        return app
    less = copy.copy(app)
    less.registered_commands, less.registered_groups = verbs, groups
    return less


def _name(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _prepare(command: Any) -> None:
    for parameter in command.params:
        _replace(parameter)
    of_help = command.get_help_option  # `--help` is no parameter before a command line is read
    command.get_help_option = lambda ctx: _replace(of_help(ctx))
    for below in getattr(command, "commands", {}).values():
        _prepare(below)


def _replace(parameter: Any) -> Any:
    if parameter is not None:
        parameter._runtime_param = _Quick()  # noqa: SLF001 - a Typer that has no such field converts as before
    return parameter


class _Quick:
    """Stands for Typer's own converter of one parameter until that is needed."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        annotation = param.type_descriptor.annotation
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if several and get_origin(annotation) is list and isinstance(value, (list, tuple)):
            (annotation,) = get_args(annotation)
            if annotation in _PLAIN and all(isinstance(one, str) for one in value):
                return [annotation(one) for one in value]
        elif not several and annotation in _PLAIN and isinstance(value, (str, annotation)):
            return annotation(value)
        elif not several and annotation is int and type(value) is int and not param.type_descriptor.is_ranged:
            return value
        param._runtime_param = None  # noqa: SLF001 - Typer makes its own then
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
