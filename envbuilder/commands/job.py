"""Verbs that run something in an environment: exec, shell, and launch on one machine or many."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from envbuilder.commands.context import (
    OUTPUT,
    RECIPES,
    Json,
    Name,
    NoColor,
    Output,
    Profile,
    Recipes,
    Session,
    Verbose,
    verb,
)
from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from envbuilder.run.launch.job import Wish

app = typer.Typer()
launch = typer.Typer(
    no_args_is_help=True,
    help="Start a distributed run: `envbuilder launch slurm a100 --nodes 2 -- train.py`.",
)
app.add_typer(launch, name="launch")


Form = Annotated[str, typer.Option("--in", help="`sif` or `image`; without it the SIF, where there is one")]
Print = Annotated[bool, typer.Option("--print", help="print the command line; run nothing")]
PROGRAM: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(name="exec", context_settings=PROGRAM)
def exec_(
    context: typer.Context,
    name: Name,
    *,
    inside: Form = "",
    profile: Profile = "",
    show: Print = False,
    output: Output = OUTPUT,
    no_color: NoColor = False,
    verbose: Verbose = 0,
) -> None:
    """Run a command in the environment: `envbuilder exec a100 -- python train.py`."""
    with verb("exec", as_json=False, verbose=verbose, no_color=no_color) as session:
        if not context.args:
            raise UsageError("there is no command to run", hint=f"envbuilder exec {name} -- python -V")
        _go_inside(session, name, context.args, form=inside, profile=profile, show=show, output=output)


@app.command()
def shell(
    name: Name,
    *,
    inside: Form = "",
    profile: Profile = "",
    show: Print = False,
    output: Output = OUTPUT,
    no_color: NoColor = False,
    verbose: Verbose = 0,
) -> None:
    """Open a shell in the environment."""
    with verb("shell", as_json=False, verbose=verbose, no_color=no_color) as session:
        _go_inside(session, name, [], form=inside, profile=profile, show=show, output=output)


def _go_inside(
    session: Session, name: str, argv: list[str], *, form: str, profile: str, show: bool, output: Path
) -> None:
    from envbuilder.run.exec import Inside, command_line, execute, parse_form  # noqa: PLC0415
    from envbuilder.run.launch.site import find_site  # noqa: PLC0415

    inside = Inside(
        name=name, argv=tuple(argv), form=parse_form(form), output=output, site=find_site(profile),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        folder=Path.cwd(), ids=(os.geteuid(), os.getegid()),
    )  # fmt: skip
    if show:
        session.text = command_line(inside, session.environment)
    else:
        execute(inside, session.environment)


@app.command()
def devcontainer(
    name: Name,
    *,
    image: Annotated[
        str,
        typer.Option("--image", metavar="REFERENCE", help="the image; default: the one that `build` loads"),
    ] = "",
    host: Annotated[
        str,
        typer.Option("--ssh", metavar="HOST", help="no Docker: set up sessions in the SIF on that machine"),
    ] = "",
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FOLDER", help="the project; with --ssh, where settings and keys go"),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="print the file; write nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a file that says something else")] = False,
    profile: Profile = "",
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Write `.devcontainer/devcontainer.json`, so that VS Code opens a project in the environment."""
    from envbuilder.artifacts.outputs import image_name  # noqa: PLC0415
    from envbuilder.recipe.model import find_recipe, load  # noqa: PLC0415
    from envbuilder.run.devcontainer import Desk, make_file, save_file  # noqa: PLC0415

    with verb("devcontainer", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        if host and (image or show):
            raise UsageError(
                "`--ssh` sets up another machine, and goes with neither `--image` nor `--print`",
                hint="leave `--ssh` out for a file of Docker's",
            )
        if host:
            _open_door(session, name, host, folder=write, profile=profile, output=output, force=force)
            return
        recipe = load(find_recipe(name, recipes))
        desk = Desk(python=recipe.python, has_cuda=bool(recipe.cuda), has_user=not recipe.image)
        text = make_file(recipe.name, image or image_name(recipe.name), desk)
        path = None if show else save_file(write or Path(), text, force=force)
        session.data = {"file": str(path or ""), "text": text}
        session.text = str(path or text.rstrip())


def _open_door(
    session: Session, name: str, host: str, *, folder: Path | None, profile: str, output: Path, force: bool
) -> None:
    from envbuilder.artifacts.outputs import find_outputs  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.run.launch.site import find_site  # noqa: PLC0415
    from envbuilder.run.ssh_session import Door, open_door  # noqa: PLC0415

    outputs = find_outputs(name, output)
    place = (folder or Path.home() / ".ssh/envbuilder").absolute()
    door = Door(
        name=outputs.name, sif=outputs.sif.absolute(), host=host, site=find_site(profile), folder=place
    )
    runner = ProcessRunner(session.environment, whole=True)
    config = open_door(door, runner, force=force)
    session.data = {"config": str(config), "host": door.alias}
    session.text = (
        f"{config}: `ssh -F {config} {door.alias}`; with `Include {config}` as the first line of ~/.ssh/config "
        f"VS Code knows `{door.alias}`, too"
    )


@app.command()
def module(
    name: Name,
    *,
    write: Annotated[Path, typer.Option("--write", metavar="FOLDER", help="where the module goes")] = Path(
        "modules"
    ),
    profile: Profile = "",
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Write a module file and its commands: after `module load NAME`, `python` and `torchrun` run in the SIF."""
    from envbuilder.run.exec import need_sif  # noqa: PLC0415
    from envbuilder.run.launch.job import probe_pins  # noqa: PLC0415
    from envbuilder.run.launch.site import find_site  # noqa: PLC0415
    from envbuilder.run.launch.start import read_in_sif  # noqa: PLC0415
    from envbuilder.run.modulefile import Module, save_module  # noqa: PLC0415

    with verb("module", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        outputs = need_sif(name, output, session.environment)
        sif, torch, cuda = probe_pins(outputs, read_in_sif)
        written = Module(name=outputs.name, sif=sif, torch=torch, cuda=cuda, site=find_site(profile))
        files = save_module(written, write.absolute())
        session.data = {"modulefiles": str(files), "commands": list(written.commands)}
        session.text = shlex.join(("module", "use", str(files))) + f" && module load {written.name}"


Nodes = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="machines")]
Gpus = Annotated[
    int | None, typer.Option("--gpus-per-node", metavar="G", min=0, help="GPUs, and a rank for each")
]
Ranks = Annotated[
    int | None, typer.Option("--ranks-per-node", metavar="R", min=1, help="ranks, where it is not one a GPU")
]
Write = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="write the script; start nothing")
]
Logs = Annotated[Path, typer.Option("--logs", metavar="DIR", help="where scripts and logs go")]
Grace = Annotated[
    int,
    typer.Option(
        "--grace", metavar="SECONDS", min=1, help="from TERM to the end: time to write a checkpoint"
    ),
]
SmokeRun = Annotated[bool, typer.Option("--smoke", help="check ranks, GPUs and collectives; no program")]
LOGS: Final = Path("logs")


@launch.command("slurm", context_settings=PROGRAM)
def launch_slurm(
    context: typer.Context, name: Name, *, nodes: Nodes = None, gpus: Gpus = None, ranks: Ranks = None,
    shape: Annotated[
        str, typer.Option("--shape", help="`torchrun`: a container a node; `tasks`: a container a rank")
    ] = "torchrun",
    partition: Annotated[str, typer.Option("--partition", help="instead of the profile's")] = "",
    account: Annotated[str, typer.Option("--account", help="instead of the profile's")] = "",
    qos: Annotated[str, typer.Option("--qos", help="instead of the profile's")] = "",
    time: Annotated[str, typer.Option("--time", help="instead of the profile's")] = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="one more of sbatch's own, as --sbatch=--constraint=h100"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="stay until the job has ended")] = False,
    profile: Profile = "", smoke: SmokeRun = False, write: Write = None, logs: Logs = LOGS, grace: Grace = 120,
    output: Output = OUTPUT, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Submit a job to Slurm."""
    from envbuilder.core.console import Console  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.run.launch import start  # noqa: PLC0415
    from envbuilder.run.launch.job import SlurmWish, Wish  # noqa: PLC0415

    with verb("launch slurm", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="slurm", shape=shape, nodes=nodes, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
            slurm=SlurmWish(
                partition=partition, account=account, qos=qos, time=time, options=tuple(sbatch or ())
            ),
        )  # fmt: skip
        if _written(session, wish, write):
            return
        runner = ProcessRunner(session.environment, whole=True)
        started = start.submit(
            start.script_of(start.prepare(wish, session.environment)),
            runner,
            wait=wait,
            tell=Console(color=session.color).say,
        )
        session.exit_code, session.text = started.code, started.text()
        session.data = {"job": started.number, "script": str(started.script), "log": str(started.log)}


@launch.command("ssh", context_settings=PROGRAM)
def launch_ssh(
    context: typer.Context, name: Name, *, nodes: Nodes = None, gpus: Gpus = None, ranks: Ranks = None,
    hosts: Annotated[str, typer.Option("--hosts", metavar="A,B,…", help="instead of the profile's")] = "",
    pdsh: Annotated[bool, typer.Option("--pdsh", help="reach them through pdsh")] = False,
    profile: Profile = "", smoke: SmokeRun = False, write: Write = None, logs: Logs = LOGS, grace: Grace = 120,
    output: Output = OUTPUT, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Run a job on machines reached by SSH; it ends on all of them when it ends on one."""
    from envbuilder.run.launch.job import Wish  # noqa: PLC0415

    with verb("launch ssh", as_json=False, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="ssh", nodes=nodes, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
            hosts=tuple(host for host in hosts.split(",") if host), pdsh=pdsh,
        )  # fmt: skip
        _written(session, wish, write) or _become(session, wish)


@launch.command("local", context_settings=PROGRAM)
def launch_local(
    context: typer.Context, name: Name, *, inside: Form = "", gpus: Gpus = None, ranks: Ranks = None, profile: Profile = "",
    smoke: SmokeRun = False, write: Write = None, logs: Logs = LOGS, grace: Grace = 120,
    output: Output = OUTPUT, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Run a job on this machine."""
    from envbuilder.run.exec import parse_form  # noqa: PLC0415
    from envbuilder.run.launch.job import Wish  # noqa: PLC0415

    with verb("launch local", as_json=False, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="local", nodes=1, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
            image=parse_form(inside) == "image",
        )  # fmt: skip
        _written(session, wish, write) or _become(session, wish)


def _written(session: Session, wish: "Wish", path: Path | None) -> bool:
    """With `--write`: write the script and say how it is started."""
    from envbuilder.run.launch import start  # noqa: PLC0415

    if path is None:
        return False
    job = start.prepare(wish, session.environment)
    session.data = {"script": str(start.save_script(path, start.script_of(job)))}
    session.text = start.start_command(job, path)
    return True


def _become(session: Session, wish: "Wish") -> NoReturn:
    from envbuilder.run.launch import start  # noqa: PLC0415

    start.become(start.prepare(wish, session.environment))


@launch.command("lint")
def launch_lint(
    scripts: Annotated[list[Path], typer.Argument(help="scripts for `sbatch`", metavar="SCRIPT")],
    *, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Find the mistakes in your own sbatch scripts that hang jobs or hide GPUs; exit code 2 for an error."""
    from envbuilder.run.launch.lint import lint_files  # noqa: PLC0415

    with verb("launch lint", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        session.findings = lint_files(scripts)
        session.exit_code = 2 if any(one.severity == "error" for one in session.findings) else 0
        session.text = "" if session.findings else "nothing found"
