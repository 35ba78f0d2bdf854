"""Check sbatch scripts for mistakes that hang jobs, hide GPUs or split the nodes into separate worlds.

Each rule looks at the lines of one script, `#SBATCH` lines included. The rules come from failures
that projects reported. A rule is silent when any line shows that its mistake was avoided.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.places import Mistakes, load_text
from envbuilder.node.nccl.decide import NEVER
from envbuilder.run.launch.sbatch import C10D, LAUNCHER, ONE_NODE, ONE_WANTED, Line, Script, script_lines


class LintCode(CodeEnum):
    """The mistakes that are found in sbatch scripts."""

    GPUS_PER_TASK = "EB870", "`--gpus-per-task` or `--gpu-bind=single`: ranks cannot reach each other's GPUs"
    MASTER_GUESSED = "EB871", "MASTER_ADDR falls back to localhost, or the nodes are to meet there"
    MASTER_INSIDE = "EB872", "`scontrol` within the container, where it is not"
    MASTER_NODE_IP = "EB873", "MASTER_ADDR from `SLURM_LAUNCH_NODE_IPADDR` or `hostname -i`"
    PORT_FIXED = "EB874", "two jobs on a node want the same one"
    CPUS_NOT_INHERITED = "EB875", "`--cpus-per-task` without `SRUN_CPUS_PER_TASK`"
    KEEPS_RUNNING = "EB876", "no `--kill-on-bad-exit`: the other ranks wait"
    NODE_RANK_UNUSED = "EB877", "`--node-rank` with c10d, where it has no effect"
    NODE_RANK_MISSING = "EB878", "torchrun on several nodes without `--node-rank` and without a rendezvous"
    CLEAN_ENVIRONMENT = "EB879", "`--cleanenv` or `--export=NONE`: ranks cannot meet"
    RANK_TOO_EARLY = "EB880", "RANK or `--node-rank` from Slurm outside the step"
    NO_SIGNAL = "EB881", "no `--signal`: the end comes without warning"
    NO_NV = "EB882", "GPUs in the job, and no `--nv`"
    OWN_PYTHON = "EB883", "packages of `~/.local` shadow the image's"
    TASKS_AND_TORCHRUN = "EB884", "several tasks on a node that each start torchrun"
    CACHES_AT_HOME = "EB885", "compile caches at home, from many nodes"
    CRLF = "EB886", "lines end as on Windows"
    SBATCH_TOO_LATE = "EB887", "`#SBATCH` below the first command"
    PRIVATE_SHM = "EB888", "`--contain`: a /dev/shm for each container"
    NNODES_MISSING = "EB889", "torchrun on several nodes without `--nnodes`: each node trains apart"
    NCCL_FORCED = "EB890", "NCCL_IB_DISABLE and the like for every host, whatever it has"
    FIRST_NODE_ALONE = "EB891", "torchrun without srun: the batch script runs on the first node only"
    NO_SCRIPT = "EB892", "a file without any command"


_CONTAINER: Final = r"(?:apptainer|singularity)\s+(?:\S+\s+)*?(?:exec|run)\s"
_SHORT: Final = r"\s(?:exec|run)\s+(?:-\S+\s+)*"  # before a short option of Apptainer, not of what it runs
_ON_EVERY_NODE: Final = "srun --kill-on-bad-exit=1 --ntasks=$SLURM_NNODES --ntasks-per-node=1"
_ITSELF: Final = r"--(?:rdzv[-_]endpoint|master[-_]addr)(?:=|\s+)[\"']?(?:localhost\b|127\.)"
_NODE_RANK: Final = r"--node[-_]rank(?:=|\s+)[\"']?\$\{?SLURM_(?:NODEID|PROCID)\b"
_ADDRESS: Final = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
_PORT: Final = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
_RENDEZVOUS: Final = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    code: LintCode
    line: Line | None  # None: of the whole script
    message: str
    repair: str
    severity: Severity = Severity.ERROR


Rule = Callable[[Script], Iterator[Fault]]


def _gpus_per_task(script: Script) -> Iterator[Fault]:
    places = (
        script.options.get("--gpus-per-task"),
        script.find(r"--gpus-per-task"),
        script.find(r"--gpu-bind=(?:per_task|single)"),
        None if "none" in script.value("--gpu-bind") else script.options.get("--gpu-bind"),
    )
    for line in {line.number: line for line in places if line}.values():
        yield Fault(
            code=LintCode.GPUS_PER_TASK,
            line=line,
            message="each rank sees its own GPU only, as number 0: NCCL cannot use P2P between them, and `cuda:LOCAL_RANK` fails",
            repair="ask for them by node, `--gpus-per-node=G` or `--gres=gpu:G`, and give srun `--gpu-bind=none`",
        )


def _master(script: Script) -> Iterator[Fault]:
    guess = script.find(r"\|\|\s*echo\s+[\"']?(?:localhost|127\.)")
    fixed = script.find(r"MASTER_ADDR=[\"']?(?:localhost|127\.)")
    for line in filter(None, (guess, fixed if script.many_nodes else None)):
        yield Fault(
            code=LintCode.MASTER_GUESSED,
            line=line,
            message="every node that falls back to localhost is a world of its own, and the job hangs or trains apart in silence",
            repair=f"{_ADDRESS}, outside the container, with `set -e`",
        )
    itself = script.find(_ITSELF)
    if itself and script.many_nodes and script.find(rf"{ONE_NODE}|{ONE_WANTED}") is None:
        endpoint = re.search(r"endpoint", itself.text)
        instead = "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT" if endpoint else "--master-addr=$MASTER_ADDR"
        yield Fault(
            code=LintCode.MASTER_GUESSED,
            line=itself,
            message="every node waits for the others at itself, and the job hangs or trains apart in silence",
            repair=_with_exports(script, f"instead of it {instead}"),
        )
    if inside := script.find(rf"{_CONTAINER}.*scontrol"):
        yield Fault(
            code=LintCode.MASTER_INSIDE,
            line=inside,
            message="`scontrol` is not in the image",
            repair="set MASTER_ADDR before the container starts, and let it pass in",
        )
    if address := script.find(r"SLURM_LAUNCH_NODE_IPADDR|hostname\s+(?:--ip-address|-i)\b"):
        yield Fault(
            code=LintCode.MASTER_NODE_IP,
            line=address,
            message="this can be the login node's address, or 127.0.1.1, where no other node finds rank 0",
            repair='use the first name of `scontrol show hostnames "$SLURM_JOB_NODELIST"`',
        )


def _port(script: Script) -> Iterator[Fault]:
    line = script.find(r"(?:MASTER_PORT=|--master[-_]port[= ]|--rdzv[-_]endpoint\S*:)[\"']?\d{4,5}\b")
    if line:
        yield Fault(
            code=LintCode.PORT_FIXED,
            line=line,
            message="two jobs on one node want the same port, and the second fails or joins the first",
            repair=f"export {_PORT}",
            severity=Severity.WARNING,
        )


def _cpus(script: Script) -> Iterator[Fault]:
    line = script.options.get("--cpus-per-task")
    told = script.find(r"SRUN_CPUS_PER_TASK|srun\s.*(?:--cpus-per-task|-c[ =]?\$?\w)")
    if line and script.steps and told is None:
        yield Fault(
            code=LintCode.CPUS_NOT_INHERITED,
            line=line,
            message="since Slurm 22.05 srun does not take this from the job: each rank may get one core, and loaders starve",
            repair="export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        )


def _ends(script: Script) -> Iterator[Fault]:
    for line in script.steps:
        if (
            line not in script.left_alone
            and not re.search(r"--kill-on-bad-exit|\s-K", line.text)
            and script.find(r"SLURM_KILL_BAD_EXIT") is None
        ):
            yield Fault(
                code=LintCode.KEEPS_RUNNING,
                line=line,
                message="when a rank dies the others wait for it until the time is up",
                repair="srun --kill-on-bad-exit=1 …",
                severity=Severity.WARNING,
            )
    if script.steps and "--signal" not in script.options and script.find(r"scancel\s.*signal") is None:
        yield Fault(
            code=LintCode.NO_SIGNAL,
            line=script.steps[0],
            message="the end of the time comes without warning, and what was not saved is lost",
            repair="#SBATCH --signal=B:TERM@120, and a trap that hands the signal on",
            severity=Severity.WARNING,
        )


def _launcher(script: Script) -> Iterator[Fault]:
    c10d, node_rank = script.find(C10D), script.find(r"--node[-_]rank")
    torchrun = script.find(LAUNCHER)
    if c10d and node_rank:
        yield Fault(
            code=LintCode.NODE_RANK_UNUSED,
            line=node_rank,
            message="`--node-rank` has no effect with the c10d rendezvous",
            repair="leave it out",
            severity=Severity.WARNING,
        )
    for line in script.left_alone:
        yield Fault(
            code=LintCode.FIRST_NODE_ALONE,
            line=line,
            message="without srun this starts on the first node alone, and torchrun waits there for the others for ever",
            repair=f"{_ON_EVERY_NODE} in front of it",
        )
    if torchrun and script.many_nodes and script.find(ONE_NODE) is None:
        yield from _meeting(script, torchrun, meets=node_rank or script.find(r"--rdzv[-_]|PET_RDZV_"))
    tasks = script.value("--ntasks-per-node")
    if (
        torchrun
        and not script.left_alone
        and tasks.isdigit()
        and int(tasks) > 1
        and script.find(r"srun\s.*--ntasks-per-node[= ]1\b") is None
    ):
        yield Fault(
            code=LintCode.TASKS_AND_TORCHRUN,
            line=script.options["--ntasks-per-node"],
            message=f"{tasks} tasks on a node each start a torchrun, which starts ranks of its own",
            repair="#SBATCH --ntasks-per-node=1 with torchrun; or python without it",
        )


def _with_exports(script: Script, options: str) -> str:
    """These options, and what they need that the script does not set."""
    unset = [one for one in (_ADDRESS, _PORT) if script.find(rf"\b{one.partition('=')[0]}=") is None]
    return f"{options}, before it: export {' '.join(unset)}" if unset else options


def _meeting(script: Script, torchrun: Line, *, meets: Line | None) -> Iterator[Fault]:
    """Check that the torchruns of several nodes meet in one world. Each suggested repair is complete."""
    repair = "" if meets else _with_exports(script, _RENDEZVOUS)
    code = LintCode.NODE_RANK_MISSING
    message = "without a rendezvous or `--node-rank` every node is node 0, and the ranks wait for ever"
    if script.find(r"--nnodes|PET_NNODES") is None:
        code, repair = LintCode.NNODES_MISSING, f"--nnodes=$SLURM_NNODES {repair}".rstrip()
        message = "without `--nnodes` torchrun expects one node, and each node trains apart in silence"
    if repair:
        yield Fault(code=code, line=torchrun, message=message, repair=repair)


def _container(script: Script) -> Iterator[Fault]:
    for line in script.commands:
        if not re.search(_CONTAINER, line.text):
            continue
        if (
            re.search(rf"--cleanenv|{_SHORT}-e\s", line.text)
            and script.find(r"(?:APPTAINER|SINGULARITY)ENV_|--env") is None
        ):
            yield Fault(
                code=LintCode.CLEAN_ENVIRONMENT,
                line=line,
                message="`--cleanenv` takes SLURM_*, MASTER_* and NCCL_* away, so that ranks cannot meet",
                repair="leave it out, or hand each in as APPTAINERENV_NAME",
            )
        asks = any("gpu" in one.text for one in script.options.values())
        if (
            asks
            and not re.search(r"--nv|--rocm", line.text)
            and script.find(r"(?:APPTAINER|SINGULARITY)_NV") is None
        ):
            yield Fault(
                code=LintCode.NO_NV,
                line=line,
                message="the job has GPUs, and the container does not get them",
                repair="apptainer exec --nv …",
            )
        if script.find(r"PYTHONNOUSERSITE|--no-home|--contain") is None:
            yield Fault(
                code=LintCode.OWN_PYTHON,
                line=line,
                message="packages in ~/.local shadow those of the image",
                repair="--env PYTHONNOUSERSITE=1",
                severity=Severity.WARNING,
            )
        if re.search(rf"--contain\b|--containall|{_SHORT}-[cC]\s", line.text) and "dev/shm" not in line.text:
            yield Fault(
                code=LintCode.PRIVATE_SHM,
                line=line,
                message="with `--contain` each container has a /dev/shm of its own: NCCL falls back to sockets between ranks of a node",
                repair="--bind /dev/shm, or one container a node",
                severity=Severity.WARNING,
            )
    if script.find(r"(?:sbatch|srun)\s.*--export=(?:NONE|NIL)") or "NONE" in script.value("--export"):
        yield Fault(
            code=LintCode.CLEAN_ENVIRONMENT,
            line=script.options.get("--export") or script.find(r"--export=(?:NONE|NIL)"),
            message="with `--export=NONE` the steps do not get what this script exports, MASTER_ADDR among it",
            repair="leave it out, or give srun `--export=ALL`",
        )


def _ranks(script: Script) -> Iterator[Fault]:
    early = script.find(r"^\s*(?:export\s+)?(?:RANK|LOCAL_RANK)=[\"']?\$\{?SLURM_(?:PROCID|LOCALID)")
    if early and script.steps:
        yield Fault(
            code=LintCode.RANK_TOO_EARLY,
            line=early,
            message="outside the step this is 0, and every rank is rank 0",
            repair="srun … bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec …'",
        )
    same = next((line for line in script.steps if re.search(_NODE_RANK, line.expanded)), None)
    if same and script.many_nodes and script.find(C10D) is None:
        yield Fault(
            code=LintCode.RANK_TOO_EARLY,
            line=same,
            message="the batch shell puts 0 for it before srun starts: every node is node 0, and the ranks wait for ever",
            repair=_with_exports(script, f"instead of it {_RENDEZVOUS}"),
        )


def _settings(script: Script) -> Iterator[Fault]:
    p2p = ("NCCL_P2P_DISABLE", "GPUs with NVLink would talk through the memory of the host")
    for name, why in (*NEVER, p2p):
        if line := script.find(rf"\b{name}=[\"']?1\b"):
            yield Fault(
                code=LintCode.NCCL_FORCED,
                line=line,
                message=f"`{name}` is forced for every host: {why}",
                repair="leave it out: inside an environment each host's own is decided, as `envbuilder detect` explains",
                severity=Severity.WARNING,
            )


def _files(script: Script) -> Iterator[Fault]:
    if not script.commands:
        yield Fault(
            code=LintCode.NO_SCRIPT,
            line=Line(number=1, text=""),
            message="this is no batch script: there is no command in it",
            repair="give the file that you hand to `sbatch`",
        )
    for line in script.lines:
        if line.text.endswith("\r"):
            yield Fault(
                code=LintCode.CRLF,
                line=line,
                message="lines end as on Windows, and sbatch refuses the script",
                repair="dos2unix SCRIPT",
            )
            return
    first = next((line.number for line in script.commands), 0)
    for line in script.options.values():
        if first and line.number > first:
            yield Fault(
                code=LintCode.SBATCH_TOO_LATE,
                line=line,
                message="Slurm stops reading options at the first command",
                repair=f"put it above line {first}",
            )
    caches = r"TRITON_CACHE_DIR|TORCH_EXTENSIONS_DIR|XDG_CACHE_HOME|TORCHINDUCTOR_CACHE_DIR"
    if script.steps and script.many_nodes and script.find(caches) is None:
        yield Fault(
            code=LintCode.CACHES_AT_HOME,
            line=script.steps[0],
            message="compile caches go to your home on the shared file system, from all nodes at once",
            repair="export TRITON_CACHE_DIR, TORCH_EXTENSIONS_DIR and TORCHINDUCTOR_CACHE_DIR below $TMPDIR of the node",
            severity=Severity.WARNING,
        )


RULES: Final[tuple[Rule, ...]] = (
    _files, _gpus_per_task, _master, _port, _cpus, _ends, _launcher, _container, _ranks, _settings,
)  # fmt: skip


def lint(path: Path, text: str) -> tuple[Finding, ...]:
    """Return the mistakes of one script, in the order of its lines."""
    script = Script(path=path, lines=tuple(script_lines(text)))
    faults = [fault for rule in RULES for fault in rule(script)]
    faults.sort(key=lambda fault: fault.line.number if fault.line else 0)
    return tuple(_finding(path, fault) for fault in faults)


def lint_files(paths: Sequence[Path]) -> tuple[Finding, ...]:
    """Return the mistakes of several files; raises UsageError for unreadable ones."""
    mistakes = Mistakes()
    texts = [(path, load_text(path, mistakes)) for path in paths]
    if mistakes.findings:
        raise UsageError("a script cannot be read", findings=mistakes.findings)
    return tuple(finding for path, text in texts if text is not None for finding in lint(path, text))


def _finding(path: Path, fault: Fault) -> Finding:
    where = f"{path}:{fault.line.number}" if fault.line else str(path)
    return Finding(
        code=fault.code, severity=fault.severity, where=where, message=fault.message, hint=fault.repair
    )
