"""Choose the source of the CUDA toolkit, and resolve its packages.

In NVIDIA's redistributable archive, the manifest of a release (`redistrib_X.Y.Z.json`) names each component's file for each
platform by path, sha256 and size. The table has the digests of the manifests that are known. A newer manifest is trusted as
it comes, because a lock names each component by its own digest.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from envbuilder.compat.context import distance
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import (
    Source,
    Toolkit,
    ToolkitLayout,
    all_releases,
    load_toolkits,
    newer_releases,
    toolkit_of,
)
from envbuilder.core.budget import parse_json
from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.models import adapter
from envbuilder.core.processor import Processor
from envbuilder.core.spelling import either
from envbuilder.lock.model import Artifact, Artifacts, Digest, RelativePath, Version
from envbuilder.lock.resolve.context import ResolveContext, Task
from envbuilder.lock.resolve.debs import resolve_repository_debs, resolve_toolkit_debs
from envbuilder.lock.resolve.wheels import resolve_toolkit_wheels
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import ACCESS_HINT, NETWORK_HINT
from envbuilder.sources.http import SourceError
from envbuilder.sources.names import CUDA, shown

log = logging.getLogger(__name__)

_NAMES: Final[dict[Source, str]] = {
    "archive": "NVIDIA's archive", "wheels": "the package index", "debs": "Debian", "apt": "an apt source",
}  # fmt: skip
_OFF: Final = "switched off, because ENVBUILDER_CUDA_REDIST is empty"
SETTING: Final = "ENVBUILDER_CUDA_REDIST names a mirror of NVIDIA's archive, or a folder that holds its files"


def locked_toolkit(recipe: Recipe, locked: Iterable[Artifact]) -> Toolkit | None:
    """Return the toolkit that the locked packages make for the recipe, None if they make none."""
    known = toolkit_of(recipe.cuda_minor, locked, load_toolkits().rows)
    return known[1] if known else None


def resolve_toolkit(task: Task, old: Artifacts = ()) -> Artifacts:
    """Return the packages of the first source that has the recipe's CUDA.

    The source of the `old` packages is asked first, then the others by preference.

    Those that only bring headers are among them; `without_headers` leaves them out. Raises IncompatibleError with what
    each source says if none has it.
    """
    recipe, rows = task.recipe, load_toolkits().rows
    before = toolkit_of(recipe.cuda_minor, old, rows)
    layouts = [row for row in rows if row.may_have(recipe.cuda)]
    if before:
        layouts.sort(key=lambda row: row.source != before[0].source)
    refusals: dict[Source, str] = {}
    for layout in layouts:
        if layout.source == "archive" and not task.context.sources().cuda:
            refusals[layout.source] = _OFF
            continue
        try:
            packages = sorted(_resolve(layout, task), key=lambda part: part.name)
        except (FetchError, IncompatibleError) as error:
            refusals[layout.source] = error.message
            continue
        for why in refusals.values():
            if why != _OFF:
                log.warning("CUDA %s comes from %s: %s", recipe.cuda, _NAMES[layout.source], why)
        return tuple(packages)
    raise _refused(recipe, refusals, task.context)


def without_headers(recipe: Recipe, parts: Artifacts, wheels: Artifacts) -> Artifacts | None:
    """Return the toolkit's packages without those that only bring headers which the Python environment has.

    Returns None if some that it lacks are not among the packages. Old builds of torch, and some of PyTorch's own index,
    have NVIDIA's libraries inside; 1.13 has some of them inside.
    """
    known = toolkit_of(recipe.cuda_minor, parts, load_toolkits().rows)
    names = {part.name for part in known[0].parts_of(recipe.cuda_minor, headers=True)} if known else set()
    brought = {re.sub(r"-cu\d+$", "", wheel.name) for wheel in wheels}
    needed = {name for name in names if _wheel_with(name) not in brought}
    if not needed <= {part.name for part in parts}:
        return None
    return tuple(part for part in parts if part.name not in names - needed)


def _wheel_with(part: str) -> str:
    """Return the wheel with the headers of a part: nvidia-cublas of libcublas and of libcublas-dev-11-3."""
    return f"nvidia-{re.sub(r'-dev-[0-9-]+$', '', part).removeprefix('lib').replace('_', '-')}"


def _resolve(layout: ToolkitLayout, task: Task) -> Iterator[Artifact]:
    minor = task.recipe.cuda_minor
    parts = (*layout.parts_of(minor), *layout.parts_of(minor, headers=True))
    if debs := [part for part in parts if part.deb]:
        yield from resolve_toolkit_debs(task, debs)
    if packages := [part.name for part in parts if part.apt]:
        yield from resolve_repository_debs(task, packages)
    if wheels := [part for part in parts if part.wheel]:
        yield from resolve_toolkit_wheels(task, wheels)
    if archives := [part for part in parts if part.archive]:
        manifest = _find(layout, task)
        yield from (manifest.component(part.name, task.target.processor) for part in archives)


def _refused(recipe: Recipe, refusals: dict[Source, str], context: ResolveContext) -> IncompatibleError:
    """Return the error to raise: what each source says, what it has, and the nearest pin of another source."""
    rows = load_toolkits().rows
    lines = []
    for source, name in _NAMES.items():
        layouts = [row for row in rows if row.source == source]
        has = _spans(all_releases(layouts))
        address = context.sources().cuda if source == "archive" else ""
        where = f" ({shown(address)})" if address else ""
        why = refusals.get(source, f"no {recipe.cuda}")
        lines.append(f"  {name}{where} has {has}: {why}")
    others = [release for row in rows if row.source not in refusals for release in row.releases]
    near = min(others, key=lambda release: distance(release, recipe.cuda), default="")
    other = f'; the nearest of another source is `cuda: "{near.rpartition(".")[0]}"`' if near else ""
    first = f"{recipe.place('$.cuda')}: no source of this machine gives CUDA {recipe.cuda}"
    return IncompatibleError("\n".join([first, *lines]), hint=SETTING + other)


def _spans(releases: tuple[str, ...]) -> str:
    """Return the minor versions of these releases: 11.2, 11.8 or 12.4; many as 11.4 to 13.4."""
    minors = sorted({release.rpartition(".")[0] for release in releases}, key=version_key)
    return either(minors, "and") if len(minors) < 4 else f"{minors[0]} to {minors[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    relative_path: RelativePath
    sha256: Digest
    size: Annotated[int, Field(ge=0)]  # a text in the manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistManifest:
    """The manifest of one release."""

    release: str
    released: str  # YYYY-MM-DD; "" where it does not say
    content: Mapping[str, Any]

    def component(self, name: str, processor: Processor) -> Artifact:
        """Return a component's file for a processor. Raises IncompatibleError if there is none, FetchError if it is not understood."""
        entry, platform = self.content.get(name), processor.redist
        if not isinstance(entry, dict) or platform not in entry:
            raise IncompatibleError(
                f"the manifest of CUDA {self.release} has no `{name}` for {platform}",
                hint="the archive has another layout than this envbuilder knows: take an older release",
            )
        try:
            version = adapter(_Component).validate_python(entry).version
            file = adapter(_File).validate_python(entry[platform])
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"]))
            raise _not_understood(self.release, f"`{name}` has a wrong `{place}`: {wrong['msg']}") from error
        return Artifact(
            kind="archive", name=name, version=version, sha256=file.sha256, size=file.size, source=CUDA, path=file.relative_path
        )  # fmt: skip


def parse_manifest(release: str, text: bytes) -> RedistManifest:
    """Read a manifest. Raises FetchError if it is none."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise _not_understood(release, str(error)) from error
    if not isinstance(content, dict):
        raise _not_understood(release, "expected a map")
    released = content.get("release_date", "")
    if not isinstance(released, str):
        raise _not_understood(release, "`release_date` is no text")
    return RedistManifest(release=release, released=released, content=content)


def _not_understood(release: str, why: str) -> FetchError:
    return FetchError(f"could not understand the manifest of CUDA {release}: {why}", hint=SETTING)


def _find(layout: ToolkitLayout, task: Task) -> RedistManifest:
    """Return the manifest of the newest release that the archive has of a recipe's `cuda`.

    Raises FetchError if the archive is not reached, IncompatibleError if it does not have the release.
    """
    cuda, before, base = task.recipe.cuda, task.options.before, task.context.sources().cuda
    for release in _newest_first(cuda, layout, task.context):
        manifest = _ask(release, layout, task.context)
        if manifest and (before is None or manifest.released <= before.isoformat()):
            log.info("CUDA %s is %s of %s", cuda, release, shown(base))
            return manifest
    by = f" by {before}" if before else ""
    raise IncompatibleError(f"{shown(base)} has no CUDA {cuda}{by}")


def _newest_first(cuda: str, layout: ToolkitLayout, context: ResolveContext) -> Iterator[str]:
    if cuda.count(".") == 2:
        yield cuda
        return
    known = layout.releases_of(cuda)
    newer = newer_releases(cuda, known, lambda release: _ask(release, layout, context))
    yield from (*reversed([release for release, _ in newer]), *known)


def _ask(release: str, layout: ToolkitLayout, context: ResolveContext) -> RedistManifest | None:
    """Return the manifest of a release, None if the archive has none. Raises FetchError."""
    url = f"{context.sources().cuda}redistrib_{release}.json"
    try:
        text = context.fetcher.page(url)
    except SourceError as refusal:
        if refusal.kind == "gone":
            return None
        hint = ACCESS_HINT if refusal.kind == "refused" else NETWORK_HINT
        raise FetchError(f"could not read NVIDIA's archive\n  {refusal}", hint=hint) from refusal
    digest, known = sha256_bytes(text), layout.manifests.get(release)
    if known is None:
        message = (
            "the digest of the manifest of CUDA %s is not known: its components are taken as it names them"
        )
        log.warning(message, release)
    elif digest != known:
        raise FetchError(
            f"{shown(url)} is not the manifest that NVIDIA published: its sha256 is {digest}, expected {known}",
            hint=f"find out who changed it; {SETTING}",
        )
    return parse_manifest(release, text)
