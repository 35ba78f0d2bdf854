"""Parse an sbatch script for `launch lint`: its options and its commands."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

_LONG: Final = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-t": "--time"}
_OPTION: Final = re.compile(r"\s(--[A-Za-z-]+|-[A-Za-z])(?:[=\s]?\s*([^\s=-]\S*))?")
_SRUN: Final = re.compile(r"(?:^|[\s;&|(])srun\s")
# torchrun, or the step that starts it, on one node.
ONE_NODE: Final = r"--standalone\b|(?<!\$\()srun\s(?:.*\s)?(?:-N ?|--nodes[= ])1\s"
TORCHRUN: Final = r"\btorchrun\b|torch\.distributed\.(?:run|launch)\b"
_ACCELERATE: Final = r"\baccelerate\s+launch\b|\baccelerate\.commands\.launch\b"
LAUNCHER: Final = rf"{TORCHRUN}|{_ACCELERATE}|\bdeepspeed\s"
# A program of Python as the command itself, in a container or not.
PYTHON: Final = (
    r"^\s*(?:[A-Za-z_]\w*=\S*\s+|(?:exec|time|env)\s+)*(?:(?:apptainer|singularity)\s.*?\s)?(?:\S*/)?python[\d.]*\s+"
    r"(?:-[uBOEsI]+\s+)*(?:(?:\S*/)?[\w.-]+\.py\b|-m\s+(?!venv\b|pip\b|build\b)\w)"
)
FOREIGN: Final = (
    r"(?:^|[\s;&|(])(horovodrun|colossalai|composer|mpirun|mpiexec|orterun|ibrun|jsrun|aprun|ray)\s"
)
C10D: Final = r"--rdzv[-_]backend[= ]\S*c10d"
_HERE: Final = re.compile(r"<<-?\s*[\"'\\]?(\w+)")
_SHELL_READS: Final = re.compile(
    r"(?:^|[\s;&|(])(?:bash|sh|zsh|srun|ssh|sbatch)\s[^<>]*<<|(?:^|[\s;&|(])(?:bash|sh|zsh|sbatch)<<"
)
_ARRAY: Final = re.compile(r"\s*(?:declare -a\s+|local\s+|export\s+)?\w+\+?=\(")
_ASSIGNED: Final = re.compile(
    r"""\s*(?:export\s+|local\s+|declare\s+-\w+\s+|readonly\s+)?(\w+)\+?=(?:\(([^)]*)\)|"([^"]*)"|'([^']*)'|(\S+))\s*;?\s*$"""
)
_USED: Final = re.compile(r"""["']?\$(?:\{(\w+)(?:\[[@*]\])?\}|(\w+))["']?""")
_SRUN_FLAGS: Final = frozenset(
    {
        "-K", "-l", "-u", "-v", "-q", "-k", "-s", "-O", "-Q", "-E", "-H", "-W0",
        "--kill-on-bad-exit", "--label", "--unbuffered", "--verbose", "--quiet", "--exact", "--exclusive", "--overlap",
        "--overcommit", "--oversubscribe", "--pty", "--no-kill", "--whole", "--test-only", "--contiguous", "--mpi-combine",
        "--disable-status", "--preserve-env", "--spread-job", "--use-min-nodes", "--wait-all-nodes", "--x11",
        "--container-mount-home", "--no-container-mount-home", "--container-writable", "--container-readonly",
        "--container-remap-root", "--no-container-remap-root", "--container-entrypoint", "--no-container-entrypoint",
    }
)  # fmt: skip
_QUOTED: Final = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""")
_OVER_NODES: Final = r"srun|ibrun|jsrun|aprun|mpirun|mpiexec|orterun|(?:^|[\s;&|(\"'/])(?:p?ssh|pdsh|dsh|clush|parallel|parallel-ssh|sbatch)\s"
ONE_WANTED: Final = r"--(?:nnodes|num[-_]machines)[= ]1(?:\s|$)"
_OF_EACH_NODE: Final = (
    rf"{TORCHRUN}|(?:{_ACCELERATE}).*\s--num[-_]machines"  # deepspeed reaches other nodes itself
)
_NOT_OVER_NODES: Final = rf"^\s*(?:echo|printf|which|command|type)\s|{ONE_WANTED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    number: int
    text: str  # with its continuation lines

    @property
    def is_open(self) -> bool:
        """Whether words of the command come from an array or from arguments that the script does not say."""
        return re.search(r"\$\{\w+\[[@*]\]\}|\$@|\$\*", self.text) is not None

    @property
    def expanded(self) -> str:
        """Return the text without its single-quoted parts, where the shell expands nothing."""
        return _QUOTED.sub(lambda found: "" if found[0].startswith("'") else found[0], self.text)


@dataclass(frozen=True, kw_only=True)
class Script:
    path: Path
    lines: tuple[Line, ...]  # without comments and empty ones

    @cached_property
    def _given(self) -> dict[str, tuple[Line, str]]:
        options = [line for line in self.lines if line.text.startswith("#SBATCH")]
        given = [(line, one) for line in options for one in _OPTION.finditer(re.split(r"\s#", line.text)[0])]
        return {_LONG.get(one[1], one[1]): (line, one[2] or "") for line, one in given}

    @cached_property
    def options(self) -> dict[str, Line]:
        """Return the options of the `#SBATCH` lines, spelled `--name=value`, `-n value` or `-nvalue`."""
        return {name: line for name, (line, _) in self._given.items()}

    @cached_property
    def commands(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if not line.text.startswith("#"))

    def find(self, pattern: str) -> Line | None:
        """Return the first command that contains the pattern."""
        return next((line for line in self.commands if re.search(pattern, line.text)), None)

    def value(self, option: str) -> str:
        """Return the value of an option in the `#SBATCH` lines."""
        return self._given[option][1] if option in self._given else ""

    @property
    def many_nodes(self) -> bool:
        return self.value("--nodes") not in ("", "1", "1-1")

    @property
    def tasks(self) -> str:
        """Return the number of tasks that the `#SBATCH` lines ask for, as "4" or "4 on each node"; "" for one."""
        for option, where in (("--ntasks", ""), ("--ntasks-per-node", " on each node")):
            if self.value(option) not in ("", "1"):
                return self.value(option) + where
        return "one on each node" if self.many_nodes else ""

    @property
    def reaches(self) -> bool:
        """Return whether a command starts something on other nodes."""
        return any(_reaches(line) for line in self.commands)

    @cached_property
    def steps(self) -> tuple[Line, ...]:
        """Return the commands that start ranks, with and without srun."""
        begun = (line for line in self.commands if _SRUN.search(line.text) and _starts_ranks(self, line))
        return (*begun, *self.left_alone)

    @cached_property
    def left_alone(self) -> tuple[Line, ...]:
        """Return the commands of torchrun and accelerate that run on the first node only, because nothing starts them on the others."""
        if not self.many_nodes or self.find(ONE_NODE) or self.reaches:
            return ()
        return tuple(
            line
            for line in self.commands
            if re.search(_OF_EACH_NODE, line.text) and not re.search(_NOT_OVER_NODES, line.text)
        )


def srun_options(text: str) -> set[str]:
    """Return the options of every `srun` in a command, without those of the program that it starts."""
    found: set[str] = set()
    for begin in _SRUN.finditer(text):
        words = iter(text[begin.end() :].split())
        for word in words:
            if not word.startswith("-"):
                break
            name, equals, _ = word.partition("=")
            is_short = not name.startswith("--")
            found.add(name[:2] if is_short else name)
            takes_next = len(word) == 2 and word not in _SRUN_FLAGS if is_short else name not in _SRUN_FLAGS
            if takes_next and not equals:
                next(words, None)
    return found


def script_lines(text: str) -> Iterable[Line]:
    """Return the commands and options of a script, with arrays and commands that it set above in their places.

    A text that goes into a file (`cat > run.py <<EOF`) is no command. What a shell reads (`bash <<EOF`) is.
    """
    values: dict[str, str] = {}
    for line in _whole_lines(text):
        if found := _ASSIGNED.match(line.text):
            value = (found[2] or found[3] or found[4] or found[5] or "").strip()
            if found[2] is not None and found[1] in values and "+=" in line.text:
                values[found[1]] += f" {value}"
                continue
            if re.match(r"-|\S*(?:python|torchrun|srun|accelerate|deepspeed|apptainer|singularity)\b", value):
                values[found[1]] = value
                if found[2] is not None:
                    continue  # an array is a part of the command that uses it
        used = _USED.sub(lambda one: values.get(one[1] or one[2], one[0]), line.text)
        yield Line(number=line.number, text=used)


def _whole_lines(text: str) -> Iterable[Line]:
    """Return the lines of a script, each with its continuations, without comments and the contents of files."""
    number, begun, whole, until, in_array = 0, 0, "", "", False
    for number, raw in enumerate(text.split("\n"), start=1):
        if until:
            until = "" if raw.strip() == until else until
            continue
        begun = begun or number
        if (here := _HERE.search(raw)) and not raw.lstrip().startswith("#") and not _SHELL_READS.search(raw):
            until = here[1]
        in_array = (in_array or _ARRAY.match(raw) is not None) and ")" not in raw
        if in_array:
            whole += re.sub(r"(?:^|\s)#.*", "", raw).rstrip("\r") + " "
            continue
        if raw.rstrip("\r").endswith("\\") and not raw.lstrip().startswith("#"):
            whole += raw.rstrip("\r")[:-1] + " "
            continue
        whole += raw
        if whole.strip() and (not whole.lstrip().startswith("#") or whole.startswith("#SBATCH")):
            yield Line(number=begun, text=whole)
        begun, whole = 0, ""


def _reaches(line: Line) -> bool:
    """Return whether the command starts something on other nodes. `$(…)` only reads names and addresses."""
    return re.search(_OVER_NODES, re.sub(r"\$\([^()]*\)", "", line.text)) is not None


def _starts_ranks(script: Script, line: Line) -> bool:
    inner = re.search(r"\$\{?(\w+)\}?\"?\s*$", line.text)
    named = script.find(rf"^\s*(?:export\s+)?{inner[1]}=.*(?:python|torchrun)") if inner else None
    return bool(re.search(rf"python|{LAUNCHER}", line.text)) or named is not None
