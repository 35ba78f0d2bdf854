"""Check what this machine can do for envbuilder: each item has a reason and a repair command."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from envbuilder.core.errors import ToolError
from envbuilder.core.findings import Finding, Severity
from envbuilder.node.doctor import build, node
from envbuilder.node.doctor.item import DoctorCode, Item, Machine, RecipeNeeds, State

DoctorCheck = Callable[[Machine], Iterator[Item]]


class Purpose(StrEnum):
    BUILD = "build"
    RUN = "run"


CHECKS: Final[dict[Purpose, tuple[DoctorCheck, ...]]] = {
    Purpose.BUILD: (
        build.check_python,
        build.check_build_tools,
        build.check_docker,
        build.check_space,
        build.check_cache,
        build.check_sources,
    ),
    Purpose.RUN: (
        node.check_apptainer,
        node.check_namespaces,
        node.check_subids,
        node.check_fuse,
        node.check_driver,
        node.check_memory,
        node.check_scratch,
        node.check_bus,
        node.check_fabric,
        node.check_slurm,
        build.check_locks,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The items found, and the repairs done before."""

    found: Mapping[Purpose, tuple[Item, ...]]
    done: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for items in self.found.values() for item in items)


def run_checks(
    machine: Callable[[], Machine], purposes: Sequence[Purpose], *, fix: bool, tell: Callable[[str], None]
) -> DoctorReport:
    """Run the checks; with `fix`, report and do each safe repair, then run them again."""
    seen = examine(machine(), purposes)
    repairs = {item.fix.told: item.fix for item in seen.items if item.fix} if fix else {}
    for told, repair in repairs.items():
        tell(f"doctor: {told}")
        repair.run()
    return replace(examine(machine(), purposes), done=tuple(repairs)) if repairs else seen


def examine(machine: Machine, purposes: Iterable[Purpose]) -> DoctorReport:
    """Run every check for these purposes, in order, and change nothing."""
    return DoctorReport(
        found={
            purpose: tuple(item for check in CHECKS[purpose] for item in check(machine))
            for purpose in purposes
        }
    )


def findings(run_checks: DoctorReport) -> tuple[Finding, ...]:
    """Return findings for items that are not OK; a missing requirement is an error."""
    return tuple(
        Finding(
            code=item.code,
            severity=Severity.ERROR if item.state is State.MISSING else Severity.WARNING,
            where=item.name,
            message=f"{item.found}; {item.why}",
            hint=item.repair,
        )
        for item in run_checks.items
        if item.state in (State.MISSING, State.WARNING)
    )


def exit_code(run_checks: DoctorReport) -> int:
    """Return 8 where a requirement is missing, otherwise 0."""
    return ToolError.exit_code if any(item.state is State.MISSING for item in run_checks.items) else 0


__all__ = [
    "DoctorCode",
    "Item",
    "Purpose",
    "RecipeNeeds",
    "Scene",
    "State",
    "Visit",
    "examine",
    "exit_code",
    "findings",
    "visit",
]
