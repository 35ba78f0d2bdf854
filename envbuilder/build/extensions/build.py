"""Compile the extensions of a plan, or take them from the store. Several compile at once.

An entry of the store serves any recipe with the same key. An extension that fails does not stop the others: they go into the store,
and after a repair only the failed one is compiled.
"""

import contextlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar, assert_never

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.extensions import commands
from envbuilder.build.extensions.cache import (
    BUILD_DIRECTORY,
    TREE,
    CachedExtension,
    Call,
    Calls,
    Compiled,
    Key,
    load_calls,
    load_compiled,
    make_key,
    ninja_timings,
    project_key,
    read_calls,
    read_facts,
    recipe_calls,
    relative,
    surroundings,
)
from envbuilder.build.extensions.check_targets import (
    ExtensionCode,
    check_call,
    check_project,
    extension_error,
    libraries_of,
    targets_of,
)
from envbuilder.build.extensions.compiler_errors import explain_failure, merge_failures
from envbuilder.build.extensions.stage_sources import stage_files, stage_sources
from envbuilder.core.cache import Sha256, Store, commit_path, remove_tree, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, CommandError, SpaceError
from envbuilder.core.process import Command, Runner
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.model import ExtensionsStep, Plan
from envbuilder.recipe.extension import SOURCE_SUFFIXES, Form

NVCC_MEMORY: Final = 3 << 30  # bytes that one compile of a file with torch's headers may need
Item = TypeVar("Item")
_COMPILED: Final = re.compile(rf"\s-c\s+\"?(\S+(?:{'|'.join(map(re.escape, SOURCE_SUFFIXES))}))\b")
_COUNT: Final = re.compile(r"^\[(\d+)/(\d+)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionStatus:
    """What the store has for one key of an extension."""

    extension: LockedExtension
    name: str
    key: Key
    compiled: Compiled | None


class Slots:
    """Limit the number of compiler processes across all extensions."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted: int) -> Iterator[int]:
        """Wait for as many slots as wanted, but all at most. Yields their number, and frees them at the end."""
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
class ExtensionBuilder:
    """Build one plan's extensions. `root` unpacks what a compiler needs; it is called only when something must be compiled."""

    plan: Plan
    step: ExtensionsStep
    store: Store
    runner: Runner
    console: Console
    jobs: int  # compilers at once
    root: Callable[[], Root]

    def build(self) -> tuple[CachedExtension, ...]:
        """Return every extension, in the recipe's order. Raises BuildError that names all that failed."""
        slots = Slots(self.jobs)
        return _run_all(self.step.extensions, lambda extension: self._build_one(extension, slots))

    def find(self) -> Iterator[ExtensionStatus]:
        """Report what the store has. A project whose calls were never captured has the key of its capture."""
        for extension in self.step.extensions:
            calls = self._known_calls(extension)
            if calls is None:
                yield self._status(extension, extension.name, project_key(self.plan, extension))
            else:
                for call in calls.calls:
                    yield self._status(extension, call.name, self._call_key(extension, call, calls))

    def commands(self, *, root: Root, work: Path) -> Iterator[Command]:
        """Return the commands for what the store lacks. `work` stands for the build directory."""
        missing = {found.extension.name: found.extension for found in self.find() if found.compiled is None}
        for extension in missing.values():
            yield self._command(extension, root=root, build_dir=work, jobs=self.jobs)

    def _status(self, extension: LockedExtension, name: str, key: Key) -> ExtensionStatus:
        compiled = load_compiled(self.store.extension(key.digest))
        return ExtensionStatus(extension=extension, name=name, key=key, compiled=compiled)

    def _known_calls(self, extension: LockedExtension) -> Calls | None:
        """Return the calls that an extension makes, None for a project's own build and before a capture."""
        match extension.form:
            case Form.PROJECT:
                return None
            case Form.LOAD:
                return recipe_calls(extension)
            case Form.CAPTURE:
                return load_calls(self.store.extension(project_key(self.plan, extension).digest), self.store)
            case _:
                assert_never(extension.form)

    def _build_one(self, extension: LockedExtension, slots: Slots) -> tuple[CachedExtension, ...]:
        match extension.form:
            case Form.PROJECT:
                return (self._build_project(extension, slots),)
            case Form.LOAD:
                calls = recipe_calls(extension)
            case Form.CAPTURE:
                calls = self._capture_calls(extension, slots)
            case _:
                assert_never(extension.form)
        return _run_all(calls.calls, lambda call: (self._compile_call(extension, call, calls, slots),))

    # One call of `load()` or `load_inline()`.

    def _call_key(self, extension: LockedExtension, call: Call, calls: Calls) -> Key:
        common = surroundings(self.plan, extension)
        return make_key(common, call=call.to_json(), files=json.dumps(calls.files))

    def _compile_call(
        self, extension: LockedExtension, call: Call, calls: Calls, slots: Slots
    ) -> CachedExtension:
        key = self._call_key(extension, call, calls)

        def work(run: _Run) -> Compiled:
            stage_files({name: self.store.artefact(digest) for name, digest in calls.files}, run.build_dir)
            for folder in ("src", "build"):  # a call of `load_inline()` may have no files at all
                (run.build_dir / folder).mkdir(exist_ok=True)
            command = commands.compile_command(
                call, extension, architectures=self.step.architectures,
                root=run.root, build_dir=run.build_dir, jobs=run.jobs,
            )  # fmt: skip
            self._run(command, call.name, run.build_dir, commands.compile_specification(call))
            library = run.build_dir / "build" / call.library
            targets = targets_of(library)
            if targets or (call.has_cuda and self.step.architectures):
                check_call(call.name, targets, self.step.architectures)
            if library.is_symlink():
                raise BuildError(f"the extension `{call.name}` was built as a link")
            shutil.copyfile(library, run.out / library.name)
            facts, read = read_facts(run.build_dir / commands.FACTS)
            sources, headers = _files_read(call, read, dict(calls.files))
            return Compiled(
                name=call.name, key=key, facts=facts, call=call, targets=targets, sources=sources, headers=headers,
                size=library.stat().st_size, seconds=run.seconds(), timings=ninja_timings(run.build_dir), recipe=self.plan.name,
            )  # fmt: skip

        wanted = len(call.sources) or len(call.cpp_sources[:1]) + len(call.cuda_sources[:1])
        build_key = _build_key(surroundings(self.plan, extension), call.to_json())
        return self._obtain(
            extension, key, _Job(name=call.name, work=work, wanted=wanted, build_key=build_key), slots
        )

    # A project with a setup.py or pyproject.toml.

    def _build_project(self, extension: LockedExtension, slots: Slots) -> CachedExtension:
        key = project_key(self.plan, extension)

        def work(run: _Run) -> Compiled:
            stage_sources(extension, store=self.store, folder=run.build_dir / "src")
            command = self._command(extension, root=run.root, build_dir=run.build_dir, jobs=run.jobs)
            specification = commands.build_specification(extension)
            self._run(command, extension.name, run.build_dir, specification, folder=extension.path)
            shutil.copytree(run.build_dir / TREE, run.out / TREE, symlinks=True)
            libraries = libraries_of(run.out)
            targets = {path.name: targets_of(path) for path in libraries}
            project = run.build_dir / commands.project_folder(extension).removeprefix(f"{BUILD_DIRECTORY}/")
            check_project(extension.name, targets, self.step.architectures, project)
            facts, _ = read_facts(run.build_dir / commands.FACTS)
            return Compiled(
                name=extension.name, key=key, facts=facts, call=None,
                targets=tuple(sorted({target for found in targets.values() for target in found})),
                sources=(), headers=(), size=sum(path.stat().st_size for path in libraries),
                seconds=run.seconds(), timings=ninja_timings(run.build_dir), recipe=self.plan.name,
            )  # fmt: skip

        common = surroundings(self.plan, extension, reads_all=True)
        build_key = _build_key(common, f"{extension.name} {extension.path}")
        return self._obtain(
            extension, key, _Job(name=extension.name, work=work, wanted=self.jobs, build_key=build_key), slots
        )

    def _command(self, extension: LockedExtension, *, root: Root, build_dir: Path, jobs: int) -> Command:
        gpus = self.step.architectures
        match extension.form:
            case Form.LOAD:
                (call,) = recipe_calls(extension).calls
                return commands.compile_command(
                    call, extension, architectures=gpus, root=root, build_dir=build_dir, jobs=jobs
                )
            case Form.CAPTURE:
                return commands.capture_command(extension, architectures=gpus, root=root, build_dir=build_dir)
            case Form.PROJECT:
                return commands.build_command(
                    extension, architectures=gpus, root=root, build_dir=build_dir, jobs=jobs, epoch=self.plan.epoch
                )  # fmt: skip
            case _:
                assert_never(extension.form)

    # The calls that a project's own imports make.

    def _capture_calls(self, extension: LockedExtension, slots: Slots) -> Calls:
        key = project_key(self.plan, extension).digest
        with self.store.lock(f"extension-{key}"):
            if known := self._known_calls(extension):
                return known
            root = self.root()
            with (
                slots.take(1),
                self.console.step(f"capture `{extension.name}`") as shown,
                self.store.workspace() as build_dir,
            ):
                stage_sources(extension, store=self.store, folder=build_dir / "src")
                command = self._command(extension, root=root, build_dir=build_dir, jobs=1)
                specification = commands.capture_specification(extension)
                self._run(command, extension.name, build_dir, specification, compiles=False)
                calls = read_calls(build_dir, build_dir / commands.CALLS, self.store)
                if not calls.calls:
                    raise extension_error(
                        ExtensionCode.NOTHING,
                        f"the lines of `capture` of the extension `{extension.name}` compile nothing",
                        "name the import, or the function, that reaches torch's `load()` or `load_inline()`",
                    )
                shown.tell(", ".join(call.name for call in calls.calls))
                out = build_dir / "entry"
                out.mkdir()
                calls.save(out)
                self._publish(out, self.store.extension(key))
        return calls

    # The store.

    def _obtain(self, extension: LockedExtension, key: Key, job: "_Job", slots: Slots) -> CachedExtension:
        """Return the entry of this key. Runs the job unless the store has it."""
        folder = self.store.extension(key.digest)
        with self.store.lock(f"extension-{key.digest}"):
            compiled = load_compiled(folder)
            if compiled is not None:
                self.console.say(f"  {job.name}: in the store, compiled for `{compiled.recipe}`")
                return CachedExtension(compiled=compiled, folder=folder, form=extension.form)
            root = self.root()
            with (
                slots.take(job.wanted) as jobs,
                self.store.lock(f"space-{job.build_key}"),
                self.console.step(f"compile `{job.name}`"),
                self.store.workspace() as work,
            ):
                out = work / "entry"
                out.mkdir()
                compiled = job.work(
                    _Run(build_dir=self.store.space(job.build_key), jobs=jobs, out=out, root=root)
                )
                compiled.save(out)
                self._publish(out, folder)
        return CachedExtension(compiled=compiled, folder=folder, form=extension.form)

    def _publish(self, out: Path, folder: Path) -> None:
        if folder.exists():  # damaged, or of another version: `commit_path` would take it for finished
            remove_tree(folder)
        commit_path(out, folder)

    def _run(
        self,
        command: Command,
        name: str,
        build_dir: Path,
        specification: str,
        *,
        compiles: bool = True,
        folder: str = "",
    ) -> None:
        """Run a program of the sandbox. Raises BuildError with the cause of a failure."""
        (build_dir / commands.SPEC).write_text(specification, encoding="utf-8")
        lines: list[str] = []

        def read(line: str) -> None:
            lines.append(line)
            if compiled := _COMPILED.search(line):
                count = _COUNT.match(line)
                progress = f" ({count[1]} of {count[2]} commands)" if count else ""
                self.console.say(f"  {name}: {Path(compiled[1]).name}{progress}")

        try:
            self.runner.run(command, on_line=read)
        except SpaceError:
            raise
        except CommandError as failure:
            raise explain_failure(name, lines, failure, compiles=compiles, folder=folder) from failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One compile: where, with how many compilers, in which root. `out` is the folder of the new entry."""

    build_dir: Path
    jobs: int
    out: Path
    root: Root
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """How an entry is made: its name, the work, the number of compilers wanted, and the key of its build directory."""

    name: str
    work: Callable[[_Run], Compiled]
    wanted: int
    build_key: Sha256


def _build_key(common: Sequence[tuple[str, str]], own: str) -> Sha256:
    """Return the key of a build directory: all that decides an object file but the sources' bytes, which ninja compares."""
    return sha256_text(json.dumps([*common, own]))


def _files_read(
    call: Call, read: Mapping[str, str], known: Mapping[str, str]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the sources and the headers that a compile read, relative to the call's base."""
    sources = {
        source: known.get(source.removeprefix(f"{BUILD_DIRECTORY}/")) or read.get(source, "")
        for source in call.sources
    }
    headers = {path: digest for path, digest in read.items() if path not in sources}
    return _pairs(sources, call.base), _pairs(headers, call.base)


def _pairs(files: Mapping[str, str], base: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((relative(path, base), digest) for path, digest in files.items()))


def _run_all(
    items: Sequence[Item], work: Callable[[Item], tuple[CachedExtension, ...]]
) -> tuple[CachedExtension, ...]:
    """Return the results in the order of the items. Raises one BuildError for all that failed, once every one has ended."""
    with ThreadPoolExecutor(len(items), thread_name_prefix="extension") as pool:
        futures: list[Future[tuple[CachedExtension, ...]]] = [pool.submit(work, item) for item in items]
    failures = [error for future in futures if isinstance(error := future.exception(), BuildError)]
    if failures:
        raise merge_failures(failures)
    return tuple(built for future in futures for built in future.result())
