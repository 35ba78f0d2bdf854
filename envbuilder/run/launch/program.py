"""Check the program of a job before it is queued: later, each rank ends with a traceback about it."""

import os
from pathlib import Path
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.run.launch.job import LaunchOptions, program_file

_ELF: Final = b"\x7fELF"
_MOST: Final = 1 << 20  # bytes in which line endings are looked for


def check_program(options: LaunchOptions) -> str:
    """Return a warning about the program, or "". Raises UsageError for a file with which no rank can start.

    A path that is not in the folder may be in the environment. A word without a slash is looked for there.
    """
    if not options.program:
        return ""
    first, word = options.program[0], program_file(options.program)
    path = options.folder / (word or first)
    is_python = word.endswith(".py") or (word != first and "python" in Path(first).name)
    if not word:
        if path.is_file() and path.suffix:
            raise UsageError(
                f"`{first}` is looked for in the PATH of the environment, not in {options.folder}",
                hint=f"write `./{first}`",
            )
        is_here = (
            path.is_dir()
            and f"`{first}` is a folder here, and a program of that name is looked for in the environment"
        )
        return is_here or ""
    if not path.exists():
        missing = f"there is no `{word}` in {options.folder}, where the ranks start"
        if word.startswith("/"):
            return ""  # each node looks into the environment before a rank starts
        if options.written:
            return missing
        raise UsageError(
            missing, hint="`ls` shows the files there; `-m MODULE` starts a module of the environment"
        )
    if path.is_dir() and (word == first or not (path / "__main__.py").is_file()):
        raise UsageError(
            f"`{word}` is a folder, and a program is a file", hint="name the script in it, or `-m PACKAGE`"
        )
    if path.is_dir():
        return ""
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"`{word}` cannot be read by this user", hint=f"`ls -l {word}` shows whose it is and who may"
        )
    with path.open("rb") as stream:
        text = stream.read(_MOST)
    return _check_text(text, word, is_direct=word == first and not is_python, is_python=is_python, path=path)


def _check_text(text: bytes, word: str, *, is_direct: bool, is_python: bool, path: Path) -> str:
    """Check the file of a program that the kernel starts, or that Python or a shell reads."""
    line = text.partition(b"\n")[0]
    repair = f"`sed -i 's/\\r$//' {word}` gives it those of Linux"
    if is_python:  # which reads both
        is_script = line.startswith(b"#!") and line.endswith(b"\r")
        return (
            f"`{word}` has Windows line endings: it starts by `python {word}` alone; {repair}"
            if is_script
            else ""
        )
    if b"\r\n" in text and not text.startswith(_ELF):
        raise UsageError(
            f"`{word}` has Windows line endings (CRLF), with which no rank would start", hint=repair
        )
    if is_direct and not os.access(path, os.X_OK):
        raise UsageError(f"`{word}` may not be executed", hint=f"`chmod +x {word}`")
    if is_direct and not text.startswith((_ELF, b"#!")):
        raise UsageError(
            f"`{word}` is no program: its first line names no interpreter, such as `#!/usr/bin/env bash`",
            hint=f"add that line, or launch `-- bash {word}`",
        )
    return ""
