"""NVIDIA_REQUIRE_CUDA: NVIDIA's container runtime starts an image only if one of these alternatives holds.

`cuda>=12.4 brand=tesla,driver>=470,driver<471`: spaces separate alternatives, commas separate the conditions of one
(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html).
"""

import operator
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from envbuilder.compat.tables.table import version_key

_CONDITION: Final = re.compile(r"(cuda|driver|arch|brand)(=|!=|<=|>=|<|>)([A-Za-z0-9.]+)")
_SIGNS: Final = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Condition = tuple[str, str, str]  # name, sign, value; the name is "" if it cannot be parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    alternatives: tuple[tuple[Condition, ...], ...]  # empty: nothing is required

    @property
    def cuda(self) -> str:
        """Return the least CUDA of an alternative without other conditions, "" if there is none."""
        alone = [one[0] for one in self.alternatives if len(one) == 1]
        return next((value for name, sign, value in alone if (name, sign) == ("cuda", ">=")), "")

    def holds(self, *, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool | None:
        """Return whether a host satisfies it; None if unknown.

        `brands` are those of its GPUs, "" if unknown. `drivers` maps each CUDA to its driver.
        """
        answers = []
        for alternative in self.alternatives:
            given = [_holds(one, driver, brands, drivers) for one in alternative]
            answers.append(False if False in given else None if None in given else True)
        return True if True in answers or not answers else None if None in answers else False


def parse_require(text: str) -> Require:
    """Parse the variable. A part that cannot be parsed makes an alternative of unknown result, which rejects nothing."""
    return Require(
        alternatives=tuple(
            tuple(_condition(part) for part in alternative.split(",") if part) for alternative in text.split()
        )
    )


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    return (found[1], found[2], found[3]) if found else ("", "", text)


def _holds(one: Condition, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool | None:
    match one:
        case ("driver", sign, value):
            return _compare(driver, sign, value)
        case ("cuda", ">=" as sign, value) if value in drivers:
            return _compare(driver, sign, drivers[value])
        case ("brand", "=", value) if brands:
            return True if value in brands else None if "" in brands and value != "tesla" else False
        case _:
            return None


def _compare(version: str, sign: str, other: str) -> bool | None:
    if not all(re.fullmatch(r"\d+(\.\d+)*", one) for one in (version, other)):
        return None
    return bool(_SIGNS[sign](version_key(version), version_key(other)))
