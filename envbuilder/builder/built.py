"""Commands on built artifacts: find them, sign them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import Outputs, find_outputs, load_record
from envbuilder.artifacts.sif import need_recorded
from envbuilder.artifacts.statement import Release
from envbuilder.builder.context import BuildContext, build_lock
from envbuilder.core.answer import Answer
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import UsageError
from envbuilder.recipe.load import hint_to_build, recipes_folder
from envbuilder.run.named import need_pair

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
