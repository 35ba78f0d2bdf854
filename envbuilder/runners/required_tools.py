"""Find programs that are missing or too old, with the reason for each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.core.process import Command, Runner
from envbuilder.core.system import install_hint


class ToolCode(CodeEnum):
    ABSENT = "EB801", "a program that is not installed or does not run"
    OLD = "EB802", "a program that is older than is needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program, its least version, and the reason."""

    name: str
    why: str
    package: str
    floor: tuple[int, ...] = ()
    version: tuple[str, ...] = ("--version",)


BWRAP: Final = Tool(name="bwrap", why="build in a sandbox", package="bubblewrap", floor=(0, 4))


def check_tools(tools: Iterable[Tool], runner: Runner) -> tuple[Finding, ...]:
    """Return a finding for every tool that is missing or too old."""
    return tuple(finding for tool in tools if (finding := _check(tool, runner)))


def tool_version(tool: Tool, runner: Runner) -> str:
    """Return the version that a program reports, or ""; raises ToolError or CommandError."""
    output = runner.run(Command(argv=(tool.name, *tool.version), why=f"ask `{tool.name}` for its version"))
    found = re.search(r"\d+(?:\.\d+)+", output)
    return found[0] if found else ""


def _check(tool: Tool, runner: Runner) -> Finding | None:
    hint = install_hint(tool.package)
    try:
        found = tool_version(tool, runner)
    except (ToolError, CommandError):
        code = ToolCode.ABSENT
        message = f"`{tool.name}` is needed to {tool.why}, and it is not installed or does not run"
    else:
        if not tool.floor or (found and tuple(map(int, found.split("."))) >= tool.floor):
            return None
        code, wanted = ToolCode.OLD, ".".join(map(str, tool.floor))
        message = f"`{tool.name}` {wanted} or newer is needed to {tool.why}; found {found or 'no version'}"
    return Finding(code=code, message=message, hint=hint)
