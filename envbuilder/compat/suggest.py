"""Search for the smallest change of a recipe that passes every rule.

A repair changes a pin of each rule that fails. So the search takes the first failing rule, tries every value of the pins
that decide it, and continues from those that pass it, the smallest change first. Each suggestion has passed the whole
check.
"""

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from envbuilder.compat.context import CheckContext, make_context
from envbuilder.compat.problem import Change, Move, Problem, Rule, closest, distance
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.core.findings import Severity
from envbuilder.recipe.model import Recipe

LIMIT: Final = 90  # recipes that one search looks at
MORE: Final = 30  # of them after the first repair, for another one
WANTED: Final = 2  # repairs
NEAR: Final = 5  # values of one pin that are tried of those that silence a rule
FEW: Final = 3  # changes; another repair with more is of no use to a person
# What a change of each pin costs a person, so what counts as near; a new base changes everything that compiles.
_COSTS: Final = {
    "libxcrypt": 1.0,
    "packages": 1.0,
    "gcc": 1.0,
    "gpus": 1.0,
    "extensions": 1.0,
    "cuda": 2.0,
    "pytorch": 2.0,
    "python": 3.0,
    "base": 4.0,
}
_WARNING: Final = 0.5  # what a warning that is left costs
_ERROR: Final = 1.0  # what an error that is left is expected to cost at least
_COMPANION: Final = 0.5  # what each further pin costs that a new suite changes
_RANK: Final = 0.01  # what each nearer value of the same pin costs
_ITEM: Final = re.compile(
    r"(extensions\[(?P<extension>\d+)\]\.)?(?P<name>gpus|packages|cflags|cuda_cflags)\[(?P<index>\d+)\]"
)

Examine = Callable[[CheckContext], Iterator[tuple[Rule, Problem]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One or more changes with which the whole recipe passes."""

    changes: tuple[Change, ...]  # sorted by key
    recipe: Recipe  # with them

    def data(self) -> dict[str, object]:
        """Return the changed keys with their values; a list is returned whole."""
        values: dict[str, object] = {}
        for change in self.changes:
            item = _ITEM.fullmatch(change.key)
            if item is None:
                values[change.key] = change.value
                continue
            number = item["extension"]
            holder: object = self.recipe if number is None else self.recipe.extensions[int(number)]
            values[change.key.rpartition("[")[0]] = list(getattr(holder, item["name"]))
        return values

    def words(self) -> str:
        """Return the changes as the recipe spells them: `gcc: "13"` and `base: debian/trixie`."""
        parts = [f"`{key}: {_yaml(value)}`" for key, value in self.data().items()]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


@dataclass(frozen=True, slots=True, order=True)
class _Try:
    """One changed recipe in the queue; the number makes the order total."""

    rank: float
    number: int
    costs: tuple[tuple[str, float], ...] = field(
        compare=False
    )  # of each changed key; what comes with another: 0
    changes: tuple[Change, ...] = field(compare=False)
    context: CheckContext = field(compare=False)
    errors: tuple[tuple[Rule, Problem], ...] = field(compare=False)


def find_repairs(context: CheckContext, examine: Examine) -> tuple[Repair, ...]:
    """Find the nearest repairs of a recipe with errors; the second changes other pins than the first."""
    found: list[Repair] = []
    seen: set[tuple[Change, ...]] = {()}
    queue: list[_Try] = []
    limit = LIMIT

    def push(costs: tuple[tuple[str, float], ...], changes: tuple[Change, ...]) -> None:
        here = make_context(apply(context.recipe, changes), context.tables, context.host, context.base)
        results = tuple(examine(here))
        errors = tuple((rule, problem) for rule, problem in results if problem.severity is Severity.ERROR)
        rank = sum(cost for _, cost in costs) + (_ERROR * len(errors) if errors else _WARNING * len(results))
        heapq.heappush(queue, _Try(rank, len(seen), costs, changes, here, errors))

    push((), ())
    while queue and len(found) < WANTED:
        one = heapq.heappop(queue)
        if not one.errors:
            if not found or (len(one.changes) <= FEW and not _is_like(one.changes, found[0].changes)):
                found.append(Repair(changes=one.changes, recipe=one.context.recipe))
                limit = min(LIMIT, len(seen) + MORE)
            continue
        for cost, move in _steps(one.context, *one.errors[0]) if len(seen) < limit else ():
            changes = _merge(one.changes, move, context.recipe)
            if changes not in seen:
                seen.add(changes)
                costs = dict(one.costs) | {change.key: 0.0 for change in move} | {move[0].key: cost}
                kept = {change.key for change in changes}
                push(tuple((key, cost) for key, cost in costs.items() if key in kept), changes)
    return tuple(found)


def find_better(context: CheckContext, problem: Problem, examine: Examine) -> Repair | None:
    """Find the nearest single change that removes a warning and adds no other."""
    allowed = {other.code for _, other in examine(context)} - {problem.code}
    for _, move in sorted(_moves(context, problem), key=lambda pair: pair[0]):
        changes = _merge((), move, context.recipe)
        recipe = apply(context.recipe, changes)
        if (
            changes
            and {
                other.code
                for _, other in examine(make_context(recipe, context.tables, context.host, context.base))
            }
            <= allowed
        ):
            return Repair(changes=changes, recipe=recipe)
    return None


def apply(recipe: Recipe, changes: Sequence[Change]) -> Recipe:
    """Apply changes to a recipe; the last of one key wins."""
    plain = {change.key: change.value for change in changes if "[" not in change.key}
    if plain:
        recipe = replace(recipe, **plain)  # type: ignore[arg-type]  # every key without an index is text
    for change in changes:
        indexed = _ITEM.fullmatch(change.key)
        if indexed:
            recipe = _apply_item(recipe, indexed, change.value)
    return recipe


def _apply_item(recipe: Recipe, indexed: re.Match[str], value: str) -> Recipe:
    name, index = indexed["name"], int(indexed["index"])
    if indexed["extension"] is None:
        items = _with(getattr(recipe, name), index, value)
        return replace(recipe, gpus=items) if name == "gpus" else replace(recipe, packages=items)
    number = int(indexed["extension"])
    extension = recipe.extensions[number]
    items = _with(getattr(extension, name), index, value)
    changed = replace(extension, cflags=items) if name == "cflags" else replace(extension, cuda_cflags=items)
    return replace(
        recipe, extensions=(*recipe.extensions[:number], changed, *recipe.extensions[number + 1 :])
    )


def _with(items: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*items[:index], value, *items[index + 1 :])


def _steps(context: CheckContext, rule: Rule, problem: Problem) -> list[tuple[float, Move]]:
    """The nearest moves that silence this problem, and those of CUDA, which may need a torch to go with it.

    All of them where none does: then it takes two.
    """
    moves = sorted(_moves(context, problem), key=lambda pair: pair[0])
    left = dict.fromkeys((move[0].key for _, move in moves), NEAR)
    good: list[tuple[float, Move]] = []
    warned: list[tuple[float, Move]] = []
    for cost, move in moves:
        key = move[0].key
        if left[key] == 0:
            continue
        after = _after(context, rule, problem, move)
        if after is None or key == "cuda":
            left[key] -= 1
            good.append((cost, move))
        elif after is Severity.WARNING:
            warned.append((cost, move))
    for cost, move in warned:
        if left[move[0].key]:
            left[move[0].key] -= 1
            good.append((cost, move))
    return good or moves


def _after(context: CheckContext, rule: Rule, problem: Problem, move: Move) -> Severity | None:
    """Return the severity that remains of a problem after a move, or None."""
    changed = make_context(apply(context.recipe, move), context.tables, context.host, context.base)
    left = [(other.severity, other.code, other.key) for other in rule(changed)]
    if (Severity.ERROR, problem.code, problem.key) in left:
        return Severity.ERROR
    return Severity.WARNING if any(severity is Severity.WARNING for severity, *_ in left) else None


def _moves(context: CheckContext, problem: Problem) -> Iterator[tuple[float, Move]]:
    for rank, move in enumerate(problem.moves):
        yield _COSTS[move[0].key.partition("[")[0]] + _RANK * rank, move
    for order, pin in enumerate(problem.pins):
        for rank, move in enumerate(_values(context, pin)):
            # A new suite may bring another compiler and libxcrypt with it.
            extra = _COMPANION * max(len(move) - 2, 0)
            yield _COSTS[pin] + _RANK * (rank + order / len(problem.pins)) + extra, move


def _values(context: CheckContext, pin: str) -> Iterator[Move]:
    """Yield the other values of a pin, the nearest first."""
    recipe, tables, row = context.recipe, context.tables, context.distribution
    match pin:
        case "gcc":
            names = row.gccs if row and row.buildable else ()
            yield from (_one("gcc", gcc) for gcc in _near(names, recipe.gcc))
        case "cuda":
            yield from (_one("cuda", cuda) for cuda in _near(tuple(tables.toolkits), recipe.cuda))
        case "pytorch":
            yield from (_one("pytorch", version) for version in _near(tuple(tables.torch), recipe.pytorch))
        case "libxcrypt" if row:
            yield _one("libxcrypt", _short(row.libxcrypt))
        case "python" if row:
            yield _one("python", row.python)
        case _:
            yield from (_suite(context, base) for base in _near_bases(context))


def _near_bases(context: CheckContext) -> list[Distribution]:
    """Return the other suites: the similar name first, then by age; none for an image."""
    if context.recipe.image:
        return []
    names = [base.name for base in context.tables.distributions.rows]
    meant = closest(context.recipe.base, [base.name for base in context.tables.bases])
    here = (
        names.index(context.recipe.base)
        if context.recipe.base in names
        else names.index(meant[0])
        if meant
        else 0
    )
    others = [base for base in context.tables.bases if base.name != context.recipe.base]
    return sorted(others, key=lambda base: abs(names.index(base.name) - here))


def _suite(context: CheckContext, base: Distribution) -> Move:
    """Another suite with its own Python, and with its own compiler and libxcrypt where it lacks the recipe's."""
    recipe = context.recipe
    changes = [Change(key="base", value=base.name), Change(key="python", value=base.python)]
    if recipe.gcc not in base.gccs:
        changes.append(Change(key="gcc", value=base.gcc))
    if recipe.libxcrypt and not f"{base.libxcrypt}.".startswith(f"{recipe.libxcrypt}."):
        changes.append(Change(key="libxcrypt", value=_short(base.libxcrypt)))
    return tuple(changes)


def _near(values: tuple[str, ...], asked: str) -> list[str]:
    return sorted((value for value in values if value != asked), key=lambda value: distance(value, asked))


def _one(key: str, value: str) -> Move:
    return (Change(key=key, value=value),)


def _short(libxcrypt: str) -> str:
    return ".".join(libxcrypt.split(".")[:2])


def _merge(changes: Sequence[Change], move: Move, recipe: Recipe) -> tuple[Change, ...]:
    """Merge changes: the later wins, and a value that the recipe has is no change."""
    values = {change.key: change.value for change in (*changes, *move)}
    return tuple(
        Change(key=key, value=value)
        for key, value in sorted(values.items())
        if "[" in key or getattr(recipe, key) != value
    )


def _is_like(changes: Sequence[Change], other: Sequence[Change]) -> bool:
    """Whether one set of changes contains the other or changes the same pins."""
    one, two = {change.key for change in changes}, {change.key for change in other}
    return one >= two or set(other) <= set(changes)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(str(item)) for item in value)}]"
    return str(value) if "/" in str(value) else f'"{value}"'


def _plain(item: str) -> str:
    return item if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ._-]*", item) else f'"{item}"'
