"""The child that decides, under the rules of `envbuilder.host`; and `--export` for programs that are not Python.

It forks once: what asks the driver lives on for a while after the one who asked has given up, so that a driver that takes
long to wake has its decision saved for the next process.
"""

from __future__ import annotations

import json
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import envbuilder_nccl

LONGEST = 20  # seconds


def main() -> None:
    if sys.argv[1:] == ["--export"]:
        export()
        return
    request = json.loads(sys.stdin.read())
    if os.fork():
        os._exit(0)
    signal.alarm(LONGEST)
    from envbuilder.host.start import decide_start  # noqa: PLC0415 - after the fork: it may hang

    node = envbuilder_nccl.Node(request["root"], request["packages"])
    measured = envbuilder_nccl.read_measured(os.environ)
    decision = decide_start(node.root, node.packages, os.environ, envbuilder_nccl.baked(node), measured)
    envbuilder_nccl.save(request["key"], {name: value for name, value in decision.items() if name != "text"})
    sys.stdout.write(json.dumps(decision))


def export() -> None:
    """Print as shell what `prepare` changes."""
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
