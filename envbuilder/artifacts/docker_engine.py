"""Hand an OCI layout over to a Docker engine, its finished layers while the others are still being made."""

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import Path

import docker
import docker.errors
from requests.exceptions import RequestException

from envbuilder.artifacts.engine_socket import holds, is_absent
from envbuilder.artifacts.oci.layout import layout_size, read_archive, read_layout
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Sha256
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError


def connect(environment: Mapping[str, str]) -> "docker.DockerClient | None":
    """The Docker engine that answers, or None."""
    if is_absent(environment):
        return None
    try:
        client = docker.from_env(environment=dict(environment), timeout=600)
        client.ping()
    except (docker.errors.DockerException, RequestException):
        return None
    return client


def has_image(client: "docker.DockerClient", name: str, manifest: str) -> bool:
    """Whether the engine holds all of `name` with exactly this manifest (engines with the containerd store know it by that)."""
    try:
        return holds(client.images.get(name).attrs, manifest)
    except docker.errors.ImageNotFound:
        return False


def part_name(name: str) -> str:
    """What the engine calls an image that is not whole yet, or not tried yet.

    It stays after a build that failed, for the next one, and goes with the next good one.
    """
    return f"{name.rpartition(':')[0]}:part"


class Background:
    """Work done one after the other, which nobody waits for when a build fails: an engine drops a load whose sender is gone."""

    def __init__(self) -> None:
        self._last: Future[None] = Future()
        self._last.set_result(None)

    def begin(self, work: Callable[[], object]) -> None:
        """Do this when all that was begun before is done."""
        before, self._last = self._last, Future()

        def run(done: Future[None]) -> None:
            try:
                before.result()
                work()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - `finish` raises it
                done.set_exception(error)

        threading.Thread(target=run, args=(self._last,), daemon=True, name="load").start()

    def finish(self) -> None:
        """Wait for all of it; raises the first error."""
        self._last.result()


def load(outputs: Outputs, manifest: Sha256, environment: Mapping[str, str], console: Console) -> str:
    """Bring the image into the Docker engine unless it is there; returns its name there, "" where no engine answers.

    What `load_untried` brought only gets that name. The engine takes a layer only when its digest is the manifest's, so a
    damaged image never gets the name. Raises BuildError as `load_image`.
    """
    client = connect(environment)
    if client is None:
        return ""
    name, part = outputs.image_name, part_name(outputs.image_name)
    if has_image(client, part, manifest):
        with contextlib.suppress(docker.errors.DockerException, RequestException):  # else all of it is loaded
            client.images.get(part).tag(*name.rsplit(":", 1))
    if has_image(client, name, manifest):
        _drop_part(client, name)
    else:
        load_image(client, outputs.image, name=name, console=console)
    return name


def load_untried(outputs: Outputs, manifest: Sha256, environment: Mapping[str, str], console: Console) -> str:
    """Bring the image into the Docker engine as `load`, but for the name: what has the final one there keeps it.

    Returns the name by which the engine knows the image, "" where none answers.
    """
    client = connect(environment)
    if client is None:
        return ""
    if has_image(client, outputs.image_name, manifest):
        return outputs.image_name
    load_image(client, outputs.image, name=outputs.image_name, console=console, as_part=True)
    return part_name(outputs.image_name)


def drop_untried(outputs: Outputs, environment: Mapping[str, str]) -> None:
    """Take away what `load_untried` brought; an engine that has not got it, or is gone, is no error."""
    client = connect(environment)
    if client is not None:
        with contextlib.suppress(docker.errors.DockerException, RequestException):
            _drop_part(client, outputs.image_name)


def load_part(client: "docker.DockerClient", layout: Path, *, name: str, console: Console) -> None:
    """Bring the layout of the first layers of the image `name` into the engine, unless it has them; raises BuildError as
    `load_image`.
    """
    if len(known_layers(client, layout, name)) < len(read_layout(layout).layers):
        load_image(client, layout, name=name, console=console, as_part=True)


def load_image(
    client: "docker.DockerClient", layout: Path, *, name: str, console: Console, as_part: bool = False
) -> None:
    """Bring the layout into the engine as `name`, or as the part of it; raises BuildError when the engine refuses it.

    After an edit only the last layers are new. Layers that the engine's image of that name has, or the part of it, are
    left out first; an engine that cannot make use of that (its layers are packed in another way, or it keeps none) gets all.
    """
    manifest = read_layout(layout).manifest.digest
    target = part_name(name) if as_part else name
    error: Exception | None = None
    for without in dict.fromkeys((known_layers(client, layout, name), frozenset[Sha256]())):
        with console.transfer(f"load {target}", layout_size(layout, without=without)) as transfer:
            error = _load(client, layout, name=target, without=without, advance=transfer.advance)
        if has_image(client, target, manifest):
            if not as_part:
                _drop_part(client, name)
            return
    raise BuildError(
        f"could not load the image into the Docker engine: {error or 'it keeps another image under that name'}",
        hint="Docker Engine 25 or newer with the containerd image store reads OCI layouts; `docker info` says what runs here",
    )


def _drop_part(client: "docker.DockerClient", name: str) -> None:
    """Where the whole image has its layers, or nobody is to have it."""
    with contextlib.suppress(docker.errors.ImageNotFound):
        client.images.remove(part_name(name))


def known_layers(client: "docker.DockerClient", layout: Path, name: str) -> frozenset[Sha256]:
    """The blobs of the layout whose layers the engine has, in the image `name` or in the part of it."""
    known: set[str] = set()
    for one in (name, part_name(name)):
        with contextlib.suppress(docker.errors.ImageNotFound):
            known |= set(client.images.get(one).attrs["RootFS"].get("Layers") or ())
    return frozenset(
        layer.blob.digest for layer in read_layout(layout).layers if f"sha256:{layer.diff_id}" in known
    )


def _load(
    client: "docker.DockerClient",
    layout: Path,
    *,
    name: str,
    without: Collection[Sha256],
    advance: Callable[[int], None],
) -> Exception | None:
    pieces = read_archive(layout, name=name, without=without, advance=advance)
    try:
        # Not a stream: of one, urllib3 would read and send 16 KiB at a time.
        client.images.load(pieces)  # type: ignore[arg-type]  # requests takes it
    except (docker.errors.DockerException, RequestException) as error:
        return error
    return None
