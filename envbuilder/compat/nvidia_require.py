"""NVIDIA_REQUIRE_CUDA: alternatives, one of which NVIDIA's container runtime wants to hold before it starts an image.

`cuda>=12.4 brand=tesla,driver>=470,driver<471`: blanks separate alternatives, commas what must hold together
(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envbuilder.compat.tables.table import version_key

_CONDITION: Final = re.compile(r"(cuda|driver|arch|brand)(=|!=|<=|>=|<|>)([A-Za-z0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    name: str
    sign: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    alternatives: tuple[tuple[Condition, ...], ...]  # empty: nothing is required

    @property
    def cuda(self) -> str:
        """The CUDA that any driver of at least its age satisfies; "" where none is named alone."""
        alone = [one[0] for one in self.alternatives if len(one) == 1]
        return next((one.value for one in alone if one.name == "cuda" and one.sign == ">="), "")

    def holds(self, *, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool | None:
        """Whether a host satisfies it; None where that cannot be known.

        `brands` are those of its GPUs, "" for one that is not known; `drivers` says with which driver a CUDA came.
        """
        if not self.alternatives:
            return True
        answers = [_all(_holds(one, driver, brands, drivers) for one in some) for some in self.alternatives]
        return True if True in answers else None if None in answers else False


def parse_require(text: str) -> Require:
    """What cannot be read makes an alternative that nobody can judge, so that it refuses nothing."""
    return Require(
        alternatives=tuple(
            tuple(_condition(part) for part in alternative.split(",") if part) for alternative in text.split()
        )
    )


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    return (
        Condition(name=found[1], sign=found[2], value=found[3])
        if found
        else Condition(name="", sign="", value=text)
    )


def _all(answers: Iterable[bool | None]) -> bool | None:
    given = list(answers)
    return False if False in given else None if None in given else True


def _holds(one: Condition, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool | None:
    match one.name:
        case "driver":
            return _compare(driver, one.sign, one.value)
        case "cuda" if one.sign == ">=" and one.value in drivers:
            return _compare(driver, one.sign, drivers[one.value])
        case "brand" if one.sign == "=" and brands:
            return True if one.value in brands else None if "" in brands and one.value != "tesla" else False
        case _:
            return None


def _compare(version: str, sign: str, other: str) -> bool | None:
    if not re.fullmatch(r"\d+(\.\d+)*", version) or not re.fullmatch(r"\d+(\.\d+)*", other):
        return None
    ours, theirs = version_key(version), version_key(other)
    answers = {
        "=": ours == theirs, "!=": ours != theirs, "<": ours < theirs, "<=": ours <= theirs, ">": ours > theirs, ">=": ours >= theirs,
    }  # fmt: skip
    return answers.get(sign)
