"""Write a Jupyter kernel that runs in an environment: in the SIF or the image here, or over SSH, also in a Slurm job.

Jupyter starts the script beside `kernel.json`, which hands the connection file on through stdin. Over
SSH, the kernel's ports are forwarded, and nothing listens on a network.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from envbuilder.artifacts.outputs import SIF, Outputs
from envbuilder.core.beneath import pinned_folder
from envbuilder.core.cache import need_same, save_text
from envbuilder.core.errors import UsageError, VerifyError, blaming_path
from envbuilder.core.plain import pasted
from envbuilder.plan.contents import SBOM
from envbuilder.run.container import START_FILE, Surroundings, run_in_image
from envbuilder.run.exec import need_engine
from envbuilder.run.launch.script import WRITTEN_BY, compose, quoted, render_enter
from envbuilder.run.launch.site import Site, find_site
from envbuilder.run.named import need_image
from envbuilder.run.ssh_session import open_remote

BODY: Final = Path(__file__).with_suffix(".sh")
BOOT: Final = Path(__file__).with_name("kernel_boot.py")
EXECUTABLE: Final = 0o755
NEEDED: Final = "ipykernel"
Form = Literal["sif", "image", "ssh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    name: str
    form: Form
    place: str  # where it runs, for people
    sif: Path
    image: str = ""
    config: str = ""  # of `ssh`
    host: str = ""  # in that file
    site: Site

    @property
    def folder(self) -> str:
        """Return the name of the kernel: Jupyter takes letters, digits, `.`, `_` and `-`."""
        words = ("envbuilder", self.name, *([self.place] if self.place else []))
        return re.sub(r"[^a-z0-9._-]+", "-", "-".join(words).lower())


def make_kernel(
    outputs: Outputs, environment: Mapping[str, str], *, in_image: bool, ssh: str, srun: str, profile: str, force: bool
) -> Kernel:  # fmt: skip
    """Return the kernel of an environment: in the image, in the SIF here, or in the SIF by `ssh`, `srun` or both.

    Sets the SSH session up for these; raises what `open_remote` raises.
    """
    here = Kernel(
        name=outputs.name, sif=outputs.sif.absolute(), site=find_site(profile), form="sif", place=""
    )
    if in_image:
        return replace(here, form="image", place="image", image=outputs.image_name)
    if not (ssh or srun):
        return here
    remote, config = open_remote(
        outputs, environment, host=ssh, srun=srun, profile=profile, folder=None, force=force
    )
    place = "-".join(filter(None, ("slurm" if srun else "", ssh)))
    return replace(here, form="ssh", place=place, config=str(config), host=remote.alias)


def kernels_of(environment: Mapping[str, str]) -> Path:
    """Return the folder in which Jupyter looks for its user's kernels."""
    return Path(environment.get("JUPYTER_DATA_DIR") or Path.home() / ".local/share/jupyter") / "kernels"


def render_files(kernel: Kernel, folder: Path) -> dict[str, str]:
    spec = {
        "argv": [str(folder / "start"), "{connection_file}"],
        "display_name": f"{kernel.name} (envbuilder{f', {kernel.place}' if kernel.place else ''})",
        "language": "python",
        "interrupt_mode": "message",  # a signal would reach the client alone
        "metadata": {"debugger": True},
    }
    head = (
        f"# Starts a Jupyter kernel in {kernel.name}. {WRITTEN_BY}; it runs without envbuilder.",
        "# shellcheck disable=SC2016,SC1003,SC2034 # settings are quoted as data",
    )
    settings = {
        "name": quoted(kernel.name), "form": kernel.form, "image": quoted(kernel.image), "config": quoted(kernel.config),
        "host": quoted(kernel.host), "boot": shlex.quote(BOOT.read_text(encoding="utf-8")),
    }  # fmt: skip
    start = compose(head, settings, (BODY,))
    files = {"kernel.json": json.dumps(spec, indent=1) + "\n", "start": start}
    if kernel.form == "sif":
        files[f"{kernel.name}-exec"] = render_enter(kernel.name, kernel.sif, kernel.site)
        files[START_FILE.name] = START_FILE.read_text(encoding="utf-8")
    return files


def save_kernel(kernel: Kernel, kernels: Path, *, force: bool) -> Path:
    """Write the kernel into Jupyter's folder of kernels; raises UsageError when there is another one."""
    folder = kernels / kernel.folder
    files = render_files(kernel, folder)
    spec = folder / "kernel.json"
    need_same(spec, files["kernel.json"], force=force)
    problem = f"cannot write the kernel to `{folder}`"
    with blaming_path(problem), pinned_folder(kernels, kernel.folder) as inside:
        for name, text in files.items():
            save_text(inside / name, text, mode=EXECUTABLE if text.startswith("#!") else 0o644)
    return spec


def read_sbom_of_image(name: str, outputs: Outputs, environment: Mapping[str, str], recipes: Path) -> str:
    """Return the SBOM in the recipe's image; raises VerifyError for one without, and what `need_image` raises."""
    docker = need_engine(outputs, environment)
    need_image(docker, name, outputs, recipes)
    read = run_in_image(docker, outputs.image_name, ("cat", f"/{SBOM}"), Surroundings(folder=Path("/")))
    if read.code:
        raise VerifyError(f"`{outputs.image_name}` holds no SBOM: {read.output.strip()}")
    return read.output


def need_ipykernel(typed: str, outputs: Outputs, sbom: str) -> None:
    """Raise UsageError when the environment with this SBOM has no ipykernel."""
    name = outputs.name if typed.endswith(SIF) else typed
    if not any(package["name"] == NEEDED for package in json.loads(sbom)["packages"]):
        raise UsageError(
            f"the environment `{name}` has no `{NEEDED}`, which a Jupyter kernel needs",
            hint=f"`envbuilder add {pasted(name)} {NEEDED}` puts it into the recipe and builds it; "
            f"then `envbuilder kernel {pasted(name)}` makes the kernel",
        )
