"""The Docker engine: how a run in a container ends, which image is held, and which errors a user sees."""

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import docker.errors
import pytest

from envbuilder.artifacts.docker_engine import ContainerOptions, DockerEngine, connect
from envbuilder.artifacts.oci.layout import write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, SpaceError, ToolError, UsageError
from envbuilder.core.process import Completed
from envbuilder.layers.layer import write_layer

NAME, MANIFEST = "envbuilder/x:latest", "ab" * 32
OPTIONS: ContainerOptions = {
    "user": "1:2", "volumes": [], "working_dir": "/", "environment": {}, "device_requests": None,
    "ipc_mode": "host", "init": True,
}  # fmt: skip


class Client:
    """Stands in for the Docker SDK's client: one container that prints what it is given."""

    def __init__(self, *output: bytes, code: int = 0, image: bool = True) -> None:
        self.asked: dict[str, object] = {}
        self.events: list[str] = []
        self.containers = self
        self._output, self._code, self._image = output, code, image

    def create(self, image: str, command: list[str], **options: object) -> SimpleNamespace:
        if not self._image:
            raise docker.errors.ImageNotFound("no such image")
        self.asked = {"image": image, "command": command, **options}
        return SimpleNamespace(start=self.start, wait=self.wait, logs=self.logs, remove=self.remove)

    def start(self) -> None:
        self.events.append("start")

    def wait(self) -> dict[str, int]:
        self.events.append("wait")
        return {"StatusCode": self._code}

    def logs(self, **_: object) -> bytes:
        self.events.append("logs")
        return b"".join(self._output)

    def remove(self, *, force: bool) -> None:
        self.events.append(f"remove force={force}")


def run(client: Client) -> Completed:
    return DockerEngine(client).run(NAME, ("true", "two words"), OPTIONS)


def test_a_container_gets_the_command_and_the_options():
    client = Client()
    run(client)
    # Also in an engine that keeps nothing, and bounded.
    kept = {"Type": "json-file", "Config": {"max-size": "64m", "max-file": "2"}}
    wanted = {"image": NAME, "command": ["true", "two words"], "tty": False, "stdin_open": False, **OPTIONS}
    assert client.asked == wanted | {"log_config": kept, "labels": {"envbuilder.builder": ""}}


def test_output_is_read_when_all_of_it_is_there_and_the_container_removed_at_the_end():
    client = Client()
    run(client)
    assert client.events == ["start", "wait", "logs", "remove force=True"]


def test_a_run_gives_the_exit_code_and_the_output():
    client = Client(b"one\n", b"two\n", b"three \xff\n", code=3)
    assert run(client) == Completed(code=3, output="one\ntwo\nthree \N{REPLACEMENT CHARACTER}\n")


def test_a_missing_image_has_a_hint():
    with pytest.raises(UsageError, match=f"has no image `{NAME}`") as caught:
        run(Client(image=False))
    assert caught.value.hint == "`envbuilder build` loads it"


def test_an_engine_without_access_to_the_gpus_has_a_hint():
    class NoGpus(Client):
        def start(self) -> None:
            raise docker.errors.APIError(
                "no", explanation="could not select device driver with capabilities: [[gpu]]"
            )

    with pytest.raises(ToolError, match="cannot give a container this machine's GPUs") as caught:
        run(NoGpus())
    assert "--in sif" in caught.value.hint


@pytest.mark.parametrize("moment", ["create", "start"])
@pytest.mark.parametrize(
    ("words", "kind"), [("write /x: no space left on device", SpaceError), ("no device", BuildError)]
)
def test_an_error_quotes_the_engine(moment: str, words: str, kind: type):
    def fail(*_: object, **__: object) -> NoReturn:
        raise docker.errors.APIError("500", explanation=words)

    client = Client()
    setattr(client, moment, fail)
    with pytest.raises(BuildError, match=f"the Docker engine cannot .*: {words}") as caught:
        run(client)
    assert type(caught.value) is kind
    assert ("docker image prune" in caught.value.hint) == (kind is SpaceError)


@pytest.mark.parametrize(
    ("words", "kind", "advice"),
    [
        ("write /x: no space left on device", SpaceError, "docker image prune"),
        ("invalid tar", BuildError, "containerd image store"),
    ],
)
def test_an_image_that_is_not_loaded_has_the_engines_words(
    tmp_path: Path, words: str, kind: type, advice: str
):
    def fail(*_: object) -> NoReturn:
        raise docker.errors.APIError("500", explanation=words)

    def miss(_: str, **__: object) -> NoReturn:
        raise docker.errors.ImageNotFound("no such image")

    config = ImageConfig(env=(), cmd=(), entrypoint=(), workdir="/", labels=())
    layout = write_layout(
        layers=[], config=config, epoch=0, platform="linux/amd64", folder=tmp_path / "oci", name=NAME
    )
    client = SimpleNamespace(
        images=SimpleNamespace(load=fail, get=miss, remove=miss), version=dict, info=dict
    )
    with pytest.raises(BuildError, match=f"could not load the image .*{words}") as caught:
        DockerEngine(client).load(layout, name=NAME, console=Console(quiet=True))
    assert type(caught.value) is kind
    assert advice in caught.value.hint


def test_the_first_layers_are_a_step_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """They are loaded while later layers are made, once or several times: other layers each time."""
    (tmp_path / "tree").mkdir()
    layer = write_layer(name="os", tree=tmp_path / "tree", folder=tmp_path / "layer", epoch=0, threads=1)
    config = ImageConfig(env=(), cmd=(), entrypoint=(), workdir="/", labels=())
    layout = write_layout(
        layers=[layer], config=config, epoch=0, platform="linux/amd64", folder=tmp_path / "oci", name=NAME
    )

    def miss(*_: str, **__: object) -> NoReturn:
        raise docker.errors.ImageNotFound("no such image")

    images = SimpleNamespace(load=miss, get=miss, remove=miss)
    engine = DockerEngine(SimpleNamespace(images=images, version=dict, info=dict))
    for load, title in (
        (engine.load_first_layers, f"load {NAME} up to layer 1"),
        (engine.load, f"load {NAME}"),
    ):
        with pytest.raises(BuildError):
            load(layout, name=NAME, console=Console())
        assert f"… {title}\n" in capsys.readouterr().err


def test_an_interrupted_container_is_removed():
    class Interrupted(Client):
        def start(self) -> None:
            raise KeyboardInterrupt

    client = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(client)
    assert client.events == ["remove force=True"]


def engine_with(identity: str, root: dict[str, object]) -> DockerEngine:
    image = SimpleNamespace(id=identity, attrs={"Id": identity, "RootFS": root})
    return DockerEngine(SimpleNamespace(images=SimpleNamespace(get=lambda _: image)))


@pytest.mark.parametrize(
    ("identity", "root", "held"),
    [
        (MANIFEST, {"Layers": ["sha256:1"]}, True),
        (MANIFEST, {}, False),  # the engine has the manifest, but not the layers
        (MANIFEST, {"Layers": None}, False),
        ("cd" * 32, {"Layers": ["sha256:1"]}, False),
    ],
)
def test_an_image_is_held_with_this_manifest_and_all_layers(identity, root, held):
    assert engine_with(f"sha256:{identity}", root).holds(NAME, MANIFEST) is held


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (docker.errors.ImageNotFound("404", explanation="No such image: x"), ""),
        (docker.errors.APIError("400", explanation="invalid reference format"), ": invalid reference format"),
    ],
)
def test_the_identity_of_an_image_that_is_not_there_is_an_error(error, why):
    def get(_: str) -> NoReturn:
        raise error

    with pytest.raises(UsageError) as caught:
        DockerEngine(SimpleNamespace(images=SimpleNamespace(get=get))).image_id(NAME)
    assert str(caught.value) == f"the Docker engine has no image `{NAME}`{why}"


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_without_an_answer_there_is_no_engine(host):
    assert connect({"DOCKER_HOST": host}) is None
