"""Runners for tests that start no programs."""

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command
from envbuilder.runners import sandbox


class FakeRunner:
    """Records each command and returns the text given for its program. Starts nothing."""

    def __init__(self, answers: Mapping[str, str] | None = None) -> None:
        self.commands: list[Command] = []
        self._answers = dict(answers or {})

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        self.commands.append(command)
        answer = self._answers.get(Path(command.argv[0]).name, "")
        for line in answer.splitlines():
            if on_line:
                on_line(line)
        return answer

    @contextlib.contextmanager
    def read(self, command: Command) -> Iterator[IO[bytes]]:
        self.commands.append(command)
        with tempfile.TemporaryFile() as stream:
            stream.write(self._answers.get(Path(command.argv[0]).name, "").encode())
            stream.seek(0)
            yield stream

    def stop(self, *, for_good: bool = True) -> None:
        """Do nothing: no program runs."""

    def use(self, folder: Path) -> None:
        """Do nothing: no program runs."""

    def named(self, owner: str) -> "FakeRunner":
        return self


def one_a_line(command: Command, **places: object) -> str:
    """Return a command as text for a golden: each option is a line of its own, and each place has a name in capitals."""
    names = {"PYTHON": sys.executable, "CORE": sandbox.PROGRAM.parent, **places}
    lines: list[str] = []
    for word in command.argv:
        for name, place in names.items():
            word = word.replace(str(place), name)  # before quoting, which depends on the place  # noqa: PLW2901
        if word.startswith("--") or not lines or lines[-1] == "--":
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    settings = [f"{name}={value}" for name, value in command.env]
    return "\n".join([f"# could not {command.why}", *settings, *lines]) + "\n"


SAYS = {  # as the programs of Debian 12 do
    "bwrap": "bubblewrap 0.8.0\n",
    sys.executable: "",  # the trial of the sandbox
}


class Machine(FakeRunner):
    """A machine on which some programs are missing or broken."""

    def __init__(self, says: dict[str, str], *, broken: tuple[str, ...] = ()) -> None:
        super().__init__(says)
        self._there, self._broken = set(says), broken

    def run(self, command, *, on_line=None):
        if command.argv[0] in self._broken:
            raise CommandError("it does not run")
        if command.argv[0] not in self._there:
            raise ToolError("it is not installed")
        return super().run(command, on_line=on_line)
