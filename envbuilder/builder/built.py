"""Commands on built artifacts: find them, verify them, sign them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import Outputs, Record, find_outputs, load_record
from envbuilder.artifacts.sif import need_recorded
from envbuilder.artifacts.statement import Release
from envbuilder.builder.choice import EngineName
from envbuilder.builder.context import BuildContext, build_lock
from envbuilder.builder.engine import layer_keys, record_key
from envbuilder.core.answer import Answer
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import EnvbuilderError, LockError, UsageError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.plain import pasted
from envbuilder.layers.layer import Layer, load_layer
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.recipe.load import hint_to_build, recipes_folder
from envbuilder.run.named import need_pair
from envbuilder.verify.compare import Code
from envbuilder.verify.pair import Verified, Verifier

EPOCH: Final = "SOURCE_DATE_EPOCH"


class Signed(Answer):
    """The signed SIF, and the signed statement of both artifacts."""

    sif: Path
    sif_sha256: str
    bundle: Path
    name: str  # for which the pair is signed
    tag: str
    time: str


def need_built(outputs: Outputs, name: str, recipes: Path) -> None:
    """Raise UsageError if the image or the SIF is missing. `name` is the recipe as the user typed it."""
    for path in (outputs.image, outputs.sif):
        if not path.exists():
            raise UsageError(f"there is no `{path}`", hint=hint_to_build(name, recipes))


def verifier(context: BuildContext, *, glibc: str = "", key: Path | None = None) -> Verifier:
    return Verifier(
        store=context.store, runner=context.runner, console=context.console, environment=context.environment,
        threads=context.limits.threads, glibc=glibc, key=key,
    )  # fmt: skip


def verify_built(name: str, context: BuildContext, verifier: Verifier, *, output: Path) -> Verified:
    """Compare the image and the SIF of a recipe, and those with the plan if the cache still has its layers.

    Raises VerifyError with the first differences, or with the errors of the audits.
    """
    outputs = find_outputs(name, output)
    need_built(outputs, name, context.recipes)
    record = load_record(outputs)
    plan, notes = _plan(name, context)
    layers = _layers(plan, context, record) if plan else ()
    verified = verifier.files(outputs.image, (str(outputs.image), outputs.sif), layers)
    if plan and record and not record.is_of(plan.key):
        message = f"`{outputs.name}` was built from an earlier recipe or lock than those that are here"
        hint = f"`envbuilder build {pasted(name)}` builds what they say"
        notes = (_other_plan(str(outputs.sif), message, hint),)
    return replace(verified, findings=(*verified.findings, *notes))


def _plan(name: str, context: BuildContext) -> tuple[Plan | None, tuple[Finding, ...]]:
    """Return the plan of the recipe and the lock that are here, or None and, for a lock that fits no more, a warning.

    Raises LockError for a lock that was edited.
    """
    try:
        return make_plan(name, context.recipes, context.store)[1], ()
    except LockError as error:
        if error.findings:
            raise
        message = f"not compared with the recipe: {' '.join(error.message.split())}"
        return None, (_other_plan(name, message, error.hint),)
    except EnvbuilderError:
        return None, ()


def _other_plan(where: str, message: str, hint: str) -> Finding:
    return Finding(code=Code.OTHER_PLAN, severity=Severity.WARNING, where=where, message=message, hint=hint)


def _layers(plan: Plan, context: BuildContext, record: Record | None) -> tuple[Layer, ...]:
    """Return the layers of the plan, by the engine that made them, or none if one of them is gone."""
    engines = [engine for engine in EngineName if record and record.key == record_key(plan, engine)]
    keys = layer_keys(plan, *engines or (EngineName.ASSEMBLE,)).values()
    layers = [load_layer(context.store.layer(key)) for key in keys]
    return tuple(layer for layer in layers if layer) if all(layers) else ()


def make_release(name: str, tag: str, environment: Mapping[str, str]) -> Release:
    """Return what a pair is signed for. The time is SOURCE_DATE_EPOCH, otherwise now. Raises UsageError."""
    text = environment.get(EPOCH, "")
    try:
        time = datetime.fromtimestamp(int(text), UTC) if text else datetime.now(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{EPOCH} is `{text}`", hint="write seconds since 1970, or unset it") from error
    return Release(name=name, tag=tag, time=time)


def sign_artifacts(name: str, context: BuildContext, *, output: Path, key: Path, release: Release) -> Signed:
    """Sign both artifacts with the user's key, if they are what `name` says. A later build has nothing to do."""
    from envbuilder.artifacts.signing import sign  # noqa: PLC0415 - cryptography, for signatures alone

    outputs = find_outputs(name, output.absolute())
    with context.store.in_use(), build_lock(outputs, context):
        need_pair(name, output, recipes_folder(context.environment))
        need_recorded(outputs)
        record = load_record(outputs)
        sign(
            outputs.image, outputs.sif, outputs.bundle, release=release, key=key, runner=context.runner,
            passphrase=lambda: context.environment.get("ENVBUILDER_KEY_PASSPHRASE") or context.console.ask_secret(f"passphrase of {key}: "),
        )  # fmt: skip
        if record is not None:
            record.of_sif(outputs.sif).save(outputs.record)
    return Signed(
        sif=outputs.sif, sif_sha256=sha256_file(outputs.sif), bundle=outputs.bundle,
        name=release.name, tag=release.tag, time=release.data()["signed"],
    )  # fmt: skip
