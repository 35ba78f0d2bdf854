"""`exec`: a command in the SIF or in the image."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from envbuilder.commands.context import Name, Output, Profile, Session, command, offer
from envbuilder.core.errors import UsageError
from envbuilder.core.places import nearest
from envbuilder.run.exec import ExecOptions, command_line, execute, parse_form
from envbuilder.run.launch.site import find_site

Form = Annotated[
    str,
    typer.Option(
        "--in",
        help="`sif` or `image`; default: the SIF if there is one",
        autocompletion=offer("sif", "image"),
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[=VALUE]", help="pass a variable on purpose; may be repeated"),
]
Print = Annotated[bool, typer.Option("--print", help="print the command line; run nothing")]


class ProgramCommand(typer.core.TyperCommand):
    """A command that takes a program after `--`, as `context.args`. An unknown word before `--` is an error."""

    allow_extra_args = True
    ignore_unknown_options = True  # to tell of them here

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        unknown = super().parse_args(ctx, args[:end])
        if unknown and not ctx.resilient_parsing:
            raise _unknown(ctx, unknown)
        ctx.args = args[end + 1 :]
        return args[end + 1 :]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- PROGRAM…"]


def _unknown(ctx: Any, words: list[str]) -> UsageError:
    if words[0].startswith("-"):
        option = words[0].partition("=")[0]
        meant = nearest(option, [name for one in ctx.command.get_params(ctx) for name in one.opts])
        hint = f"{meant}`{ctx.command_path} --help` lists the options; those of a program stand after `--`"
        return UsageError(f"there is no option `{option}`", hint=hint)
    example = shlex.join((*ctx.command_path.split(), ctx.params["name"], "--", *words))
    return UsageError(
        f"`{words[0]}` is neither an option nor after `--`", hint=f"a program stands after `--`: {example}"
    )


@command(
    "exec",
    ("envbuilder exec a100 -- python train.py", "envbuilder exec a100 --in image --print -- python -V"),
    has_json=False,
    cls=ProgramCommand,
)
def exec(  # noqa: A001
    session: Session,
    context: typer.Context,
    name: Name,
    *,
    inside: Form = "",
    profile: Profile,
    env: Env = None,
    show: Print = False,
    output: Output,
) -> None:
    """Run a command in the environment: `envbuilder exec a100 -- python train.py`."""
    if not context.args:
        raise UsageError("there is no command to run", hint=f"envbuilder exec {name} -- python -V")
    run_inside(session, name, context.args, form=inside, profile=profile, env=env, show=show, output=output)


def run_inside(
    session: Session,
    name: str,
    argv: list[str],
    *,
    form: str,
    profile: str,
    env: list[str] | None,
    show: bool,
    output: Path,
) -> None:
    """Run a command in the environment, or a shell without one; with `show`, print the command line instead."""
    options = ExecOptions(
        name=name, argv=tuple(argv), form=parse_form(form), output=output, site=find_site(profile),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        folder=Path.cwd(), ids=(os.geteuid(), os.getegid()), given=tuple(env or ()),
    )  # fmt: skip
    if show:
        session.text = shlex.join(command_line(options, session.environment))
    else:
        execute(options, session.environment)
