"""The `docker buildx build` command: its options, its requirements, its progress and its errors.

The progress (`--progress rawjson`) is a JSON object in each line, with some of `vertexes`, `statuses` and `logs`. A vertex is an
instruction of the Dockerfile or other work of BuildKit.
"""

import base64
import contextlib
import json
import logging
import re
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from packaging.version import Version

from envbuilder.builder.context import Builder
from envbuilder.builder.extensions.compiler_errors import warm_error
from envbuilder.core.budget import LastLines
from envbuilder.core.console import Console, owned
from envbuilder.core.errors import (
    BuildError,
    CommandError,
    CompileError,
    EnvbuilderError,
    SpaceError,
    ToolError,
)
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.core.process import Command, Runner
from envbuilder.core.system import install_command, install_hint
from envbuilder.core.text.redact import redacted
from envbuilder.plan.model import Plan
from envbuilder.plan.program import BASE, PROGRAMS, SPEC

DOCKERFILE: Final = "Dockerfile"
FLOOR: Final = Version("0.13")  # of buildx: the first release with `--progress rawjson`
# Errors about the options of a cache, before anything is built.
_BAD_CACHE: Final = re.compile(
    r"unknown cache exporter.*|failed to configure \S+ cache exporter.*|\S+ cache exporter requires .*"
)
_TO_EXPORT: Final = (
    'write {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and restart the engine, '
    "or name another builder: `docker buildx create`, then `--builder NAME`"
)
_TO_REACH_PLAIN: Final = "a registry without TLS must be among the `insecure-registries` of the builder's own /etc/docker/daemon.json"
_TO_WRITE_CACHE: Final = (
    "`type=registry,ref=REGISTRY/REPOSITORY:TAG,mode=max` names a place that the builder itself reaches, and where "
    "`docker login` on this machine lets you write; without `--cache-to` it builds all the same"
)
_NAME: Final = re.compile(r"\[(?P<stage>[\w-]+) +\d+/\d+\] (?P<words>.*)", re.DOTALL)
_IMPORT: Final = re.compile(r"importing cache manifest from (?P<place>.*)")
_EXPORT: Final = "exporting cache to "
_PROGRAM: Final = re.compile(rf" {PROGRAMS}/(\S+) {SPEC} ")  # the command line of a program
_KEPT: Final = 20  # lines of a failed instruction
# Programs that run the code of an extension or of a source distribution.
_WARM: Final = "warm.py"
_FOREIGN: Final = ("extension.py", "build_sdist.py")


class BuildxCode(CodeEnum):
    ABSENT = "EB801", "a program that is not installed or does not run"
    OLD = "EB802", "a program that is older than is needed"
    NO_EXPORT = "EB803", "a BuildKit that cannot do what is needed"
    NO_CACHE = "EB804", "a build cache that BuildKit cannot write"


def is_context(builder: Builder, runner: Runner) -> bool:
    """Return whether the builder is a Docker context. buildx lists contexts as builders but needs `docker --context`."""
    if not builder.name:
        return False
    try:
        names = runner.run(Command(argv=("docker", "context", "ls", "--quiet"), why="list Docker's contexts"))
    except (CommandError, ToolError):  # `need_buildkit` reports it
        return False
    return builder.name in names.split()


def build_command(plan: Plan, folder: Path, out: Path, builder: Builder, *, context: bool) -> Command:
    """Build the layers of `folder` into the OCI layout `out`. `context`: the builder is a Docker context."""
    options = (
        "--progress", "rawjson", "--provenance=false", "--sbom=false",
        "--output", f"type=oci,tar=false,compression=uncompressed,force-compression=true,dest={out}",
    )  # fmt: skip
    argv = _words(plan, folder, builder, options, context=context)
    return Command(argv=argv, why="build the layers with BuildKit", merged=True)


def manual_command(plan: Plan, folder: Path, builder: Builder, *, context: bool) -> Command:
    """Return the command by which a user builds an image from `folder`."""
    argv = _words(plan, folder, builder, ("--tag", plan.name), context=context)
    return Command(argv=argv, why="build the image")


def _words(
    plan: Plan, folder: Path, builder: Builder, options: tuple[str, ...], *, context: bool
) -> tuple[str, ...]:
    base = plan.os.base
    layout = f"base=oci-layout://{folder / BASE}@sha256:{base.manifest.digest}" if base else ""
    given = (replace(builder, name="") if context else builder).given()
    return (
        "docker", *(("--context", builder.name) if context else ()), "buildx", "build",
        "--file", str(folder / DOCKERFILE), *(word for option in given for word in option), *options,
        "--platform", plan.platform, "--build-arg", f"SOURCE_DATE_EPOCH={plan.epoch}", *(("--build-context", layout) if layout else ()), str(folder),
    )  # fmt: skip


def run(command: Command, runner: Runner, console: Console) -> None:
    """Run the command and show its steps.

    Raises BuildError with the last lines of the failed instruction, CompileError if foreign code failed in it, SpaceError for a
    full disk, ToolError for a BuildKit without the feature.
    """
    with BuildKitProgress(console) as progress:
        try:
            runner.run(command, on_line=progress.feed)
        except CommandError as error:
            raise _explain(command, error, progress) from error
    if progress.cached:
        every = progress.cached + progress.ran
        console.say(f"BuildKit had {progress.cached} of {every} instructions in its cache")


def _explain(command: Command, error: CommandError, progress: "BuildKitProgress") -> EnvbuilderError:
    words = progress.words
    if re.search(r"export(er)? is not supported|oci-layout.*not supported", words):
        what = "export its cache" if "Cache export" in words else "write an OCI layout"
        message = next((line for line in words.splitlines() if "not supported" in line), words)
        finding = Finding(code=BuildxCode.NO_EXPORT, message=message.removeprefix("ERROR: "), hint=_TO_EXPORT)
        return ToolError(f"BuildKit cannot {what} here", findings=(finding,))
    message = progress.failure or error.message
    if "no space left" in f"{message} {words}":
        hint = "`docker builder prune` clears the cache of BuildKit"
        return SpaceError(f"could not {command.why}: {message}", hint=hint)
    rejected = _BAD_CACHE.search(words)
    if unwritten := progress.unwritten or (rejected[0] if rejected else ""):
        is_plain = "server gave HTTP response to HTTPS client" in unwritten
        hint = _TO_REACH_PLAIN if is_plain else _TO_WRITE_CACHE
        finding = Finding(code=BuildxCode.NO_CACHE, message=f"`--cache-to`: {unwritten}", hint=hint)
        return BuildError("BuildKit could not write its cache", findings=(finding,))
    if message.partition("\n")[0].endswith(_WARM):
        return warm_error(message)
    kind = CompileError if progress.is_foreign else BuildError
    return kind(f"could not {command.why}: {message}", hint="`--dry-run` prints the command")


def need_buildkit(builder: Builder, runner: Runner) -> None:
    """Raise ToolError without a Docker client, a recent buildx or a running builder."""
    problem = _find_problem(builder, runner)
    if problem:
        raise ToolError("the runner `buildkit` needs BuildKit", findings=(problem,))


def _find_problem(builder: Builder, runner: Runner) -> Finding | None:
    try:
        version = runner.run(Command(argv=("docker", "buildx", "version"), why="ask for buildx"))
    except ToolError:
        message = "`docker` is needed to run BuildKit, but it is not installed"
        return Finding(code=BuildxCode.ABSENT, message=message, hint=install_hint("docker.io"))
    except CommandError:
        hint = f"`{install_command('docker-buildx')}`, or docker-buildx-plugin of Docker's own packages"
        message = "`docker` has no plugin `buildx`, which runs BuildKit"
        return Finding(code=BuildxCode.ABSENT, message=message, hint=hint)
    there = re.search(r"\d+(?:\.\d+)+", version)
    if not there or Version(there[0]) < FLOOR:
        message = f"buildx {FLOOR} or newer is needed; found {there[0] if there else 'no version'}"
        return Finding(code=BuildxCode.OLD, message=message, hint=install_hint("docker.io"))
    inspect = ("docker", "buildx", "inspect", "--bootstrap", *filter(None, (builder.name,)))
    try:
        answer = runner.run(Command(argv=inspect, why="ask the builder"))
        trouble = re.search(r"^Error: +(.*)", answer, re.MULTILINE)  # buildx cannot reach the engine
        last = trouble[1] if trouble else ""
    except CommandError as error:
        last = error.message.splitlines()[-1]
    if not last:
        return None
    name = f"the builder `{builder.name}`" if builder.name else "the Docker engine"
    hint = "`docker buildx ls` lists builders, `envbuilder doctor` checks the engine"
    return Finding(code=BuildxCode.ABSENT, message=f"{name} does not answer: {last}", hint=hint)


class BuildKitProgress:
    """Show the lines of the program as steps, and log all of them. `failure` holds the last output of the failed instruction.

    `ran` and `cached` count instructions. `unwritten` is the reason why BuildKit could not write its cache. A cache that it cannot read is
    reported at once, because the build continues without it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._log = owned(logging.getLogger(__name__), console.owner)
        self._open: dict[str, contextlib.ExitStack] = {}
        self._names: dict[str, str] = {}
        self._output: dict[str, deque[str]] = {}
        self._failed = ""
        self._reported: set[str] = set()
        self._cached: set[str] = set()
        self._ran: set[str] = set()
        self.unwritten = ""
        self._plain = LastLines()  # messages of buildx

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for digest in tuple(self._open):  # the program ended during these steps
            self._end(digest, failed=True)

    def feed(self, line: str) -> None:
        """Read one line of the program's output."""
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._log.debug("%s", redacted(line))
            self._plain.append(redacted(line))
            return
        for vertex in value.get("vertexes") or ():
            self._vertex(vertex)
        for log in value.get("logs") or ():
            text = redacted(base64.b64decode(log.get("data") or "").decode(errors="replace"))
            for printed in text.splitlines():
                self._log.debug("%s: %s", self._names.get(log.get("vertex", ""), "BuildKit"), printed)
                self._output.setdefault(log.get("vertex", ""), deque(maxlen=_KEPT)).append(printed)

    @property
    def failure(self) -> str:
        """Return the failed instruction and its last lines, otherwise the last lines of buildx, or ""."""
        if not self._failed:
            return "\n".join([*self._plain][-_KEPT:])
        output = self._output.get(self._failed, ())
        return "\n".join([self._names[self._failed], *output])

    @property
    def is_foreign(self) -> bool:
        """Return whether the failed instruction runs foreign code, which says nothing of the layers below it."""
        return self._names.get(self._failed, "").endswith(_FOREIGN)

    @property
    def words(self) -> str:
        """Return all messages of buildx itself."""
        return "\n".join(self._plain)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def ran(self) -> int:
        return len(self._ran - self._cached)

    def _vertex(self, vertex: dict[str, str]) -> None:
        digest, name = vertex["digest"], vertex.get("name", "")
        self._names[digest] = title(name) or name
        if error := redacted(vertex.get("error") or ""):
            self._log.debug("%s: %s", name, error)
            self._record_error(digest, name, error)
        is_instruction = name.startswith("[") and bool(title(name))
        if vertex.get("cached"):
            self._log.debug("%s: cached", name)
            self._cached |= {digest} if is_instruction else set()
        elif vertex.get("completed"):
            self._ran |= {digest} if is_instruction else set()
            self._end(digest, failed=bool(vertex.get("error")))
        elif vertex.get("started") and digest not in self._open and title(name):
            stack = contextlib.ExitStack()
            stack.enter_context(self._console.step(title(name)))
            self._open[digest] = stack

    def _end(self, digest: str, *, failed: bool) -> None:
        with contextlib.suppress(_StepFailed), self._open.pop(digest, contextlib.ExitStack()):
            if failed:
                raise _StepFailed

    def _record_error(self, digest: str, name: str, error: str) -> None:
        if reading := _IMPORT.fullmatch(name):
            if digest not in self._reported:
                self._reported.add(digest)
                self._console.say(f"cannot read the cache `{reading['place']}`: {error}")
        elif name.startswith(_EXPORT):
            self.unwritten = error
        else:
            self._failed = self._failed or digest


class _StepFailed(Exception):  # noqa: N818 - it never leaves this module
    """Marks the step as failed. `run` raises the error of the build."""


def title(name: str) -> str:
    """Return the title of a vertex: its stage and its program. "" for most work of BuildKit itself."""
    vertex = _NAME.fullmatch(name)
    if not vertex:
        whole = {"exporting to ": "BuildKit writes the layers", _EXPORT: "BuildKit writes its cache"}
        return next((shown for start, shown in whole.items() if name.startswith(start)), "")
    program = _PROGRAM.search(vertex["words"])
    return f"{vertex['stage']}: {program[1]}" if program else ""
