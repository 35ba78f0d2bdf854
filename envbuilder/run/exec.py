"""`exec`: run a command or a shell in the SIF, otherwise in the image."""

import logging
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, get_args

from envbuilder.artifacts.outputs import SIF, Outputs, find_outputs
from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, ProcessRunner, exec_process
from envbuilder.core.processor import Processor, own_processor, own_title
from envbuilder.core.system import why_no_engine
from envbuilder.plan.shell import matches, untold
from envbuilder.recipe.load import recipes_folder
from envbuilder.run import container as run
from envbuilder.run.launch.site import Site
from envbuilder.run.named import absent, need_image, need_sif

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine

EMULATORS: Final = "/proc/sys/fs/binfmt_misc"
_PIP: Final = re.compile(r"(pip[\d.]*|python[\d.]* -m pip)(?= |$)")
_NO_PIP: Final = re.compile(r"exit code 127$|No module named pip$", re.MULTILINE)  # of `env`, and of Python
INSIDE: Final = "APPTAINERENV_"  # before the name of a variable that Apptainer sets in the container
Form = Literal["sif", "image", ""]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOptions:
    """A command to run in an environment. An empty one is a shell."""

    name: str  # of a recipe that was built, or a path to a SIF
    argv: tuple[str, ...]
    form: Form  # "": the SIF if it exists, otherwise the image
    terminal: bool
    output: Path
    site: Site
    folder: Path
    ids: tuple[int, int]  # user and group
    given: tuple[str, ...] = ()  # NAME or NAME=VALUE: variables to pass on purpose
    writable: bool = False  # in the SIF: with the virtual environment of the folder over the environment


def named_variables(options: ExecOptions, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that are passed by their name. Raises UsageError for one that is not set."""
    for name, equals, _ in (text.partition("=") for text in options.given):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"`--env {name}`: no variable has such a name", hint="write `--env NAME=VALUE`")
        if not equals and name not in environment:
            hint = f"`--env {name}=VALUE` sets it"
            raise UsageError(f"`--env {name}`: this variable is not set here", hint=hint)
    return tuple(text for text in options.given if "=" not in text)


def parse_form(text: str) -> Form:
    forms: tuple[Form, ...] = get_args(Form)
    for form in forms:
        if form == text:
            return form
    hint = "leave it out to use whichever is there"
    raise UsageError(f"`--in` takes `sif` or `image`, found `{text}`", hint=hint)


def execute(options: ExecOptions, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, which then has the terminal, the signals and the exit code."""
    outputs, recipes = find_outputs(options.name, options.output), recipes_folder(environment)
    if options.writable and options.form == "image":
        hint = f"`envbuilder devcontainer {pasted(options.name)}` gives the image a second environment"
        raise UsageError("`--writable` is for the SIF", hint=hint)
    in_sif = _want_sif(replace(options, form="sif") if options.writable else options, environment)
    if in_sif:
        run.need_apptainer(environment)
        need_processor(outputs.sif)
    else:
        docker = need_engine(outputs, environment) if options.form == "image" else connect(environment)
        also = f"there is no SIF `{outputs.sif}`, and " if not options.form else ""
        if docker is None:
            raise absent(f"{also}{why_no_engine(environment)}", options.name, recipes)
        need_image(docker, options.name, outputs, recipes, also=also)
        run.need_docker()
        if also:
            log.warning("%sthe command runs in the image `%s`", also, outputs.image_name)
    if options.writable:
        from envbuilder.run.desk import through_venv  # noqa: PLC0415 - uv and the sources, for this alone

        options = replace(options, argv=through_venv(outputs, options.folder, options.argv, environment))
    named = {f"{INSIDE}{name}": environment[name] for name in named_variables(options, environment)}
    words, given = _command_line(options, environment, in_sif=in_sif), {**environment, **named}
    if not options.writable:
        _need_pip(options, words, given)
    exec_process(words, given)


def _need_pip(options: ExecOptions, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raise UsageError if the command is pip, and the environment has none. One has it if its recipe names it."""
    pip = _PIP.match(" ".join(options.argv))
    if pip is None:
        return
    before = [word for word in words[: -len(options.argv)] if word != "--tty"]
    argv = (*before, *pip[0].split(), "--version")
    try:
        ProcessRunner(environment, whole=True).run(Command(argv=argv, why="look for pip"))
    except CommandError as error:  # another one is shown by the command itself
        if _NO_PIP.search(error.message):
            recipe = find_outputs(options.name, options.output).name
            raise UsageError(
                f"there is no pip in `{options.name}`: an environment stays as it was built",
                hint=f"`envbuilder add {pasted(recipe)} PACKAGE` puts a package into the recipe and builds it; "
                f"`envbuilder exec {pasted(options.name)} --writable -- {pasted(*options.argv)}` has pip, to try packages",
            ) from error


def _command_line(options: ExecOptions, environment: Mapping[str, str], *, in_sif: bool) -> tuple[str, ...]:
    """Return the command line that `execute` runs, of Apptainer or of `docker run`.

    Variables that are passed by their name are not in it, because every user sees the list of processes.
    """
    outputs, binds = find_outputs(options.name, options.output), options.site.present_binds(environment)
    given = dict(text.split("=", 1) for text in options.given if "=" in text)
    named = named_variables(options, environment)
    around = run.probe_surroundings(
        options.folder, environment=environment, ids=options.ids, binds=binds, given=given, named=named
    )
    silent = (*untold(), *given, *named)
    lost = [name for name, _ in around.changes if not name.startswith(INSIDE) and not matches(name, silent)]
    if lost and not environment.get("ENVBUILDER_SHELL"):
        names = ", ".join(lost)
        log.warning("warning: kept out of the environment: %s; `--env NAME` passes a variable", names)
    if in_sif:
        return run.sif_argv(outputs.sif, options.argv, around)
    return run.image_argv(outputs.image_name, options.argv, around, terminal=options.terminal)


def printed(options: ExecOptions, environment: Mapping[str, str]) -> str:
    """Return the command line that `execute` runs, as a line for a shell."""
    in_sif = _want_sif(options, environment)
    names = named_variables(options, environment) if in_sif else ()
    passed = "".join(f'{INSIDE}{name}="${name}" ' for name in names)
    return passed + shlex.join(_command_line(options, environment, in_sif=in_sif))


def _want_sif(options: ExecOptions, environment: Mapping[str, str]) -> bool:
    """Return whether the command runs in the SIF. Raises what `need_sif` raises."""
    is_there = os.path.lexists(find_outputs(options.name, options.output).sif)
    is_wanted = options.form != "image" and (is_there or options.form == "sif" or options.name.endswith(SIF))
    if is_wanted:
        need_sif(options.name, options.output, recipes_folder(environment))
    return is_wanted


def need_processor(sif: Path) -> None:
    """Raise UsageError for a SIF of another processor than this machine's, unless the kernel has an emulator for it."""
    from envbuilder.artifacts.sif import processor_in  # noqa: PLC0415 - `exec --help` does without zstandard

    processor = processor_in(sif)
    if processor and (why := _why_not_here(f"`{sif}`", processor)):
        hint = f"run it on a machine that is {processor.title}: `envbuilder push` and `pull` take it there"
        raise UsageError(why, hint=hint)


def _why_not_here(what: str, processor: Processor) -> str:
    """Return the sentence about another processor than this machine's, "" if the machine runs its programs."""
    if processor is own_processor() or Path(EMULATORS, f"qemu-{processor.machine}").exists():
        return ""
    return f"{what} is for {processor.title}, and this machine is {own_title()}"


def connect(environment: Mapping[str, str]) -> "DockerEngine | None":
    """Return the Docker engine, None if none is running."""
    from envbuilder.artifacts import docker_engine  # noqa: PLC0415 - the Docker SDK, where there is no SIF

    return docker_engine.connect(environment)


def need_engine(outputs: Outputs, environment: Mapping[str, str]) -> "DockerEngine":
    """Return the Docker engine; raises ToolError when none is running."""
    docker = connect(environment)
    if docker is None:
        raise ToolError(
            f"{why_no_engine(environment)}, so nothing can run in `{outputs.image_name}`",
            hint="`--in sif` runs in the SIF, without an engine",
        )
    return docker


def warn_of_missing_image(
    name: str, processor: Processor, outputs: Outputs, recipes: Path, environment: Mapping[str, str]
) -> None:
    """Warn if the Docker engine lacks the recipe's image. No engine is no mistake: the project may open elsewhere.

    Raises what `need_image` raises for an image that is there.
    """
    if why := _why_not_here(f"the image of `{name}`", processor):
        log.warning("warning: %s; open the folder on a machine that is %s", why, processor.title)
    elif docker := connect(environment):
        try:
            need_image(docker, name, outputs, recipes)
        except UsageError as error:
            log.warning("warning: %s; %s", error.message, error.hint)
