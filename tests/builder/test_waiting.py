"""Tests of what a build waits for."""

from concurrent.futures import Future
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest

from envbuilder.builder.artifacts import Background, wait_for_layers
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Layer, write_layer


def layer(folder: Path, name: str) -> Layer:
    (folder / name).mkdir()
    return write_layer(name=name, tree=folder / name, folder=folder / f"{name}-layer", epoch=0, threads=1)


def done(result: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(result)
    return future


def test_the_first_layers_are_reported_before_the_others_exist(tmp_path: Path) -> None:
    made = [layer(tmp_path, name) for name in ("os", "python", "cuda", "runtime")]
    pending = [Future[Layer]() for _ in made]
    told: list[tuple[Layer, ...]] = []

    def tell(layers: tuple[Layer, ...]) -> None:
        told.append(layers)
        for number in {1: (2, 1), 3: (3,)}[len(layers)]:  # nothing else would ever make it
            pending[number].set_result(made[number])

    pending[0].set_result(made[0])
    assert wait_for_layers(pending, done(None), first_done=tell) == tuple(made)
    assert told == [tuple(made[:1]), tuple(made[:3])]


@pytest.mark.parametrize("is_a_layer", [True, False])
def test_a_failure_does_not_wait_for_the_other_work(is_a_layer: bool) -> None:
    never, fails = Future[Any](), Future[Any]()
    fails.set_exception(BuildError("broken"))
    layers, filled = ([never, fails], never) if is_a_layer else ([never], fails)
    with pytest.raises(BuildError, match="broken"):
        wait_for_layers(layers, filled, first_done=lambda _: None)


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
