"""`exec`: a command in the SIF or in the image."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.commands.context import Name, Output, Profile, Session, command, offer
from envbuilder.core.errors import UsageError
from envbuilder.run.exec import ExecOptions, command_line, execute, parse_form
from envbuilder.run.launch.site import find_site

PROGRAM: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
Form = Annotated[
    str,
    typer.Option(
        "--in",
        help="`sif` or `image`; default: the SIF if there is one",
        autocompletion=offer("sif", "image"),
    ),
]
Print = Annotated[bool, typer.Option("--print", help="print the command line; run nothing")]


@command(
    "exec",
    ("envbuilder exec a100 -- python train.py", "envbuilder exec a100 --in image --print -- python -V"),
    has_json=False,
    context_settings=PROGRAM,
)
def exec(  # noqa: A001
    session: Session,
    context: typer.Context,
    name: Name,
    *,
    inside: Form = "",
    profile: Profile,
    show: Print = False,
    output: Output,
) -> None:
    """Run a command in the environment: `envbuilder exec a100 -- python train.py`."""
    if not context.args:
        raise UsageError("there is no command to run", hint=f"envbuilder exec {name} -- python -V")
    run_inside(session, name, context.args, form=inside, profile=profile, show=show, output=output)


def run_inside(
    session: Session, name: str, argv: list[str], *, form: str, profile: str, show: bool, output: Path
) -> None:
    """Run a command in the environment, or a shell without one; with `show`, print the command line instead."""
    options = ExecOptions(
        name=name, argv=tuple(argv), form=parse_form(form), output=output, site=find_site(profile),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        folder=Path.cwd(), ids=(os.geteuid(), os.getegid()),
    )  # fmt: skip
    if show:
        session.text = shlex.join(command_line(options, session.environment))
    else:
        execute(options, session.environment)
