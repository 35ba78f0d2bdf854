"""`python -m envbuilder_smoke`, with the check of one node before any rank starts. That does not import torch, which takes seconds."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path

import envbuilder_smoke

INDEX = Path("/opt/envbuilder/extensions/index.json")
LIB = "/opt/envbuilder/lib"
DRIVER = "libcuda.so.1"
MOST_EACH = 30  # seconds for each transport of --compare


def find_torch() -> tuple[str, str, str]:
    """Return the version of the torch that a rank would import, that of its CUDA, and its file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return "", "", ""
    file = os.path.join(os.path.dirname(spec.origin), "version.py")
    about = runpy.run_path(file) if os.path.isfile(file) else {"__version__": "another one"}
    return str(about["__version__"]), str(about.get("cuda") or ""), spec.origin


def why_no_driver() -> str:
    """Return why torch would not find the driver that Apptainer or Docker brings into the environment."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        return f"torch will see no GPU, for the driver's library is not in the environment: {error} (`envbuilder doctor` says more)"
    return ""


def check_node(gpus_wanted: int) -> list[str]:
    """Return what cannot work on this node, whose ranks use this many GPUs."""
    sys.path.append(LIB)
    gpus = importlib.import_module("envbuilder_extensions.gpus")
    wrong = []
    wanted, (version, cuda, place) = os.environ.get("PYTORCH_VERSION", ""), find_torch()
    if wanted and version.partition("+")[0] != wanted:
        here = f"torch is {version} from {place}" if place else "torch is not there"
        wrong.append(f"{here}, and the environment was made with {wanted}")
    if gpus_wanted and cuda and (why := why_no_driver()):
        wrong.append(why)
    index = json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.exists() else {"extensions": []}
    for extension in index["extensions"]:
        name, file, targets = extension["name"], extension.get("file"), extension["targets"]
        if file and not os.path.isfile(file):  # a project has files of its own
            wrong.append(f"the extension {name} is not there: {file}")
        unfit = {str(gpu) for gpu in gpus.visible() if targets and not gpus.covers(targets, gpu)}
        wrong += [
            f"the extension {name} has code for {', '.join(targets)}, not for {gpu}" for gpu in sorted(unfit)
        ]
    return wrong


def main(arguments: list[str]) -> int:
    about = (envbuilder_smoke.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m envbuilder_smoke", description=about)
    parser.add_argument("--check", action="store_true", help="check this node alone, before any rank starts")
    parser.add_argument("--gpus", type=int, default=0, help="with --check: how many GPUs its ranks use")
    parser.add_argument("--ranks", type=int, default=0, help="how many ranks there must be")
    parser.add_argument("--timeout", type=int, default=120, help="seconds to wait for the other ranks")
    parser.add_argument("--compare", action="store_true", help="try each transport, and say what to set")
    parser.add_argument("--attempt", help=argparse.SUPPRESS)  # one of --compare
    given = parser.parse_args(arguments)
    if given.compare or given.attempt:
        module = importlib.import_module("envbuilder_smoke.compare")
        if given.attempt:
            return int(module.attempt(given.attempt, given.timeout))
        return int(module.compare(given.ranks, min(given.timeout, MOST_EACH)))
    if not given.check:
        return int(importlib.import_module("envbuilder_smoke.ranks").smoke(given.ranks, given.timeout))
    wrong = check_node(given.gpus)
    for text in wrong:
        print(f"envbuilder_smoke: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
