"""Run a command inside what was built: in the SIF by Apptainer, in the image by a Docker engine.

The options are as few as each runtime needs: GPUs only where there are any, the working folder at its own path, and the
user's own Python packages kept out, which would shadow the image's.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker.errors
import docker.types
from spython.main import Client

from envbuilder.errors import BuildError, ToolError

GPU_DEVICE: Final = Path("/dev/nvidiactl")  # the driver makes it when it is loaded
FIXED_ENV: Final = {"PYTHONNOUSERSITE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command inside a container ended."""

    code: int
    output: str


def sif_options(*, gpu: bool) -> list[str]:
    """The options of `apptainer exec` beside the image and the command."""
    env = [part for name, value in FIXED_ENV.items() for part in ("--env", f"{name}={value}")]
    return [*(["--nv"] if gpu else []), *env]


def run_in_sif(sif: Path, argv: Sequence[str]) -> Ran:
    """Run to the end and keep the output; raises ToolError when Apptainer is not there."""
    try:
        result = Client.execute(
            str(sif), list(argv), options=sif_options(gpu=GPU_DEVICE.exists()), return_result=True, quiet=True
        )
    except FileNotFoundError as error:
        raise ToolError(
            "`apptainer` is needed to run in a SIF", hint="`scripts/setup` installs it"
        ) from error
    message = result["message"]
    return Ran(
        code=result["return_code"], output="".join(message) if isinstance(message, list) else str(message)
    )


def sif_argv(sif: Path, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line that `envbuilder exec` becomes."""
    return ("apptainer", "exec", *sif_options(gpu=GPU_DEVICE.exists()), str(sif), *argv)


def run_in_image(
    client: "docker.DockerClient", name: str, argv: Sequence[str], *, folder: Path, user: str, show: bool
) -> Ran:
    """Run to the end as `user`, with `folder` at its own path; `show` passes the output on as it comes."""
    gpus = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if GPU_DEVICE.exists() else None
    try:
        container = client.containers.create(
            name,
            list(argv),
            user=user,
            volumes={str(folder): {"bind": str(folder), "mode": "rw"}} if folder != Path("/") else {},
            working_dir=str(folder),
            environment=FIXED_ENV,
            device_requests=gpus,
            ipc_mode="host",  # ranks of one job share memory; Docker's own /dev/shm of 64 MB is too small for loaders
        )
    except docker.errors.ImageNotFound as error:
        raise BuildError(
            f"the Docker engine has no image `{name}`", hint="`envbuilder build` loads it"
        ) from error
    kept: list[bytes] = []
    try:
        output = container.attach(stdout=True, stderr=True, stream=True, demux=True)
        container.start()
        for out, err in output:
            for part, sink in ((out, sys.stdout), (err, sys.stderr)):
                if part:
                    kept.append(part)
                    if show:
                        sink.buffer.write(part)
                        sink.flush()
        code = int(container.wait()["StatusCode"])
    finally:
        with contextlib.suppress(docker.errors.APIError):
            container.remove(force=True)
    return Ran(code=code, output=b"".join(kept).decode(errors="replace"))
