"""List a plan's extensions in the store: GPU code, compile time and origin."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from envbuilder.builder.extensions import cache
from envbuilder.builder.extensions.check_targets import ExtensionCode
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Store
from envbuilder.core.findings import Finding, Severity
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.extension import Calls, Key, call_key, project_key, recipe_calls
from envbuilder.plan.model import Plan
from envbuilder.recipe.extension import Form

HEAD: Final = ("name", "key", "form", "for", "size", "compiled in", "from")


class ListedExtension(Answer):
    """An extension; one that was not compiled yet has no more than its name, form, key and origin."""

    name: str
    extension: str
    form: str
    key: str
    decided_by: dict[str, str]
    function: str = ""
    targets: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0
    files: dict[str, float] = Field(default={})
    compiled_for: str = ""
    torch: str = ""
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionStatus:
    """One key of an extension, and its entry in the store."""

    extension: LockedExtension
    name: str
    key: Key
    compiled: cache.Compiled | None


def find_extensions(plan: Plan, store: Store) -> Iterator[ExtensionStatus]:
    """Yield the status of each key. A project without captured calls has the key of its capture."""
    for extension in plan.extensions:
        calls = known_calls(plan, store, extension)
        if calls is None:
            keys = [(extension.name, project_key(plan.ground, extension))]
        else:
            keys = [(call.name, call_key(plan.ground, extension, call, calls)) for call in calls.calls]
        for name, key in keys:
            compiled = cache.load_compiled(store.extension(key.entry))
            yield ExtensionStatus(extension=extension, name=name, key=key, compiled=compiled)


def known_calls(plan: Plan, store: Store, extension: LockedExtension) -> Calls | None:
    """Return the calls of an extension, None for a project's own build and before a capture."""
    if extension.form is Form.CAPTURE:
        return cache.load_calls(store.extension(project_key(plan.ground, extension).digest), store)
    return recipe_calls(extension) if extension.form is Form.LOAD else None


def find_twins(plan: Plan, store: Store) -> Iterator[Finding]:
    """Yield a warning for each name that several captured or written calls have, as far as captures are known."""
    names: dict[str, dict[str, str]] = {}
    for status in find_extensions(plan, store):
        if status.extension.form is not Form.PROJECT:
            names.setdefault(status.name, {})[status.key.digest] = label(status.extension, status.name)
    for name, twins in names.items():
        if len(twins) > 1:
            yield Finding(
                code=ExtensionCode.TWINS,
                severity=Severity.WARNING,
                message=f"{' and '.join(f'`{twin}`' for twin in twins.values())} could both answer `import {name}`",
                hint=f"`load()` tells them apart by their sources; `import {name}` finds the recipe's `sources` of that name, or none",
            )


def label(extension: LockedExtension, name: str) -> str:
    """Return the name to show. Several projects may call `load()` with one name, so a captured call has its extension's too."""
    is_call = extension.form is Form.CAPTURE and name != extension.name
    return f"{extension.name}/{name}" if is_call else name


def cells(status: ExtensionStatus, recipe: str) -> tuple[str, ...]:
    """Return the row of an extension in the recipe's table, below `HEAD`."""
    compiled = status.compiled
    return (
        label(status.extension, status.name),
        status.key.digest[:16],
        str(status.extension.form),
        " ".join(compiled.entry.targets if compiled else ()) or "-",
        f"{compiled.entry.size / 1e6:.2f} MB" if compiled else "-",
        f"{compiled.seconds} s" if compiled else "-",
        origin(status, recipe),
    )


def describe(status: ExtensionStatus, recipe: str) -> ListedExtension:
    """Return the row of an extension for `--json`."""
    listed = ListedExtension(
        name=status.name, extension=status.extension.name, form=str(status.extension.form),
        key=status.key.digest, decided_by=dict(status.key.fields), origin=origin(status, recipe),
    )  # fmt: skip
    if (compiled := status.compiled) is None:
        return listed
    facts = {
        "function": compiled.entry.function, "targets": compiled.entry.targets, "size": compiled.entry.size, "seconds": compiled.seconds,
        "files": compiled.timings, "compiled_for": compiled.recipe, "torch": compiled.facts["torch"],
    }  # fmt: skip
    return listed.model_copy(update=facts)


def origin(status: ExtensionStatus, recipe: str) -> str:
    if status.compiled is None:
        return "not compiled yet"
    if status.compiled.recipe == recipe:
        return "compiled for this recipe"
    return f"the store: compiled for `{status.compiled.recipe}`"
