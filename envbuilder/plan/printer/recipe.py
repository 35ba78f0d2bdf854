"""What is printed: the programs of a plan in their order, and what the texts say beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.processor import X86_64
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.model import Plan
from envbuilder.plan.program import Program

BUILD_DOCUMENTS: Final = ("opt/envbuilder/lock.json", "opt/envbuilder/plan.txt", "opt/envbuilder/recipe.yaml")
"""Files about a build by envbuilder, which no other build may claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The data of one text."""

    plan: Plan
    summary: str
    uv: str  # the version of uv that programs start
    pytorch_index: str
    labels: tuple[tuple[str, str], ...]  # of the image
    repositories: Mapping[str, str]  # source of files → the address below which they lie
    commits: Mapping[str, tuple[str, str]]  # sha256 of a packed commit → address of its repository, commit

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return the program of each layer, the lowest first. Documents about a build by envbuilder are left out."""
        files = tuple(file for file in self.plan.runtime.files if file[0] not in BUILD_DOCUMENTS)
        return (*self.plan.programs, runtime_program(replace(self.plan.runtime, files=files), {}))

    @property
    def every(self) -> tuple[Program, ...]:
        """Return the programs and their parts, each after what it needs."""
        return tuple(run for program in self.programs for run in with_parts(program))

    @property
    def machine(self) -> str:
        """Return a line of the comment that says which machine builds it, unless that is x86-64."""
        title = self.plan.processor.title
        is_usual = self.plan.processor is X86_64
        return "" if is_usual else f"\n# It is for {title} and builds on such a machine, without an emulator."

    @property
    def workshop(self) -> str:
        """Return the image that fetches: the distribution's own, or Debian's."""
        suites = {row.suite: row.name for row in load_distributions().rows}
        return suites.get(self.plan.os.suite, "debian/bookworm").replace("/", ":")


def with_parts(program: Program) -> Iterator[Program]:
    """Yield the parts of a program, then itself."""
    for part in program.parts:
        yield from with_parts(part)
    yield program
