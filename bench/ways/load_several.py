"""Load extensions in several processes at once; print the cost of the slowest: `load_several.py FOLDER PROCESSES [LINE…]`.

Each process loads all sources of a folder by torch's `load()`, or runs these lines of Python in that folder. It runs inside the
environment. torch is imported before the clock starts.
"""

import json
import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path


def load_all(
    folder: str,
    lines: list[str],
    together: Barrier,
    costs: "multiprocessing.SimpleQueue[tuple[float, float]]",
) -> None:
    from torch.utils.cpp_extension import load  # noqa: PLC0415 - in each process, as ranks do

    sys.path.insert(0, folder)
    together.wait()
    began, before = time.monotonic(), time.process_time()
    for line in lines:
        exec(line, {})
    for source in () if lines else sorted(Path(folder).glob("*.cpp")):
        load(source.stem, [str(source)])
    costs.put((time.monotonic() - began, time.process_time() - before))


if __name__ == "__main__":
    amount, context = int(sys.argv[2]), multiprocessing.get_context("spawn")
    together, costs = context.Barrier(amount), context.SimpleQueue()
    processes = [
        context.Process(target=load_all, args=(sys.argv[1], sys.argv[3:], together, costs))
        for _ in range(amount)
    ]
    for one in processes:
        one.start()
    walls, cpus = zip(*[costs.get() for _ in processes], strict=True)
    for one in processes:
        one.join()
    print(json.dumps({"wall": max(walls), "cpu": sum(cpus)}))
