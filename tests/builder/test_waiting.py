"""Tests of what a build waits for."""

from concurrent.futures import Future
from pathlib import Path
from threading import Event, current_thread

import pytest

from envbuilder.builder.artifacts import Background, wait_for_layers
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Layer, write_layer


def layer(folder: Path, name: str) -> Layer:
    (folder / name).mkdir()
    return write_layer(name=name, tree=folder / name, folder=folder / f"{name}-layer", epoch=0, threads=1)


def test_the_first_layers_are_reported_before_the_others_exist(tmp_path: Path) -> None:
    made = [layer(tmp_path, name) for name in ("os", "python", "cuda", "runtime")]
    pending = [Future[Layer]() for _ in made]
    told: list[tuple[Layer, ...]] = []

    def tell(layers: tuple[Layer, ...]) -> None:
        told.append(layers)
        for number in {1: (2, 1), 3: (3,)}[len(layers)]:  # nothing else would ever make it
            pending[number].set_result(made[number])

    pending[0].set_result(made[0])
    assert wait_for_layers(pending, first_done=tell) == tuple(made)
    assert told == [tuple(made[:1]), tuple(made[:3])]


def test_a_failure_does_not_wait_for_the_other_work() -> None:
    never, fails = Future[Layer](), Future[Layer]()
    fails.set_exception(BuildError("broken"))
    with pytest.raises(BuildError, match="broken"):
        wait_for_layers([never, fails], first_done=lambda _: None)


def test_work_in_the_background_is_done_in_its_order() -> None:
    go, done = Event(), list[str]()
    background = Background()
    background.begin(lambda: (go.wait(), done.append("first")))
    background.begin(lambda: done.append("second"))
    go.set()
    background.finish()
    assert done == ["first", "second"]


def test_work_in_the_background_stops_at_its_first_error() -> None:
    done = list[str]()

    def fail() -> None:
        raise BuildError("refused")

    background = Background()
    background.begin(fail)
    background.begin(lambda: done.append("second"))
    with pytest.raises(BuildError, match="refused"):
        background.finish()
    assert done == []


def test_work_in_the_background_keeps_no_process_alive() -> None:
    seen = list[bool]()
    background = Background()
    background.begin(lambda: seen.append(current_thread().daemon))
    background.finish()
    assert seen == [True]
