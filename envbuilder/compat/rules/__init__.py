"""The rules of `check`, by subject: pins, wheels, compilers, the host's driver, and base images."""

from collections.abc import Iterator
from typing import Final

from envbuilder.compat.context import CheckContext, Problem, Rule
from envbuilder.compat.rules import base_image, compiler, driver, pins, wheels

# Each function `check_…` of these modules, in the order in which it stands there.
RULES: Final[tuple[Rule, ...]] = tuple(
    rule
    for module in (pins, wheels, compiler, driver, base_image)
    for name, rule in vars(module).items()
    if name.startswith("check_")
)
RuleProblem = tuple[Rule, Problem]


def find_problems(context: CheckContext) -> Iterator[RuleProblem]:
    """Yield every problem with the rule that found it, in the order of the rules."""
    for rule in RULES:
        for problem in rule(context):
            yield rule, problem
