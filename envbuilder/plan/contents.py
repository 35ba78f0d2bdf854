"""The contents of the runtime layer."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from envbuilder.plan.model import DRIVER_PARTS, ENV_PREFIX, GPUS, SYSTEM_PATH, RuntimeStep
from envbuilder.plan.program import OUTSIDE, Program, spec_text

USER: Final = "vscode"  # in every image (`steps/configure_distribution.sh`); dev container tools give it the UID of the user

SBOM: Final = "opt/envbuilder/sbom.spdx.json"
PROVENANCE: Final = "opt/envbuilder/provenance.json"
# Apptainer sources env/*.sh in order and executes the runscript. Since 3.6, it has its own action scripts.
START: Final = "/opt/envbuilder/start"
STARTSCRIPT: Final = "#!/bin/sh\n"
USER_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Values that a user may change do not belong here: they would beat the user's own.\n"
)
# `--nv` binds the driver's libraries into a folder that a program finds by this variable alone: without it, no program sees a GPU.
# Without this file Apptainer also ignores `--env` and APPTAINERENV_X.
BASE_ENVIRONMENT: Final = """\
#!/bin/sh
# The driver's libraries of `--nv`. Apptainer sets what `--env` and APPTAINERENV_X say right after this file.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
"""
LOGIN: Final = "etc/profile.d/envbuilder.sh"


def _login_script(env: Sequence[tuple[str, str]]) -> str:
    """Return the script that restores the image's variables in login shells. Variables that are set stay."""
    lines = [
        "# Login shells read this file: /etc/profile sets another PATH, and `su -` and sshd drop the rest."
    ]
    for name, value in env:
        if name == "PATH":
            folders = (folder for folder in value.split(":") if folder not in SYSTEM_PATH.split(":"))
            first = shlex.quote(":".join(dict.fromkeys(folders)))
            lines.append(f'case :$PATH: in *:{ENV_PREFIX}/bin:*) ;; *) export PATH={first}:"$PATH" ;; esac')
        else:
            lines.append(f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}')
    return "\n".join(lines) + "\n"


def entry_point(step: RuntimeStep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what begins every command line of the image, and the command where none is named."""
    return (START, *step.run), () if step.run else ("/bin/bash",)


def run_lines(step: RuntimeStep) -> tuple[str, ...]:
    """Return the same as the lines of a shell script."""
    first, default = entry_point(step)
    given = (f'if [ "$#" -eq 0 ]; then set -- {shlex.join(default)}; fi',) if default else ()
    return (*given, f'exec {shlex.join(first)} "$@"')


def runtime_program(step: RuntimeStep, documents: Mapping[str, str]) -> Program:
    """Return the program that writes the layer. `documents`: path below / → text of what is said about this build."""
    links = {"singularity": ".singularity.d/runscript", "environment": ".singularity.d/env/90-environment.sh"}
    return Program(
        name=step.name, files=("write_files.py",), interpreter=OUTSIDE, root=(),
        spec=spec_text({"links": links, "folders": [".singularity.d/libs"]}), texts=tuple((runtime_files(step) | dict(documents)).items()),
        why="write what a container runtime reads at start",
    )  # fmt: skip


def runtime_files(step: RuntimeStep) -> dict[str, str]:
    """Return path → text of every file of the layer.

    Only the image's config has the variables that ask for GPUs. Apptainer reads them outside the SIF alone, and a value in the SIF would
    hide what Slurm, a pod or an outer container said of the GPUs to every program inside.
    """
    env = tuple((name, value) for name, value in step.env if name not in {GPUS, DRIVER_PARTS})
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)
    read_at_start = {
        ".singularity.d/env/10-docker2singularity.sh": "#!/bin/sh\n" + exports,
        ".singularity.d/env/90-environment.sh": USER_ENVIRONMENT,
        ".singularity.d/env/99-base.sh": BASE_ENVIRONMENT,
        ".singularity.d/runscript": "\n".join(("#!/bin/sh", *run_lines(step), "")),
        ".singularity.d/labels.json": json.dumps(dict(step.labels), indent=1, sort_keys=True) + "\n",
        ".singularity.d/startscript": STARTSCRIPT,
        LOGIN: _login_script(env),
    }
    return read_at_start | dict(step.files)
