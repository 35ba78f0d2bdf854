"""The Docker engine: load an image, layer by layer during a build, and run commands in its containers.

`connect` makes one `DockerEngine` for a whole command, over the Docker SDK.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypedDict

import docker
import docker.errors
from docker.models.containers import Container
from docker.models.images import Image
from docker.types import LogConfig
from requests.exceptions import RequestException

from envbuilder.artifacts.oci.layout import Layout, layout_size, read_archive
from envbuilder.core.cache import Sha256
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, SpaceError, ToolError, UsageError
from envbuilder.core.process import Completed
from envbuilder.core.system import DOCKER_SOCKET

TIMEOUT: Final = 600  # seconds: an engine unpacks a large image before it answers
STAGED: Final = ":part-"  # begins the tag of a staged image
REPLACED: Final = ".replaced"  # ends the tag of an image that is losing its own
OWNER: Final = "envbuilder.builder"  # label of a container: the build that made it
PATIENCE: Final = 10.0  # seconds for an interrupted load to end: an engine that has all pieces unpacks them before it answers
_ERRORS: Final = (docker.errors.DockerException, RequestException)


class ContainerOptions(TypedDict, total=False):
    """Arguments of the Docker SDK's `containers.create`."""

    entrypoint: str
    user: str
    volumes: list[str]
    working_dir: str
    environment: dict[str, str]
    device_requests: list[dict[str, object]] | None  # the SDK makes its `DeviceRequest` of each
    ipc_mode: str
    init: bool
    network_mode: str
    cap_drop: list[str]
    security_opt: list[str]


class DockerEngine:
    """A Docker engine that answered."""

    def __init__(self, client: "docker.DockerClient", build: str = "") -> None:
        """`build` identifies the build whose image is staged and tested."""
        self._client, self._build = client, build
        self._abandoned = threading.Event()
        self._making = threading.Lock()  # held while the engine makes an image or a container
        self._other = ThreadPoolExecutor(1)

    def __str__(self) -> str:
        """Name the engine's version and how it stores images."""
        info = self._client.info()
        return f"Docker Engine {info.get('ServerVersion')}, image store {info.get('Driver')}"

    def image_id(self, name: str) -> str:
        """Return the identity of the image; raises UsageError when the engine has none of that name."""
        try:
            return str(self._client.images.get(name).id)
        except docker.errors.APIError as error:  # also for a name that no image can have
            why = "" if isinstance(error, docker.errors.NotFound) else f": {error.explanation or error}"
            raise UsageError(f"the Docker engine has no image `{name}`{why}") from error

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of the image, none if the engine has no such image."""
        image = self._find(name)
        return dict(image.labels) if image else {}

    def holds(self, name: str, manifest: Sha256) -> bool:
        """Whether the image `name` has exactly this manifest, with all its layers.

        Only engines with the containerd image store know an image by its manifest.
        """
        image = self._find(name)
        return image is not None and image.id == f"sha256:{manifest}" and bool(_layers(image))

    def load(self, layout: Layout, *, name: str, console: Console) -> None:
        """Make the layout the engine's image `name`; raises BuildError when the engine rejects it.

        An image that `load_staged` loaded is only renamed. The engine compares each layer with the digest in
        the manifest, so a damaged image never gets the name.
        """
        staged = self._find(self._staged(name))
        if staged is not None and self.holds(self._staged(name), layout.manifest.digest):
            with self._replacing(name), contextlib.suppress(*_ERRORS):  # then all of it is loaded
                staged.tag(*name.rsplit(":", 1))
        if not self.holds(name, layout.manifest.digest):
            self._load(layout, name=name, target=name, console=console)
        self._remove_staged(name)

    def load_staged(self, layout: Layout, *, name: str, console: Console) -> str:
        """Load as `load`, but leave the final name to the image that has it; return the name of the loaded image."""
        if self.holds(name, layout.manifest.digest):
            return name
        self._load(layout, name=name, target=self._staged(name), console=console)
        return self._staged(name)

    def load_first_layers(self, layout: Layout, *, name: str, console: Console) -> None:
        """Load a layout of the image's first layers, unless the engine has them; raises BuildError."""
        if len(self.known_layers(layout, name)) < len(layout.layers):
            part = f" up to layer {len(layout.layers)}"
            self._load(layout, name=name, target=self._staged(name), console=console, part=part)

    def drop_containers(self) -> None:
        """Remove the build's containers, which would keep their image; an engine that is gone is not an error."""
        with contextlib.suppress(*_ERRORS):
            for container in self.containers():
                with contextlib.suppress(docker.errors.APIError):  # its removal has begun
                    container.remove(force=True)

    def drop_staged(self, name: str) -> None:
        """Remove the containers and what `load_staged` loaded; an engine that lost it or is gone is not an error."""
        self.drop_containers()
        with contextlib.suppress(*_ERRORS):
            self._remove_staged(name)

    def staged(self) -> tuple[tuple[str, str], ...]:
        """Return the name and the build of every staged image, also of other users and checkouts."""
        try:
            tags = [tag for image in self._client.images.list() for tag in image.tags]
        except _ERRORS:
            return ()
        return tuple((tag, tag.rpartition(STAGED)[2].removesuffix(REPLACED)) for tag in tags if STAGED in tag)

    def abandon(self, name: str) -> None:
        """End the loading of the image, and remove what is loaded and its containers. Later loads and runs of this object fail."""
        self._abandoned.set()
        end = time.monotonic() + PATIENCE
        # An engine that has all pieces names the image before it answers.
        idle = self._making.acquire(timeout=PATIENCE)
        self.drop_staged(name)
        # A container whose removal has begun keeps its image.
        while self._is_left(name) and time.monotonic() < end:
            time.sleep(0.05)
            self.drop_staged(name)
        if idle:
            self._making.release()

    def known_layers(self, layout: Layout, name: str) -> frozenset[Sha256]:
        """Return the blobs of the layout whose layers the engine has, in the image `name` or in the staged one."""
        known = self.diff_ids(name)
        return frozenset(layer.blob.digest for layer in layout.layers if f"sha256:{layer.diff_id}" in known)

    def diff_ids(self, name: str) -> frozenset[str]:
        """Return the layers that the engine has in the image `name` or in the staged one, as `sha256:…` of their tars."""
        images = filter(None, (self._find(name), self._find(self._staged(name))))
        return frozenset(diff_id for image in images for diff_id in _layers(image))

    def folder(self) -> Path | None:
        """Return the folder of the engine's images, None if it is on another machine or cannot be seen."""
        try:
            folder = Path(self._client.info().get("DockerRootDir") or "/nonexistent")
            is_here = self._client.api.base_url == "http+docker://localhost" and folder.exists()
        except (*_ERRORS, OSError):  # what needs the engine itself names it
            return None
        return folder if is_here else None

    def save(self, name: str, path: Path) -> None:
        """Write the image to a file as `docker save` does; raises UsageError if the engine lacks it."""
        try:
            pieces = self._client.images.get(name).save(named=True)
            with path.open("wb") as stream:
                for piece in pieces:
                    stream.write(piece)
        except _ERRORS as error:
            raise UsageError(f"the Docker engine has no image `{name}`") from error

    def run(self, image: str, argv: Sequence[str], options: ContainerOptions) -> Completed:
        """Run a command in a new container and keep its output; raises UsageError, ToolError, BuildError."""
        try:
            # In another thread: an interruption of this one would leave a request whose container comes later.
            container = self._other.submit(self._create, image, argv, options).result()
        except docker.errors.ImageNotFound as error:
            raise UsageError(
                f"the Docker engine has no image `{image}`", hint="`envbuilder build` loads it"
            ) from error
        except docker.errors.APIError as error:
            raise _rejected(f"make a container of `{image}`", error) from error
        try:
            _start(container)
            code = int(container.wait()["StatusCode"])
            # `attach` with its earlier output may lose that of a short command (https://github.com/moby/moby/issues/29285).
            output = container.logs(stdout=True, stderr=True)
            return Completed(code=code, output=output.decode(errors="replace"))
        finally:
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True)

    def _create(self, image: str, argv: Sequence[str], options: ContainerOptions) -> Container:
        with self._making:
            self._need_build()
            return self._client.containers.create(
                image,
                list(argv),
                tty=False,
                stdin_open=False,
                labels={OWNER: self._build},
                # An engine may be set to keep none. A program that never stops writing must not fill its disk.
                log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "2"}),
                **options,  # type: ignore[arg-type]
            )

    def containers(self) -> list[Container]:
        """Return the containers of the build, whether they run or not."""
        filters: dict[str, str | list[str] | bool] = {"label": f"{OWNER}={self._build}"}
        return self._client.containers.list(all=True, filters=filters, ignore_removed=True)

    def _is_left(self, name: str) -> bool:
        """Whether the engine has a container of the build, or its staged image. One that is gone has nothing."""
        try:
            return bool(self.containers() or self._find(self._staged(name)))
        except _ERRORS:
            return False

    def _find(self, name: str) -> Image | None:
        try:
            return self._client.images.get(name)
        except docker.errors.ImageNotFound:
            return None

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[None]:
        """Remove the image that loses the name in the block, unless it has another name.

        Meanwhile it has a staged name, so that it can be found after an interruption at any moment. A container
        of it keeps it, without a name.
        """
        self._remove_replaced(name)
        if before := self._find(name):
            before.tag(*self._replaced(name).rsplit(":", 1))
        try:
            yield
        finally:
            with contextlib.suppress(*_ERRORS):
                self._remove_replaced(name)

    def _load(self, layout: Layout, *, name: str, target: str, console: Console, part: str = "") -> None:
        """Load the layout as `target`. `part` says which one of the image it is.

        After an edit only the last layers are new, so layers of the engine's images `name` are left out at
        first. An engine that compresses layers differently or keeps none cannot use them, and gets all.
        """
        error: Exception | None = None
        for without in dict.fromkeys((self.known_layers(layout, name), frozenset[Sha256]())):
            with console.step(f"load {name}{part}", layout_size(layout, without=without)) as transfer:
                pieces = read_archive(layout, name=target, without=without, advance=transfer.advance)
                try:
                    with self._making, self._replacing(target):
                        # An iterator: from a stream, urllib3 would read and send 16 KiB at a time.
                        self._client.images.load(self._until_abandoned(pieces))  # type: ignore[arg-type]  # requests takes it
                except _ERRORS as failure:
                    error = failure
            if self.holds(target, layout.manifest.digest):
                return
        raise _failed(
            f"could not load the image into the engine ({self}): {error or 'it keeps another image under that name'}",
            hint="Docker Engine 25 or newer with the containerd image store reads OCI layouts",
        )

    def _until_abandoned(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._need_build()  # otherwise the engine drops the rest
            yield piece

    def _need_build(self) -> None:
        if self._abandoned.is_set():
            raise BuildError("the build has ended")

    def _staged(self, name: str) -> str:
        """Return the staged name of an image, which is incomplete or not tested yet.

        Every build removes it at its end, also when it fails or is interrupted. After a kill, the next build or
        `cache --gc` does.
        """
        return f"{name.rpartition(':')[0]}{STAGED}{self._build}"

    def _replaced(self, name: str) -> str:
        return self._staged(name) + REPLACED

    def _remove_staged(self, name: str) -> None:
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(self._staged(name))
        self._remove_replaced(name)  # last: a load at this moment may take the staged name from it

    def _remove_replaced(self, name: str) -> None:
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(self._replaced(name), force=True)


def connect(environment: Mapping[str, str], build: str = "") -> DockerEngine | None:
    """Return the Docker engine that `DOCKER_HOST` or the default socket leads to, or None when none answers.

    `build` identifies the build whose image is staged and tested.
    """
    kind, _, path = (environment.get("DOCKER_HOST") or DOCKER_SOCKET).partition("://")
    if kind == "unix" and not Path(path).exists():
        return None  # the SDK would leave the socket of its attempt open
    try:
        client = docker.from_env(environment=dict(environment), timeout=TIMEOUT)
        client.ping()
    except _ERRORS:
        return None
    return DockerEngine(client, build)


def _layers(image: Image) -> Sequence[str]:
    """Return the image's diff_ids; none for an image of which the engine lacks layers."""
    return image.attrs["RootFS"].get("Layers") or ()


def _start(container: Container) -> None:
    try:
        container.start()
    except docker.errors.APIError as error:
        reason = str(error.explanation or error)
        if "device driver" in reason or "nvidia" in reason:
            raise ToolError(
                f"the Docker engine cannot give a container this machine's GPUs: {reason}",
                hint="install the NVIDIA Container Toolkit, or use the SIF: `--in sif`",
            ) from error
        raise _rejected("start the container", error) from error


def _rejected(what: str, error: docker.errors.APIError) -> BuildError:
    return _failed(f"the Docker engine cannot {what}: {error.explanation or error}")


def _failed(message: str, *, hint: str = "") -> BuildError:
    """Return the error with this message. `hint` is for all causes but a full disk."""
    if "no space left" in message:
        return SpaceError(
            message,
            hint="`docker system df` shows what it keeps; `docker image prune` and `docker builder prune` free some",
        )
    return BuildError(message, hint=hint)
