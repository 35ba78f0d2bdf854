"""The story on one page: recipe → lock → plan → layers → image and SIF → verified.

Each function here is one verb of the command line. They put the stages in order and hand values on; every decision is
made in the module that owns it.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder import runtime as image
from envbuilder.artifacts.engine_socket import has_image, is_absent
from envbuilder.artifacts.outputs import Outputs, Record, find_outputs, load_any_record, load_record
from envbuilder.build.context import Workshop
from envbuilder.compat.check import BaseOf, examine, examine_file, load_tables, need_sound
from envbuilder.compat.image_facts import Base
from envbuilder.compat.tables.gpu import capabilities, load_gpus
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.cache import Store, save_text, sha256_file, sha256_text
from envbuilder.core.console import log_to
from envbuilder.core.errors import LockError, UsageError, VerifyError
from envbuilder.core.findings import Finding
from envbuilder.core.sources import PYTORCH_INDEX
from envbuilder.lock import model as locks
from envbuilder.lock.source_files import own_files, source_digests
from envbuilder.plan.model import Plan, StartFiles
from envbuilder.plan.model import make as plan_of
from envbuilder.plan.site import need_files, site_files
from envbuilder.recipe.model import Recipe, find_recipe, hint_to_build, load

if TYPE_CHECKING:
    from envbuilder.build.engine_choice import Choice
    from envbuilder.lock.resolve import Wish
    from envbuilder.lock.vendor import Vendored


def load_checked(
    name: str, folder: Path, host: Path | None = None, *, base_of: BaseOf = lambda _: None
) -> tuple[Recipe, tuple[Finding, ...]]:
    """The recipe and the warnings of `check`; raises IncompatibleError when something in it cannot work."""
    recipe, report = examine_file(name, folder, host, base_of=base_of)
    need_sound(recipe, report)
    return recipe, report.findings


def known_base(recipe: Recipe, *, store: Store) -> Base | None:
    """What the lock knows of the image that the recipe names, else the last one who tried to lock it."""
    try:
        base = locks.load(lock_path(recipe)).base
    except LockError:
        base = None
    if base is None or base.reference != recipe.image:
        from envbuilder.lock.resolve import recall  # noqa: PLC0415 - few recipes stand on an image

        base = recall(store, recipe.image)
    return base.inside if base else None


def lock_path(recipe: Recipe) -> Path:
    return recipe.path.with_suffix(".lock")


def lock_recipe(name: str, workshop: Workshop, *, wish: "Wish", save: bool = True) -> tuple[str, ...]:
    """Resolve the recipe and write its lock beside it; returns what changed, a line each."""
    from envbuilder.lock.resolve import look, make_target, resolve, status_of  # noqa: PLC0415 - a build has no need of it

    means, transfer = workshop.means(offline=False), workshop.console.transfer
    recipe = load(find_recipe(name, workshop.recipes))
    path = lock_path(recipe)
    with workshop.store.in_use():
        old = locks.load(path, recipe=name) if path.exists() else None
        known = old.base if old else None
        base = look(recipe, means, old=known, wish=wish, transfer=transfer) if recipe.image else None
        need_sound(recipe, examine(recipe, load_tables(load_toolkits()), base=base.inside if base else None))
        with workshop.console.step(f"lock {recipe.name}"):
            target = make_target(recipe, base, lambda: status_of(base, means, transfer) if base else "")
            new = resolve(recipe, target, old=old, wish=wish, means=means)
    if save and new != old:
        save_text(path, locks.dump(new))
    return locks.diff(old, new) if old else (f"+ {path}",)


def make_plan(
    name: str, workshop: Workshop, host: Path | None = None
) -> tuple[Recipe, Plan, tuple[Finding, ...]]:
    """Recipe and lock → plan; raises LockError when the lock is missing or no longer fits the recipe."""
    base_of = functools.partial(known_base, store=workshop.store)
    recipe, findings = load_checked(name, workshop.recipes, host, base_of=base_of)
    path = lock_path(recipe)
    lock = locks.load(path, recipe=name)
    stale = locks.check_fresh(recipe, lock, source_digests(own_files(recipe)))
    if stale:
        raise LockError(
            f"the lock `{path}` no longer fits its recipe:\n" + "\n".join(f"  {reason}" for reason in stale),
            hint=f"`envbuilder lock {name}` renews what changed and keeps the rest",
        )
    architectures = capabilities(recipe.gpus, load_gpus().rows)
    own = bool(lock.base and lock.base.inside.toolkit(recipe.cuda))
    toolkit = load_toolkits()[recipe.cuda] if recipe.cuda and not own else None
    plan = plan_of(
        recipe,
        lock,
        toolkit=toolkit,
        architectures=architectures,
        lock_text=locks.dump(lock),
        start=StartFiles(
            site_packages=image.files("start"),
            lib=(*image.files("lib"), *image.modules("node/nccl")),
            entry=image.files("entry"),
        ),
        site=(*site_files(recipe, host), *need_files(recipe)),
    )
    return recipe, plan, findings


def vendor_recipe(name: str, workshop: Workshop, folder: Path) -> "Vendored":
    """Fetch what a lock names and write all of it into a folder; raises LockError, FetchError or SpaceError."""
    from envbuilder.build.making import fetch_all  # noqa: PLC0415 - a build with nothing to do must say so at once
    from envbuilder.lock.resolve import store_sources  # noqa: PLC0415
    from envbuilder.lock.vendor import vendor  # noqa: PLC0415

    recipe, _, _ = make_plan(name, workshop)
    lock = locks.load(lock_path(recipe), recipe=name)
    with workshop.store.in_use():
        means = workshop.means(offline=False)
        store_sources(recipe, lock.extensions, means)
        fetch_all(locks.artefacts(lock), means.fetcher, workshop.console)
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
    name: str,
    workshop: Workshop,
    *,
    output: Path,
    offline: bool,
    host: Path | None = None,
    choice: "Choice | None" = None,
) -> Result:
    """Lock → verified artefacts, and the image in the Docker engine where one answers; `host` is a profile of the site.

    `choice` says who makes the layers.

    Raises LockError, ToolError, FetchError, SpaceError, BuildError or VerifyError.
    """
    from envbuilder.build.engine_choice import Choice  # noqa: PLC0415 - `check` has no need of it
    from envbuilder.build.keys import record_key  # noqa: PLC0415 - as above

    recipe, plan, findings = make_plan(name, workshop, host)
    choice = choice or Choice()
    key = record_key(plan, choice.name_for(plan))
    outputs = Outputs(folder=output.absolute(), name=recipe.name)
    with workshop.store.in_use(), _alone(outputs, workshop):
        # BuildKit has a cache to fill whatever we have.
        record = None if choice.builder.cache_to else load_record(outputs, key)
        if record is not None:
            image = _image_of(outputs, record, workshop)
            return Result(outputs=outputs, record=record, done=False, image=image, findings=findings)
        from envbuilder.build.making import make  # noqa: PLC0415 - a build with nothing to do must say so at once

        workshop.store.sweep()
        with log_to(outputs.log, workshop.console.owner):
            made = make(recipe, plan, outputs, workshop, offline=offline, choice=choice)
        made.record.save(outputs.record)  # last: until then there is something to do
        return Result(
            outputs=outputs,
            record=made.record,
            done=True,
            image=made.image,
            findings=(*findings, *made.findings),
        )


def prepare_recipe(name: str, workshop: Workshop, folder: Path, *, offline: bool, choice: "Choice") -> str:
    """Fetch everything, fill a new folder with what BuildKit reads, and return the command that builds an image of it."""
    from envbuilder.build.making import prepare  # noqa: PLC0415 - a build with nothing to do must say so at once

    if folder.exists():
        raise UsageError(f"`{folder}` is there already", hint="name a folder that is to be made")
    recipe, plan, _ = make_plan(name, workshop)
    with workshop.store.in_use():
        return str(prepare(recipe, plan, folder.absolute(), workshop, offline=offline, choice=choice))


def render_recipe(name: str, workshop: Workshop, form: str) -> str:
    """The plan as text of one of `RENDERERS`, that builds the same environment without envbuilder."""
    from envbuilder.build.render import RENDERERS, make_kit  # noqa: PLC0415 - one verb's

    recipe, plan, _ = make_plan(name, workshop)
    return RENDERERS[form](make_kit(recipe, plan, pytorch_index=PYTORCH_INDEX))


def _image_of(outputs: Outputs, record: Record, workshop: Workshop) -> str:
    """The image's name in the Docker engine, where it is brought unless it is there; "" where no engine answers."""
    if is_absent(workshop.environment):
        return ""
    if has_image(workshop.environment, outputs.image_name, record.manifest):
        return outputs.image_name
    from envbuilder.artifacts.docker_engine import load as load_image  # noqa: PLC0415 - its SDK is slow to import

    return load_image(outputs, record.manifest, workshop.environment, workshop.console)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What a build would do."""

    name: str
    plan: str
    commands: tuple[str, ...]


def explain(
    name: str, workshop: Workshop, host: Path | None = None, choice: "Choice | None" = None
) -> Explained:
    """The plan, and the commands of the layers that the store lacks; nothing is written or started."""
    from envbuilder.build.engine_choice import Choice, open_engine  # noqa: PLC0415 - as above

    recipe, plan, _ = make_plan(name, workshop, host)
    engine = open_engine(
        plan, choice or Choice(),
        store=workshop.store, runner=workshop.runner, console=workshop.console, limits=workshop.limits,
    )  # fmt: skip
    return Explained(name=recipe.name, plan=plan.canonical(), commands=tuple(map(str, engine.commands(plan))))


def list_extensions(name: str, workshop: Workshop) -> tuple[dict[str, object], ...]:
    """What the store has of each extension of a recipe, a row each."""
    from envbuilder.build.assemble.engine import Assemble  # noqa: PLC0415 - as above
    from envbuilder.build.extensions import rows  # noqa: PLC0415

    recipe, plan, _ = make_plan(name, workshop)
    engine = Assemble(
        store=workshop.store, runner=workshop.runner, console=workshop.console, limits=workshop.limits
    )
    return tuple(rows(engine.find_extensions(plan), recipe=recipe.name))


def need_built(outputs: Outputs, name: str, recipes: Path) -> None:
    """Raise UsageError where image or SIF of NAME, as the user called it, is not there."""
    for path in (outputs.image, outputs.sif):
        if not path.exists():
            raise UsageError(f"there is no `{path}`", hint=hint_to_build(name, recipes))


def read_documents(target: str, output: Path, recipes: Path) -> tuple[str, str]:
    """The parts list and the provenance of a recipe that was built, or of a SIF wherever it was built."""
    path = find_outputs(target, output).sif
    if not path.is_file():
        raise UsageError(f"there is no SIF `{path}`", hint=hint_to_build(target, recipes))
    from envbuilder.artifacts.sif import DataType, read_sif  # noqa: PLC0415 - as above

    sif = read_sif(path)
    sbom, provenance = sif.read(DataType.SBOM).decode(), sif.read(DataType.JSON).decode()
    if not sbom or not provenance:
        raise VerifyError(
            f"`{path}` holds no parts list",
            hint="envbuilder did not make it, or one too old to write a parts list",
        )
    return sbom, provenance


def sign_artefacts(name: str, workshop: Workshop, *, output: Path, key: Path) -> dict[str, object]:
    """Sign what was built with the user's own key; a later build still has nothing to do."""
    from envbuilder.artifacts.sif import need_recorded  # noqa: PLC0415 - as above
    from envbuilder.artifacts.signing import sign  # noqa: PLC0415 - cryptography is slow to import

    outputs = find_outputs(name, output.absolute())
    with workshop.store.in_use(), _alone(outputs, workshop):
        need_built(outputs, name, workshop.recipes)
        need_recorded(outputs)
        record = load_any_record(outputs)
        sign(
            outputs.image, outputs.sif, outputs.bundle, key=key, runner=workshop.runner,
            passphrase=lambda: workshop.environment.get("ENVBUILDER_KEY_PASSPHRASE") or workshop.console.ask_secret(f"passphrase of {key}: "),
        )  # fmt: skip
        if record is not None:
            record.of_sif(outputs.sif).save(outputs.record)
    return {"sif": str(outputs.sif), "sif_sha256": sha256_file(outputs.sif), "bundle": str(outputs.bundle)}


@contextlib.contextmanager
def _alone(outputs: Outputs, workshop: Workshop) -> Iterator[None]:
    """One build of the same artefacts at a time; a second one waits, and then has nothing to do."""

    def tell() -> None:
        workshop.console.say(f"another build of `{outputs.name}` is running; waiting for it")

    with workshop.store.lock(f"build-{sha256_text(str(outputs.sif))}", waiting=tell):
        yield
