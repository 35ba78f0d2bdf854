"""Ask source distributions what they require: to be installed, and to be built.

Only a project's own code knows it, so it runs as in a build: in a sandbox without network, with the packages that its pyproject.toml
names. uv is never let near it, because it would run the code on this machine.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uv
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version
from pydantic import TypeAdapter, ValidationError

from envbuilder import runtime
from envbuilder.compat.tables.cuda import load_cuda_packages, load_late
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.core.process import Command
from envbuilder.lock.cause import Cause, find_cause
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.runners.sandbox import Mount, sandbox
from envbuilder.runners.toolbox import open_sandbox
from envbuilder.sources.http import RequestLimits

if TYPE_CHECKING:
    from envbuilder.sources.fetch.source_client import Index

SUFFIXES: Final = (".tar.gz", ".zip")
_PROGRAM: Final = "read_sdist.py"  # in `envbuilder/runtime`
_WORK: Final = "/work"  # in the sandbox: all that it may write
_ANSWER: Final = TypeAdapter(dict[str, list[str]])
_ROUNDS: Final = 3  # the packages that pyproject.toml names, those that the backend adds, the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistFacts:
    """What a source distribution says of itself. The texts are requirements."""

    builds_with: tuple[str, ...]
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    python: str  # "" for any


def open_index(context: ResolveContext, limits: RequestLimits | None = None) -> "Index":
    """Return the package indexes, for reading."""
    from envbuilder.sources.fetch.source_client import Index  # noqa: PLC0415 - requests takes 0.15 s, and most locks are kept

    return Index(context.sources(), limits)


def find_sdist(name: str, version: str, context: ResolveContext) -> Artifact:
    """Fetch a source distribution from a folder or an index. Raises FetchError with the known versions."""
    project, wanted = canonicalize_name(name), Version(version)
    sources = context.sources()
    for folder in sources.folders:
        for path in sorted(path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")):
            if sdist_version(path.name, project) == wanted:
                return add_sdist(project, version, f"{project}/{path.name}", path.read_bytes(), context)
    index = open_index(context)
    files = {file: sdist_version(file.filename, project) for file in index.files(project)}
    for listed, version_there in files.items():
        if version_there == wanted:
            return add_sdist(project, version, f"{project}/{listed.filename}", index.read(listed), context)
    there = [str(older) for older in sorted(filter(None, set(files.values())), reverse=True)]
    hint = f"it has those of {', '.join(there[:8])}" if there else ""
    hint = hint or "it has none of this project; name `git` and `commit`"
    raise FetchError(f"no package index here has a source distribution of {name} {version}", hint=hint)


def sdist_version(filename: str, project: str) -> Version | None:
    """Return the version of a source distribution of the project, None for another file."""
    try:
        name, version = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return None
    return version if name == project else None


def add_sdist(
    name: str, version: str, path: str, content: bytes, context: ResolveContext, *, source: str = "pypi"
) -> Artifact:
    """Put an archive of sources into the store."""
    return Artifact(
        kind="sdist", name=name, version=version, sha256=context.store.add_content(content), size=len(content),
        source=source, path=path,
    )  # fmt: skip


def read_sdist(
    sdist: Artifact, context: ResolveContext, settings: Sequence[str], apart: Callable[[str], object]
) -> SdistFacts:
    """Return what a source distribution in the store requires. `settings` are the lines of uv's configuration.

    It may be built with no package for which `apart` is true: those of the recipe's indexes come from there alone.
    Raises IncompatibleError if its own code fails or needs torch, ToolError without a sandbox.
    """
    open_sandbox(context.store, context.fetcher, context.runner, context.transfer)
    with context.store.workspace() as work:
        (work / "uv.toml").write_text("".join(f"{line}\n" for line in settings), encoding="utf-8")
        installed: tuple[str, ...] = ()
        for _ in range(_ROUNDS):
            _install(sdist, installed, work, context)
            answer = _ask(sdist, installed, work, context)
            wanted = tuple(answer["builds_with"])
            if "requires" in answer:
                requires, extras = tuple(answer["requires"]), tuple(answer["extras"])
                python = "".join(answer["python"])
                return SdistFacts(builds_with=wanted, requires=requires, extras=extras, python=python)
            # The environment's own torch must be there when a project is compiled against it.
            if any(canonicalize_name(Requirement(text).name) == "torch" for text in wanted):
                raise _unreadable(sdist, "it is built against torch")
            names = [canonicalize_name(Requirement(text).name) for text in wanted]
            if name := next(filter(apart, names), ""):
                raise _unreadable(sdist, f"it is built with `{name}`, which an index of the recipe has")
            installed = wanted
    raise _unreadable(sdist, "it asks for other packages each time")


def _install(sdist: Artifact, wanted: Sequence[str], work: Path, context: ResolveContext) -> None:
    """Make the environment `work/venv` anew, with these packages.

    uv runs the environment's Python on this machine. So it is a new one each time: in one that has packages, each of them
    may have a `.pth` file, which Python runs.
    """
    _run_uv(("venv", "--clear", "--python", sys.executable, str(work / "venv")), work, context)
    if not wanted:
        return
    place = ("--python", str(work / "venv/bin/python"), "--only-binary", ":all:")
    try:
        _run_uv(("pip", "install", *place, "--", *wanted), work, context)
    except CommandError as error:
        output = error.message.partition("\n")[2]
        raise _unreadable(sdist, f"what builds it is not there\n{output}") from error


def _ask(
    sdist: Artifact, installed: Sequence[str], work: Path, context: ResolveContext
) -> dict[str, list[str]]:
    """Run the program in the sandbox, with the packages that are installed so far."""
    venv, box, file = work / "venv", work / "box", context.store.artifact(sdist.sha256)
    box.mkdir(exist_ok=True)
    specification = {"sdist": f"/{sdist.filename}", "work": _WORK, "installed": list(installed)}
    given = work / "spec.json"
    given.write_text(json.dumps(specification), encoding="utf-8")
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.exists():
            options += ["--ro-bind", str(place), str(place)]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        options += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - the sandbox's own
    options += Mount(source=box, target=_WORK, writable=True).options()
    program = runtime.path(_PROGRAM)
    read = {str(venv): venv, f"/{sdist.filename}": file, "/spec.json": given, f"/{_PROGRAM}": program}
    for target, source in read.items():
        options += Mount(source=source, target=target).options()
    variables = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": _WORK, "LC_ALL": "C.UTF-8"}
    argv = (str(venv / "bin/python"), f"/{_PROGRAM}", "/spec.json")
    why = f"ask the source distribution of `{sdist.name}` what it requires"
    command = sandbox(options, argv, why=why, env=tuple(variables.items()), cwd=_WORK)
    try:
        reply = context.runner.run(command)
    except CommandError as error:
        output = re.sub(rf"{_WORK}/src/[^/]+/", "", error.message.partition("\n")[2])
        raise _unreadable(sdist, output, find_cause(output.splitlines())) from error
    try:
        answer = _ANSWER.validate_json(reply)
        requirements = [Requirement(text) for text in (*answer["builds_with"], *answer.get("requires", ()))]
    except (ValidationError, KeyError, InvalidRequirement) as error:
        raise _unreadable(sdist, f"its own code does not say what it requires: {error}") from error
    # uv would take an address, or a folder of this machine, from anywhere.
    if elsewhere := next((requirement for requirement in requirements if requirement.url), None):
        raise _unreadable(sdist, f"it requires `{elsewhere}`, which is no package of an index")
    return answer


def _run_uv(words: Sequence[str], work: Path, context: ResolveContext) -> None:
    certificates = context.sources().certificates
    env = (("SSL_CERT_FILE", str(certificates)),) if certificates else ()
    places = ("--config-file", "uv.toml", "--cache-dir", str(context.store.resolver("uv")))
    why = "install the packages that a source distribution is built with"
    argv = (uv.find_uv_bin(), *places, "--no-python-downloads", "--quiet", *words)
    context.runner.run(Command(argv=argv, cwd=work, env=env, why=why))


def _unreadable(sdist: Artifact, reason: str, cause: Cause | None = None) -> IncompatibleError:
    name = re.sub(r"[^A-Za-z0-9_]", "_", sdist.name)
    why = f"`{sdist.name} {sdist.version}` has no wheel for this Python, and its source distribution cannot be built"
    row = load_cuda_packages().by_name.get(sdist.name)
    way = f"build it as an extension: `extensions: [{{name: {name}, sdist: {sdist.name}=={sdist.version}}}]`"
    known = (late for late in load_late().rows if f"sdist: {sdist.name}==" in late.entry.lower())
    way = next((late.advice(sdist.version) for late in known), way)
    first = f"{cause.message}\n  {cause.where or 'the build'} ends so: {why}" if cause else f"{why}: {reason}"
    return IncompatibleError(
        first,
        hint=f"name a version that has a wheel, or {way}"
        + (f"; {row.advice()}" if row else "")
        + ("; `-vv` shows all of the output" if cause else ""),
    )
