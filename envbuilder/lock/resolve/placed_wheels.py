"""Lock the wheels that `packages` give by address or from the recipe's folder. They are fetched before uv is asked."""

import email
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuilder.core.archive import DAMAGED_ZIP, BoundedZip
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import IncompatibleError
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.repositories import wheel_address
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import applies, read_metadata
from envbuilder.lock.resolve.uv_files import choose_wheel, target_tags
from envbuilder.recipe.wheel_sources import PlacedWheel, wheel_of


def lock_placed(task: Task, old: Artifacts) -> Artifacts:
    """Fetch the recipe's own wheels and return them. A file without a stated sha256 keeps that of the lock so far, `old`.

    Raises IncompatibleError for a wheel that does not fit or is another one than its name says, and FetchError.
    """
    recipe, wheels = task.recipe, dict[str, Artifact]()
    for wheel, where in _placed(task):
        _need_fit(wheel, where, task)
        artifact = _fetch(wheel, recipe.path.parent, old, task)
        _need_same(artifact, where, task)
        if wheels.setdefault(wheel.name, artifact) != artifact:
            hint = "leave one of them out, or tell them apart by markers"
            raise IncompatibleError(f"{where}: `{wheel.name}` has a second address", hint=hint)
    return tuple(wheels.values())


def _placed(task: Task) -> Iterator[tuple[PlacedWheel, str]]:
    recipe, processor = task.recipe, task.target.processor
    for at, text in enumerate(recipe.packages):
        wheel = wheel_of(text)
        if wheel and applies(wheel.requirement, recipe.python, processor):
            yield wheel, recipe.place(f"$.packages[{at}]")


def _need_fit(wheel: PlacedWheel, where: str, task: Task) -> None:
    """Raise IncompatibleError with the tag that does not fit."""
    python, processor, glibc = task.recipe.python, task.target.processor, task.target.distribution.glibc
    if choose_wheel([wheel.filename], python=python, glibc=glibc, processor=processor):
        return
    fitting = target_tags(python, glibc, processor)
    tags = sorted(parse_wheel_filename(wheel.filename)[3], key=str)
    pairs = {(tag.interpreter, tag.abi) for tag in fitting}
    wrong = [f"{tag.interpreter}-{tag.abi}" for tag in tags if (tag.interpreter, tag.abi) not in pairs]
    if len(wrong) < len(tags):
        wrong = [tag.platform for tag in tags if tag.platform not in {other.platform for other in fitting}]
    named = " or ".join(f"`{text}`" for text in dict.fromkeys(wrong))
    raise IncompatibleError(
        f"{where}: `{wheel.filename}` is for {named}, and the recipe for Python {python} on Linux {processor.title} with glibc {glibc}",
        hint=f"take the wheel whose name has `{fitting[0].interpreter}-{fitting[0].abi}`, or change `python` or `base`",
    )


def _fetch(wheel: PlacedWheel, folder: Path, old: Artifacts, task: Task) -> Artifact:
    context, options = task.context, task.options
    known = Artifact(
        kind="wheel", name=wheel.name, version=wheel.version, sha256=Sha256(wheel.sha256), size=0, source=wheel.source,
        path=wheel.path,
    )  # fmt: skip
    before = (file for file in options.to_keep(old) if (file.source, file.path) == (known.source, known.path))
    if not known.sha256 and (locked := next(before, None)):
        known = replace(known, sha256=locked.sha256)
    url = wheel_address(wheel, folder)
    if not known.sha256:
        (size,) = context.fetcher.measure([url])
        with context.transfer(f"download {wheel.filename}", size) as progress:
            digest = context.fetcher.fetch_new(url, size, progress)
        known = replace(known, sha256=digest)
    stored = context.store.artifact(known.sha256)
    if not context.store.has_artifact(known.sha256):
        here = (place / wheel.filename for place in context.sources().folders)
        copy = next((file for file in here if file.is_file() and sha256_file(file) == known.sha256), None)
        size = copy.stat().st_size if copy else context.fetcher.measure([url])[0]
        with context.transfer(f"download {wheel.filename}", size) as progress:
            context.fetcher.fetch([replace(known, size=size)], progress)
    return replace(known, size=stored.stat().st_size)


def _need_same(artifact: Artifact, where: str, task: Task) -> None:
    """Raise IncompatibleError unless a wheel's metadata have the name and the version of its file name."""
    try:
        with BoundedZip(task.context.store.artifact(artifact.sha256)) as wheel:
            fields = email.message_from_bytes(read_metadata(wheel))
        name, version = canonicalize_name(f"{fields['Name']}"), Version(f"{fields['Version']}")
    except (*DAMAGED_ZIP, InvalidVersion) as error:
        why = f"{where}: `{artifact.filename}` is no wheel that can be read: {error}"
        raise IncompatibleError(why, hint="compare the address with the project's page") from error
    if (name, version) != (artifact.name, Version(artifact.version)):
        raise IncompatibleError(
            f"{where}: `{artifact.filename}` holds {name} {version}, which its name does not say",
            hint="keep the name that its makers gave it",
        )
