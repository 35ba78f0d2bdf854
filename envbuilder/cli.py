"""The command line: reads arguments and the environment, prints results, and turns errors into exit codes.

The only module that catches errors, prints to stdout and exits, but for the two answers that `__main__` gives at once. What
a verb needs is imported when it runs.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from envbuilder import __version__
from envbuilder.errors import EnvbuilderError, UsageError
from envbuilder.findings import Finding

if TYPE_CHECKING:
    from envbuilder.launch.job import Wish
    from envbuilder.pipeline import Workshop

ENVELOPE_VERSION: Final = 1
INTERRUPTED: Final = 130

app = typer.Typer(
    name="envbuilder", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One recipe becomes one environment: a Docker image and a SIF that hold the same files.",
)  # fmt: skip
tables = typer.Typer(no_args_is_help=True, help="The tables of compatibility, for maintainers.")
app.add_typer(tables, name="tables", hidden=True)
launch = typer.Typer(
    no_args_is_help=True,
    help="Start a distributed run: `envbuilder launch slurm a100 --nodes 2 -- train.py`.",
)
app.add_typer(launch, name="launch")

Name = Annotated[
    str, typer.Argument(help="a recipe in `recipes/`, or a path to a recipe file", metavar="NAME")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON envelope on stdout")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="show each command; twice: its output as well")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="no colour; NO_COLOR does the same")]
Recipes = Annotated[
    Path, typer.Option("--recipes", help="the folder of recipes", envvar="ENVBUILDER_RECIPES")
]
Output = Annotated[Path, typer.Option("--output", help="the folder of artefacts")]
RECIPES: Final = Path("recipes")
OUTPUT: Final = Path("build")


@dataclass(slots=True)
class Session:
    """One call of the command line: how to answer, and the answer."""

    command: str = ""
    as_json: bool = False
    color: bool = True
    data: object = None
    text: str = ""
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    stop: Callable[[], None] = lambda: None  # ends what runs, when a person interrupts


SESSION: Final = Session()


@contextlib.contextmanager
def verb(command: str, *, as_json: bool, verbose: int, no_color: bool) -> Iterator[Session]:
    """Set the session up for one command."""
    from envbuilder import console  # noqa: PLC0415

    SESSION.command, SESSION.as_json = command, as_json
    SESSION.environment = dict(os.environ)
    SESSION.color = not no_color and not SESSION.environment.get("NO_COLOR")
    console.setup(verbose)
    yield SESSION


def cache_folder(session: Session) -> Path:
    import platformdirs  # noqa: PLC0415

    return Path(session.environment.get("ENVBUILDER_CACHE") or platformdirs.user_cache_dir("envbuilder"))


def workshop(session: Session, recipes: Path, *, writes: bool = True) -> "Workshop":
    """What the environment says: cache folder, cores, memory."""
    from envbuilder.capacity import usable_cores, usable_memory  # noqa: PLC0415
    from envbuilder.command import ProcessRunner  # noqa: PLC0415
    from envbuilder.console import Console  # noqa: PLC0415
    from envbuilder.engines.assemble import Limits  # noqa: PLC0415
    from envbuilder.pipeline import Workshop  # noqa: PLC0415
    from envbuilder.store import Store  # noqa: PLC0415

    runner, console = ProcessRunner(session.environment), Console(color=session.color)

    def stop() -> None:
        runner.stop()
        console.close()

    session.stop = stop
    return Workshop(
        store=Store(cache_folder(session), create=writes),
        runner=runner,
        console=console,
        environment=session.environment,
        recipes=recipes,
        limits=Limits(threads=usable_cores(), memory=usable_memory(), root=os.geteuid() == 0),
    )


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        SESSION.text = f"envbuilder {__version__}"
        raise typer.Exit


@app.command("list")
def list_(
    *, recipes: Recipes = RECIPES, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False
) -> None:
    """List the recipes with their pins."""
    from envbuilder.recipe import list_recipes, load  # noqa: PLC0415

    with verb("list", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        rows = []
        for name in list_recipes(recipes):
            recipe = load(recipes / f"{name}.yaml")
            pins = {
                "base": recipe.base,
                "python": recipe.python,
                "pytorch": recipe.pytorch,
                "cuda": recipe.cuda,
                "gcc": recipe.gcc,
            }
            rows.append({"name": name, "summary": recipe.summary, "gpus": list(recipe.gpus)} | pins)
        session.data = rows
        session.text = "\n".join(
            f"{row['name']:<10} torch {row['pytorch']:<8} cuda {row['cuda'] or '-':<5} gcc {row['gcc']:<3} "
            f"python {row['python']:<5} {row['base']:<16} {row['summary']}"
            for row in rows
        )


@app.command()
def show(
    name: Name,
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Show the effective recipe, where each value came from, and what follows from the pins."""
    from envbuilder.check import load_tables  # noqa: PLC0415
    from envbuilder.check.facts import brief, facts, table  # noqa: PLC0415
    from envbuilder.recipe import find_recipe, load  # noqa: PLC0415
    from envbuilder.tables.toolkit import load_toolkits  # noqa: PLC0415

    with verb("show", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipe = load(find_recipe(name, recipes))
        values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
        found = facts(recipe, load_tables(load_toolkits()))
        session.data = {
            "name": recipe.name,
            "recipe": values,
            "places": dict(recipe.places),
            "facts": [{"name": one.name, "value": one.value, "source": one.source} for one in found],
        }
        pins = [(key, brief(value), recipe.place(f"$.{key}")) for key, value in values.items()]
        session.text = (
            f"{table(pins)}\n\n{table([(one.name, one.value, one.source) for one in found])}".rstrip()
        )


@app.command()
def check(
    name: Name,
    *,
    host: Annotated[
        Path | None, typer.Option("--host", help="facts of the machine it is to run on: `driver`, `gpus`")
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Report everything in the recipe that cannot work, before anything is downloaded."""
    from envbuilder.check import examine_file, need_sound  # noqa: PLC0415

    with verb("check", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipe, report = examine_file(name, recipes, host)
        session.data = {"name": recipe.name, "repairs": [repair.data() for repair in report.repairs]}
        need_sound(recipe, report)
        session.findings = report.findings
        session.text = f"{name}: nothing that cannot work" if not report.findings else ""


@app.command()
def lock(
    name: Name,
    packages: Annotated[
        list[str] | None,
        typer.Argument(help="with --upgrade: the packages that may move", metavar="[PKG…]"),
    ] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="choose versions anew: of PKG…, or all of them")
    ] = False,
    before: Annotated[
        datetime | None,
        typer.Option(
            "--before", formats=["%Y-%m-%d"], metavar="DATE", help="choose as of the start of that day, UTC"
        ),
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Resolve a recipe into its lock, `NAME.lock` beside it."""
    from envbuilder.pipeline import lock_recipe  # noqa: PLC0415
    from envbuilder.resolve import Wish  # noqa: PLC0415

    with verb("lock", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        if packages and not upgrade:
            raise UsageError(
                "packages go with `--upgrade`", hint=f"envbuilder lock {name} --upgrade {' '.join(packages)}"
            )
        wish = Wish(
            today=datetime.now(UTC).date(),
            upgrade=upgrade and not packages,
            upgrade_only=tuple(packages or ()),
            before=before.date() if before else None,
        )
        changes = lock_recipe(name, workshop(session, recipes), wish=wish, save=not check)
        session.data = {"changes": list(changes)}
        session.text = "\n".join(changes) or f"the lock of {name} is as it was"
        if check and changes:
            session.exit_code = 4


@app.command()
def build(
    names: Annotated[list[str], typer.Argument(help="recipes, or paths to recipe files", metavar="NAME…")],
    *,
    output: Output = OUTPUT,
    offline: Annotated[bool, typer.Option("--offline", help="use what the cache holds, no network")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan and the commands; write nothing")
    ] = False,
    host: Annotated[
        Path | None,
        typer.Option("--host", help="bake a profile of the site: what `detect --save` wrote there"),
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Build image and SIF from the lock, verify them, and load the image where a Docker engine answers."""
    from envbuilder.pipeline import build_recipe, explain  # noqa: PLC0415

    with verb("build", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        shop = workshop(session, recipes, writes=not dry_run)
        if dry_run:
            explained = [explain(name, shop, host) for name in names]
            session.data = [
                {"name": one.name, "plan": one.plan, "commands": list(one.commands)} for one in explained
            ]
            session.text = "\n".join(
                f"{one.plan}\n" + "\n".join(f"$ {line}" for line in one.commands) for one in explained
            )
            return
        rows, lines = [], []
        for name in names:
            result = build_recipe(name, shop, output=output, offline=offline, host=host)
            session.findings += result.findings
            row = result.summary()
            rows.append(row)
            lines.append(result.text())
        session.data, session.text = rows, "\n".join(lines)


@app.command()
def extensions(
    name: Name,
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """List a recipe's compiled extensions: key, architectures, size, compile time, and where each came from."""
    from envbuilder.engines.extensions import table  # noqa: PLC0415
    from envbuilder.pipeline import list_extensions  # noqa: PLC0415

    with verb("extensions", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        rows = list_extensions(name, workshop(session, recipes, writes=False))
        session.data = list(rows)
        session.text = table(rows) if rows else f"{name} has no extensions"


@app.command()
def verify(
    name: Annotated[
        str,
        typer.Argument(
            help="a recipe that was built; or an image: an OCI layout, an archive, a name in the Docker engine",
            metavar="NAME|IMAGE",
        ),
    ],
    sif: Annotated[Path | None, typer.Argument(help="the SIF, where the first is an image")] = None,
    *,
    key: Annotated[
        Path | None, typer.Option("--key", help="a public key: both must be signed with it")
    ] = None,
    oldest_host: Annotated[
        str,
        typer.Option(
            "--oldest-host",
            metavar="GLIBC",
            help="name what needs a newer glibc: a version, or a base such as debian/bullseye",
        ),
    ] = "",
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Prove that image and SIF hold the same files, path by path, whoever made them, and audit what they hold."""
    from envbuilder.examine import verify_built, verify_pair  # noqa: PLC0415

    with verb("verify", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        shop = workshop(session, recipes)
        if sif:
            verified = verify_pair(name, sif, shop, oldest_host=oldest_host, key=key)
        else:
            verified = verify_built(name, shop, output=output, oldest_host=oldest_host, key=key)
        session.data, session.text, session.findings = verified.data(), verified.text(), verified.findings


@app.command()
def sbom(
    name: Annotated[str, typer.Argument(help="a recipe that was built, or a SIF", metavar="NAME|SIF")],
    *,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="how it was made instead: an in-toto statement")
    ] = False,
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Print the parts list of what was built, in SPDX: every package with its version, licence and hash."""
    from envbuilder.pipeline import read_documents  # noqa: PLC0415

    with verb("sbom", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        session.text = read_documents(name, output)[provenance].rstrip("\n")
        session.data = json.loads(session.text)


@app.command()
def sign(
    name: Annotated[str, typer.Argument(help="a recipe that was built", metavar="NAME")],
    *,
    key: Annotated[
        Path, typer.Option("--key", help="a private key of yours in a PEM file: ECDSA or Ed25519")
    ],
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Sign image and SIF with a key of yours, without a network."""
    from envbuilder.pipeline import sign_artefacts  # noqa: PLC0415

    with verb("sign", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        facts = sign_artefacts(name, workshop(session, RECIPES), output=output, key=key)
        session.data = facts
        session.text = f"signed {facts['sif']} and the image; the statement is {facts['bundle']}"


@app.command()
def diff(
    one: Annotated[
        str,
        typer.Argument(
            help="a lock or its recipe, a SIF, or an image: a layout, an archive, a name in Docker",
            metavar="A",
        ),
    ],
    other: Annotated[str, typer.Argument(help="the same", metavar="B")],
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what is different between two locks, images or SIFs: packages, files, sizes, environment, NCCL settings."""
    from envbuilder.examine import diff as compare  # noqa: PLC0415

    with verb("diff", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        found = compare(one, other, workshop(session, recipes))
        session.data, session.text = found.data(), found.text()


@app.command()
def cache(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="with --gc: what to remove, all but `layers` and `extensions` if nothing is named; `vendor`: write all that the lock of NAME names into DIR",
            metavar="[KIND… | vendor NAME DIR]",
        ),
    ] = None,
    *,
    gc: Annotated[
        bool, typer.Option("--gc", help="remove what a later build can fetch or make again")
    ] = False,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what the cache holds, free its space (`cache --gc trees`), or copy out what a lock needs (`cache vendor a100 DIR`)."""
    from envbuilder.store import KEPT, KINDS  # noqa: PLC0415

    with verb("cache", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        shop = workshop(session, recipes)
        match words or []:
            case ["vendor", name, folder] if not gc:
                _vendor(session, shop, name, Path(folder))
                return
            case ["vendor", *_]:
                raise UsageError(
                    "`vendor` takes a recipe and a folder", hint="envbuilder cache vendor cpu DIR"
                )
            case kinds:
                pass
        store = shop.store
        if unknown := sorted(set(kinds) - set(KINDS)):
            raise UsageError(f"the cache has no `{unknown[0]}`", hint=f"it has {', '.join(KINDS)}")
        if kinds and not gc:
            raise UsageError("kinds go with `--gc`", hint=f"envbuilder cache --gc {' '.join(kinds)}")
        if gc:
            store.sweep()
            store.clear(kinds or [kind for kind in KINDS if kind not in KEPT])
        sizes = store.sizes()
        session.data = {"folder": str(store.root), "bytes": sizes}
        rows = (f"  {kind:<10} {size / 1e9:8.2f} GB" for kind, size in sizes.items())
        session.text = "\n".join([str(store.root), *rows])


def _vendor(session: Session, shop: "Workshop", name: str, folder: Path) -> None:
    from envbuilder.pipeline import vendor_recipe  # noqa: PLC0415

    done = vendor_recipe(name, shop, folder.absolute())
    session.data = {
        "folder": str(done.folder),
        "files": done.count,
        "bytes": done.size,
        "command": done.command,
    }
    session.text = f"{done.folder}: {done.count} files, {done.size / 1e9:.2f} GB\n$ {done.command}"


@app.command()
def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="log files, folders of them, dumps of the flight recorder, or `-`", metavar="LOG…"
        ),
    ],
    *,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Name the known failure in training, build or kernel logs, the line that shows it, and the repair."""
    from envbuilder.diagnose import diagnose as examine  # noqa: PLC0415
    from envbuilder.diagnose import findings, report  # noqa: PLC0415

    with verb("diagnose", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        diagnosis = examine(logs, sys.stdin.buffer)
        session.data, session.text = report.data(diagnosis), report.text(diagnosis)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(diagnosis)


@app.command()
def doctor(
    *,
    purpose: Annotated[
        str, typer.Option("--for", metavar="build|run", help="default: both; in a Slurm cluster `run`")
    ] = "",
    fix: Annotated[
        bool, typer.Option("--fix", help="do the safe repairs and say what was done; installs nothing")
    ] = False,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what this machine can and cannot do for envbuilder, why it matters, and what repairs it."""
    from envbuilder.command import ProcessRunner  # noqa: PLC0415
    from envbuilder.doctor import Purpose, exit_code, findings, report, visit  # noqa: PLC0415
    from envbuilder.doctor.node import has_slurm  # noqa: PLC0415
    from envbuilder.doctor.scene import make_scene  # noqa: PLC0415

    with verb("doctor", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        if purpose not in ("", *Purpose):
            raise UsageError(
                f"`--for` takes `build` or `run`, found `{purpose}`", hint="leave it out for both"
            )
        env, cache = session.environment, cache_folder(session)
        runner = ProcessRunner(env)
        session.stop = runner.stop
        usual = [Purpose.RUN] if has_slurm(env, Path("/")) else list(Purpose)
        seen = visit(
            lambda: make_scene(env, runner, cache=cache, output=output, recipes=recipes),
            [Purpose(purpose)] if purpose else usual,
            fix=fix,
            tell=lambda line: print(line, file=sys.stderr),
        )
        session.data, session.text = report.data(seen), report.text(seen)
        session.exit_code = exit_code(seen)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(seen)


Profile = Annotated[
    str, typer.Option("--profile", help="the site: a file, or its name in `sites/`", envvar="ENVBUILDER_SITE")
]
Form = Annotated[str, typer.Option("--in", help="`sif` or `image`; default: whichever is there, SIF first")]
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
    from envbuilder.launch.inside import Inside, command_line, execute, parse_form  # noqa: PLC0415
    from envbuilder.launch.site import find_site  # noqa: PLC0415

    inside = Inside(
        name=name, argv=tuple(argv), form=parse_form(form), output=output, site=find_site(profile),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        folder=Path.cwd(), ids=(os.geteuid(), os.getegid()),
    )  # fmt: skip
    if show:
        session.text = command_line(inside, session.environment)
    else:
        session.exit_code = execute(inside, session.environment)


@app.command()
def detect(
    *,
    pasted: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="saved outputs of one machine: a file or a folder"),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="write a profile for --host")
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="NAME", help="judge for the NCCL of this recipe's lock")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="test P2P on these GPUs, in the SIF of --recipe")
    ] = False,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what to tell NCCL on this machine, with a reason for each setting and for each that is left unset."""
    from envbuilder import detect as verbs  # noqa: PLC0415
    from envbuilder.command import ProcessRunner  # noqa: PLC0415
    from envbuilder.host.report import as_data, as_text  # noqa: PLC0415

    with verb("detect", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        versions = verbs.recipe_versions(recipe, recipes)
        runner = ProcessRunner(session.environment)
        session.stop = runner.stop
        if pasted and measure:
            raise UsageError(
                "`--measure` is for this machine, and `--from` for another", hint="give one of them"
            )
        measured = verbs.measure_in(recipe, output) if measure else None
        found = (
            verbs.detect_pasted(pasted, versions)
            if pasted
            else verbs.detect_here(session.environment, runner, versions, measured)
        )
        if save:
            found.save(save)
        session.findings = found.findings
        session.data = as_data(found.facts, found.decision)
        session.text = as_text(found.facts, found.decision, {} if pasted else session.environment)


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
    time: Annotated[str, typer.Option("--time", help="instead of the profile's")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="stay until the job has ended")] = False,
    profile: Profile = "", smoke: SmokeRun = False, write: Write = None, logs: Logs = LOGS, grace: Grace = 120,
    output: Output = OUTPUT, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Submit a job to Slurm."""
    from envbuilder.command import ProcessRunner  # noqa: PLC0415
    from envbuilder.console import Console  # noqa: PLC0415
    from envbuilder.launch import start  # noqa: PLC0415
    from envbuilder.launch.job import Wish  # noqa: PLC0415

    with verb("launch slurm", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="slurm", shape=shape, nodes=nodes, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
            partition=partition, time=time,
        )  # fmt: skip
        if _written(session, wish, write):
            return
        runner = ProcessRunner(session.environment, whole=True)
        session.stop = runner.stop
        started = start.submit(start.prepare(wish), runner, wait=wait, tell=Console(color=session.color).say)
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
    from envbuilder.launch.job import Wish  # noqa: PLC0415

    with verb("launch ssh", as_json=False, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="ssh", nodes=nodes, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
            hosts=tuple(host for host in hosts.split(",") if host), pdsh=pdsh,
        )  # fmt: skip
        _written(session, wish, write) or _become(wish)


@launch.command("local", context_settings=PROGRAM)
def launch_local(
    context: typer.Context, name: Name, *, gpus: Gpus = None, ranks: Ranks = None, profile: Profile = "",
    smoke: SmokeRun = False, write: Write = None, logs: Logs = LOGS, grace: Grace = 120,
    output: Output = OUTPUT, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Run a job on this machine."""
    from envbuilder.launch.job import Wish  # noqa: PLC0415

    with verb("launch local", as_json=False, verbose=verbose, no_color=no_color) as session:
        wish = Wish(
            name=name, program=tuple(context.args), where="local", nodes=1, ranks=ranks, gpus=gpus,
            folder=Path.cwd(), logs=logs, output=output, profile=profile, grace=grace, smoke=smoke,
        )  # fmt: skip
        _written(session, wish, write) or _become(wish)


def _written(session: Session, wish: "Wish", path: Path | None) -> bool:
    """With `--write`: write the script and say how it is started."""
    from envbuilder.launch import start  # noqa: PLC0415

    if path is None:
        return False
    job = start.prepare(wish)
    session.data = {"script": str(start.save_script(path, job))}
    session.text = start.start_command(job, path)
    return True


def _become(wish: "Wish") -> NoReturn:
    from envbuilder.launch import start  # noqa: PLC0415

    start.become(start.prepare(wish))


@launch.command("lint")
def launch_lint(
    scripts: Annotated[list[Path], typer.Argument(help="scripts for `sbatch`", metavar="SCRIPT…")],
    *, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False,
) -> None:  # fmt: skip
    """Find the mistakes in your own sbatch scripts that hang jobs or hide GPUs; exit code 2 for an error."""
    from envbuilder.launch.lint import lint_files  # noqa: PLC0415

    with verb("launch lint", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        session.findings = lint_files(scripts)
        session.exit_code = 2 if any(one.severity == "error" for one in session.findings) else 0
        session.text = "" if session.findings else "nothing found"


@tables.command("refresh")
def tables_refresh(
    *,
    releases: Annotated[
        int, typer.Option("--releases", metavar="N", min=0, help="newest releases of torch to read")
    ] = 5,
    compilers: Annotated[
        int, typer.Option("--compilers", metavar="N", min=0, help="newest CUDA compilers to read")
    ] = 5,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Read the newest wheels and write what they say into the tables of compatibility, for maintainers."""
    from envbuilder.command import ProcessRunner  # noqa: PLC0415
    from envbuilder.console import Console  # noqa: PLC0415
    from envbuilder.fetch.remote import Index  # noqa: PLC0415
    from envbuilder.refresh import TABLES, Scope, refresh  # noqa: PLC0415
    from envbuilder.sources import probe_sources  # noqa: PLC0415

    with verb("tables refresh", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        runner = ProcessRunner(session.environment)
        session.stop = runner.stop
        index = Index(probe_sources(session.environment, runner))
        scope, today = Scope(releases=releases, compilers=compilers), datetime.now(UTC).date()
        with Console(color=session.color).step("read the newest wheels"):
            changes = refresh(index, runner, today=today, scope=scope, folder=TABLES, save=not check)
        session.data = {"changes": list(changes.done), "notes": list(changes.notes)}
        done = changes.done or ("the tables are as they were",)
        session.text = "\n".join((*done, *(f"note: {note}" for note in changes.notes)))


def main() -> None:
    """Run the command of this process, print its answer, end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    error: EnvbuilderError | None = None
    interrupted = False
    # Wrong use is found before any command starts, and is answered in the same form.
    SESSION.as_json = "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)
    SESSION.command = next((argument for argument in arguments if not argument.startswith("-")), "")
    with contextlib.suppress(ValueError):  # not the main thread: its owner handles signals
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # a terminated build tidies up like an interrupted one
    try:
        code = app(arguments, prog_name="envbuilder", standalone_mode=False)
        interrupted = code == INTERRUPTED  # what Typer makes of Ctrl-C
    except EnvbuilderError as failure:
        error = failure
    except typer.TyperException as failure:
        error = UsageError(
            failure.format_message(), hint="`envbuilder --help` lists the commands and their options"
        )
    except (KeyboardInterrupt, typer.Abort):
        interrupted = True
    if interrupted:
        SESSION.stop()
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)  # worker threads may still compress; what they hold is swept by the next build
    if error:
        SESSION.findings, SESSION.exit_code = error.findings, error.exit_code
    _answer(error)
    return SESSION.exit_code


def _answer(error: EnvbuilderError | None) -> None:
    if SESSION.as_json:
        print(json.dumps(envelope(error), indent=1, ensure_ascii=False))
        return
    if error:
        print(f"error: {error.message}", file=sys.stderr)
    for finding in SESSION.findings:
        print(f"{finding.severity}[{finding.code}]: {finding}", file=sys.stderr)
        if finding.hint:
            print(f"  hint: {finding.hint}", file=sys.stderr)
    if error and error.hint:
        print(f"\nhint: {error.hint}", file=sys.stderr)
    if not error and SESSION.text:
        print(SESSION.text)


def envelope(error: EnvbuilderError | None) -> dict[str, object]:
    """The one JSON answer; its keys are a contract."""
    findings = [
        {
            "code": one.code,
            "severity": str(one.severity),
            "where": one.where,
            "message": one.message,
            "hint": one.hint,
        }
        for one in SESSION.findings
    ]
    if error and not findings:
        findings = [
            {
                "code": error.code,
                "severity": "error",
                "where": "",
                "message": error.message,
                "hint": error.hint,
            }
        ]
    return {
        "version": ENVELOPE_VERSION,
        "command": SESSION.command,
        "status": "failed" if SESSION.exit_code else "ok",
        "exit_code": SESSION.exit_code,
        "data": SESSION.data,
        "findings": findings,
    }
