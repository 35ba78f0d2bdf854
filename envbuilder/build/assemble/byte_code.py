"""Which Pythons write the same byte code in every process, and what the others need.

Before 3.11 the order of a set in the byte code hangs on the hash seed (python/cpython#81777), and a string's mark on
what the compiling process has read before: the same files in the same order, in one process with a fixed seed,
which has read the same of the standard library (`image/kit/compile_all.py`).
"""

from typing import Final

FIRST_REPEATABLE: Final = (3, 11)  # ten installs of 7375 files by uv's workers were equal; in 3.9 none were

ENVIRONMENT: Final = (
    ("PYTHONHASHSEED", "0"),
    ("PYTHONWARNINGS", "ignore"),  # a warning leaves strings behind in the process that meets it
)


def seeded_python(python: str) -> str:
    """Return the Python whose byte code must be compiled with a fixed seed, "" where none must."""
    return "" if is_repeatable(python) else python


def is_repeatable(python: str) -> bool:
    """Whether it does not matter which process compiles which file; `python` is 3.11."""
    return tuple(map(int, python.split("."))) >= FIRST_REPEATABLE
