"""The commands, one module each: options, typed answer, examples.

A command reads what the user typed, calls the stage that does the work, and answers.
`cli` imports the module of the command that was called, and no other. To add a command, write `commands/NAME.py` with
a function NAME under `@command`, and add its line to `COMMANDS`.
"""

from collections.abc import Mapping
from typing import Final

# The name of each command, in the order of `envbuilder --help`, and its line there.
COMMANDS: Final[Mapping[str, str]] = {
    "init": "Write a first recipe",
    "list": "List the recipes with their pins",
    "show": "Show the effective recipe",
    "check": "Report everything in the recipe that cannot work",
    "render": "Print the whole build as text",
    "lock": "Resolve a recipe into its lock",
    "build": "Build image and SIF from the lock",
    "add": "Add packages to an environment in one more layer",
    "extensions": "List a recipe's compiled extensions",
    "verify": "Prove that image and SIF hold the same files",
    "report": "Write an HTML page about what was built",
    "sbom": "Print the SBOM of what was built",
    "sign": "Sign image and SIF with your own key",
    "diff": "Compare two locks, images or SIFs",
    "cache": "Show what the cache holds, or free its space",
    "push": "Push image and SIF to an OCI registry",
    "pull": "Pull image and SIF from an OCI registry",
    "history": "List the versions of a SIF, and switch to another one",
    "detect": "Show what NCCL should be told on this machine",
    "diagnose": "Find known failures in training, build or kernel logs",
    "doctor": "Check whether this machine can build and run environments",
    "exec": "Run a command in the environment",
    "shell": "Open a shell in the environment",
    "devcontainer": "Open a project in the environment, in VS Code",
    "kernel": "Write a Jupyter kernel that runs in the environment",
    "module": "Write a module file and its commands",
    "launch": "Start a distributed run",
}
