"""The rules of the tests' own tree: who imports whom, and that every test is in a tier within a budget."""

import ast
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.disk import Disk, folder_prefix, watched_disk, written
from tests.support.tiers import Ended, Group

TESTS = tiers.ROOT / "tests"
NO_TESTS = {"support", "golden", "e2e"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_no_module_imports_a_test_module():
    """What tests share lies in `tests/support`."""
    modules = [path for path in TESTS.rglob("*.py") if "projects" not in path.parts]
    bench = [
        path for path in (tiers.ROOT / "bench").iterdir() if path.suffix in ("", ".py") and path.is_file()
    ]
    imports = {
        f"{path.relative_to(tiers.ROOT)}: {name}"
        for path in (*modules, *bench)
        for name in imported(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split(".")[:3])
    }
    assert imports == set()


def test_a_test_name_has_at_most_80_characters():
    functions = (
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert [name for name in functions if len(name) > 80] == []


def test_every_folder_of_unit_tests_is_in_one_group():
    named = [name for group in tiers.FOLDERS.values() for name in group]
    there = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert sorted(named) == sorted(there - NO_TESTS)


def test_every_end_to_end_module_is_marked_as_one():
    """Without the mark its tests may start no program."""
    modules = {path.name: path.read_text(encoding="utf-8") for path in TESTS.glob("e2e/test_*.py")}
    marked = re.compile(r"^pytestmark = .*?pytest\.mark\.builds", re.MULTILINE | re.DOTALL)
    assert [name for name, text in modules.items() if not marked.search(text)] == []


def test_every_end_to_end_module_is_in_one_group():
    groups = (*tiers.RELEASE.values(), *tiers.MODULES.values())
    named = [name for group in groups for name in group]
    assert sorted(named) == sorted(path.stem.removeprefix("test_") for path in TESTS.glob("e2e/test_*.py"))


def test_what_uses_a100_is_in_the_group_cuda():
    assert tiers.group_of("artifacts", ["spacious", "a100"]) == "cuda"
    assert tiers.group_of("artifacts", ["spacious"]) == "cpu"


@pytest.mark.programs
@pytest.mark.parametrize(("name", "groups"), [("quick", 5), ("middle", 9), ("all", 18), ("release", 12)])
def test_a_tier_names_each_group_once(name: str, groups: int):
    tier = tiers.make_tier(name)
    names = [group.name for stage in tier.stages for group in stage]
    assert len(names) == len(set(names)) == groups


@pytest.mark.programs
def test_a_failed_group_and_each_exceeded_budget_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tiers, "RESULTS", tmp_path)
    (tmp_path / "b.log").write_text(
        "passing\nE   assert 1 == 2\nFAILED tests/test_b.py::test_b\n1 failed in 2 s\n"
    )
    tier = tiers.make_tier("middle")
    fine, bad = (Ended(name=name, code=code, seconds=9.0, cpu=9.0) for name, code in (("a", 0), ("b", 1)))
    most, disk = 60 * tier.minutes * tiers.TOLERANCE, Disk(gigabytes=tier.gigabytes)
    assert tiers.judge(tier, [fine], most, disk, fetched=False) == []
    assert tiers.judge(tier, [fine], most + 1, disk, fetched=True) == []
    failed, slow = tiers.judge(tier, [fine, bad], most + 1, disk, fetched=False)
    assert failed.startswith("b: FAILED with exit code 1; its log, ")
    assert failed.endswith(":\n  E   assert 1 == 2\n  FAILED tests/test_b.py::test_b")
    assert slow.startswith("`middle` took 12.0 minutes, and its budget is 6")
    monkeypatch.setattr(tiers, "CI", True)
    full = Disk(gigabytes=tier.gigabytes + 4, minute=2.5, groups=("a", "b"))
    (large,) = tiers.judge(tier, [fine], most, full, fetched=False)
    assert large.startswith("`middle` took 19.0 GB of disk after 2.5 minutes, in a, b, and its budget is 15")
    assert tiers.judge(tier, [fine], most, full, fetched=True) == []


class Watched(tiers.Run):
    """A run that starts no program, and keeps which groups ran beside each other."""

    def __init__(self, failing: str = "") -> None:
        super().__init__(folder=Path())
        self.failing, self.now, self.seen = failing, set[str](), set[frozenset[str]]()

    def run(self, group: Group) -> Ended:
        with self.guard:
            self.now.add(group.name)
            self.seen.add(frozenset(self.now))
        time.sleep(0.02)
        with self.guard:
            self.now.remove(group.name)
        return Ended(name=group.name, code=int(group.name == self.failing), seconds=0, cpu=0)


@pytest.mark.programs
def test_groups_run_side_by_side_as_far_as_the_disk_has_room():
    (groups,) = tiers.make_tier("all").stages
    run = Watched()
    ended = tiers.run_in_lanes(run, groups, 4, to_the_end=False)
    assert sorted(one.name for one in ended) == sorted(group.name for group in groups)
    assert max(len(names) for names in run.seen) == 4
    for names in run.seen:
        assert len(names & {"docker", "images", "cpu"}) <= 2
        assert "cuda" not in names or not names & (tiers.DISK.keys() - {"cuda"})


@pytest.mark.programs
@pytest.mark.parametrize(("to_the_end", "count"), [(False, 1), (True, 18)])
def test_after_a_failure_no_other_group_begins_unless_all_are_wanted(to_the_end: bool, count: int):
    (groups,) = tiers.make_tier("all").stages
    ended = tiers.run_in_lanes(Watched(groups[0].name), groups, 1, to_the_end=to_the_end)
    assert len(ended) == count


@pytest.mark.programs
@pytest.mark.parametrize("part", [False, True])
def test_a_run_of_the_release_tier_adds_a_row_to_its_table(tmp_path: Path, part: bool):
    table = tmp_path / "release.md"
    table.write_text((tiers.ROOT / tiers.RELEASES).read_text())
    groups = [group.name for stage in tiers.make_tier("release").stages for group in stage]
    ended = [Ended(name=name, code=0, seconds=90.0, cpu=9.0) for name in (groups[:1] if part else groups)]
    tiers.add_row("6c251f6", ended, 7200, Disk(gigabytes=31.2), [], table)
    head, *_, row = (line for line in table.read_text().splitlines() if line.startswith("| "))
    assert row.count("|") == head.count("|")
    assert re.match(rf"\| \d{{4}}-\d\d-\d\d \| 6c251f6 \| 120 \| 31 \| {groups[0]} 1\.5[, ]", row)
    assert row.endswith(f" | passed, 1 of {len(groups)} groups |" if part else " | all passed |")
    tiers.add_row("6c251f6", ended, 7200, Disk(), ["b: FAILED, its log says:\n  E   assert 1 == 2"], table)
    assert table.read_text().splitlines()[-1].endswith(" | b: FAILED, its log says: |")


@pytest.mark.programs
def test_a_group_that_a_tier_does_not_have_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scripts/test", "--release", "--only", "alone", "lint"])
    with pytest.raises(SystemExit) as ended:
        tiers.main()
    assert ended.value.code == 2
    assert "`release` has no group lint, but alone, bench-faults, " in capsys.readouterr().err


def test_the_most_that_a_run_takes_of_the_disk_is_kept():
    looks, all_seen = iter((5_000, 9_000_000_000, 3_000)), threading.Event()

    def taken() -> int:
        try:
            return next(looks)
        except StopIteration:
            all_seen.set()
            return 0

    with watched_disk(lambda: ["a"], taken, seconds=0) as disk:
        assert all_seen.wait(30)
    assert (disk.gigabytes, disk.groups) == (9.0, ("a",))


@pytest.mark.programs
def test_what_the_tests_wrote_counts_and_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache, run, size = tmp_path / "the cache", tmp_path / "run-of-abcdefgh", 10_000_000
    own, view = tmp_path / f"{folder_prefix(run)}1", tmp_path / "the cache-cuda"
    for folder in (cache, run, own, view, tmp_path / "e2e-anotherx-1"):
        folder.mkdir()
    monkeypatch.setenv("ENVBUILDER_CACHE", str(cache))
    monkeypatch.setenv(
        "DOCKER_HOST", "unix:///nonexistent/docker.sock"
    )  # others may use the engine meanwhile
    (cache / "package").write_bytes(b"x" * size)
    monkeypatch.setattr("tests.support.disk.ROOT", tmp_path / "checkout")  # logs are written there meanwhile
    before = written(run)
    (view / "package").hardlink_to(cache / "package")
    for place in (tmp_path, tmp_path / "e2e-anotherx-1"):
        (place / "of another program").write_bytes(b"x" * 3 * size)
    assert written(run) - before < size / 10
    for place in (own, run, cache):
        (place / "new").write_bytes(b"x" * size)
    assert 3 * size <= written(run) - before < 3.1 * size
