"""Look twice at the ranks of a job on this node, from outside and without stopping them, and print one line of JSON.

A node runs this from its stdin, with Python 3.8 alone. Its argument is JSON: the job or a process, seconds between the two looks,
a py-spy that may be there, and whether the ranks are to be ended. `RankLook` and `NodeLook` in `verdict` are what it prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
STACKS = signal.SIGRTMAX  # in a job of `launch`, Python prints its stacks
MOST_WORKERS = 4  # of a data loader, whose stacks are read
REMOTE = re.compile(r"fuse|nfs|lustre|gpfs|ceph|beegfs|cifs|smb|9p|afs|wekafs|pvfs")  # kinds of file systems
# Where the kernel waits for one. It shows the name to the owner of a process on most machines.
IN_KERNEL = re.compile(
    r"request_wait_answer|fuse|nfs|rpc_wait|cl_|ll_|ldlm|ceph|gpfs|kxsleep|beegfs|cifs|smb|p9_"
)
# The numbers of `select`, whose first argument is no descriptor, by the first letter of the processor's name.
WITH_SETS = {"x": (23, 270), "a": (72,)}.get(os.uname().machine[:1], ())
SYN_SENT = "02"  # in /proc/net/tcp
MAPPED = bytes(10) + b"\xff\xff"  # begins an address of IPv4 in IPv6
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Frame = tuple[str, str, int]
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def text(*parts: int | str) -> str:
    """Return a file of /proc, "" where it is gone or not open to us."""
    try:
        with open(os.path.join("/proc", *map(str, parts)), "rb") as stream:
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def fields(pid: int) -> list[str]:
    """Return the fields of `stat` from the state on, as the name before them may hold anything."""
    return text(pid, "stat").rpartition(") ")[2].split()


def settings(pid: int) -> dict[str, str]:
    entries = (entry.partition("=") for entry in text(pid, "environ").split("\0"))
    return {name: value for name, _, value in entries}


class Processes:
    """All processes, with the parents and settings that they had at one moment."""

    def __init__(self) -> None:
        self.pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        stats = {pid: fields(pid) for pid in self.pids}
        self.parents = {pid: int(row[1]) for pid, row in stats.items() if row}
        self.settings = {pid: settings(pid) for pid in self.parents}

    def above(self, pid: int) -> Iterator[int]:
        while pid in self.parents:
            yield pid
            pid = self.parents[pid]

    def below(self, pid: int) -> list[int]:
        return [other for other in self.parents if pid in self.above(other)]

    def ranks(self, job: str, pid: int) -> dict[int, int]:
        """Return rank → process: the first of that rank that runs Python, or else the first."""
        given = self.settings.get(pid, {})
        job = job or given.get("ENVBUILDER_JOB", "")
        meeting = [given.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")] if "RANK" in given else []
        chosen: dict[int, tuple[bool, int, int]] = {}
        for other, theirs in self.settings.items():
            rank = theirs.get("RANK", "")
            is_here = (
                job in (theirs.get("ENVBUILDER_JOB"), theirs.get("SLURM_JOB_ID")) if job
                else meeting == [theirs.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")] if meeting
                else pid in self.above(other)
            )  # fmt: skip
            if rank.isdigit() and is_here:
                depth = sum(self.settings[upper].get("RANK") == rank for upper in self.above(other))
                key = (not is_python(other), depth, other)
                chosen[int(rank)] = min(chosen.get(int(rank), key), key)
        return {rank: key[2] for rank, key in sorted(chosen.items())}


def is_python(pid: int) -> bool:
    try:
        name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        name = text(pid, "comm")
    return name.startswith("python")


def spent(pids: Iterable[int]) -> tuple[float, int]:
    """Return the seconds of CPU and the bytes read and written of some processes."""
    rows = [row for row in map(fields, pids) if row]
    cpu = sum(int(row[11]) + int(row[12]) for row in rows) / TICKS
    counts = (re.findall(r"^[rw]char: (\d+)", text(pid, "io"), re.MULTILINE) for pid in pids)
    return cpu, sum(int(count) for pair in counts for count in pair)


def ready(pids: Iterable[int]) -> set[str]:
    """Return the threads that run or would, if the node had a core for them: on a node with too few, one that computes gets none."""
    threads = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/%d/task" % pid):
                row = text(pid, "task", thread, "stat").rpartition(") ")[2]
                threads |= {thread} if row.startswith("R") else set()
    return threads


def switches(pid: int) -> int:
    """Return how often the main thread has waited for something: a thread that hangs does not wait anew."""
    return sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", text(pid, "task", pid, "status"))))


def file_system(pid: int) -> str:
    """Return which file system the main thread waits for, "" if for none."""
    row = fields(pid)
    call, kernel = text(pid, "syscall").split(), text(pid, "wchan")
    if len(call) > 1 and call[0].isdigit() and int(call[0]) not in WITH_SETS and int(call[1], 16) < 1 << 20:
        with contextlib.suppress(OSError):
            path = os.readlink("/proc/%d/fd/%d" % (pid, int(call[1], 16)))
            lines = (line.split() for line in text(pid, "mountinfo").splitlines())
            mounts = [(line[4], line[line.index("-") + 1]) for line in lines if "-" in line]
            within = [mount for mount in mounts if (path + "/").startswith(mount[0].rstrip("/") + "/")]
            point, kind = max(within, default=("", ""), key=lambda mount: len(mount[0]))
            if REMOTE.search(kind):
                return "%s on %s (%s)" % (path, point, kind)
    if IN_KERNEL.match(kernel) or row[:1] == ["D"]:
        return "a file system (%s in the kernel)" % (kernel if kernel not in ("", "0") else "uninterruptible")
    return ""


def unanswered(pid: int) -> list[str]:
    """Return address and port of each peer that the process wants to reach and that has not answered yet."""
    sockets = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets |= set(re.findall(r"^socket:\[(\d+)\]", os.readlink("/proc/%d/fd/%s" % (pid, name))))
    rows = [line.split() for name in ("tcp", "tcp6") for line in text(pid, "net", name).splitlines()[1:]]
    return sorted({peer(row[2]) for row in rows if row[3] == SYN_SENT and row[9] in sockets})


def peer(words: str) -> str:
    """Return an address and a port as the kernel writes them, words of four bytes in the order of the machine, as people do."""
    address, _, port = words.partition(":")
    parts = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    raw = b"".join(parts)
    raw = raw[12:] if raw.startswith(MAPPED) else raw
    shown = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return "%s port %d" % (shown, int(port, 16))


def spied(pids: Iterable[int], py_spy: str | None) -> dict[int, list[Frame]]:
    """Return the frames of the main thread of each process that py-spy can read, innermost first."""
    if not py_spy:
        return {}
    line = (py_spy, "dump", "--json", "--nonblocking", "--pid")
    running = {
        pid: subprocess.Popen([*line, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for pid in pids
    }
    stacks: dict[int, list[Frame]] = {}
    for pid, process in running.items():
        try:
            threads = json.loads(process.communicate(timeout=5)[0])
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
            process.wait()
            continue
        main = [thread for thread in threads if thread["os_thread_id"] == pid] or threads[:1]
        if main:
            stacks[pid] = [(row["name"], row["filename"], row["line"]) for row in main[0]["frames"]]
    return stacks


def printed(pid: int, log: str) -> list[Frame]:
    """Return the stack that a rank prints at our signal, where it answers to that: into its stderr or, behind a pipe, its log."""
    caught = re.search(r"^SigCgt:\s*(\w+)", text(pid, "status"), re.MULTILINE)
    if not caught or not int(caught[1], 16) >> (STACKS - 1) & 1:
        return []
    try:
        target = "/proc/%d/fd/2" % pid
        path = target if stat.S_ISREG(os.stat(target).st_mode) else log
        size = os.path.getsize(path)
        os.kill(pid, STACKS)
        for _ in range(20):
            time.sleep(0.1)
            with open(path, "rb") as stream:
                stream.seek(size)
                output = stream.read().decode(errors="replace")
            current = output.rpartition("Current thread")[2].split("\n\n")[0]
            frames = FRAME.findall(current if "File" in current else output)
            if frames:
                return [(name, file, int(line)) for file, line, name in frames]
    except OSError:
        pass
    return []


def ask_nccl(variables: dict[str, str]) -> str:
    """Return what NCCL's RAS says of this job: from 2.24 on, and where no other job of the node has the port."""
    host, _, port = variables.get("NCCL_RAS_ADDR", "localhost:28028").rpartition(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), 2) as channel:
            channel.settimeout(5)
            for line in (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 3\n", b"VERBOSE STATUS\n"):
                channel.sendall(line)
                while line[:1] != b"V" and not answer.endswith(b"\n"):
                    answer += channel.recv(1) or b"\n"
                answer = b"" if line[:1] != b"V" else answer
            while len(answer) < 1 << 20:
                data = channel.recv(65536)
                if not data:
                    break
                answer += data
    except (OSError, ValueError):
        pass
    return answer.decode(errors="replace")


def ask_for_dump(variables: dict[str, str]) -> None:
    """Ask torch's recorder for a dump, through the pipe that it has for this."""
    stem = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    with contextlib.suppress(OSError):
        pipe = os.open("%s%s.pipe" % (stem, variables["RANK"]), os.O_WRONLY | os.O_NONBLOCK) if stem else -1
        if pipe >= 0:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b"1\n")
            os.close(pipe)


def gpus() -> list[str]:
    line = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader"]
    try:
        return subprocess.run(line, capture_output=True, timeout=5, check=True).stdout.decode().splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def look(spec: dict[str, Any]) -> dict[str, Any]:
    before = Processes()
    ranks = before.ranks(spec["job"], spec["pid"])
    py_spy = spec["py_spy"] if os.access(spec["py_spy"], os.X_OK) else shutil.which("py-spy")
    trees = {pid: before.below(pid) for pid in ranks.values()}
    first = {pid: (spent(tree), switches(pid), file_system(pid), ready(tree)) for pid, tree in trees.items()}
    asked = {pid: unanswered(pid) for pid in trees}
    stacks = spied(trees, py_spy)
    began = time.monotonic()
    for pid in trees:
        ask_for_dump(before.settings[pid])
    ras = ask_nccl(next((before.settings[pid] for pid in trees), {})) if trees else ""
    time.sleep(max(0.0, spec["seconds"] - (time.monotonic() - began)))
    passed = time.monotonic() - began
    after = Processes()
    # From one process, only the ranks of this node are known.
    sizes = ("WORLD_SIZE",) if spec["job"] else ("LOCAL_WORLD_SIZE", "WORLD_SIZE")
    rows = []
    seconds = spied(trees, py_spy)
    for rank, pid in ranks.items():
        variables, tree = before.settings[pid], after.below(pid)
        (cpu, moved), waited, place, were_ready = first[pid]
        now_cpu, now_moved = spent([other for other in tree if other in trees[pid]])
        fresh = [other for other in tree if other not in trees[pid]]
        stack = seconds.get(pid) or printed(pid, "%s/rank-%d.log" % (spec["folder"], rank))
        workers = [other for other in tree if other != pid and is_python(other)][:MOST_WORKERS]
        theirs = spied(workers, py_spy)
        rows.append({
            "rank": rank, "world": int(next(filter(None, map(variables.get, sizes)), 0)), "pid": pid, "host": socket.gethostname(),
            "state": (fields(pid) or ["gone"])[0], "cpu": (now_cpu - cpu) / passed, "bytes": (now_moved - moved) / passed,
            "is_active": bool(fresh or ready(tree) & were_ready), "switches": (switches(pid) - waited) / passed,
            "files": file_system(pid) if place else "", "stack": stack,
            "peers": [other for other in unanswered(pid) if other in asked[pid]],
            "is_still": not stack or pid not in stacks or stacks[pid] == stack,
            "workers": [{"pid": other, "files": file_system(other), "stack": theirs.get(other, [])} for other in workers],
        })  # fmt: skip
    if spec["ends"]:
        for pid in trees:
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
    return {"ranks": rows, "ras": ras, "gpus": gpus() if rows else []}


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))
