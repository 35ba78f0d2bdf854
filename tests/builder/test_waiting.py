"""Tests of what a build waits for."""

from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread, current_thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.builder.artifacts import Background, Rereading, wait_for_layers
from envbuilder.builder.pipeline import fetch_inputs
from envbuilder.builder.slots import Places
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Layer, write_layer
from tests.support.locks import make_artifact


def layer(folder: Path, name: str, content: bytes = b"") -> Layer:
    (folder / name).mkdir()
    if content:
        (folder / name / "file").write_bytes(content)
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


def test_an_urgent_program_begins_before_those_that_came_first() -> None:
    places, began, threads = Places(1), list[str](), list[Thread]()

    def work(name: str) -> None:
        with places.take(is_urgent=name == "urgent"):
            began.append(name)

    with places.take():
        for number, name in enumerate(("first", "second", "urgent"), 1):
            threads.append(Thread(target=work, args=(name,)))
            threads[-1].start()
            while len(places._waiting) < number:
                sleep(0.001)
    for thread in threads:
        thread.join()
    assert began == ["urgent", "first", "second"]


def test_layers_are_unpacked_again_in_the_background(tmp_path: Path) -> None:
    whole, damaged = (layer(tmp_path, name, name.encode() * 100_000) for name in ("whole", "damaged"))
    content = damaged.blob.read_bytes()
    damaged.blob.chmod(0o644)
    damaged.blob.write_bytes(content[: len(content) // 2])
    with Rereading(Store(tmp_path / "cache")) as reread:
        for each in (whole, damaged):
            reread.add(each)
        while len(reread.known) < 2:
            sleep(0.001)
    assert reread.known[whole.digest] == frozenset()
    assert len(reread.known[damaged.digest]) == 1


@pytest.mark.parametrize(("count", "title"), [(1, "fetch 1 artifact"), (2, "fetch 2 artifacts")])
def test_a_fetch_says_how_many_files_it_waits_for(count: int, title: str, capsys: pytest.CaptureFixture[str]):
    lacking: Any = SimpleNamespace(missing=tuple, fetch=lambda *_: None)
    fetch_inputs([make_artifact("a")] * count, lacking, Console())
    assert f"… {title}\n" in capsys.readouterr().err
