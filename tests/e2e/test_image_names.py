"""Images in a real Docker engine while their names move: none is left, whichever moment the process ends at."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import docker.errors
import pytest
from docker.models.images import Image, ImageCollection

from envbuilder.artifacts.docker_engine import DockerEngine, connect
from envbuilder.artifacts.oci.layout import Layout, write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.core.console import Console
from envbuilder.core.errors import EnvbuilderError
from envbuilder.layers.layer import write_layer
from tests.support.workbench import attempt, run

pytestmark = pytest.mark.builds

NAME, LABEL = "envbuilder/moving:latest", "org.opencontainers.image.title"
QUIET = Console(quiet=True)


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    yield _connect()
    _connect().drop_staged(NAME)
    attempt("docker", "image", "rm", "--force", NAME)
    assert _tags() == []


def _connect() -> DockerEngine:
    engine = connect(os.environ, "0123456789abcdef")
    assert engine is not None
    return engine


def _tags() -> list[str]:
    """The tags of the images of this module in the engine; `<none>` for one without a name."""
    shown = ("--filter", f"label={LABEL}=moving", "--format", "{{.Tag}}")
    return sorted(run("docker", "images", "--all", *shown).split())


def _image(folder: Path, *contents: str) -> Layout:
    """Write an image of layers with one file each."""
    layers = []
    for text in contents:
        (folder / text).mkdir(parents=True)
        (folder / text / text).write_text(text)
        layers.append(
            write_layer(name=text, tree=folder / text, folder=folder / f"{text}-layer", epoch=0, threads=1)
        )
    config = ImageConfig(cmd=("sh",), labels={LABEL: "moving"})
    return write_layout(
        layers=layers, config=config, epoch=0, platform="linux/amd64", folder=folder / "oci", name=NAME
    )


def _stop_after(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, last: str, work: Callable[[], object]
) -> None:
    """Begin some work that goes no further than a call with the word `last`, like the threads of a process that has ended."""
    real, reached = getattr(kind, method), threading.Event()

    def only(*words: object, **options: object) -> None:
        real(*words, **options)
        if last in words or not last:
            reached.set()
            threading.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, only)
        threading.Thread(target=work, daemon=True).start()
        assert reached.wait(60)


def test_first_layers_that_lose_their_name_to_the_whole_image(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    engine.load_first_layers(_image(tmp_path / "first", "os"), name=NAME, console=QUIET)
    (part,) = _tags()
    assert part.startswith("part-")
    whole = _image(tmp_path / "whole", "os", "python")
    _stop_after(
        monkeypatch, ImageCollection, "load", "", lambda: engine.load_staged(whole, name=NAME, console=QUIET)
    )
    assert len(_tags()) == 2
    engine.abandon(NAME)
    assert _tags() == []


@pytest.mark.parametrize("again", [False, True])
def test_an_image_that_loses_its_name_to_its_successor(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, again: bool
):
    """It is removed after an interruption (`abandon`), or after a kill by the next build."""
    engine.load(_image(tmp_path / "old", "old"), name=NAME, console=QUIET)
    new = _image(tmp_path / "new", "new")
    engine.load_staged(new, name=NAME, console=QUIET)
    _stop_after(monkeypatch, Image, "tag", "latest", lambda: engine.load(new, name=NAME, console=QUIET))
    if again:
        newer = _image(tmp_path / "newer", "newer")
        _connect().load_staged(newer, name=NAME, console=QUIET)
        _connect().load(newer, name=NAME, console=QUIET)
    else:
        engine.abandon(NAME)
    assert _tags() == ["latest"]


def test_a_run_at_whose_start_or_end_the_build_is_interrupted_leaves_nothing(
    engine: DockerEngine, tmp_path: Path
):
    """Of sixty such moments, 32 left the image when nothing waited for the engine."""
    image = _image(tmp_path, "os")
    for moment in range(10):
        build = _connect()
        staged = build.load_staged(image, name=NAME, console=QUIET)
        running = threading.Thread(target=_try, args=(build, staged), daemon=True)
        running.start()
        running.join(moment * 0.012)
        build.abandon(NAME)
        running.join(60)
        assert (_tags(), engine.containers()) == ([], [])


def _try(engine: DockerEngine, image: str) -> None:
    """Run a program that the image lacks, as far as the engine lets it."""
    with contextlib.suppress(EnvbuilderError, docker.errors.DockerException):
        engine.run(image, ["sh"], {})


def test_an_image_that_a_container_uses_loses_its_name_alone(engine: DockerEngine, tmp_path: Path):
    engine.load(_image(tmp_path / "old", "old"), name=NAME, console=QUIET)
    container = run("docker", "create", NAME, "sh").strip()
    try:
        engine.load(_image(tmp_path / "new", "new"), name=NAME, console=QUIET)
        assert _tags() == ["<none>", "latest"]
    finally:
        run("docker", "rm", container)
        run("docker", "image", "prune", "--force", "--filter", f"label={LABEL}=moving")
