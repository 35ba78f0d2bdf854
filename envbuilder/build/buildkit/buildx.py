"""The `docker buildx build` command: its options, what it needs, and its failures in words."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.build.buildkit.folder import BASE, DOCKERFILE
from envbuilder.build.buildkit.progress import Progress
from envbuilder.build.engine import Builder
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, CommandError, SpaceError, ToolError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.process import Command, Runner
from envbuilder.core.required_tools import ToolCode
from envbuilder.plan.model import Plan
from envbuilder.plan.render import arguments

FLOOR: Final = (0, 13)  # of buildx: the first release with `--progress rawjson`
# Messages about a cache that does not exist. They come before anything is built.
_BAD_CACHE: Final = re.compile(
    r"unknown cache exporter.*|failed to configure \S+ cache exporter.*|\S+ cache exporter requires .*"
)
_SETUP: Final = "`scripts/setup` sets up a Docker engine on Debian 12"


class BuildxCode(CodeEnum):
    NO_EXPORT = "EB803", "a BuildKit that cannot do what is needed"
    NO_CACHE = "EB804", "a build cache that BuildKit cannot write"


def is_context(builder: Builder, runner: Runner) -> bool:
    """Whether the builder is a Docker context. buildx lists contexts as builders, but uses one only by `docker --context`."""
    if not builder.name:
        return False
    try:
        names = runner.run(Command(argv=("docker", "context", "ls", "--quiet"), why="list Docker's contexts"))
    except (CommandError, ToolError):  # `need_buildkit` says what is wrong with it
        return False
    return builder.name in names.split()


def build_command(
    plan: Plan, folder: Path, out: Path, builder: Builder, *, stage: str, context: bool
) -> Command:
    """Build the layers of this stage of `folder` into the OCI layout `out`. `context`: the builder is a Docker context."""
    options = (
        "--target", stage, "--progress", "rawjson", "--provenance=false", "--sbom=false",
        "--output", f"type=oci,tar=false,compression=uncompressed,force-compression=true,dest={out}",
    )  # fmt: skip
    argv = _words(plan, folder, builder, options, context=context)
    return Command(argv=argv, why="build the layers with BuildKit", merged=True)


def by_hand(plan: Plan, folder: Path, builder: Builder, *, context: bool) -> Command:
    """Return the command that makes an image of `folder` without envbuilder."""
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
        *(word for name, value in arguments(plan).items() for word in ("--build-arg", f"{name}={value}")),
        *(("--build-context", layout) if layout else ()), str(folder),
    )  # fmt: skip


def run(command: Command, runner: Runner, console: Console) -> None:
    """Run the command and show its steps.

    Raises BuildError with the last lines of what failed, SpaceError on a full disk, ToolError for a BuildKit that cannot do it.
    """
    with Progress(console) as progress:
        try:
            runner.run(command, on_line=progress.feed)
        except CommandError as error:
            words = progress.words
            if re.search(r"export(er)? is not supported|oci-layout.*not supported", words):
                what = "export its cache" if "Cache export" in words else "write an OCI layout"
                raise ToolError(f"BuildKit cannot {what} here", findings=(_no_export(words),)) from error
            message = progress.failure or error.message
            full = "no space left" in f"{message} {words}"
            rejected = _BAD_CACHE.search(words)
            cache_error = progress.unwritten or (rejected[0] if rejected else "")
            if cache_error and not full:
                raise BuildError(
                    "BuildKit could not write its cache", findings=(_no_cache(cache_error),)
                ) from error
            kind = SpaceError if full else BuildError
            raise kind(
                f"could not {command.why}: {message}",
                hint="`docker builder prune` frees what BuildKit keeps"
                if full
                else "`--dry-run` prints the command",
            ) from error
    if progress.cached:
        console.say(
            f"BuildKit had {progress.cached} of {progress.cached + progress.ran} instructions in its cache"
        )


def need_buildkit(builder: Builder, runner: Runner) -> None:
    """Raise ToolError without a Docker client, without a recent buildx, or without a builder that answers."""
    findings = tuple(_judge(builder, runner))
    if findings:
        raise ToolError("the docker engine needs BuildKit", findings=findings)


def _judge(builder: Builder, runner: Runner) -> tuple[Finding, ...]:
    asked = Command(argv=("docker", "buildx", "version"), why="ask for buildx")
    try:
        version = runner.run(asked)
    except ToolError:
        return (
            _finding(
                ToolCode.ABSENT, "`docker` is needed to drive BuildKit, and it is not installed", _SETUP
            ),
        )
    except CommandError:
        hint = "`apt-get install docker-buildx`, or docker-buildx-plugin of Docker's own packages"
        return (_finding(ToolCode.ABSENT, "`docker` has no plugin `buildx`, which drives BuildKit", hint),)
    found = re.search(r"\d+(?:\.\d+)+", version)
    if not found or tuple(map(int, found[0].split("."))) < FLOOR:
        wanted = ".".join(map(str, FLOOR))
        message = f"buildx {wanted} or newer is needed; found {found[0] if found else 'no version'}"
        return (_finding(ToolCode.OLD, message, _SETUP),)
    inspect = ("docker", "buildx", "inspect", "--bootstrap", *filter(None, (builder.name,)))
    try:
        answer = runner.run(Command(argv=inspect, why="ask the builder"))
        trouble = re.search(r"^Error: +(.*)", answer, re.MULTILINE)  # of an engine that it cannot reach
        last = trouble[1] if trouble else ""
    except CommandError as error:
        last = error.message.splitlines()[-1]
    if not last:
        return ()
    name = f"the builder `{builder.name}`" if builder.name else "the Docker engine"
    hint = "`docker buildx ls` lists builders, `envbuilder doctor` looks at the engine"
    return (_finding(ToolCode.ABSENT, f"{name} does not answer: {last}", hint),)


def _no_export(words: str) -> Finding:
    message = next((line for line in words.splitlines() if "not supported" in line), words)
    return _finding(
        BuildxCode.NO_EXPORT,
        message.removeprefix("ERROR: "),
        'write {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and restart the engine, '
        "or name another builder: `docker buildx create`, then `--builder NAME`",
    )


def _no_cache(message: str) -> Finding:
    is_plain = "server gave HTTP response to HTTPS client" in message
    return _finding(
        BuildxCode.NO_CACHE,
        f"`--cache-to`: {message}",
        "a registry without TLS must be among the `insecure-registries` of the builder's own /etc/docker/daemon.json"
        if is_plain
        else "`type=registry,ref=REGISTRY/REPOSITORY:TAG,mode=max` names a place that the builder itself reaches, and where "
        "`docker login` on this machine lets you write; without `--cache-to` it builds all the same",
    )


def _finding(code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, where="", message=message, hint=hint)
