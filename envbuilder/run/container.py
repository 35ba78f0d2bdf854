"""Run a command inside what was built: in the SIF by Apptainer, in the image by a Docker engine.

The options are as few as each runtime needs: GPUs only where there are any, the project's folder and a site's scratch at
their own paths, and the user's own Python packages kept out, which would shadow the image's.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NoReturn, TypedDict

import docker.errors
import docker.types
from spython.main import Client

from envbuilder.core.errors import BuildError, SpaceError, ToolError, UsageError
from envbuilder.core.process import hand_over
from envbuilder.run.attach import converse

if TYPE_CHECKING:
    from docker.models.containers import Container

GPU_DEVICE: Final = Path("/dev/nvidiactl")  # the driver makes it when it is loaded
FIXED_ENV: Final = {"PYTHONNOUSERSITE": "1"}

# Folders that an image has of its own: a bind mount there would hide the environment.
IMAGE_TREES: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt/env", "/opt/envbuilder", "/proc", "/run", "/sbin", "/sys", "/usr",
)  # fmt: skip
IMAGE_FOLDERS: Final = ("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp")  # noqa: S108
SHARED_BY_APPTAINER: Final = ("/tmp", "/var/tmp")  # noqa: S108 - the host's own, unless a site has it otherwise
PASSED_TO_IMAGE: Final = (
    "USER",
    "LOGNAME",
    "TERM",
    "TMPDIR",
)  # a container has no entry in /etc/passwd for a user
SHELL: Final = ("/bin/bash",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a container gets to see of this machine."""

    folder: Path  # where the command starts
    binds: tuple[str, ...] = ()  # PATH[:PATH[:OPTIONS]], as both runtimes take them
    gpu: bool = False
    user: str = ""  # of the processes in a container of an image, UID:GID
    names: tuple[tuple[str, str], ...] = ()  # environment that Docker, unlike Apptainer, does not pass on


def probe_surroundings(
    folder: Path, *, environment: Mapping[str, str], ids: tuple[int, int], binds: Sequence[str] = ()
) -> Surroundings:
    """Look at this machine: its GPUs, the project around `folder`, and the user's folder of temporary files."""
    wanted = [str(project_folder(folder)), environment.get("TMPDIR", "")]
    own = [path for path in wanted if path and want_bind(PurePosixPath(path)) and Path(path).is_dir()]
    names = [(name, environment[name]) for name in PASSED_TO_IMAGE if name in environment]
    home = [("HOME", "/tmp")] if ids[0] else []  # noqa: S108 - else `/`, where an ordinary user may write nothing
    return Surroundings(
        folder=folder,
        binds=tuple(dict.fromkeys([*own, *binds])),
        gpu=GPU_DEVICE.exists(),
        user=":".join(map(str, ids)),
        names=(*home, *names),
    )


def project_folder(folder: Path) -> Path:
    """The checkout that holds `folder`, so that `../data` means the same inside; without one the folder itself."""
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), folder)


def want_bind(folder: PurePosixPath) -> bool:
    """Whether a mount there would hide nothing of the image."""
    inside_image = any(folder.is_relative_to(tree) for tree in IMAGE_TREES)
    return folder.is_absolute() and str(folder) not in IMAGE_FOLDERS and not inside_image


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command inside a container ended."""

    code: int
    output: str


# ---- SIF


def sif_options(around: Surroundings) -> list[str]:
    """The options of `apptainer exec` beside the SIF and the command. The host's IPC and /dev/shm come by themselves."""
    shared = [bind for bind in around.binds if not _shared(bind)]
    binds = [part for bind in shared for part in ("--bind", bind)]
    env = [part for name, value in FIXED_ENV.items() for part in ("--env", f"{name}={value}")]
    return [*(["--nv"] if around.gpu else []), *binds, *env]


def _shared(bind: str) -> bool:
    return ":" not in bind and any(PurePosixPath(bind).is_relative_to(tree) for tree in SHARED_BY_APPTAINER)


def run_in_sif(sif: Path, argv: Sequence[str], around: Surroundings) -> Ran:
    """Run to the end and keep the output; raises ToolError when Apptainer is not there."""
    try:
        result = Client.execute(
            str(sif), list(argv), options=sif_options(around), return_result=True, quiet=True
        )
    except FileNotFoundError as error:
        raise ToolError(
            "`apptainer` is needed to run in a SIF", hint="`scripts/setup` installs it"
        ) from error
    message = result["message"]
    return Ran(
        code=result["return_code"], output="".join(message) if isinstance(message, list) else str(message)
    )


def sif_argv(sif: Path, argv: Sequence[str], around: Surroundings) -> tuple[str, ...]:
    """The command line that `exec` becomes, and without a command `shell`."""
    return ("apptainer", "exec" if argv else "shell", *sif_options(around), str(sif), *argv)


def become_sif(sif: Path, argv: Sequence[str], around: Surroundings) -> NoReturn:
    """Let Apptainer take this process's place: terminal, signals and exit code are then the command's own."""
    hand_over(sif_argv(sif, argv, around))


# ---- image


class ImageOptions(TypedDict):
    """Arguments of the Docker SDK's `containers.create`."""

    user: str
    volumes: list[str]
    working_dir: str
    environment: dict[str, str]
    device_requests: list[docker.types.DeviceRequest] | None
    ipc_mode: str
    init: bool


def image_options(around: Surroundings) -> ImageOptions:
    """What a container of an image is made with, beside the command."""
    gpus = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if around.gpu else None
    return {
        "user": around.user,
        "volumes": [f"{bind}:{bind}" if ":" not in bind else bind for bind in around.binds],
        "working_dir": str(around.folder),
        "environment": FIXED_ENV | dict(around.names),
        "device_requests": gpus,
        "ipc_mode": "host",  # ranks of one job share memory; Docker's own /dev/shm of 64 MB is too small for loaders
        "init": True,  # as the first process of a container a program would ignore the signals that end it elsewhere
    }


def image_argv(image: str, argv: Sequence[str], around: Surroundings, *, terminal: bool) -> tuple[str, ...]:
    """The same as a command line of `docker`, for `--print`."""
    options = image_options(around)
    words = [
        "docker",
        "run",
        "--rm",
        "--init",
        "--interactive",
        *(["--tty"] if terminal else []),
        f"--user={options['user']}",
        "--ipc=host",
    ]
    words += ["--gpus=all"] if around.gpu else []
    words += [f"--volume={volume}" for volume in options["volumes"]]
    words += [f"--workdir={options['working_dir']}"]
    words += [f"--env={name}={value}" for name, value in options["environment"].items()]
    return (*words, image, *(argv or SHELL))


def run_in_image(client: "docker.DockerClient", image: str, argv: Sequence[str], around: Surroundings) -> Ran:
    """Run to the end and keep the output."""
    with _container(client, image, argv, around) as container:
        kept = container.attach(stdout=True, stderr=True, stream=True, logs=True)
        _start(container)
        output = b"".join(kept)
        return Ran(code=int(container.wait()["StatusCode"]), output=output.decode(errors="replace"))


def talk_in_image(
    client: "docker.DockerClient", image: str, argv: Sequence[str], around: Surroundings, *, terminal: bool
) -> int:
    """Run with our input, output, signals and, with `terminal`, our terminal; returns the exit code."""
    with _container(client, image, argv or SHELL, around, terminal=terminal, listens=True) as container:
        return converse(container, lambda: _start(container), terminal=terminal)


@contextlib.contextmanager
def _container(
    client: "docker.DockerClient",
    image: str,
    argv: Sequence[str],
    around: Surroundings,
    *,
    terminal: bool = False,
    listens: bool = False,
) -> "Iterator[Container]":
    try:
        container = client.containers.create(
            image, list(argv), tty=terminal, stdin_open=listens, **image_options(around)
        )
    except docker.errors.ImageNotFound as error:
        raise UsageError(
            f"the Docker engine has no image `{image}`", hint="`envbuilder build` loads it"
        ) from error
    except docker.errors.APIError as error:
        raise _refused(f"make a container of `{image}`", error) from error
    try:
        yield container
    finally:
        with contextlib.suppress(docker.errors.APIError):
            container.remove(force=True)


def _start(container: "Container") -> None:
    try:
        container.start()
    except docker.errors.APIError as error:
        said = str(error.explanation or error)
        if "device driver" in said or "nvidia" in said:
            raise ToolError(
                f"the Docker engine cannot give a container this machine's GPUs: {said}",
                hint="install the NVIDIA Container Toolkit, or use the SIF: `--in sif`",
            ) from error
        raise _refused("start the container", error) from error


def _refused(what: str, error: docker.errors.APIError) -> BuildError:
    message = f"the Docker engine cannot {what}: {error.explanation or error}"
    if "no space left" in message:
        return SpaceError(
            message,
            hint="`docker system df` shows what it keeps; `docker image prune` and `docker builder prune` free some",
        )
    return BuildError(message)
