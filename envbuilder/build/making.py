"""Plan → artefacts that are verified, in the Docker engine, and tried: all that a build with nothing to do need not know.

What an engine makes of a plan is in `build`; here are the store and the disk before it, and the proof after it.
"""

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.artifacts import sif
from envbuilder.artifacts.docker_engine import (
    Background,
    connect,
    drop_untried,
    load,
    load_part,
    load_untried,
)
from envbuilder.artifacts.oci import layout as oci
from envbuilder.artifacts.outputs import Outputs, Record, drop_refused, refused
from envbuilder.build.build import build, write_image
from envbuilder.build.buildkit import Docker
from envbuilder.build.context import Workshop
from envbuilder.build.engine import Engine, discard_damaged
from envbuilder.build.engine_choice import Choice, open_engine
from envbuilder.core.cache import Sha256, Store, beside, publish
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, EnvbuilderError, SpaceError, ToolError, UsageError, VerifyError
from envbuilder.core.fetch import Fetcher
from envbuilder.core.fetch.request import Wanted
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer
from envbuilder.lock.resolve import Means, store_sources
from envbuilder.plan.model import Plan
from envbuilder.recipe.model import Recipe
from envbuilder.run.container import Ran, probe_surroundings, run_in_image, run_in_sif
from envbuilder.verify.compare import verify

# Bytes on disk per byte fetched, measured on the recipes of this repository: an unpacked tree (2.1) and a layer (1.1)
# for each step that is built, and the SIF (1.2) always; so much once more for the image where its layers cannot be links.
SPACE_PER_STEP: Final = 3.2
SPACE_PER_BUILD: Final = 1.2


class BuildCode(CodeEnum):
    UNTRIED = "EB650", "the tests of the recipe were not run in the SIF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What stands under the final names: whole, verified and tried."""

    record: Record
    image: str  # its name in the Docker engine; "" where none answers
    findings: tuple[Finding, ...]


def make(
    recipe: Recipe, plan: Plan, outputs: Outputs, workshop: Workshop, *, offline: bool, choice: Choice
) -> Made:
    """Build, verify and try under temporary names; only what passes takes the place of earlier artefacts.

    Where it fails for layers that have gone bad in the cache, those are made again first.
    """
    oci.check_place(outputs.image)
    sif.check_place(outputs.sif)
    console, means = workshop.console, workshop.means(offline=offline)
    store_sources(recipe, plan.extensions, means, offline=offline)
    engine = open_engine(
        plan, choice, store=workshop.store, runner=workshop.runner, console=console, limits=workshop.limits
    )
    with beside(outputs.folder / outputs.name) as work:
        new = replace(outputs, folder=work)
        try:
            record, image = _make_once(plan, outputs, new, workshop, engine=engine, means=means)
        except (BuildError, VerifyError):
            damaged = discard_damaged(plan, workshop.store, engine.name)
            if not damaged:
                raise
            console.say(f"damaged in the cache, and made again: {', '.join(damaged)}")
            record, image = _make_once(plan, outputs, new, workshop, engine=engine, means=means)
        try:
            with _kept_for_a_look(outputs, new):
                findings = try_out(recipe, new, workshop, image=image)
        except EnvbuilderError:
            drop_untried(outputs, workshop.environment)
            raise
        outputs.record.unlink(missing_ok=True)  # it speaks of artefacts that are about to be replaced
        oci.move_layout(new.image, outputs.image)
        new.sif.rename(outputs.sif)
    image = load(outputs, record.manifest, workshop.environment, console)
    return Made(record=record, image=image, findings=findings)


@contextlib.contextmanager
def _kept_for_a_look(outputs: Outputs, new: Outputs) -> Iterator[None]:
    """Keep artefacts that turn out to be unfit where `refused` says, and tell of the SIF in the error's hint."""
    try:
        yield
    except EnvbuilderError as error:
        new.image.rename(refused(outputs.image))
        new.sif.rename(refused(outputs.sif))
        kept = f"the SIF is kept as `{refused(outputs.sif)}` until the next build; earlier artefacts stay as they were"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise


def _make_once(
    plan: Plan, outputs: Outputs, new: Outputs, workshop: Workshop, *, engine: Engine, means: Means
) -> tuple[Record, str]:
    """Build and verify in the folder of `new`; returns what the Docker engine calls the image, too."""
    console, limits, environment = workshop.console, workshop.limits, workshop.environment
    drop_refused(outputs)
    engine.need_tools()
    wanted = engine.artefacts(plan)
    need_space(plan, wanted, means.fetcher.missing(wanted), outputs, workshop.store)
    fetch_all(wanted, means.fetcher, console)
    loading, images = Background(), list[str]()

    def image_done(manifest: Sha256) -> None:
        loading.begin(lambda: images.append(load_untried(new, manifest, environment, console)))

    built = build(
        plan,
        new,
        engine=engine,
        runner=workshop.runner,
        console=console,
        part_done=lambda layers: loading.begin(lambda: _load_part(plan, layers, outputs, workshop)),
        image_done=image_done,
    )
    with console.step("verify image ≡ SIF ≡ plan"):
        report = verify(new.image, new.sif, layers=built.layers, threads=limits.threads)
        if report.findings:
            with _kept_for_a_look(outputs, new):
                raise VerifyError(
                    "what was built is not what was promised",
                    findings=report.findings,
                    hint=f"the log is `{outputs.log}`",
                )
    loading.finish()
    return built.record, images[0]


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
    needs = {store.root: fetch + layers + sif, outputs.folder: 2 * sif}
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
                _need_success(run_in_sif(outputs.sif, shlex.split(test), around), test, "the SIF")
            except ToolError as error:
                findings.append(
                    Finding(
                        code=BuildCode.UNTRIED, severity=Severity.WARNING, where=recipe.place("$.tests"), hint=error.hint,
                        message="the recipe's tests were not run in the SIF: Apptainer is not installed",
                    )
                )  # fmt: skip

    def in_the_image(test: str) -> None:
        if client is not None:
            with workshop.console.step(f"test in the image: {test}"):
                _need_success(run_in_image(client, image, shlex.split(test), around), test, "the image")

    for test in recipe.tests:
        with ThreadPoolExecutor(2) as pool:
            for tried in [pool.submit(one, test) for one in (in_the_sif, in_the_image)]:
                tried.result()
    return tuple(findings)


def _need_success(ran: Ran, test: str, where: str) -> None:
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-20:])
        raise BuildError(f"the recipe's test `{test}` failed in {where} with exit code {ran.code}\n{tail}")
