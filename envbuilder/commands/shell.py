"""`shell`: a shell in the SIF or in the image."""

from typing import Final

from envbuilder.commands.context import (
    OUTPUT,
    Name,
    NoColor,
    Output,
    Profile,
    Verbose,
    examples,
    new_app,
    open_session,
)
from envbuilder.commands.exec import Form, Print, run_inside

EXAMPLES: Final = ("envbuilder shell a100",)
ANSWER: Final = None  # the output is the program's
app = new_app()


@app.command(epilog=examples(EXAMPLES))
def shell(
    name: Name,
    *,
    inside: Form = "",
    profile: Profile = "",
    show: Print = False,
    output: Output = OUTPUT,
    no_color: NoColor = False,
    verbose: Verbose = 0,
) -> None:
    """Open a shell in the environment."""
    with open_session("shell", as_json=False, verbose=verbose, no_color=no_color) as session:
        run_inside(session, name, [], form=inside, profile=profile, show=show, output=output)
