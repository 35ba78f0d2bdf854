"""`exec` and `shell`: a command in the SIF or in the image, whichever is there."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from envbuilder import run
from envbuilder.errors import ToolError, UsageError
from envbuilder.launch.site import Site
from envbuilder.outputs import Outputs
from envbuilder.publish import connect

Form = Literal["sif", "image", ""]
SIF: Final = ".sif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A command in an environment, or without one a shell."""

    name: str  # of a recipe that was built, or a path to a SIF
    argv: tuple[str, ...]
    form: Form  # "": whichever is there, SIF first
    terminal: bool
    output: Path
    site: Site
    folder: Path
    ids: tuple[int, int]  # user and group


def parse_form(text: str) -> Form:
    known: tuple[Form, ...] = get_args(Form)
    found = next((form for form in known if form == text), None)
    if found is None:
        raise UsageError(
            f"`--in` takes `sif` or `image`, found `{text}`", hint="leave it out to use whichever is there"
        )
    return found


def find_outputs(name: str, output: Path) -> Outputs:
    """Where `build` put a recipe's artefacts; of a path to a SIF, those beside it."""
    path = Path(name)
    return Outputs(folder=path.parent if path.suffix == SIF else output, name=path.stem)


def execute(inside: Inside, environment: Mapping[str, str]) -> int:
    """Run it and return its exit code; a SIF's command takes this process's place."""
    outputs, around = find_outputs(inside.name, inside.output), _surroundings(inside, environment)
    if _want_sif(inside, outputs):
        run.become_sif(outputs.sif, inside.argv, around)
    client = connect(environment)
    if client is None:
        raise ToolError(
            f"there is no SIF `{outputs.sif}`, and no Docker engine answers", hint=_build_hint(inside)
        )
    return run.talk_in_image(client, outputs.image_name, inside.argv, around, terminal=inside.terminal)


def command_line(inside: Inside, environment: Mapping[str, str]) -> str:
    """What `execute` would run, for a shell to read."""
    outputs, around = find_outputs(inside.name, inside.output), _surroundings(inside, environment)
    if _want_sif(inside, outputs):
        return shlex.join(run.sif_argv(outputs.sif, inside.argv, around))
    return shlex.join(run.image_argv(outputs.image_name, inside.argv, around, terminal=inside.terminal))


def _surroundings(inside: Inside, environment: Mapping[str, str]) -> run.Surroundings:
    binds = inside.site.present_binds(environment)
    return run.probe_surroundings(inside.folder, environment=environment, ids=inside.ids, binds=binds)


def _want_sif(inside: Inside, outputs: Outputs) -> bool:
    if inside.form == "image":
        return False
    if outputs.sif.exists():
        return True
    if inside.form == "sif" or inside.name.endswith(SIF):
        raise UsageError(f"there is no SIF `{outputs.sif}`", hint=_build_hint(inside))
    return False


def _build_hint(inside: Inside) -> str:
    return f"`envbuilder build {Path(inside.name).stem}` makes it; `--output` says where it is"
