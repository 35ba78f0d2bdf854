"""Plan → artefacts that are verified, in the Docker engine, and tried: all that a build with nothing to do need not know.

What an engine makes of a plan is in `build`; here are the store and the disk before it, and the proof after it.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from envbuilder.build import build, write_image
from envbuilder.command import Command
from envbuilder.console import Console
from envbuilder.engines.buildkit import Docker
from envbuilder.engines.choice import Choice, open_engine
from envbuilder.engines.engine import Engine, discard_damaged
from envbuilder.errors import BuildError, SpaceError, ToolError, UsageError, VerifyError
from envbuilder.fetch import Fetcher
from envbuilder.fetch.wanted import Wanted
from envbuilder.findings import Finding, Severity
from envbuilder.outputs import Outputs, Record, refuse
from envbuilder.plan import Plan
from envbuilder.publish import Background, connect, load, load_part
from envbuilder.recipe import Recipe
from envbuilder.resolve import Means, store_sources
from envbuilder.run import Ran, probe_surroundings, run_in_image, run_in_sif
from envbuilder.store import Store, beside, publish
from envbuilder.tree import Layer
from envbuilder.verify import verify
from envbuilder.workshop import Workshop

# Bytes on disk per byte fetched, measured on the recipes of this repository: an unpacked tree (2.1) and a layer (1.1)
# for each step that is built, and the SIF (1.2) always.
SPACE_PER_STEP: Final = 3.2
SPACE_PER_BUILD: Final = 1.2
UNTRIED: Final = "EB650"  # the tests of the recipe were not run in the SIF


def make(
    recipe: Recipe, plan: Plan, outputs: Outputs, workshop: Workshop, *, offline: bool, choice: Choice
) -> Record:
    """Build and verify; where that fails for layers that have gone bad in the cache, those are made again first."""
    console, means = workshop.console, workshop.means(offline=offline)
    store_sources(recipe, plan.extensions, means, offline=offline)
    engine = open_engine(
        plan, choice, store=workshop.store, runner=workshop.runner, console=console, limits=workshop.limits
    )
    try:
        return _make_once(plan, outputs, workshop, engine, means)
    except (BuildError, VerifyError):
        damaged = discard_damaged(plan, workshop.store, engine.name)
        if not damaged:
            raise
        console.say(f"damaged in the cache, and made again: {', '.join(damaged)}")
    return _make_once(plan, outputs, workshop, engine, means)


def _make_once(plan: Plan, outputs: Outputs, workshop: Workshop, engine: Engine, means: Means) -> Record:
    console, limits = workshop.console, workshop.limits
    engine.need_tools()
    wanted = engine.artefacts(plan)
    need_space(plan, wanted, means.fetcher.missing(wanted), outputs, workshop.store)
    fetch_all(wanted, means.fetcher, console)
    loading = Background()
    built = build(
        plan,
        outputs,
        engine=engine,
        runner=workshop.runner,
        console=console,
        part_done=lambda layers: loading.begin(lambda: _load_part(plan, layers, outputs, workshop)),
        image_done=lambda manifest: loading.begin(
            lambda: load(outputs, manifest, workshop.environment, console)
        ),
    )
    with console.step("verify image ≡ SIF ≡ plan"):
        report = verify(outputs.image, outputs.sif, layers=built.layers, threads=limits.threads)
        if report.findings:
            for path in (outputs.image, outputs.sif):
                refuse(path)
            raise VerifyError(
                "what was built is not what was promised",
                findings=report.findings,
                hint=f"the log is `{outputs.log}`",
            )
    loading.finish()
    return built.record


def prepare(
    recipe: Recipe, plan: Plan, folder: Path, workshop: Workshop, *, offline: bool, choice: Choice
) -> Command:
    """Fill a folder that does not exist yet for a build by hand; raises UsageError for an engine that needs none."""
    console, means = workshop.console, workshop.means(offline=offline)
    engine = open_engine(
        plan, choice, store=workshop.store, runner=workshop.runner, console=console, limits=workshop.limits
    )
    if not isinstance(engine, Docker):
        raise UsageError(
            f"`--prepare`: the engine `{engine.name}` needs no folder", hint="add `--engine docker`"
        )
    store_sources(recipe, plan.extensions, means, offline=offline)
    fetch_all(plan.artefacts, means.fetcher, console)
    with beside(folder) as work, console.step(f"write `{folder}`"):
        command = engine.prepare(plan, work / "folder", folder)
        publish(work / "folder", folder)
    return command


def _load_part(plan: Plan, layers: tuple[Layer, ...], outputs: Outputs, workshop: Workshop) -> None:
    """Bring the layers that are ready into the Docker engine, where one answers: its work is then done the sooner."""
    client = connect(workshop.environment)
    if client is not None:
        with workshop.store.workspace() as work:
            write_image(plan, layers, work / "image", name=outputs.image_name)
            load_part(client, work / "image", name=outputs.image_name, console=workshop.console)


def fetch_all(wanted: Sequence[Wanted], fetcher: Fetcher, console: Console) -> None:
    """Bring what the store lacks, and show how far it is."""
    missing = fetcher.missing(wanted)
    if not missing:
        fetcher.fetch(wanted)
        return
    with console.transfer(f"fetch {len(missing)} artefacts", sum(one.size for one in missing)) as transfer:
        fetcher.fetch(wanted, transfer)


def need_space(
    plan: Plan, wanted: Sequence[Wanted], missing: Sequence[Wanted], outputs: Outputs, store: Store
) -> None:
    """Raise SpaceError before anything is written where the disk cannot hold what is to come."""
    fetch = sum(item.size for item in missing)
    layers = int(SPACE_PER_STEP * sum(item.size for item in wanted))
    sif = int(SPACE_PER_BUILD * sum(item.size for item in plan.artefacts))
    needs = {store.root: fetch + layers + sif, outputs.folder: sif}
    if store.root.stat().st_dev == _existing(outputs.folder).stat().st_dev:
        needs = {store.root: fetch + layers + 2 * sif}
    for place, need in needs.items():
        free = shutil.disk_usage(_existing(place)).free
        if free < need:
            raise SpaceError(
                f"this build needs about {need / 1e9:.1f} GB at `{place}`; {free / 1e9:.1f} GB are free",
                hint="free space there, or point ENVBUILDER_CACHE and --output at a larger disk",
            )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def try_out(recipe: Recipe, outputs: Outputs, workshop: Workshop, *, image: str) -> tuple[Finding, ...]:
    """Run the recipe's tests in both artefacts; raises BuildError for one that fails, and says what could not be tried."""
    findings: list[Finding] = []
    client = connect(workshop.environment) if image and recipe.tests else None
    ids = (os.geteuid(), os.getegid())
    around = probe_surroundings(Path.cwd(), environment=workshop.environment, ids=ids)

    def in_the_sif(test: str) -> None:
        with workshop.console.step(f"test in the SIF: {test}"):
            try:
                _need_success(run_in_sif(outputs.sif, shlex.split(test), around), test, str(outputs.sif))
            except ToolError as error:
                findings.append(
                    Finding(
                        code=UNTRIED, severity=Severity.WARNING, where=recipe.place("$.tests"), hint=error.hint,
                        message="the recipe's tests were not run in the SIF: Apptainer is not installed",
                    )
                )  # fmt: skip

    def in_the_image(test: str) -> None:
        if client is not None:
            with workshop.console.step(f"test in the image: {test}"):
                _need_success(run_in_image(client, image, shlex.split(test), around), test, image)

    for test in recipe.tests:
        with ThreadPoolExecutor(2) as pool:
            for tried in [pool.submit(one, test) for one in (in_the_sif, in_the_image)]:
                tried.result()
    return tuple(findings)


def _need_success(ran: Ran, test: str, where: str) -> None:
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-20:])
        raise BuildError(f"the recipe's test `{test}` failed in `{where}` with exit code {ran.code}\n{tail}")
