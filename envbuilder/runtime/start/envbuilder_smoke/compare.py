"""The same collective over each transport that the ranks could use: which works, how fast, and what to set.

NCCL reads its settings once, so each attempt runs in processes of its own, one below each rank. One that hangs is ended by its own
alarm. The ranks meet between attempts through the store of the job, which needs no transport between GPUs.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from envbuilder_smoke.ranks import ROUNDS, bus_speed, take_gpu

MOST_IMPORT = 300  # seconds until an attempt has imported torch, on a slow file system
CLEARLY = 1.2  # times as fast: less is no reason to set anything
# Interfaces that join no nodes, by how their names begin.
LOCAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali")
SIOCGIFADDR = 0x8915
SOCKET = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def interfaces() -> list[str]:
    """Return the interfaces of this node that have an IPv4 address and may lead to other nodes."""
    names = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for _, name in socket.if_nameindex():
            try:
                fcntl.ioctl(channel, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # without an address
                continue
            if not name.startswith(LOCAL):
                names.append(name)
    return names


def attempts(names: list[str], has_gpus: bool) -> list[tuple[str, str, dict[str, str]]]:
    """Return what is tried: words for it, the backend, and the settings."""
    over_gloo: list[tuple[str, str, dict[str, str]]] = [("gloo", "gloo", {})]
    over_gloo += [(f"gloo on {name}", "gloo", {"GLOO_SOCKET_IFNAME": name}) for name in names]
    if not has_gpus:
        return over_gloo
    return [
        ("NCCL as it is", "nccl", {}),
        ("NCCL without P2P", "nccl", {"NCCL_P2P_DISABLE": "1"}),
        *(
            (f"NCCL by socket on {name}", "nccl", {**SOCKET, "NCCL_SOCKET_IFNAME": f"={name}"})
            for name in names
        ),
        over_gloo[0],
    ]


def attempt(backend: str, seconds: int) -> int:
    """Measure one all-reduce as one rank, and print the seconds that it took. Ends by SIGALRM where it hangs."""
    signal.alarm(seconds)
    device = torch.device("cuda", take_gpu()) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=2 * seconds))  # the alarm comes first
    values = torch.ones((64 if backend == "nccl" else 8) << 18, device=device)  # MiB of four bytes
    took = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        dist.all_reduce(values)
        float(values[0])  # waits for the GPU
        took.append(time.perf_counter() - began)
        values.fill_(1)
    print(json.dumps({"seconds": min(took[1:]), "bytes": values.numel() * 4}), flush=True)
    dist.destroy_process_group()
    return 0


def meeting() -> tuple[str, int]:
    """Return an address of this node that the other ranks reach, and a free port. torchrun's own store keeps the keys of an attempt."""
    name, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with socket.create_connection((name, port), MOST_IMPORT) as channel:
        address = channel.getsockname()[0]
    with socket.socket() as free:
        free.bind(("", 0))
        # On the node of the store, its name may stand for the loopback.
        return name if address.startswith(("127.", "::1")) else address, free.getsockname()[1]


def run(place: tuple[str, int], backend: str, settings: dict[str, str], seconds: int) -> dict[str, Any]:
    """Run one attempt of this rank in a process, and return its result."""
    meet = {"MASTER_ADDR": place[0], "MASTER_PORT": str(place[1]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    environment = {**os.environ, **settings, **meet}
    line = (sys.executable, "-m", "envbuilder_smoke", "--attempt", backend, "--timeout", str(seconds))
    try:
        ended = subprocess.run(
            line, env=environment, capture_output=True, timeout=MOST_IMPORT + seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"why": "it did not start"}
    if ended.returncode == -signal.SIGALRM:
        return {"why": f"no answer in {seconds} s"}
    if ended.returncode:
        words = [text for text in ended.stderr.decode(errors="replace").splitlines() if "Error" in text] or [
            ""
        ]
        return {"why": words[-1].strip()[:200] or f"exit code {ended.returncode}"}
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def compare(wanted: int, seconds: int) -> int:
    """Try every transport, and print a table on rank 0. Returns 1 where that which is used now does not work."""
    store, rank, world = next(dist.rendezvous("env://"))
    store.set_timeout(datetime.timedelta(seconds=2 * MOST_IMPORT + seconds))

    def gather(key: str, value: object) -> list[Any]:
        store.set(f"{key}/{rank}", json.dumps(value))
        return [json.loads(store.get(f"{key}/{other}")) for other in range(world)]

    nodes = gather("names", interfaces())
    shared = [name for name in nodes[0] if all(name in names for names in nodes)]
    tries = attempts(shared, all(gather("gpus", torch.cuda.is_available())))
    rows = []
    for number, (words, backend, settings) in enumerate(tries):
        place = gather(f"place-{number}", meeting() if rank == 0 else None)[0]
        rows.append((words, settings, gather(f"attempt-{number}", run(place, backend, settings, seconds))))
    store.set(f"end/{rank}", "")
    if rank == 0:  # it may hold the store, so it leaves last
        for other in range(world):
            store.get(f"end/{other}")
        if wanted and wanted != world:
            print(f"WRONG: {world} ranks, wanted {wanted}")
        print(table(rows), flush=True)
    return int(any("why" in result for result in rows[0][2]) or world != (wanted or world))


def table(rows: list[tuple[str, dict[str, str], list[dict[str, Any]]]]) -> str:
    """Return the results and, at the end, what to set."""
    width = max(len(words) for words, _, _ in rows)
    lines, speeds = [], []
    for words, settings, results in rows:
        failed = [rank for rank, result in enumerate(results) if "why" in result]
        if failed:
            named = (
                f"{len(failed)} of {len(results)} ranks"
                if len(failed) > 3
                else f"rank {', '.join(map(str, failed))}"
            )
            lines.append(f"{words.ljust(width)}  fails: {results[failed[0]]['why']} ({named})")
            continue
        took, size = max(result["seconds"] for result in results), results[0]["bytes"]
        bus = bus_speed(size, took, len(results))
        lines.append(
            f"{words.ljust(width)}  {size >> 20} MiB in {took * 1e3:.1f} ms, {bus:.2f} GB/s on the bus"
        )
        if words.split()[0] == rows[0][0].split()[0]:  # one backend does not stand in for the other
            speeds.append((bus, words, settings))
    best = max(speeds, key=lambda speed: speed[0], default=None)
    now = next((bus for bus, words, _ in speeds if words == rows[0][0]), None)
    if best is None:
        advice = f"nothing of {rows[0][0].split()[0]} works here: `envbuilder detect` and `doctor` look at this node"
    elif now is not None and best[0] < now * CLEARLY:
        advice = "set nothing: what is used now works, and nothing is clearly faster"
    else:
        advice = f"{best[1]} is the best: {' '.join(f'{name}={value}' for name, value in best[2].items())}"
    return "\n".join([*lines, "", advice])
