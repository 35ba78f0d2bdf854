"""One process of `detect --measure`: copies between two GPUs, or one rank of an all-reduce. An error ends it with an exit code.

`rank.py count`, `rank.py pair I J`, `rank.py reduce BACKEND`; a rank finds its place in RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. The last line on stdout is the answer.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time

import torch
import torch.distributed as dist

SIZES = (1, 1 << 10, 1 << 18, 1 << 24)  # numbers of four bytes: NCCL takes other ways for short and long ones
ROUNDS = 5


def pair(first: int, other: int) -> str:
    """Write on one GPU and read on the other, both ways. A broken path hangs or copies wrong data silently."""
    for source, target in ((first, other), (other, first)):
        for size in SIZES:
            for turn in range(ROUNDS):
                there = torch.arange(size, dtype=torch.int32, device=f"cuda:{source}") + turn
                here = there.to(f"cuda:{target}")
                torch.cuda.synchronize(target)
                wanted = torch.arange(size, dtype=torch.int32) + turn
                if not torch.equal(here.cpu(), wanted):
                    sys.exit(f"GPU{source} wrote {size} numbers and GPU{target} read others")
    return "ok"


def reduce(backend: str) -> str:
    """Sum over all ranks and compare."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=dt.timedelta(seconds=600))
    for size in SIZES:
        for turn in range(ROUNDS):
            numbers = torch.full((size,), float(rank + turn), device=device)
            dist.all_reduce(numbers)
            wanted = count * (count - 1) / 2 + count * turn
            if not bool((numbers == wanted).all()):
                sys.exit(f"rank {rank}: the sum of {size} numbers is wrong")
    speed = _speed(device, count)
    dist.destroy_process_group()
    return f"ok {speed:.1f} GB/s"


def _speed(device: torch.device, count: int) -> float:
    """Bus bandwidth as nccl-tests defines it."""
    numbers = torch.ones(SIZES[-1], device=device)
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
    float(numbers[0])  # until all of it has run
    moved = ROUNDS * SIZES[-1] * 4 * 2 * (count - 1) / count
    return moved / (time.perf_counter() - begun) / 1e9


def main(what: str, *more: str) -> str:
    if what == "count":
        return str(torch.cuda.device_count())
    if what == "pair":
        return pair(int(more[0]), int(more[1]))
    return reduce(more[0])


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]) + "\n")
