"""The whole build, read top to bottom.

plan → nothing to do? → layers → artifacts → verified → loaded → tested

Each function calls the stages in order and passes their results on. The decisions are in other modules.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from envbuilder.artifacts import history, sif
from envbuilder.artifacts.docker_engine import DockerEngine, connect
from envbuilder.artifacts.oci import layout as oci
from envbuilder.artifacts.outputs import (
    Outputs,
    Record,
    drop_rejected,
    load_record,
    read_record,
    rejected,
    versions_to_keep,
)
from envbuilder.artifacts.sif import opened_sif, seal
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.builder import upkeep
from envbuilder.builder.artifacts import Artifacts, ImageLoader, build_artifacts
from envbuilder.builder.batch import BuildResult, PlannedRecipe
from envbuilder.builder.buildkit.runner import BuildKitRunner
from envbuilder.builder.buildkit.uv_program import fetch_uv
from envbuilder.builder.context import (
    LOCK,
    BuildContext,
    RunnerChoice,
    RunnerName,
    build_identity,
    build_lock,
    worker_threads,
)
from envbuilder.builder.job import NO_STORES, BuildJob, SharedStores, StepRunner, record_key
from envbuilder.builder.recipe_tests import import_in_sif, list_imports, passed_tests, run_recipe_tests
from envbuilder.builder.sandbox.runner import SandboxRunner
from envbuilder.builder.upkeep import need_space, open_stores, share
from envbuilder.builder.vendor import Vendored, vendor
from envbuilder.compat.repositories import addresses
from envbuilder.core.beneath import FILE_LIMIT, read_beneath
from envbuilder.core.cache import KEPT, KEYED, KINDS, WORK, beside, cache_limit, commit_path
from envbuilder.core.console import Console, ended_steps, log_to
from envbuilder.core.errors import BuildError, CompileError, EnvbuilderError, UsageError, VerifyError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.plain import counted
from envbuilder.core.private import make_folder_for_all
from envbuilder.core.processor import own_processor
from envbuilder.core.system import why_no_engine
from envbuilder.lock.model import LockedBase, lock_artifacts
from envbuilder.lock.resolve.context import ResolveContext, open_context
from envbuilder.lock.resolve.extensions import store_sources
from envbuilder.plan.make import load_locked, make_plan, need_buildable
from envbuilder.plan.model import Plan
from envbuilder.recipe.model import Recipe
from envbuilder.runners.toolbox import toolbox_files
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Wanted
from envbuilder.verify.audit import ImageTexts, check_needed, is_of_environment, read_audited
from envbuilder.verify.compare import VerifyReport, verify
from envbuilder.verify.pair import load_contents, save_contents

# ---- plan → artifacts that are verified, loaded and tested


def build_recipe(
    name: str,
    context: BuildContext,
    *,
    output: Path,
    offline: bool,
    host: Path | None,
    choice: RunnerChoice,
) -> BuildResult:
    """Build the locked recipe, verify both artifacts, and load the image where a Docker engine is running.

    `host` is a profile of the site. Raises LockError, ToolError, FetchError, SpaceError, BuildError or VerifyError.
    """
    recipe, plan, findings = make_plan(name, context.recipes, context.store, host)
    need_buildable(plan)
    cache_limit(context.environment, 0)  # a mistake in a setting ends a build at its start
    versions_to_keep(context.environment)
    outputs = Outputs(folder=output.absolute(), name=recipe.name)
    docker = connect(context.environment, build_identity(outputs)) if choice.load else None
    not_loaded = why_no_engine(context.environment) if choice.load else "`--no-load`"
    with context.store.in_use(), build_lock(outputs, context):
        # With `--cache-to`, BuildKit must fill a cache even if the artifacts are up to date.
        key = record_key(plan)

        def say_changed(what: str) -> None:
            context.console.say(f"{what}; the artifacts are made again")

        def open_build(fetcher: Fetcher, shared: SharedStores = NO_STORES) -> _Build:
            runner = open_step_runner(plan, choice, context, shared, origin=recipe.path)
            return _Build(
                recipe=recipe,
                outputs=outputs,
                context=context,
                runner=runner,
                docker=docker,
                fetcher=fetcher,
            )

        written = None if choice.builder.cache_to else read_record(outputs)
        is_asked_again = written is not None and written.key == key  # others are replaced, and not compared
        if is_asked_again and (record := load_record(outputs, say_changed)):
            if docker:
                docker.drop_staged(outputs.image_name)  # of a killed build
                if not docker.holds(outputs.image_name, record.manifest):
                    docker.load(
                        oci.read_layout(outputs.image), name=outputs.image_name, console=context.console
                    )
            result = BuildResult(
                outputs=outputs, record=record, done=False, image=outputs.image_name if docker else "", findings=findings,
                not_loaded=not_loaded,
            )  # fmt: skip
            if set(passed_tests(recipe, image=docker is not None)) <= set(record.tested):
                return result
            resolving = _locked_context(context, recipe, plan.os.base, offline=offline)
            return open_build(resolving.fetcher).test_again(result)
        context.store.sweep()
        make_folder_for_all(str(outputs.folder))
        with log_to(outputs.log, context.console.owner), _no_staged_image(docker, outputs, context):
            oci.check_place(outputs.image)
            if outputs.sif.is_symlink() or read_record(outputs) is None:  # a build's own may be damaged
                sif.check_place(outputs.sif)
            resolving = _locked_context(context, recipe, plan.os.base, offline=offline)
            store_sources(recipe, plan.extensions, resolving, offline=offline, warm=plan.warm)
            result = open_build(resolving.fetcher, open_stores(context, offline=offline)).run()
        log = read_beneath(outputs.folder.resolve(), outputs.log.name, limit=FILE_LIMIT)
        steps = ended_steps(log.decode(errors="replace"))
        # Last: an interrupted build leaves no record.
        record = replace(result.record.of_files(outputs), steps=steps, path=str(recipe.path.absolute()))
        record.save(outputs.record)
        upkeep.keep_limit(context.store, context.environment, context.console)
    return replace(result, findings=(*findings, *result.findings), not_loaded=not_loaded)


def clear(context: BuildContext, kinds: Sequence[str], *, days: int | None) -> None:
    """Remove these kinds from the cache, by default all that a later build can make again, and what killed builds left.

    With `days`, only what no build made or used for so many days and no lock names. Raises UsageError while the cache is in use.
    """
    context.store.sweep()
    if days is not None:
        upkeep.clear_unused(context, kinds or KEYED, days=days)
        return
    named = kinds or [kind for kind in KINDS if kind not in KEPT]
    if chosen := [kind for kind in named if kind != WORK]:  # `sweep` has cleared `work`
        context.store.clear(chosen)
        _drop_staged_images(context)


def _drop_staged_images(context: BuildContext) -> None:
    """Remove what killed builds of this cache left in the Docker engine."""
    if docker := connect(context.environment):
        for name, build in docker.staged():
            if (context.store.root / "locks" / f"{LOCK}{build}").exists() and (
                left := connect(context.environment, build)
            ):
                left.drop_staged(name)


@contextlib.contextmanager
def _no_staged_image(docker: DockerEngine | None, outputs: Outputs, context: BuildContext) -> Iterator[None]:
    """Remove the containers of a killed build, and the staged image when the block fails or the process is interrupted."""

    def abandon() -> None:
        if docker:
            docker.abandon(outputs.image_name)

    if docker:
        docker.drop_containers()
    context.when_interrupted.append(abandon)
    try:
        yield
    except BaseException:
        abandon()
        raise
    finally:
        context.when_interrupted.remove(abandon)


def resolve_context(context: BuildContext, *, offline: bool) -> ResolveContext:
    """Return the context of resolving and fetching."""
    return open_context(context.store, context.runner, context.environment, context.console, offline=offline)


def _locked_context(
    context: BuildContext, recipe: Recipe, base: LockedBase | None, *, offline: bool
) -> ResolveContext:
    """Return the same for a locked recipe, with the apt repositories of the recipe and of its image."""
    resolving = resolve_context(context, offline=offline)
    resolving.fetcher.know(addresses(recipe, base.inside if base else None))
    return resolving


# Both artifacts, the loading of the image, and what the checks of the verified artifacts found.
_Verified: TypeAlias = tuple[Artifacts, Record, ImageLoader, tuple[Future[tuple[Finding, ...]], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """One build of a recipe."""

    recipe: Recipe
    outputs: Outputs
    context: BuildContext
    runner: StepRunner
    docker: DockerEngine | None
    fetcher: Fetcher

    def run(self) -> BuildResult:
        """Build under temporary names. Only verified and tested artifacts replace earlier ones."""
        outputs, docker = self.outputs, self.docker
        with contextlib.closing(self.runner.job.folders), beside(outputs.folder / outputs.name) as work:
            staged = replace(outputs, folder=work)
            built, record, loading, checks = self._make_verified(staged)
            loading.finish()
            with self._keep_rejected(staged):
                findings = tuple(finding for check in checks for finding in check.result())
            outputs.record.unlink(missing_ok=True)  # it describes the artifacts that are replaced next
            layout = oci.move_layout(built.layout, outputs.image)
            keep = versions_to_keep(self.context.environment)
            history.install(staged.sif, outputs.sif, record.sif, keep)
        if docker:
            docker.load(layout, name=outputs.image_name, console=self.context.console)
        upkeep.mark_used(self.runner.job)
        self.runner.job.blobs.note(built.layers)
        share(self.runner.job)
        image = outputs.image_name if docker else ""
        tested = passed_tests(self.recipe, image=bool(image), findings=findings)
        return BuildResult(
            outputs=outputs, record=replace(record, tested=tested), done=True, image=image, findings=findings,
            runs_here=self.recipe.processor is own_processor(),
        )  # fmt: skip

    def test_again(self, result: BuildResult) -> BuildResult:
        """Test the artifacts that are there, because other tests have passed than the recipe has now."""
        try:
            with contextlib.closing(self.runner.job.folders):
                findings = (*self._import(self.outputs), *self._run_tests(self.outputs, result.image))
        except BuildError as error:
            kept = "the artifacts stay as they are: they are what the recipe and its lock say, apart from its tests"
            error.hint = f"{error.hint}; {kept}" if error.hint else kept
            raise
        tested = passed_tests(self.recipe, image=bool(result.image), findings=findings)
        record = replace(result.record, tested=tested)
        with contextlib.suppress(OSError):  # of a folder that is read-only
            record.save(self.outputs.record)
        return replace(result, record=record, findings=(*result.findings, *findings), tested=bool(tested))

    def _make_verified(self, staged: Outputs) -> _Verified:
        """Make and verify both artifacts, and import the extensions. After a failure, damaged layers in the cache are made again."""
        try:
            return self._try_once(staged)
        except CompileError:  # foreign code has failed, and no layer of the cache
            raise
        except (BuildError, VerifyError):
            damaged = self.runner.job.discard_damaged()
            if not damaged:
                raise
            self.context.console.say(f"damaged in the cache, making again: {', '.join(damaged)}")
            return self._try_once(staged)

    def _try_once(self, staged: Outputs) -> _Verified:
        console = self.context.console
        drop_rejected(self.outputs)
        self.runner.job.fetch_layers()
        self.runner.need_tools(self.fetcher)
        wanted = self.runner.artifacts()
        need_space(self.runner.job, self.fetcher.missing(wanted), self.outputs, staged.folder, self.docker)
        fetch_inputs(wanted, self.fetcher, console)
        loading = ImageLoader(self.docker, self.outputs.image_name, console)
        self.runner.job.blobs.look(self.runner.job.layers())
        built = build_artifacts(self.runner, staged, loading)
        with worker_threads(4, self.context.runner) as pool:
            sealed = pool.submit(seal, staged.sif)
            # Their results count once the SIF is verified.
            imported = pool.submit(self._import, staged)
            tested = pool.submit(lambda: self._run_tests(staged, loading.finish()))
            verified = self._verify(staged, built)
            complete = pool.submit(self._find_missing_libraries, staged, verified)
        return (
            built,
            built.record(self.runner.job.plan, sealed.result()),
            loading,
            (complete, imported, tested),
        )

    def _verify(self, staged: Outputs, built: Artifacts) -> VerifyReport:
        """Raise VerifyError unless both artifacts are what the layers promise."""
        with self.context.console.step("verify image ≡ SIF ≡ plan"):
            threads = self.context.limits.threads
            known = load_contents(self.context.store, built.layers)
            with self.runner.job.blobs.hashed(built.layout, built.layers) as digests:
                report = verify(
                    staged.image,
                    staged.sif,
                    layers=built.layers,
                    threads=threads,
                    digests=digests,
                    known={**known, **built.known},
                )
                if report.findings:
                    with self._keep_rejected(staged):
                        raise VerifyError(
                            "verification failed: the artifacts differ from the plan",
                            findings=report.findings,
                            hint=f"the log is `{self.outputs.log}`",
                        )
            save_contents(self.context.store, built.layers, known, report.known)
        return report

    def _find_missing_libraries(self, staged: Outputs, verified: VerifyReport) -> tuple[Finding, ...]:
        """Return warnings of parts that may never be loaded. Raises VerifyError if an import fails for certain."""
        plan = self.runner.job.plan
        with self.context.console.step("look for missing libraries"), opened_sif(staged.sif) as system:
            outside = ImageTexts(environment=plan.runtime.env)
            tree = SquashfsTree(system, verified.entries, verified.contents)
            image = read_audited(tree, outside=outside, is_read=is_of_environment)
            findings = tuple(check_needed(image, plan.processor.elf))
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise VerifyError("libraries that the environment's modules need are missing", findings=findings)
        return findings

    def _import(self, staged: Outputs) -> tuple[Finding, ...]:
        """Import the extensions. Returns a warning for each that cannot be imported here."""
        job, context = self.runner.job, self.context
        imports, unknown = list_imports(self.recipe, job.plan, context.store)
        sif, environment = staged.sif, context.environment
        return unknown + import_in_sif(imports, sif, job, fetcher=self.fetcher, environment=environment)

    def _run_tests(self, outputs: Outputs, image: str) -> tuple[Finding, ...]:
        """Run the recipe's own tests. Returns a warning if they could not run."""
        return run_recipe_tests(
            self.recipe, outputs.sif, self.runner.job,
            fetcher=self.fetcher, docker=self.docker, image=image, environment=self.context.environment,
        )  # fmt: skip

    @contextlib.contextmanager
    def _keep_rejected(self, staged: Outputs) -> Iterator[None]:
        """If the block fails, keep the rejected artifacts for inspection and mention the SIF in the error's hint."""
        try:
            yield
        except EnvbuilderError as error:
            kept = rejected(self.outputs.sif)
            staged.image.rename(rejected(self.outputs.image))
            staged.sif.replace(kept)
            hint = f"the SIF is kept as `{kept}` until the next build; earlier artifacts stay as they were"
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
            raise


def open_step_runner(
    plan: Plan,
    choice: RunnerChoice,
    context: BuildContext,
    shared: SharedStores = NO_STORES,
    *,
    origin: Path | None = None,
) -> StepRunner:
    """Return the runner of this plan's steps. Raises UsageError for a choice that does not fit the plan."""
    job = BuildJob(
        plan=plan,
        store=context.store,
        runner=context.runner,
        console=context.console,
        limits=context.limits,
        shared=shared,
        origin=str(origin.resolve()) if origin else "",
    )
    if choice.runner_for(plan.name) is RunnerName.SANDBOX:
        return SandboxRunner(job=job)
    return BuildKitRunner(job=job, builder=choice.builder)


def fetch_inputs(wanted: Sequence[Wanted], fetcher: Fetcher, console: Console) -> None:
    """Fetch what the store lacks, and show the progress."""
    if not (missing := fetcher.missing(wanted)):
        fetcher.fetch(wanted)
        return
    title = f"fetch {counted(len(missing), 'artifact')}"
    with console.step(title, sum(file.size for file in missing)) as transfer:
        fetcher.fetch(wanted, transfer)


# ---- other uses of a plan


def explain(name: str, context: BuildContext, host: Path | None, choice: RunnerChoice) -> PlannedRecipe:
    """Return the plan and the commands of the layers that the store lacks. Writes and starts nothing."""
    _, plan, _ = make_plan(name, context.recipes, context.store, host)
    need_buildable(plan)
    commands = tuple(map(str, open_step_runner(plan, choice, context).commands()))
    return PlannedRecipe(name=plan.name, plan=plan.canonical(), commands=commands)


def prepare_recipe(
    name: str, context: BuildContext, folder: Path, *, offline: bool, choice: RunnerChoice
) -> str:
    """Fetch all inputs and write a folder for BuildKit. Returns the command that builds an image from it.

    Raises UsageError for a folder that exists, and for the runner `sandbox`.
    """
    if folder.exists():
        raise UsageError(f"`{folder}` exists", hint="name a folder that does not exist yet")
    recipe, plan, _ = make_plan(name, context.recipes, context.store)
    need_buildable(plan)
    folder = folder.absolute()
    with context.store.in_use():
        resolving = _locked_context(context, recipe, plan.os.base, offline=offline)
        runner = open_step_runner(plan, choice, context)
        if not isinstance(runner, BuildKitRunner):
            raise UsageError(
                f"`--prepare`: the runner `{RunnerName.SANDBOX}` reads no folder",
                hint="add `--runner buildkit`",
            )
        store_sources(recipe, plan.extensions, resolving, offline=offline, warm=plan.warm)
        fetch_inputs(plan.artifacts, resolving.fetcher, context.console)
        fetch_uv(runner.job, resolving.fetcher)
        with beside(folder) as work, context.console.step(f"write `{folder}`"):
            command = runner.prepare(work / "folder", folder)
            commit_path(work / "folder", folder)
    return str(command)


def vendor_recipe(name: str, context: BuildContext, folder: Path) -> Vendored:
    """Fetch all files of a lock and copy them into a folder. Raises LockError, FetchError or SpaceError."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`{folder}` is no folder", hint="name one for the copies; it may be new")
    recipe, lock, _ = load_locked(name, context.recipes, context.store)
    with context.store.in_use():
        resolving = _locked_context(context, recipe, lock.base, offline=False)
        store_sources(recipe, lock.extensions, resolving, warm=lock.warm)
        fetch_inputs((*lock_artifacts(lock), *toolbox_files()), resolving.fetcher, context.console)
        with context.console.step(f"copy into `{folder}`"):
            return vendor(recipe, lock, folder, context.store, toolbox_files())
