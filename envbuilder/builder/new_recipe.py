"""Lock and build a recipe that was written just now, for `add` and `init --try`."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from envbuilder.builder.batch import BuildResult, Outcome
from envbuilder.builder.context import BuildContext, RunnerChoice
from envbuilder.builder.pipeline import build_recipe, resolve_context
from envbuilder.core.cache import save_bytes
from envbuilder.core.errors import EnvbuilderError
from envbuilder.lock.file import lock_path
from envbuilder.lock.resolve import lock_recipe
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.recipe.edit import need_writable, parse_added, put
from envbuilder.recipe.load import expand, load
from envbuilder.sources.git import find_commit
from envbuilder.verify.wheels import judge_wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedRecipe:
    """What was edited in a recipe, what changed in the locks of its variants, and their builds."""

    edits: tuple[str, ...]
    changes: tuple[str, ...]
    results: tuple[BuildResult, ...]


def add_packages(
    path: Path,
    packages: Sequence[str],
    recipes: Path,
    context: BuildContext,
    *,
    output: Path,
    load_image: bool,
) -> EditedRecipe:
    """Write packages into a recipe, then lock and build it and its variants.

    Raises UsageError and RecipeError for a recipe that cannot be edited. If anything fails, recipe and locks are again what they were.
    """
    asked = [parse_added(package) for package in packages]
    need_writable(path, packages)
    names = expand(str(path), recipes)
    locks = [lock_path(load(Path(name))) for name in names]  # one with mistakes is not edited
    text, edits = put(
        path.read_bytes().decode(),
        asked,
        lambda project: find_commit(project.git, project.revision or "HEAD", context.runner),
    )
    path = path.resolve()
    with _restored_on_failure((path, *locks), context):
        save_bytes(path, text.encode(), mode=path.stat().st_mode & 0o777)
        changes = tuple(line for name in names for line in _lock(Path(name), context))
        results = tuple(_build(Path(name), context, output, load=load_image) for name in names)
    return EditedRecipe(edits=edits, changes=changes, results=results)


@contextlib.contextmanager
def _restored_on_failure(files: Sequence[Path], context: BuildContext) -> Iterator[None]:
    """Write files again as they were if the block fails or is interrupted, and remove those that were not there."""
    before = {file: (file.read_bytes(), file.stat().st_mode & 0o777) for file in files if file.exists()}

    def restore() -> None:
        for file in files:
            if file in before:
                content, mode = before[file]
                save_bytes(file, content, mode=mode)
            else:
                file.unlink(missing_ok=True)

    context.when_interrupted.append(restore)
    try:
        yield
    except BaseException:
        restore()
        raise
    finally:
        context.when_interrupted.remove(restore)


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


def _lock(path: Path, context: BuildContext) -> tuple[str, ...]:
    return lock_recipe(
        str(path), context.recipes, resolve_context(context, offline=False), context.console,
        options=LockOptions(today=datetime.now(UTC).date()), judge=judge_wheels, save=True,
    )  # fmt: skip


def _build(path: Path, context: BuildContext, output: Path, *, load: bool) -> BuildResult:
    choice = RunnerChoice(load=load)
    return build_recipe(str(path), context, output=output, offline=False, host=None, choice=choice)
