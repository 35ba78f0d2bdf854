"""Say what holds a package back: which requirement excludes its newest release that fits the target."""

import email
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.core.archive import DAMAGED_ZIP, BoundedZip
from envbuilder.core.errors import FetchError
from envbuilder.core.processor import Processor
from envbuilder.lock.candidates import TORCH, keep_requirements, known_requirements, parse_all
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.sdists import open_index
from envbuilder.sources.http import PAGE

Requires = Callable[[Artifact], tuple[Requirement, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The packages that were chosen, and what decided."""

    python: str
    processor: Processor
    packages: Mapping[str, Artifact]
    extensions: Mapping[str, str]  # name and version of the distributions that they are
    parents: Mapping[str, Sequence[str]]  # of a package: those of the packages that require it
    extras: Mapping[str, Collection[str]]  # of a package: those that are required
    # Of recipe, extensions and torch (undeclared), with who has it.
    asked: tuple[tuple[str, Requirement], ...]
    fixed: tuple[Requirement, ...]  # torch itself, and what a CUDA toolkit needs
    requires: Requires

    def on(self, name: str) -> Iterator[tuple[str, Requirement]]:
        """Yield each requirement on a package, with who has it."""
        every = (*self.asked, *((TORCH, requirement) for requirement in self.fixed))
        given = [pair for pair in every if applies(pair[1], self.python, self.processor)]
        for parent in self.parents.get(name, ()):
            given += [(parent, requirement) for requirement in self.required(self.packages[parent])]
        yield from (pair for pair in given if canonicalize_name(pair[1].name) == name)

    def required(self, package: Artifact) -> Iterator[Requirement]:
        """Yield what a package requires on the target, with its extras."""
        extras = self.extras.get(package.name, ())
        required = self.requires(package)
        return (each for each in required if applies(each, self.python, self.processor, extras))

    def needed_by(self, names: Collection[str]) -> set[str]:
        """Return these packages and all that they require, and those require."""
        needed = set(names)
        while more := {name for name, parents in self.parents.items() if needed & set(parents)} - needed:
            needed |= more
        return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A requirement that excludes a release: one on it, or with `is_own` one that it has itself."""

    who: str  # has the requirement; with `is_own`, the package whose version does not meet it
    text: str
    is_own: bool = False


def held_back(choice: Choice, newest: Mapping[str, Artifact], newer: Callable[[str], str]) -> Iterator[str]:
    """Yield a line for each package that is older than its newest release, and one for all whose newest does not fit torch.

    `newer` says why where no requirement alone excludes a release.
    """
    pairs = ((newest[name], choice.packages[name]) for name in sorted(choice.packages.keys() & newest))
    older = {last.name: last for last, chosen in pairs if Version(last.version) > Version(chosen.version)}
    reasons = {name: tuple(_reasons(choice, release)) for name, release in older.items()}
    needed, fitting = choice.needed_by({TORCH}), {TORCH}
    others = {
        name: [why for why in every if why.is_own or why.who not in needed] for name, every in reasons.items()
    }

    def is_torchs(name: str) -> bool:
        return bool(reasons[name]) and all(why.is_own and why.who in fitting for why in others[name])

    while more := {name for name in others if is_torchs(name)} - fitting:
        fitting |= more
    for name, release in older.items():
        if name not in fitting:
            # That of torch, which is fixed, says more than that of a package which could be another one.
            first = sorted(others[name], key=lambda why: why.who not in fitting)[:1]
            why = next((why.text for why in first), "") or newer(name)
            yield f"{name} is {choice.packages[name].version}, not {release.version}: {why}"
    asked = {canonicalize_name(requirement.name) for _, requirement in choice.asked} & fitting - {TORCH}
    if asked and TORCH in choice.packages:
        names = ", ".join(f"{name} {choice.packages[name].version}" for name in sorted(asked))
        yield f"older than the newest release, to fit torch {choice.packages[TORCH].version}: {names}"


def _reasons(choice: Choice, newest: Artifact) -> Iterator[Reason]:
    is_excluded = False
    for who, requirement in choice.on(newest.name):
        if not requirement.specifier.contains(newest.version, prereleases=True):
            is_excluded = True
            yield Reason(who=who, text=f"{who} requires `{_plain(requirement)}`")
    if is_excluded:
        return
    there = {name: package.version for name, package in choice.packages.items()} | dict(choice.extensions)
    for requirement in choice.required(newest):
        name = canonicalize_name(requirement.name)
        if name in there and not is_met(requirement, there):
            text = f"{newest.version} requires `{_plain(requirement)}`, and {name} is {there[name]}"
            yield Reason(who=name, text=text, is_own=True)


def is_met(requirement: Requirement, versions: Mapping[str, str]) -> bool:
    version = versions.get(canonicalize_name(requirement.name), "")
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


def applies(requirement: Requirement, python: str, processor: Processor, extras: Iterable[str] = ()) -> bool:
    """Return whether the marker of a requirement is true with this Python, for this processor, with one of the extras."""
    marker, environment = requirement.marker, processor.markers(python)
    return marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in ("", *extras))


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def read_requirements(package: Artifact, context: ResolveContext) -> tuple[Requirement, ...]:
    """Return what a wheel requires, out of its metadata in the store, a folder or an index. They are read once for each sha256.

    Raises FetchError.
    """
    stored = context.store.artifact(package.sha256)
    if (known := known_requirements(package, context.store)) is not None:
        return known
    try:
        with (
            BoundedZip(stored)
            if context.store.has_artifact(package.sha256)
            else open_index(context).open_artifact(package) as wheel
        ):
            texts = email.message_from_bytes(read_metadata(wheel)).get_all("Requires-Dist", [])
    except (*DAMAGED_ZIP, OSError) as error:
        why = f"`{package.filename}` of the index is no wheel that can be read: {error}"
        raise FetchError(why) from error
    keep_requirements(package, context.store, map(str, texts))
    return tuple(parse_all(map(str, texts)))


def read_metadata(wheel: zipfile.ZipFile) -> bytes:
    """Return a wheel's metadata; raises ValueError unless it has them once, and of up to PAGE bytes."""
    (name,) = [
        path for path in wheel.namelist() if path.count("/") == 1 and path.endswith(".dist-info/METADATA")
    ]
    if wheel.getinfo(name).file_size > PAGE:
        raise ValueError(f"its metadata has more than {PAGE} bytes")
    return wheel.read(name)
