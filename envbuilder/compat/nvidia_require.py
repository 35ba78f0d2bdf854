"""NVIDIA_REQUIRE_CUDA: alternatives, one of which NVIDIA's container runtime wants to hold before it starts an image.

`cuda>=12.4 brand=tesla,driver>=470,driver<471`: blanks separate alternatives, commas what must hold together
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
Condition = tuple[str, str, str]  # name, sign, value; without a name where it cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    alternatives: tuple[tuple[Condition, ...], ...]  # empty: nothing is required

    @property
    def cuda(self) -> str:
        """The CUDA that any driver of at least its age satisfies; "" where none is named alone."""
        alone = [one[0] for one in self.alternatives if len(one) == 1]
        return next((value for name, sign, value in alone if (name, sign) == ("cuda", ">=")), "")

    def holds(self, *, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool | None:
        """Whether a host satisfies it; None where that cannot be known.

        `brands` are those of its GPUs, "" for one that is not known; `drivers` says with which driver a CUDA came.
        """
        answers = []
        for alternative in self.alternatives:
            given = [_holds(one, driver, brands, drivers) for one in alternative]
            answers.append(False if False in given else None if None in given else True)
        return True if True in answers or not answers else None if None in answers else False


def parse_require(text: str) -> Require:
    """What cannot be read makes an alternative that nobody can judge, so that it refuses nothing."""
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
