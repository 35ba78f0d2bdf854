"""Read this machine: its GPUs and driver, and the compilers, Python and torch on PATH."""

import re
from collections.abc import Mapping
from typing import Final

from envbuilder.compat.host_file import find_name
from envbuilder.compat.tables.cuda import load_gpus
from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command, Runner
from envbuilder.init.requests import Requests
from envbuilder.node.detect import detect_here
from envbuilder.node.nccl.facts import Facts

WHERE: Final = "this machine"
_PYTHON: Final = """\
import importlib.metadata, platform
print("Python", platform.python_version())
print("torch", importlib.metadata.version("torch"))"""
# Programs that print versions, with a pattern for each version.
_ASK: Final[tuple[tuple[tuple[str, ...], dict[str, tuple[str, str]]], ...]] = (
    (("nvcc", "--version"), {"cuda": (r"release (\d+\.\d+)", "=={}")}),
    (("gcc", "-dumpversion"), {"gcc": (r"^(\d+)", "=={}")}),
    (
        ("python3", "-c", _PYTHON),
        {"python": (r"^Python (\d+\.\d+)", "=={}.*"), "pytorch": (r"^torch (\d+\.\d+\.\d+)", "=={}")},
    ),
)


def read_machine(environment: Mapping[str, str], runner: Runner, requests: Requests) -> None:
    """Request the versions that this machine has."""
    read_facts(detect_here(environment, runner, Facts()).facts, requests)
    for argv, versions in _ASK:
        command = Command(argv=argv, why=f"ask for the version of {argv[0]}", accept=(0, 1))
        try:
            output = runner.run(command)
        except (CommandError, ToolError):
            continue
        for key, (pattern, specifier) in versions.items():
            if version := re.search(pattern, output, re.MULTILINE):
                requests.pin(key, specifier.format(version[1]), f"`{argv[0]}` of {WHERE}")


def read_facts(facts: Facts, requests: Requests) -> None:
    """Request the GPUs, by the names that recipes use."""
    known = tuple(row.name for row in load_gpus().rows)
    names = []
    for gpu in dict.fromkeys(gpu.name for gpu in facts.gpus or () if gpu.name):
        if name := find_name(gpu, known):
            names.append(name)
        else:
            requests.leave(WHERE, gpu, "no GPU of that name is known", hint=f"GPUs: {', '.join(known)}")
    if facts.gpus is not None:
        requests.gpus = tuple(dict.fromkeys(names))
    requests.driver = facts.driver or ""
