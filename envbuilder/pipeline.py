"""The story on one page: recipe → lock → plan → layers → image and SIF → verified.

Each function here is one verb of the command line. They put the stages in order and hand values on; every decision is
made in the module that owns it.
"""

import contextlib
import functools
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuilder import image
from envbuilder import lock as locks
from envbuilder.base.facts import Base
from envbuilder.base.locked import LockedBase
from envbuilder.build import build, load_record
from envbuilder.check import BaseOf, Report, examine, examine_file, load_tables, need_sound
from envbuilder.command import Runner
from envbuilder.console import Console, log_to
from envbuilder.detect import need_files, site_files
from envbuilder.engines.assemble import Assemble, Limits
from envbuilder.engines.extensions import rows
from envbuilder.errors import (
    BuildError,
    LockError,
    SpaceError,
    ToolError,
    UsageError,
    VerifyError,
)
from envbuilder.fetch import Fetcher
from envbuilder.fetch.wanted import Wanted
from envbuilder.findings import Finding, Severity
from envbuilder.lock import Artefact
from envbuilder.outputs import IMAGE_PREFIX, Outputs, Record, load_any_record, refuse
from envbuilder.plan import Plan, StartFiles, make
from envbuilder.recipe import Recipe, find_recipe, load
from envbuilder.resolve import (
    Means,
    Transfer,
    Wish,
    look,
    make_target,
    own_files,
    recall,
    resolve,
    source_digests,
    status_of,
    store_sources,
)
from envbuilder.sources import probe_sources
from envbuilder.store import Store, save_text, sha256_file, sha256_text
from envbuilder.tables.gpu import capabilities, load_gpus
from envbuilder.tables.toolkit import load_toolkits
from envbuilder.tools import BUILD_TOOLS, check_tools
from envbuilder.tree import Layer

if TYPE_CHECKING:
    from envbuilder.registry.client import Client
    from envbuilder.run import Ran
    from envbuilder.vendor import Vendored

# Bytes on disk per byte fetched, measured on the recipes of this repository: an unpacked tree (2.1) and a layer (1.1)
# for each step that is built, and the SIF (1.2) always.
SPACE_PER_STEP: Final = 3.2
SPACE_PER_BUILD: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What every verb works with: the store, the runner, the person at the terminal and this machine's settings."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    recipes: Path
    limits: Limits

    def means(self, *, offline: bool) -> Means:
        """The hands to reach the world; where artefacts come from is looked up when the first one is needed."""
        sources = functools.cache(lambda: probe_sources(self.environment, self.runner))
        fetcher = Fetcher(self.store, sources, offline=offline)

        @functools.cache
        def client() -> "Client":
            from envbuilder.registry.client import open_client  # noqa: PLC0415 - few recipes stand on an image

            return open_client(self.environment, self.runner)

        return Means(store=self.store, runner=self.runner, sources=sources, client=client, fetcher=fetcher)


def load_checked(
    name: str, folder: Path, host: Path | None = None, *, base_of: BaseOf = lambda _: None
) -> tuple[Recipe, tuple[Finding, ...]]:
    """The recipe and the warnings of `check`; raises IncompatibleError when something in it cannot work."""
    recipe, report = examine_file(name, folder, host, base_of=base_of)
    need_sound(recipe, report)
    return recipe, report.findings


def check_recipe(name: str, workshop: Workshop, host: Path | None = None) -> tuple[Recipe, Report]:
    """Everything that `check` has to say, of an image as far as it was looked into."""
    return examine_file(
        name, workshop.recipes, host, base_of=functools.partial(known_base, store=workshop.store)
    )


def known_base(recipe: Recipe, *, store: Store) -> Base | None:
    """What the lock knows of the image that the recipe names, else the last one who tried to lock it."""
    try:
        base = locks.load(lock_path(recipe)).base
    except LockError:
        base = None
    if base is None or base.reference != recipe.image:
        base = recall(store, recipe.image)
    return base.inside if base else None


def lock_path(recipe: Recipe) -> Path:
    return recipe.path.with_suffix(".lock")


def lock_recipe(name: str, workshop: Workshop, *, wish: Wish, save: bool = True) -> tuple[str, ...]:
    """Resolve the recipe and write its lock beside it; returns what changed, a line each."""
    means, transfer = workshop.means(offline=False), workshop.console.transfer
    recipe = load(find_recipe(name, workshop.recipes))
    path = lock_path(recipe)
    with workshop.store.in_use():
        base = _look(recipe, path, means, wish=wish, transfer=transfer) if recipe.image else None
        need_sound(recipe, examine(recipe, load_tables(load_toolkits()), base=base.inside if base else None))
        old = locks.load(path) if path.exists() else None
        with workshop.console.step(f"lock {recipe.name}"):
            target = make_target(recipe, base, lambda: status_of(base, means, transfer) if base else "")
            new = resolve(recipe, target, old=old, wish=wish, means=means)
    if save and new != old:
        save_text(path, locks.dump(new))
    return locks.diff(old, new) if old else (f"+ {path}",)


def _look(recipe: Recipe, path: Path, means: Means, *, wish: Wish, transfer: Transfer) -> LockedBase:
    old = locks.load(path).base if path.exists() else None
    return look(recipe, means, old=old, wish=wish, transfer=transfer)


def make_plan(
    name: str, workshop: Workshop, host: Path | None = None
) -> tuple[Recipe, Plan, tuple[Finding, ...]]:
    """Recipe and lock → plan; raises LockError when the lock is missing or no longer fits the recipe."""
    base_of = functools.partial(known_base, store=workshop.store)
    recipe, findings = load_checked(name, workshop.recipes, host, base_of=base_of)
    path = lock_path(recipe)
    lock = locks.load(path)
    stale = locks.check_fresh(recipe, lock, source_digests(own_files(recipe)))
    if stale:
        raise LockError(
            f"the lock `{path}` no longer fits its recipe:\n" + "\n".join(f"  {reason}" for reason in stale),
            hint=f"`envbuilder lock {name}` renews what changed and keeps the rest",
        )
    architectures = capabilities(recipe.gpus, load_gpus().rows)
    own = bool(lock.base and lock.base.inside.toolkit(recipe.cuda))
    toolkit = load_toolkits()[recipe.cuda] if recipe.cuda and not own else None
    plan = make(
        recipe,
        lock,
        toolkit=toolkit,
        architectures=architectures,
        lock_text=locks.dump(lock),
        start=StartFiles(
            site_packages=image.files("start"),
            lib=(*image.files("lib"), *image.modules("host")),
            entry=image.files("entry"),
        ),
        site=(*site_files(recipe, host), *need_files(recipe)),
    )
    return recipe, plan, findings


def vendor_recipe(name: str, workshop: Workshop, folder: Path) -> "Vendored":
    """Fetch what a lock names and write all of it into a folder; raises LockError, FetchError or SpaceError."""
    from envbuilder.vendor import vendor  # noqa: PLC0415 - a build with nothing to do must say so at once

    recipe, _, _ = make_plan(name, workshop)
    lock = locks.load(lock_path(recipe))
    with workshop.store.in_use():
        means = workshop.means(offline=False)
        store_sources(recipe, lock.extensions, means)
        _fetch(locks.artefacts(lock), means.fetcher, workshop.console)
        with workshop.console.step(f"copy into `{folder}`"):
            return vendor(recipe, lock, folder, workshop.store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `build` has to tell."""

    outputs: Outputs
    record: Record
    done: bool  # False: there was nothing to do
    image: str  # its name in the Docker engine; "" where no engine answered
    findings: tuple[Finding, ...]

    def summary(self) -> dict[str, object]:
        """The data of the JSON answer."""
        return {
            "name": self.outputs.name,
            "sif": str(self.outputs.sif),
            "sif_sha256": self.record.sif,
            "sif_bytes": self.record.sif_size,
            "layout": str(self.outputs.image),
            "manifest": f"sha256:{self.record.manifest}",
            "tree_bytes": self.record.content_size,
            "image": self.image,
            "built": self.done,
        }

    def text(self) -> str:
        """The same for a person."""
        head = (
            f"{self.outputs.name}: built and verified" if self.done else f"{self.outputs.name}: nothing to do"
        )
        lines = [
            head,
            f"  SIF    {self.outputs.sif}  {self.record.sif_size / 1e9:.2f} GB  sha256:{self.record.sif}",
            f"  image  {self.image or 'not loaded: no Docker engine answers'}  sha256:{self.record.manifest}",
            f"  layout {self.outputs.image}  (a tree of {self.record.content_size / 1e9:.2f} GB)",
        ]
        return "\n".join(lines)


def build_recipe(
    name: str, workshop: Workshop, *, output: Path, offline: bool, host: Path | None = None
) -> Result:
    """Lock → verified artefacts, and the image in the Docker engine where one answers; `host` is a profile of the site.

    Raises LockError, ToolError, FetchError, SpaceError, BuildError or VerifyError.
    """
    recipe, plan, findings = make_plan(name, workshop, host)
    outputs = Outputs(folder=output.absolute(), name=recipe.name)
    with workshop.store.in_use(), _alone(outputs, workshop):
        record = load_record(outputs, plan)
        done = record is None
        if record is None:
            workshop.store.sweep()
            store_sources(recipe, plan.extensions, workshop.means(offline=offline), offline=offline)
            with log_to(outputs.log):
                record = _build(plan, outputs, workshop, offline=offline)
        image = _load(outputs, record.manifest, workshop)  # after a build it is there: one look
        if done:
            findings += try_out(recipe, outputs, workshop, image=image)
            record.save(outputs.record)  # last: until then there is something to do
        return Result(outputs=outputs, record=record, done=done, image=image, findings=findings)


def try_out(recipe: Recipe, outputs: Outputs, workshop: Workshop, *, image: str) -> tuple[Finding, ...]:
    """Run the recipe's tests in both artefacts; raises BuildError for one that fails, and says what could not be tried."""
    from envbuilder.publish import connect  # noqa: PLC0415 - the SDKs are slow to import
    from envbuilder.run import probe_surroundings, run_in_image, run_in_sif  # noqa: PLC0415

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
                        code="EB650", severity=Severity.WARNING, where=recipe.place("$.tests"), hint=error.hint,
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


def _need_success(ran: "Ran", test: str, where: str) -> None:
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-20:])
        raise BuildError(f"the recipe's test `{test}` failed in `{where}` with exit code {ran.code}\n{tail}")


def _load(outputs: Outputs, manifest: str, workshop: Workshop) -> str:
    """Bring the image into the Docker engine unless it is there; returns its name there, "" without an engine.

    The engine takes a layer only when its digest is the manifest's, so a damaged image never gets the name.
    """
    from envbuilder.publish import connect, has_image, load_image  # noqa: PLC0415 - the SDK costs a no-op its second

    client = connect(workshop.environment)
    if client is None:
        return ""
    name = f"{IMAGE_PREFIX}/{outputs.name}:latest"
    if not has_image(client, name, manifest):
        load_image(client, outputs.image, name=name, console=workshop.console)
    return name


def _load_part(plan: Plan, layers: tuple[Layer, ...], workshop: Workshop) -> None:
    """Bring the layers that are ready into the Docker engine, where one answers: its work is then done the sooner."""
    from envbuilder.publish import connect, load_part  # noqa: PLC0415 - as above

    client = connect(workshop.environment)
    if client is not None:
        with workshop.store.workspace() as work:
            load_part(client, plan, layers, folder=work / "image", console=workshop.console)


def _build(plan: Plan, outputs: Outputs, workshop: Workshop, *, offline: bool) -> Record:
    """Build and verify; where that fails for layers that have gone bad in the cache, those are made again first."""
    console = workshop.console
    engine = Assemble(store=workshop.store, runner=workshop.runner, console=console, limits=workshop.limits)
    try:
        return _build_once(plan, outputs, workshop, engine, offline=offline)
    except (BuildError, VerifyError):
        damaged = engine.discard_damaged(plan)
        if not damaged:
            raise
        console.say(f"damaged in the cache, and made again: {', '.join(damaged)}")
    return _build_once(plan, outputs, workshop, engine, offline=offline)


def _build_once(
    plan: Plan, outputs: Outputs, workshop: Workshop, engine: Assemble, *, offline: bool
) -> Record:
    from envbuilder.publish import Background  # noqa: PLC0415 - as above

    console, limits = workshop.console, workshop.limits
    missing_tools = check_tools(BUILD_TOOLS, workshop.runner)
    if missing_tools:
        raise ToolError("tools that a build needs are not there", findings=missing_tools)
    wanted = engine.artefacts(plan)
    fetcher = workshop.means(offline=offline).fetcher
    missing = fetcher.missing(wanted)
    need_space(plan, wanted, missing, outputs, workshop.store)
    _fetch(wanted, fetcher, console)
    loading = Background()
    built = build(
        plan,
        outputs,
        engine=engine,
        runner=workshop.runner,
        console=console,
        part_done=lambda layers: loading.begin(lambda: _load_part(plan, layers, workshop)),
        image_done=lambda manifest: loading.begin(lambda: _load(outputs, manifest, workshop)),
    )
    from envbuilder.verify import verify  # noqa: PLC0415 - as above

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


def _fetch(wanted: Sequence[Artefact], fetcher: Fetcher, console: Console) -> None:
    """Bring what the store lacks, and show how far it is."""
    missing = fetcher.missing(wanted)
    if not missing:
        fetcher.fetch(wanted)
        return
    with console.transfer(f"fetch {len(missing)} artefacts", sum(one.size for one in missing)) as transfer:
        fetcher.fetch(wanted, transfer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What a build would do."""

    name: str
    plan: str
    commands: tuple[str, ...]


def explain(name: str, workshop: Workshop, host: Path | None = None) -> Explained:
    """The plan, and the commands of the layers that the store lacks; nothing is written or started."""
    recipe, plan, _ = make_plan(name, workshop, host)
    engine = Assemble(
        store=workshop.store, runner=workshop.runner, console=workshop.console, limits=workshop.limits
    )
    return Explained(name=recipe.name, plan=plan.canonical(), commands=tuple(map(str, engine.commands(plan))))


def list_extensions(name: str, workshop: Workshop) -> tuple[dict[str, object], ...]:
    """What the store has of each extension of a recipe, a row each."""
    recipe, plan, _ = make_plan(name, workshop)
    engine = Assemble(
        store=workshop.store, runner=workshop.runner, console=workshop.console, limits=workshop.limits
    )
    return tuple(rows(engine.find_extensions(plan), recipe=recipe.name))


def read_documents(target: str, output: Path) -> tuple[str, str]:
    """The parts list and the provenance of a recipe that was built, or of a SIF wherever it was built."""
    path = Path(target) if target.endswith(".sif") else Outputs(folder=output, name=target).sif
    if not path.is_file():
        raise UsageError(f"there is no SIF `{path}`", hint="`envbuilder build NAME` makes it")
    from envbuilder.sif import DataType, read_sif  # noqa: PLC0415 - as above

    sif = read_sif(path)
    sbom, provenance = sif.read(DataType.SBOM).decode(), sif.read(DataType.JSON).decode()
    if not sbom or not provenance:
        raise VerifyError(f"`{path}` holds no parts list", hint="an older envbuilder made it; build it again")
    return sbom, provenance


def sign_artefacts(name: str, workshop: Workshop, *, output: Path, key: Path) -> dict[str, object]:
    """Sign what was built with the user's own key; a later build still has nothing to do."""
    from envbuilder.sign import sign  # noqa: PLC0415 - cryptography is slow to import

    outputs = Outputs(folder=output.absolute(), name=name)
    with workshop.store.in_use(), _alone(outputs, workshop):
        for path in (outputs.image, outputs.sif):
            if not path.exists():
                raise UsageError(f"there is no `{path}`", hint=f"`envbuilder build {name}` makes it")
        record = load_any_record(outputs)
        sign(
            outputs.image, outputs.sif, outputs.bundle, key=key, runner=workshop.runner,
            passphrase=lambda: workshop.environment.get("ENVBUILDER_KEY_PASSPHRASE") or workshop.console.ask_secret(f"passphrase of {key}: "),
        )  # fmt: skip
        if record is not None:
            record.of_sif(outputs.sif).save(outputs.record)
    return {"sif": str(outputs.sif), "sif_sha256": sha256_file(outputs.sif), "bundle": str(outputs.bundle)}


def need_space(
    plan: Plan, wanted: Sequence[Artefact], missing: Sequence[Wanted], outputs: Outputs, store: Store
) -> None:
    """Raise SpaceError before anything is written where the disk cannot hold what is to come."""
    every = [item for step in plan.steps for item in step.artefacts]
    fetch = sum(item.size for item in missing)
    layers = int(SPACE_PER_STEP * sum(item.size for item in wanted))
    sif = int(SPACE_PER_BUILD * sum(item.size for item in every))
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


@contextlib.contextmanager
def _alone(outputs: Outputs, workshop: Workshop) -> Iterator[None]:
    """One build of the same artefacts at a time; a second one waits, and then has nothing to do."""

    def tell() -> None:
        workshop.console.say(f"another build of `{outputs.name}` is running; waiting for it")

    with workshop.store.lock(f"build-{sha256_text(str(outputs.sif))}", waiting=tell):
        yield
