"""Do to builds what can happen to them: kills, full disks, cut connections, damaged caches, builds at once.

Each fault ends in an `Outcome`: how the build ended, what was wrong afterwards, and whether the next one gave the digests
that an undisturbed build gives. tests/e2e/test_tiny_faults.py does some of each; bench/faults does all.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuilder.artifacts.sif import read_sif
from envbuilder.builder.context import RunnerName
from envbuilder.builder.job import layer_keys
from envbuilder.core.cache import Store, link_or_copy, sha256_file
from envbuilder.layers.layer import load_layer
from envbuilder.lock.model import Artifact, Lock
from envbuilder.plan.make import make_plan
from tests.support.damage import flip_alone
from tests.support.serving import Manner, package_index
from tests.support.tiny import edit_tiny, make_tiny
from tests.support.workbench import (
    CACHE,
    NO_ENGINE,
    WITHOUT_NETWORK,
    Built,
    attempt,
    build_command,
    cache_with_artifacts,
    link_tree,
    run,
    start,
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One fault: what was done, how the build ended, and everything that is wrong afterwards. There should be nothing."""

    fault: str
    detail: str
    ended: int
    wrong: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A tiny recipe, its lock, and the result of an undisturbed build."""

    folder: Path
    recipe: Path
    lock: Lock
    digests: tuple[str, str]
    states: tuple[Path, ...]  # caches to begin with: artifacts alone; with the os layer; with all layers
    seconds: tuple[float, ...] = ()  # seconds that a build takes from each

    def cache(self, state: int) -> Path:
        """A new cache in that state, for one fault."""
        cache = self.folder / "one/cache"
        shutil.rmtree(cache, ignore_errors=True)
        _copy_cache(self.states[state], cache)
        return cache

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def command(self, *options: object) -> tuple[object, ...]:
        return build_command(self.recipe, self.output, *options)

    def env(self, cache: Path) -> dict[str, str]:
        return NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)}


def set_up(folder: Path, built: Built | None = None) -> Bench:
    """Build the tiny recipe once from each state of a cache, undisturbed; `built` is the same recipe, whose layers are taken."""
    recipe, lock = make_tiny(folder / "recipe")
    states = (cache_with_artifacts(folder, recipe), folder / "with-os", folder / "with-layers")
    bench = Bench(folder=folder, recipe=recipe, lock=lock, digests=("", ""), states=states)
    _copy_cache(states[0], states[2])
    if built:
        _take_layers(recipe, states[2])
    first, digests = _timed(bench, states[2])
    _copy_cache(states[2], states[1])
    for path in (states[1] / "layers").iterdir():
        layer = load_layer(path)
        if layer is None or layer.name != "os":
            shutil.rmtree(path)
    bench = replace(bench, digests=digests)
    rest = [_timed(bench, bench.cache(number))[0] for number in (1, 2)]
    return replace(bench, seconds=(4 * rest[0] if built else first, *rest))


def _take_layers(recipe: Path, cache: Path) -> None:
    """Give a cache the layers that the user's own has of a recipe."""
    _, plan, _ = make_plan(str(recipe), recipe.parent, Store(cache))
    for key in layer_keys(plan).values():
        if (folder := CACHE / "layers" / key).exists():
            link_tree(folder, cache / "layers" / key)


def copied(bench: Bench, folder: Path) -> Bench:
    """Return a copy of a bench in the new folder `folder`, with hard links to the files of the other one."""
    link_tree(bench.folder, folder)

    def moved(path: Path) -> Path:
        return folder / path.relative_to(bench.folder)

    states = tuple(moved(state) for state in bench.states)
    return replace(bench, folder=folder, recipe=moved(bench.recipe), states=states)


def _timed(bench: Bench, cache: Path) -> tuple[float, tuple[str, str]]:
    shutil.rmtree(bench.output, ignore_errors=True)
    began = time.monotonic()
    digests, wrong = _next_build(bench, cache)
    if wrong:
        raise AssertionError(f"an undisturbed build failed: {wrong}")
    return time.monotonic() - began, digests


def _copy_cache(source: Path, target: Path) -> None:
    link_tree(source, target)
    target.chmod(0o700)


# --------------------------------------------------------------------------------------------------- the faults


def kill(bench: Bench, moment: float, *, state: int) -> Outcome:
    """SIGKILL to the whole process group, as a job scheduler does, `moment` seconds after the start."""
    cache = bench.cache(state)
    shutil.rmtree(bench.output, ignore_errors=True)
    process = start(*WITHOUT_NETWORK, *bench.command("--offline"), env=bench.env(cache))
    time.sleep(moment)
    with contextlib.suppress(ProcessLookupError):  # it had ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return _judge(bench, cache, "kill", f"after {moment:.2f} s, cache {state}", process.returncode)


def fill_disk(bench: Bench, spare: int, *, after: float, state: int) -> Outcome:
    """Take the disk away in mid-build: cache and output lie on a file system that shrinks to `spare` free bytes."""
    disk = bench.folder / "disk"
    disk.mkdir(exist_ok=True)
    cache, output = disk / "cache", disk / "out"
    source = bench.states[state]
    script = (
        'set -e; disk=$1 source=$2 spare=$3 after=$4; shift 4\n'
        'mount -t tmpfs -o size=6g,mode=0700 none "$disk"; cp -a "$source" "$disk/cache"; mkdir "$disk/out"\n'
        '(sleep "$after"; used=$(df --output=used -B1 "$disk" | tail -n 1); mount -o "remount,size=$((used + spare))" "$disk") &\n'
        'code=0; "$@" || code=$?\n'
        'wait; mount -o remount,size=6g "$disk"; cp -a "$disk/." "$disk.after/"; exit $code\n'
    )  # fmt: skip
    after_it = bench.folder / "disk.after"
    shutil.rmtree(after_it, ignore_errors=True)
    after_it.mkdir(mode=0o700)
    command = build_command(bench.recipe, output, "--offline")
    ended = attempt(
        "unshare", "--mount", "--", "sh", "-c", script, "sh", disk, source, spare, after, *command,
        env=bench.env(cache), timeout=900,
    )  # fmt: skip
    shutil.rmtree(bench.output, ignore_errors=True)
    if (after_it / "out").exists():
        (after_it / "out").rename(bench.output)
    outcome = _judge(
        bench, after_it / "cache", "full disk", f"{spare >> 20} MiB left after {after:.1f} s, cache {state}",
        ended.returncode,
    )  # fmt: skip
    odd = (
        ()
        if ended.returncode in (0, 6)
        else (f"ended with {ended.returncode}: {ended.stdout[-800:]}{ended.stderr[-800:]}",)
    )
    return replace(outcome, wrong=(*odd, *outcome.wrong))


def damage(bench: Bench, how: str) -> Outcome:
    """Damage the largest wheel in the cache; a folder has the right one."""
    cache, wheel = bench.cache(1), largest_wheel(bench)
    right = bench.folder / "right"
    right.mkdir(exist_ok=True)
    link_or_copy(cache / "artifacts" / wheel.sha256[:2] / wheel.sha256, right / wheel.filename)
    _damage(cache / "artifacts" / wheel.sha256[:2] / wheel.sha256, how)
    shutil.rmtree(bench.output, ignore_errors=True)
    env = bench.env(cache) | {"ENVBUILDER_FOLDERS": str(right)}
    ended = attempt(*WITHOUT_NETWORK, *bench.command("--offline"), env=env)
    shutil.rmtree(right)
    return _judge(bench, cache, f"artifact {how}", wheel.name, ended.returncode, allowed=(0,))


def largest_wheel(bench: Bench) -> Artifact:
    return max(bench.lock.wheels, key=lambda one: one.size)


def damage_layer(bench: Bench, how: str, name: str) -> Outcome:
    """Damage one layer in the cache. A build may end and report it; the next build makes the layer again."""
    cache = bench.cache(2)
    (folder,) = (
        folder
        for folder in (cache / "layers").iterdir()
        if (layer := load_layer(folder)) and layer.name == name
    )
    _damage(folder / "layer.tar.zst", how)
    shutil.rmtree(bench.output, ignore_errors=True)
    ended = attempt(*WITHOUT_NETWORK, *bench.command("--offline"), env=bench.env(cache))
    return _judge(bench, cache, f"layer {how}", name, ended.returncode, allowed=(0, 6, 7))


def _damage(path: Path, how: str) -> None:
    flip_alone(path)  # other caches hold the same file
    size = path.stat().st_size
    os.truncate(path, {"one bit": size, "truncated": size // 2, "empty": 0, "longer": size + 1}[how])


def cut_download(bench: Bench, after: int) -> Outcome:
    """Download from a server on loopback that cuts each connection after this many bytes."""
    cache = _without_wheels(bench)
    with package_index(bench.lock, bench.states[0], Manner(cut=after)) as host:
        ended = attempt(*bench.command(), env=_fetching(bench, cache, host))
    # A source that sends next to nothing counts as unreachable. Any other is asked again for the rest.
    return _judge(
        bench, cache, "connection cut", f"after {after} bytes each", ended.returncode,
        allowed=(0,) if after > 100 else (5,), refill=True,
    )  # fmt: skip


def kill_download(bench: Bench) -> Outcome:
    """Kill a build when half of a file is downloaded, then damage this half, from which the next build resumes."""
    cache, wheel = _without_wheels(bench), largest_wheel(bench)
    half = cache / "partial" / wheel.sha256
    with package_index(bench.lock, bench.states[0], Manner(cut=wheel.size // 2, delay=60)) as host:
        process = start(*bench.command(), env=_fetching(bench, cache, host))
        while process.poll() is None and not (half.exists() and half.stat().st_size >= wheel.size // 4):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    _damage(half, "one bit")
    with package_index(bench.lock, bench.states[0], Manner()) as host:
        ended = attempt(*bench.command(), env=_fetching(bench, cache, host))
    return _judge(
        bench, cache, "killed download", "its half damaged", ended.returncode, allowed=(0,), refill=True
    )


def _without_wheels(bench: Bench) -> Path:
    """Return a cache with the os layer and without wheels."""
    cache = bench.cache(1)
    shutil.rmtree(bench.output, ignore_errors=True)
    for wheel in bench.lock.wheels:
        (cache / "artifacts" / wheel.sha256[:2] / wheel.sha256).unlink()
    return cache


def _fetching(bench: Bench, cache: Path, host: str) -> dict[str, str]:
    url = f"http://{host}/simple/"
    return bench.env(cache) | {
        "ENVBUILDER_INDEX": url, "ENVBUILDER_PYTORCH_INDEX": url, "ENVBUILDER_FOLDERS": "/nonexistent",
    }  # fmt: skip


def at_once(bench: Bench, other: Path, builds: int = 4, *, state: int = 0) -> Iterator[Outcome]:
    """Build two recipes at once with one cache: two builds into the same folder, the rest each into its own."""
    cache = bench.cache(state)
    shutil.rmtree(bench.output, ignore_errors=True)
    recipes = [(bench.recipe, other)[number % 2] for number in range(builds)]
    places = [bench.output if number < 3 else bench.folder / f"out-{number}" for number in range(builds)]
    running = [
        start(*WITHOUT_NETWORK, *build_command(recipe, place, "--offline"), env=bench.env(cache))
        for recipe, place in zip(recipes, places, strict=True)
    ]
    answers = [(process, *process.communicate(timeout=600)) for process in running]
    waited = sum(
        "another build of" in answers[number][2] for number in (0, 2)
    )  # both write the same artifacts
    for number, (process, out, err) in enumerate(answers):
        wrong = [] if process.returncode == 0 else [f"ended with {process.returncode}: {err[-800:]}"]
        if not wrong and recipes[number] == bench.recipe and digests(out) != bench.digests:
            wrong.append("it gave other digests")
        if number == 2 and waited != 1:
            wrong.append(f"{waited} of the two builds of the same artifacts waited")
        yield Outcome(
            fault="at once", detail=f"build {number + 1} of {builds}, {recipes[number].stem}",
            ended=process.returncode, wrong=tuple(wrong),
        )  # fmt: skip


def images(
    bench: Bench, runner: RunnerName, *, builds: int = 10, others: int = 5, seed: int = 1
) -> Iterator[Outcome]:
    """Build into the Docker engine, fail there, and be interrupted. The engine keeps one image of the recipe, and no container."""
    recipe, _ = make_tiny(bench.folder / "recipe", f"left-{runner}")
    image, chance = f"envbuilder/{recipe.stem}:latest", random.Random(seed)
    command = build_command(recipe, bench.output, "--offline", "--runner", runner)
    env = {"ENVBUILDER_CACHE": str(bench.states[2])}
    before, seconds, which = in_engine(), 0.0, f"env: {{WHICH: {recipe.stem}}}"
    try:
        for number in range(builds + 2 * others):
            fails = builds <= number < builds + others
            now = f'env: {{WHICH: build{number}}}\ntests: ["ls {"/no-such-file" if fails else "/"}"]'
            edit_tiny(recipe, which, now)
            which, began = now, time.monotonic()
            if number < builds + others:
                ended = attempt(*command, env=env).returncode
                seconds = time.monotonic() - began
                fault = "failure" if fails else "build"
                wrong = [] if ended == (6 if fails else 0) else [f"ended with {ended}"]
            else:
                process = start(*command, env=env)
                time.sleep(chance.uniform(0.3, seconds))
                process.send_signal(signal.SIGINT)
                process.communicate()
                ended, fault, wrong = process.returncode, "interruption", []
            left = [name for name in in_engine() if name not in before and not name.startswith(f"{image} ")]
            yield Outcome(
                fault=f"{fault}, runner {runner}: images and containers", detail=f"number {number + 1}",
                ended=ended, wrong=(*wrong, *(f"left {name}" for name in left)),
            )  # fmt: skip
    finally:
        attempt("docker", "image", "rm", "--force", image)


def in_engine() -> list[str]:
    """Return the images of the Docker engine, with those that have no name, and its containers."""
    names = run("docker", "images", "--all", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}")
    return [*names.splitlines(), *run("docker", "ps", "--all", "--quiet").splitlines()]


def moments(bench: Bench, count: int, *, seed: int) -> Iterator[tuple[float, int]]:
    """Choose random moments of builds that begin with caches in random states. A cold cache costs most."""
    chance = random.Random(seed)
    for _ in range(count):
        state = chance.choice((0, *4 * (1,), *5 * (2,)))
        yield chance.uniform(0.3, bench.seconds[state]), state


# -------------------------------------------------------------------------------------------------- what must hold


def _judge(
    bench: Bench,
    cache: Path,
    fault: str,
    detail: str,
    ended: int,
    *,
    allowed: Sequence[int] = (),
    refill: bool = False,
) -> Outcome:
    """Check what a fault left, then build once more. With `refill`, every package can be downloaded again."""
    wrong = [f"ended with {ended}"] if allowed and ended not in allowed else []
    wrong += list(broken_outputs(bench))
    if not fault.startswith(("artifact", "layer")):  # this fault itself damaged the cache
        wrong += list(broken_cache(cache))
    if refill:
        link_missing(bench.states[0] / "artifacts", cache / "artifacts")
    _, failed = _next_build(bench, cache)
    wrong += failed
    wrong += [f"left {path}" for path in (cache / "work").iterdir()]
    wrong += [f"left {path.name}" for path in bench.output.iterdir() if path.name.startswith(".")]
    return Outcome(fault=fault, detail=detail, ended=ended, wrong=tuple(wrong))


def link_missing(source: Path, target: Path) -> None:
    for path in source.glob("*/*"):
        place = target / path.parent.name / path.name
        place.parent.mkdir(mode=0o700, exist_ok=True)
        if not place.exists():
            link_or_copy(path, place)


def _next_build(bench: Bench, cache: Path) -> tuple[tuple[str, str], list[str]]:
    """Build once more, undisturbed and without network. A lock that is still held would make it wait for ever."""
    try:
        ended = attempt(*WITHOUT_NETWORK, *bench.command("--offline"), env=bench.env(cache), timeout=900)
    except subprocess.TimeoutExpired:
        return ("", ""), ["the next build did not end"]
    if ended.returncode:
        return ("", ""), [f"the next build ended with {ended.returncode}: {ended.stdout[-800:]}"]
    made = digests(ended.stdout)
    same = bench.digests in (made, ("", ""))
    return made, [] if same else [f"the next build gave {made}"]


def digests(answer: str) -> tuple[str, str]:
    (row,) = json.loads(answer)["data"]
    return str(row["manifest"]), str(row["sif_sha256"])


def broken_cache(cache: Path) -> Iterator[str]:
    """Return the files of the cache whose content is not what their final name promises."""
    for path in (cache / "artifacts").glob("*/*"):
        if sha256_file(path) != path.name:
            yield f"artifact {path.name} is not what it is called"
    for folder in (cache / "layers").glob("*"):
        layer = load_layer(folder)
        if layer is None or sha256_file(layer.blob) != layer.digest:
            yield f"layer {folder.name} is not whole"


def broken_outputs(bench: Bench) -> Iterator[str]:
    """Return the outputs under a final name that differ from those of an undisturbed build."""
    sif, layout = (bench.output / f"{bench.recipe.stem}{suffix}" for suffix in (".sif", ".oci"))
    if sif.exists():
        read_sif(sif)
        if sha256_file(sif) != bench.digests[1]:
            yield "the SIF is not the right one"
    for blob in (layout / "blobs/sha256").glob("*"):
        if hashlib.sha256(blob.read_bytes()).hexdigest() != blob.name:
            yield f"the blob {blob.name} is damaged"
    if layout.exists() and not (layout / "index.json").is_file():
        yield "the layout has no index"


def summary(outcomes: Sequence[Outcome]) -> str:
    """A line for each kind of fault: how many were done, how many survived, and how the builds ended."""
    lines = ["| fault | done | survived | the disturbed build ended with |", "|:--|--:|--:|:--|"]
    for kind in dict.fromkeys(outcome.fault for outcome in outcomes):
        some = [outcome for outcome in outcomes if outcome.fault == kind]
        codes = ", ".join(
            f"{code} x {sum(o.ended == code for o in some)}" for code in sorted({o.ended for o in some})
        )
        lines.append(f"| {kind} | {len(some)} | {sum(not outcome.wrong for outcome in some)} | {codes} |")
    return "\n".join(lines)
