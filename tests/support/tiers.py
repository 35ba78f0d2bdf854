"""The tiers of tests: groups that run side by side, within a budget of time and disk. `scripts/test` is its command line.

A group is one process with a log of its own. Its tests run one after another, so that they may share a Docker image, a
record of BuildKit or an environment. Groups share the Docker engine and the user's cache, which are made for that.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envbuilder.core.cache import cache_folder
from tests.support.disk import CI, PACKAGES, RUN, Disk, view_of_cache, watched_disk, written

ROOT: Final = Path(__file__).parents[2]
BIN: Final = ROOT / ".venv/bin"
RESULTS: Final = ROOT / "build/tests"  # logs, and the durations of the last run of each tier
RELEASES: Final = "bench/results/release.md"  # the table of `--release` runs

# ---------------------------------------------------------------------------------------------------- the groups

# End-to-end tests by module, in the order in which groups begin as far as the disk has room: the longest first. What uses
# `a100` or its toolkit is the group `cuda`, in whichever module it is.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(modules.split()) for name, modules in {
    "cuda": "check_truth toolkits",
    "docker": "buildkit standalone_python",  # it looks at BuildKit's records, and removes them
    "images": "foreign_artifacts add devcontainers",
    "cpu": "artifacts faults wheel live_view",
    "inside": "project_folder load runtime_caches driver exec launch_local watch modules host_shells attestations",
    "cluster": "jobs vscode_ssh",
    "extensions": "projects",
    "tiny": "own_image image_names jupyter old_python edited_recipe tiny_faults cache_limit podman built_wheels wall",
    "secrets": "any_linux arm os_layer secrets build_all",
    "registry": "transfers image_bases",
    "pages": "pages",
}.items()}  # fmt: skip
# Shares of the disk: `cuda` takes 10 GB, so what builds `cpu` does not run beside it. The groups that are not named take little.
# Of `docker`, `images` and `cpu` no three run at once.
ROOM: Final = 5
DISK: Final = {
    "cuda": 5, "docker": 2, "images": 2, "cpu": 2, "inside": 1, "cluster": 1, "extensions": 1, "pages": 1, "try-cpu": 1,
}  # fmt: skip
# Modules that only `--release` runs, by its groups. Tests of other modules that have the marker `release` are `OTHERS`.
RELEASE: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(modules.split()) for name, modules in {
    "recipes": "recipes",  # takes 65 GB of disk
    "rendered": "rendered image_torch",
    "packages": "archives build_tools checkouts wheel_sources conda other_locks hub_kernels warm kept",
    "machines": "single_file interrupted",
}.items()}  # fmt: skip
OTHERS: Final = "others"
ONLY_TORCH: Final = ("cuda", "extensions")
CUDA_FIXTURES: Final = frozenset({"a100", "loaded_a100", "shapes"})

# Errors of mypy that say nothing of a test: all that two types which meet in one name or call make.
UNTYPED: Final = (
    "arg-type", "assignment", "import-untyped", "index", "return-value", "str-bytes-safe", "union-attr", "var-annotated",
)  # fmt: skip
# Unit tests by folder, in parts of about the same length. Attacks take minutes, so the quick tier leaves them out.
ATTACKS: Final = "attacks"
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    ATTACKS: (ATTACKS,),
    "unit-1": ("commands", "verify"),
    "unit-2": ("lock", "artifacts", "plan", "layers", "recipe"),
    "unit-3": ("project", "node", "diagnose", "compat", "init"),
    "unit-4": ("registry", "run", "builder", "runners", "sources", "core", "runtime", "steps"),
}


def group_of(module: str, fixtures: Iterable[str]) -> str:
    """Return the group of a test in `tests/e2e/test_MODULE.py` that uses these fixtures."""
    if not CUDA_FIXTURES.isdisjoint(fixtures):
        return "cuda"
    return next(name for name, modules in MODULES.items() if module in modules)


def release_group_of(module: str) -> str:
    """Return the group of `--release` of a test with that marker in `tests/e2e/test_MODULE.py`."""
    return next((name for name, modules in RELEASE.items() if module in modules), OTHERS)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands that run one after another; `own_cache`: with a view of the user's cache that may be cleared."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    own_cache: bool = False

    @property
    def disk(self) -> int:
        return DISK.get(self.name, 0)


def _lint(collected: str) -> Group:
    """Return the group of lint, which imports the test modules below the folder `collected`."""
    folders = ("scripts", ".ci", ".devcontainer", "bench")
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders)
    programs = {name: _program(ROOT / name) for name in listed.split("\0") if name}
    shell = [
        name
        for name, words in programs.items()
        if words[-1:] in (["bash"], ["sh"], ["/bin/sh"], ["/bin/bash"])
    ]
    # Python scripts, and modules beside them. Those in deeper folders run inside environments.
    python = [
        name for name, words in programs.items()
        if name.count("/") == 1 and (name.endswith(".py") or any("python" in word for word in words))
    ]  # fmt: skip
    ruff, mypy = str(BIN / "ruff"), str(BIN / "mypy")
    # Scripts that nothing imports: a name that moved in envbuilder is found here. Other settings than the package's need a
    # cache of their own, or each run would invalidate the other's.
    typed = (
        "env", "MYPYPATH=bench:.", mypy, "--config-file=", "--cache-dir=.mypy_cache/scripts", "--scripts-are-modules",
        "--follow-imports=silent", *python,
    )  # fmt: skip
    # Most tests of the modules that build run once a week: a name or an argument that is gone is found here.
    # What a fixture gives has no type.
    lenient = (f"--disable-error-code={code}" for code in UNTYPED)
    called = (
        "env", "MYPYPATH=bench:.", mypy, "--config-file=", "--cache-dir=.mypy_cache/tests", "--follow-imports=silent",
        "--check-untyped-defs", *lenient, *map(str, sorted((ROOT / "tests/e2e").glob("test_*.py"))),
    )  # fmt: skip
    # A test module that cannot be imported is noticed within a minute, whichever group it belongs to.
    imported = (str(BIN / "pytest"), "-qqq", "--collect-only", "--run-builds", collected)
    commands = (
        ("shellcheck", *shell), (ruff, "check"), (ruff, "format", "--check"), (mypy,), typed, called, imported,
    )  # fmt: skip
    return Group(name="lint", commands=commands)


def _program(path: Path) -> list[str]:
    """Return the words of a script's first line, none of another file."""
    if not path.is_file():  # removed since the last commit
        return []
    first = path.read_bytes().partition(b"\n")[0].decode(errors="replace")
    return first[2:].split() if first.startswith("#!") else []


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _pytest(name: str, *words: str, own_cache: bool = False) -> Group:
    command = (str(BIN / "pytest"), "-q", "--durations=10", "--durations-min=5", *words)
    return Group(name=name, commands=(command,), own_cache=own_cache)


def _units() -> tuple[Group, ...]:
    return tuple(
        _pytest(name, *(f"tests/{folder}" for folder in folders)) for name, folders in FOLDERS.items()
    )


def _builds(*words: str, without: Iterable[str] = ()) -> tuple[Group, ...]:
    return tuple(
        _pytest(name, "--run-builds", f"--group={name}", *words, "tests/e2e", own_cache=name == "cuda")
        for name in MODULES if name not in without
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- the tiers

# Other work on the machine makes a run longer, without a change of the tier.
TOLERANCE: Final = 2.0
# Which groups run at the same moment changes from run to run.
DISK_TOLERANCE: Final = 1.2


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Stages run one after another, the groups of a stage side by side. After a failure no other group begins."""

    name: str
    stages: tuple[tuple[Group, ...], ...]
    minutes: float  # on two cores with all packages in the cache
    minutes_fetching: float  # and without
    gigabytes: float = 15  # more than at the start, with all packages in the cache


def make_tier(name: str) -> Tier:
    match name:
        case "quick":  # unit tests are imported by their own groups, at once
            groups = (_lint("tests/e2e"), *(group for group in _units() if group.name != ATTACKS))
            return Tier(name=name, stages=(groups,), minutes=2, minutes_fetching=2)
        case "middle":
            groups = _builds("--middle", without=ONLY_TORCH)
            return Tier(name=name, stages=(groups,), minutes=6, minutes_fetching=9)
        case "all":
            tried = Group(name="try-cpu", commands=((str(ROOT / "scripts/try"), "cpu"),))
            groups = (_lint("tests"), *_builds(), tried, *_units())
            return Tier(name=name, stages=(groups,), minutes=25, minutes_fetching=35)
        case "release":
            stages = tuple((group,) for group in _release())
            return Tier(name=name, stages=stages, minutes=100, minutes_fetching=130, gigabytes=60)
    raise ValueError(name)


def _release() -> tuple[Group, ...]:
    """The groups that are too heavy for every change, one after another, on a machine without other work."""
    bench = {"reproducible": (), "faults": ("--kills", "20", "--sizes", "8"), "run": ("--quick",)}
    return (
        _pytest("examples", "-m", "hypothesis", "--hypothesis-profile=release", "--ignore=tests/e2e", "tests"),
        _pytest("alone", "--run-builds", "--group=alone", "tests/e2e"),
        *(_pytest(name, "--run-builds", f"--group={name}", "tests/e2e") for name in (*RELEASE, OTHERS)),
        *(Group(name=f"bench-{name}", commands=((str(ROOT / "bench" / name), *words),)) for name, words in bench.items()),
        *(Group(name=f"with-{kind}", commands=((str(ROOT / "scripts/test-with"), kind),)) for kind in ("lowest", "trixie")),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A group that has ended. `cpu` excludes the Docker engine."""

    name: str
    code: int
    seconds: float
    cpu: float


@dataclass
class Run:
    """One run of a tier. It knows its processes, so that Ctrl-C ends all of them."""

    folder: Path  # for what groups share, and for the views of the cache
    alive: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    stopped: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, group: Group) -> Ended:
        """Run the commands of a group until one fails, and print its log."""
        log, began = RESULTS / f"{group.name}.log", time.monotonic()
        code, cpu = 0, 0.0
        with log.open("wb") as output, self._environment(group) as environment:
            for command in group.commands:
                output.write(f"$ {shlex.join(command)}\n".encode())
                output.flush()
                code, seconds_of_cpu = self._finish(group.name, command, environment, output.fileno())
                cpu += seconds_of_cpu
                if code:
                    break
        seconds = time.monotonic() - began
        with self.guard:
            print(
                f"\n=== {group.name}: {_outcome(code)} after {seconds:.0f} s, {cpu:.0f} s of CPU", flush=True
            )
            sys.stdout.buffer.write(log.read_bytes())
            sys.stdout.flush()
        return Ended(name=group.name, code=code, seconds=seconds, cpu=cpu)

    def _finish(
        self, name: str, command: tuple[str, ...], environment: Mapping[str, str], output: int
    ) -> tuple[int, float]:
        """Return the exit code and the CPU seconds of a command."""
        with self.guard:
            if self.stopped:
                return 130, 0.0
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self.alive[name] = process
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with self.guard:
            del self.alive[name]
        return process.returncode, usage.ru_utime + usage.ru_stime

    @contextlib.contextmanager
    def _environment(self, group: Group) -> Iterator[dict[str, str]]:
        with contextlib.ExitStack() as stack:
            # Of its own, because two pytests that share one fail where both remove an old folder in it.
            files = stack.enter_context(tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True))
            environment = os.environ | {RUN: str(self.folder), "PYTEST_DEBUG_TEMPROOT": files}
            if group.own_cache:
                environment["ENVBUILDER_CACHE"] = str(stack.enter_context(view_of_cache(group.name)))
            yield environment

    def stop(self) -> None:
        """Interrupt every group, and kill those that do not end within a minute."""
        with self.guard:
            self.stopped = True
        for number, patience in ((signal.SIGINT, 60), (signal.SIGKILL, 10)):
            for process in list(self.alive.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + patience
            while self.alive and time.monotonic() < end:
                time.sleep(0.1)


def _outcome(code: int) -> str:
    return "passed" if code == 0 else f"FAILED with exit code {code}"


def run_in_lanes(run: Run, groups: Iterable[Group], lanes: int, *, to_the_end: bool) -> list[Ended]:
    """Run groups side by side, each as soon as the disk has room; unless `to_the_end`, none begins after one has failed."""
    waiting, running, ended = list(groups), list[Group](), list[Ended]()
    changed = threading.Condition()

    def take() -> Group | None:
        with changed:
            while waiting:
                room = ROOM - sum(group.disk for group in running)
                if group := next((group for group in waiting if group.disk <= room), None):
                    waiting.remove(group)
                    running.append(group)
                    return group
                changed.wait()
            return None

    def work() -> None:
        while group := take():
            try:
                ended.append(result := run.run(group))
                if result.code and not to_the_end:
                    waiting.clear()
            finally:
                with changed:
                    running.remove(group)
                    changed.notify_all()

    with ThreadPoolExecutor(lanes) as pool:
        try:
            for lane in [pool.submit(work) for _ in range(lanes)]:
                lane.result()
        except BaseException:  # usually Ctrl-C
            with changed:
                waiting.clear()
                changed.notify_all()
            run.stop()
            raise
    return ended


def _end_of_log(name: str) -> str:
    """Return what failed by name and the last error, or the last lines: other groups print after a group that fails."""
    lines = (RESULTS / f"{name}.log").read_text(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith(("E  ", "FAILED ", "ERROR "))]
    return "\n".join(f"  {line[:300]}" for line in (errors or lines)[-15:])


def judge(tier: Tier, ended: Iterable[Ended], seconds: float, disk: Disk, *, fetched: bool) -> list[str]:
    """Return the failures of a run: groups that failed, and time or disk beyond the budget and its tolerance.

    Where people build as well, what BuildKit and the cache keep is theirs: the disk is judged in CI alone.
    """
    failed = [group for group in ended if group.code]
    wrong = [
        f"{group.name}: {_outcome(group.code)}; its log, {RESULTS / group.name}.log, says:\n{_end_of_log(group.name)}"
        for group in failed
    ]
    budget = tier.minutes_fetching if fetched else tier.minutes
    if seconds > 60 * budget * TOLERANCE:
        wrong.append(
            f"`{tier.name}` took {seconds / 60:.1f} minutes, and its budget is {budget:g}: make it faster, "
            f"or move what every change does not need to `--release`; {RESULTS}/durations.json says what took how long"
        )
    if CI and disk.gigabytes > DISK_TOLERANCE * tier.gigabytes + (PACKAGES if fetched else 0):
        wrong.append(
            f"`{tier.name}` took {disk.gigabytes:.1f} GB of disk after {disk.minute:g} minutes, "
            f"in {', '.join(disk.groups)}, and its budget is {tier.gigabytes:g}: remove what no later test needs"
        )
    return wrong


def _commit() -> str:
    """Return the commit of the working tree, marked if files differ from it. Rows of earlier runs are no difference."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", f":!{RELEASES}")
    return _git("rev-parse", "--short", "HEAD").strip() + ("-dirty" if changed else "")


def _save(name: str, commit: str, ended: list[Ended], seconds: float, disk: Disk, *, fetched: bool) -> None:
    """Write what this run took beside that of other tiers."""
    path = RESULTS / "durations.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit, "cores": os.cpu_count(),
        "fetched": fetched, "seconds": round(seconds, 1), "disk": dataclasses.asdict(disk),
        "groups": [dataclasses.asdict(group) for group in ended],
    }  # fmt: skip
    path.write_text(json.dumps(known, indent=1) + "\n")


def add_row(
    commit: str,
    ended: list[Ended],
    seconds: float,
    disk: Disk,
    wrong: list[str],
    path: Path = ROOT / RELEASES,
) -> None:
    """Add a run of `--release` to the table. A run of some groups says how many, and so is true on its own."""
    groups = ", ".join(f"{group.name} {group.seconds / 60:.1f}" for group in ended)
    every = sum(len(stage) for stage in make_tier("release").stages)
    passed = "all passed" if len(ended) == every else f"passed, {len(ended)} of {every} groups"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    outcome = "; ".join(text.partition("\n")[0] for text in wrong) or passed
    row = f"| {day} | {commit} | {seconds / 60:.0f} | {disk.gigabytes:.0f} | {groups} | {outcome} |\n"
    with path.open("a") as table:
        table.write(row)
    print(f"{RELEASES} has a new row, which a clone of a code host forgets:\n{row}", end="")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Run a tier of tests; without an option, all of them."
    )
    kinds = parser.add_mutually_exclusive_group()
    for name, what in {
        "quick": "lint, types, unit tests: 2 minutes",
        "middle": "end-to-end tests without torch: 6 minutes",
        "release": "only what is too heavy for every change, after all of them have passed: 100 minutes",
    }.items():
        kinds.add_argument(f"--{name}", dest="tier", action="store_const", const=name, help=what)
    lanes = (os.cpu_count() or 1) + 2  # groups wait for disks, timeouts and each other
    parser.add_argument(
        "--lanes", type=int, default=lanes, help="groups at a time (default: two more than cores)"
    )
    parser.add_argument("--only", nargs="+", metavar="GROUP", default=(), help="these groups of the tier")
    arguments = parser.parse_args()

    tier = make_tier(arguments.tier or "all")
    names = {group.name for stage in tier.stages for group in stage}
    if unknown := sorted(set(arguments.only) - names):
        parser.error(f"`{tier.name}` has no group {', '.join(unknown)}, but {', '.join(sorted(names))}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    ended: list[Ended] = []
    fetched, commit, began = not _has_packages(), _commit(), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    # A shell that starts us in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="envbuilder-tests-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        run = Run(folder=Path(folder))
        try:
            with watched_disk(lambda: run.alive, lambda: written(run.folder)) as disk:
                for stage in tier.stages:
                    groups = [group for group in stage if not arguments.only or group.name in arguments.only]
                    ended += run_in_lanes(run, groups, arguments.lanes, to_the_end=tier.name == "release")
                    if any(group.code for group in ended) and tier.name != "release":
                        break
        except KeyboardInterrupt:
            print("\ninterrupted; all groups have ended", file=sys.stderr)
            return 130
    seconds = time.monotonic() - began
    wrong = judge(tier, ended, seconds, disk, fetched=fetched)
    _save(" ".join((tier.name, *arguments.only)), commit, ended, seconds, disk, fetched=fetched)
    if tier.name == "release":
        add_row(commit, ended, seconds, disk, wrong)
    budget = tier.minutes_fetching if fetched else tier.minutes
    print(f"\n=== {tier.name}: {seconds / 60:.1f} minutes; its budget is {budget:g}")
    print(
        f"  {disk.gigabytes:.1f} GB of disk at most, after {disk.minute:g} minutes; {tier.gigabytes:g} are allowed"
    )
    for group in sorted(ended, key=lambda group: -group.seconds):
        print(f"  {group.name:<12} {group.seconds:6.0f} s  {group.cpu:6.0f} s of CPU  {_outcome(group.code)}")
    for line in wrong:
        print(f"scripts/test: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _has_packages() -> bool:
    """Whether the cache has every package of the lock of `a100`."""
    lock = json.loads((ROOT / "recipes/a100.lock").read_text())
    digests = [str(file["sha256"]) for part in ("debs", "toolkit", "wheels") for file in lock[part]]
    return all((cache_folder(os.environ) / "artifacts" / digest[:2] / digest).exists() for digest in digests)


if __name__ == "__main__":
    sys.exit(main())
