"""What an sbatch script says, for `launch lint`: its options, its commands, and the steps that start ranks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

_LONG: Final = {
    "-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-t": "--time",
    "--tasks-per-node": "--ntasks-per-node",
}  # fmt: skip
_OPTION: Final = re.compile(r"\s(--[A-Za-z-]+|-[A-Za-z])(?:[=\s]?\s*([^\s=-]\S*))?")
_SRUN: Final = re.compile(r"(?:^|[\s;&|(])srun\s")
# torchrun, or the step that starts it, on one node.
ONE_NODE: Final = r"--standalone\b|(?<!\$\()srun\s(?:.*\s)?(?:-N ?|--nodes[= ])1\s"
TORCHRUN: Final = r"\btorchrun\b|torch\.distributed\.(?:run|launch)\b"
ACCELERATE: Final = r"\baccelerate\s+launch\b|\baccelerate\.commands\.launch\b"
# The command, and no option, package or strategy of that name.
DEEPSPEED: Final = r"(?<![\w=-])(?<!strategy )(?<!backend )(?<!install )deepspeed\s"
LAUNCHER: Final = rf"{TORCHRUN}|{ACCELERATE}|{DEEPSPEED}"
# A program of Python as the command itself, in a container or not.
PYTHON: Final = (
    r"^\s*(?:[A-Za-z_]\w*=\S*\s+|(?:exec|time|env)\s+)*(?:(?:apptainer|singularity)\s.*?\s)?(?:\S*/)?python[\d.]*\s+"
    r"(?:-[uBOEsI]+\s+)*(?:(?:\S*/)?[\w.-]+\.py\b|-m\s+(?!venv\b|pip\b|build\b)\w)"
)
MPI: Final = r"(?:^|[\s;&|(])(?:\S*/)?(mpirun|mpiexec(?:\.hydra)?|orterun|ibrun)\s"
RAY: Final = r"\bray\s+(?:start|symmetric-run|job\s+submit)\b"
FOREIGN: Final = r"(?:^|[\s;&|(])(horovodrun|colossalai|composer|jsrun|aprun)\s"
C10D: Final = r"--rdzv[-_]backend[= ]\S*c10d"
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
# A step up to the end of its command in the batch script, and what ends it.
_STEP: Final = re.compile(
    r"""(?:^|[\s;&|(])srun\s((?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|(?<=>)&|&(?=>)|[^;&|"'\\])*)(&&|\|\||[;&|]|$)"""
)
_RAY_START: Final = re.compile(r"\bray\s+start\s((?:[^;&|]|(?<=>)&|&(?=>))*)(.*)")
_RAY_VALUE: Final = r"--[\w-]*(?:address|port|cpus|gpus|host|dir|memory|password|name|resources|labels)"
_NOTHING: Final = r"(?:[\s;)}]|done\b|fi\b|esac\b)*"
_IN_DAEMON: Final = r"\b(?:docker|podman)\b|\binstance://"
QUOTED: Final = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""")
# Only as a word of its own: `sbatch` is also in the name of a file.
_AS_COMMAND: Final = r"p?ssh|pdsh|dsh|clush|parallel|parallel-ssh|sbatch"
OVER_NODES: Final = rf"srun|ibrun|jsrun|aprun|mpirun|mpiexec|orterun|(?:^|[\s;&|(\"'/])(?:{_AS_COMMAND})\s"
ONE_WANTED: Final = r"--(?:nnodes|num[-_]machines)[= ]1(?:\s|$)"
_OF_EACH_NODE: Final = rf"{TORCHRUN}|(?:{ACCELERATE}).*\s--num[-_]machines"
# What may name the other nodes to a launcher, from where lint cannot read them.
TOLD_ELSEWHERE: Final = {
    ACCELERATE: r"--config[-_]file|ACCELERATE_|accelerate config",
    DEEPSPEED: r"--hostfile|--launcher|-H\s|DLTS_HOSTFILE",
}
_WITH_PROGRAM: Final = r".*(?:\.py\b|--module\s)"  # `module load deepspeed` starts nothing
_NOT_OVER_NODES: Final = rf"^\s*(?:echo|printf|which|command|type)\s|{ONE_WANTED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    number: int
    text: str  # with its continuation lines
    file: Path | None = None  # that the script sources
    here: str = ""  # what `sbatch` reads

    @property
    def place(self) -> tuple[Path | None, int]:
        return self.file, self.number

    @property
    def is_open(self) -> bool:
        """Whether words of the command come from an array or from arguments that the script does not say."""
        return re.search(r"\$\{\w+\[[@*]\]\}|\$@|\$\*", self.text) is not None

    @property
    def unexpanded(self) -> str:
        """Return the text without what the batch shell itself runs: `$(…)` outside single quotes."""
        parts = re.split(r"('[^']*')", self.text)
        return "".join(
            part if part.startswith("'") else re.sub(r"(?<!\\)\$\([^()]*\)", "", part) for part in parts
        )

    @property
    def expanded(self) -> str:
        """Return the text without its single-quoted parts, where the shell expands nothing."""
        return QUOTED.sub(lambda quoted: "" if quoted[0].startswith("'") else quoted[0], self.text)


@dataclass(frozen=True, kw_only=True)
class Script:
    path: Path
    lines: tuple[Line, ...]  # without comments and empty ones
    unknown: tuple[Line, ...] = ()  # what is sourced or called and cannot be read
    has_jobs: bool = False  # that it submits

    @cached_property
    def _given(self) -> dict[str, tuple[Line, str]]:
        return {
            _LONG.get(option[1], option[1]): (line, option[2] or "")
            for line in self.lines
            if line.text.startswith("#SBATCH")
            for option in _OPTION.finditer(re.split(r"\s#", line.text)[0])
        }

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

    def may_set(self, pattern: str) -> Line | None:
        """Return the first command that contains the pattern, or may do it in a file that cannot be read."""
        return self.find(pattern) or next(iter(self.unknown), None)

    def value(self, option: str) -> str:
        return self._values.get(option, "")

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
    def tasks_of_node(self) -> int:
        return _on_node(self._values, {})

    def step_tasks(self, line: Line, *, of_node: bool) -> int:
        """Return how many tasks the srun of a command starts, on a node or in all; 0 where nothing says it."""
        step = srun_values(line.text)
        on_node = _on_node(self._values, step)
        if of_node:
            return on_node
        nodes = _count(step.get("--nodes") or self.value("--nodes"))
        return _count(step.get("--ntasks", "")) or max(
            _count(self.value("--ntasks")), on_node * max(nodes, 1)
        )

    @property
    def gpus(self) -> int:
        """Return how many GPUs of a node the `#SBATCH` lines ask for."""
        options = ["--gpus-per-node", "--gres", *(() if self.many_nodes else ("--gpus",))]
        asked = (re.search(r"(?:^|gpu:(?:[\w.-]+:)?|:)(\d+)(?:$|[,(])", self.value(name)) for name in options)
        return max((int(count[1]) for count in asked if count), default=0)

    def is_open(self, line: Line) -> bool:
        """Whether options before the program come from arguments, an array or a variable that the script does not say."""
        head = replace(line, text=re.split(r"\.py\b|\s-m\s+(?!torch\.distributed)", line.text)[0])
        words = head.text.split()
        for before, word in zip(["", *words], words, strict=False):
            name = re.fullmatch(r"[\"']?\$\{?(\w+)\}?[\"']?", word)
            if name and not before.startswith("-") and self.find(rf"\b{name[1]}=") is None:
                return True
        return head.is_open

    @property
    def _values(self) -> dict[str, str]:
        return {name: value for name, (_, value) in self._given.items()}

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
        """Return the launchers that run on the first node only, because nothing starts them on the others."""
        if not self.many_nodes or self.find(ONE_NODE) or self.reaches:
            return ()
        return tuple(
            line
            for line in self.commands
            if not re.search(_NOT_OVER_NODES, line.text)
            and (re.search(_OF_EACH_NODE, line.text) or self._knows_no_other(line))
        )

    def _knows_no_other(self, line: Line) -> bool:
        """Whether accelerate or deepspeed is started here, and nothing in the script may name other nodes to it."""
        return not self.is_open(line) and any(
            re.search(launcher + (_WITH_PROGRAM if launcher == DEEPSPEED else ""), line.text)
            and self.may_set(tells) is None
            for launcher, tells in TOLD_ELSEWHERE.items()
        )


def srun_values(text: str) -> dict[str, str]:
    """Return the options of every `srun` in a command with their values, without those of the program that it starts."""
    values: dict[str, str] = {}
    for begin in _SRUN.finditer(text):
        words = iter(text[begin.end() :].split())
        for word in words:
            if not word.startswith("-"):
                break
            name, equals, value = word.partition("=")
            is_short = not name.startswith("--")
            takes_next = len(word) == 2 and word not in _SRUN_FLAGS if is_short else name not in _SRUN_FLAGS
            if takes_next and not equals:
                value = next(words, "")
            elif is_short:
                name, value = name[:2], name[2:] + equals + value
            values[_LONG.get(name, name)] = value.strip("\"'")
    return values


def ray_starts(line: Line) -> Iterator[tuple[bool, bool]]:
    """Yield each `ray start` that is the command of a step, or in the text that its shell runs.

    Of each, whether its step ends at once, and whether it is left in the background at the end of its line. What Docker or
    a running instance of Apptainer starts is left out, because it outlives the step.
    """
    for step in _STEP.finditer(line.text):
        call = _RAY_START.search(f"{step[1]} ")
        if call is None or re.search(_IN_DAEMON, step[1]):
            continue
        blocks = re.search(r"--block(?!=[Ff])", call[1])
        may_block = any(  # by an option that the script does not say
            re.match(r"[\"']?\$", word) and not re.fullmatch(_RAY_VALUE, before)
            for before, word in pairwise(("", *call[1].split()))
        )
        goes_on = re.search(r"\w", call[2])  # with more commands
        is_left = step[2] == "&" and re.fullmatch(_NOTHING, line.text[step.end() :]) is not None
        yield not (blocks or may_block or goes_on), is_left


def _count(value: str) -> int:
    number = re.match(r"\d+", value)
    return int(number[0]) if number else 0


def _on_node(job: dict[str, str], step: dict[str, str]) -> int:
    """Return the tasks of a step on a node, from its own options and those of the job."""
    if "--ntasks-per-node" in step:
        return _count(step["--ntasks-per-node"])
    nodes = max(_count(step.get("--nodes", "")) or _count(job.get("--nodes", "")), 1)
    if "--ntasks" in step:
        return -(-_count(step["--ntasks"]) // nodes)
    return _count(job.get("--ntasks-per-node", "")) or -(-_count(job.get("--ntasks", "")) // nodes)


def _reaches(line: Line) -> bool:
    """Return whether the command starts something on other nodes. `$(…)` only reads names and addresses."""
    return re.search(OVER_NODES, re.sub(r"\$\([^()]*\)", "", line.text)) is not None


def _starts_ranks(script: Script, line: Line) -> bool:
    inner = re.search(r"\$\{?(\w+)\}?\"?\s*$", line.text)
    named = script.find(rf"^\s*(?:export\s+)?{inner[1]}=.*(?:python|torchrun)") if inner else None
    return bool(re.search(rf"python|{LAUNCHER}", line.text)) or named is not None
