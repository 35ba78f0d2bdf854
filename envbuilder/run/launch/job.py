"""A job to launch: its environment, program, ranks and nodes."""

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, get_args

from envbuilder.artifacts.outputs import SIF
from envbuilder.compat.tables.cuda import load_cudas
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.spelling import nearest
from envbuilder.recipe.packages import IMAGE_TORCH, NO_TORCH
from envbuilder.run.launch.site import HOST, OPTION, SLURM_SHAPES, Site, SlurmSite, need_shape

Shape = Literal["torchrun", "tasks"]
Where = Literal["slurm", "ssh", "local"]
SMOKE: Final = ("-m", "envbuilder_smoke")
_LAUNCHERS: Final = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed",
        "srun", "mpirun", "mpiexec",
    }
)  # fmt: skip
TORCHRUN_SINCE: Final = (1, 10)
RANK_IN_LOGS_SINCE: Final = (2, 3)  # prefixes each line with its rank, and takes an address for each node


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A SIF or an image, and the facts about it that a launch needs."""

    name: str
    location: str  # the SIF's path, or the image's name
    size: int = 0  # of a SIF
    sha256: str = ""  # of a SIF
    state: str = ""  # of a SIF on this machine when it had this sha256: size, device, inode and times
    machine: str = ""  # of a SIF: the processor as `uname -m` calls it, "" if unknown
    image_id: str = ""  # of an image
    torch: str
    cuda: str  # "" without

    @property
    def driver_floor(self) -> str:
        """Return the oldest driver that runs this CUDA, or "" if unknown."""
        return next((row.driver_floor for row in load_cudas().rows if row.cuda == self.cuda), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    name: str  # of a recipe that was built, or a path to a SIF
    program: tuple[str, ...]
    where: Where
    folder: Path
    logs: Path
    output: Path
    shape: str = "torchrun"
    nodes: int | None = None
    ranks: int | None = None
    gpus: int | None = None
    profile: str = ""
    grace: int
    smoke: bool
    compare: bool = False  # with `smoke`
    watch: float = 0  # minutes
    strict: bool = False  # refuse what the job would not see of `exec --writable`
    # Takes precedence over the site profile; its `options` are added.
    slurm: SlurmSite = field(default_factory=SlurmSite)
    hosts: tuple[str, ...] = ()
    pdsh: bool = False
    image: bool = False  # run in the image, not in the SIF
    local_copy: bool = False  # run from a copy on each node
    for_site: str = ""  # the profile of the machines that it is for, if not this one


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """A complete job, ready to be written as a script."""

    environment: Environment
    program: tuple[str, ...]  # as typed, such as `train.py --fast`, `-m package` or `python train.py`
    where: Where
    shape: Shape
    nodes: int
    ranks: int  # on each node
    gpus: int  # on each node
    folder: Path  # where the program starts
    project: Path  # the checkout that holds it
    logs: Path
    site: Site
    grace: int  # seconds between TERM and KILL
    local_copy: bool = False
    watch: float = 0  # minutes in which no rank writes, after which it is looked at; 0 for never
    for_site: bool = False  # its paths are those of the site, and may hold variables

    @property
    def script(self) -> Path | None:
        """Return the file of the program, if it is in the folder. One with a full path may be in the environment."""
        word = program_file(self.program, self.folder)
        return self.folder / word if word and not word.startswith("/") else None


def torch_has(job: LaunchJob, since: tuple[int, ...]) -> bool:
    """Return whether the environment has this torch or a newer one."""
    if job.environment.torch == IMAGE_TORCH:
        return True  # not known here; an image of this decade has it
    return tuple(int(part) for part in job.environment.torch.partition("+")[0].split(".")[:2]) >= since


def parse_shape(text: str) -> Shape:
    shapes: tuple[Shape, ...] = get_args(Shape)
    for shape in shapes:
        if shape == text:
            return shape
    message = f"`--shape` takes {' or '.join(shapes)}, found `{text}`"
    raise UsageError(message, hint=nearest(text, shapes).strip())


def make_job(options: LaunchOptions, environment: Environment, site: Site, project: Path) -> LaunchJob:
    """Make a job from the command line and the site; raises UsageError for a job that cannot run."""
    if options.smoke and options.program:
        raise UsageError("`--smoke` launches no program", hint="leave the program out, or `--smoke`")
    if options.compare and not options.smoke:
        raise UsageError("`--compare` belongs to `--smoke`", hint="`--smoke --compare` tries each transport")
    typed = options.slurm
    given = {key: value for key in SLURM_SHAPES if (value := getattr(typed, key))}
    for key, value in given.items():
        need_shape(f"--{key}", (value,), SLURM_SHAPES[key])
    need_shape("--sbatch", typed.options, OPTION)
    need_shape("--hosts", options.hosts, HOST)
    slurm = replace(site.slurm, options=(*site.slurm.options, *typed.options), **given)
    ssh = replace(site.ssh, hosts=options.hosts or site.ssh.hosts, pdsh=options.pdsh or site.ssh.pdsh)
    nodes = options.nodes or (len(ssh.hosts) if options.where == "ssh" else 1)
    gpus = options.gpus if options.gpus is not None else int(bool(environment.cuda))
    ranks = options.ranks or gpus or 1
    smoke = (*SMOKE, "--ranks", str(nodes * ranks), *(("--compare",) if options.compare else ()))
    program = smoke if options.smoke else options.program
    job = LaunchJob(
        environment=environment, program=program, where=options.where, shape=parse_shape(options.shape), nodes=nodes,
        ranks=ranks, gpus=gpus,
        folder=options.folder, project=project, logs=options.folder / options.logs, site=replace(site, slurm=slurm, ssh=ssh),
        grace=options.grace, local_copy=options.local_copy, watch=options.watch,
    )  # fmt: skip
    _check(job)
    return _moved(job, options.for_site) if options.for_site else job


def _moved(job: LaunchJob, site: str) -> LaunchJob:
    """Return the job with the folders of its site in place of this machine's. Raises UsageError for what cannot move."""
    examples = {"sifs": "sifs: /scratch/$USER/sifs", "projects": "projects: /home/$USER/projects"}
    if lacks := [key for key in examples if not getattr(job.site, key)]:
        message = f"the site profile `{site}` has no key `{'` and no key `'.join(lacks)}`, which names a folder of that site"
        raise UsageError(message, hint=f"add `{'` and `'.join(examples[key] for key in lacks)}`")
    project = Path(job.site.projects, job.project.name)

    def move(path: Path) -> Path:
        return project / path.relative_to(job.project) if path.is_relative_to(job.project) else path

    environment = job.environment
    if not environment.image_id:
        sif = Path(job.site.sifs, f"{environment.name}{SIF}")
        environment = replace(environment, location=str(sif), state="")
    return replace(
        job, environment=environment, for_site=True, project=project, folder=move(job.folder), logs=move(job.logs),
    )  # fmt: skip


def local_paths(job: LaunchJob) -> tuple[str, ...]:
    """Return the paths of this machine that are in the job's script: its SIF and folder, and those among the user's words."""
    places = () if job.for_site else (job.environment.location, str(job.folder))
    words = [word.rpartition("=")[2] for word in job.program]
    paths = (word for word in words if re.match("/(?!dev/)", word) and Path(word).exists())
    return tuple(dict.fromkeys((*places, *paths)))


def _check(job: LaunchJob) -> None:
    environment = job.environment
    if environment.torch in ("", NO_TORCH):
        raise UsageError(
            f"`{environment.name}` has no PyTorch (`pytorch: none`), and `launch` starts ranks of it",
            hint=f"`envbuilder exec {pasted(environment.name)} -- PROGRAM` starts one program",
        )
    if not job.program:
        hint = f"envbuilder launch {job.where} {pasted(environment.name)} -- train.py; `--smoke` needs none"
        raise UsageError("there is no program to launch", hint=hint)
    if launcher := launcher_in(job.program):
        words = itertools.dropwhile(lambda word: not word.endswith(".py"), job.program)
        raise UsageError(
            f"`{launcher}` starts ranks, and so does `launch`: each rank would train apart, as the only one",
            hint=f"leave it out: `-- {shlex.join(words) or 'train.py'}`; `--ranks-per-node` says how many",
        )
    if job.gpus and not environment.cuda:
        raise UsageError(
            f"`{environment.name}` has no CUDA, so its ranks cannot use GPUs",
            hint="`--ranks-per-node N` alone launches ranks without GPUs",
        )
    if job.shape == "tasks" and job.gpus and job.gpus != job.ranks:
        raise UsageError(
            f"`--shape tasks` gives each rank one GPU, but there are {job.ranks} ranks and {job.gpus} GPUs",
            hint="leave `--ranks-per-node` out",
        )
    hosts = len(job.site.ssh.hosts)
    if job.where == "ssh" and hosts < max(job.nodes, 1):
        raise UsageError(
            f"the job needs {job.nodes} nodes, but {hosts} hosts are named" if hosts else "no host is named",
            hint="`--hosts a,b`, or `hosts` under `ssh` in the site profile, names them",
        )


def launcher_in(program: Sequence[str]) -> str:
    """Return what in this command would start ranks of its own, "" without."""
    words = [*program, "", ""]
    if Path(words[0]).name in ("python", "python3"):
        del words[0]
    name = words[1] if words[0] == "-m" else Path(words[0]).name
    return name if name in _LAUNCHERS or (name == "accelerate" and words[1] == "launch") else ""


def program_file(program: Sequence[str], folder: Path) -> str:
    """Return the word that names the program's file: a script of Python or of a shell, or a path. "" if none does."""
    first, *rest = program or ("",)
    if known := re.fullmatch(r"python[\d.]*|((?:ba|da|z|k)?sh)", Path(first).name):
        # Options; others have words of their own.
        without_words = re.compile("[-+][BEefhlmnpuvx]+" if known[1] else "-[BEIOqsuvx]+")
        word = next(itertools.dropwhile(without_words.fullmatch, rest), "")
        is_elsewhere = known[1] and "/" not in word and not (folder / word).exists()  # a shell looks in PATH
        return "" if is_elsewhere or word.startswith(("-", "+")) else word
    return first if "/" in first or first.endswith(".py") or not first.strip(".") else ""


def words_for_launcher(program: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program as arguments of torchrun: a script, `-m MODULE`, or `--no_python PROGRAM`."""
    has_script = program[1:] and (program[1] == "-m" or not program[1].startswith("-"))
    if program[0] in ("python", "python3") and has_script:
        return program[1:]
    return program if program[0] == "-m" or program[0].endswith(".py") else ("--no_python", *program)


def words_for_rank(program: tuple[str, ...]) -> tuple[str, ...]:
    return ("python", *program) if program[0] == "-m" or program[0].endswith(".py") else program
