"""`kernel`: a Jupyter kernel that runs in the environment, here, over SSH or in a Slurm job."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.outputs import SIF, Outputs, find_outputs
from envbuilder.builder.built import read_documents
from envbuilder.commands.context import BuiltName, Output, Profile, Recipes, Session, command
from envbuilder.commands.devcontainer import SETTINGS, Srun, parse_srun
from envbuilder.commands.exec import Form
from envbuilder.core.answer import Answer
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.core.plain import pasted
from envbuilder.core.process import ProcessRunner
from envbuilder.plan.contents import SBOM
from envbuilder.run.container import Surroundings, run_in_image
from envbuilder.run.exec import need_engine, parse_form
from envbuilder.run.kernel import NEEDED, Kernel, save_kernel
from envbuilder.run.launch.site import find_site
from envbuilder.run.named import need_image, need_sif
from envbuilder.run.ssh_session import SshSession, set_up_session


class WrittenKernel(Answer):
    """The kernel's file, and its name for Jupyter."""

    file: Path
    kernel: str


@command(
    "kernel",
    ("envbuilder kernel a100", "envbuilder kernel a100 --ssh me@login --srun '--gpus=1 --time=4:00:00'"),
    WrittenKernel,
)
def kernel(
    session: Session,
    name: BuiltName,
    *,
    inside: Form = "",
    host: Annotated[
        str, typer.Option("--ssh", metavar="HOST", help="in the SIF on that host, at the same path")
    ] = "",
    srun: Srun = "",
    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="the folder of kernels; default: the one that Jupyter reads"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a kernel with other content")] = False,
    profile: Profile,
    output: Output,
    recipes: Recipes,
) -> None:
    """Write a Jupyter kernel that runs in the environment. Jupyter itself stays outside."""
    form, remote = parse_form(inside), bool(host or srun)
    if form == "image" and remote:
        raise UsageError("`--in image` cannot be combined with `--ssh` or `--srun`", hint="these run the SIF")
    outputs, site = find_outputs(name, output), find_site(profile)
    if form == "image":
        docker = need_engine(outputs, session.environment)
        need_image(docker, name, outputs, recipes)
        read = run_in_image(docker, outputs.image_name, ("cat", f"/{SBOM}"), Surroundings(folder=Path("/")))
        if read.code:
            raise VerifyError(f"`{outputs.image_name}` holds no SBOM: {read.output.strip()}")
        _need_ipykernel(name, outputs, read.output)
    elif not host or os.path.lexists(outputs.sif):
        need_sif(name, output, recipes)
        _need_ipykernel(name, outputs, read_documents(outputs.sif)[0])
    sif = outputs.sif.absolute()
    if remote:
        ssh = SshSession(
            name=outputs.name,
            sif=sif,
            site=site,
            host=host,
            srun=parse_srun(srun),
            folder=SETTINGS.expanduser(),
        )
        config = set_up_session(ssh, ProcessRunner(session.environment, whole=True), force=force)
        place = "-".join(filter(None, ("slurm" if srun else "", host)))
        written = Kernel(
            name=outputs.name, sif=sif, site=site, form="ssh", place=place, config=str(config), host=ssh.alias
        )
    elif form == "image":
        written = Kernel(
            name=outputs.name, sif=sif, site=site, form="image", place="image", image=outputs.image_name
        )
    else:
        written = Kernel(name=outputs.name, sif=sif, site=site, form="sif", place="")
    data = session.environment.get("JUPYTER_DATA_DIR") or Path.home() / ".local/share/jupyter"
    kernels = (write or Path(data) / "kernels").absolute()
    session.data = WrittenKernel(file=save_kernel(written, kernels, force=force), kernel=written.folder)
    session.text = str(session.data.file)


def _need_ipykernel(typed: str, outputs: Outputs, sbom: str) -> None:
    """Raise UsageError when the environment with this SBOM has no ipykernel."""
    name = outputs.name if typed.endswith(SIF) else typed
    if not any(one["name"] == NEEDED for one in json.loads(sbom)["packages"]):
        raise UsageError(
            f"the environment `{name}` has no `{NEEDED}`, which a Jupyter kernel needs",
            hint=f"`envbuilder add {pasted(name)} {NEEDED} --as {pasted(name)}-notebook` puts it into a layer on top, "
            f"and `envbuilder kernel {pasted(name)}-notebook` makes the kernel",
        )
