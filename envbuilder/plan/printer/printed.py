r"""What is printed: the programs of a plan in their order, and values as data in a shell script and in a Dockerfile.

A recipe's value is one line, because its reader rejects control characters. A file may hold anything. Its lines are marked, so none of
them ends the here-document. Docker changes nothing in a quoted here-document.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.plain import one_line
from envbuilder.core.processor import X86_64
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.model import Plan
from envbuilder.plan.program import Program

WRITE: Final = """\
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}"""
"""The shell function that writes a marked text: a `|` stands before each line."""
WRITE_MARKED: Final = WRITE.replace("s/^|//", r"s/^|//; s/{\^/{/g")
"""The same function for a text in which `marked` hid the braces."""
_BRACES: Final = re.compile(r"\{(?=\{)")
_BRACES_OR_MARK: Final = re.compile(r"\{(?=[{^])")
END: Final = "END"  # no marked line is this one


def in_shell(value: str) -> str:
    """Return one word of the shell. `{{` is split, because Apptainer would replace it."""
    return _BRACES.sub("{''", shlex.quote(one_line(value)))


def in_dockerfile(value: str) -> str:
    """Return the value of an ARG, ENV or LABEL."""
    text = one_line(value)
    for sign in ("\\", '"', "$"):
        text = text.replace(sign, f"\\{sign}")
    return f'"{text}"'


def in_comment(text: str) -> str:
    """Return a recipe's text as part of a comment line."""
    plain = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in text)
    return _BRACES.sub("{ ", " ".join(plain.split()))


def file_lines(path: str, text: str, *, mode: str = "644") -> list[str]:
    """Return shell lines that write a file byte for byte, with the function `WRITE`. `path` is a word of the shell."""
    body = text.removesuffix("\n").split("\n") if text else []
    lines = [f"file {mode} {path} <<'{END}'", *(f"|{line}" for line in body), END]
    if text and not text.endswith("\n"):  # sed adds a line end that this file lacks
        lines.append(f"truncate --size=-1 {path}")
    return lines


def marked(lines: Sequence[str]) -> list[str]:
    """Return the lines with a `^` between two braces of a file's text."""
    return [_BRACES_OR_MARK.sub("{^", line) if line.startswith("|") else line for line in lines]


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
