"""The one place that starts outside programs.

A `Command` says what is run and why; a `Runner` runs it. The environment is built from an allow-list, so that a
user's shell cannot leak into a build.
"""

import contextlib
import errno
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

from envbuilder.console import owned
from envbuilder.errors import CommandError, SpaceError, ToolError

log = logging.getLogger(__name__)

PASSED_ON: Final = frozenset(
    {
        "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR",
        "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
        "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT",
    }
)  # fmt: skip
GRACE: Final = 5.0  # seconds between interrupt, terminate and kill
_USERINFO: Final = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
TAIL: Final = 20  # lines of a failed program's output that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program call; `why` completes the sentence "could not …"."""

    argv: tuple[str, ...]
    why: str
    cwd: Path | None = None
    env: tuple[tuple[str, str], ...] = ()
    accept: tuple[int, ...] = (0,)
    merged: bool = (
        False  # what it says on stderr comes among the lines of stdout, and whoever reads them logs them
    )
    input: bytes = field(default=b"", repr=False)  # what it reads from its stdin

    def __str__(self) -> str:
        setting = [f"{name}={shlex.quote(value)}" for name, value in self.env]
        return " ".join([*setting, shlex.join(self.argv)])


class Runner(Protocol):
    """Runs commands; raises CommandError (SpaceError on a full disk) when one fails, ToolError when the program is not there."""

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        """Run to the end and return stdout; `on_line` sees each of its lines as it comes."""
        ...

    def read(self, command: Command) -> AbstractContextManager[IO[bytes]]:
        """Give the program's stdout as a stream; a failure is raised when the context ends."""
        ...

    def stop(self) -> None:
        """End every program that is running now, in whichever thread; each fails as if it had ended by itself."""
        ...

    def named(self, owner: str) -> "Runner":
        """A runner for one of several builds at a time, whose `stop` ends what it started alone; ours ends that as well."""
        ...


class ProcessRunner:
    """Runs real programs, with what `environment` holds of the allow-list and a fixed locale."""

    def __init__(self, environment: Mapping[str, str], *, whole: bool = False, owner: str = "") -> None:
        """With `whole` programs get all of `environment`: what submits a job hands the user's own settings to it.

        With `owner` what it logs is known as that of one of several builds.
        """
        self._base = {name: value for name, value in environment.items() if whole or name in PASSED_ON}
        self._base["PATH"] = environment.get(
            "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        )
        self._base |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._named: list[ProcessRunner] = []
        self._log = owned(log, owner)

    def stop(self) -> None:
        for process in tuple(self._running):
            process.terminate()
        for one in self._named:
            one.stop()

    def named(self, owner: str) -> "ProcessRunner":
        one = ProcessRunner(self._base, whole=True, owner=owner)
        self._named.append(one)
        return one

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        self._log.info("$ %s", command)
        with (
            tempfile.TemporaryFile() as errors,
            _given(command) as given,
            self._start(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if command.merged else errors,
            ) as process,
        ):
            lines: list[str] = []
            with self._ended_with(process):
                assert process.stdout is not None
                for raw in process.stdout:
                    line = raw.decode(errors="replace")
                    lines.append(line)
                    if not command.merged:
                        self._log.debug("%s", redacted(line.rstrip("\n")))
                    if on_line:
                        on_line(line.rstrip("\n"))
            self._judge(command, process, errors, stdout=lines)
            return "".join(lines)

    @contextlib.contextmanager
    def read(self, command: Command) -> Iterator[IO[bytes]]:
        self._log.info("$ %s", command)
        with (
            tempfile.TemporaryFile() as errors,
            _given(command) as given,
            self._start(command, stdin=given, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            with self._ended_with(process):
                assert process.stdout is not None
                yield process.stdout
                while process.stdout.read(1 << 20):  # a reader may stop before the end of the stream
                    pass
            self._judge(command, process, errors)

    @contextlib.contextmanager
    def _ended_with(self, process: "subprocess.Popen[bytes]") -> Iterator[None]:
        """Wait for the program at the end; on any exception end it: interrupt, terminate, kill."""
        self._running.add(process)
        try:
            yield
            process.wait()
        except BaseException:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                if process.poll() is not None:
                    break
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            raise
        finally:
            self._running.discard(process)
            if process.stdin is not None:
                # Else Popen would, and what the program left unread would hide how it ended.
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def _judge(
        self,
        command: Command,
        process: "subprocess.Popen[bytes]",
        errors: IO[bytes],
        *,
        stdout: list[str] | None = None,
    ) -> None:
        errors.seek(0)
        said = redacted(errors.read().decode(errors="replace"))
        for line in said.splitlines():
            self._log.debug("%s", line)
        if process.returncode in command.accept:
            return
        tail = "\n".join((said.splitlines() or redacted("".join(stdout or [])).splitlines())[-TAIL:])
        message = (
            f"could not {command.why}: `{command.argv[0]}` {_ending(process.returncode)}\n{tail}".rstrip()
        )
        if os.strerror(errno.ENOSPC) in said:  # programs run in the locale C.UTF-8
            raise SpaceError(
                message, hint="free space, or point ENVBUILDER_CACHE and --output at a larger disk"
            )
        raise CommandError(message, hint=f"to see it again: {command}")

    def _start(
        self, command: Command, *, stdin: int = subprocess.DEVNULL, **streams: object
    ) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
                command.argv, cwd=command.cwd, env=self._base | dict(command.env), stdin=stdin, **streams
            )
        except OSError as error:
            if command.cwd is not None and not command.cwd.is_dir():
                raise CommandError(f"could not {command.why}: there is no folder `{command.cwd}`") from error
            what = (
                "is not installed"
                if isinstance(error, FileNotFoundError)
                else f"does not start: {error.strerror}"
            )
            raise ToolError(
                f"could not {command.why}: `{command.argv[0]}` {what}",
                hint="`scripts/setup` installs what envbuilder needs on Debian 12",
            ) from error


@contextlib.contextmanager
def _given(command: Command) -> Iterator[int]:
    """What the program has as its stdin."""
    if not command.input:
        yield subprocess.DEVNULL
        return
    with os.fdopen(os.memfd_create("input"), "w+b") as stream:  # in no file, for it may be a secret
        stream.write(command.input)
        stream.seek(0)
        yield stream.fileno()


def hand_over(argv: Sequence[str]) -> NoReturn:
    """Become that program: its signals, terminal and exit code are then the user's own."""
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606
    except FileNotFoundError as error:
        raise ToolError(
            f"`{argv[0]}` is not installed", hint="`scripts/setup` installs what envbuilder needs"
        ) from error


def redacted(text: str) -> str:
    """A program's words without what stands before the `@` of a URL: apt, for one, repeats a mirror's password when it is refused."""
    return _USERINFO.sub("***", text)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}" + (
        " (out of memory?)" if code == -signal.SIGKILL else ""
    )


class FakeRunner:
    """Starts nothing: records each command and answers with the text given for its program's name."""

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

    def stop(self) -> None:
        """Nothing runs."""

    def named(self, owner: str) -> "FakeRunner":  # noqa: ARG002 - one record for all
        return self
