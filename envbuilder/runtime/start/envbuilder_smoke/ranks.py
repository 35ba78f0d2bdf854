"""The checks that the ranks of one job make together, with nothing but torch."""

from __future__ import annotations

import ctypes
import datetime
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

ROUNDS = 5  # of the measured all-reduce


class StepMismatchError(RuntimeError):
    """Ranks made different numbers of steps. Every rank raises it with the same message."""


def assert_same_steps(steps: int, *, group: Any = None) -> None:
    """Raise StepMismatchError on all ranks unless all pass the same number. It is a collective: call it on all ranks."""
    counts = _gather_numbers(steps, group)
    if len(set(counts)) > 1:
        usual = max(set(counts), key=counts.count)
        odd = ", ".join(f"rank {rank} made {count}" for rank, count in enumerate(counts) if count != usual)
        raise StepMismatchError(f"ranks made different numbers of steps: {odd}; the others made {usual}")


def _gather_numbers(number: int, group: Any = None) -> list[int]:
    device = _device(dist.get_backend(group))
    ours = torch.tensor([number], dtype=torch.int64, device=device)
    every = [torch.zeros_like(ours) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, ours, group=group)
    return [int(count.item()) for count in every]


def _device(backend: str) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")


def take_gpu() -> int:
    """Use this local rank's GPU, or the first where each rank sees one alone; returns its number."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    index = local if local < torch.cuda.device_count() else 0
    torch.cuda.set_device(index)
    return index


def bus_speed(size: int, seconds: float, ranks: int) -> float:
    """Return the GB/s on the bus of an all-reduce of that many bytes, as nccl-tests counts them."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


# ---- the smoke run


class Smoke:
    """The checks of one rank. Each adds a line to the table, and to `failures` if it fails."""

    def __init__(self, wanted: int) -> None:
        self.rank, self.world, self.wanted = dist.get_rank(), dist.get_world_size(), wanted
        self.device = _device(dist.get_backend())
        self.lines: list[tuple[str, str]] = []
        self.failures: list[str] = []

    def note(self, name: str, *, good: bool, text: str) -> None:
        self.lines.append((name, text if good else f"WRONG: {text}"))
        if not good:
            self.failures.append(f"rank {self.rank}: {name}: {text}")

    def ranks(self, seats: list[dict[str, Any]]) -> None:
        """Check how many ranks there are, on which nodes and GPUs."""
        nodes = {seat["node"] for seat in seats}
        wanted = self.wanted or self.world
        good = self.world == wanted and sorted(seat["rank"] for seat in seats) == list(range(self.world))
        self.note("world size", good=good, text=f"{self.world} ranks on {len(nodes)} nodes, wanted {wanted}")
        gpus = [(seat["node"], seat["gpu"]) for seat in seats if seat["gpu"]]
        double = sorted({gpu for gpu in gpus if gpus.count(gpu) > 1})
        if not gpus:
            self.note("one GPU each", good=True, text="no GPUs; gloo on the CPU")
        elif len(gpus) < len(seats):
            self.note("one GPU each", good=False, text=f"{len(seats) - len(gpus)} ranks have none")
        else:
            shared = "; ".join(f"{gpu} on {node} is used by several ranks" for node, gpu in double)
            self.note("one GPU each", good=not double, text=shared or f"{len(gpus)} GPUs, none twice")

    def nccl(self, seats: list[dict[str, Any]]) -> None:
        """Say which NCCL answers, and check that it is the same on every rank."""
        versions = sorted({str(seat["nccl"]) for seat in seats})
        if versions != [""]:
            good = len(versions) == 1
            self.note("NCCL", good=good, text=versions[0] if good else f"several: {', '.join(versions)}")

    def all_reduce(self) -> None:
        values = torch.full((1 << 20,), float(self.rank + 1), device=self.device)
        dist.all_reduce(values)
        right = float(self.world * (self.world + 1) // 2)
        good = bool((values == right).all())
        self.note("all-reduce", good=good, text=f"the sum is {values[0].item():g}, wanted {right:g}")

    def all_gather(self) -> None:
        ours = torch.full((1 << 10,), self.rank, dtype=torch.int64, device=self.device)
        every = [torch.empty_like(ours) for _ in range(self.world)]
        dist.all_gather(every, ours)
        good = all(bool((part == rank).all()) for rank, part in enumerate(every))
        self.note("all-gather", good=good, text=f"ranks {', '.join(str(int(part[0])) for part in every[:8])}")

    def broadcast(self) -> None:
        """Broadcast from every rank in turn: a rank that receives may still fail to send."""
        wrong = []
        for root in range(self.world):
            value = torch.full((1 << 10,), 1000 + root if self.rank == root else -1, device=self.device)
            dist.broadcast(value, root)
            if not bool((value == 1000 + root).all()):
                wrong.append(root)
        text = f"not heard: {wrong}" if wrong else "every rank was heard"
        self.note("broadcast", good=not wrong, text=text)

    def bandwidth(self) -> None:
        if self.world == 1:
            self.note("bandwidth", good=True, text="one rank sends nothing")
            return
        size = (256 if self.device.type == "cuda" else 8) << 20
        values = torch.ones(size // 4, device=self.device)
        dist.all_reduce(values)  # makes the connections
        self._wait()
        began = time.perf_counter()
        for _ in range(ROUNDS):
            dist.all_reduce(values)
        self._wait()
        seconds = (time.perf_counter() - began) / ROUNDS
        bus = bus_speed(size, seconds, self.world)
        text = f"all-reduce of {size >> 20} MiB in {seconds * 1e3:.1f} ms, {bus:.2f} GB/s on the bus"
        self.note("bandwidth", good=True, text=text)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def steps(self) -> None:
        """Check that equal counts pass, and that every rank notices when one rank counts one more."""
        assert_same_steps(100)
        if self.world == 1:
            self.note("step count", good=True, text="one rank cannot differ")
            return
        try:
            assert_same_steps(101 if self.rank == self.world - 1 else 100)
        except StepMismatchError as error:
            self.note("step count", good=True, text=f"noticed on purpose: {error}")
        else:
            self.note("step count", good=False, text="a rank one step ahead was not noticed")


def smoke(wanted: int, seconds: int) -> int:
    """Run every check as one rank of a job. Returns the exit code, which is the same on all ranks."""
    gpu = gpu_identity(take_gpu()) if torch.cuda.is_available() else ""
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
    try:
        checks = Smoke(wanted)
        device = torch.cuda.get_device_name() if gpu else "CPU"
        seat = {
            "rank": checks.rank,
            "node": socket.gethostname(),
            "local": int(os.environ.get("LOCAL_RANK", "0")),
            "gpu": gpu,
            "device": device,
            "nccl": nccl_version() if gpu else "",
        }
        seats = _gather_objects(seat)
        checks.ranks(seats)
        checks.nccl(seats)
        for check in (checks.all_reduce, checks.all_gather, checks.broadcast, checks.bandwidth, checks.steps):
            check()
        failures = [text for texts in _gather_objects(checks.failures) for text in texts]
        if checks.rank == 0:
            print(table(seats, checks.lines, failures, backend), flush=True)
        return 1 if failures else 0
    finally:
        dist.destroy_process_group()


def _gather_objects(value: Any) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def table(
    seats: list[dict[str, Any]], lines: list[tuple[str, str]], failures: list[str], backend: str
) -> str:
    """Return the table: which rank runs where, and the results."""
    rows = [("rank", "node", "local", "device")]
    for seat in seats:
        device = f"{seat['device']} {seat['gpu']}".strip()
        rows.append((str(seat["rank"]), seat["node"], str(seat["local"]), device))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    results = [f"{name.ljust(12)}  {text}" for name, text in lines]
    end = [f"FAILED: {text}" for text in failures] or [f"smoke: passed, {len(seats)} ranks, {backend}"]
    return "\n".join([*shown, "", *results, "", *end])


def nccl_version() -> str:
    """Return the version of the NCCL that is loaded: 2.27.5. torch itself says the one that it was compiled with."""
    number = ctypes.c_int()
    try:
        code = ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # inside torch's own libraries
        return ".".join(map(str, torch.cuda.nccl.version()))
    if code:
        raise RuntimeError(f"NCCL does not say its version: error {code}")
    high, low = divmod(number.value, 10000 if number.value >= 10000 else 1000)  # as `NCCL_VERSION` makes it
    return f"{high}.{low // 100}.{low % 100}"


def gpu_identity(index: int) -> str:
    """Return the GPU's UUID, which is unique, whatever number a process gives the GPU."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, identity = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    # The newer function tells parts of a GPU apart.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    for code in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), index), ask(identity, device)):
        if code:
            raise RuntimeError(f"the NVIDIA driver does not say which GPU number {index} is: error {code}")
    return f"GPU-{bytes(identity).hex()}"
