"""Compile the extensions of a plan, or take them from the store. Several compile at once.

Recipes with the same key share an entry of the store. A failed extension does not stop the others: they go into the store, and the next
build compiles only the failed one.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar, assert_never

from envbuilder.builder.assemble.sandbox import Root
from envbuilder.builder.engine import Job
from envbuilder.builder.extensions import cache, programs
from envbuilder.builder.extensions.check_targets import (
    ExtensionCode,
    check_call,
    check_project,
    extension_error,
    extra_targets,
    libraries_of,
    targets_of,
)
from envbuilder.builder.extensions.compiler_errors import explain_failure, merge_failures, read_report
from envbuilder.builder.extensions.left_out import naming_left_out
from envbuilder.builder.extensions.list import find_extensions, find_twins, known_calls, label
from envbuilder.builder.extensions.stage_sources import clear_leftovers, stage_files, stage_sources
from envbuilder.core.beneath import copy_beneath, copy_tree_beneath, folder_beneath
from envbuilder.core.budget import LastLines
from envbuilder.core.cache import Sha256, save_text, sha256_text
from envbuilder.core.errors import BuildError, CommandError, SpaceError
from envbuilder.core.limits import Limits
from envbuilder.core.process import Command
from envbuilder.lock.model import LockedExtension
from envbuilder.recipe.extension import HERE, SOURCE_SUFFIXES, Form

NVCC_MEMORY: Final = 3 << 30  # bytes of memory that a compile with torch's headers may need
Item = TypeVar("Item")
_COMPILED: Final = re.compile(rf"\s-c\s+\"?(\S+(?:{'|'.join(map(re.escape, SOURCE_SUFFIXES))}))\b")
_COUNT: Final = re.compile(r"^\[(\d+)/(\d+)\] ")
_STOPPED: Final = "envbuilder capture stopped: "  # of `capture_calls.py`

# ---- the commands of a dry run


def extension_commands(job: Job, *, root: Root, work: Path) -> Iterator[Command]:
    """Return the commands for the extensions that the store lacks. `work` stands for the build directory."""
    missing = {
        one.extension.name: one.extension
        for one in find_extensions(job.plan, job.store)
        if one.compiled is None
    }
    for extension in missing.values():
        match extension.form:
            case Form.PROJECT:
                program = programs.build_program(job.plan, extension, jobs=compilers(job.limits))
            case Form.LOAD:
                (call,) = cache.recipe_calls(extension).calls
                program = programs.compile_program(job.plan, extension, call, jobs=compilers(job.limits))
            case Form.CAPTURE:
                program = programs.capture_program(job.plan, extension)
            case _:
                assert_never(extension.form)
        yield program.command(root=root, build_dir=work / "space", argument=work / programs.SPEC)


def compilers(limits: Limits) -> int:
    """Return how many compilers may run at once, by cores and memory."""
    return max(1, min(limits.threads, limits.memory // NVCC_MEMORY))


# ---- the build


class Slots:
    """Limit the number of compiler processes across all extensions."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted: int) -> Iterator[int]:
        """Take the wanted number of slots, at most all, and free them at the end. Yields their number."""
        number = max(1, min(wanted, self._count))
        with self._changed:
            self._changed.wait_for(lambda: self._free >= number)
            self._free -= number
        try:
            yield number
        finally:
            with self._changed:
                self._free += number
                self._changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compile:
    """One compile: its build directory, its number of compilers and its root. `out` is the folder of the new entry."""

    build_dir: Path
    jobs: int
    out: Path
    root: Root
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 1)


class ExtensionBuilder:
    """Build one plan's extensions. `root` unpacks the trees for a compiler. It is called only before a compile."""

    def __init__(self, job: Job, root: Callable[[], Root]) -> None:
        self._job, self._root = job, root
        self._gpus = cache.gpus_of(job.plan)
        self._slots = Slots(compilers(job.limits))

    def build(self) -> tuple[cache.CachedExtension, ...]:
        """Return every extension, in the recipe's order. Raises one BuildError for all that failed."""
        built = _run_all(self._job.plan.extensions, self._build_one)
        for twins in find_twins(self._job.plan, self._job.store):
            self._job.console.say(f"  warning: {twins}; {twins.hint}")
        return built

    def _build_one(self, extension: LockedExtension) -> tuple[cache.CachedExtension, ...]:
        with naming_left_out(extension, self._job.origin):
            return self._build_calls(extension)

    def _build_calls(self, extension: LockedExtension) -> tuple[cache.CachedExtension, ...]:
        if extension.form is Form.PROJECT:
            return (self._build_project(extension),)
        calls = known_calls(self._job.plan, self._job.store, extension) or self._capture_calls(extension)
        return _run_all(calls.calls, lambda call: (self._compile_call(extension, call, calls),))

    def _compile_call(
        self, extension: LockedExtension, call: cache.Call, calls: cache.Calls
    ) -> cache.CachedExtension:
        """Compile one call of `load()` or `load_inline()`."""
        plan, store, shown = self._job.plan, self._job.store, label(extension, call.name)
        key = cache.call_key(plan, extension, call, calls)

        def work(run: _Compile) -> cache.Compiled:
            stage_files({name: store.artifact(digest) for name, digest in calls.files}, run.build_dir)
            for folder in ("src", "build"):  # a call of `load_inline()` may have no files
                folder_beneath(run.build_dir, folder)
            self._run(
                programs.compile_program(plan, extension, call, jobs=run.jobs),
                shown,
                run.build_dir,
                run.root,
            )
            library = run.out / call.library
            with cache.answers(call.library):
                copy_beneath(run.build_dir, f"build/{call.library}", library)
            targets = targets_of(library)
            if targets or (call.has_cuda and self._gpus):
                check_call(shown, targets, self._gpus)
            facts, read = cache.read_facts(run.build_dir, programs.FACTS)
            with cache.answers(programs.FACTS):
                sources = {source: read[source] for source in call.sources}
            headers = {path: digest for path, digest in read.items() if path not in sources}
            return cache.Compiled(
                name=call.name, key=key, facts=facts, call=call, targets=targets,
                sources=_pairs(sources, call.base), headers=_pairs(headers, call.base),
                size=library.stat().st_size, seconds=run.seconds(), timings=cache.ninja_timings(run.build_dir), recipe=plan.name,
            )  # fmt: skip

        wanted = len(call.sources) or len(call.cpp_sources[:1]) + len(call.cuda_sources[:1])
        build_key = _build_key(cache.surroundings(plan, extension), call.to_json(), self._job.origin)
        return self._obtain(shown, key, extension.form, work, wanted=wanted, build_key=build_key)

    def _build_project(self, extension: LockedExtension) -> cache.CachedExtension:
        """Build a project with a setup.py or pyproject.toml."""
        plan, jobs = self._job.plan, compilers(self._job.limits)
        key = cache.project_key(plan, extension)

        def work(run: _Compile) -> cache.Compiled:
            stage_sources(
                extension, store=self._job.store, runner=self._job.runner, folder=run.build_dir / "src"
            )
            program = programs.build_program(plan, extension, jobs=run.jobs)
            self._run(
                program, extension.name, run.build_dir, run.root, folder=extension.path.removeprefix(HERE)
            )
            with cache.answers(cache.TREE):
                copy_tree_beneath(run.build_dir, cache.TREE, run.out / cache.TREE)
            libraries = libraries_of(run.out)
            targets = {path.name: targets_of(path) for path in libraries}
            project = program.folder.removeprefix(f"{cache.BUILD_DIRECTORY}/")
            with cache.answers(project):
                check_project(extension.name, targets, self._gpus, run.build_dir, project)
            facts, _ = cache.read_facts(run.build_dir, programs.FACTS)
            return cache.Compiled(
                name=extension.name, key=key, facts=facts, call=None,
                targets=tuple(sorted({target for found in targets.values() for target in found})),
                sources=(), headers=(), size=sum(path.stat().st_size for path in libraries),
                seconds=run.seconds(), timings=cache.ninja_timings(run.build_dir), recipe=plan.name,
            )  # fmt: skip

        common = cache.surroundings(plan, extension, reads_all=True)
        build_key = _build_key(common, f"{extension.name} {extension.path}", self._job.origin)
        return self._obtain(extension.name, key, extension.form, work, wanted=jobs, build_key=build_key)

    def _capture_calls(self, extension: LockedExtension) -> cache.Calls:
        """Capture the calls of a project's own imports."""
        store = self._job.store
        key = cache.project_key(self._job.plan, extension).digest
        with store.lock(f"extension-{key}"):
            # Another build may have captured them meanwhile.
            if known := known_calls(self._job.plan, self._job.store, extension):
                return known
            root = self._root()
            with (
                self._told(extension.name),
                self._slots.take(1),
                self._job.console.step(f"capture `{extension.name}`") as shown,
                store.renewed(store.extension(key)) as out,
            ):
                build_dir = out.with_name("space")  # beside the entry, which the project must not reach
                build_dir.mkdir()
                stage_sources(extension, store=store, runner=self._job.runner, folder=build_dir / "src")
                program = programs.capture_program(self._job.plan, extension)
                self._run(program, extension.name, build_dir, root, compiles=False)
                calls = cache.read_calls(build_dir, programs.CALLS, store)
                self._job.need_unchanged(root, extension.name)
                if not calls.calls:
                    raise extension_error(
                        ExtensionCode.NOTHING,
                        f"the lines of `capture` of the extension `{extension.name}` compile nothing",
                        "name the import, or the function, that reaches torch's `load()` or `load_inline()`",
                    )
                shown.show_note(", ".join(call.name for call in calls.calls))
                calls.save(out)
        return calls

    def _obtain(
        self, name: str, key: cache.Key, form: Form, work: Callable[[_Compile], cache.Compiled], *, wanted: int, build_key: Sha256
    ) -> cache.CachedExtension:  # fmt: skip
        """Return the entry from the store. `work` makes a missing one, with at most `wanted` compilers."""
        store, console, digest = self._job.store, self._job.console, key.entry
        folder = store.extension(digest)
        with store.lock(f"extension-{digest}"):
            compiled = cache.load_compiled(folder) if store.holds(folder, whole=True) else None
            if compiled is None and self._job.fetch_extension(folder, name):
                compiled = cache.load_compiled(folder)
            if compiled is not None:
                console.say(f"  {name}: in the store, compiled for `{compiled.recipe}`")
            else:
                root = self._root()
                with (
                    self._told(name),
                    self._slots.take(wanted) as jobs,
                    store.lock(f"space-{build_key}"),
                    console.step(f"compile `{name}`"),
                    store.renewed(folder) as out,
                    store.build_directory(build_key) as build_dir,
                ):
                    clear_leftovers(build_dir)
                    compiled = work(_Compile(build_dir=build_dir, jobs=jobs, out=out, root=root))
                    self._job.need_unchanged(root, name)
                    compiled.save(out)
        if extra := extra_targets(compiled.targets, self._gpus):
            console.say(
                f"  {name}: warning: it also holds code for {', '.join(extra)}, which is for no GPU of the recipe"
            )
        return cache.CachedExtension(compiled=compiled, folder=folder, form=form)

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Say at once why the extension fails in the block: others may compile for a long time yet."""
        try:
            yield
        except BuildError as error:
            self._job.console.say(f"  {name} failed: {error.message}")
            raise

    def _run(
        self, program: programs.Program, name: str, build_dir: Path, root: Root, *, compiles: bool = True, folder: str = ""
    ) -> None:  # fmt: skip
        """Run a program in the sandbox. Raises BuildError with the cause of a failure."""
        lines = LastLines()

        def read(line: str) -> None:
            lines.append(line)
            if compiled := _COMPILED.search(line):
                count = _COUNT.match(line)
                progress = f" ({count[1]} of {count[2]} commands)" if count else ""
                self._job.console.say(f"  {name}: {Path(compiled[1]).name}{progress}")
            if told := read_report(line, _STOPPED):
                message = (
                    f"`{told.line}` stops at {told.place}, which computes on a GPU: no later call is compiled"
                )
                self._job.console.say(f"  {name}: warning: {message}")

        try:
            with self._job.store.workspace() as work:
                argument = work / programs.SPEC
                save_text(argument, program.specification)
                command = program.command(root=root, build_dir=build_dir, argument=argument)
                self._job.runner.run(command, on_line=read)
        except SpaceError:
            raise
        except CommandError as failure:
            raise explain_failure(name, lines, failure, compiles=compiles, folder=folder) from failure


def _build_key(common: Sequence[tuple[str, str]], own: str, origin: str) -> Sha256:
    """Return the key of a build directory: the recipe, and everything that decides objects but sources, which ninja compares."""
    return sha256_text(json.dumps([*common, own, origin]))


def _pairs(files: Mapping[str, str], base: str) -> tuple[tuple[str, str], ...]:
    """Return path and sha256 of files that a compile read. Paths are relative to the call's base."""
    return tuple(sorted((cache.relative(path, base), digest) for path, digest in files.items()))


def _run_all(
    items: Sequence[Item], work: Callable[[Item], tuple[cache.CachedExtension, ...]]
) -> tuple[cache.CachedExtension, ...]:
    """Return the results in the order of the items. Waits for all, then raises one BuildError for all failures."""
    with ThreadPoolExecutor(len(items), thread_name_prefix="extension") as pool:
        futures = [pool.submit(work, item) for item in items]
    failures = [error for future in futures if isinstance(error := future.exception(), BuildError)]
    if failures:
        raise merge_failures(failures)
    return tuple(built for future in futures for built in future.result())
