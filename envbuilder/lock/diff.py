"""Compare two locks, or a lock with its recipe, for `lock --check`, `diff` and the error of a stale lock."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.compat.problem import either
from envbuilder.core.cache import Sha256
from envbuilder.lock.model import PARTS, Artifact, Lock, LockedBase, LockedExtension, recipe_inputs
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe

_DECIDED: Final = {
    "debs": "the Debian packages",
    "toolkit": "the CUDA toolkit",
    "wheels": "the Python packages",
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
    return (
        *changes(_own_values(old), _own_values(new)),
        *_diff_bases(old.base, new.base),
        *_diff_artifacts(old.debs, new.debs),
        *_diff_artifacts(old.interpreters, new.interpreters),
        *_diff_artifacts(old.toolkit, new.toolkit),
        *_diff_artifacts(old.wheels, new.wheels),
        *_diff_artifacts(old.added, new.added),
        *changes(_tools(old), _tools(new)),
        *_diff_artifacts(_programs(old), _programs(new)),
        *_diff_extensions(old, new),
    )


def locked_packages(lock: Lock) -> dict[str, str]:
    """Return each package, extension and source of a lock with its version and file, as `diff` compares them."""
    found = {
        artifact.name: _describe(artifact) for artifact in (*lock.debs, *lock.interpreters, *lock.toolkit)
    }
    found |= {f"python {artifact.name}": _describe(artifact) for artifact in (*lock.wheels, *lock.added)}
    for one in lock.extensions:
        label = f"extension {one.name}"
        found |= {label: _describe(one.archive) if one.archive else f"{len(one.files)} files"}
        found |= {f"{label}: {file.path}": file.sha256[:12] for file in one.files}
    return found


def check_fresh(
    recipe: Recipe,
    lock: Lock,
    files: Mapping[str, Sha256],
    why: Callable[[], Mapping[str, str]] = dict,
) -> tuple[str, ...]:
    """Return why the lock no longer fits the recipe and the files of its extensions; empty if it fits.

    `files` holds the current digests of these files by their path below the recipe's folder. `why` returns why each counts.
    """
    reasons: list[str] = []
    platform = recipe.processor.platform
    if platform != lock.platform:
        reasons.append(f"it is for {lock.platform}, and the recipe for {platform}")
    if recipe.digest != lock.recipe:
        now = recipe_inputs(recipe)
        changed = [part for part in PARTS if getattr(now, part) != getattr(lock.inputs, part)]
        reasons += [
            f"the recipe changed in {either([f'`{key}`' for key in PARTS[part]])}, which decide {_DECIDED[part]}"
            for part in changed
        ]
        options = list(_changed_extensions(recipe, lock))
        reasons += options
        if not reasons:
            reasons.append(
                "the recipe changed in `gpus`, `platform`, `env`, `nccl`, `run`, `add` or the order of its extensions"
            )
    locked = {file.path: file.sha256 for extension in lock.extensions for file in extension.files}
    differences = changes(locked, files)
    known = why() if differences else {}
    for change in differences:
        reason = known.get(change.name, "")
        gone = "no longer counts" if reason else "is gone"
        word = "is new" if change.before is None else gone if change.after is None else "changed"
        reasons.append(f"`{change.name}` {word}{f': {reason}' if reason else ''}")
    return tuple(reasons)


def _own_values(lock: Lock) -> dict[str, str]:
    return {"platform": lock.platform, "epoch": f"{lock.epoch}", "recipe": lock.recipe[:12]}


def _diff_bases(old: LockedBase | None, new: LockedBase | None) -> Iterator[Change]:
    yield from changes({"base": old.reference} if old else {}, {"base": new.reference} if new else {})
    if old is None or new is None:
        return
    was, now = ({f"base {new.reference}:": f"sha256:{one.manifest.digest[:12]}"} for one in (old, new))
    yield from changes(was, now)
    had, has = (
        {f"base has {' '.join(filter(None, (fact.name, fact.value, fact.path)))}": "" for fact in one.facts}
        for one in (old, new)
    )
    yield from sorted(changes(had, has), key=lambda change: change.before is None)


def _diff_artifacts(old: Iterable[Artifact], new: Iterable[Artifact]) -> Iterator[Change]:
    before, after = ({one.name: one for one in some} for some in (old, new))
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None or now is None or was.version != now.version:
            before_version, after_version = (one.version if one else None for one in (was, now))
            yield Change(name=name, before=before_version, after=after_version)
        elif was.sha256 != now.sha256:
            label = f"{name} {now.version}: same version, other file"
            yield Change(name=label, before=was.sha256[:12], after=now.sha256[:12])
        elif was != now:
            label = f"{name} {now.version}: same file, found elsewhere"
            yield Change(name=label, before=f"{was.source}:{was.path}", after=f"{now.source}:{now.path}")


def _tools(lock: Lock) -> dict[str, str]:
    """Return the version of each package that another one is built with."""
    return {
        f"{build.name} is built with {one.name}": one.version for build in lock.builds for one in build.wheels
    }


def _programs(lock: Lock) -> tuple[Artifact, ...]:
    """Return the programs that build for another processor, by names apart from those of the environment's packages."""
    every = lock.tools.artifacts if lock.tools else ()
    return tuple(replace(one, name=f"tool {one.name}") for one in every)


def _describe(artifact: Artifact) -> str:
    return f"{artifact.version} ({artifact.kind} {artifact.sha256[:12]}, {artifact.size / 1e6:.1f} MB)"


def _diff_extensions(old: Lock, new: Lock) -> Iterator[Change]:
    before, after = ({one.name: one for one in lock.extensions} for lock in (old, new))
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        label = f"extension {name}"
        if was is None or now is None:
            yield Change(name=label, before=None if was is None else "", after=None if now is None else "")
        else:
            yield from changes(_options(was, f"{label}: "), _options(now, f"{label}: "))
            had, has = (
                {f"{label}: {file.path}": file.sha256[:12] for file in one.files} for one in (was, now)
            )
            yield from changes(had, has)


def _changed_extensions(recipe: Recipe, lock: Lock) -> Iterator[str]:
    wanted = {extension.name: extension for extension in recipe.extensions}
    locked = {extension.name: extension for extension in lock.extensions}
    for name in sorted(wanted.keys() | locked.keys()):
        if name not in locked:
            yield f"the recipe has a new extension `{name}`"
        elif name not in wanted:
            yield f"the recipe no longer has the extension `{name}`"
        else:
            for one in changes(_options(locked[name]), _options(wanted[name])):
                yield f"the recipe changed the extension `{name}`: {one.name} {one.before} → {one.after}"


def _options(extension: LockedExtension | Extension, prefix: str = "") -> dict[str, str]:
    """Return each option of an extension as words of a shell."""
    return {f"{prefix}{option}": _words(getattr(extension, option)) for option in _OPTIONS}


def _words(option: str | tuple[str | tuple[str, str], ...]) -> str:
    values = (option,) if isinstance(option, str) else option
    words = [one if isinstance(one, str) else "=".join(one) for one in values]
    return shlex.join(filter(None, words)) or "none"
