"""A machine with the programs that a build needs."""

import sys

from envbuilder.core.errors import CommandError, ToolError
from tests.support.runner import FakeRunner

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
