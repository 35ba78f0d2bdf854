"""Site profiles: the settings of a cluster, read as strictly as a recipe.

Its paths may hold variables (`$SCRATCH/data`, `/scratch/$USER`), because each user has own folders. A path
with a variable that is not set, or whose folder is missing, is left out.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Annotated, Final, Literal

from envbuilder.core.errors import UsageError
from envbuilder.core.models import Flag, Line, ReadAs, Shape, Whole, read_node
from envbuilder.core.places import Mistakes, load
from envbuilder.core.spelling import nearest

GpuFlag = Literal["gpus-per-node", "gres", "none"]
SITES: Final = Path("sites")
SLURM: Final = "slurm"

WORD: Final = Shape(pattern=r"[A-Za-z0-9][A-Za-z0-9_.,:/@+-]*", expected="a word without spaces")
# No host begins with a dash, which `ssh` would read as an option.
HOST: Final = Shape(pattern=WORD.pattern, expected="a host such as node1 or me@node1")
VARIABLE: Final = r"\$([A-Za-z_][A-Za-z0-9_]*)"
_PATH: Final = Shape(
    pattern=rf"(/|{VARIABLE}(?=/|:|$))([^\x00-\x1f\x7f:,$\"'\\`]|{VARIABLE})*",
    expected="a path such as /scratch, $SCRATCH/data or /scratch/$USER",
    hint="write $USER, not ${USER} or ~",
)
_BIND: Final = Shape(
    pattern=rf"{_PATH.pattern}(:/[^\x00-\x1f\x7f:,$\"'\\`]*(:(ro|rw|image-src=/[^:,$\"'\\`]*))?)?",
    expected="PATH, PATH:PATH or PATH:PATH:ro",
)
OPTION: Final = Shape(
    pattern=r"--[a-z][a-z-]*(=\S+)?", expected="an option such as --constraint=a100", hint="one in each"
)
TIME: Final = Shape(
    pattern=r"(\d+-)?\d+(:\d{1,2}){0,2}|UNLIMITED",
    expected='a time such as "02:00:00"',
    hint="days-hours:minutes:seconds",
)
_VARIABLE: Final = Shape(pattern=r"[A-Za-z_][A-Za-z0-9_]*", expected="the name of a variable")
_SUFFIX: Final = Shape(pattern=r"[A-Za-z0-9.-]+", expected="what follows a host name, such as i or .ib.site")
_PROGRAM: Final = Shape(pattern=r"[A-Za-z0-9_./+-]+", expected="the name of a program or its path")


# Of the options of `sbatch` that both a profile and the command line give.
SLURM_SHAPES: Final = {"partition": WORD, "account": WORD, "qos": WORD, "time": TIME}
_Pairs = ReadAs(dict[Annotated[str, _VARIABLE], Line], lambda pairs: tuple(pairs.items()))
Word = Annotated[str, WORD]
_Path = Annotated[str, _PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The values of `#SBATCH` lines at this site. Empty ones are left out."""

    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    time: Annotated[str, TIME] = ""
    gpu_flag: GpuFlag = "gpus-per-node"
    gpu_type: Word = ""
    cpus_per_rank: Whole = 0
    options: tuple[Annotated[str, OPTION], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSite:
    hosts: tuple[Annotated[str, HOST], ...] = ()
    options: tuple[Line, ...] = ()  # of `ssh`
    pdsh: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The settings of one cluster. The default has none."""

    summary: Line = ""  # for people
    scheduler: Word = SLURM  # or another, such as pbs, for which envbuilder writes no scripts
    modules: tuple[Word, ...] = ()
    apptainer: Annotated[str, _PROGRAM] = "apptainer"
    binds: tuple[Annotated[str, _BIND], ...] = ()
    scratch: _Path = ""  # shared and large, for downloads of models and data sets
    node_scratch: _Path = ""  # of each node, for compile caches; "": $SLURM_TMPDIR, $TMPDIR or /tmp
    sifs: _Path = ""  # the folder of your SIFs there, for `launch --for`
    projects: _Path = ""  # the folder of your projects there, for `launch --for`
    master_suffix: Annotated[str, _SUFFIX] = ""  # added to a node's name to get its name on the fast network
    env: Annotated[tuple[tuple[str, str], ...], _Pairs] = ()
    slurm: SlurmSite = SlurmSite()
    ssh: SshSite = SshSite()

    @property
    def all_binds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (*self.binds, self.scratch))))

    def present_binds(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the bind mounts with variables expanded, without those that this machine lacks."""
        known = {name: value for name, value in environment.items() if value}
        full = [Template(bind).safe_substitute(known) for bind in self.all_binds]
        filled = (bind for bind in full if "$" not in bind)
        return tuple(bind for bind in filled if Path(bind.partition(":")[0]).exists())


def need_shape(option: str, given: Iterable[str], shape: Shape) -> None:
    """Raise UsageError for a value of an option that does not match `shape`."""
    for text in given:
        if not re.fullmatch(shape.pattern, text):
            raise UsageError(f"`{option}` takes {shape.expected}, found `{text}`", hint=shape.hint)


def find_site(given: str, folder: Path = SITES) -> Site:
    """Return the profile with that name in the folder, or at that path. No name means the default site."""
    if not given:
        return Site()
    is_path = "/" in given or given.endswith((".yaml", ".yml"))
    path = Path(given) if is_path else folder / f"{given}.yaml"
    if not path.exists():
        known = sorted(profile.stem for profile in folder.glob("*.yaml"))
        raise UsageError(
            f"there is no site profile `{path}`",
            hint=f"{nearest(given, known)}profiles in `{folder}/`: {', '.join(known) or 'none'}; or give the path of one, "
            "a YAML file such as `slurm: {partition: gpu}`",
        )
    return load_site(path)


def find_slurm_site(given: str, *, hint: str, options: Iterable[str] = ()) -> Site:
    """Return the profile, with more options of `sbatch`.

    Raises UsageError for an invalid option, and with the hint for a site with another scheduler than Slurm.
    """
    need_shape("--sbatch", options, OPTION)
    site = find_site(given)
    if site.scheduler != SLURM:
        message = f"the site profile `{given}` says `scheduler: {site.scheduler}`, and envbuilder writes jobs for Slurm alone"
        raise UsageError(message, hint=hint)
    return replace(site, slurm=replace(site.slurm, options=(*site.slurm.options, *options)))


def load_site(path: Path) -> Site:
    """Read a profile. Raises UsageError with a finding for each mistake."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    site = read_node(Site, root, mistakes) if root else None
    if site is None:
        raise UsageError(f"the site profile `{path}` cannot be used", findings=mistakes.findings)
    return site
