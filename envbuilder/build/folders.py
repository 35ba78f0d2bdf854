"""Folders that a layer's files lie in and that a lower layer has: no two layers own the same path."""

from pathlib import PurePosixPath
from typing import assert_never

from envbuilder.plan.model import (
    ENV_PREFIX,
    EXTENSIONS,
    LIB,
    CudaStep,
    ExtensionsStep,
    OsStep,
    PythonStep,
    RuntimeStep,
    StartStep,
    Step,
    site_packages,
)


def shared_folders(step: Step, python: str) -> tuple[str, ...]:
    """As a layer's tar spells them; `python` is the minor version of the environment's."""
    match step:
        case OsStep():
            return ()
        case PythonStep():
            return ("opt",)
        case CudaStep():
            return ("usr", "usr/local")
        case ExtensionsStep():
            return _above(f"{site_packages(python)}/x", f"{ENV_PREFIX}/bin/x", EXTENSIONS)
        case StartStep():
            return _above(f"{site_packages(python)}/x", LIB)
        case RuntimeStep():
            return ("etc", "opt", "opt/envbuilder", ".singularity.d")
        case _:
            assert_never(step)


def _above(*paths: str) -> tuple[str, ...]:
    """The folders above these absolute paths."""
    return tuple({str(parent)[1:] for path in paths for parent in PurePosixPath(path).parents} - {""})
