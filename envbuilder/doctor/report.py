"""The looks as a table for a person and as data for a program."""

from envbuilder.doctor import Purpose, State, Visit

_HEADS = {Purpose.BUILD: "to build environments", Purpose.RUN: "to run them"}
_MARKS = {State.OK: "ok", State.WARNING: "warning", State.MISSING: "missing", State.UNKNOWN: "unknown"}


def text(visit: Visit) -> str:
    """One line for what is well, the reason and the repair for what is not."""
    width = max((len(item.name) for item in visit.items), default=0)
    lines: list[str] = []
    for purpose, items in visit.found.items():
        lines += [_HEADS[purpose]]
        for item in items:
            lines.append(f"  {_MARKS[item.state]:<8} {item.name:<{width}}  {item.found}")
            if item.state is not State.OK:
                lines += [f"{'':<11}why: {item.why}"] * bool(item.why)
                lines += [f"{'':<11}repair: {item.repair}"] * bool(item.repair)
        lines.append("")
    lines += [f"done: {told}" for told in visit.done]
    return "\n".join(lines).rstrip()


def data(visit: Visit) -> dict[str, object]:
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
            for purpose, items in visit.found.items()
            for item in items
        ],
        "fixed": list(visit.done),
    }
