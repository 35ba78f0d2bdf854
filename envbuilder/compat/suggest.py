"""Search for the nearest recipe that passes every rule, for `check` and for `init`.

`check` changes a recipe: a repair changes a pin of each rule that fails. So the search takes the first failing rule, tries
every value of the pins that decide it, and continues from those that pass it, the smallest change first. `init` has
candidates instead of a recipe. Each recipe that is found has passed the whole check.
"""

import functools
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envbuilder.compat.context import CheckContext, Move, PinChange, Problem, Rule, distance, make_context
from envbuilder.compat.rules import RuleProblem, find_problems
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.torch import index_build
from envbuilder.core.findings import Severity
from envbuilder.core.spelling import either, nearest_names
from envbuilder.recipe.model import Recipe

LIMIT: Final = 90  # recipes that one search judges
MORE: Final = 30  # of these, after the first repair
WANTED: Final = 2  # repairs
NEAR: Final = 5  # values of one pin that are tried, of those that pass a rule
FEW: Final = 3  # changes; a second repair with more is of no use
# The cost of a change of each pin for the user, which is the distance of a repair. A new base changes all that is compiled.
_COSTS: Final = {
    "libxcrypt": 1.0, "packages": 1.0, "gcc": 1.0, "gpus": 1.0, "extensions": 1.0, "cuda": 2.0, "pytorch": 2.0,
    "python": 3.0, "base": 6.0,
}  # fmt: skip
_WARNING: Final = 0.5  # the cost of a remaining warning
_ERROR: Final = 1.0  # the least expected cost of a remaining error
_COMPANION: Final = 0.5  # the cost of each other pin that a new suite changes
_RANK: Final = 0.01  # the cost of each nearer value of the same pin

Rank = tuple[Any, ...]
Step = str | int  # a field or an index on the way to a value of a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Changes with which the recipe passes every rule."""

    changes: tuple[PinChange, ...]  # sorted by key
    recipe: Recipe  # with them

    def data(self) -> dict[str, object]:
        """Return the changed keys with their values; a list is returned whole."""
        values: dict[str, object] = {}
        for key in (re.sub(r"\[\d+\]$", "", change.key) for change in self.changes):
            value: Any = functools.reduce(_part, _steps_to(key), self.recipe)
            values[key] = list(value) if isinstance(value, tuple) else value
        return values

    def words(self) -> str:
        """Return the changes as the recipe spells them: `gcc: "13"` and `base: debian/trixie`."""
        parts = [f"`{key}: {_yaml(value)}`" for key, value in self.data().items()]
        return either(parts, "and")


@dataclass(frozen=True, slots=True, order=True)
class Try:
    """A recipe of the search. Its rank grows with its problems."""

    rank: Rank
    number: int  # makes the order total
    context: CheckContext = field(compare=False)
    found: tuple[RuleProblem, ...] | None = field(compare=False, default=None)  # None: not judged yet
    # The cost of each changed key. A key that changes with another one costs nothing.
    costs: Mapping[str, float] = field(compare=False, default_factory=dict)
    changes: tuple[PinChange, ...] = field(compare=False, default=())

    @property
    def errors(self) -> list[RuleProblem]:
        return [(rule, problem) for rule, problem in self.found or () if problem.is_error]


def search(
    tries: Iterable[Try], rank: Callable[[Try], Rank], expand: Callable[[Try], Iterable[Try]] = lambda _: ()
) -> Iterator[Try]:
    """Yield the recipes without errors, the nearest first.

    A recipe is judged when it is the nearest. `rank` then ranks it with its problems, and `expand` gives
    candidates that may repair one with errors.
    """
    queue = sorted(tries)
    while queue:
        nearest = heapq.heappop(queue)
        if nearest.found is None:
            nearest = replace(nearest, found=tuple(find_problems(nearest.context)))
            heapq.heappush(queue, replace(nearest, rank=rank(nearest)))
        elif nearest.errors:
            for more in expand(nearest):
                heapq.heappush(queue, more)
        else:
            yield nearest


def find_repairs(context: CheckContext, fixed: Move = ()) -> tuple[Repair, ...]:
    """Find the nearest repairs of a recipe with errors. The second changes other pins than the first, or is its equal.

    Each has the changes `fixed`, and changes nothing else of these keys.
    """
    repairs: list[Repair] = []
    kept = {change.key for change in fixed}
    problems = [problem for _, problem in find_problems(context) if problem.are_equal]
    equal = {change for problem in problems for move in problem.moves for change in move}
    seen: set[tuple[PinChange, ...]] = {fixed}
    limit = LIMIT

    def expand(attempt: Try) -> Iterator[Try]:
        for cost, move in _steps(attempt.context, *attempt.errors[0]) if len(seen) < limit else ():
            changes = _merge(attempt.changes, move, context.recipe)
            if changes not in seen and kept.isdisjoint(change.key for change in move):
                seen.add(changes)
                costs = {**attempt.costs, **{change.key: 0.0 for change in move}, move[0].key: cost}
                costs = {change.key: costs[change.key] for change in changes if change.key not in kept}
                rank = (sum(costs.values()),)
                yield Try(rank, len(seen), changed(context, changes), costs=costs, changes=changes)

    start = Try((0.0,), 1, changed(context, fixed), changes=fixed)
    for attempt in search([start], _price, expand):
        is_equal = repairs and {*attempt.changes} ^ {*repairs[0].changes} <= equal
        if (
            not repairs
            or is_equal
            or (len(attempt.changes) <= FEW and not _is_like(attempt.changes, repairs[0].changes))
        ):
            repairs.append(Repair(changes=attempt.changes, recipe=attempt.context.recipe))
            limit = min(LIMIT, len(seen) + MORE)
        if len(repairs) == WANTED:
            break
    return tuple(repairs)


def _price(one: Try) -> Rank:
    errors = len(one.errors)
    return (sum(one.costs.values()) + (_ERROR * errors if errors else _WARNING * len(one.found or ())),)


def find_better(context: CheckContext, problem: Problem) -> Repair | None:
    """Find the nearest single change that removes a warning and adds no other."""
    allowed = {other.code for _, other in find_problems(context)} - {problem.code}
    for _, move in _moves(context, problem):
        changes = _merge((), move, context.recipe)
        after = changed(context, changes)
        if changes and {other.code for _, other in find_problems(after)} <= allowed:
            return Repair(changes=changes, recipe=after.recipe)
    return None


def find_on_package_index(context: CheckContext) -> Repair | None:
    """Find the nearest change of CUDA or torch to a build that the package index has, which adds no problem.

    There is none without CUDA: the package index has no build for the CPU.
    """
    known = {problem.code for _, problem in find_problems(context)}
    for pin in ("cuda", "pytorch") if context.recipe.cuda else ():
        for move in _values(context, pin):
            after = changed(context, move)
            is_there = not index_build(after.torch, after.recipe.cuda_minor)
            if is_there and {problem.code for _, problem in find_problems(after)} <= known:
                return Repair(changes=move, recipe=after.recipe)
    return None


def changed(context: CheckContext, changes: Sequence[PinChange]) -> CheckContext:
    return make_context(apply(context.recipe, changes), context.tables, context.host, context.base)


def apply(recipe: Recipe, changes: Sequence[PinChange]) -> Recipe:
    """Apply changes to a recipe; the last of one key wins."""
    for change in changes:
        recipe = _changed(recipe, _steps_to(change.key), change.value)
    return recipe


def _changed(holder: Any, steps: Sequence[Step], value: str) -> Any:
    """Return a recipe, an extension or a list with the value at the end of the steps changed or appended."""
    step, *rest = steps
    new = _changed(_part(holder, step), rest, value) if rest else value
    if isinstance(step, int):
        return (*holder[:step], new, *holder[step + 1 :])
    return replace(holder, **{step: new})


def _part(holder: Any, step: Step) -> Any:
    return holder[step] if isinstance(step, int) else getattr(holder, step)


def _steps_to(key: str) -> list[Step]:
    """extensions[0].cflags[1] → extensions, 0, cflags, 1"""
    return [int(word) if word.isdecimal() else word for word in re.findall(r"\w+", key)]


def _steps(context: CheckContext, rule: Rule, problem: Problem) -> list[tuple[float, Move]]:
    """Return the nearest moves that solve this problem. Those without a new warning come first.

    If no change of CUDA solves it, the nearest ones come too, because they may with another torch. Returns all moves if
    nothing solves it, because it may need two.
    """
    moves = _moves(context, problem)
    left = dict.fromkeys((move[0].key for _, move in moves), NEAR)
    good: list[tuple[float, Move]] = []
    warned: list[tuple[float, Move]] = []
    for cost, move in moves:
        if left[move[0].key] == 0:
            continue
        after = [(other.severity, other.code, other.key) for other in rule(changed(context, move))]
        if (Severity.ERROR, problem.code, problem.key) in after:
            continue
        if any(severity is Severity.WARNING for severity, *_ in after):
            warned.append((cost, move))
        else:
            left[move[0].key] -= 1
            good.append((cost, move))
    for cost, move in warned:
        if left[move[0].key]:
            left[move[0].key] -= 1
            good.append((cost, move))
    if not any(move[0].key == "cuda" for _, move in good):
        good += [(cost, move) for cost, move in moves if move[0].key == "cuda"][:NEAR]
    return good or moves


def _moves(context: CheckContext, problem: Problem) -> list[tuple[float, Move]]:
    moves = [
        (_COSTS[move[0].key.partition("[")[0]] + _RANK * rank, move)
        for rank, move in enumerate(problem.moves)
    ]
    for order, pin in enumerate(problem.pins):
        for rank, move in enumerate(_values(context, pin)):
            # A new suite may bring another compiler and libxcrypt with it.
            extra = _COMPANION * max(len(move) - 2, 0)
            moves.append((_COSTS[pin] + _RANK * (rank + order / len(problem.pins)) + extra, move))
    return sorted(moves, key=lambda pair: pair[0])


def _values(context: CheckContext, pin: str) -> list[Move]:
    """Return the other values of a pin, the nearest first."""
    tables, row = context.tables, context.distribution
    match pin:
        case "gcc":
            names: Iterable[str] = row.gccs if row else ()
        case "cuda":
            names = tables.toolkits
        case "pytorch":
            names = context.torches.by_name
        case "libxcrypt" if row:
            return [(PinChange(pin, row.short_libxcrypt),)]
        case "python":
            names = {*tables.standalones.by_name, *((row.python,) if row and row.python else ())}
        case _:
            return [_suite(context, base) for base in _near_bases(context)]
    asked = getattr(context.recipe, pin)
    # None is near to a Python that there is not yet: the suite's own comes first.
    is_newer = pin == "python" and all(_minor(asked) > _minor(name) for name in names)
    first = row.python if row and is_newer else ""
    others = sorted(
        (name for name in names if name != asked), key=lambda name: (name != first, distance(name, asked))
    )
    return [(PinChange(pin, name),) for name in others]


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def _near_bases(context: CheckContext) -> list[Distribution]:
    """Return other released suites of the same distribution: the similar name first, then by age; none for an image."""
    asked, tables = context.recipe.base, context.tables
    if context.recipe.image:
        return []
    names = list(tables.distributions.by_name)
    meant = [asked] if asked in names else nearest_names(asked, tables.distributions.by_name)
    here = names.index(meant[0]) if meant else 0
    family = tables.distributions.rows[here].family
    others = (row for row in tables.distributions.rows if row.name != asked and row.is_released)
    return sorted(
        (row for row in others if row.family == family), key=lambda row: abs(names.index(row.name) - here)
    )


def _suite(context: CheckContext, base: Distribution) -> Move:
    """Return the changes to another suite: its Python for the old suite's, and its compiler and libxcrypt if it lacks the recipe's."""
    recipe, row = context.recipe, context.distribution
    changes = [PinChange("base", base.name)]
    if (row and row.python == recipe.python) or recipe.python not in context.tables.standalones.by_name:
        changes.append(PinChange("python", base.python))
    if recipe.gcc not in base.gccs:
        changes.append(PinChange("gcc", base.gcc))
    if recipe.libxcrypt and not f"{base.libxcrypt}.".startswith(f"{recipe.libxcrypt}."):
        changes.append(PinChange("libxcrypt", base.short_libxcrypt))
    return tuple(changes)


def _merge(changes: Sequence[PinChange], move: Move, recipe: Recipe) -> tuple[PinChange, ...]:
    """Merge changes: the later wins, and a value that the recipe has is no change."""
    values = {change.key: change.value for change in (*changes, *move)}
    return tuple(
        PinChange(key, value)
        for key, value in sorted(values.items())
        if "[" in key or getattr(recipe, key) != value
    )


def _is_like(changes: Sequence[PinChange], other: Sequence[PinChange]) -> bool:
    """Whether one set of changes contains the other or changes the same pins."""
    one, two = {change.key for change in changes}, {change.key for change in other}
    return one >= two or set(other) <= set(changes)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(str(item)) for item in value)}]"
    return str(value) if "/" in str(value) else f'"{value}"'


def _plain(item: str) -> str:
    return item if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ._-]*", item) else f'"{item}"'
