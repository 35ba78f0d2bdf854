"""What this machine can and cannot do for envbuilder, why each thing matters, and the command that repairs it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from envbuilder.core.errors import ToolError
from envbuilder.core.findings import Finding, Severity
from envbuilder.node.doctor import build, node
from envbuilder.node.doctor.item import DoctorCode, Item, RecipeNeeds, Scene, State

Look = Callable[[Scene], Iterator[Item]]


class Purpose(StrEnum):
    BUILD = "build"
    RUN = "run"


LOOKS: Final[dict[Purpose, tuple[Look, ...]]] = {
    Purpose.BUILD: (
        build.look_at_python,
        build.look_at_tools,
        build.look_at_docker,
        build.look_at_space,
        build.look_at_cache,
        build.look_at_sources,
    ),
    Purpose.RUN: (
        node.look_at_apptainer,
        node.look_at_namespaces,
        node.look_at_subids,
        node.look_at_fuse,
        node.look_at_driver,
        node.look_at_memory,
        node.look_at_scratch,
        node.look_at_bus,
        node.look_at_fabric,
        node.look_at_slurm,
        build.look_at_locks,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What was found, and which repairs were done before that."""

    found: Mapping[Purpose, tuple[Item, ...]]
    done: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for items in self.found.values() for item in items)


def visit(
    scene: Callable[[], Scene], purposes: Sequence[Purpose], *, fix: bool, tell: Callable[[str], None]
) -> Visit:
    """Look; with `fix` do the safe repairs, telling each before it is done, and look again."""
    seen = examine(scene(), purposes)
    repairs = {item.fix.told: item.fix for item in seen.items if item.fix} if fix else {}
    for told, repair in repairs.items():
        tell(f"doctor: {told}")
        repair.run()
    return replace(examine(scene(), purposes), done=tuple(repairs)) if repairs else seen


def examine(scene: Scene, purposes: Iterable[Purpose]) -> Visit:
    """Every look of these purposes, in order; nothing is changed."""
    return Visit(
        found={
            purpose: tuple(item for look in LOOKS[purpose] for item in look(scene)) for purpose in purposes
        }
    )


def findings(visit: Visit) -> tuple[Finding, ...]:
    """What is not as it should be; a thing that is needed and missing is an error."""
    return tuple(
        Finding(
            code=item.code,
            severity=Severity.ERROR if item.state is State.MISSING else Severity.WARNING,
            where=item.name,
            message=f"{item.found}; {item.why}",
            hint=item.repair,
        )
        for item in visit.items
        if item.state in (State.MISSING, State.WARNING)
    )


def exit_code(visit: Visit) -> int:
    """8 where a needed thing is missing, else 0: warnings leave the choice to the reader."""
    return ToolError.exit_code if any(item.state is State.MISSING for item in visit.items) else 0


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
