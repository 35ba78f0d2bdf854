"""The mistakes that `launch lint` finds in sbatch scripts: their codes, what they do, and their repairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.run.launch.lint.batch_script import Line


class LintCode(CodeEnum):
    SYNTAX = "EB868", "a line at which bash stops reading the script"
    RAY_ENDS = "EB869", "Ray that ends at once: no `--block` in a step, or a script that ends before it"
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
    NO_SCRIPT = "EB892", "a file without any command, or one in Python"
    NO_ENDPOINT = "EB893", "c10d without `--rdzv-endpoint` on several nodes: they wait forever"
    ONE_PROCESS = "EB894", "`python` without srun in a job of several tasks: one process runs"
    UNKNOWN_LAUNCHER = "EB895", "a launcher that lint does not know: rules about ranks do not apply"
    NOT_FOLLOWED = "EB896", "a sourced file or a function that lint cannot follow"
    GPUS_HIDDEN = "EB897", "CUDA_VISIBLE_DEVICES names fewer GPUs than the job or its launcher asks for"


ADDRESS: Final = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
PORT: Final = "MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
ON_EACH_NODE: Final = "srun --kill-on-bad-exit=1 --ntasks=$SLURM_NNODES --ntasks-per-node=1"
# The effect and the repair of each mistake. Texts that depend on the script are in the rules.
_WORDS: Final = {
    LintCode.GPUS_PER_TASK: (
        "each rank sees its own GPU only, as number 0: NCCL cannot use P2P between them, and `cuda:LOCAL_RANK` fails",
        "ask for them by node, `--gpus-per-node=G` or `--gres=gpu:G`, and give srun `--gpu-bind=none`",
    ),
    LintCode.MASTER_GUESSED: (
        "a node that falls back to localhost waits for itself: the job hangs, or each node trains alone",
        f"{ADDRESS}, outside the container, with `set -e`",
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
        f"export {PORT}",
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
        f"{ON_EACH_NODE} in front of it",
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


@dataclass(frozen=True, slots=True)
class ScriptMistake:
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
