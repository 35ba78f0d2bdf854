"""What `push` and `pull` share: the option `--only`, and the client."""

from typing import Annotated

import typer

from envbuilder.artifacts.oci.naming import FORMS
from envbuilder.commands.context import Session, offer
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.registry.client import Client

Only = Annotated[str, typer.Option("--only", help="`image` or `sif`, instead of both", autocompletion=offer(*FORMS))]  # fmt: skip


def make_client(session: Session, console: Console) -> Client:
    """Return a client whose credential helpers see the whole environment: those of clouds have their own settings."""
    runner = ProcessRunner(session.environment, whole=True)
    return Client(session.environment, runner, console.waiting)
