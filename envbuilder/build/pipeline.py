"""The whole story of a build, read top to bottom.

recipe → lock → plan → nothing to do? → layers → artifacts → verified → loaded → tested

Each function puts stages in order and hands values on. Every decision is made in the module that owns it.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder import runtime
from envbuilder.artifacts import sif
from envbuilder.artifacts.oci import layout as oci
from envbuilder.artifacts.outputs import Outputs, Record, drop_rejected, load_record, rejected
from envbuilder.build.artifacts import Artifacts, build_artifacts, write_image
from envbuilder.build.assemble.engine import AssembleEngine
from envbuilder.build.background import Background
from envbuilder.build.buildkit import BuildKitEngine
from envbuilder.build.context import BuildContext
from envbuilder.build.engine import Engine, EngineChoice, EngineName, discard_damaged, record_key
from envbuilder.build.extensions import rows
from envbuilder.build.inputs import fetch_inputs, need_space
from envbuilder.build.render import RENDERERS, make_kit
from envbuilder.build.result import BuildResult
from envbuilder.compat.check import BaseOf, examine, examine_file, load_tables, need_sound
from envbuilder.compat.tables.gpu import capabilities, load_gpus
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.cache import beside, commit_path, save_text, sha256_text
from envbuilder.core.errors import BuildError, EnvbuilderError, LockError, UsageError, VerifyError
from envbuilder.core.findings import Finding
from envbuilder.core.log import log_to
from envbuilder.core.sources import PYTORCH_INDEX
from envbuilder.layers.layer import Layer
from envbuilder.lock.diff import check_fresh, diff_locks
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.known_base import known_base, lock_path
from envbuilder.lock.model import Lock, lock_artifacts
from envbuilder.lock.resolve import (
    LockOptions,
    ResolveContext,
    look,
    make_target,
    resolve,
    status_of,
    store_sources,
)
from envbuilder.lock.source_files import own_files, source_digests
from envbuilder.lock.vendor import Vendored, vendor
from envbuilder.plan import model as plans
from envbuilder.plan.model import Plan, StartFiles
from envbuilder.plan.site import need_files, site_files
from envbuilder.recipe.load import find_recipe
from envbuilder.recipe.load import load as load_recipe
from envbuilder.recipe.model import Recipe
from envbuilder.verify.compare import verify

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine

# ---- recipe → lock


def lock_recipe(
    name: str, context: BuildContext, *, options: LockOptions, save: bool = True
) -> tuple[str, ...]:
    """Resolve the recipe and write its lock beside it. Returns the changes, one line each."""
    means, transfer = context.means(offline=False), context.console.transfer
    recipe = load_recipe(find_recipe(name, context.recipes))
    path = lock_path(recipe)
    with context.store.in_use():
        old = load_lock(path, recipe=name) if path.exists() else None
        known = old.base if old else None
        base = look(recipe, means, old=known, options=options, transfer=transfer) if recipe.image else None
        need_sound(recipe, examine(recipe, load_tables(load_toolkits()), base=base.inside if base else None))
        with context.console.step(f"lock {recipe.name}"):
            target = make_target(recipe, base, lambda: status_of(base, means, transfer) if base else "")
            new = resolve(recipe, target, old=old, options=options, context=means)
    if save and new != old:
        save_text(path, lock_text(new))
    return tuple(map(str, diff_locks(old, new))) if old else (f"+ {path}",)


# ---- lock → plan


def load_locked(
    name: str, context: BuildContext, host: Path | None = None
) -> tuple[Recipe, Lock, tuple[Finding, ...]]:
    """Check the recipe and read its lock. Returns the warnings of `check` as well.

    Raises IncompatibleError for a recipe that cannot work, LockError for a lock that is missing or no longer fits the recipe.
    """
    base_of: BaseOf = functools.partial(known_base, store=context.store)
    recipe, report = examine_file(name, context.recipes, host, base_of=base_of)
    need_sound(recipe, report)
    path = lock_path(recipe)
    lock = load_lock(path, recipe=name)
    stale = check_fresh(recipe, lock, source_digests(own_files(recipe)))
    if stale:
        raise LockError(
            f"the lock `{path}` no longer fits its recipe:\n" + "\n".join(f"  {reason}" for reason in stale),
            hint=f"`envbuilder lock {name}` renews what changed and keeps the rest",
        )
    return recipe, lock, report.findings


def make_plan(
    name: str, context: BuildContext, host: Path | None = None
) -> tuple[Recipe, Plan, tuple[Finding, ...]]:
    """Make the plan of a locked recipe. `host` is a profile of the site. Raises what `load_locked` raises."""
    recipe, lock, findings = load_locked(name, context, host)
    has_own_toolkit = bool(lock.base and lock.base.inside.toolkit(recipe.cuda))
    plan = plans.make(
        recipe,
        lock,
        toolkit=load_toolkits()[recipe.cuda] if recipe.cuda and not has_own_toolkit else None,
        architectures=capabilities(recipe.gpus, load_gpus().rows),
        lock_text=lock_text(lock),
        start=StartFiles(
            site_packages=runtime.files("start"),
            lib=(*runtime.files("lib"), *runtime.modules("node/nccl")),
            entry=runtime.files("entry"),
        ),
        site=(*site_files(recipe, host), *need_files(recipe)),
    )
    return recipe, plan, findings


# ---- plan → artifacts that are verified, loaded and tested


def build_recipe(
    name: str,
    context: BuildContext,
    *,
    output: Path,
    offline: bool,
    host: Path | None = None,
    choice: EngineChoice | None = None,
) -> BuildResult:
    """Build the locked recipe, verify both artifacts, and load the image where a Docker engine is running.

    `host` is a profile of the site. Raises LockError, ToolError, FetchError, SpaceError, BuildError or VerifyError.
    """
    from envbuilder.artifacts.docker_engine import connect  # noqa: PLC0415 - the Docker SDK, which only a build needs

    recipe, plan, findings = make_plan(name, context, host)
    choice = choice or EngineChoice()
    key = record_key(plan, choice.name_for(plan))
    outputs = Outputs(folder=output.absolute(), name=recipe.name)
    docker = connect(context.environment)
    with context.store.in_use(), alone(outputs, context):
        # `--cache-to` asks BuildKit to fill a cache, whatever is built already.
        record = None if choice.builder.cache_to else load_record(outputs, key)
        if record is not None:
            image = _load_again(outputs, record, docker, context)
            return BuildResult(outputs=outputs, record=record, done=False, image=image, findings=findings)
        context.store.sweep()
        with log_to(outputs.log, context.console.owner):
            result = _build(recipe, plan, outputs, context, docker=docker, offline=offline, choice=choice)
        result.record.save(outputs.record)  # last: without a record there is something to do
    return replace(result, findings=(*findings, *result.findings))


@contextlib.contextmanager
def alone(outputs: Outputs, context: BuildContext) -> Iterator[None]:
    """Let one process at a time write these artifacts. A second build waits, and then has nothing to do."""

    def report() -> None:
        context.console.say(f"another build of `{outputs.name}` is running; waiting for it")

    with context.store.lock(f"build-{sha256_text(str(outputs.sif))}", waiting=report):
        yield


def _load_again(
    outputs: Outputs, record: Record, docker: "DockerEngine | None", context: BuildContext
) -> str:
    """Load the image of an earlier build unless the Docker engine has it. Returns its name there, "" without an engine."""
    if docker is None:
        return ""
    if not docker.holds(outputs.image_name, record.manifest):
        docker.load(oci.read_layout(outputs.image), name=outputs.image_name, console=context.console)
    return outputs.image_name


def _build(
    recipe: Recipe,
    plan: Plan,
    outputs: Outputs,
    context: BuildContext,
    *,
    docker: "DockerEngine | None",
    offline: bool,
    choice: EngineChoice,
) -> BuildResult:
    """Build under temporary names. Only artifacts that are verified and tested replace earlier ones.

    If the cause of a failure is a damaged layer in the cache, the layer is made again.
    """
    from envbuilder.build.recipe_tests import run_recipe_tests  # noqa: PLC0415 - as above

    oci.check_place(outputs.image)
    sif.check_place(outputs.sif)
    means = context.means(offline=offline)
    store_sources(recipe, plan.extensions, means, offline=offline)
    engine = open_engine(plan, choice, context)
    with beside(outputs.folder / outputs.name) as work:
        staged = replace(outputs, folder=work)
        try:
            built, image = _build_once(
                plan, outputs, staged, context, engine=engine, docker=docker, means=means
            )
        except (BuildError, VerifyError):
            damaged = discard_damaged(plan, context.store, engine.name)
            if not damaged:
                raise
            context.console.say(f"damaged in the cache, and made again: {', '.join(damaged)}")
            built, image = _build_once(
                plan, outputs, staged, context, engine=engine, docker=docker, means=means
            )
        try:
            with _keep_rejected(outputs, staged):
                findings = run_recipe_tests(
                    recipe,
                    staged.sif,
                    docker=docker,
                    image=image,
                    environment=context.environment,
                    console=context.console,
                )
        except EnvbuilderError:
            if docker:
                docker.drop_staged(outputs.image_name)
            raise
        outputs.record.unlink(missing_ok=True)  # it describes the artifacts that are replaced now
        layout = oci.move_layout(built.layout, outputs.image)
        staged.sif.rename(outputs.sif)
    if docker:
        docker.load(layout, name=outputs.image_name, console=context.console)
    image = outputs.image_name if docker else ""
    return BuildResult(outputs=outputs, record=built.record, done=True, image=image, findings=findings)


def _build_once(
    plan: Plan,
    outputs: Outputs,
    staged: Outputs,
    context: BuildContext,
    *,
    engine: Engine,
    docker: "DockerEngine | None",
    means: ResolveContext,
) -> tuple[Artifacts, str]:
    """Build and verify in the folder of `staged`. Returns the image's name in the Docker engine, too; "" without an engine."""
    console, limits = context.console, context.limits
    drop_rejected(outputs)
    engine.need_tools()
    wanted = engine.artefacts(plan)
    need_space(plan, wanted, means.fetcher.missing(wanted), outputs, context.store)
    fetch_inputs(wanted, means.fetcher, console)
    loading, images = Background(), list[str]()

    def part_done(layers: tuple[Layer, ...]) -> None:
        if docker:
            loading.begin(lambda: _load_part(plan, layers, outputs, docker, context))

    def image_done(layout: oci.Layout) -> None:
        if docker:
            loading.begin(
                lambda: images.append(docker.load_staged(layout, name=outputs.image_name, console=console))
            )

    built = build_artifacts(
        plan,
        staged,
        engine=engine,
        runner=context.runner,
        console=console,
        part_done=part_done,
        image_done=image_done,
    )
    with console.step("verify image ≡ SIF ≡ plan"):
        report = verify(staged.image, staged.sif, layers=built.layers, threads=limits.threads)
        if report.findings:
            with _keep_rejected(outputs, staged):
                raise VerifyError(
                    "verification failed: the artifacts differ from the plan",
                    findings=report.findings,
                    hint=f"the log is `{outputs.log}`",
                )
    loading.finish()
    return built, images[0] if images else ""


@contextlib.contextmanager
def _keep_rejected(outputs: Outputs, staged: Outputs) -> Iterator[None]:
    """If the block fails, keep the rejected artifacts for inspection and mention the SIF in the error's hint."""
    try:
        yield
    except EnvbuilderError as error:
        staged.image.rename(rejected(outputs.image))
        staged.sif.rename(rejected(outputs.sif))
        kept = f"the SIF is kept as `{rejected(outputs.sif)}` until the next build; earlier artifacts stay as they were"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise


def _load_part(
    plan: Plan, layers: tuple[Layer, ...], outputs: Outputs, docker: "DockerEngine", context: BuildContext
) -> None:
    """Load the finished layers into the Docker engine, while the extensions are still compiled."""
    with context.store.workspace() as work:
        layout = write_image(plan, layers, work / "image", name=outputs.image_name)
        docker.load_first_layers(layout, name=outputs.image_name, console=context.console)


def open_engine(plan: Plan, choice: EngineChoice, context: BuildContext) -> Engine:
    """Open the engine of this plan. Raises UsageError for a choice that does not fit the plan."""
    if choice.name_for(plan) is EngineName.ASSEMBLE:
        return AssembleEngine(
            store=context.store, runner=context.runner, console=context.console, limits=context.limits
        )
    return BuildKitEngine(
        store=context.store, runner=context.runner, console=context.console, limits=context.limits, builder=choice.builder
    )  # fmt: skip


# ---- what else a plan is good for


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a build would do."""

    name: str
    plan: str
    commands: tuple[str, ...]


def explain(
    name: str, context: BuildContext, host: Path | None = None, choice: EngineChoice | None = None
) -> DryRun:
    """Return the plan and the commands of the layers that the store lacks. Nothing is written or started."""
    recipe, plan, _ = make_plan(name, context, host)
    engine = open_engine(plan, choice or EngineChoice(), context)
    return DryRun(name=recipe.name, plan=plan.canonical(), commands=tuple(map(str, engine.commands(plan))))


def prepare_recipe(
    name: str, context: BuildContext, folder: Path, *, offline: bool, choice: EngineChoice
) -> str:
    """Fetch everything and fill a new folder with what BuildKit reads. Returns the command that builds an image of it.

    Raises UsageError for a folder that exists, and for an engine that reads no folder.
    """
    if folder.exists():
        raise UsageError(f"`{folder}` exists", hint="name a folder that does not exist yet")
    recipe, plan, _ = make_plan(name, context)
    folder = folder.absolute()
    with context.store.in_use():
        means, engine = context.means(offline=offline), open_engine(plan, choice, context)
        if not isinstance(engine, BuildKitEngine):
            raise UsageError(
                f"`--prepare`: the engine `{engine.name}` reads no folder", hint="add `--engine docker`"
            )
        store_sources(recipe, plan.extensions, means, offline=offline)
        fetch_inputs(plan.artefacts, means.fetcher, context.console)
        with beside(folder) as work, context.console.step(f"write `{folder}`"):
            command = engine.prepare(plan, work / "folder", folder)
            commit_path(work / "folder", folder)
    return str(command)


def vendor_recipe(name: str, context: BuildContext, folder: Path) -> Vendored:
    """Fetch what a lock names and write all of it into a folder. Raises LockError, FetchError or SpaceError."""
    recipe, lock, _ = load_locked(name, context)
    with context.store.in_use():
        means = context.means(offline=False)
        store_sources(recipe, lock.extensions, means)
        fetch_inputs(lock_artifacts(lock), means.fetcher, context.console)
        with context.console.step(f"copy into `{folder}`"):
            return vendor(recipe, lock, folder, context.store)


def render_recipe(name: str, context: BuildContext, form: str) -> str:
    """Return the plan as text in one of the forms of `RENDERERS`. It builds the same environment without envbuilder."""
    recipe, plan, _ = make_plan(name, context)
    return RENDERERS[form](make_kit(recipe, plan, pytorch_index=PYTORCH_INDEX))


def list_extensions(name: str, context: BuildContext) -> tuple[dict[str, object], ...]:
    """Return a row for each extension of a recipe: what the store has of it."""
    recipe, plan, _ = make_plan(name, context)
    engine = AssembleEngine(
        store=context.store, runner=context.runner, console=context.console, limits=context.limits
    )
    return tuple(rows(engine.find_extensions(plan), recipe=recipe.name))
