"""Ask bash whether it can read a batch script: `launch lint` does not parse the shell's language itself."""

import re
import shlex
from pathlib import Path
from typing import Final

from envbuilder.core.errors import ToolError
from envbuilder.core.findings import Finding
from envbuilder.core.process import Command, Runner
from envbuilder.run.launch.mistakes import LintCode, Mistake
from envbuilder.run.launch.sbatch import Line

_FOR_BASH: Final = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba)?sh(?:\s|$)")
_REFUSED: Final = re.compile(r"^\S+: line (\d+): (?!warning: )(.+)$", re.MULTILINE)
# Bash may never read what follows it. `exec >log` only redirects.
_LEAVES: Final = re.compile(r"exit\b|exec\s+[A-Za-z/$\"]")


def check_syntax(path: Path, text: str, runner: Runner) -> tuple[Finding, ...]:
    """Return the line at which `bash -n` rejects the script, if its first line names bash or sh.

    Nothing is found where there is no bash, nor in a script with Windows line endings, of which bash says other things.
    """
    if not _FOR_BASH.match(text) or "\r\n" in text:
        return ()
    # It changes how bash reads, and with `-n` bash does not run the line that sets it.
    bash = ("bash", *(("-O", "extglob") if "extglob" in text else ()), "-n")
    command = Command(
        argv=(*bash, "/dev/stdin"), why="check the syntax of a script", accept=(0, 1, 2), merged=True,
        input=text.encode(),
    )  # fmt: skip
    try:
        found = _REFUSED.search(runner.run(command))
    except ToolError:
        return ()
    if found is None:
        return ()
    lines = text.rstrip("\n").split("\n")
    number = min(int(found[1]), len(lines))  # of what never ends, bash names the line after the last
    is_read = not any(map(_LEAVES.match, lines[: number - 1]))
    line, hint = Line(number=number, text=""), f"`{shlex.join((*bash, str(path)))}` checks it again"
    mistake = Mistake(LintCode.SYNTAX, line, f"bash stops at this line: {found[2]}", hint, is_sure=is_read)
    return (mistake.finding(path),)
