"""Read this machine: its GPUs and driver, and the compilers, Python and torch on PATH."""

import re
from collections.abc import Mapping
from typing import Final

from envbuilder.compat.host_file import find_name
from envbuilder.compat.tables.gpu import load_gpus
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
    read_facts(detect_here(environment, runner, Facts())[0], requests)
    for argv, versions in _ASK:
        command = Command(argv=argv, why=f"ask for the version of {argv[0]}", accept=(0, 1))
        try:
            output = runner.run(command)
        except (CommandError, ToolError):
            continue
        for key, (pattern, specifier) in versions.items():
            if found := re.search(pattern, output, re.MULTILINE):
                requests.pin(key, specifier.format(found[1]), f"`{argv[0]}` of {WHERE}")


def read_facts(facts: Facts, requests: Requests) -> None:
    """Request the GPUs, by the names that recipes use."""
    known = tuple(row.name for row in load_gpus().rows)
    names = list(dict.fromkeys(gpu.name for gpu in facts.gpus or () if gpu.name))
    found = {name: find_name(name, known) for name in names}
    for name in (name for name, short in found.items() if short is None):
        requests.leave(WHERE, name, "no GPU of that name is known", hint=f"GPUs: {', '.join(known)}")
    if facts.gpus is not None:
        requests.gpus = tuple(dict.fromkeys(short for short in found.values() if short))
    requests.driver = facts.driver or ""
