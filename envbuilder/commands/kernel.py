"""`kernel`: a Jupyter kernel that runs in the environment, here, over SSH or in a Slurm job."""

import os
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.outputs import find_outputs
from envbuilder.artifacts.sif import read_documents
from envbuilder.commands.context import Artifacts, BuiltName, Force, Profile, Recipes, Session, command
from envbuilder.commands.devcontainer import Srun
from envbuilder.commands.exec import Form
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.run.exec import parse_form
from envbuilder.run.kernel import (
    kernels_of,
    make_kernel,
    need_ipykernel,
    read_sbom_of_image,
    save_kernel,
)
from envbuilder.run.named import need_sif


class WrittenKernel(Answer):
    """The kernel's file, and its name for Jupyter."""

    file: Path
    kernel: str


@command(
    "kernel",
    "envbuilder kernel a100",
    "envbuilder kernel a100 --ssh me@login --srun '--gpus=1 --time=4:00:00'",
)
def kernel(
    session: Session, name: BuiltName, *, inside: Form = "",
    ssh: Annotated[str, typer.Option(metavar="HOST", help="in the SIF on that host, at the same path")] = "",
    srun: Srun = "",
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the folder of kernels; default: the one that Jupyter reads")
    ] = None,
    force: Force, profile: Profile, artifacts: Artifacts, recipes: Recipes,
) -> Reply[WrittenKernel]:  # fmt: skip
    """Write a Jupyter kernel that runs in the environment. Jupyter itself stays outside."""
    in_image = parse_form(inside) == "image"
    if in_image and (ssh or srun):
        raise UsageError("`--in image` cannot be combined with `--ssh` or `--srun`", hint="these run the SIF")
    outputs = find_outputs(name, artifacts)
    if in_image:
        need_ipykernel(name, outputs, read_sbom_of_image(name, outputs, session.environment, recipes))
    elif not ssh or os.path.lexists(outputs.sif):
        need_sif(name, artifacts, recipes)
        need_ipykernel(name, outputs, read_documents(outputs.sif)[0])
    made = make_kernel(
        outputs, session.environment, in_image=in_image, ssh=ssh, srun=srun, profile=profile, force=force
    )
    file = save_kernel(made, (write or kernels_of(session.environment)).absolute(), force=force)
    return Reply(data=WrittenKernel(file=file, kernel=made.folder), text=str(file))
