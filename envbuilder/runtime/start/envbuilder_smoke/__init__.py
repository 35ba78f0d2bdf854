"""Check that these ranks are one job. Start `python -m envbuilder_smoke` as a training; it prints a table and ends with an exit code.

It checks the number of ranks, that each has a GPU of its own, and the values that NCCL (without GPUs: gloo) computes. `--check`
checks one node before any rank starts: torch, the prebuilt extensions, and whether the GPUs can run them.

`assert_same_steps` is for your own loop. Ranks that make different numbers of steps, because one has a batch less, wait for each
other forever or mix gradients of different steps:

    from envbuilder_smoke import assert_same_steps
    assert_same_steps(step)    # on every rank, at the end of each epoch

This runs in the image, under any Python from 3.8, with nothing but torch.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from envbuilder_smoke.ranks import StepMismatchError, assert_same_steps

__all__ = ["StepMismatchError", "assert_same_steps"]


def __getattr__(name: str) -> object:
    """Import torch for those who use it: `--check` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("envbuilder_smoke.ranks"), name)
