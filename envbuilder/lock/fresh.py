"""Read the lock of a recipe, and refuse one that fits neither the recipe nor the recipe that it adds to."""

from dataclasses import replace
from pathlib import Path

from envbuilder.core.errors import EnvbuilderError, LockError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.plain import pasted
from envbuilder.lock.diff import check_fresh, diff_locks
from envbuilder.lock.file import load_lock
from envbuilder.lock.known_base import lock_path
from envbuilder.lock.model import Lock, LockCode, SourceFile
from envbuilder.lock.source_files import digest_source, own_files, reasons, source_digests
from envbuilder.recipe.extension import Form
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe


def load_fresh(recipe: Recipe, name: str) -> Lock:
    """Return the lock of a recipe, which the user named `name`. Raises LockError if it is missing or stale."""
    path = lock_path(recipe)
    lock = load_lock(path, recipe=name)
    stale = check_fresh(recipe, lock, source_digests(own_files(recipe)), lambda: reasons(recipe, lock))
    if recipe.parent and not stale:
        below = load_parent(recipe)
        added = {package.name for package in lock.added}
        same = replace(
            lock, recipe=below.recipe, extensions=lock.extensions[: len(below.extensions)], added=(),
            builds=tuple(build for build in lock.builds if build.name not in added),
        )  # fmt: skip
        stale = tuple(f"`{recipe.parent.stem}` changed: {change}" for change in diff_locks(same, below))
    if stale:
        raise LockError(
            f"the lock `{path}` no longer fits its recipe:\n" + "\n".join(f"  {reason}" for reason in stale),
            hint=f"`envbuilder lock {pasted(name)}` renews what changed and keeps the rest",
        )
    return lock


def stale_warning(error: LockError, where: str, code: CodeEnum = LockCode.STALE, prefix: str = "") -> Finding:
    """Return an error of `load_fresh` as a warning. Raises that of a lock that was edited: it can be used for nothing."""
    if error.findings:
        raise error
    message = prefix + " ".join(error.message.split())
    return Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=error.hint)


def load_parent(recipe: Recipe) -> Lock:
    """Return the lock of the recipe that this one adds to. Raises LockError if it is missing or stale."""
    assert recipe.parent, "only a recipe with `add` has one"
    return load_fresh(load(recipe.parent), str(recipe.parent))


def changed_sources(lock: Lock, folder: Path) -> tuple[str, ...]:
    """Return the files of projects in the recipe's folder that are not as they were locked. `load()` compiles its own when it runs."""
    files = (file for project in lock.extensions if project.form is Form.PROJECT for file in project.files)
    return tuple(file.path for file in files if not _is_as_locked(file, folder))


def _is_as_locked(file: SourceFile, folder: Path) -> bool:
    try:
        return digest_source(folder, file.path) == file
    except EnvbuilderError:
        return False
