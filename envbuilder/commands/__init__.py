"""The commands, one module each: options, typed reply, examples.

A command reads what the user typed, calls the stage that does the work, and returns its reply.
`cli` imports the module of the command that was called, and no other. To add a command, write `commands/NAME.py` with
a function NAME under `@command`, and add its line to `GROUPS`.
"""

from collections.abc import Mapping
from typing import Final

# The headings of `envbuilder --help`, the commands below each, and the line of each command there.
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Make an environment": {
        "init": "Write a first recipe",
        "list": "List the recipes with their pins",
        "show": "Show a recipe, its extensions or its SBOM",
        "check": "Report everything in the recipe that cannot work",
        "lock": "Resolve a recipe into its lock",
        "build": "Build image and SIF from the lock",
        "add": "Add packages to a recipe, lock it and build it",
        "render": "Print the whole build as text",
        "cache": "Show what the cache holds, or free its space",
    },
    "Prove what was built": {
        "verify": "Prove that image and SIF hold the same files",
        "report": "Write an HTML page about what was built",
        "sign": "Sign image and SIF with your own key",
        "diff": "Compare two locks, images or SIFs",
    },
    "Move it": {
        "push": "Push image and SIF to an OCI registry",
        "pull": "Pull image and SIF from an OCI registry",
        "history": "List the versions of a SIF, and switch to another one",
    },
    "Run it": {
        "exec": "Run a command or a shell in the environment",
        "launch": "Start a distributed run",
        "devcontainer": "Open a project in the environment, in VS Code",
        "kernel": "Write a Jupyter kernel that runs in the environment",
        "module": "Write a module file and its commands",
    },
    "On a node": {
        "detect": "Show what NCCL should be told on this machine",
        "watch": "Say who waits for whom in a job that hangs",
        "diagnose": "Find known failures in training, build or kernel logs",
        "doctor": "Check whether this machine can build and run environments",
    },
}
COMMANDS: Final[Mapping[str, str]] = {name: line for group in GROUPS.values() for name, line in group.items()}
# Earlier names, and what answers now; `{}` stands for the words after the name.
RENAMED: Final[Mapping[str, str]] = {
    "extensions": "`envbuilder show {} --extensions`",
    "sbom": "`envbuilder show {} --sbom`",
    "shell": "`envbuilder exec {}`",
    "sync": "`rsync build/NAME.sif HOST:FOLDER/`, which moves only what changed: docs/how-to/registry.md",
}
# The same for the values of `build --runner`, which was `--engine`.
RENAMED_RUNNERS: Final[Mapping[str, str]] = {"assemble": "sandbox", "docker": "buildkit"}
