"""The doctor's items as a table for a person and as data for a program."""

from envbuilder.core.console import columns
from envbuilder.node.doctor import DoctorReport, Purpose, State

_HEADS = {Purpose.BUILD: "to build environments", Purpose.RUN: "to run them"}
_MARKS = {State.OK: "ok", State.WARNING: "warning", State.MISSING: "missing", State.UNKNOWN: "unknown"}


def text(run_checks: DoctorReport, width: int = 0) -> str:
    """Format a row for each item, with reason and repair where it is not OK."""
    longest = max((len(item.name) for item in run_checks.items), default=0)
    lines: list[str] = []
    for purpose, items in run_checks.found.items():
        lines += [_HEADS[purpose]]
        for item in items:
            lines.append(
                columns([(f"  {_MARKS[item.state]:<7}", f"{item.name:<{longest}}", item.found)], width)
            )
            if item.state is not State.OK:
                told = [("why:", item.why)] * bool(item.why) + [("repair:", item.repair)] * bool(item.repair)
                lines += [columns([(" " * 9, f"{name} {words}")], width) for name, words in told]
        lines.append("")
    lines += [f"done: {told}" for told in run_checks.done]
    return "\n".join(lines).rstrip()


def data(run_checks: DoctorReport) -> dict[str, object]:
    return {
        "looks": [
            {
                "for": purpose.value,
                "code": item.code.value,
                "name": item.name,
                "state": item.state.value,
                "found": item.found,
                "why": item.why,
                "repair": item.repair,
                "fixable": item.fix is not None,
            }
            for purpose, items in run_checks.found.items()
            for item in items
        ],
        "fixed": list(run_checks.done),
    }
