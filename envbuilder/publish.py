"""Hand an OCI layout over to a Docker engine."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import docker
import docker.errors
from requests.exceptions import RequestException

from envbuilder.errors import BuildError
from envbuilder.oci import write_archive


def connect(environment: Mapping[str, str]) -> "docker.DockerClient | None":
    """The Docker engine that answers, or None."""
    try:
        client = docker.from_env(environment=dict(environment), timeout=600)
        client.ping()
    except (docker.errors.DockerException, RequestException):
        return None
    return client


def load_image(client: "docker.DockerClient", layout: Path, *, name: str, advance: Callable[[int], None]) -> str:
    """Stream the layout into the engine, where it gets the name `name`; returns its id there."""
    with _piped(layout, name=name, advance=advance) as stream:
        try:
            images = client.images.load(stream)
        except (docker.errors.DockerException, RequestException) as error:
            raise BuildError(
                f"could not load the image into the Docker engine: {error}",
                hint="Docker Engine 25 or newer reads OCI layouts; `docker info` says what runs here",
            ) from error
    return str(images[0].id) if images else ""


def has_image(client: "docker.DockerClient", name: str, manifest: str) -> bool:
    """Whether the engine holds `name` with exactly this manifest (engines with the containerd store know it by that)."""
    try:
        return bool(client.images.get(name).id == f"sha256:{manifest}")
    except docker.errors.ImageNotFound:
        return False


@contextlib.contextmanager
def _piped(layout: Path, *, name: str, advance: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """The archive as a stream to read, written by a thread, so that 3 GB never lie on disk or in memory."""
    reading, writing = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as sink:
            write_archive(layout, sink, name=name, advance=advance)

    thread = threading.Thread(target=write, name="archive")
    thread.start()
    with os.fdopen(reading, "rb") as stream:
        yield stream
    thread.join()
