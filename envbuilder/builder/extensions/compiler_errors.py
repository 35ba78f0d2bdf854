"""Explain a failed compile by its known cause and the compiler's lines about it."""

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.builder.extensions.compiled import ExtensionCode, answers, read_index
from envbuilder.compat.gates import find_gates
from envbuilder.compat.python_code import parse_code
from envbuilder.compat.tables.cuda import load_switches
from envbuilder.core.beneath import files_beneath, read_beneath
from envbuilder.core.errors import BuildError, CommandError, CompileError
from envbuilder.core.findings import Finding
from envbuilder.core.models import adapter
from envbuilder.diagnose.catalogue import load_messages
from envbuilder.lock.cause import find_cause
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.extension import BUILD_DIRECTORY
from envbuilder.recipe.extension import BUILD_SOURCE, Form

WARM_FILES: Final = "/tmp/warm/files"  # noqa: S108 - of the sandbox; as `steps/warm.py` has both
WARM_NOTHING: Final = "launched no Triton kernel"
SHOWN: Final = 12  # lines of the compiler in a message
_ERROR_LINE: Final = re.compile(
    r"\b(fatal )?error\b|undefined (reference|symbol)|cannot find -l|#error|^\w*Error: ", re.IGNORECASE
)
_GATED: Final = {"EB622": "compile", "EB623": "cuda"}  # what an own variable of the project may change
_CAPTURE: Final = "envbuilder capture: "  # before the report in the last line of `capture_calls.py`
# Where uv unpacks a source distribution.
_UNPACKED: Final = re.compile(rf"{BUILD_DIRECTORY}/wheel/\.tmp\w+/[^/]+/")
_NOISE: Final = re.compile(
    r"ninja: |subprocess\.CalledProcessError|RuntimeError: Error (building|compiling)|^\[\d+/\d+\]"
)
_PATCH: Final = re.compile(r"^\s*the patch (?P<file>.+?) does not fit: (?P<why>.*)\Z", re.MULTILINE)
_UV: Final = "error: Failed to build `"  # from here on, uv says only that the build failed
_LACKS: Final = re.compile(
    "No such file|not found|(?:does not|doesn't) exist|No module named|can(?:not|'t) open|missing and no known rule"
)
_QUOTED: Final = re.compile(r"['\"`<](?:\./)?([\w+-][\w./+-]{0,200})['\"`>]")
_MOST: Final = 100  # names that are looked for
# `a.cpp:4:3: ` of gcc, clang and ld, and `a.cu(4): ` of nvcc.
_PLACE: Final = re.compile(r"(?P<file>[^\s:()]+)(?::(?P<line>\d+(?::\d+)?)|\((?P<row>\d+)\)): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What `capture_calls.py` says of a line that ended: in the project's own output, so that code of the project may forge it."""

    line: str
    error: str
    where: str

    @property
    def place(self) -> str:
        return self.where.removeprefix(f"{BUILD_SOURCE}/")


def read_report(line: str, start: str) -> CaptureReport | None:
    """Return the report in a line of the output, None for another line."""
    if not line.startswith(start):
        return None
    try:
        report: CaptureReport = adapter(CaptureReport).validate_json(line.removeprefix(start))
    except ValueError:
        return None
    return report


def explain_failure(
    name: str,
    lines: Iterable[str],
    failure: CommandError,
    *,
    compiles: bool = True,
    folder: str = "",
    setup: str = "",
    called: str = "",
    kind: str = "extension",
) -> CompileError:
    """Return the error of an extension whose build in `folder`, by the text `setup` of a setup.py, printed these lines and failed.

    A capture compiles nothing, so the most general message does not apply. Its error is the report of `capture_calls.py` or the
    program's own message.
    """
    printed = [_UNPACKED.sub("", line) for line in (*lines, *failure.message.splitlines()[1:])]
    ended_at = (at for at, line in enumerate(printed) if line.startswith(_UV))
    printed = printed[: next(ended_at, None)]
    lines = [_named(line, folder) for line in printed]
    ended = read_report(lines[-1], _CAPTURE) if lines else None
    lines = lines[:-1] if ended else lines
    project = re.compile(rf"{BUILD_SOURCE}/(?:{re.escape(folder)}/)?")
    cause = find_cause([project.sub("", line) for line in printed]) if compiles else None
    cause_place = str(Path(folder, cause.where)) if cause and cause.where else ""
    known = [row for row in load_messages() if row.build]
    raw = [line.encode() for line in lines]
    for row in known if compiles and (cause is None or cause.compiles) else known[:-1]:
        for at, line in enumerate(raw):
            groups = row.groups(line)
            if row.build and groups is not None:
                key_lines = _error_lines(lines, at)
                shown = "\n".join(f"    {line}" for line in key_lines)
                meaning, repair = row.build.message.format(**groups), row.build.repair.format(**groups)
                repair = _switch_hint({"setup.py": setup}, _GATED.get(row.build.code, ""), ()) or repair
                of_line = f", which {called} loads," if called else ""
                message = f"the {kind} `{name}`{of_line} does not compile: {meaning}\n{shown}"
                where = _place(key_lines) or (ended.place if ended else cause_place)
                return extension_error(row.build.code, message, repair, where=where)
    patch = _PATCH.search(failure.message)
    if patch:
        return extension_error(
            ExtensionCode.PATCH,
            f"the patch of the extension `{name}` does not fit its sources: {patch['why']}",
            "apply your change to these sources and write the patch again, with `git diff` in the project's own folder",
            where=patch["file"],
        )
    if ended:
        return extension_error(
            ExtensionCode.ENDED,
            f"the line `{ended.line}` of `capture` of the extension `{name}` ends in {ended.error}",
            "it runs in the folder that `path` names, without a GPU and without a network; the log has the whole traceback",
            where=ended.place,
        )
    if cause:
        return extension_error(
            ExtensionCode.RAISED,
            f"{cause.message}\n  so ends the build of the {kind} `{name}`",
            f"look at {cause_place or 'the project'}: what does it ask for that the recipe can bring? The log has all of the output",
            where=cause_place,
        )
    return CompileError(failure.message, hint=failure.hint)


def warm_error(message: str) -> CompileError:
    """Return the error of a program of `warm` that ended with this message: its last lines, and what to look at."""
    lines = [line.replace(f"{WARM_FILES}/", "") for line in message.splitlines()[1:] if line.strip()]
    hint = (
        "it has the files that `warm` names alone, no network and no GPU: kernels are compiled and not run, so leave out what "
        "looks at their results; `files` of `warm` names what else it reads; the log has all of its output"
    )
    if lines and WARM_NOTHING in lines[-1]:
        hint = "call each kernel, or its `warmup`, with the types and sizes that the job has"
    return extension_error(ExtensionCode.WARM, "\n".join(("`warm` failed", *lines[-SHOWN:])), hint)


def _named(line: str, folder: str) -> str:
    """Replace the compiler's path of a file by the recipe's."""
    place = _PLACE.match(line)
    if place and folder and not place["file"].startswith("/"):
        line = f"{folder}/{line}"
    return line.replace(f"{BUILD_SOURCE}/", "")


def _place(lines: Iterable[str]) -> str:
    """Return the first place in a file of the recipe, as `file:line:column` or `file:line`; otherwise ""."""
    places = (place for line in lines if (place := _PLACE.match(line)) and not place["file"].startswith("/"))
    return next((f"{place['file']}:{place['line'] or place['row']}" for place in places), "")


def _error_lines(lines: Sequence[str], first: int) -> list[str]:
    """Return the line with the known cause and other lines with an error, each with its continuation line."""
    chosen = [first]
    for at, line in enumerate(lines):
        if at == first or (_ERROR_LINE.search(line) and not _NOISE.search(line) and at not in chosen):
            chosen += [at] if at != first else []
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            if follows.startswith(" ") and at + 1 not in chosen:
                chosen.append(at + 1)
    printed = _printed_by_failed(lines)
    if not any(_ERROR_LINE.search(lines[at]) for at in printed):
        chosen[1:1] = printed[-3:]
    seen = dict.fromkeys(lines[at].rstrip()[:300] for at in sorted(chosen[:SHOWN]))
    return [line for line in seen if line]


def _printed_by_failed(lines: Sequence[str]) -> list[int]:
    """Return the lines that commands of ninja printed before they failed: `nvcc fatal   : …`, `sh: 1: Cannot fork`."""
    printed, is_inside = list[int](), False
    for at, line in enumerate(lines):
        if line.startswith("FAILED: ") or _NOISE.match(line):
            is_inside = line.startswith("FAILED: ")
        elif is_inside and not lines[at - 1].startswith("FAILED: "):  # after the command itself
            printed.append(at)
    return printed


def merge_failures(failures: Sequence[BuildError]) -> BuildError:
    """Return one error for all failed extensions."""
    if len(failures) == 1:
        return failures[0]
    findings: list[Finding] = []
    for failure in failures:
        hint = failure.hint or "the log of the build has every line of it"
        findings += failure.findings or [Finding(code=failure.code, message=failure.message, hint=hint)]
    message = f"{len(findings)} extensions do not compile; what was compiled is kept for the next build"
    is_foreign = all(isinstance(failure, CompileError) for failure in failures)
    return (CompileError if is_foreign else BuildError)(message, findings=tuple(findings))


# ---- a file of the project that the lock does not hold


@contextlib.contextmanager
def naming_left_out(extension: LockedExtension, recipe: str) -> Iterator[None]:
    """Let the hint of a BuildError of the block name such a file beside the recipe, and how a build names it."""
    try:
        yield
    except BuildError as error:
        is_local = recipe and extension.path and not extension.archive
        if is_local and (path := _lacking(error.message, extension, Path(recipe).parent)):
            inside = Path(path).relative_to(extension.path).as_posix()
            way = f"name it in `MANIFEST.in`: `include {inside}`"
            if extension.form is Form.CAPTURE:
                way = "let the code that `capture` imports name or import it"
            why = "no file of the build names it, or git ignores it"
            reason = f"the folder has `{path}` and the lock has not: {why}; {way}, and lock again"
            error.hint = "; ".join(filter(None, (error.hint, reason)))
            error.findings = tuple(replace(finding, hint=error.hint) for finding in error.findings)
        raise


def _lacking(text: str, extension: LockedExtension, folder: Path) -> str:
    """Return a file that the text misses and that the project's folder has, but not the lock; "" if there is none."""
    locked, top, names = {file.path for file in extension.files}, folder / extension.path, dict[str, None]()
    for line in filter(_LACKS.search, text.splitlines()):
        before = line.partition(": No such file")[0].rpartition(" ")[2]
        names |= dict.fromkeys(_QUOTED.findall(f"{line} '{before}'"))
    for name in [name for name in names if ".." not in name][:_MOST]:
        module = name.replace(".", "/")
        inside = sorted(f"{module}/{file.name}" for file in (top / module).glob("*.py"))[:1]
        for file in (name, f"{module}.py", *inside):
            inside_project = file.removeprefix(
                f"{extension.path}/"
            )  # as the message names it, or as its compiler did
            path = posixpath.normpath(f"{extension.path}/{inside_project}")
            if path not in locked and (folder / path).is_file():
                return path
    return ""


_SCRIPTS: Final[tuple[str, ...]] = ("setup.py", "pyproject.toml", "CMakeLists.txt")
_GATE: Final = re.compile(r"cuda\.is_available\(\)|cuda\.device_count\(\)")
_OWN_LIST: Final = re.compile(
    r"-gencode|-arch[= ]|arch=compute_|environ\W+TORCH_CUDA_ARCH_LIST\W+\s*=[^=]|CMAKE_CUDA_ARCHITECTURES"
)


def explain_targets(
    name: str, extension: LockedExtension, out: Path, build_dir: Path, gpus: tuple[str, ...]
) -> None:
    """Raise BuildError if the program that failed left libraries in its OUT which lack code for a GPU of the recipe."""
    try:
        held = read_index(out).held
    except BuildError:  # it failed before
        return
    targets = {PurePosixPath(library).name: names for library, names in held.items()}
    if extension.form is Form.PROJECT:
        with answers("source"):
            check_project(name, targets, gpus, build_dir, str(PurePosixPath("src", extension.path)))
    else:
        check_call(name, next(iter(targets.values()), ()), gpus)


def extra_targets(targets: Iterable[str], architectures: Sequence[str]) -> tuple[str, ...]:
    """Return the targets that no GPU of the recipe needs."""
    return tuple(target for target in sorted(targets) if not _bare([target]) <= _wanted(architectures))


def check_call(name: str, targets: Sequence[str], architectures: Sequence[str]) -> None:
    """Raise BuildError unless the library of a call has code for these GPUs."""
    if not _wanted(architectures) <= _bare(targets):
        raise extension_error(
            ExtensionCode.WRONG,
            f"the extension `{name}` holds code for {_names(targets)}; the recipe's GPUs need {_names(_wanted(architectures))}",
            "look for `-gencode` or `-arch` among its flags: they override the recipe's GPUs",
        )


def check_project(
    name: str,
    held: Mapping[str, Sequence[str]],
    architectures: tuple[str, ...],
    build_dir: Path,
    project: str,
) -> None:
    """Raise BuildError unless the libraries of a project with CUDA sources have code for these GPUs.

    `project` is the project's folder in the build directory.
    """
    paths = files_beneath(build_dir, project)
    files = {PurePosixPath(path).relative_to(project).as_posix(): path for path in paths}
    sources = [file for file in files if file.endswith(".cu")]
    there = [script for script in _SCRIPTS if script in files]
    scripts = {script: read_beneath(build_dir, files[script]).decode(errors="replace") for script in there}
    if architectures and sources and not any(held.values()):
        why = _places(scripts, _GATE)
        because = f": {why[0]} asks for a GPU" if why else ""
        raise extension_error(
            ExtensionCode.WITHOUT,
            f"the extension `{name}` was built without code for a GPU, though it has `{sources[0]}`{because}",
            _switch_hint(scripts, "cuda", architectures)
            or "look in its setup.py for what decides between CPP and CUDA sources, and set that in `env` of the extension",
        )
    for library, targets in held.items():
        if not targets or _wanted(architectures) <= _bare(targets):
            continue
        places = _places(scripts, _OWN_LIST)
        because = f": {places[0]} names its own" if places else ""
        raise extension_error(
            ExtensionCode.WRONG,
            f"the extension `{name}` holds code for {_names(targets)} in `{library}`; "
            f"the recipe's GPUs need {_names(_wanted(architectures))}{because}",
            _switch_hint(scripts, "architectures", architectures)
            or "look in its setup.py for what leaves nvcc or sets TORCH_CUDA_ARCH_LIST, and remove that with `patch` of the extension",
        )


def _switch_hint(scripts: Mapping[str, str], effect: str, architectures: tuple[str, ...]) -> str:
    """Return the hint that names the variables or options of this setup.py, "" if it has none."""
    if effect == "architectures":
        text = "\n".join(scripts.values())
        rows = [row for row in load_switches().rows if row.effect == effect]
        known = [row for row in rows if re.search(rf"\b{row.variable}\b", text)]
        settings = [f"env: {{{', '.join(row.setting(architectures) for row in known)}}}"] if known else []
    else:
        code = parse_code(scripts.get("setup.py", ""), Path("setup.py"))
        settings = [gate.setting for gate in find_gates(code) if gate.effect == effect] if code else []
    return f"its setup.py reads it: `{'`, `'.join(settings)}` of the extension" if settings else ""


def _places(scripts: dict[str, str], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"`{name}:{number}`"
        for name, text in scripts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line.partition("#")[0])
    ]


def _bare(targets: Iterable[str]) -> set[str]:
    """Return the targets without suffix: sm_90a is also code for 9.0, with all of its features."""
    return {re.sub(r"(\d)[af]$", r"\1", target) for target in targets}


def _wanted(architectures: Sequence[str]) -> set[str]:
    return _bare(f"sm_{architecture.replace('.', '')}" for architecture in architectures)


def _names(targets: Iterable[str]) -> str:
    return ", ".join(sorted(targets)) or "no GPU at all"


def extension_error(code: str, message: str, hint: str, *, where: str = "") -> CompileError:
    finding = Finding(code=code, where=where, message=message, hint=hint)
    return CompileError(message, hint=hint, findings=(finding,))
