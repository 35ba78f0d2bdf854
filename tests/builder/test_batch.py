"""Several builds at a time: each has its part of the machine, and none knows what became of another."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.builder.batch import BuildResult, build_several, choose
from envbuilder.builder.context import BuildContext
from envbuilder.core.cache import Sha256, Store
from envbuilder.core.console import Console, log_to, setup
from envbuilder.core.errors import BuildError, CommandError, LockError, UsageError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.system import Limits
from tests.support.runner import FakeRunner

WAIT = 60  # seconds: only a failure takes as long
WARNING = Finding(code="EB999", severity=Severity.WARNING, where="a.yaml", message="odd")


@pytest.fixture
def shop(tmp_path: Path) -> BuildContext:
    return BuildContext(
        store=Store(tmp_path / "cache"),
        runner=FakeRunner(),
        console=Console(color=False),
        environment={},
        recipes=tmp_path,
        limits=Limits(threads=8, memory=800, root=False),
    )


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger("envbuilder")
    before = (one.level, list(one.handlers))
    yield one
    one.setLevel(before[0])
    one.handlers = before[1]


def result(name: str, *, done: bool = True, findings: tuple[Finding, ...] = ()) -> BuildResult:
    record = Record(
        key="k", manifest=Sha256("0" * 64), sif=Sha256("1" * 64), sif_size=40_000_000, content_size=1
    )  # fmt: skip
    outputs = Outputs(folder=Path("build"), name=name)
    return BuildResult(outputs=outputs, record=record, done=done, image="", findings=findings)


def build(name: str, shop: BuildContext) -> BuildResult:
    match name:
        case "stale":
            raise LockError("the lock is old\nin two ways", hint="lock it")
        case "broken":
            error = BuildError("it does not compile", findings=(WARNING,))
            error.log = "build/broken.log"
            raise error
        case "same":
            return result(name, done=False)
        case "odd":
            return result(name, findings=(WARNING,))
    return result(name)


# ---- what is built


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    for path in (folder / "b.yaml", folder / "a.yaml", folder / "other/a.yaml"):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    return folder


def test_all_recipes_of_a_folder_are_built_in_the_order_of_their_names(recipes: Path):
    assert choose((), recipes, every=True, jobs=1) == ("a", "b")


def test_a_recipe_that_is_named_twice_is_built_once(recipes: Path):
    assert choose(("b", "a", str(recipes / "b.yaml")), recipes, every=False, jobs=1) == ("b", "a")


@pytest.mark.parametrize(
    ("names", "every", "jobs", "words"),
    [
        ((), False, 1, "no recipe is named"),
        (("a",), True, 1, "takes no recipe names"),
        (("a",), False, 0, "`--jobs` takes 1 or more, found 0"),
        (("a", "none"), False, 1, 'there is no recipe "none"'),
        (("a", "OTHER/a.yaml"), False, 1, "would both be built as `a`"),
    ],
)
def test_invalid_names_are_reported_before_any_build(
    names: tuple[str, ...], every: bool, jobs: int, words: str, recipes: Path
):
    found = tuple(name.replace("OTHER", str(recipes / "other")) for name in names)
    with pytest.raises(UsageError, match=words):
        choose(found, recipes, every=every, jobs=jobs)


def test_a_folder_without_recipes_is_no_success(tmp_path: Path):
    with pytest.raises(UsageError, match="holds no recipes"):
        choose((), tmp_path, every=True, jobs=1)


# ---- at a time


def test_as_many_builds_run_at_a_time_as_were_asked_for(shop: BuildContext):
    guard, both = threading.Lock(), threading.Barrier(2, timeout=WAIT)
    running = most = 0

    def meet(name: str, shop: BuildContext) -> BuildResult:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        both.wait()  # passes when two are here
        with guard:
            running -= 1
        both.wait()  # and none of the next two comes before
        return result(name)

    outcomes = build_several(("a", "b", "c", "d"), shop, meet, jobs=2)
    assert [one.name for one in outcomes] == ["a", "b", "c", "d"]
    assert most == 2


@pytest.mark.parametrize(
    ("jobs", "names", "wanted"), [(1, 3, (8, 800)), (2, 3, (4, 400)), (9, 3, (2, 266)), (20, 20, (1, 40))]
)
def test_cores_and_memory_are_divided_among_the_builds_of_one_time(
    shop: BuildContext, jobs: int, names: int, wanted: tuple[int, int]
):
    seen: set[tuple[int, int]] = set()

    def look(name: str, shop: BuildContext) -> BuildResult:
        seen.add((shop.limits.threads, shop.limits.memory))
        return result(name)

    build_several([f"n{number}" for number in range(names)], shop, look, jobs=jobs)
    assert seen == {wanted}


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_stops_no_other_and_the_highest_exit_code_is_that_of_all(
    shop: BuildContext, jobs: int
):
    outcomes = build_several(("stale", "good", "broken", "same"), shop, build, jobs=jobs)
    assert [one.exit_code for one in outcomes] == [4, 0, 6, 0]
    assert [one.row()[1] for one in outcomes] == [
        "failed, exit code 4",
        "built and verified",
        "failed, exit code 6",
        "nothing to do",
    ]


def test_a_mistake_of_ours_is_not_taken_for_a_build_that_failed(shop: BuildContext):
    def stumble(name: str, shop: BuildContext) -> BuildResult:
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError):
        build_several(("a", "b"), shop, stumble, jobs=2)


@pytest.mark.programs
def test_ending_all_programs_ends_those_of_each_build(tmp_path: Path):
    ours = ProcessRunner({})
    runners = [ours.named(name) for name in ("a", "b")]
    sleep = Command(argv=("sh", "-c", "echo; exec sleep 600"), why="sleep")
    began = [threading.Event() for _ in runners]
    failed: list[str] = []

    def run(number: int) -> None:
        try:
            runners[number].run(sleep, on_line=lambda _: began[number].set())
        except CommandError as error:
            failed.append(error.message)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    assert all(event.wait(WAIT) for event in began)
    runners[0].stop()
    threads[0].join(WAIT)
    assert threads[1].is_alive()
    ours.stop()
    threads[1].join(WAIT)
    assert [message.splitlines()[0] for message in failed] == [
        "could not sleep: `sh` was ended by SIGTERM"
    ] * 2


# ---- what is said


def test_the_answer_of_each_has_the_same_keys(shop: BuildContext):
    good, broken = build_several(("good", "broken"), shop, build, jobs=1)
    assert broken.answer().model_dump(exclude_unset=True) | {"seconds": 0} == {
        "name": "broken", "built": False, "log": "build/broken.log", "exit_code": 6, "seconds": 0,
    }  # fmt: skip
    assert good.answer().model_fields_set == {
        *result("good").answer().model_fields_set,
        "exit_code",
        "seconds",
    }


def test_what_failed_is_a_finding_beside_what_it_found_itself(shop: BuildContext):
    (odd, broken) = build_several(("odd", "broken"), shop, build, jobs=1)
    assert odd.findings() == (WARNING,)
    found, why = broken.findings()
    assert found == WARNING
    assert (why.code, why.where, why.message) == ("EB600", "broken", "it does not compile")
    assert "build/broken.log" in why.hint


def talk(folder: Path) -> Callable[[str, BuildContext], BuildResult]:
    """A build that writes its log, with both of a time talking before either ends."""
    both = threading.Barrier(2, timeout=WAIT)

    def work(name: str, shop: BuildContext) -> BuildResult:
        with log_to(folder / f"{name}.log", shop.console.owner):
            both.wait()
            with shop.console.step(f"bake {name}-bread"):
                shop.runner.run(Command(argv=("echo", f"{name}-crumbs"), why="crumble"))
            logging.getLogger("envbuilder.sources.fetch").info("a word of nobody's")
            both.wait()
        return result(name)

    return work


@pytest.mark.programs
def test_each_line_and_each_log_is_of_one_build(shop: BuildContext, tmp_path: Path, logger, capsys):
    setup(1)
    shop = BuildContext(
        store=shop.store, runner=ProcessRunner({}), console=Console(color=False), environment={}, recipes=tmp_path,
        limits=shop.limits,
    )  # fmt: skip
    build_several(("rye", "oat"), shop, talk(tmp_path), jobs=2)
    told = capsys.readouterr().err.splitlines()
    for name, other in (("rye", "oat"), ("oat", "rye")):
        assert f"… {name}: bake {name}-bread" in told
        assert f"{name}: $ echo {name}-crumbs" in told
        assert f"{name}: built and verified" in told
        log = (tmp_path / f"{name}.log").read_text()
        assert f"start: bake {name}-bread" in log
        assert f"$ echo {name}-crumbs" in log
        assert "a word of nobody's" in log
        assert other not in log


def test_one_after_the_other_has_its_name_in_each_line(shop: BuildContext, capsys):
    def bake(name: str, shop: BuildContext) -> BuildResult:
        shop.console.say("bake")
        return result(name)

    build_several(("a", "b"), shop, bake, jobs=1)
    told = capsys.readouterr().err.splitlines()
    assert told == ["a: bake", "a: built and verified", "b: bake", "b: built and verified"]


def test_one_after_the_other_folds_and_several_at_a_time_do_not(shop: BuildContext, tmp_path: Path, capsys):
    shop = BuildContext(
        store=shop.store, runner=shop.runner, console=Console(folds="github"), environment={}, recipes=tmp_path,
        limits=shop.limits,
    )  # fmt: skip
    build_several(("a", "b"), shop, build, jobs=1)
    one = capsys.readouterr().err.splitlines()
    assert one == [
        "::group::build a", "::endgroup::", "a: built and verified",
        "::group::build b", "::endgroup::", "b: built and verified",
    ]  # fmt: skip
    build_several(("a", "b"), shop, build, jobs=2)
    assert sorted(capsys.readouterr().err.splitlines()) == ["a: built and verified", "b: built and verified"]


def test_a_build_says_what_to_type_next_where_it_can_be_started():
    lines = result("cpu").text().splitlines()
    assert lines[-1] == "  next   envbuilder exec build/cpu.sif -- python"
    for other in (replace(result("cpu"), runs_here=False), result("cpu", done=False)):
        assert "next" not in other.text()
