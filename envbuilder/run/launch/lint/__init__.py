"""Check sbatch scripts for mistakes that hang jobs, hide GPUs or let each node train alone.

Each rule reads the lines of one script, `#SBATCH` lines included. The rules come from failures that
projects reported. A rule reports nothing if any line shows that the script avoids its mistake. An error is certain.
Where the site, Slurm's version or the program decides, the finding is a warning.
"""

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envbuilder.core.errors import ToolError, UsageError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.places import Mistakes, load_text
from envbuilder.core.process import Command, Runner
from envbuilder.node.nccl.decide import NEVER
from envbuilder.run.launch.lint.batch_script import (
    ACCELERATE,
    C10D,
    DEEPSPEED,
    FOREIGN,
    LAUNCHER,
    MPI,
    ONE_NODE,
    ONE_WANTED,
    PYTHON,
    RAY,
    TOLD_ELSEWHERE,
    TORCHRUN,
    Line,
    Script,
    ray_starts,
    srun_values,
)
from envbuilder.run.launch.lint.mistakes import ADDRESS, ON_EACH_NODE, PORT, LintCode, ScriptMistake
from envbuilder.run.launch.lint.reader import read_jobs

_CONTAINER: Final = r"(?:apptainer|singularity)\s+(?:\S+\s+)*?(?:exec|run)\s"
_AMD: Final = r"(?i:rocm|miopen|hip_visible|rocr_visible|\blumi\b|/appl/local/)"  # --rocm adds nothing where /dev is bound
_SHORT: Final = r"\s(?:exec|run)\s+(?:-\S+\s+)*"  # before a short option of Apptainer, not of the program
_ITSELF: Final = r"--(?:rdzv[-_]endpoint|master[-_]addr)(?:=|\s+)[\"']?(?:localhost\b|127\.)"
_ITSELF_FIRST: Final = "every node waits for the others on itself: the job hangs, or each node trains alone"
_COUNTED: Final = r"--(?:nproc[-_]per[-_]node|num[-_]gpus|num[-_]processes)[= ](\d+)\b"
_NO_WAIT: Final = r"\s*(?:done|fi|esac|[)}]|echo\b|printf\b)[^|&]*$"  # takes no time
_NODE_RANK: Final = r"--(?:node|machine)[-_]rank(?:=|\s+)[\"']?\$\{?SLURM_(?:NODEID|PROCID)\b"
_RENDEZVOUS: Final = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"

_FOR_BASH: Final = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba)?sh(?:\s|$)")
_REFUSED: Final = re.compile(r"^\S+: line (\d+): (?!warning: )(.+)$", re.MULTILINE)
# Bash may never read what follows it. `exec >log` only redirects.
_LEAVES: Final = re.compile(r"exit\b|exec\s+[A-Za-z/$\"]")


# Each is a mistake in every script.
_ALWAYS: Final = {
    # With `srun -w NODE` it is the address that the first node itself knows.
    LintCode.MASTER_NODE_IP: (
        r"SLURM_LAUNCH_NODE_IPADDR|^(?!.*srun\s[^;|]*(?:-w|--nodelist)).*hostname\s+(?:--ip-address|-i)\b"
    ),
    LintCode.PORT_FIXED: r"(?:MASTER_PORT=|--master[-_]port[= ]|--rdzv[-_]endpoint(?:=|\s+)\S*:)[\"']?\d{4,5}\b",
}


Rule = Callable[[Script], Iterator[ScriptMistake]]


def _always(script: Script) -> Iterator[ScriptMistake]:
    for code, pattern in _ALWAYS.items():
        if line := script.find(pattern):
            yield ScriptMistake(code, line)


def _gpus_per_task(script: Script) -> Iterator[ScriptMistake]:
    bound = script.value("--gpu-bind")
    if "none" in bound or script.find(rf"--gpu-bind=none|{RAY}"):
        return
    torchrun = script.find(TORCHRUN)
    gpus = re.search(r"(\d+)$", script.value("--gpus-per-task"))
    ranks = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", torchrun.text) if torchrun else None
    if gpus and ranks and int(ranks[1]) > int(gpus[1]):
        line, repair = script.options["--gpus-per-task"], f"--gpus-per-node={ranks[1]}"
        message = f"the task of each node sees {gpus[1]} GPUs, and torchrun starts {ranks[1]} ranks there"
        yield ScriptMistake(LintCode.GPUS_PER_TASK, line, message, repair)
    elif script.tasks_of_node > 1:
        each = script.options.get("--gpus-per-task"), script.find(r"--gpus-per-task")
        places = (*each, script.find(r"--gpu-bind=(?:per_task|single)"), script.options.get("--gpu-bind"))
        for line in dict.fromkeys(line for line in places if line):
            yield ScriptMistake(LintCode.GPUS_PER_TASK, line, is_sure=False)


def _gpus_hidden(script: Script) -> Iterator[ScriptMistake]:
    """CUDA_VISIBLE_DEVICES is set once, to fewer GPUs than are asked for."""
    pattern = r"\bCUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)(?![\w,$-])"
    named = [(line, match[1]) for line in script.commands for match in re.finditer(pattern, line.text)]
    if len({devices for _, devices in named}) != 1 or script.find(r"unset\s+CUDA_VISIBLE|-u\s+CUDA_VISIBLE"):
        return
    (line, devices), *_ = named
    wanted = script.gpus
    for command in script.commands:
        for ranks in re.finditer(_COUNTED, command.text):
            if "processes" not in ranks[0] or not script.many_nodes:
                wanted = max(wanted, int(ranks[1]))
    count = len(devices.split(","))
    if count < wanted:
        message = f"CUDA_VISIBLE_DEVICES={devices} shows {count} GPU{'s'[: count - 1]} of the {wanted} that are asked for"
        repair = "leave it out: Slurm sets it to the GPUs of the job"
        yield ScriptMistake(LintCode.GPUS_HIDDEN, line, message, repair)


def _master(script: Script) -> Iterator[ScriptMistake]:
    fixed = script.find(r"MASTER_ADDR=[\"']?(?:localhost|127\.)")
    if fixed and script.many_nodes and script.find(r"MASTER_ADDR=(?![\"']?(?:localhost|127\.))") is None:
        yield ScriptMistake(
            LintCode.MASTER_GUESSED, fixed, _ITSELF_FIRST, f"{ADDRESS}, outside the container"
        )
    if guessed := script.find(r"\|\|\s*echo\s+[\"']?(?:localhost|127\.)"):
        yield ScriptMistake(LintCode.MASTER_GUESSED, guessed, is_sure=False)
    inside = rf"{_CONTAINER}.*\bscontrol\b"
    if line := next((command for command in script.commands if re.search(inside, command.unexpanded)), None):
        yield ScriptMistake(LintCode.MASTER_INSIDE, line)
    itself = script.find(_ITSELF)
    if itself and script.many_nodes and script.find(rf"{ONE_NODE}|{ONE_WANTED}") is None:
        endpoint = re.search(r"endpoint", itself.text) or script.find(C10D)  # which reads no other address
        instead = "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT" if endpoint else "--master-addr=$MASTER_ADDR"
        repair = _with_exports(script, f"replace it by {instead}")
        yield ScriptMistake(LintCode.MASTER_GUESSED, itself, _ITSELF_FIRST, repair)


def _cpus(script: Script) -> Iterator[ScriptMistake]:
    line = script.options.get("--cpus-per-task")
    passed_on = script.may_set(r"SRUN_CPUS_PER_TASK") or next(
        (command for command in script.commands if "--cpus-per-task" in srun_values(command.text)), None
    )
    if line and script.value("--cpus-per-task") != "1" and script.steps and passed_on is None:
        yield ScriptMistake(LintCode.CPUS_NOT_INHERITED, line)


def _ends(script: Script) -> Iterator[ScriptMistake]:
    for line in script.steps:
        if (
            line not in script.left_alone
            and not line.is_open
            and script.step_tasks(line, of_node=False) != 1  # a single task has no others
            and not {"-K", "--kill-on-bad-exit"} & srun_values(line.text).keys()
            and script.may_set(r"SLURM_KILL_BAD_EXIT") is None
        ):
            yield ScriptMistake(LintCode.KEEPS_RUNNING, line)
    if script.steps and "--signal" not in script.options and script.find(r"scancel\s.*signal") is None:
        yield ScriptMistake(LintCode.NO_SIGNAL, script.steps[0])


def _launcher(script: Script) -> Iterator[ScriptMistake]:
    c10d, node_rank = script.find(C10D), script.find(r"--node[-_]rank")
    torchrun = script.find(TORCHRUN)
    if c10d and node_rank:
        yield ScriptMistake(LintCode.NODE_RANK_UNUSED, node_rank)
    unmet = list(_meeting(script, torchrun, c10d, node_rank)) if torchrun else []
    for line in script.left_alone:
        yield _first_alone(line, unmet)
    if torchrun not in script.left_alone:
        yield from unmet
    yield from _apart(script)
    for line in script.steps:
        yield from _each_starts(script, line)


# What tells these launchers of the other nodes. A default of the user's home may say it, too.
_APART: Final = {
    "accelerate": (
        ACCELERATE,
        rf"--num[-_]machines|{TOLD_ELSEWHERE[ACCELERATE]}",
        "--num_machines $SLURM_NNODES --rdzv_backend c10d --main_process_ip $MASTER_ADDR",
    ),
    "deepspeed": (
        DEEPSPEED,
        rf"--no[-_]ssh|{TOLD_ELSEWHERE[DEEPSPEED]}",
        "--no_ssh --hostfile FILE --node_rank $SLURM_NODEID, expanded on each node",
    ),
}


def _first_alone(line: Line, unmet: Sequence[ScriptMistake]) -> ScriptMistake:
    """Return the one mistake of a launcher without srun. Its repair also has what the launcher itself lacks."""
    is_torchrun = re.search(TORCHRUN, line.text) is not None
    lacks = [mistake.repair for mistake in unmet] if is_torchrun else [
        repair for launcher, tells, repair in _APART.values()
        if re.search(launcher, line.text) and not re.search(tells, line.text)
    ]  # fmt: skip
    if not lacks:
        return ScriptMistake(LintCode.FIRST_NODE_ALONE, line)
    waits = re.search(r"--nnodes|--num[-_]machines|--no[-_]ssh", line.text)
    end = "waits there for the others forever" if waits else "trains there, while the other nodes do nothing"
    message = f"without srun this starts on the first node alone, and {end}"
    repair = f"{ON_EACH_NODE} in front of it, and {', '.join(lacks)}"
    return ScriptMistake(LintCode.FIRST_NODE_ALONE, line, message, repair, is_sure=is_torchrun)


def _apart(script: Script) -> Iterator[ScriptMistake]:
    """Check that accelerate and deepspeed know the other nodes."""
    for name, (launcher, tells, repair) in _APART.items():
        for line in script.steps:
            begun = re.search(rf"srun\s.*?(?:{launcher})", line.text)
            if not begun or not script.many_nodes or re.search(ONE_NODE, line.text) or script.is_open(line):
                continue
            if script.may_set(tells) is None:
                message = f"srun starts {name} on each node, and it knows nothing of the other nodes: each trains apart"
                yield ScriptMistake(LintCode.NNODES_MISSING, line, message, repair, is_sure=False)


def _each_starts(script: Script, line: Line) -> Iterator[ScriptMistake]:
    """Check that a step has one launcher on a node, and one `mpirun` in all."""
    one_rank = r"--(?:nproc[-_]per[-_]node|num[-_]processes)[= ]1\b"
    launcher = re.search(rf"srun(?=\s).*?({TORCHRUN}|{ACCELERATE}|{MPI})", line.text)
    if launcher is None or re.search(one_rank, line.text):
        return
    is_mpi = re.search(MPI, launcher[1]) is not None
    tasks = script.step_tasks(line, of_node=not is_mpi)
    if tasks > 1:
        name = re.sub(r"\s+launch$", "", launcher[1].strip(" ;&|(")).rpartition("/")[2]
        message = f"{tasks} tasks{'' if is_mpi else ' on a node'} each start a {name}, which starts ranks of its own"
        place = script.options.get("--ntasks-per-node", line)
        repair = f"#SBATCH --ntasks-per-node=1 with {name}; or python without it"
        if is_mpi:
            place, repair = line, f"{name} without srun in front of it; or srun and python without {name}"
        yield ScriptMistake(LintCode.TASKS_AND_TORCHRUN, place, message, repair)


def _program(script: Script) -> Iterator[ScriptMistake]:
    """Check that lint knows what starts the program, and that several tasks start it with srun."""
    python, foreign = script.find(PYTHON), script.find(FOREIGN)
    if script.find(rf"{LAUNCHER}|{MPI}|{RAY}") or script.has_jobs or not script.commands:
        return
    has_step = script.find(r"\bsrun\b") and script.find(r"\bpython")
    if foreign or not (python or has_step):
        line = foreign or script.find(r"\.py\b|\bsrun\s") or script.commands[-1]
        named = re.search(FOREIGN, foreign.text) if foreign else None
        unknown = "it is not known what starts the ranks here"
        what = f"`{named[1]}` is a launcher that lint does not know" if named else unknown
        repair = "lint knows srun, torchrun, accelerate, deepspeed, mpirun and Ray, where they start a program of Python"
        message = f"{what}, so only the rules about options and settings were applied"
        yield ScriptMistake(LintCode.UNKNOWN_LAUNCHER, line, message, repair)
    elif python and script.tasks and not script.reaches:
        message = f"the job asks for several tasks ({script.tasks}), and without srun this is one process on the first node"
        repair = "srun --kill-on-bad-exit=1 in front of it, or torchrun with one task on each node"
        yield ScriptMistake(LintCode.ONE_PROCESS, python, message, repair)


def _ray(script: Script) -> Iterator[ScriptMistake]:
    """Check that each `ray start` outlives its step, and that the script outlives what it starts in the background.

    https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html has `--block &` and then the program.
    """
    for line in script.commands:
        if any(ends for ends, _ in ray_starts(line)):
            message = "`ray start` returns at once without `--block`: its step ends, and Slurm kills Ray"
            repair = "srun … ray start … --block &"
            # Slurm's ProctrackType decides.
            yield ScriptMistake(LintCode.RAY_ENDS, line, message, repair, is_sure=False)
    worked = [line for line in script.commands if not re.match(_NO_WAIT, line.text)]
    # A script without options is one that a job calls.
    if not worked or not script.options or script.may_set(r"\btrap\s.*\bwait\b"):
        return
    if any(is_left for _, is_left in ray_starts(worked[-1])):
        message = "the script ends while Ray runs in the background, and the job ends with it"
        repair = "end the script with the program that uses Ray, or with `wait`"
        yield ScriptMistake(LintCode.RAY_ENDS, worked[-1], message, repair)


def _with_exports(script: Script, options: str) -> str:
    """Return these options, and the variables they need that the script does not set."""
    needed = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": PORT}
    unset = [setting for name, setting in needed.items() if script.find(rf"\b{name}=") is None]
    return f"{options}, before it: export {' '.join(unset)}" if unset else options


def _meeting(
    script: Script, torchrun: Line, c10d: Line | None, node_rank: Line | None
) -> Iterator[ScriptMistake]:
    """Check that torchrun has a rendezvous on several nodes. Each suggested repair is complete."""
    if not script.many_nodes or script.find(ONE_NODE) or script.is_open(torchrun):
        return
    meets = node_rank or script.find(r"--rdzv[-_]|PET_RDZV_")
    repair = "" if meets else _with_exports(script, _RENDEZVOUS)
    code = LintCode.NODE_RANK_MISSING
    message = "without a rendezvous or `--node-rank` every node is node 0, and the ranks wait for ever"
    if script.find(r"--nnodes|PET_NNODES") is None:
        code, repair = LintCode.NNODES_MISSING, f"--nnodes=$SLURM_NNODES {repair}".rstrip()
        message = "without `--nnodes` torchrun expects one node, and each node trains apart in silence"
    if repair:
        yield ScriptMistake(code, torchrun, message, repair, is_sure=not script.unknown)
    if c10d and script.find(rf"--rdzv[-_]endpoint|PET_RDZV_ENDPOINT|{_ITSELF}") is None:
        message = "c10d without an endpoint meets on the node itself: every node waits for the others forever"
        repair = _with_exports(script, "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT")
        yield ScriptMistake(LintCode.NO_ENDPOINT, c10d, message, repair, is_sure=not script.unknown)


def _container(script: Script) -> Iterator[ScriptMistake]:
    for line in script.commands:
        if not re.search(_CONTAINER, line.text):
            continue
        cleans = re.search(rf"--cleanenv|{_SHORT}-e\s", line.text)
        passes = script.may_set(r"(?:APPTAINER|SINGULARITY)ENV_|--env")
        if cleans and script.tasks and re.search(rf"\bsrun\s|{MPI}", line.text) and passes is None:
            yield ScriptMistake(LintCode.CLEAN_ENVIRONMENT, line)
        asks = any("gpu" in option.text for option in script.options.values())
        gives = script.may_set(rf"(?:APPTAINER|SINGULARITY)_(?:NV|ROCM)|{_AMD}")
        if asks and not line.is_open and not re.search(r"--nv|--rocm", line.text) and gives is None:
            yield ScriptMistake(LintCode.NO_NV, line)
        if script.may_set(r"PYTHONNOUSERSITE|--no-home|--contain") is None:
            yield ScriptMistake(LintCode.OWN_PYTHON, line)
        if re.search(rf"--contain\b|--containall|{_SHORT}-[cC]\s", line.text) and "dev/shm" not in line.text:
            yield ScriptMistake(LintCode.PRIVATE_SHM, line)
    closed = script.find(r"srun\s.*--export=(?:NONE|NIL)")
    passes = script.may_set(r"SLURM_EXPORT_ENV|srun\s.*--export=ALL")
    if (closed or "NONE" in script.value("--export")) and script.find(r"\bexport\s") and passes is None:
        place = script.options.get("--export") or closed
        message = "with `--export=NONE` the steps do not get what this script exports, MASTER_ADDR among it"
        repair = "leave it out, or give srun `--export=ALL`"
        yield ScriptMistake(LintCode.CLEAN_ENVIRONMENT, place, message, repair)


def _ranks(script: Script) -> Iterator[ScriptMistake]:
    early = script.find(r"^\s*(?:export\s+)?(?:RANK|LOCAL_RANK)=[\"']?\$\{?SLURM_(?:PROCID|LOCALID)")
    anew = rf"{LAUNCHER}|[\s'\"]RANK="  # a launcher or the task itself sets it anew
    if early and any(not re.search(anew, line.text) for line in script.steps):
        yield ScriptMistake(LintCode.RANK_TOO_EARLY, early)
    if not script.many_nodes or script.find(C10D):
        return
    same = next((line for line in script.steps if re.search(_NODE_RANK, line.expanded)), None)
    if same is None and script.steps:
        same = script.find(r"^\s*(?:export\s+)?(?:NODE|MACHINE)_RANK=[\"']?\$\{?SLURM_(?:NODEID|PROCID)\b")
    if same:
        message = "the batch shell expands it to 0 before srun starts: every node is node 0, and the ranks wait forever"
        torchrun = re.search(TORCHRUN, same.text)
        quoted = "let each node expand it: srun … bash -c 'accelerate launch --machine_rank=$SLURM_NODEID …'"
        repair = _with_exports(script, f"replace it by {_RENDEZVOUS}") if torchrun else quoted
        if re.search(DEEPSPEED, same.text):
            repair = repair.replace("accelerate launch --machine_rank", "deepspeed --node_rank")
        yield ScriptMistake(LintCode.RANK_TOO_EARLY, same, message, repair)


def _settings(script: Script) -> Iterator[ScriptMistake]:
    p2p = ("NCCL_P2P_DISABLE", "GPUs with NVLink would talk through the memory of the host")
    for name, why in (*NEVER, p2p):
        if line := script.find(rf"\b{name}=[\"']?1\b"):
            message = f"`{name}` is forced for every host: {why}"
            repair = "remove it: envbuilder decides it for each host, as `envbuilder detect` explains"
            yield ScriptMistake(LintCode.NCCL_FORCED, line, message, repair)


def _files(script: Script) -> Iterator[ScriptMistake]:
    if not script.commands:
        yield ScriptMistake(LintCode.NO_SCRIPT, Line(number=1, text=""))
    if windows := next((line for line in script.lines if line.text.endswith("\r")), None):
        yield ScriptMistake(LintCode.CRLF, windows)
        return
    commands = (at for at, line in enumerate(script.lines) if not line.text.startswith("#"))
    first = next(commands, len(script.lines))
    for line in script.lines[first:]:
        if line.text.startswith("#"):
            message = "Slurm stops reading options at the first command"
            repair = f"put it above line {script.lines[first].number}"
            yield ScriptMistake(LintCode.SBATCH_TOO_LATE, line, message, repair)
    caches = r"TRITON_CACHE_DIR|TORCH_EXTENSIONS_DIR|XDG_CACHE_HOME|TORCHINDUCTOR_CACHE_DIR"
    if script.steps and script.many_nodes and script.may_set(caches) is None:
        yield ScriptMistake(LintCode.CACHES_AT_HOME, script.steps[0])


def _unknown(script: Script) -> Iterator[ScriptMistake]:
    for line in script.unknown:
        message = f"{line.text}: what it may set is not reported as missing, and what it starts is not judged"
        repair = "run lint beside the file, or give it to lint as well"
        yield ScriptMistake(LintCode.NOT_FOLLOWED, line, message, repair)


RULES: Final[tuple[Rule, ...]] = (
    _files, _unknown, _program, _gpus_per_task, _gpus_hidden, _always, _master, _cpus, _ends, _launcher, _container,
    _ranks, _ray, _settings,
)  # fmt: skip


def lint(path: Path, text: str, read: Callable[[Path], str | None] = lambda _: None) -> tuple[Finding, ...]:
    """Return the mistakes of one script and of the jobs that it submits, errors first, in the order of its lines.

    `read` returns the text of a file that the script sources, or None.
    """
    if re.match(r"#!.*\bpython", text) or (path.suffix == ".py" and not text.startswith("#!")):
        message = "this is a program of Python, and lint reads scripts of a shell"
        repair = "give the file that you hand to `sbatch`"
        return (ScriptMistake(LintCode.NO_SCRIPT, Line(number=1, text=""), message, repair).finding(path),)
    findings: dict[Finding, None] = {}
    for script in read_jobs(path, text, read):
        places = {line.place: at for at, line in enumerate(script.lines)}
        mistakes = [mistake for rule in RULES for mistake in rule(script)]
        mistakes.sort(key=lambda wrong: places.get(wrong.line.place, 0) if wrong.line else 0)
        findings |= dict.fromkeys(mistake.finding(path) for mistake in mistakes)
    return tuple(sorted(findings, key=lambda finding: finding.severity != Severity.ERROR))


def check_syntax(path: Path, text: str, runner: Runner) -> tuple[Finding, ...]:
    """Return the line at which `bash -n` rejects the script, if its first line names bash or sh.

    Nothing is refused where there is no bash, nor in a script with Windows line endings, of which bash says other things.
    """
    if not _FOR_BASH.match(text) or "\r\n" in text:
        return ()
    # It changes how bash reads, and with `-n` bash does not run the line that sets it.
    bash = ("bash", *(("-O", "extglob") if "extglob" in text else ()), "-n")
    command = Command(
        argv=(*bash, "/dev/stdin"), why="check the syntax of a script", accept=(0, 1, 2), merged=True,
        input=text.encode(),
    )  # fmt: skip
    refused = None
    with contextlib.suppress(ToolError):
        refused = _REFUSED.search(runner.run(command))
    if refused is None:
        return ()
    lines = text.rstrip("\n").split("\n")
    number = min(int(refused[1]), len(lines))  # of what never ends, bash names the line after the last
    is_read = not any(map(_LEAVES.match, lines[: number - 1]))
    line, hint = Line(number=number, text=""), f"`{shlex.join((*bash, str(path)))}` checks it again"
    mistake = ScriptMistake(
        LintCode.SYNTAX, line, f"bash stops at this line: {refused[2]}", hint, is_sure=is_read
    )
    return (mistake.finding(path),)


def lint_files(paths: Sequence[Path], runner: Runner) -> tuple[Finding, ...]:
    """Return the mistakes of several scripts, that of the syntax first; raises UsageError for unreadable files."""
    mistakes = Mistakes()
    texts = [(path, load_text(path, mistakes)) for path in paths]
    if mistakes.findings:
        hint = "give the files that you hand to `sbatch`, such as `jobs/*.sbatch`"
        raise UsageError("a script cannot be read", findings=mistakes.findings, hint=hint)
    return tuple(
        finding
        for path, text in texts
        if text is not None
        for finding in (*check_syntax(path, text, runner), *lint(path, text, _sourced))
    )


def _sourced(path: Path) -> str | None:
    try:
        is_file = path.is_file()
    except OSError:  # the name is too long for a file
        return None
    return load_text(path, Mistakes()) if is_file else None
