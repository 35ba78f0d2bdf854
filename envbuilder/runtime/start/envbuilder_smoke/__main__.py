"""`python -m envbuilder_smoke`."""

from __future__ import annotations

import argparse
import importlib
import sys

import envbuilder_smoke
from envbuilder_smoke.check import check_node


def main(arguments: list[str]) -> int:
    about = (envbuilder_smoke.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m envbuilder_smoke", description=about)
    parser.add_argument("--check", action="store_true", help="check this node alone, before any rank starts")
    parser.add_argument("--gpus", type=int, default=0, help="with --check: how many GPUs its ranks use")
    parser.add_argument("--ranks", type=int, default=0, help="how many ranks there must be")
    parser.add_argument("--timeout", type=int, default=120, help="seconds to wait for the other ranks")
    given = parser.parse_args(arguments)
    if not given.check:
        return int(importlib.import_module("envbuilder_smoke.ranks").smoke(given.ranks, given.timeout))
    wrong = check_node(given.gpus)
    for text in wrong:
        print(f"envbuilder_smoke: {text}", file=sys.stderr)
    return 1 if wrong else 0


sys.exit(main(sys.argv[1:]))
