"""The types of a benchmark: a job, the ways to do it, the cost of each sample, and targets for their ratios.

Pure: no file, no clock. `bench/run` measures, `bench/figures.py` shows.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

OURS: Final = "envbuilder"
Measure = Literal["wall", "cpu", "result", "beyond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cost of one run. Times in seconds, sizes in bytes."""

    wall: float
    cpu: float
    cpu_daemons: float = 0.0
    memory: int = 0
    temporary: int = 0  # of the disk at the peak, beside the result
    result: int = 0
    load: float = 0.0
    beyond: float = 0.0  # wall time beside what no way can spare: the compiler's


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to do a job: its commands in order, and the preparation that is not measured."""

    tool: str
    commands: tuple[tuple[object, ...], ...] = ()
    before: Callable[[], object] = bool
    result: Path | None = None  # what it makes, removed before
    env: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""  # why this machine cannot run it
    tells: bool = False  # its last line is JSON with the `wall` and `cpu` that count, of a part of it


@dataclass(slots=True, kw_only=True)
class Done:
    """One way with its samples."""

    tool: str
    samples: list[Sample] = field(default_factory=list)
    missing: str = ""

    def values(self, what: str) -> list[float]:
        return [float(getattr(sample, what)) for sample in self.samples]

    def middle(self, what: str) -> float:
        return statistics.median(self.values(what))


@dataclass(slots=True, kw_only=True)
class Job:
    """A job with the results of several ways, envbuilder's first."""

    key: str
    title: str
    ways: list[Done]

    def way(self, tool: str) -> Done | None:
        return next((one for one in self.ways if one.tool == tool and one.samples), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What envbuilder promises of one job: a figure of its own, or in proportion to a peer's.

    Of CPU seconds and sizes the median counts, of wall time the least: other load on the machine only ever adds.
    """

    job: str
    what: Measure
    most: float
    peer: str = ""  # "": the figure itself
    words: str

    def figure(self, jobs: Iterable[Job]) -> float | None:
        """Return the figure of a target, or None if the job or the peer was not done."""
        job = next((one for one in jobs if one.key == self.job), None)
        ours = job.way(OURS) if job else None
        peer = job.way(self.peer) if job and self.peer else None
        if ours is None or (self.peer and peer is None):
            return None
        value = self._one(ours)
        return value / self._one(peer) if peer else value

    def _one(self, way: Done) -> float:
        return min(way.values(self.what)) if self.what in ("wall", "beyond") else way.middle(self.what)


def interleaved(count: int, pairs: int) -> list[int]:
    """The order in which `count` ways are done `pairs` times: one after the other, each time from another one on."""
    return [(turn + place) % count for turn in range(pairs) for place in range(count)]


def exponent(points: Mapping[int, float]) -> float:
    """Return the k of cost ~ amount^k that fits best (least squares of the logarithms)."""
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    slope, _ = statistics.linear_regression(xs, ys)
    return slope


def amounts(job: Job) -> dict[int, float]:
    """The CPU seconds of a job that was done with 1, 4 and 16 of something: the tools end with ` = 4`."""
    found = {}
    for one in job.ways:
        _, _, amount = one.tool.rpartition(" = ")
        if amount.isdecimal() and one.samples:
            found[int(amount)] = one.middle("cpu")
    return found


def as_data(jobs: Sequence[Job]) -> list[dict[str, object]]:
    return [asdict(job) for job in jobs]


def from_data(data: Sequence[Mapping[str, object]]) -> list[Job]:
    """Read what `as_data` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    jobs = []
    for row in data:
        ways = [
            Done(tool=way["tool"], missing=way["missing"], samples=[Sample(**one) for one in way["samples"]])
            for way in row["ways"]  # type: ignore[attr-defined]
        ]
        jobs.append(Job(key=str(row["key"]), title=str(row["title"]), ways=ways))
    return jobs


def merged(before: Sequence[Job], after: Sequence[Job]) -> list[Job]:
    """Merge the samples of both. A way counts as done if one of them has it."""
    found = {job.key: Job(key=job.key, title=job.title, ways=list(job.ways)) for job in before}
    for job in after:
        kept = found.setdefault(job.key, Job(key=job.key, title=job.title, ways=[]))
        for way in job.ways:
            old = next((one for one in kept.ways if one.tool == way.tool), None)
            both = Done(tool=way.tool, samples=[*(old.samples if old else ()), *way.samples])
            both.missing = "" if both.samples else way.missing
            kept.ways = [both if one is old else one for one in kept.ways] if old else [*kept.ways, both]
    return list(found.values())
