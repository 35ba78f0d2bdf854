"""Runners for tests that start no programs."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from envbuilder.core.process import Command


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
