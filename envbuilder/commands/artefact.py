"""Verbs on what was built: build, verify, sign, compare, and what the cache holds."""

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuilder.build.engine import EngineName
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
    cache_folder,
    verb,
    workshop,
)
from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from envbuilder.build.batch import Build
    from envbuilder.build.context import BuildContext
    from envbuilder.run.launch.array import Array

app = typer.Typer()


@app.command()
def build(
    names: Annotated[
        list[str] | None, typer.Argument(help="recipes, or paths to recipe files", metavar="NAME")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="every recipe of the folder")] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="build N at a time; what two of them share is made once"),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--on", metavar="slurm", help="an array job instead: a task for each recipe, on any node"
        ),
    ] = "",
    profile: Profile = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            "--sbatch", metavar="OPTION", help="with --on: one more of sbatch's, as --sbatch=--mem=16G"
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="with --on: write the script; start nothing"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="with --on: stay until the job has ended")] = False,
    output: Output = OUTPUT,
    offline: Annotated[bool, typer.Option("--offline", help="use what the cache holds, no network")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan and the commands; write nothing")
    ] = False,
    host: Annotated[
        Path | None,
        typer.Option("--host", help="bake a profile of the site: what `detect --save` wrote there"),
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            "--engine",
            help="who makes the layers: assemble; docker (BuildKit), which also builds on images and does so by itself there",
        ),
    ] = None,
    builder: Annotated[
        str,
        typer.Option(
            "--builder", metavar="NAME", help="docker engine: the builder of `docker buildx create`"
        ),
    ] = "",
    cache_from: Annotated[
        list[str] | None, typer.Option("--cache-from", metavar="CACHE", help="docker engine: a cache to read")
    ] = None,
    cache_to: Annotated[
        list[str] | None, typer.Option("--cache-to", metavar="CACHE", help="docker engine: a cache to write")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="docker engine: run every stage, whatever BuildKit remembers")
    ] = False,
    prepare: Annotated[
        Path | None,
        typer.Option(
            "--prepare",
            metavar="FOLDER",
            help="docker engine: write what BuildKit reads there, and print its command; build nothing",
        ),
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Build image and SIF from the lock, verify them, and load the image where a Docker engine answers."""
    from envbuilder.build.batch import choose, find_files, need_place  # noqa: PLC0415
    from envbuilder.build.engine import Builder, EngineChoice  # noqa: PLC0415
    from envbuilder.build.pipeline import build_recipe, explain, prepare_recipe  # noqa: PLC0415

    with verb("build", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        need_place(where, without=not (sbatch or write or wait))
        chosen = choose(names or (), recipes, every=every, jobs=jobs)
        choice = EngineChoice(
            engine=engine,
            builder=Builder(
                name=builder,
                cache_from=tuple(cache_from or ()),
                cache_to=tuple(cache_to or ()),
                no_cache=no_cache,
            ),
        )
        if where:
            if prepare or choice != EngineChoice():
                raise UsageError(
                    "a task of `--on` takes the engine that its recipe needs",
                    hint="leave `--on` out, or `--prepare` and the options of an engine",
                )
            from envbuilder.run.launch.array import make_array  # noqa: PLC0415

            array = make_array(
                find_files(chosen, recipes), cache=cache_folder(session), output=output, offline=offline, host=host,
                profile=profile, options=sbatch or (), at_once=jobs or 0,
            )  # fmt: skip
            if not dry_run:
                workshop(session, recipes)  # every task expects the cache
            _spread(session, array, show=dry_run, write=write, wait=wait)
            return
        shop = workshop(session, recipes, writes=not dry_run)
        if prepare:
            if len(chosen) > 1:
                raise UsageError(
                    "`--prepare` fills a folder for one recipe",
                    hint="name one; a second one in another folder",
                )
            session.text = prepare_recipe(chosen[0], shop, prepare, offline=offline, choice=choice)
            session.data = [{"name": chosen[0], "folder": str(prepare), "command": session.text}]
            return
        if dry_run:
            explained = [explain(name, shop, host, choice) for name in chosen]
            session.data = [
                {"name": one.name, "plan": one.plan, "commands": list(one.commands)} for one in explained
            ]
            session.text = "\n".join(
                f"{one.plan}\n" + "\n".join(f"$ {line}" for line in one.commands) for one in explained
            )
            return
        make = functools.partial(build_recipe, output=output, offline=offline, host=host, choice=choice)
        if len(chosen) > 1:
            _build_several(session, shop, chosen, make, jobs=jobs or 1)
            return
        with shop.console.group(f"build {chosen[0]}"):
            result = make(chosen[0], shop)
        session.findings, session.data, session.text = result.findings, [result.summary()], result.text()


def _build_several(
    session: Session, shop: "BuildContext", names: tuple[str, ...], make: "Build", *, jobs: int
) -> None:
    from envbuilder.build.batch import build_several, worst  # noqa: PLC0415
    from envbuilder.core.console import columns  # noqa: PLC0415

    outcomes = build_several(names, shop, make, jobs=jobs)
    session.findings = tuple(one for outcome in outcomes for one in outcome.findings())
    session.exit_code = worst(outcomes)
    session.data = [outcome.summary() for outcome in outcomes]
    session.text = columns([outcome.row() for outcome in outcomes], session.width)


def _spread(session: Session, array: "Array", *, show: bool, write: Path | None, wait: bool) -> None:
    """Print, write or submit the script of an array job, and with `wait` tell what became of each task."""
    from envbuilder.core.console import Console, columns  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.run.launch import array as arrays  # noqa: PLC0415
    from envbuilder.run.launch import start  # noqa: PLC0415

    script = arrays.make_script(array)
    if show or write:
        path = start.save_script(write, script) if write and not show else None
        session.data = {"script": str(path or ""), "text": script.text}
        session.text = f"sbatch {path}" if path else script.text.removesuffix("\n")
        return
    runner = ProcessRunner(session.environment, whole=True)
    started = start.submit(script, runner, wait=wait, tell=Console(color=session.color).say)
    data: dict[str, object] = {
        "job": started.number,
        "script": str(started.script),
        "logs": str(array.logs),
    }
    session.data = data
    session.text = (
        f"job {started.number}: {len(array.recipes)} builds; script {started.script}\n"
        f"what has ended, with exit code, node and log: {arrays.look_command(array, started.number)}"
    )
    if wait:
        ends = arrays.read_ends(array, started.number)
        session.exit_code = max(one.code for one in ends)
        session.findings = tuple(one.finding() for one in ends if one.code)
        data["builds"] = [one.summary() for one in ends]
        session.text = columns([one.row() for one in ends], session.width)


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
    from envbuilder.build.extensions import table  # noqa: PLC0415
    from envbuilder.build.pipeline import list_extensions  # noqa: PLC0415

    with verb("extensions", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        rows = list_extensions(name, workshop(session, recipes, writes=False))
        session.data = list(rows)
        session.text = table(rows, session.width) if rows else f"{name} has no extensions"


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
    from envbuilder.commands.inspect_artifacts import verify_built, verify_pair  # noqa: PLC0415

    with verb("verify", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        shop = workshop(session, recipes)
        with shop.console.group(f"verify {name}"):
            if sif:
                verified = verify_pair(name, sif, shop, oldest_host=oldest_host, key=key)
            else:
                verified = verify_built(name, shop, output=output, oldest_host=oldest_host, key=key)
        session.data, session.text, session.findings = verified.data(), verified.text(), verified.findings


@app.command()
def report(
    name: Name,
    *,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Write one HTML page of what was built: pins, sizes, extensions, audits, build times, licences, parts list."""
    from envbuilder.commands.report import make_report  # noqa: PLC0415

    with verb("report", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        shop = workshop(session, recipes)
        with shop.console.group(f"report {name}"):
            made = make_report(name, shop, output=output)
        session.data, session.text = made.data(), str(made.file)
        if as_json:  # the page says the same
            session.findings = made.findings


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
    from envbuilder.build.built import read_documents  # noqa: PLC0415
    from envbuilder.recipe.model import recipes_folder  # noqa: PLC0415

    with verb("sbom", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipes = recipes_folder(session.environment)
        session.text = read_documents(name, output, recipes)[provenance].rstrip("\n")
        session.data = json.loads(session.text)


@app.command()
def sign(
    name: Annotated[str, typer.Argument(help="a recipe that was built", metavar="NAME")],
    *,
    key: Annotated[
        Path, typer.Option("--key", help="a private key of yours in a PEM file: ECDSA, Ed25519 or RSA")
    ],
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Sign image and SIF with a key of yours, without a network; it takes the place of an earlier signature."""
    from envbuilder.build.built import sign_artifacts  # noqa: PLC0415

    with verb("sign", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        facts = sign_artifacts(name, workshop(session, RECIPES), output=output, key=key)
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
    from envbuilder.commands.inspect_artifacts import diff as compare  # noqa: PLC0415

    with verb("diff", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        found = compare(one, other, workshop(session, recipes))
        session.data, session.text = found.data(), found.text(session.width)


@app.command()
def cache(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="with --gc: what to remove, all but `layers` and `extensions` if nothing is named; `vendor`: write all that the lock of NAME names into DIR",
            metavar="KIND | vendor NAME DIR",
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
    from envbuilder.core.cache import KEPT, KINDS, WORK  # noqa: PLC0415
    from envbuilder.core.console import columns  # noqa: PLC0415

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
        if unknown := sorted(set(kinds) - {*KINDS, WORK}):
            raise UsageError(f"the cache has no `{unknown[0]}`", hint=f"it has {', '.join((*KINDS, WORK))}")
        if kinds and not gc:
            raise UsageError("kinds go with `--gc`", hint=f"envbuilder cache --gc {' '.join(kinds)}")
        if gc:
            store.sweep()
            named = kinds or [kind for kind in KINDS if kind not in KEPT]
            if chosen := [kind for kind in named if kind != WORK]:  # the sweep is all that `work` needs
                store.clear(chosen)
        sizes = store.sizes()
        session.data = {"folder": str(store.root), "bytes": sizes}
        rows = [(f"  {kind}", f"{size / 1e9:.2f} GB") for kind, size in sizes.items()]
        session.text = "\n".join(columns(part, session.width) for part in ([(str(store.root),)], rows))


def _vendor(session: Session, shop: "BuildContext", name: str, folder: Path) -> None:
    from envbuilder.build.pipeline import vendor_recipe  # noqa: PLC0415

    with shop.console.group(f"vendor {name}"):
        done = vendor_recipe(name, shop, folder.absolute())
    session.data = {
        "folder": str(done.folder),
        "files": done.count,
        "bytes": done.size,
        "command": done.command,
    }
    session.text = f"{done.folder}: {done.count} files, {done.size / 1e9:.2f} GB\n$ {done.command}"
