"""Check sbatch scripts for mistakes that hang jobs, hide GPUs or let each node train alone.

Each rule reads the lines of one script, `#SBATCH` lines included. The rules come from failures that
projects reported. A rule reports nothing if any line shows that the script avoids its mistake. An error is certain.
Where the site, Slurm's version or the program decides, the finding is a warning.
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
from envbuilder.run.launch.reader import read_jobs
from envbuilder.run.launch.sbatch import (
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
    TORCHRUN,
    Line,
    Script,
    srun_values,
)


class LintCode(CodeEnum):
    """The mistakes in sbatch scripts."""

    GPUS_PER_TASK = "EB870", "`--gpus-per-task` or `--gpu-bind=single`: ranks cannot reach each other's GPUs"
    MASTER_GUESSED = "EB871", "MASTER_ADDR or the rendezvous is localhost, or falls back to it"
    MASTER_INSIDE = "EB872", "`scontrol` inside the container, which lacks it"
    MASTER_NODE_IP = "EB873", "MASTER_ADDR from `SLURM_LAUNCH_NODE_IPADDR` or `hostname -i`"
    PORT_FIXED = "EB874", "a fixed port, which two jobs on a node cannot share"
    CPUS_NOT_INHERITED = "EB875", "`--cpus-per-task` without `SRUN_CPUS_PER_TASK`"
    KEEPS_RUNNING = "EB876", "no `--kill-on-bad-exit`: the other ranks wait"
    NODE_RANK_UNUSED = "EB877", "`--node-rank` with c10d, where it has no effect"
    NODE_RANK_MISSING = "EB878", "torchrun on several nodes without `--node-rank` and without a rendezvous"
    CLEAN_ENVIRONMENT = "EB879", "`--cleanenv` or `--export=NONE`: ranks cannot meet"
    RANK_TOO_EARLY = "EB880", "RANK or `--node-rank` from Slurm outside the step"
    NO_SIGNAL = "EB881", "no `--signal`: the job ends without warning"
    NO_NV = "EB882", "GPUs in the job, and no `--nv`"
    OWN_PYTHON = "EB883", "packages of `~/.local` shadow the image's"
    TASKS_AND_TORCHRUN = "EB884", "several tasks on a node that each start torchrun"
    CACHES_AT_HOME = "EB885", "compile caches at home, from many nodes"
    CRLF = "EB886", "Windows line endings"
    SBATCH_TOO_LATE = "EB887", "`#SBATCH` below the first command"
    PRIVATE_SHM = "EB888", "`--contain`: a /dev/shm for each container"
    NNODES_MISSING = "EB889", "torchrun on several nodes without `--nnodes`: each node trains apart"
    NCCL_FORCED = "EB890", "NCCL_IB_DISABLE and the like for every host, whatever it has"
    FIRST_NODE_ALONE = "EB891", "torchrun without srun: the batch script runs on the first node only"
    NO_SCRIPT = "EB892", "a file without any command"
    NO_ENDPOINT = "EB893", "c10d without `--rdzv-endpoint` on several nodes: they wait forever"
    ONE_PROCESS = "EB894", "`python` without srun in a job of several tasks: one process runs"
    UNKNOWN_LAUNCHER = "EB895", "a launcher that lint does not know: rules about ranks do not apply"
    NOT_FOLLOWED = "EB896", "a sourced file or a function that lint cannot follow"
    GPUS_HIDDEN = "EB897", "CUDA_VISIBLE_DEVICES names fewer GPUs than the job or its launcher asks for"


_CONTAINER: Final = r"(?:apptainer|singularity)\s+(?:\S+\s+)*?(?:exec|run)\s"
_AMD: Final = r"(?i:rocm|miopen|hip_visible|rocr_visible|\blumi\b|/appl/local/)"  # --rocm adds nothing where /dev is bound
_SHORT: Final = r"\s(?:exec|run)\s+(?:-\S+\s+)*"  # before a short option of Apptainer, not of the program
_ITSELF: Final = r"--(?:rdzv[-_]endpoint|master[-_]addr)(?:=|\s+)[\"']?(?:localhost\b|127\.)"
_NODE_RANK: Final = r"--(?:node|machine)[-_]rank(?:=|\s+)[\"']?\$\{?SLURM_(?:NODEID|PROCID)\b"
_ADDRESS: Final = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
_PORT: Final = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
_RENDEZVOUS: Final = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"


# The effect and the repair of each mistake. Texts that depend on the script are in the rules below.
_WORDS: Final = {
    LintCode.GPUS_PER_TASK: (
        "each rank sees its own GPU only, as number 0: NCCL cannot use P2P between them, and `cuda:LOCAL_RANK` fails",
        "ask for them by node, `--gpus-per-node=G` or `--gres=gpu:G`, and give srun `--gpu-bind=none`",
    ),
    LintCode.MASTER_GUESSED: (
        "a node that falls back to localhost waits for itself: the job hangs, or each node trains alone",
        f"{_ADDRESS}, outside the container, with `set -e`",
    ),
    LintCode.MASTER_INSIDE: (
        "`scontrol` is not in the image",
        "set MASTER_ADDR before the container starts, and let it pass in",
    ),
    LintCode.MASTER_NODE_IP: (
        "this can be the login node's address, or 127.0.1.1, where no other node finds rank 0",
        'use the first name of `scontrol show hostnames "$SLURM_JOB_NODELIST"`',
    ),
    LintCode.PORT_FIXED: (
        "two jobs on one node use the same port: the second fails, or joins the first",
        f"export {_PORT}",
    ),
    LintCode.CPUS_NOT_INHERITED: (
        "since Slurm 22.05 srun does not take this from the job: each rank may get one core, and loaders starve",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
    ),
    LintCode.KEEPS_RUNNING: (
        "when a rank dies the others wait for it until the time is up",
        "srun --kill-on-bad-exit=1 …",
    ),
    LintCode.NODE_RANK_UNUSED: ("`--node-rank` has no effect with the c10d rendezvous", "leave it out"),
    LintCode.CLEAN_ENVIRONMENT: (
        "`--cleanenv` takes SLURM_*, MASTER_* and NCCL_* away, so that ranks cannot meet",
        "remove it, or pass each variable as APPTAINERENV_NAME",
    ),
    LintCode.RANK_TOO_EARLY: (
        "outside the step this is 0, and every rank is rank 0",
        "srun … bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec …'",
    ),
    LintCode.NO_SIGNAL: (
        "the job ends at its time limit without warning, and unsaved work is lost",
        "#SBATCH --signal=B:TERM@120, and a trap that hands the signal on",
    ),
    LintCode.NO_NV: ("the job has GPUs, and the container does not get them", "apptainer exec --nv …"),
    LintCode.OWN_PYTHON: ("packages in ~/.local shadow those of the image", "--env PYTHONNOUSERSITE=1"),
    LintCode.CACHES_AT_HOME: (
        "compile caches go to your home on the shared file system, from all nodes at once",
        "export TRITON_CACHE_DIR, TORCH_EXTENSIONS_DIR and TORCHINDUCTOR_CACHE_DIR below $TMPDIR of the node",
    ),
    LintCode.CRLF: ("the script has Windows line endings, which sbatch rejects", "dos2unix SCRIPT"),
    LintCode.PRIVATE_SHM: (
        "with `--contain` each container has a /dev/shm of its own: NCCL falls back to sockets between ranks of a node",
        "--bind /dev/shm, or one container a node",
    ),
    LintCode.FIRST_NODE_ALONE: (
        "without srun this starts on the first node alone, and waits there for the others forever",
        "srun --kill-on-bad-exit=1 --ntasks=$SLURM_NNODES --ntasks-per-node=1 in front of it",
    ),
    LintCode.NO_SCRIPT: (
        "this is no batch script: there is no command in it",
        "give the file that you hand to `sbatch`",
    ),
}
# The others are errors.
_WARNINGS: Final = frozenset(
    {
        LintCode.PORT_FIXED, LintCode.KEEPS_RUNNING, LintCode.NODE_RANK_UNUSED, LintCode.NO_SIGNAL, LintCode.OWN_PYTHON,
        LintCode.CACHES_AT_HOME, LintCode.PRIVATE_SHM, LintCode.NCCL_FORCED, LintCode.UNKNOWN_LAUNCHER,
        LintCode.CPUS_NOT_INHERITED, LintCode.MASTER_NODE_IP, LintCode.ONE_PROCESS, LintCode.NOT_FOLLOWED,
        LintCode.GPUS_HIDDEN,
    }
)  # fmt: skip
# Each is a mistake in every script.
_ALWAYS: Final = {
    # With `srun -w NODE` it is the address that the first node itself knows.
    LintCode.MASTER_NODE_IP: (
        r"SLURM_LAUNCH_NODE_IPADDR|^(?!.*srun\s[^;|]*(?:-w|--nodelist)).*hostname\s+(?:--ip-address|-i)\b"
    ),
    LintCode.PORT_FIXED: r"(?:MASTER_PORT=|--master[-_]port[= ]|--rdzv[-_]endpoint\S*:)[\"']?\d{4,5}\b",
}


@dataclass(frozen=True, slots=True)
class _Mistake:
    code: LintCode
    line: Line | None  # None: the whole script
    message: str = ""  # without it, message and repair are those of the table
    repair: str = ""
    is_sure: bool = True  # where not, it is a warning

    def finding(self, path: Path) -> Finding:
        message, repair = (self.message, self.repair) if self.message else _WORDS[self.code]
        is_error = self.is_sure and self.code not in _WARNINGS
        severity = Severity.ERROR if is_error else Severity.WARNING
        where = f"{self.line.file or path}:{self.line.number}" if self.line else str(path)
        return Finding(code=self.code, severity=severity, where=where, message=message, hint=repair)


Rule = Callable[[Script], Iterator[_Mistake]]


def _always(script: Script) -> Iterator[_Mistake]:
    for code, pattern in _ALWAYS.items():
        if line := script.find(pattern):
            yield _Mistake(code, line)


def _gpus_per_task(script: Script) -> Iterator[_Mistake]:
    bound = script.value("--gpu-bind")
    if "none" in bound or script.find(rf"--gpu-bind=none|{RAY}"):
        return
    each, torchrun = script.find(r"--gpus-per-task"), script.find(TORCHRUN)
    gpus = re.search(r"(\d+)$", script.value("--gpus-per-task"))
    ranks = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", torchrun.text) if torchrun else None
    if gpus and ranks and int(ranks[1]) > int(gpus[1]):
        message = (
            f"the task of each node sees {gpus[1]} of its GPUs, and torchrun starts {ranks[1]} ranks there"
        )
        yield _Mistake(
            LintCode.GPUS_PER_TASK, script.options["--gpus-per-task"], message, f"--gpus-per-node={ranks[1]}"
        )
        return
    places = (
        script.options.get("--gpus-per-task"),
        each,
        script.find(r"--gpu-bind=(?:per_task|single)"),
        script.options.get("--gpu-bind"),
    )
    if script.tasks_of_node > 1:
        for line in dict.fromkeys(line for line in places if line):
            yield _Mistake(LintCode.GPUS_PER_TASK, line, is_sure=False)


def _gpus_hidden(script: Script) -> Iterator[_Mistake]:
    """CUDA_VISIBLE_DEVICES is set once, to fewer GPUs than are asked for."""
    pattern = r"\bCUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)(?![\w,$-])"
    named = [(line, found[1]) for line in script.commands for found in re.finditer(pattern, line.text)]
    if len({devices for _, devices in named}) != 1 or script.find(r"unset\s+CUDA_VISIBLE|-u\s+CUDA_VISIBLE"):
        return
    (line, devices), *_ = named
    wanted = script.gpus
    for one in script.commands:
        for ranks in re.finditer(
            r"--(?:nproc[-_]per[-_]node|num[-_]gpus|num[-_]processes)[= ](\d+)\b", one.text
        ):
            if "processes" not in ranks[0] or not script.many_nodes:
                wanted = max(wanted, int(ranks[1]))
    count = len(devices.split(","))
    if count < wanted:
        message = f"CUDA_VISIBLE_DEVICES={devices} shows {count} GPU{'s'[: count - 1]} of the {wanted} that are asked for"
        yield _Mistake(
            LintCode.GPUS_HIDDEN, line, message, "leave it out: Slurm sets it to the GPUs of the job"
        )


def _master(script: Script) -> Iterator[_Mistake]:
    fixed = script.find(r"MASTER_ADDR=[\"']?(?:localhost|127\.)")
    if fixed and script.many_nodes and script.find(r"MASTER_ADDR=(?![\"']?(?:localhost|127\.))") is None:
        yield _Mistake(LintCode.MASTER_GUESSED, fixed)
    if guessed := script.find(r"\|\|\s*echo\s+[\"']?(?:localhost|127\.)"):
        yield _Mistake(LintCode.MASTER_GUESSED, guessed, is_sure=False)
    inside = rf"{_CONTAINER}.*\bscontrol\b"
    if line := next((one for one in script.commands if re.search(inside, one.unexpanded)), None):
        yield _Mistake(LintCode.MASTER_INSIDE, line)
    itself = script.find(_ITSELF)
    if itself and script.many_nodes and script.find(rf"{ONE_NODE}|{ONE_WANTED}") is None:
        endpoint = re.search(r"endpoint", itself.text) or script.find(C10D)  # which reads no other address
        instead = "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT" if endpoint else "--master-addr=$MASTER_ADDR"
        message = "every node waits for the others on itself: the job hangs, or each node trains alone"
        repair = _with_exports(script, f"replace it by {instead}")
        yield _Mistake(LintCode.MASTER_GUESSED, itself, message, repair)


def _cpus(script: Script) -> Iterator[_Mistake]:
    line = script.options.get("--cpus-per-task")
    passed_on = script.may_set(r"SRUN_CPUS_PER_TASK") or next(
        (one for one in script.commands if "--cpus-per-task" in srun_values(one.text)), None
    )
    if line and script.value("--cpus-per-task") != "1" and script.steps and passed_on is None:
        yield _Mistake(LintCode.CPUS_NOT_INHERITED, line)


def _ends(script: Script) -> Iterator[_Mistake]:
    for line in script.steps:
        if (
            line not in script.left_alone
            and not line.is_open
            and not {"-K", "--kill-on-bad-exit"} & srun_values(line.text).keys()
            and script.may_set(r"SLURM_KILL_BAD_EXIT") is None
        ):
            yield _Mistake(LintCode.KEEPS_RUNNING, line)
    if script.steps and "--signal" not in script.options and script.find(r"scancel\s.*signal") is None:
        yield _Mistake(LintCode.NO_SIGNAL, script.steps[0])


def _launcher(script: Script) -> Iterator[_Mistake]:
    c10d, node_rank = script.find(C10D), script.find(r"--node[-_]rank")
    torchrun = script.find(TORCHRUN)
    if c10d and node_rank:
        yield _Mistake(LintCode.NODE_RANK_UNUSED, node_rank)
    for line in script.left_alone:
        yield _Mistake(LintCode.FIRST_NODE_ALONE, line)
    if torchrun and script.many_nodes and script.find(ONE_NODE) is None and not script.is_open(torchrun):
        yield from _meeting(script, torchrun, meets=node_rank or script.find(r"--rdzv[-_]|PET_RDZV_"))
        if c10d and script.find(rf"--rdzv[-_]endpoint|PET_RDZV_ENDPOINT|{_ITSELF}") is None:
            message = (
                "c10d without an endpoint meets on the node itself: every node waits for the others forever"
            )
            repair = _with_exports(script, "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT")
            yield _Mistake(LintCode.NO_ENDPOINT, c10d, message, repair, is_sure=not script.unknown)
    yield from _apart(script)
    for line in script.steps:
        yield from _each_starts(script, line)


def _apart(script: Script) -> Iterator[_Mistake]:
    """Check that accelerate and deepspeed know the other nodes. A default of the user's home may say it, too."""
    known = {
        "accelerate": (ACCELERATE, r"--num[-_]machines|--config[-_]file|ACCELERATE_|accelerate config"),
        "deepspeed": (DEEPSPEED, r"--no[-_]ssh|--hostfile|--launcher|-H\s|DLTS_HOSTFILE"),
    }
    for name, (launcher, options) in known.items():
        for line in script.steps:
            begun = re.search(rf"srun\s.*?(?:{launcher})", line.text)
            if not begun or not script.many_nodes or re.search(ONE_NODE, line.text) or script.is_open(line):
                continue
            if script.may_set(options) is None:
                message = f"srun starts {name} on each node, and it knows nothing of the other nodes: each trains apart"
                repair = {
                    "accelerate": "--num_machines $SLURM_NNODES --rdzv_backend c10d --main_process_ip $MASTER_ADDR",
                    "deepspeed": "--no_ssh --hostfile FILE --node_rank $SLURM_NODEID, expanded on each node",
                }[name]
                yield _Mistake(LintCode.NNODES_MISSING, line, message, repair, is_sure=False)


def _each_starts(script: Script, line: Line) -> Iterator[_Mistake]:
    """Check that a step has one launcher on a node, and one `mpirun` in all."""
    one_rank = r"--(?:nproc[-_]per[-_]node|num[-_]processes)[= ]1\b"
    found = re.search(rf"srun(?=\s).*?({TORCHRUN}|{ACCELERATE}|{MPI})", line.text)
    if found is None or re.search(one_rank, line.text):
        return
    is_mpi = re.search(MPI, found[1]) is not None
    tasks = script.step_tasks(line, of_node=not is_mpi)
    if tasks > 1:
        name = re.sub(r"\s+launch$", "", found[1].strip(" ;&|(")).rpartition("/")[2]
        message = f"{tasks} tasks{'' if is_mpi else ' on a node'} each start a {name}, which starts ranks of its own"
        repair = f"#SBATCH --ntasks-per-node=1 with {name}; or python without it"
        repair = (
            f"{name} without srun in front of it; or srun and python without {name}" if is_mpi else repair
        )
        place = line if is_mpi else script.options.get("--ntasks-per-node", line)
        yield _Mistake(LintCode.TASKS_AND_TORCHRUN, place, message, repair)


def _program(script: Script) -> Iterator[_Mistake]:
    """Check that lint knows what starts the program, and that several tasks start it with srun."""
    python, foreign = script.find(PYTHON), script.find(FOREIGN)
    if script.find(rf"{LAUNCHER}|{MPI}|{RAY}") or script.has_jobs or not script.commands:
        return
    has_step = script.find(r"\bsrun\b") and script.find(r"\bpython")
    if foreign or not (python or has_step):
        line = foreign or script.find(r"\.py\b|\bsrun\s") or script.commands[-1]
        named = re.search(FOREIGN, line.text) if foreign else None
        what = (
            f"`{named[1]}` is a launcher that lint does not know"
            if named
            else "it is not known what starts the ranks here"
        )
        repair = "lint knows srun, torchrun, accelerate, deepspeed, mpirun and Ray, where they start a program of Python"
        message = f"{what}, so only the rules about options and settings were applied"
        yield _Mistake(LintCode.UNKNOWN_LAUNCHER, line, message, repair)
    elif python and script.tasks and not script.reaches:
        message = f"the job asks for several tasks ({script.tasks}), and without srun this is one process on the first node"
        repair = "srun --kill-on-bad-exit=1 in front of it, or torchrun with one task on each node"
        yield _Mistake(LintCode.ONE_PROCESS, python, message, repair)


def _with_exports(script: Script, options: str) -> str:
    """Return these options, and the variables they need that the script does not set."""
    unset = [one for one in (_ADDRESS, _PORT) if script.find(rf"\b{one.partition('=')[0]}=") is None]
    return f"{options}, before it: export {' '.join(unset)}" if unset else options


def _meeting(script: Script, torchrun: Line, *, meets: Line | None) -> Iterator[_Mistake]:
    """Check that torchrun has a rendezvous on several nodes. Each suggested repair is complete."""
    repair = "" if meets else _with_exports(script, _RENDEZVOUS)
    code = LintCode.NODE_RANK_MISSING
    message = "without a rendezvous or `--node-rank` every node is node 0, and the ranks wait for ever"
    if script.find(r"--nnodes|PET_NNODES") is None:
        code, repair = LintCode.NNODES_MISSING, f"--nnodes=$SLURM_NNODES {repair}".rstrip()
        message = "without `--nnodes` torchrun expects one node, and each node trains apart in silence"
    if repair:
        yield _Mistake(code, torchrun, message, repair, is_sure=not script.unknown)


def _container(script: Script) -> Iterator[_Mistake]:
    for line in script.commands:
        if not re.search(_CONTAINER, line.text):
            continue
        if (
            re.search(rf"--cleanenv|{_SHORT}-e\s", line.text)
            and script.tasks
            and re.search(rf"\bsrun\s|{MPI}", line.text)
            and script.may_set(r"(?:APPTAINER|SINGULARITY)ENV_|--env") is None
        ):
            yield _Mistake(LintCode.CLEAN_ENVIRONMENT, line)
        asks = any("gpu" in one.text for one in script.options.values())
        if (
            asks
            and not line.is_open
            and not re.search(r"--nv|--rocm", line.text)
            and script.may_set(rf"(?:APPTAINER|SINGULARITY)_(?:NV|ROCM)|{_AMD}") is None
        ):
            yield _Mistake(LintCode.NO_NV, line)
        if script.may_set(r"PYTHONNOUSERSITE|--no-home|--contain") is None:
            yield _Mistake(LintCode.OWN_PYTHON, line)
        if re.search(rf"--contain\b|--containall|{_SHORT}-[cC]\s", line.text) and "dev/shm" not in line.text:
            yield _Mistake(LintCode.PRIVATE_SHM, line)
    closed = script.find(r"srun\s.*--export=(?:NONE|NIL)") or "NONE" in script.value("--export")
    if (
        closed
        and script.find(r"\bexport\s")
        and script.may_set(r"SLURM_EXPORT_ENV|srun\s.*--export=ALL") is None
    ):
        place = script.options.get("--export") or script.find(r"srun\s.*--export=(?:NONE|NIL)")
        message = "with `--export=NONE` the steps do not get what this script exports, MASTER_ADDR among it"
        repair = "leave it out, or give srun `--export=ALL`"
        yield _Mistake(LintCode.CLEAN_ENVIRONMENT, place, message, repair)


def _ranks(script: Script) -> Iterator[_Mistake]:
    early = script.find(r"^\s*(?:export\s+)?(?:RANK|LOCAL_RANK)=[\"']?\$\{?SLURM_(?:PROCID|LOCALID)")
    own = rf"{LAUNCHER}|[\s'\"]RANK="  # a launcher or the task itself sets it anew
    if early and any(not re.search(own, line.text) for line in script.steps):
        yield _Mistake(LintCode.RANK_TOO_EARLY, early)
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
        yield _Mistake(LintCode.RANK_TOO_EARLY, same, message, repair)


def _settings(script: Script) -> Iterator[_Mistake]:
    p2p = ("NCCL_P2P_DISABLE", "GPUs with NVLink would talk through the memory of the host")
    for name, why in (*NEVER, p2p):
        if line := script.find(rf"\b{name}=[\"']?1\b"):
            message = f"`{name}` is forced for every host: {why}"
            repair = "remove it: envbuilder decides it for each host, as `envbuilder detect` explains"
            yield _Mistake(LintCode.NCCL_FORCED, line, message, repair)


def _files(script: Script) -> Iterator[_Mistake]:
    if not script.commands:
        yield _Mistake(LintCode.NO_SCRIPT, Line(number=1, text=""))
    for line in script.lines:
        if line.text.endswith("\r"):
            yield _Mistake(LintCode.CRLF, line)
            return
    first = next(
        (at for at, line in enumerate(script.lines) if not line.text.startswith("#")), len(script.lines)
    )
    for line in script.lines[first:]:
        if line.text.startswith("#"):
            message = "Slurm stops reading options at the first command"
            repair = f"put it above line {script.lines[first].number}"
            yield _Mistake(LintCode.SBATCH_TOO_LATE, line, message, repair)
    caches = r"TRITON_CACHE_DIR|TORCH_EXTENSIONS_DIR|XDG_CACHE_HOME|TORCHINDUCTOR_CACHE_DIR"
    if script.steps and script.many_nodes and script.may_set(caches) is None:
        yield _Mistake(LintCode.CACHES_AT_HOME, script.steps[0])


def _unknown(script: Script) -> Iterator[_Mistake]:
    for line in script.unknown:
        message = f"{line.text}: what it may set is not reported as missing, and what it starts is not judged"
        yield _Mistake(
            LintCode.NOT_FOLLOWED, line, message, "run lint beside the file, or give it to lint as well"
        )


RULES: Final[tuple[Rule, ...]] = (
    _files, _unknown, _program, _gpus_per_task, _gpus_hidden, _always, _master, _cpus, _ends, _launcher, _container,
    _ranks, _settings,
)  # fmt: skip


def lint(path: Path, text: str, read: Callable[[Path], str | None] = lambda _: None) -> tuple[Finding, ...]:
    """Return the mistakes of one script and of the jobs that it submits, in the order of its lines.

    `read` returns the text of a file that the script sources, or None.
    """
    findings: dict[Finding, None] = {}
    for script in read_jobs(path, text, read):
        places = {(line.file, line.number): at for at, line in enumerate(script.lines)}
        found = [one for rule in RULES for one in rule(script)]
        found.sort(key=lambda one: places.get((one.line.file, one.line.number), 0) if one.line else 0)
        findings |= dict.fromkeys(one.finding(path) for one in found)
    return tuple(findings)


def lint_files(paths: Sequence[Path]) -> tuple[Finding, ...]:
    """Return the mistakes of several scripts; raises UsageError for unreadable files."""
    mistakes = Mistakes()
    texts = [(path, load_text(path, mistakes)) for path in paths]
    if mistakes.findings:
        raise UsageError("a script cannot be read", findings=mistakes.findings)
    return tuple(
        finding for path, text in texts if text is not None for finding in lint(path, text, _sourced)
    )


def _sourced(path: Path) -> str | None:
    try:
        is_file = path.is_file()
    except OSError:  # the name is too long for a file
        return None
    return load_text(path, Mistakes()) if is_file else None
