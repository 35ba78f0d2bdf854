"""The child process that decides by the rules of `envbuilder.node.nccl`. `--export` is for programs that are not Python.

It forks once and lives on after its parent gave up, so that the decision of a slow driver is saved for the next process.
"""

from __future__ import annotations

import json
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import envbuilder_nccl
from envbuilder_nccl import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 20  # seconds


def main() -> None:
    if sys.argv[1:] == ["--export"]:
        export()
        return
    if sys.argv[1:] == ["--measure"]:
        sys.stdout.write(json.dumps(measure()) + "\n")
        return
    request = json.loads(sys.stdin.read())
    if os.fork():
        os._exit(0)
    signal.alarm(LONGEST)
    from envbuilder.node.nccl.report import decide_start  # noqa: PLC0415 - after the fork: it may hang

    node = envbuilder_nccl.Node(request["root"], request["packages"])
    measured = kept.read_measured(os.environ)
    decision = decide_start(node.root, node.packages, os.environ, envbuilder_nccl.baked(node), measured)
    kept.save(request["key"], {name: value for name, value in decision.items() if name != "text"})
    sys.stdout.write(json.dumps(decision))


def tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def measure() -> dict[str, Any]:
    """Test P2P on this node and save the verdict in the user's home, for these versions and GPUs."""
    from envbuilder.node.nccl.measure import Bench, count_gpus, measure  # noqa: PLC0415
    from envbuilder.node.nccl.report import node_facts  # noqa: PLC0415

    node = envbuilder_nccl.Node()
    facts = node_facts(node.root, node.packages, os.environ)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
    bench = Bench(sys.executable, program)
    count = count_gpus(bench, os.environ)
    if count < 2:
        return {"error": f"{count} GPUs are visible to torch here, and P2P needs two"}
    every = len(facts.gpus or ())
    if count != every:
        return {"error": f"{count} of {every} GPUs are visible to torch here; the test is of all"}
    plain = {**os.environ, "ENVBUILDER_NCCL": "off"}  # the ranks are measured without any decision
    passed, without, detail = measure(bench, count, plain, tell)
    verdict = {
        "passed": passed, "passed_without": without, "driver": facts.driver, "kernel": facts.kernel, "nccl": facts.nccl,
        "gpus": list(facts.gpu_names), "detail": detail,
    }  # fmt: skip
    return {"measured": verdict, "kept": kept.save_measured(os.environ, verdict)}


def export() -> None:
    """Print the changes of `prepare` as shell commands."""
    import shlex  # noqa: PLC0415

    before = dict(os.environ)
    envbuilder_nccl.prepare()
    for name, value in os.environ.items():
        if before.get(name) != value:
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    for name in before:
        if name not in os.environ:
            sys.stdout.write(f"unset {name}\n")


main()
