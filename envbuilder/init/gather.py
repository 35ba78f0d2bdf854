"""Gather what `init` was given, ask for the rest at a terminal, and write the recipe."""

import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.compat.check import load_tables
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import need_no_credentials
from envbuilder.core.process import Runner
from envbuilder.init import WrittenRecipe, make, read_source
from envbuilder.init.prompt import ask_missing, offered, take_gpus, take_version
from envbuilder.init.readers.machine import read_machine
from envbuilder.init.readers.project import read_git
from envbuilder.init.requests import Requests
from envbuilder.lock.git import check_out, find_commit
from envbuilder.recipe.load import new_path
from envbuilder.recipe.requirement_file import parse_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the user gave: projects to read, pins, and whether to read this machine."""

    projects: tuple[str, ...]
    machine: bool
    gpus: tuple[str, ...]
    versions: Mapping[str, str]  # of pytorch and python; "" where none was given


def write_recipe(
    name: str,
    recipes: Path,
    sources: Sources,
    environment: Mapping[str, str],
    runner: Runner,
    *,
    ask: Callable[[str, str], str] | None,
    report: Callable[[str], None],
    typed: Sequence[str],
) -> WrittenRecipe:
    """Write a recipe of what the sources say and, with `ask`, of what the user answers. Raises UsageError where too little is known."""
    if not name:
        raise UsageError(
            "which name has the new recipe?",
            hint="`envbuilder init NAME`, or `envbuilder init --example a100`",
        )
    new_path(name, recipes)
    requests, tables = Requests(), load_tables()
    if sources.machine:
        read_machine(environment, runner, requests)
    for project in sources.projects:
        need_no_credentials(project)
        if re.match(r"git\+|\w+://", project):
            _read_repository(project, runner, requests)
        else:
            read_git(Path(project), runner, requests)
            read_source(Path(project), requests)
    if sources.gpus:
        take_gpus(sources.gpus, tables, requests)
    for key, version in sources.versions.items():
        if version:
            take_version(key, version, offered(tables)[key], requests, f"`--{key}`")
    if ask:
        ask_missing(requests, tables, ask, report)
    elif requests.gpus is None:
        raise UsageError(
            "without a terminal, `init` requires `--gpu MODEL`, such as A100, or `--gpu none`",
            hint=f"{shlex.join(('envbuilder', *typed))} --gpu MODEL",
        )
    return make(name, recipes, requests, (*(["this machine"] if sources.machine else []), *sources.projects))


def _read_repository(text: str, runner: Runner, requests: Requests) -> None:
    """Read the files of a git repository, and request its extensions by its commit."""
    place = parse_place(text if text.startswith("git+") else f"git+{text}")
    commit = find_commit(place.git, place.revision or "HEAD", runner)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch).resolve() / place.name
        check_out(place.git, commit, tree, runner)
        read_source(tree / place.path, requests)
        read_git(tree / place.path, runner, requests)
        requests.move(tree, place.git, commit)
