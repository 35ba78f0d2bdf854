"""Lock the wheels that `packages` give by address or from the recipe's folder. They are fetched before uv is asked."""

import email
from dataclasses import replace

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuilder.compat.repositories import wheel_address
from envbuilder.core.archive import DAMAGED_ZIP, BoundedZip
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import applies, read_metadata
from envbuilder.lock.resolve.uv_files import target_tags
from envbuilder.recipe.wheel_sources import PlacedWheel, wheel_of


def lock_placed(task: Task, old: Artifacts) -> Artifacts:
    """Fetch the recipe's own wheels and return them. A file without a stated sha256 keeps that of the lock so far, `old`.

    Raises IncompatibleError for a wheel that does not fit or is another one than its name says, and FetchError.
    """
    recipe, wheels = task.recipe, dict[str, Artifact]()
    for at, text in enumerate(recipe.requirements):
        wheel, where = wheel_of(text), recipe.place(f"$.packages[{at}]")
        if wheel and applies(wheel.requirement, recipe.python, task.target.processor):
            _need_fit(wheel, where, task)
            try:
                artifact = _fetch(wheel, old, task)
            except FetchError as error:
                hint = (
                    "check the address, its sha256 and the network; a login belongs in `~/.netrc` (mode 0600)"
                )
                raise FetchError(f"{where}: {error.message}", hint=hint, findings=error.findings) from error
            _need_same(artifact, where, task)
            if wheels.setdefault(wheel.name, artifact) != artifact:
                hint = "leave one of them out, or tell them apart by markers"
                raise IncompatibleError(f"{where}: `{wheel.name}` has a second address", hint=hint)
    return tuple(wheels.values())


def _need_fit(wheel: PlacedWheel, where: str, task: Task) -> None:
    """Raise IncompatibleError with the tag that does not fit."""
    python, processor, glibc = task.recipe.python, task.target.processor, task.target.distribution.glibc
    tags, fitting = parse_wheel_filename(wheel.filename)[3], target_tags(python, glibc, processor)
    if not tags.isdisjoint(fitting):
        return
    pairs = {(tag.interpreter, tag.abi) for tag in fitting}
    wrong = {tag.platform for tag in tags if (tag.interpreter, tag.abi) in pairs}
    named = " or ".join(
        sorted(f"`{tag}`" for tag in wrong or {f"{tag.interpreter}-{tag.abi}" for tag in tags})
    )
    raise IncompatibleError(
        f"{where}: `{wheel.filename}` is for {named}, and the recipe for Python {python} on Linux {processor.title} with glibc {glibc}",
        hint=f"take the wheel whose name has `{fitting[0].interpreter}-{fitting[0].abi}`, or change `python` or `base`",
    )


def _fetch(wheel: PlacedWheel, old: Artifacts, task: Task) -> Artifact:
    context, name, key = task.context, wheel.filename, (wheel.source, wheel.path)
    locked = (file.sha256 for file in old if (file.source, file.path) == key)
    digest = Sha256(wheel.sha256) or next(locked, Sha256(""))
    known = Artifact(
        kind="wheel", name=wheel.name, version=wheel.version, sha256=digest, size=0, source=wheel.source, path=wheel.path
    )  # fmt: skip
    if not digest or not context.store.has_artifact(digest):
        url = wheel_address(wheel, task.recipe.path.parent)
        here = [place / name for place in context.sources().folders if digest and (place / name).is_file()]
        copy = next((file for file in here if sha256_file(file) == digest), None)
        known = replace(known, size=copy.stat().st_size if copy else context.fetcher.measure([url])[0])
        with context.transfer(f"download {name}", known.size) as progress:
            if digest:
                context.fetcher.fetch([known], progress)
            else:
                digest = context.fetcher.fetch_new(known, url, progress)
    return replace(known, sha256=digest, size=context.store.artifact(digest).stat().st_size)


def _need_same(artifact: Artifact, where: str, task: Task) -> None:
    """Raise IncompatibleError unless a wheel's metadata have the name and the version of its file name."""
    try:
        with BoundedZip(task.context.store.artifact(artifact.sha256)) as wheel:
            fields = email.message_from_bytes(read_metadata(wheel))
        name, version = canonicalize_name(f"{fields['Name']}"), Version(f"{fields['Version']}")
    except DAMAGED_ZIP as error:  # also for a version that is none
        why = f"{where}: `{artifact.filename}` is no wheel that can be read: {error}"
        raise IncompatibleError(why, hint="compare the address with the project's page") from error
    if (name, version) != (artifact.name, Version(artifact.version)):
        why = f"{where}: `{artifact.filename}` holds {name} {version}, which its name does not say"
        raise IncompatibleError(why, hint="keep the name that its makers gave it")
