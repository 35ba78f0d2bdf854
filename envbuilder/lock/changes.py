"""Compare two locks, or a lock with its recipe, for `lock --check`, `diff` and the error of a stale lock."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from packaging.utils import canonicalize_version

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.spelling import either
from envbuilder.lock.model import PARTS, Artifact, Artifacts, Lock, LockedBase, LockedExtension, recipe_inputs
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe

Item = TypeVar("Item", Artifact, LockedExtension)
_DECIDED: Final = {
    "debs": "the Debian packages",
    "toolkit": "the CUDA toolkit",
    "wheels": "the Python packages",
    "conda": "the packages of conda",
}
_OPTIONS: Final = (
    "sources", "include", "cflags", "cuda_cflags", "path", "git", "commit", "sdist", "url", "sha256", "capture", "env", "patch",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. `before` is None for an addition, `after` for a removal."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return " ".join(filter(None, self.row()))

    def row(self) -> tuple[str, str, str]:
        """Return a mark, the name, and the values."""
        if self.before is None:
            return "+", self.name, f"{self.after}"
        if self.after is None:
            return "-", self.name, self.before
        return "~", self.name, f"{self.before} → {self.after}"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the differences of two maps, sorted by name."""
    return tuple(
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def diff_locks(old: Lock, new: Lock) -> tuple[Change, ...]:
    """Return the differences: the lock's own keys, its base, its packages, its extensions."""
    parts = ((lock.debs, lock.interpreters, lock.toolkit, lock.wheels, lock.conda) for lock in (old, new))
    return (
        *changes(_keys(old), _keys(new)),
        *changes(*({file.path: f"sha256:{file.sha256[:12]}" for file in lock.locks} for lock in (old, new))),
        *_diff_bases(old.base, new.base),
        *(change for before, after in zip(*parts, strict=True) for change in _diff_artifacts(before, after)),
        *changes(_builds(old), _builds(new)),
        *_diff_artifacts(_tools(old), _tools(new)),
        *_diff_extensions(old, new),
        *changes(_warm(old), _warm(new)),
        *changes(_kernels(old), _kernels(new)),
    )


def locked_packages(lock: Lock) -> dict[str, str]:
    """Return each package, extension and source of a lock with its version and file, as `diff` compares them."""
    rows = {package.name: _describe(package) for package in (*lock.debs, *lock.interpreters, *lock.toolkit)}
    rows |= {f"python {package.name}": _describe(package) for package in lock.wheels}
    rows |= {f"conda {package.name}": _describe(package) for package in lock.conda}
    for extension in lock.extensions:
        archive, label = extension.archive, f"extension {extension.name}"
        rows[label] = _describe(archive) if archive else f"{len(extension.files)} files"
        rows |= _files(extension)
    return rows | _warm(lock) | _kernels(lock)


def check_fresh(
    recipe: Recipe, lock: Lock, files: Mapping[str, Sha256], why: Callable[[], Mapping[str, str]] = dict
) -> tuple[str, ...]:
    """Return why the lock no longer fits the recipe and the files of its extensions; empty if it fits.

    `files` holds the current digests of these files by their path below the recipe's folder. `why` returns why each counts.
    """
    reasons: list[str] = []
    platform = recipe.processor.platform
    if platform != lock.platform:
        reasons.append(f"it is for {lock.platform}, and the recipe for {platform}")
    if recipe.digest != lock.recipe:
        now, moved = recipe_inputs(recipe), tuple(_moved(recipe, lock))
        reasons += moved
        for part, keys in PARTS.items():
            if getattr(now, part) != getattr(lock.inputs, part) and not (moved and part == "wheels"):
                names = either([f"`{key}`" for key in keys])
                reasons.append(f"the recipe changed in {names}, which decide {_DECIDED[part]}")
        reasons += _changed_extensions(recipe, lock)
        if not reasons:
            rest = (
                "`gpus`, `platform`, `env`, `nccl`, `run`, `warm`, `kernels` or the order of its extensions"
            )
            reasons.append(f"the recipe changed in {rest}")
    locked = {file.path: file.sha256 for file in lock.own_files}
    caches = lock.warm.caches if lock.warm else ()
    differences = changes(_fold(locked, caches), _fold(files, caches))
    known = why() if differences else {}
    for change in differences:
        reason = known.get(change.name, "")
        gone = "no longer counts" if reason else "is gone"
        word = "is new" if change.before is None else gone if change.after is None else "changed"
        reasons.append(f"`{change.name}` {word}{f': {reason}' if reason else ''}")
    return tuple(reasons)


def _moved(recipe: Recipe, lock: Lock) -> Iterator[str]:
    """Yield each lock of another tool that is not as it was, with the versions of it that the lock has not."""
    known = {file.path: file.sha256 for file in lock.locks}
    locked = {wheel.name: _public(wheel.version) for wheel in lock.wheels}
    for other in recipe.locks:
        if known.get(other.path, other.sha256) != other.sha256:
            now = {name: _public(version) for name, version in other.versions}
            moved = changes({name: locked[name] for name in now.keys() & locked.keys()}, now)
            words = ", ".join(map(str, moved)) or "it lacks a package that it had, or names other files"
            yield f"`{other.path}` moved on: {words}"


def _public(version: str) -> str:
    """Return a version without its build, as +cu124."""
    return canonicalize_version(version.partition("+")[0], strip_trailing_zero=False)


def _keys(lock: Lock) -> dict[str, str]:
    return {"platform": lock.platform, "epoch": f"{lock.epoch}", "recipe": lock.recipe[:12]}


def _diff_bases(old: LockedBase | None, new: LockedBase | None) -> Iterator[Change]:
    yield from changes({"base": old.reference} if old else {}, {"base": new.reference} if new else {})
    if old and new:
        label = f"base {new.reference}:"
        yield from changes(*({label: f"sha256:{base.manifest.digest[:12]}"} for base in (old, new)))
        facts = changes(_facts(old), _facts(new))
        yield from sorted(facts, key=lambda change: change.before is None)


def _facts(base: LockedBase) -> dict[str, str]:
    facts = (" ".join(filter(None, (fact.name, fact.value, fact.path))) for fact in base.facts)
    return {f"base has {fact}": "" for fact in facts}


def _pairs(old: Iterable[Item], new: Iterable[Item]) -> Iterator[tuple[str, Item | None, Item | None]]:
    before, after = ({item.name: item for item in items} for items in (old, new))
    return ((name, before.get(name), after.get(name)) for name in sorted(before.keys() | after.keys()))


def _diff_artifacts(old: Iterable[Artifact], new: Iterable[Artifact]) -> Iterator[Change]:
    for name, was, now in _pairs(old, new):
        if was is None or now is None or was.version != now.version:
            yield Change(name=name, before=getattr(was, "version", None), after=getattr(now, "version", None))
        elif was.sha256 != now.sha256:
            label = f"{name} {now.version}: same version, other file"
            yield Change(name=label, before=was.sha256[:12], after=now.sha256[:12])
        elif was != now:
            label = f"{name} {now.version}: same file, found elsewhere"
            yield Change(name=label, before=f"{was.source}:{was.path}", after=f"{now.source}:{now.path}")


def _builds(lock: Lock) -> dict[str, str]:
    """Return the version of each package that another one is built with."""
    pairs = ((build.name, wheel) for build in lock.builds for wheel in build.wheels)
    return {f"{name} is built with {wheel.name}": wheel.version for name, wheel in pairs}


def _tools(lock: Lock) -> Artifacts:
    """Return the programs that build for another processor, by names apart from those of the environment's packages."""
    tools = lock.tools.artifacts if lock.tools else ()
    return tuple(replace(tool, name=f"tool {tool.name}") for tool in tools)


def _describe(artifact: Artifact) -> str:
    return f"{artifact.version} ({artifact.kind} {artifact.sha256[:12]}, {artifact.size / 1e6:.1f} MB)"


def _diff_extensions(old: Lock, new: Lock) -> Iterator[Change]:
    for name, was, now in _pairs(old.extensions, new.extensions):
        if was and now:
            prefix = f"extension {name}: "
            yield from changes(_options(was, prefix), _options(now, prefix))
            yield from changes(_files(was), _files(now))
        else:
            yield Change(name=f"extension {name}", before="" if was else None, after="" if now else None)


def _kernels(lock: Lock) -> dict[str, str]:
    return {f"kernel {kernel.name}": f"{kernel.revision[:12]} ({kernel.variant})" for kernel in lock.kernels}


def _warm(lock: Lock) -> dict[str, str]:
    """Return the commands of `warm`, each file that they read, and each of its `caches` as a whole."""
    if lock.warm is None:
        return {}
    files = _fold({file.path: file.sha256 for file in lock.warm.files}, lock.warm.caches)
    rows = {"warm": "; ".join(lock.warm.run)} if lock.warm.run else {}
    return rows | {f"warm: {path}": digest[:12] for path, digest in files.items()}


def _fold(files: Mapping[str, Sha256], caches: Iterable[str]) -> dict[str, Sha256]:
    """Return the digests of the files, with one for all in a folder of `caches`, which may be hundreds."""
    folded = dict(files)
    for cache in caches:
        inside = [path for path in sorted(folded) if path.startswith(f"{cache}/")]
        digest = sha256_text(" ".join(f"{path} {folded.pop(path)}" for path in inside))
        folded |= {cache: digest} if inside else {}
    return folded


def _files(extension: LockedExtension) -> dict[str, str]:
    return {f"extension {extension.name}: {file.path}": file.sha256[:12] for file in extension.files}


def _changed_extensions(recipe: Recipe, lock: Lock) -> Iterator[str]:
    implied = {choice.extension for choice in lock.chosen}
    locked = {extension.name: extension for extension in lock.extensions if extension.name not in implied}
    wanted = {extension.name: extension for extension in recipe.extensions}
    for name in sorted(wanted.keys() | locked.keys()):
        if name not in locked:
            yield f"the recipe has a new extension `{name}`"
        elif name not in wanted:
            yield f"the recipe no longer has the extension `{name}`"
        else:
            for change in changes(_options(locked[name]), _options(wanted[name])):
                yield f"the recipe changed the extension `{name}`: {change.name} {change.before} → {change.after}"


def _options(extension: LockedExtension | Extension, prefix: str = "") -> dict[str, str]:
    """Return each option of an extension as words of a shell."""
    return {f"{prefix}{option}": _words(getattr(extension, option)) for option in _OPTIONS}


def _words(option: str | tuple[str | tuple[str, str], ...]) -> str:
    values = (option,) if isinstance(option, str) else option
    words = [value if isinstance(value, str) else "=".join(value) for value in values]
    return shlex.join(filter(None, words)) or "none"
