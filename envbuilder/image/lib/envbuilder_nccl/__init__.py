"""Tells NCCL what this node needs, just before torch is imported: set only what is unset, and never stand in the way.

In the user's own process there is only this file: it looks whether GPUs are in use, makes a key of what a decision depends on,
and applies a decision that was saved for that key. A new decision is made by a child process (`__main__`) with a time limit,
by the rules of `envbuilder.host`, so that a driver that hangs or crashes cannot touch the program.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEADLINE = 2.0  # seconds that all of this may take
RETRY = 600.0  # seconds that a decision that did not come in time is not asked for again
MOST_BYTES = 1 << 18
MARK = "_ENVBUILDER_NCCL"  # what we set, for child processes: it is not the user's own
NEEDS = "opt/envbuilder/needs.json"
BAKED = "opt/envbuilder/nccl.json"  # the recipe's `nccl:`, where it is not `auto`
RENAMED = ("BLOCKING_WAIT", "ASYNC_ERROR_HANDLING", "DESYNC_DEBUG", "ENABLE_TIMING")  # NCCL_… until torch 2.1
JOB = (
    "MASTER_ADDR", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURMD_NODENAME",
)  # fmt: skip


class Node:
    """Where this process reads its node; a test gives other folders."""

    def __init__(self, root: str = "/", packages: list[str] | None = None) -> None:
        self.root = root
        self.packages = _packages() if packages is None else packages

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def text(self, name: str) -> str:
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def names(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []


def prepare(node: Node | None = None) -> None:
    """Set what is unset; at most DEADLINE seconds. Raises only what a caller should print in one line."""
    started = time.monotonic()
    node = node or Node()
    mode = os.environ.get("ENVBUILDER_NCCL", "")
    if mode == "explain" and os.environ.get("LOCAL_RANK", "0") != "0":
        mode = ""  # one rank of a node explains
    old = old_driver(node)
    if old and not _is_told(os.environ):
        _say(old)
    if mode == "off":
        return
    why = unused(node, os.environ)
    if mode == "explain" and why:
        _say(f"NCCL: nothing to do: {why}")
    if why:
        return
    for name, value in renamed(os.environ, torch_version(node)).items():
        os.environ[name] = value
    key = make_key(node, os.environ)
    decision = None if mode == "explain" else load(key)
    if decision is None:
        decision = _ask(node, key, started)
    told = _is_told(os.environ)
    made = apply(decision, os.environ, conf_names(node, os.environ))
    if mode == "explain":
        sys.stderr.write(decision.get("text", "") + "\n")
    elif not told:
        for line in decision.get("warnings", []):
            _say(line)
        for one in made:
            _say(
                f"{one['name']}={one['value']}: {one['reason']} (ENVBUILDER_NCCL=explain says more, =off stops it)"
            )


def old_driver(node: Node) -> str:
    """What CUDA would say less clearly: the driver's version, and the oldest that this environment works with."""
    driver = node.text("sys/module/nvidia/version").strip()
    needs = node.text(NEEDS) if driver else ""
    if not needs:
        return ""
    import json  # noqa: PLC0415

    floor = json.loads(needs)["driver"]
    if _numbers(driver) >= _numbers(floor):
        return ""
    return f"driver {driver} is older than this environment needs ({floor})"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _is_told(environment: Any) -> bool:
    """Another process of this job on this node speaks, or has spoken."""
    return MARK in environment or environment.get("LOCAL_RANK", "0") != "0"


def unused(node: Node, environment: Any) -> str:
    """Why this process has no use for NCCL; empty where it may have."""
    if not os.path.exists(node.path("dev/nvidiactl")):
        return "there is no NVIDIA driver here"
    if environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1", "NoDevFiles"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if torch_version(node).endswith("+cpu"):
        return "this torch has no CUDA"
    if baked(node).get("mode") == "off":
        return "the recipe says `nccl: off`"
    return ""


def torch_version(node: Node) -> str:
    return next((name[6:-10] for name in _distributions(node) if name.startswith("torch-")), "")


def renamed(environment: Any, torch: str) -> dict[str, str]:
    """The user's TORCH_NCCL_… variables under the names that torch before 2.2 reads."""
    parts = torch.split(".")
    if (
        len(parts) < 2
        or not (parts[0].isdigit() and parts[1].isdigit())
        or (int(parts[0]), int(parts[1])) >= (2, 2)
    ):
        return {}
    pairs = ((f"TORCH_NCCL_{name}", f"NCCL_{name}") for name in RENAMED)
    return {old: environment[new] for new, old in pairs if new in environment and old not in environment}


def baked(node: Node) -> dict[str, Any]:
    text = node.text(BAKED)
    if not text:
        return {}
    import json  # noqa: PLC0415 - not needed by most

    return dict(json.loads(text))


def make_key(node: Node, environment: Any) -> str:
    """All that a decision depends on and that is quick to read, as one text."""
    network = [
        (name, node.text(f"sys/class/net/{name}/operstate").strip()) for name in node.names("sys/class/net")
    ]
    here = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "envbuilder", "host")
    parts = (
        node.text("proc/sys/kernel/random/boot_id").strip(),
        node.text("sys/module/nvidia/version").strip(),
        node.names("proc/driver/nvidia/gpus"),
        [name for name in node.names("dev") if name.startswith("nvidia")],
        network,
        [node.text(f"proc/net/{name}") for name in ("route", "if_inet6")],
        _own_addresses(node.text("proc/net/fib_trie")),
        [name for name in _distributions(node) if name.startswith(("torch-", "nvidia_nccl"))],
        [(name, environment.get(name)) for name in JOB],
        [_stamp(place) for place in (node.path(BAKED), measured_path(environment))],
        _rules(here),
    )
    return repr(parts)


def _own_addresses(trie: str) -> list[str]:
    """Our IPv4 addresses: in fib_trie, what stands above `/32 host LOCAL`."""
    lines = trie.split("\n")
    return sorted({above.split()[-1] for above, line in zip(lines, lines[1:]) if "/32 host LOCAL" in line})


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _rules(folder: str) -> list[tuple[str, int]]:
    """Another image may have other rules; its files have one time, but not the same sizes."""
    try:
        return sorted(
            (entry.name, entry.stat().st_size) for entry in os.scandir(folder) if entry.name.endswith(".py")
        )
    except OSError:
        return []


def _packages() -> list[str]:
    """The folders of Python packages; of /opt/env where this Python was started without them."""
    found = [path for path in sys.path if path.endswith("-packages")]
    return found or [f"/opt/env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"]


def _distributions(node: Node) -> list[str]:
    return [name for folder in node.packages for name in node.names(folder) if name.endswith(".dist-info")]


# The decision and the user's environment.


def apply(decision: dict[str, Any], environment: Any, fixed: frozenset[str]) -> list[dict[str, Any]]:
    """Set what neither the user nor a file of NCCL's own has set; returns what was set that was not before.

    What a parent process set by an older decision is ours to change.
    """
    ours = dict(pair.partition("=")[::2] for pair in environment.get(MARK, "").split(";") if pair)
    ours = {name: value for name, value in ours.items() if environment.get(name) == value}
    users = {name for name in environment if name not in ours} | fixed
    wanted = [one for one in decision.get("settings", []) if not users.intersection(one["unless"])]
    for name in ours:
        if name not in [one["name"] for one in wanted]:
            del environment[name]
    for one in wanted:
        environment[one["name"]] = one["value"]
    environment[MARK] = ";".join(f"{one['name']}={one['value']}" for one in wanted)
    return [one for one in wanted if ours.get(one["name"]) != one["value"]]


def conf_names(node: Node, environment: Any) -> frozenset[str]:
    """What nccl.conf files set; NCCL takes the environment first, so a value of ours would beat the user's file."""
    own = environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME", "/"), ".nccl.conf")
    names = set()
    for path in (own.lstrip("/"), "etc/nccl.conf"):
        for line in node.text(path).split("\n"):
            name, equals, _ = line.partition("=")
            if equals and not name.startswith("#"):
                names.add(name)
    return frozenset(names)


def _ask(node: Node, key: str, started: float) -> dict[str, Any]:
    """Have a child decide; where it does not in time, nothing is set, and nobody asks again for a while."""
    import json  # noqa: PLC0415 - torch imports all of these as well
    import subprocess  # noqa: PLC0415

    here = os.path.dirname(os.path.abspath(__file__))
    python = sys.executable or "/opt/env/bin/python"
    request = json.dumps({"root": node.root, "packages": node.packages, "key": key})
    child = subprocess.Popen(
        [python, "-I", "-S", here],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("ENVBUILDER_DEBUG") == "1" else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        answer, _ = child.communicate(
            request.encode(), timeout=max(0.1, DEADLINE - 0.2 - (time.monotonic() - started))
        )
        return dict(json.loads(answer))
    except subprocess.TimeoutExpired:
        why = f"no answer within {DEADLINE:.0f} s"
    except ValueError:
        why = "no answer"
    finally:
        child.kill()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.1)
    none = {
        "settings": [],
        "warnings": [f"NCCL defaults were not decided: {why}"],
        "until": time.time() + RETRY,
    }
    save(key, none)
    return none


# Decisions are kept on this node, in a folder that nobody else can write to.


def load(key: str) -> dict[str, Any] | None:
    """The decision saved for exactly this key; None where there is none that can be trusted."""
    import json  # noqa: PLC0415

    for folder in _folders():
        opened = _open_folder(folder)
        if opened is None:
            continue
        try:
            text = _read(opened, _name(key))
        finally:
            os.close(opened)
        try:
            saved = json.loads(text) if text else {}
        except ValueError:
            continue
        if saved.get("key") == key and time.time() <= saved["decision"].get("until", float("inf")):
            return dict(saved["decision"])
    return None


def save(key: str, decision: dict[str, Any]) -> None:
    """Keep a decision where the first folder allows it; without one, the next process decides anew."""
    import json  # noqa: PLC0415

    text = json.dumps({"key": key, "decision": decision}).encode()
    for folder in _folders():
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)
        opened = _open_folder(folder)
        if opened is None:
            continue
        try:
            _write(opened, _name(key), text)
            _tidy(opened)
        except OSError:
            continue
        finally:
            os.close(opened)
        return


def measured_path(environment: Any) -> str:
    """Where `detect --measure` keeps this node's verdict, in the user's home."""
    state = environment.get("XDG_STATE_HOME") or os.path.join(
        environment.get("HOME", "/nonexistent"), ".local/state"
    )
    return os.path.join(state, "envbuilder", f"measured-{os.uname().nodename}.json")


def save_measured(environment: Any, verdict: Any) -> str:
    """Keep a verdict; returns where, or an empty text where the home cannot be written."""
    import json  # noqa: PLC0415

    path = measured_path(environment)
    folder, name = os.path.split(path)
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
    except OSError:
        return ""
    opened = _open_folder(folder)
    if opened is None:
        return ""
    try:
        _write(opened, name, json.dumps(verdict).encode())
    except OSError:
        return ""
    finally:
        os.close(opened)
    return path


def read_measured(environment: Any) -> Any:
    """The verdict of this node's test, if it is a plain file of our own; None without one."""
    import json  # noqa: PLC0415

    folder, name = os.path.split(measured_path(environment))
    opened = _open_folder(folder)
    if opened is None:
        return None
    try:
        return json.loads(_read(opened, name) or "null")
    except ValueError:
        return None
    finally:
        os.close(opened)


def _folders() -> list[str]:
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return [*([os.path.join(runtime, "envbuilder")] if runtime else []), f"/tmp/envbuilder-{user}"]  # noqa: S108


def _open_folder(path: str) -> int | None:
    """The folder, if it is a real one that only we can enter; a link in its place is not followed."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(opened)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(opened)
        return None
    return opened


def _read(folder: int, name: str) -> str:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    with os.fdopen(opened, "rb") as stream:
        found = os.fstat(opened)
        if found.st_uid != os.geteuid() or found.st_nlink != 1 or (found.st_mode & 0o170000) != 0o100000:
            return ""
        return stream.read(MOST_BYTES).decode("utf-8", "replace")


def _write(folder: int, name: str, data: bytes) -> None:
    part = f"{name}.{os.getpid()}"
    opened = os.open(
        part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(data)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(part, dir_fd=folder)
        raise


def _tidy(folder: int, most: int = 64) -> None:
    """Jobs come and go, and each leaves a decision: the oldest go first."""
    names = os.listdir(folder)
    if len(names) > most:
        names.sort(key=lambda name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns)
        for name in names[:-most]:
            os.unlink(name, dir_fd=folder)


def _name(key: str) -> str:
    import hashlib  # noqa: PLC0415

    return f"nccl-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _say(text: str) -> None:
    sys.stderr.write(f"envbuilder: {text}\n")
