"""Set NCCL's variables for this node just before torch is imported. Only unset ones are set, and no failure stops the program.

The user's process imports only this file and `kept`. It checks that GPUs are in use, makes a key of everything that a decision depends
on, and applies the decision that was saved for that key. A child process (`__main__`) makes a new decision by the rules of
`envbuilder.node.nccl`, within a time limit, so a driver that hangs or crashes cannot reach the program.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEADLINE = 2.0  # seconds for all of this
RETRY = 600.0  # seconds until a decision that came too late is asked for again
MOST_BYTES = 1 << 18
MARK = "_ENVBUILDER_NCCL"  # tells child processes which variables are ours and not the user's
NEEDS = "opt/envbuilder/needs.json"
BAKED = "opt/envbuilder/nccl.json"  # the recipe's `nccl:`, where it is not `auto`
RENAMED = ("BLOCKING_WAIT", "ASYNC_ERROR_HANDLING", "DESYNC_DEBUG", "ENABLE_TIMING")  # NCCL_… until torch 2.1
JOB = (
    "MASTER_ADDR", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURMD_NODENAME",
)  # fmt: skip


class Node:
    """The folders from which this process reads its node. Tests give others."""

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
    """Set the unset variables within DEADLINE seconds. Raises only errors that a caller should print in one line."""
    started = time.monotonic()
    node = node or Node()
    mode = os.environ.get("ENVBUILDER_NCCL", "")
    if mode == "explain" and os.environ.get("LOCAL_RANK", "0") != "0":
        mode = ""  # one rank of a node explains
    old, lost, has_speaker = old_driver(node), lost_driver(node, os.environ), _has_speaker(os.environ)
    if old and not has_speaker:
        _say(old)
    if lost and not has_speaker and _is_first(os.environ):
        _say(lost)
    if lost:
        os.environ.setdefault(MARK, "")  # the ranks of this torchrun are in the same container
    if mode == "off":
        return
    why = lost or unused(node, os.environ)
    if why:
        if mode == "explain":
            _say(f"NCCL: nothing to do: {why}")
        return
    from envbuilder_nccl import kept  # noqa: PLC0415 - of no use without GPUs

    os.environ.update(renamed(os.environ, torch_version(node)))
    key = make_key(node, os.environ)
    decision = None if mode == "explain" else kept.load(key)
    if decision is None:
        decision = _ask(node, key, started)
    made = apply(decision, os.environ, conf_names(node, os.environ))
    if mode == "explain":
        sys.stderr.write(decision.get("text", "") + "\n")
    elif not has_speaker:
        for line in decision.get("warnings", []):
            _say(line)
        for change in made:
            setting = f"{change['name']}={change['value']}: {change['reason']}"
            _say(f"{setting} (ENVBUILDER_NCCL=explain says more, =off stops it)")


def lost_driver(node: Node, environment: Any) -> str:
    """Return that the GPUs of this node were left out of the container, "" if torch has them or is to have none.

    A container sees the module of the node's driver, and Apptainer's also the devices. libcuda comes with the option alone.
    """
    there = any(os.path.exists(node.path(name)) for name in ("dev/nvidiactl", "sys/module/nvidia"))
    if not there or _hides_gpus(environment) or not node.text(NEEDS):
        return ""
    if os.path.exists(node.path(".singularity.d/libs/libcuda.so.1")):
        return ""
    import ctypes  # noqa: PLC0415 - torch imports it as well

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        sif = any(name in environment for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"))
        option = "--nv" if sif else "--gpus all"
        return f"this node has GPUs, but this container was started without `{option}`: torch sees none"
    return ""


def old_driver(node: Node) -> str:
    """Return the driver's version and the oldest that this environment works with. CUDA reports it less clearly."""
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


def _has_speaker(environment: Any) -> bool:
    """Whether another process of this job on this node prints the messages."""
    return MARK in environment or environment.get("LOCAL_RANK", "0") != "0"


_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def _is_first(environment: Any) -> bool:
    """Whether this is the first process of its job, on all nodes together."""
    return all(environment.get(name, "0") == "0" for name in _RANKS)


def unused(node: Node, environment: Any) -> str:
    """Return why this process has no use for NCCL, "" if it may have."""
    if not os.path.exists(node.path("dev/nvidiactl")):
        return "there is no NVIDIA driver here"
    if _hides_gpus(environment):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if torch_version(node).endswith("+cpu"):
        return "this torch has no CUDA"
    if baked(node).get("mode") == "off":
        return "the recipe says `nccl: off`"
    return ""


def _hides_gpus(environment: Any) -> bool:
    return environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1", "NoDevFiles")


def torch_version(node: Node) -> str:
    return next((name[6:-10] for name in _distributions(node) if name.startswith("torch-")), "")


def renamed(environment: Any, torch: str) -> dict[str, str]:
    """Return the user's TORCH_NCCL_… variables under the names that torch before 2.2 reads."""
    release = _numbers(torch)[:2]
    if len(release) < 2 or release >= [2, 2]:
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
    """Return everything quick to read that a decision depends on, as one text."""
    from envbuilder_nccl import kept  # noqa: PLC0415

    network = [(name, node.text(f"sys/class/net/{name}/operstate")) for name in node.names("sys/class/net")]
    lib = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
        [_stamp(place) for place in (node.path(BAKED), kept.measured_path(environment))],
        _rules(os.path.join(lib, "envbuilder", "node", "nccl")),
    )
    return repr(parts)


def _own_addresses(trie: str) -> list[str]:
    """Return our IPv4 addresses. In fib_trie they stand above `/32 host LOCAL`."""
    lines = trie.split("\n")
    return sorted({above.split()[-1] for above, line in zip(lines, lines[1:]) if "/32 host LOCAL" in line})


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _rules(folder: str) -> list[tuple[str, int]]:
    """Return the sizes of the rules' files. Another image may have other rules, with the same file times."""
    try:
        return sorted(
            (entry.name, entry.stat().st_size) for entry in os.scandir(folder) if entry.name.endswith(".py")
        )
    except OSError:
        return []


def _packages() -> list[str]:
    """Return the folders of Python packages, those of /opt/env where this Python was started without any."""
    found = [path for path in sys.path if path.endswith("-packages")]
    return found or [f"/opt/env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"]


def _distributions(node: Node) -> list[str]:
    return [name for folder in node.packages for name in node.names(folder) if name.endswith(".dist-info")]


# The decision and the user's environment.


def apply(decision: dict[str, Any], environment: Any, fixed: frozenset[str]) -> list[dict[str, Any]]:
    """Set what neither the user nor an nccl.conf has set. Returns the settings that are new.

    Variables that a parent process set by an older decision may be changed.
    """
    ours = dict(pair.partition("=")[::2] for pair in environment.get(MARK, "").split(";") if pair)
    ours = {name: value for name, value in ours.items() if environment.get(name) == value}
    users = {name for name in environment if name not in ours} | fixed
    wanted = [
        setting for setting in decision.get("settings", []) if not users.intersection(setting["unless"])
    ]
    for name in ours:
        if name not in [setting["name"] for setting in wanted]:
            del environment[name]
    for setting in wanted:
        environment[setting["name"]] = setting["value"]
    environment[MARK] = ";".join(f"{setting['name']}={setting['value']}" for setting in wanted)
    return [setting for setting in wanted if ours.get(setting["name"]) != setting["value"]]


def conf_names(node: Node, environment: Any) -> frozenset[str]:
    """Return the names that nccl.conf files set. NCCL reads the environment first, so our value would beat the user's file."""
    user_file = environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME", "/"), ".nccl.conf")
    names = set()
    for path in (user_file.lstrip("/"), "etc/nccl.conf"):
        for line in node.text(path).split("\n"):
            name, equals, _ = line.partition("=")
            if equals and not name.startswith("#"):
                names.add(name)
    return frozenset(names)


def _ask(node: Node, key: str, started: float) -> dict[str, Any]:
    """Let a child process decide. If it takes too long, nothing is set, and no process asks again for a while."""
    import json  # noqa: PLC0415 - torch imports all of these as well
    import subprocess  # noqa: PLC0415

    from envbuilder_nccl import kept  # noqa: PLC0415

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
    patience = max(0.1, DEADLINE - 0.2 - (time.monotonic() - started))
    try:
        answer, _ = child.communicate(request.encode(), timeout=patience)
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
        try:
            child.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
    warning = f"NCCL defaults were not decided: {why}"
    none = {"settings": [], "warnings": [warning], "until": time.time() + RETRY}
    kept.save(key, none)
    return none


def _say(text: str) -> None:
    sys.stderr.write(f"envbuilder: {text}\n")
