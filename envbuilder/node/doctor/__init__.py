"""Check what this machine can do for envbuilder: each item has a reason and a repair command."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from envbuilder.core.errors import ToolError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.plain import columns
from envbuilder.node.doctor import build, node
from envbuilder.node.doctor.machine import DoctorCode, DoctorItem, Machine, State

DoctorCheck = Callable[[Machine], Iterator[DoctorItem]]


class Purpose(StrEnum):
    BUILD = "build"
    RUN = "run"


# Each function `check_…` of these modules, in the order in which it stands there.
CHECKS: Final[dict[Purpose, tuple[DoctorCheck, ...]]] = {
    purpose: tuple(
        check
        for name, check in vars(module).items()
        if name.startswith("check_") and check.__module__ == module.__name__
    )
    for purpose, module in ((Purpose.BUILD, build), (Purpose.RUN, node))
}
_HEADS: Final = {Purpose.BUILD: "to build environments", Purpose.RUN: "to run them"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The items found, and the repairs done before."""

    found: Mapping[Purpose, Sequence[DoctorItem]]
    done: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[DoctorItem, ...]:
        return tuple(item for items in self.found.values() for item in items)


def run_checks(
    machine: Callable[[], Machine], purposes: Sequence[Purpose], *, fix: bool, report: Callable[[str], None]
) -> DoctorReport:
    """Run the checks; with `fix`, report and do each safe repair, then run them again."""
    seen = examine(machine(), purposes)
    repairs = {item.fix.command: item.fix for item in seen.items if item.fix} if fix else {}
    for command, repair in repairs.items():
        report(f"doctor: {command}")
        repair.run()
    return replace(examine(machine(), purposes), done=tuple(repairs)) if repairs else seen


def examine(machine: Machine, purposes: Iterable[Purpose]) -> DoctorReport:
    """Run every check for these purposes, in order, and change nothing."""
    items = {purpose: [item for check in CHECKS[purpose] for item in check(machine)] for purpose in purposes}
    return DoctorReport(found=items)


def findings(report: DoctorReport) -> tuple[Finding, ...]:
    """Return findings for items that are not OK; a missing requirement is an error."""
    return tuple(
        Finding(
            code=item.subject.code,
            severity=Severity.ERROR if item.state is State.MISSING else Severity.WARNING,
            where=item.subject.name,
            message=f"{item.found}; {item.subject.why}",
            hint=item.repair,
        )
        for item in report.items
        if item.state in (State.MISSING, State.WARNING)
    )


def exit_code(report: DoctorReport) -> int:
    """Return 8 where a requirement is missing, otherwise 0."""
    return ToolError.exit_code if any(item.state is State.MISSING for item in report.items) else 0


def as_text(report: DoctorReport, width: int = 0) -> str:
    """Format a row for each item, with reason and repair where it is not OK."""
    longest = max((len(item.subject.name) for item in report.items), default=0)
    lines: list[str] = []
    for purpose, items in report.found.items():
        lines.append(_HEADS[purpose])
        for item in items:
            row = (f"  {item.state.value:<7}", f"{item.subject.name:<{longest}}", item.found)
            lines.append(columns([row], width))
            if item.state is not State.OK:
                notes = {"why": item.subject.why, "repair": item.repair}
                rows = [(" " * 9, f"{name}: {words}") for name, words in notes.items() if words]
                lines += [columns([row], width) for row in rows]
        lines.append("")
    return "\n".join([*lines, *(f"done: {command}" for command in report.done), _next(report)]).rstrip()


def _next(report: DoctorReport) -> str:
    """Return the line with the first thing to do. What only warns can wait, apart from a source, which `lock` needs."""
    missing = [item for item in report.items if item.state is State.MISSING]
    warned = [item for item in report.items if item.state is State.WARNING]
    silent = [item for item in warned if item.subject.code is DoctorCode.SOURCES]
    if first := missing or silent:
        rest = f"; {len(first) - 1} more above" if first[1:] else ""
        return f"first: {first[0].repair or first[0].found}{rest}"
    begin = "; begin with `envbuilder init --example cpu`" if Purpose.BUILD in report.found else ""
    return f"nothing is missing{begin}"
