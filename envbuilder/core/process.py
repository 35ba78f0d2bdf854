"""Start outside programs. No other module does.

A `Command` says what to run and why. A `Runner` runs it. The environment is built from an
allow-list, so the user's shell settings do not change a build.
"""

import contextlib
import functools
import io
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

from envbuilder.core.budget import LINE, OUTPUT, OUTPUT_END
from envbuilder.core.console import owned
from envbuilder.core.errors import FULL, CommandError, ToolError, full_error
from envbuilder.core.system import install_hint
from envbuilder.core.text.redact import redacted

log = logging.getLogger(__name__)

PASSED_ON: Final = frozenset(
    {
        "HOME", "NETRC", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR",
        "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
        "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
        "SSH_AUTH_SOCK",  # for a Docker engine at ssh://
        "SLURM_CONF",  # without it, no command of Slurm answers where it is not in the usual place
    }
)  # fmt: skip
_BARE: Final = ("PATH", "LANG", "LC_ALL")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # without PATH
GRACE: Final = 5.0  # seconds between interrupt, terminate and kill
SHORT_GRACE: Final = 0.5  # the same after Ctrl-C, where all programs end at once and the user waits
_WIDEST: Final = 10_000  # letters of a line in an error
TAIL: Final = 20  # lines of output that the error of a failed program shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program call; `why` completes the sentence "could not …"."""

    argv: tuple[str, ...]
    why: str
    cwd: Path | None = None
    env: tuple[tuple[str, str], ...] = ()
    accept: tuple[int, ...] = (0,)
    merged: bool = False  # stderr goes to stdout; `on_line` logs it
    bare: bool = False  # of the user's variables it gets PATH alone, because foreign code could read them
    chatty: bool = False  # its stdout is for the log: of a long one, `run` returns the end
    input: bytes = field(default=b"", repr=False)  # its stdin

    def __str__(self) -> str:
        """Return the line to paste, without credentials."""
        setting = [f"{name}={shlex.quote(value)}" for name, value in self.env]
        return redacted(" ".join([*setting, shlex.join(self.argv)]))


class Runner(Protocol):
    """Runs commands. Raises CommandError for a failure, SpaceError for a full disk, ToolError for a missing program."""

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        """Run to the end and return stdout. `on_line` gets each line as it comes.

        Of a command that is merged or chatty it returns the last 8 MiB. Another one fails beyond 64 MiB.
        """
        ...

    def read(self, command: Command) -> AbstractContextManager[IO[bytes]]:
        """Yield the program's stdout as a stream. The end of the context raises a failure."""
        ...

    def stop(self, *, for_good: bool = True) -> None:
        """End all running programs of all threads. Their calls of `run` and `read` raise an error.

        With `for_good`, no other program starts: another thread may be about to start one.
        """
        ...

    def use(self, folder: Path) -> None:
        """Find the programs of this folder before those of the same name elsewhere."""
        ...

    def named(self, owner: str) -> "Runner":
        """Return a runner for one of several parallel builds. Its `stop` ends its own programs; this one's ends all."""
        ...


class ProcessRunner:
    """Runs programs with the allowed variables of `environment` and a fixed locale."""

    def __init__(self, environment: Mapping[str, str], *, whole: bool = False, owner: str = "") -> None:
        """With `whole`, programs get all of `environment`, because a job needs the user's settings.

        `owner` names one of several parallel builds in the log.
        """
        self._base = {name: value for name, value in environment.items() if whole or name in PASSED_ON}
        if not whole:
            self._base |= _proxies(environment)
        self._base["PATH"] = environment.get("PATH", SYSTEM_PATH)
        self._base |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self._log = owned(log, owner)
        self._lock = threading.Lock()  # held while a program starts, so `stop` sees it
        self._running: set[subprocess.Popen[bytes]] = set()
        self._named: list[ProcessRunner] = []
        self._closed = False

    def stop(self, *, for_good: bool = True) -> None:
        running = self.programs(and_no_more=for_good)
        for process in running:
            process.terminate()
        end = time.monotonic() + SHORT_GRACE
        while time.monotonic() < end and any(process.returncode is None for process in running):
            time.sleep(0.01)
        for process in running:  # some block TERM, such as unshare
            process.kill()

    def programs(self, *, and_no_more: bool) -> "tuple[subprocess.Popen[bytes], ...]":
        """Return the running programs, also those of the named runners."""
        with self._lock:
            self._closed = self._closed or and_no_more
            running, runners = tuple(self._running), tuple(self._named)
        return sum((runner.programs(and_no_more=and_no_more) for runner in runners), running)

    def use(self, folder: Path) -> None:
        self._base["PATH"] = f"{folder}:{self._base['PATH']}"

    def named(self, owner: str) -> "ProcessRunner":
        runner = ProcessRunner(self._base, whole=True, owner=owner)
        with self._lock:
            self._named.append(runner)
            runner._closed = self._closed
        return runner

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        kept = bytearray()
        is_answer = not (command.merged or command.chatty)
        with self._output(command, kept) as stdout:
            while raw := stdout.readline(LINE):
                kept += raw
                if is_answer and len(kept) > OUTPUT:
                    what = (
                        f"`{command.argv[0]}` printed more than {OUTPUT >> 20} MiB, and an answer is shorter"
                    )
                    raise CommandError(f"could not {command.why}: {what}")
                if not is_answer and len(kept) > 2 * OUTPUT_END:
                    del kept[:-OUTPUT_END]
                line = raw.decode(errors="replace").rstrip("\n")
                if not command.merged:
                    self._log.debug("%s", redacted(line))
                if on_line:
                    on_line(line)
        return (kept if is_answer else kept[-OUTPUT_END:]).decode(errors="replace")

    @contextlib.contextmanager
    def read(self, command: Command) -> Iterator[IO[bytes]]:
        with self._output(command) as stdout:
            yield stdout
            while stdout.read(1 << 20):  # the caller may stop before the end of the stream
                pass

    @contextlib.contextmanager
    def _output(self, command: Command, kept: bytes | bytearray = b"") -> Iterator[IO[bytes]]:
        """Yield the program's stdout, then raise an error if it failed. `kept` is what the caller has read."""
        self._log.info("$ %s", command)
        with (
            tempfile.TemporaryFile() as errors,
            _given(command) as given,
            self._start(command, given, subprocess.STDOUT if command.merged else errors) as process,
        ):
            with self._ended_with(process):
                assert process.stdout is not None
                yield process.stdout
            self._judge(command, process.returncode, errors, kept)

    @contextlib.contextmanager
    def _ended_with(self, process: "subprocess.Popen[bytes]") -> Iterator[None]:
        """Wait for the program at the end of the block. An exception ends it: interrupt, terminate, kill."""
        try:
            yield
            process.wait()
        except BaseException:
            interrupt = functools.partial(process.send_signal, signal.SIGINT)
            for end in (interrupt, process.terminate, process.kill):
                if process.poll() is not None:
                    break
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            raise
        finally:
            self._running.discard(process)

    def _judge(self, command: Command, code: int, errors: IO[bytes], stdout: bytes | bytearray) -> None:
        errors.seek(0)
        lines = deque[str](maxlen=TAIL)
        full: int | None = None
        for stream in (errors, io.BytesIO(stdout)):
            while raw := stream.readline(LINE):
                line = redacted(raw.decode(errors="replace"))
                # As C.UTF-8 has it.
                full = full or next((number for number in FULL if os.strerror(number) in line), None)
                lines += [part[:_WIDEST] for part in line.splitlines()[-TAIL:]]
                if stream is errors:
                    for part in line.splitlines():
                        self._log.debug("%s", part)
            if lines or code in command.accept:
                break
        if code in command.accept:
            return
        name = "the sandbox" if command.bare else f"`{command.argv[0]}`"
        message = "\n".join((f"could not {command.why}: {name} {_ending(code)}", *lines)).rstrip()
        if full:
            paths = [Path(word) for word in command.argv if word.startswith("/") and os.path.exists(word)]  # noqa: PTH110 - raises nothing
            raise full_error(command.cwd or Path.cwd(), *paths, number=full, message=message)
        raise CommandError(message, hint=f"to repeat it: {command}")

    def _start(self, command: Command, stdin: int, stderr: int | IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            with self._lock:
                if self._closed:
                    raise CommandError(f"could not {command.why}: envbuilder is shutting down")
                passed = {name: self._base[name] for name in _BARE} if command.bare else self._base
                process = subprocess.Popen(
                    command.argv, cwd=command.cwd, env=passed | dict(command.env),
                    stdin=stdin, stdout=subprocess.PIPE, stderr=stderr,
                )  # fmt: skip
                self._running.add(process)
        except OSError as error:
            if command.cwd is not None and not command.cwd.is_dir():
                raise CommandError(f"could not {command.why}: there is no folder `{command.cwd}`") from error
            program = command.argv[0]
            message = f"could not {command.why}: `{program}` {why_not_started(error)}"
            raise ToolError(message, hint=install_hint(program)) from error
        return process


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of proxies in both spellings, because programs differ in the one they read. Loopback needs no proxy."""
    proxies: dict[str, str] = {}
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        value = environment.get(name) or environment.get(name.upper(), "")
        if name == "no_proxy" and proxies and value != "*":  # curl and git take it alone
            value = ",".join(filter(None, (value, "localhost,127.0.0.1,::1")))
        if value:
            proxies |= {name: value, name.upper(): value}
    return proxies


@contextlib.contextmanager
def _given(command: Command) -> Iterator[int]:
    if not command.input:
        yield subprocess.DEVNULL
        return
    with os.fdopen(os.memfd_create("input"), "w+b") as stream:  # not on disk: it may be a secret
        stream.write(command.input)
        stream.seek(0)
        yield stream.fileno()


def exec_process(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by the program, which then has the signals, the terminal and the exit code."""
    try:
        if environment is None:
            os.execvp(argv[0], list(argv))  # noqa: S606
        os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606
    except (FileNotFoundError, PermissionError) as error:
        raise ToolError(f"`{argv[0]}` {why_not_started(error)}", hint=install_hint(argv[0])) from error


def why_not_started(error: OSError) -> str:
    """Return what is wrong with a program. A closed folder of PATH refuses it, whether or not it is installed elsewhere."""
    return "is not installed" if isinstance(error, FileNotFoundError) else f"does not start: {error.strerror}"


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
