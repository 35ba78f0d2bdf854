"""Ask bash whether it can read a batch script: `launch lint` does not parse the shell's language itself."""

import re
from pathlib import Path
from typing import Final

from envbuilder.core.errors import ToolError
from envbuilder.core.findings import Finding
from envbuilder.core.process import Command, Runner
from envbuilder.run.launch.mistakes import LintCode, Mistake
from envbuilder.run.launch.sbatch import Line

_FOR_BASH: Final = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba)?sh(?:\s|$)")
_REFUSED: Final = re.compile(r"^\S+: line (\d+): (?!warning: )(.+)$", re.MULTILINE)
_LEAVES: Final = re.compile(r"^(?:exit|exec)\b", re.MULTILINE)  # what follows it may be no command at all


def check_syntax(path: Path, text: str, runner: Runner) -> tuple[Finding, ...]:
    """Return the line at which `bash -n` rejects the script, if its first line names bash or sh.

    Nothing is found where there is no bash, nor in a script with Windows line endings, of which bash says other things.
    """
    if not _FOR_BASH.match(text) or "\r\n" in text:
        return ()
    patterns = (
        ("-O", "extglob") if "extglob" in text else ()
    )  # it changes how bash reads, and `-n` does not set it
    command = Command(
        argv=("bash", *patterns, "-n", "/dev/stdin"), why="check the syntax of a script", accept=(0, 1, 2),
        merged=True, input=text.encode(),
    )  # fmt: skip
    try:
        found = _REFUSED.search(runner.run(command))
    except ToolError:
        return ()
    if found is None:
        return ()
    lines = text.splitlines(keepends=True)
    number, words = (
        min(int(found[1]), len(lines)),
        found[2],
    )  # of what does not end, bash names the line after the last
    before = "".join(lines[: number - 1])
    return (
        Mistake(
            LintCode.SYNTAX, Line(number=number, text=""), f"bash stops at this line: {words}",
            f"`bash {' '.join((*patterns, '-n'))} {path}` checks it again", is_sure=not _LEAVES.search(before),
        ).finding(path),
    )  # fmt: skip
