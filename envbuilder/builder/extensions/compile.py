"""Compile the extensions of a plan, or take them from the store. Several compile at once.

Recipes with the same key share an entry of the store. A failed extension does not stop the others: they go into the store, and the next
build compiles only the failed one.
"""

import contextlib
import json
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar, assert_never

from envbuilder.builder.extensions import compiled as entries
from envbuilder.builder.extensions.compiled import (
    CachedExtension,
    Compiled,
    ExtensionCode,
    find_extensions,
    find_twins,
    known_calls,
    known_memory,
    label,
    read_memory,
    save_memory,
)
from envbuilder.builder.extensions.compiler_errors import (
    explain_failure,
    explain_targets,
    extension_error,
    extra_targets,
    merge_failures,
    naming_left_out,
    read_report,
)
from envbuilder.builder.job import BuildJob, prepare_run
from envbuilder.builder.sandbox.root import SandboxRoot, program_command
from envbuilder.builder.slots import compilers
from envbuilder.core.beneath import read_beneath
from envbuilder.core.budget import LastLines
from envbuilder.core.cache import save_text, sha256_text
from envbuilder.core.errors import BuildError, CommandError, CompileError, SpaceError
from envbuilder.core.process import Command
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.extension import (
    BUILD_DIRECTORY,
    CAPTURED,
    Calls,
    Key,
    LoadCall,
    call_key,
    call_program,
    extension_program,
    project_key,
    recipe_calls,
)
from envbuilder.plan.model import ExtensionsStep
from envbuilder.plan.program import INPUTS, Program
from envbuilder.recipe.extension import HERE, SOURCE_SUFFIXES, Form
from envbuilder.runners.sandbox import Mount, take_over

MANY: Final = 1 << 20  # compilers that a project may start, as far as there are slots
Item = TypeVar("Item")
# As ninja prints a command, and as CMake and Meson say what it does.
_COMPILED: Final = re.compile(
    rf"\s-c\s+\"?(\S+(?:{'|'.join(map(re.escape, SOURCE_SUFFIXES))}))\b"
    r"|^\[\d+/\d+\] (?:Building|Compiling) \S+ object (\S+)\.o\b"
)
_COUNT: Final = re.compile(r"^\[(\d+)/(\d+)\] ")
KILLED: Final = "EB627"  # a compiler ran out of memory
_LONG: Final = 90.0  # seconds that are worth an estimate
_STOPPED: Final = "envbuilder capture stopped: "  # of `capture_calls.py`

# ---- the commands of a dry run


def extension_commands(
    job: BuildJob, *, root: Callable[[Program], SandboxRoot], work: Path
) -> Iterator[Command]:
    """Return the commands for the extensions that the store lacks. `work` stands for the temporary folder."""
    missing = [status.extension for status in find_extensions(job.plan, job.store) if status.compiled is None]
    for extension in dict.fromkeys(missing):
        is_capture = extension.form is Form.CAPTURE
        program = extension_program(job.plan.ground, extension, only=is_capture)
        yield program_command(program, root(program), work, (space_mount(work / "space"),))


def join_extensions(
    step: ExtensionsStep, built: Sequence[CachedExtension], job: BuildJob, root: SandboxRoot, work: Path
) -> None:
    """Write the layer's files below `work/out`. Raises BuildError if two extensions install the same file."""
    program, mounts = step.made_by(job.plan), list[Mount]()
    out = prepare_run(program, work, job.store)
    for number, extension in enumerate(built):
        inside = f"{extension.part}/{number}"
        (work / "step/inputs" / inside).mkdir(parents=True)
        mounts.append(Mount(source=extension.folder, target=f"{INPUTS}/{inside}"))
    job.runner.run(program_command(program, root, work, mounts))
    take_over(out)


def space_mount(build_dir: Path) -> Mount:
    """Return the mount of a build directory."""
    return Mount(source=build_dir, target=BUILD_DIRECTORY, writable=True)


# ---- the build


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A run of a program that compiles an extension, or one of its calls."""

    extension: LockedExtension
    name: str  # that is shown
    program: Program
    jobs: int = MANY  # compilers at once, at most
    captured: Path | None = None  # what a capture left, for one of its calls
    called: str = ""  # the line of the project that makes the call


class ExtensionBuilder:
    """Build one plan's extensions. `root` gives the files for a program. It is called only before a compile."""

    def __init__(self, job: BuildJob, root: Callable[[Program], SandboxRoot]) -> None:
        self._job, self._root = job, root
        self._ground = job.plan.ground

    def build(self) -> tuple[CachedExtension, ...]:
        """Return every extension, in the recipe's order. Raises one BuildError for all that failed."""
        built = _run_all(tuple(enumerate(self._job.plan.extensions)), self._build_part)
        for twins in find_twins(self._job.plan, self._job.store):
            self._job.console.say(f"  warning: {twins}; {twins.hint}")
        return built

    def _build_part(self, numbered: tuple[int, LockedExtension]) -> tuple[CachedExtension, ...]:
        number, extension = numbered
        program = extension_program(self._ground, extension, f"extension-{number}")
        with naming_left_out(extension, self._job.origin):
            built = self._build_extension(extension, program)
        return tuple(replace(call, part=program.name) for call in built)

    def _build_extension(self, extension: LockedExtension, program: Program) -> tuple[CachedExtension, ...]:
        ground = self._ground
        match extension.form:
            case Form.PROJECT:
                key, objects = project_key(ground, extension), f"{extension.name} {extension.path}"
                task = _Task(extension=extension, name=extension.name, program=program)
                return (self._obtain(task, key, objects),)
            case Form.LOAD:
                calls = recipe_calls(extension)
                return (self._obtain_call(extension, calls.calls[0], calls, program),)
            case Form.CAPTURE:
                calls = known_calls(self._job.plan, self._job.store, extension) or self._capture(extension)
                captured = self._job.store.extension(project_key(ground, extension).digest) / CAPTURED

                def obtain(call: LoadCall) -> tuple[CachedExtension]:
                    program = call_program(ground, extension, call, calls)
                    return (self._obtain_call(extension, call, calls, program, captured),)

                return _run_all(calls.calls, obtain)
            case _:
                assert_never(extension.form)

    def _capture(self, extension: LockedExtension) -> Calls:
        store = self._job.store
        key = project_key(self._ground, extension).digest
        with store.lock(f"extension-{key}"):
            # Another build may have captured them meanwhile.
            if known := known_calls(self._job.plan, self._job.store, extension):
                return known
            program = extension_program(self._ground, extension, only=True)
            root = self._root(program)
            with (
                self._say_failure(extension.name),
                self._job.slots.take(1),
                self._job.console.step(f"capture `{extension.name}`") as shown,
                store.renewed(store.extension(key)) as folder,
            ):
                build_dir = folder.with_name("space")
                build_dir.mkdir()
                task = _Task(extension=extension, name=extension.name, program=program, jobs=1)
                with self._ran(task, build_dir, root) as out:
                    calls = entries.save_calls(out, folder)
                if not calls.calls:
                    raise extension_error(
                        ExtensionCode.NOTHING,
                        f"the lines of `capture` of the extension `{extension.name}` compile nothing",
                        "name the import, or the function, that reaches torch's `load()` or `load_inline()`",
                    )
                shown.show_note(", ".join(call.name for call in calls.calls))
        return calls

    def _obtain_call(
        self, extension: LockedExtension, call: LoadCall, calls: Calls, program: Program, captured: Path | None = None
    ) -> CachedExtension:  # fmt: skip
        jobs = len(call.sources) or len(call.cpp_sources[:1]) + len(call.cuda_sources[:1])
        name = label(extension, call.name)
        task = _Task(
            extension=extension,
            name=name,
            program=program,
            jobs=jobs,
            captured=captured,
            called=calls.place(call),
        )
        return self._obtain(task, call_key(self._ground, extension, call, calls), call.to_json())

    def _obtain(self, task: _Task, key: Key, objects: str) -> CachedExtension:
        """Return the entry from the store. The task makes a missing one.

        `objects` and the surroundings decide objects in the build directory; sources, which ninja compares, do not.
        """
        store, console, name, digest = self._job.store, self._job.console, task.name, key.entry
        folder = store.extension(digest)
        with store.lock(f"extension-{digest}"):
            compiled = entries.load_compiled(folder) if store.holds(folder, whole=True) else None
            if compiled is None and self._job.fetch_extension(folder, name):
                compiled = entries.load_compiled(folder)
            if compiled is not None:
                console.say(f"  {name}: in the store, compiled for `{compiled.recipe}`")
            else:
                root = self._root(task.program)
                # Build directories are a recipe's own: code of one recipe could leave an object for another.
                decided_by = [*key.surroundings, key.beside, objects, self._job.origin]
                build_key = sha256_text(json.dumps(decided_by))
                with (
                    self._say_failure(name),
                    self._job.slots.take(
                        task.jobs, known_memory(task.extension, self._job.origin, store)
                    ) as taken,
                    store.lock(f"build-directories-{build_key}"),
                    console.step(f"compile `{name}`"),
                    store.renewed(folder) as entry,
                    store.build_directory(build_key, entries.drop_unfinished) as build_dir,
                ):
                    began = time.monotonic()
                    with self._ran(replace(task, jobs=taken), build_dir, root) as out:
                        entries.save_compiled(
                            out, entry, key=key, seconds=round(time.monotonic() - began, 1),
                            timings=entries.ninja_timings(build_dir), recipe=self._job.plan.name,
                        )  # fmt: skip
                compiled = entries.load_compiled(folder)
                assert compiled is not None, f"{folder} was just written"
        if extra := extra_targets(compiled.entry.targets, self._ground.gpus):
            console.say(
                f"  {name}: warning: it also holds code for {', '.join(extra)}, which is for no GPU of the recipe"
            )
        return CachedExtension(compiled=compiled, folder=folder)

    @contextlib.contextmanager
    def _say_failure(self, name: str) -> Iterator[None]:
        """Say at once why the extension fails in the block: others may compile for a long time yet."""
        try:
            yield
        except BuildError as error:
            self._job.console.say(f"  {name} failed: {error.message}")
            raise

    @contextlib.contextmanager
    def _ran(self, task: _Task, build_dir: Path, root: SandboxRoot) -> Iterator[Path]:
        """Run a task in the sandbox, and yield its OUT. Raises BuildError with the cause of a failure."""
        name, extension = task.name, task.extension
        is_project, is_capture = extension.form is Form.PROJECT, extension.form is Form.CAPTURE

        def read(line: str) -> None:
            if report := read_report(line, _STOPPED):
                message = f"`{report.line}` stops at {report.place}, which computes on a GPU: no later call is compiled"
                self._job.console.say(f"  {name}: warning: {message}")

        def explain(lines: LastLines, failure: CommandError) -> CompileError:
            explain_targets(name, extension, out, build_dir, self._ground.gpus)
            return explain_failure(
                name, lines, failure,
                compiles=not is_capture or task.captured is not None,
                folder=extension.path.removeprefix(HERE) if is_project else "",
                called=task.called,
                setup=_setup(build_dir, extension.path) if is_project else "",
            )  # fmt: skip

        with self._job.store.workspace() as work:
            out = prepare_run(task.program, work, self._job.store)
            mounts = [space_mount(build_dir)]
            if task.captured:
                (work / "step/inputs" / CAPTURED).mkdir()
                mounts.append(Mount(source=task.captured, target=f"{INPUTS}/{CAPTURED}"))
            command = program_command(task.program, root, work, mounts)
            of = None if is_capture and task.captured is None else extension
            run_compilers(command, work, self._job, explain, of=of, name=name, jobs=task.jobs, read=read)
            yield out


def run_compilers(
    command: Command, work: Path, job: BuildJob, explain: Callable[[LastLines, CommandError], CompileError], *,
    of: Compiled | None, name: str, jobs: int, read: Callable[[str], object] = lambda _: None,
) -> None:  # fmt: skip
    """Run a program in `work` that compiles, `jobs` files at once, show its progress, and note for the next run of `of` what it took.

    Raises what `explain` makes of a failure. Where a compiler was killed, the next run starts fewer.
    """
    lines, run = LastLines(), _NinjaRun(began=time.monotonic())

    def on_line(line: str) -> None:
        lines.append(line)
        if compiled := _COMPILED.search(line):
            progress, run.has_compiled = run.progress(line, time.monotonic()), True
            job.console.say(f"  {name}: {Path(compiled[1] or compiled[2]).name}{progress}")
        read(line)

    save_text(work / "step/jobs", f"{jobs}")
    try:
        job.runner.run(replace(command, chatty=True), on_line=on_line)
    except SpaceError:
        raise
    except CommandError as failure:
        error, size = explain(lines, failure), read_memory(work / "out")
        if of and size and any(finding.code == KILLED for finding in error.findings):
            _expect_more(error, of, job, size, min(jobs, job.limits.threads))
        raise error from failure
    # A build that goes on may only have linked, which says nothing of compilers.
    size = read_memory(work / "out")
    if of and size and (run.has_compiled or size > known_memory(of, job.origin, job.store)):
        save_memory(of, job.origin, job.store, size)


def _expect_more(error: CompileError, of: Compiled, job: BuildJob, size: int, jobs: int) -> None:
    """Note, after a compiler was killed, that each takes more than it got, and let the error say so."""
    each = max(size, 2 * job.limits.memory // jobs)
    save_memory(of, job.origin, job.store, each)
    error.hint = (
        f"the largest process had {size / 1e9:.1f} GB, with up to {jobs} at once; the next build runs up to "
        f"{compilers(job.limits, each)} at once and keeps what is compiled; {error.hint}"
    )
    error.findings = tuple(replace(finding, hint=error.hint) for finding in error.findings)


@dataclass(slots=True, kw_only=True)
class _NinjaRun:
    """How far ninja is. A project may start it for each of its extensions."""

    began: float
    last: float = 0
    done: int = 0
    has_compiled: bool = False

    def progress(self, line: str, now: float) -> str:
        """Return what a line of ninja says of the commands so far, with an estimate once it is of use; "" for another line."""
        if not (count := _COUNT.match(line)):
            return ""
        done, every = int(count[1]), int(count[2])
        if done <= self.done:
            self.began = self.last
        self.last, self.done = now, done
        left = (now - self.began) / max(done, 1) * (every - done)
        estimate = f", about {left / 60:.0f} min left" if left >= _LONG else ""
        return f" ({done} of {every} commands{estimate})"


def _setup(build_dir: Path, path: str) -> str:
    """Return the text of a project's setup.py, "" if it has none that can be read."""
    try:
        return read_beneath(build_dir, posixpath.normpath(f"src/{path}/setup.py")).decode(errors="replace")
    except (OSError, BuildError):
        return ""


def _run_all(
    items: Sequence[Item], work: Callable[[Item], tuple[CachedExtension, ...]]
) -> tuple[CachedExtension, ...]:
    """Return the results in the order of the items. Waits for all, then raises one BuildError for all failures."""
    with ThreadPoolExecutor(len(items), thread_name_prefix="extension") as pool:
        futures = [pool.submit(work, item) for item in items]
    failures = [error for future in futures if isinstance(error := future.exception(), BuildError)]
    if failures:
        raise merge_failures(failures)
    return tuple(built for future in futures for built in future.result())
