"""`lock`: resolve a recipe into its lock."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from envbuilder.commands._console import open_console, open_runner
from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import LockError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.lock.resolve import lock_variants
from envbuilder.lock.resolve.context import LockOptions, open_context
from envbuilder.recipe.load import expand
from envbuilder.verify import judge_locked


class LockChanges(Answer):
    """What changed in the lock, one line each."""

    changes: tuple[str, ...]


@command(
    "lock",
    "envbuilder lock a100",
    "envbuilder lock a100 --upgrade numpy",
    "envbuilder lock a100 --check",
    "envbuilder lock a100 --before 2026-11-01",
)
def lock(
    session: Session, name: Name,
    packages: Annotated[list[str] | None, typer.Argument(help="with --upgrade: the packages to upgrade", metavar="PKG")] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="choose new versions, of PKG… or of all packages")] = False,
    security: Annotated[bool, typer.Option("--security",
                                           help="with --upgrade: only packages that have a security update")] = False,
    before: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="DATE",
                                      help="choose versions as of the start of that day, UTC")
    ] = None,
    recipes: Recipes,
) -> Reply[LockChanges]:  # fmt: skip
    """Resolve a recipe into its lock, `NAME.lock` beside it."""
    if packages and not upgrade:
        hint = f"envbuilder lock {pasted(name)} --upgrade {pasted(*packages)}"
        raise UsageError("package names require `--upgrade`", hint=hint)
    if security and (packages or not upgrade):
        hint = f"envbuilder lock {pasted(name)} --upgrade --security"
        raise UsageError("`--security` requires `--upgrade`, without package names", hint=hint)
    if before and before.date() > datetime.now(UTC).date():
        raise UsageError(f"`--before {before.date()}` is in the future", hint="leave it out for the newest")
    options = LockOptions(
        today=datetime.now(UTC).date(),
        upgrade=upgrade and not packages and not security,
        upgrade_only=tuple(packages or ()),
        security_only=security,
        before=before.date() if before else None,
    )
    store = open_store(session)
    runner = open_runner(session, store)
    console = open_console(session, runner)
    context = open_context(store, runner, session.environment, console, offline=False)
    changes, findings = lock_variants(
        expand(name, recipes), recipes, context, console, options=options, judge=judge_locked, save=not check
    )
    is_stale = check and bool(changes)
    if is_stale:
        places = "1 place" if len(changes) == 1 else f"{len(changes)} places"
        stale = Finding(
            code=LockError.code, where=name, message=f"the lock would change in {places}",
            hint="the same command without `--check` changes it",
        )  # fmt: skip
        findings += (stale,)
    lines = [*changes] or [f"the lock of {name} is up to date"]
    if changes and not check:
        lines.append(f"$ envbuilder build {pasted(name)}")
    return Reply(
        data=LockChanges(changes=changes),
        text="\n".join(lines),
        findings=findings,
        exit_code=LockError.exit_code if is_stale else 0,
    )
