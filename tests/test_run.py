"""Running inside an artefact: as few options as each runtime needs, and how it ended."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import docker.errors
import pytest

from envbuilder import run as run_module
from envbuilder.errors import BuildError, ToolError
from envbuilder.run import Ran, run_in_image, run_in_sif, sif_argv, sif_options


@pytest.fixture(params=[False, True], ids=["no GPU", "a GPU"])
def gpu(request, monkeypatch, tmp_path) -> bool:
    """A machine with or without the driver's device."""
    device = tmp_path / "nvidiactl"
    if request.param:
        device.touch()
    monkeypatch.setattr(run_module, "GPU_DEVICE", device)
    return request.param


def test_a_sif_gets_no_option_but_the_one_that_keeps_foreign_packages_out():
    assert sif_options(gpu=False) == ["--env", "PYTHONNOUSERSITE=1"]


def test_a_sif_gets_the_driver_where_there_is_one():
    assert sif_options(gpu=True) == ["--nv", "--env", "PYTHONNOUSERSITE=1"]


def test_the_command_line_of_a_sif(gpu):
    argv = sif_argv(Path("/out/x.sif"), ["python", "-c", "print('two words')"])
    nv = ("--nv",) if gpu else ()
    assert argv == (
        "apptainer",
        "exec",
        *nv,
        "--env",
        "PYTHONNOUSERSITE=1",
        "/out/x.sif",
        "python",
        "-c",
        "print('two words')",
    )


@pytest.mark.programs
def test_without_apptainer_a_sif_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="`apptainer` is needed"):
        run_in_sif(tmp_path / "x.sif", ["true"])


@pytest.mark.programs
@pytest.mark.parametrize(
    ("script", "ran"),
    [
        ("echo out", Ran(code=0, output="out\n")),
        ("echo one; echo two; exit 3", Ran(code=3, output="one\ntwo\n")),
        ("echo why >&2; exit 4", Ran(code=4, output="why\n")),
        ("true", Ran(code=0, output="")),
    ],
)
def test_a_run_in_a_sif_ends_with_its_code_and_all_it_said(tmp_path, monkeypatch, script, ran):
    """A stand-in for Apptainer, which runs what follows the SIF."""
    stand_in = tmp_path / "singularity"  # the name by which spython calls Apptainer
    stand_in.write_text('#!/bin/sh\nwhile [ "$1" != x.sif ]; do shift; done\nshift\nexec "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_in_sif(Path("x.sif"), ["sh", "-c", script]) == ran


class Engine:
    """A Docker engine of one container, which says what it is told to."""

    def __init__(self, *said: tuple[bytes | None, bytes | None], code: int = 0, image: bool = True) -> None:
        self.asked: dict[str, object] = {}
        self.events: list[str] = []
        self.containers = self
        self._said, self._code, self._image = said, code, image

    def create(self, image: str, command: list[str], **options: object) -> SimpleNamespace:
        if not self._image:
            raise docker.errors.ImageNotFound("no such image")
        self.asked = {"image": image, "command": command, **options}
        return SimpleNamespace(attach=self.attach, start=self.start, wait=self.wait, remove=self.remove)

    def attach(self, **_: object) -> Iterator[tuple[bytes | None, bytes | None]]:
        self.events.append("attach")
        return iter(self._said)

    def start(self) -> None:
        self.events.append("start")

    def wait(self) -> dict[str, int]:
        self.events.append("wait")
        return {"StatusCode": self._code}

    def remove(self, *, force: bool) -> None:
        self.events.append(f"remove force={force}")


def in_image(engine: Engine, *, show: bool = False) -> Ran:
    return run_in_image(
        engine, "envbuilder/x", ("true", "two words"), folder=Path("/here"), user="1:2", show=show
    )


def test_what_is_asked_of_a_docker_engine(gpu):
    engine = Engine()
    in_image(engine)
    requests = engine.asked.pop("device_requests")
    assert engine.asked == {
        "image": "envbuilder/x",
        "command": ["true", "two words"],
        "user": "1:2",
        "volumes": {"/here": {"bind": "/here", "mode": "rw"}},
        "working_dir": "/here",
        "environment": {"PYTHONNOUSERSITE": "1"},
        "ipc_mode": "host",
    }
    assert [(one["Count"], one["Capabilities"]) for one in requests or ()] == (
        [(-1, [["gpu"]])] if gpu else []
    )


def test_a_container_is_heard_from_its_start_and_removed_at_its_end():
    engine = Engine()
    in_image(engine)
    assert engine.events == ["attach", "start", "wait", "remove force=True"]


def test_a_run_in_an_image_ends_with_its_code_and_both_streams_in_order():
    engine = Engine((b"one\n", None), (None, b"two\n"), (b"three \xff\n", None), code=3)
    assert in_image(engine) == Ran(code=3, output="one\ntwo\nthree \N{REPLACEMENT CHARACTER}\n")


def test_a_shown_run_keeps_its_streams_apart(capfdbinary):
    in_image(Engine((b"one\n", None), (None, b"two \xff\n")), show=True)
    sys.stdout.flush()
    assert capfdbinary.readouterr() == (b"one\n", b"two \xff\n")


def test_a_run_that_is_not_shown_is_silent(capfdbinary):
    in_image(Engine((b"one\n", b"two\n")))
    assert capfdbinary.readouterr() == (b"", b"")


def test_an_image_that_is_not_there_says_how_to_get_it():
    with pytest.raises(BuildError, match="has no image `envbuilder/x`") as caught:
        in_image(Engine(image=False))
    assert caught.value.hint == "`envbuilder build` loads it"


def test_an_interrupted_container_is_removed():
    class Interrupted(Engine):
        def start(self) -> None:
            raise KeyboardInterrupt

    engine = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        in_image(engine)
    assert engine.events == ["attach", "remove force=True"]
