"""What `--help` of each command ends with: lines that a person may copy. A test runs each through the parser."""

from collections.abc import Mapping
from typing import Final

import typer

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "init": (
        "envbuilder init mine",
        "envbuilder init mine --gpu A100 --pytorch 2.6.0",
        "envbuilder init mine --from environment.yml --gpu A100",
    ),
    "list": ("envbuilder list", "envbuilder list --json"),
    "show": ("envbuilder show a100",),
    "check": ("envbuilder check a100", "envbuilder check a100 --host node.json"),
    "render": ("envbuilder render cpu", "envbuilder render a100 --as apptainer"),
    "lock": ("envbuilder lock a100", "envbuilder lock a100 --upgrade numpy", "envbuilder lock a100 --check"),
    "build": (
        "envbuilder build a100",
        "envbuilder build a100 cpu --offline",
        "envbuilder build --all --jobs 4",
        "envbuilder build --all --on slurm --profile my-site",
        "envbuilder build a100 --dry-run",
    ),
    "extensions": ("envbuilder extensions a100",),
    "verify": ("envbuilder verify a100", "envbuilder verify build/a100.oci build/a100.sif"),
    "report": ("envbuilder report a100",),
    "sbom": ("envbuilder sbom a100", "envbuilder sbom build/a100.sif --provenance"),
    "sign": ("envbuilder sign a100 --key key.pem",),
    "diff": ("envbuilder diff a100 h100", "envbuilder diff old/a100.sif build/a100.sif"),
    "cache": (
        "envbuilder cache",
        "envbuilder cache --gc trees",
        "envbuilder cache vendor a100 /media/disk/a100",
    ),
    "push": ("envbuilder push a100 registry.site.org/team/a100",),
    "pull": ("envbuilder pull a100", "envbuilder pull registry.site.org/team/a100:latest --only sif"),
    "exec": (
        "envbuilder exec a100 -- python train.py",
        "envbuilder exec a100 --in image --print -- python -V",
    ),
    "shell": ("envbuilder shell a100",),
    "devcontainer": ("envbuilder devcontainer a100", "envbuilder devcontainer a100 --print"),
    "module": ("envbuilder module a100 --write modulefiles",),
    "launch slurm": ("envbuilder launch slurm a100 --nodes 2 --gpus-per-node 4 -- train.py",),
    "launch ssh": ("envbuilder launch ssh a100 --hosts node1,node2 -- train.py",),
    "launch local": (
        "envbuilder launch local a100 -- train.py",
        "envbuilder launch local cpu --ranks-per-node 2 --smoke",
    ),
    "launch lint": ("envbuilder launch lint job.sbatch",),
    "detect": (
        "envbuilder detect",
        "envbuilder detect --from saved/ --json",
        "envbuilder detect --save node.json",
    ),
    "diagnose": ("envbuilder diagnose slurm-4711.out", "envbuilder diagnose logs/"),
    "doctor": ("envbuilder doctor", "envbuilder doctor --for run"),
    "tables refresh": ("envbuilder tables refresh --check",),
}


def add_examples(app: typer.Typer, short: Mapping[str, str], group: str = "") -> None:
    r"""Let the help of every command end with its examples, each line as it is (`\b`), and a list say it in `short` words."""
    for command in app.registered_commands:
        if command.callback is None:
            continue
        name = group + (command.name or command.callback.__name__.replace("_", "-"))
        lines = [f"  $ {line}" for line in EXAMPLES.get(name, ())]
        command.short_help = short.get(name)  # without it Typer cuts the first sentence
        command.epilog = "\n".join(["\b", "Examples:", *lines]) if lines else None
    for below in app.registered_groups:
        below.short_help = short.get(below.name or "")
        if below.typer_instance is not None:
            add_examples(below.typer_instance, short, f"{group}{below.name} " if below.name else group)
