"""The program's entry: answers `--version` and the shell's TAB itself, and hands everything else to the command line.

Typer imports pydantic as soon as it has a command to parse, which costs more CPU time than a key press may take.
"""

import gc
import os
import sys
from typing import Final

from envbuilder import __version__
from envbuilder.commands import completion

OBJECTS: Final = 100_000  # three times what a short verb makes


def main() -> None:
    """Run one command line and exit."""
    # A start makes many objects and hardly a cycle: to look for cycles after each 700 of them, and at the end among all,
    # takes a fifth of the time of a short verb.
    gc.set_threshold(OBJECTS)
    try:
        _run()
    finally:
        gc.freeze()


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"envbuilder {__version__}")
        return
    answer = completion.complete(os.environ)
    if answer is None:
        from envbuilder import cli  # noqa: PLC0415

        cli.main()
    else:
        print(answer.text)
        sys.exit(answer.exit_code)


if __name__ == "__main__":
    main()
