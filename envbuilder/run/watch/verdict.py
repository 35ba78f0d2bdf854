"""Judge what the ranks of a job were seen doing: who waits for whom, in which collective, at which line of the program."""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Final

from envbuilder.core.answer import Answer
from envbuilder.core.plain import columns
from envbuilder.diagnose.collectives import named

_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.|^<|/envbuilder_start/")
_COLLECTIVE: Final = re.compile(r"torch/(?:distributed/(?!elastic|run|checkpoint|fsdp|optim)|nn/parallel/)")
_WRAPPER: Final = re.compile(r"<locals>|wrapper|__call__|_call_impl|decorate")
_GPU: Final = re.compile(r"torch/cuda/")  # a wait for the GPU keeps a core busy
_BACKWARD: Final = re.compile(r"torch/autograd/")
_LOADER: Final = re.compile(r"torch/utils/data/")
_BUSY: Final = 0.1  # of a core; a rank that sleeps in a loop takes less
_MOVING: Final = 50_000  # bytes a second, read or written: a checkpoint or the first batch on its way
_AWAKE: Final = (
    5.0  # switches a second of a main thread that goes on; one that waits in a collective has none
)
Frame = tuple[str, str, int]  # function, file, line


class WorkerLook(Answer):
    """A process of a rank's data loader."""

    pid: int
    files: str
    stack: tuple[Frame, ...]


class RankLook(Answer):
    """What one rank did between two looks: `cpu` in cores and `bytes` a second, with its child processes."""

    rank: int
    world: int
    pid: int
    host: str
    state: str  # as in /proc
    cpu: float
    bytes: float
    is_active: bool  # it started a process in between, or the same thread was ready to run in both looks
    switches: float
    files: str  # the file system that it waits for
    peers: tuple[str, ...]  # addresses that it wanted to reach in both looks, and that did not answer
    stack: tuple[Frame, ...]  # of the main thread, innermost first
    is_still: bool  # both looks saw the same stack
    workers: tuple[WorkerLook, ...]

    @property
    def activity(self) -> "Activity":
        """Say in what this rank is."""
        if self.state in ("T", "t"):
            return Activity.STOPPED
        if self.state in ("Z", "X", "gone"):
            return Activity.DEAD
        if self.peers:
            return Activity.NETWORK
        files = [PurePath(file).as_posix() for _, file, _ in self._inner]
        moves = self.switches > _AWAKE or not self.is_still or self.bytes > _MOVING
        is_idle = self.cpu <= _BUSY and self.bytes <= _MOVING and not self.is_active
        waits = any(_COLLECTIVE.search(file) or _GPU.search(file) for file in files)
        if waits or (is_idle and any(map(_BACKWARD.search, files))):
            return Activity.BUSY if moves else Activity.COLLECTIVE
        if not is_idle:
            return Activity.BUSY
        if self.files:
            return Activity.FILES
        return Activity.LOADER if any(map(_LOADER.search, files)) else Activity.IDLE

    @property
    def _inner(self) -> tuple[Frame, ...]:
        """Return the frames below the user's own innermost one, or all without one."""
        at = next((at for at, frame in enumerate(self.stack) if not _LIBRARY.search(frame[1])), None)
        return self.stack[:at]

    @property
    def call(self) -> str:
        """Return what of a library the program called last, such as `all_reduce`."""
        names = (name for name, _, _ in reversed(self._inner) if not _WRAPPER.search(name))
        return next(names, "")

    @property
    def place(self) -> str:
        """Return where in the user's program this rank is."""
        return _place(self.stack)

    def row(self) -> tuple[str, ...]:
        doing = {
            Activity.COLLECTIVE: f"waits in {self.call}", Activity.FILES: f"waits for {self.files}",
            Activity.NETWORK: f"gets no answer from {', '.join(self.peers)}",
        }  # fmt: skip
        words = doing.get(self.activity, self.activity.value)
        return (f"rank {self.rank}", self.host, f"pid {self.pid}", words, self.place, f"{self.cpu:.1f} cores")


class NodeLook(Answer):
    """What `look` printed on one node."""

    ranks: tuple[RankLook, ...]
    ras: str
    gpus: tuple[str, ...]


class Activity(Enum):
    """In what a rank is, in the order in which one explains a hang; the values are words about it."""

    DEAD = "has no process"
    STOPPED = "is stopped by a signal"
    FILES = "waits for a file system"
    NETWORK = "gets no answer"
    BUSY = "goes on"
    LOADER = "waits for its data loader"
    IDLE = "waits"
    COLLECTIVE = "waits in a collective"


class Verdict(Answer):
    """The answer about a job: whether it hangs, who waits for whom, and what to do."""

    is_hang: bool
    message: str
    repair: str
    ranks: tuple[RankLook, ...]
    ras: tuple[str, ...]  # NCCL's own words about ranks that differ
    gpus: tuple[str, ...]

    def text(self, width: int) -> str:
        lines = [f"{'hang' if self.is_hang else 'no hang'}: {self.message}"]
        lines += [
            f"  {line}"
            for line in columns([rank.row() for rank in self.ranks], width and width - 2).splitlines()
        ]
        lines += [f"  NCCL: {line}" for line in self.ras]
        if self.gpus:
            lines.append(f"  GPUs (number, use, memory): {'; '.join(self.gpus)}")
        return "\n".join([*lines, f"  {self.repair}"] if self.repair else lines)


_REPAIRS: Final = {
    Activity.DEAD: "look for its last lines: `envbuilder diagnose` on the folder of logs",
    Activity.STOPPED: "`kill -CONT PID` lets it go on; a debugger or Ctrl-Z stopped it",
    Activity.FILES: "can the node read that path: `ls` there? Other jobs of the file system would wait as well",
    Activity.NETWORK: "a firewall drops that port, or the address belongs to an interface that joins no nodes: "
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another; `--smoke --compare` tries each",
    Activity.LOADER: "look at that line of the data set; `timeout=` of DataLoader makes it an error",
    Activity.IDLE: "that rank takes another path through the program, or waits for something outside of it",
}
_PLURAL: Final = {"has": "have", "is": "are", "goes": "go", "gets": "get", "waits": "wait"}
_TRANSPORT: Final = (
    "every rank is in it, so the transport between GPUs or nodes is the suspect: "
    "`envbuilder launch` with `--smoke --compare` tells which one works"
)
_UNEQUAL: Final = "make the same calls in the same order, and the same number of steps, on all ranks"


def judge(nodes: Iterable[NodeLook], recorder: Sequence[str] = ()) -> Verdict:
    """Judge what all nodes saw, with what the dumps of the recorder say where there are any."""
    seen = tuple(nodes)
    ranks = tuple(sorted((rank for node in seen for rank in node.ranks), key=lambda rank: rank.rank))
    ras = tuple(dict.fromkeys(line for node in seen for line in _differences(node.ras)))
    is_hang, message, repair = _judge(ranks, ras, recorder)
    gpus = tuple(line for node in seen for line in node.gpus)
    return Verdict(is_hang=is_hang, message=message, repair=repair, ranks=ranks, ras=ras, gpus=gpus)


def _judge(ranks: Sequence[RankLook], ras: Sequence[str], recorder: Sequence[str]) -> tuple[bool, str, str]:
    if not ranks:
        return False, "no process of this job is here", ""
    if not any(rank.stack for rank in ranks):
        return False, "no stack can be read", "run `watch` as the user of the job, or as root"
    waiters = [rank for rank in ranks if rank.activity is Activity.COLLECTIVE]
    lost = sorted(set(range(max(rank.world for rank in ranks))) - {rank.rank for rank in ranks})
    for activity in Activity:
        others = [rank for rank in ranks if rank.activity is activity]
        numbers = [rank.rank for rank in others] + (lost if activity is Activity.DEAD else [])
        if not numbers or activity is Activity.COLLECTIVE:
            continue
        if activity is Activity.BUSY:
            return False, f"{_doing(others)}{_waiting(waiters)}", ""
        if not waiters and activity is Activity.IDLE:
            return False, f"{_doing(others)}, and no rank waits in a collective", ""
        subject = (
            _doing(others)
            if others
            else f"of {len(ranks) + len(lost)} ranks, {named(numbers)} {activity.value}"
        )
        return (
            True,
            f"{subject}{_waiting(waiters)}",
            _REPAIRS[activity].replace("PID", str(others[0].pid if others else "")),
        )
    if recorder:
        return True, recorder[0], _UNEQUAL
    if ras:
        return True, f"NCCL counts differ between the ranks{_waiting(waiters)}", _UNEQUAL
    places: dict[tuple[str, str], list[RankLook]] = {}
    for rank in waiters:
        places.setdefault((rank.call, rank.place), []).append(rank)
    groups = sorted(places.values(), key=len)
    if len(groups) > 1:
        words = " while ".join(f"{named(rank.rank for rank in group)} {_in(group)}" for group in groups)
        return True, f"the ranks are in different collectives: {words}", _UNEQUAL
    return True, f"all ranks are {_in(waiters)}", _TRANSPORT


def _doing(ranks: Sequence[RankLook]) -> str:
    first = ranks[0]
    verb, _, rest = first.row()[3].partition(" ")
    verb = verb if len(ranks) == 1 else _PLURAL[verb]
    words = f"{named(rank.rank for rank in ranks)} {verb} {rest}".rstrip()
    loaders = [worker for worker in first.workers if worker.files or _place(worker.stack)]
    if first.activity is Activity.LOADER and loaders:
        worker = next((worker for worker in loaders if worker.files), loaders[0])
        what = f" for {worker.files}" if worker.files else ""
        words += f", whose process {worker.pid} waits{what} {_at(_place(worker.stack))},"
    return f"{words} {_at(first.place)}".rstrip()


def _waiting(waiters: Sequence[RankLook]) -> str:
    verb = "wait" if len(waiters) > 1 else "waits"
    return f"; {named(rank.rank for rank in waiters)} {verb} {_in(waiters)}" if waiters else ""


def _in(ranks: Sequence[RankLook]) -> str:
    return f"in {ranks[0].call} {_at(ranks[0].place)}".rstrip()


def _at(place: str) -> str:
    return f"at {place}" if place else ""


def _place(stack: Sequence[Frame]) -> str:
    frame = next((frame for frame in stack if not _LIBRARY.search(frame[1])), None)
    return f"{PurePath(frame[1]).name}:{frame[2]} in {frame[0]}" if frame else ""


def _differences(ras: str) -> list[str]:
    """Return the lines of NCCL's RAS about communicators whose ranks differ or do not answer."""
    lines = ras.partition("\nErrors\n")[2].splitlines()
    return [
        line.strip() for line in lines if re.match(r"\s+\S", line) and not set(line.strip()) <= {"=", "-"}
    ]
