"""The item `{from: LOCK}` of `packages`: what another tool's lock has for the recipe's Python and processor, as requirements.

Exactly its versions are taken, and only files with its hashes. The recipe decides torch, what torch brings, and the CUDA build.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envbuilder.core.errors import UsageError, blaming_content
from envbuilder.core.models import Mistake
from envbuilder.core.places import shown
from envbuilder.core.processor import Processor
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.other_locks import BROUGHT, OtherLock, Package, main_index, open_lock
from envbuilder.recipe.packages import (
    IMAGE_TORCH,
    NO_TORCH,
    TORCH_BUILD,
    LockItem,
    OtherPins,
    Requirements,
    note,
)

_TORCH: Final = ("torch", "pytorch")
_PLACES: Final = frozenset({"git", "url", "path"})
_OF_CONDA: Final = ("python", "python-abi", "pip")  # what a recipe has by itself, or cannot have


def requirements_of(
    item: LockItem, folder: Path, *, python: str, pytorch: str, processor: Processor
) -> Requirements:
    """Return what the lock has for this Python and processor. `mistakes` has what contradicts the recipe."""
    requirements, path = Requirements(folder=folder), folder / item.file
    requirements.files.append(path)
    try:
        with blaming_content(f"`{path}`"):
            lock = open_lock(path)
            packages, target = lock.packages(python, processor, item.wanted)
    except UsageError as error:
        reasons = (error.message, *(finding.message for finding in error.findings))
        requirements.mistakes.append(_mistake(": ".join(reasons), path, error.hint))
        return requirements
    requirements.mistakes += _contradictions(lock, packages, python=python, pytorch=pytorch)
    for name in sorted(set(item.wanted) - target.offered):
        message = f"`{path}` has no group, extra or environment {shown(name)}"
        requirements.mistakes.append(
            _mistake(message, path, f"it has {', '.join(sorted(target.offered)) or 'none'}")
        )
    requirements.notes += (note(text, str(path)) for text in target.notes)
    kept = [package for package in packages if pytorch == NO_TORCH or not BROUGHT.match(_name(package))]
    _take(kept, path, requirements)
    indexed = (package for package in kept if package.version and _PLACES.isdisjoint(package.place))
    versions = {_name(package): package.version for package in indexed if package.is_python}
    for name in (*_TORCH, *_OF_CONDA):
        versions.pop(name, None)
    pins = OtherPins(path=item.file, sha256=lock.sha256, size=lock.size, versions=tuple(sorted(versions.items())))  # fmt: skip
    requirements.locks.append(pins)
    return requirements


def _name(package: Package) -> str:
    return canonicalize_name(package.purl or package.name)


def _contradictions(
    lock: OtherLock, packages: Sequence[Package], *, python: str, pytorch: str
) -> Iterator[Mistake]:
    """Yield the Python of a lock, and its torch, where the recipe has another one."""
    path, given = lock.path, lock.python
    for package in packages:
        version = package.version.partition("+")[0]
        if package.build is not None and package.name == "python":
            given = f"=={'.'.join(version.split('.')[:2])}.*"
        elif _name(package) in _TORCH and pytorch not in (version, IMAGE_TORCH):
            message = f"`{path}` has torch {package.version}, and the recipe `pytorch: {pytorch}`"
            yield _mistake(message, path, "write one version into both: the other packages may fit one alone")
    try:  # a bound such as >=3.11.4 allows some 3.11
        is_allowed = SpecifierSet(given).contains(f"{python}.99")
    except InvalidSpecifier:
        is_allowed = False
    if not is_allowed:
        yield _mistake(
            f"`{path}` is for Python `{given}`, and the recipe has `{python}`", path, "change one of the two"
        )


def _take(packages: Sequence[Package], path: Path, requirements: Requirements) -> None:
    """Read each package as the line of a requirements file that says the same."""
    main, left, guessed = main_index(packages), list[str](), list[str]()
    for package in sorted(packages, key=lambda package: package.name):
        if package.build is not None and (not package.is_python or _name(package) in _OF_CONDA):
            left.append(f"{package.name} {package.version}")
        elif words := _words(package, is_main=package.registry in ("", main)):
            requirements.read_words(words, path, str(path))
            guessed += [package.name] * (package.build is not None and not package.purl)
        else:
            left.append(package.name)
        index = f"--extra-index-url {package.registry}"
        if package.registry not in ("", main) and not TORCH_BUILD.fullmatch(index):
            requirements.indexes.append((index, str(path)))
    if left:
        message = f"left out {', '.join(left)}: only conda has them, or they have no version"
        requirements.notes.append(note(message, str(path), "`apt` takes what Debian has of it"))
    if guessed:
        message = f"taken for the packages of these names on the Python index: {', '.join(guessed)}"
        hint = "conda's names may be another project's there; look at each"
        requirements.notes.append(note(message, str(path), hint))


def _words(package: Package, *, is_main: bool) -> tuple[str, ...]:
    """Return the words of the line for a package; none for one without a version and a place."""
    place, name = package.place, package.purl or package.name
    if "git" in place:
        revision = next((place[key] for key in ("rev", "ref", "tag", "branch") if key in place), "HEAD")
        below = place.get("subdirectory")
        return (f"{name} @ git+{place['git']}@{revision}{f'#subdirectory={below}' if below else ''}",)
    if "url" in place:
        return (f"{name} @ {place['url']}",)
    if "path" in place:
        return "--editable", str(place["path"])
    if not package.version:
        return ()
    if name == "pytorch" and package.build is not None:
        return (f"torch=={package.version}",)
    if "+" in package.version and not is_main and name != "torch":  # `cuda` chooses the build
        return (f"{name}=={package.version.partition('+')[0]}",)
    return f"{name}=={package.version}", *(f"--hash={digest}" for digest in package.hashes)


def _mistake(message: str, path: Path, hint: str) -> Mistake:
    return Mistake(message=message, code=RecipeCode.OTHER_LOCK, hint=hint, where=str(path))
