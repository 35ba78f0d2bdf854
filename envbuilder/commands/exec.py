"""`exec`: a command or a shell in the SIF or in the image."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.core

from envbuilder.commands.context import Artifacts, BuiltName, Profile, Session, command, offer
from envbuilder.core.answer import Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.spelling import nearest
from envbuilder.core.system import user_ids
from envbuilder.run.exec import ExecOptions, execute, parse_form, printed
from envbuilder.run.launch.site import find_site

_FORM: Final = "`sif` or `image`; default: the SIF if there is one"
_WRITABLE: Final = "with this folder's own packages over it: try them by `pip install`"
Form = Annotated[str, typer.Option("--in", help=_FORM, autocompletion=offer("sif", "image"))]


class ProgramCommand(typer.core.TyperCommand):
    """A command that takes a program after `--`, as `context.args`. An unknown word before `--` is an error."""

    allow_extra_args = True
    ignore_unknown_options = True  # to tell of them here
    interpreter: tuple[str, ...] = ()  # what the user writes before a script

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        unknown = super().parse_args(ctx, args[:end])
        if unknown and not ctx.resilient_parsing:
            raise _unknown(ctx, unknown, args[:end], args[end + 1 :])
        program = ctx.args = args[end + 1 :]
        if self.interpreter and program and _is_script(program[0]) and not ctx.resilient_parsing:
            hint = f"`python` runs it: {_line(ctx, args[:end], program)}"
            raise UsageError(f"`{program[0]}` is a script and not a program", hint=hint)
        return program

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM…]"]


class ExecCommand(ProgramCommand):
    """`exec` starts a program as it is, so a script of this folder needs its interpreter."""

    interpreter: tuple[str, ...] = ("python",)


def _is_script(word: str) -> bool:
    """Whether the word is a Python script of this folder that cannot be started: without a `/`, PATH alone counts."""
    return word.endswith(".py") and Path(word).is_file() and not ("/" in word and os.access(word, os.X_OK))


def _line(ctx: Any, typed: list[str], program: list[str]) -> str:
    """Return the command line with these words before and after `--`."""
    interpreter = ctx.command.interpreter if program[0].endswith(".py") else ()
    return shlex.join((*ctx.command_path.split(), *typed, "--", *interpreter, *program))


def _unknown(ctx: Any, words: list[str], typed: list[str], program: list[str]) -> UsageError:
    """Return the error for the unknown ones among the typed words. The hint keeps all others."""
    known = {name: parameter for parameter in ctx.command.get_params(ctx) for name in parameter.opts}
    option = words[0].partition("=")[0]
    if meant := _meant(option, known):
        hint = f"{meant}`{ctx.command_path} --help` lists the options; those of a program stand after `--`"
        return UsageError(f"there is no option `{option}`", hint=hint)
    line = _line(ctx, _without(typed, words), _as_program(words, program))
    if option.startswith("-"):
        hint = f"`{ctx.command_path} --help` lists the options; those of a program stand after `--`: {line}"
        return UsageError(f"there is no option `{option}`", hint=hint)
    return UsageError(
        f"`{words[0]}` is neither an option nor after `--`", hint=f"a program stands after `--`: {line}"
    )


def _without(typed: list[str], words: list[str]) -> list[str]:
    """Return what was typed without these words, which are in the same order. A value of an option may be equal to one."""
    rest: list[str] = []
    left = words[:]
    for word in reversed(typed):
        if left and word == left[-1]:
            left.pop()
        else:
            rest.insert(0, word)
    return rest


def _as_program(words: list[str], program: list[str]) -> list[str]:
    """Return the words as a program with its options: a script before them, otherwise what stands after `--`."""
    if not words[0].startswith("-"):
        return [*words, *program]
    script = program[:1] or [word for word in words if word.endswith(".py")][:1]
    return [*(script or ["PROGRAM"]), *program[1:], *(word for word in words if [word] != script)]


def _meant(option: str, known: Mapping[str, Any]) -> str:
    if option == "--dry-run":
        shows = next((name for name in ("--write", "--print") if name in known), "")
        return f"there is `{shows}` ({known[shows].help}); " if shows else ""
    if option == "--output" and "--artifacts" in known:
        return "`--artifacts` names the folder of the artifacts; "
    return nearest(option, known) if option.startswith("-") else ""


@command(
    "exec",
    "envbuilder exec a100 -- python train.py",
    "envbuilder exec a100",
    "envbuilder exec a100 --writable -- pip install einops",
    "envbuilder exec a100 --in image --print -- python -V",
    has_json=False,
    cls=ExecCommand,
)
def exec(  # noqa: A001
    session: Session, name: BuiltName, *, inside: Form = "", profile: Profile,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", help="pass a variable on purpose; may be repeated")
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help=_WRITABLE)] = False,
    show: Annotated[bool, typer.Option("--print", help="print the command line; run nothing")] = False,
    artifacts: Artifacts,
) -> Reply[None]:  # fmt: skip
    """Run a command in the environment, `envbuilder exec a100 -- python train.py`, or a shell without one."""
    options = ExecOptions(
        name=name, argv=session.program, form=parse_form(inside), output=artifacts, site=find_site(profile),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        folder=Path.cwd(), ids=user_ids(), given=tuple(env or ()), writable=writable,
    )  # fmt: skip
    if not show:
        execute(options, session.environment)
    return Reply(text=printed(options, session.environment))
