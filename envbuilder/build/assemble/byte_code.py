"""Which Pythons write the same byte code in every process, and what the older ones need.

Before 3.11, the order of a set in byte code depends on the hash seed (python/cpython#81777), and the mark of a string on what the
process has read before. So one process with a fixed seed compiles the same files in the same order, after it has read the same of
the standard library (`runtime/kit/compile_all.py`).
"""

from typing import Final

FIRST_REPEATABLE: Final = (3, 11)  # ten installs of 7375 files by uv's workers were equal; in 3.9 none were

ENVIRONMENT: Final = (
    ("PYTHONHASHSEED", "0"),
    ("PYTHONWARNINGS", "ignore"),  # a warning leaves strings behind in the process
)


def seeded_python(python: str) -> str:
    """Return the Python whose byte code must be compiled with a fixed seed, "" where none must."""
    return "" if is_repeatable(python) else python


def is_repeatable(python: str) -> bool:
    """Whether the byte code is the same in every process. `python` is a minor version such as 3.11."""
    return tuple(map(int, python.split("."))) >= FIRST_REPEATABLE
