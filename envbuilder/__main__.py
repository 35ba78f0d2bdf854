"""The program's entry: answers `--version` and the shell's TAB itself, and hands everything else to the command line.

Typer imports pydantic as soon as it has a command to parse, which costs more CPU time than a key press may take.
"""

import os
import sys

from envbuilder import __version__, completion


def main() -> None:
    """Run one command line and exit."""
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
