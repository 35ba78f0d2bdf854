"""What the shell offers after TAB: commands, options and recipes, in the form of the scripts of `--show-completion`.

Typer's own answer needs the whole command line in memory, so this one has a table of it, which a test compares with the
command line. Requests of other kinds are left to Typer: the scripts themselves, and PowerShell. Nothing slow is imported
here: no dataclasses, no pathlib.
"""

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

VARIABLE: Final = "_ENVBUILDER_COMPLETE"
MANY: Final = 1000


class Answer(NamedTuple):
    """What is printed for the shell, and the exit code, which only fish looks at."""

    text: str
    exit_code: int = 0


class Verb(NamedTuple):
    """One command: how its help begins, the options of its own, and how many of its arguments are recipes."""

    help: str
    options: tuple[str, ...] = ()
    recipes: int = 0


TOP: Final = ("--version", "--install-completion", "--show-completion", "--help")
COMMON: Final = ("--json", "--verbose", "--no-color", "--help")
INSIDE: Final = ("--in", "--profile", "--print", "--output", "--no-color", "--verbose", "--help")
LAUNCH: Final = (
    "--gpus-per-node", "--ranks-per-node", "--profile", "--smoke", "--write", "--logs", "--grace", "--output", "--verbose",
    "--no-color", "--help",
)  # fmt: skip
WITH_VALUE: Final = (
    "--jobs", "--on", "--nodes", "--shape", "--partition", "--time", "--hosts", "--gpus-per-node", "--ranks-per-node", "--profile", "--write",
    "--logs", "--grace", "--only", "--sign",
    "--for", "--recipes", "--output", "--host", "--in", "--before", "--from", "--save", "--image", "--recipe", "--key", "--oldest-host",
    "--gpu", "--pytorch", "--python",
    "--ssh", "--account", "--qos", "--sbatch", "--as", "--engine", "--builder", "--cache-from", "--cache-to", "--prepare",
)  # fmt: skip
VALUES: Final[Mapping[str, tuple[str, ...]]] = {  # of the options that take one of a few words
    "--as": ("dockerfile", "apptainer"),
    "--engine": ("assemble", "docker"),
    "--for": ("build", "run"),
    "--in": ("sif", "image"),
    "--on": ("slurm",),
    "--only": ("image", "sif"),
    "--shape": ("torchrun", "tasks"),
}
VERBS: Final[Mapping[str, Verb]] = {
    "init": Verb(
        "Write a first recipe",
        ("--from", "--from-machine", "--gpu", "--pytorch", "--python", "--recipes", *COMMON),
    ),
    "list": Verb("List the recipes with their pins", ("--recipes", *COMMON)),
    "show": Verb("Show the effective recipe", ("--recipes", *COMMON), 1),
    "check": Verb("Report everything in the recipe that cannot work", ("--host", "--recipes", *COMMON), 1),
    "render": Verb("Print the whole build as text", ("--as", "--recipes", *COMMON), 1),
    "lock": Verb(
        "Resolve a recipe into its lock", ("--check", "--upgrade", "--before", "--recipes", *COMMON), 1
    ),
    "build": Verb(
        "Build image and SIF from the lock",
        (
            "--all",
            "--jobs",
            "--on",
            "--profile",
            "--sbatch",
            "--write",
            "--wait",
            "--output",
            "--offline",
            "--dry-run",
            "--host",
            "--engine",
            "--builder",
            "--cache-from",
            "--cache-to",
            "--no-cache",
            "--prepare",
            "--recipes",
            *COMMON,
        ),
        MANY,
    ),
    "extensions": Verb("List a recipe's compiled extensions", ("--recipes", *COMMON), 1),
    "verify": Verb(
        "Prove that image and SIF hold the same files",
        ("--key", "--oldest-host", "--output", "--recipes", *COMMON),
        1,
    ),
    "report": Verb("Write one HTML page of what was built", ("--output", "--recipes", *COMMON), 1),
    "sbom": Verb("Print the parts list of what was built", ("--provenance", "--output", *COMMON), 1),
    "sign": Verb("Sign image and SIF with a key of yours", ("--key", "--output", *COMMON), 1),
    "diff": Verb("Say what is different between two locks, images or SIFs", ("--recipes", *COMMON), 2),
    "cache": Verb("Say what the cache holds, free its space", ("--gc", "--recipes", *COMMON)),
    "push": Verb("Push image and SIF to an OCI registry", ("--only", "--sign", "--output", *COMMON), 1),
    "pull": Verb("Pull image and SIF from an OCI registry", ("--only", "--key", "--output", *COMMON)),
    "detect": Verb(
        "Say what to tell NCCL on this machine",
        ("--from", "--save", "--recipe", "--measure", "--output", "--recipes", *COMMON),
    ),
    "diagnose": Verb("Name the known failure in training, build or kernel logs", COMMON),
    "doctor": Verb(
        "Say what this machine can and cannot do for envbuilder",
        ("--for", "--fix", "--output", "--recipes", *COMMON),
    ),
    "exec": Verb("Run a command in the environment", INSIDE, 1),
    "shell": Verb("Open a shell in the environment", INSIDE, 1),
    "devcontainer": Verb(
        "Write `.devcontainer/devcontainer.json`",
        ("--image", "--ssh", "--write", "--print", "--force", "--profile", "--output", "--recipes", *COMMON),
        1,
    ),
    "module": Verb(
        "Write a module file and its commands",
        ("--write", "--profile", "--output", *COMMON),
        1,
    ),
    "launch": Verb("Start a distributed run", ("--help",)),
    "launch slurm": Verb(
        "Submit a job to Slurm",
        (
            "--nodes",
            "--shape",
            "--partition",
            "--account",
            "--qos",
            "--time",
            "--sbatch",
            "--wait",
            "--json",
            *LAUNCH,
        ),
        1,
    ),
    "launch ssh": Verb("Run a job on machines reached by SSH", ("--nodes", "--hosts", "--pdsh", *LAUNCH), 1),
    "launch local": Verb("Run a job on this machine", ("--in", *LAUNCH), 1),
    "launch lint": Verb("Find the mistakes in your own sbatch scripts", COMMON),
}


def complete(environment: Mapping[str, str]) -> Answer | None:
    """The answer to bash, zsh or fish; None when this is no such request."""
    request = environment.get(VARIABLE, "")
    if request not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    if request == "complete_bash":
        words = _split(environment.get("COMP_WORDS", ""))
        place = environment.get("COMP_CWORD", "")
        cursor = int(place) if place.isdecimal() else len(words)
    else:
        line = environment.get("_TYPER_COMPLETE_ARGS", "")
        words = _split(line)
        cursor = len(words) if line.endswith(" ") else max(1, len(words) - 1)
    word = words[cursor] if cursor < len(words) else ""
    found = offers(words[1:cursor], word, environment)
    if request == "complete_bash":
        return Answer("\n".join(found))
    if request == "complete_fish":
        if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            return Answer("", 0 if found else 1)
        return Answer("\n".join(f"{name}\t{told}" if told else name for name, told in found.items()))
    shown = "\n".join(f'"{name}":"{_zsh(told)}"' if told else f'"{name}"' for name, told in found.items())
    return Answer(f"_arguments '*: :(({shown}))'" if found else "_files")


def offers(before: Sequence[str], word: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What may stand for `word` after these words, each with its explanation; empty where a file name belongs."""
    below = {
        key.partition(" ")[2]: VERBS[key].help for key in VERBS if before and key.startswith(f"{before[0]} ")
    }
    if below and len(before) > 1:
        before = (f"{before[0]} {before[1]}", *before[2:])
        below = {}
    verb = VERBS.get(before[0]) if before else None
    found: dict[str, str] = {}
    if not before:
        verbs = {key: VERBS[key].help for key in VERBS if " " not in key}
        found = dict.fromkeys(TOP, "") if word.startswith("-") else verbs
    elif below and not word.startswith("-"):
        found = below
    elif verb is None or "--" in before:
        pass
    elif before[-1] in WITH_VALUE:
        found = dict.fromkeys(VALUES.get(before[-1], ()), "")
    elif word.startswith("-"):
        found = {option: "" for option in verb.options if option not in before}
    elif _arguments(before) < verb.recipes:
        found = dict.fromkeys(_recipes(before, environment), "")
    return {name: told for name, told in found.items() if name.startswith(word)}


def _arguments(before: Sequence[str]) -> int:
    """How many words after the command are neither options nor their values."""
    pairs = itertools.pairwise(before)
    return sum(not word.startswith("-") and last not in WITH_VALUE for last, word in pairs)


def _recipes(before: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The recipes of the folder that these words or the environment name."""
    folder = environment.get("ENVBUILDER_RECIPES") or "recipes"
    for option, value in itertools.pairwise(before):
        folder = value if option == "--recipes" else folder
    try:
        with os.scandir(folder) as entries:
            # zsh evaluates what it is given: no other name of a file may reach it.
            found = [re.fullmatch(r"([a-z0-9][a-z0-9._-]*)\.yaml", entry.name) for entry in entries]
    except OSError:
        return []
    return sorted(name[1] for name in found if name)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quotation that is not finished yet
        return line.split()


def _zsh(text: str) -> str:
    """Quoted as Typer does it."""
    for character, quoted in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
        text = text.replace(character, quoted)
    return text
