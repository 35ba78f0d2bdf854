"""`shell`: a shell in the SIF or in the image."""

from envbuilder.commands.context import BuiltName, Output, Profile, Session, command
from envbuilder.commands.exec import Env, Form, Print, run_inside


@command("shell", ("envbuilder shell a100",), has_json=False)
def shell(
    session: Session,
    name: BuiltName,
    *,
    inside: Form = "",
    profile: Profile,
    env: Env = None,
    show: Print = False,
    output: Output,
) -> None:
    """Open a shell in the environment."""
    run_inside(session, name, [], form=inside, profile=profile, env=env, show=show, output=output)
