"""Lock and build a recipe that was written just now, for `add` and `init --try`."""

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from envbuilder.builder.batch import BuildResult, Outcome
from envbuilder.builder.context import BuildContext, RunnerChoice
from envbuilder.builder.pipeline import build_recipe, resolve_context
from envbuilder.core.cache import save_text
from envbuilder.core.errors import EnvbuilderError
from envbuilder.lock.on_top import text_on_top
from envbuilder.lock.resolve import lock_recipe
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.recipe.load import new_path


def build_on_top(
    parent: Path, packages: Sequence[str], name: str, context: BuildContext, *, output: Path, load: bool
) -> tuple[Path, BuildResult]:
    """Write the recipe `name` that adds packages to its parent, lock it and build it. One that cannot be locked is removed."""
    text = text_on_top(parent.stem, packages, context.runner)
    path = new_path(name, parent.parent, text)
    save_text(path, text)
    try:
        _lock(path, context)
    except EnvbuilderError:
        path.unlink()
        raise
    return path, _build(path, context, output, load=load)


def try_recipe(path: Path, context: BuildContext, output: Path) -> tuple[str, tuple[str, ...], Outcome]:
    """Lock and build a recipe. Returns what was reached last, a line for each step, and how the last step ended."""
    reached, lines, error = "checked", [f"{path}: checked"], None
    steps: dict[str, Callable[[], object]] = {
        "locked": functools.partial(_lock, path, context),
        "built": functools.partial(_build, path, context, output, load=True),
    }
    for name, step in steps.items():
        try:
            step()
        except EnvbuilderError as failure:
            error = failure
            lines.append(f"{path}: not {name}, exit code {failure.exit_code}")
            break
        reached = name
        lines.append(f"{path}: {name}")
    return reached, tuple(lines), Outcome(name=str(path), seconds=0, error=error)


def _lock(path: Path, context: BuildContext) -> None:
    lock_recipe(
        str(path), context.recipes, resolve_context(context, offline=False), context.console,
        options=LockOptions(today=datetime.now(UTC).date()), save=True,
    )  # fmt: skip


def _build(path: Path, context: BuildContext, output: Path, *, load: bool) -> BuildResult:
    choice = RunnerChoice(load=load)
    return build_recipe(str(path), context, output=output, offline=False, host=None, choice=choice)
