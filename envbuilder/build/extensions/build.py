"""Makes or finds every extension of a plan: several at once, as many compilers as cores and memory allow.

What the store has under the same key is taken, whichever recipe it was compiled for. One that fails does not stop the
others: they go into the store, so that after a repair only the failed one is compiled.
"""

import contextlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, assert_never

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.extensions import commands
from envbuilder.build.extensions.cache import (
    BUILD_DIRECTORY,
    TREE,
    CachedExtension,
    Call,
    Captured,
    Compiled,
    Key,
    load_captured,
    load_compiled,
    make_key,
    ninja_timings,
    project_key,
    read_captured,
    read_facts,
    recipe_call,
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
from envbuilder.core.cache import Sha256, Store, publish, remove_tree, sha256_text
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
        """Wait for as many as wanted, all of them at most, and give them back at the end; yields how many it got."""
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
    """One plan's extensions; `root` unpacks what a compiler needs, and is asked only when something must be compiled."""

    plan: Plan
    step: ExtensionsStep
    store: Store
    runner: Runner
    console: Console
    jobs: int  # compilers at once
    root: Callable[[], Root]

    def build(self) -> tuple[CachedExtension, ...]:
        """Every extension, in the recipe's order; raises BuildError that names all that failed."""
        slots = Slots(self.jobs)
        return _run_all(self.step.extensions, lambda extension: self._build_one(extension, slots))

    def find(self) -> Iterator[ExtensionStatus]:
        """What the store has; of a project whose calls were never captured, the key of its capture."""
        for extension in self.step.extensions:
            if extension.form is Form.PROJECT:
                yield self._status(extension, extension.name, project_key(self.plan, extension))
            elif extension.form is Form.LOAD:
                yield self._status(
                    extension, extension.name, self._call_key(extension, *_recipe_call(extension))
                )
            elif captured := self._load_captured(extension):
                for call in captured.calls:
                    yield self._status(extension, call.name, self._call_key(extension, call, captured.files))
            else:
                yield self._status(extension, extension.name, project_key(self.plan, extension))

    def commands(self, *, root: Root, work: Path) -> Iterator[Command]:
        """What would be run for what the store lacks, with `work` for the compile folder."""
        lacking = {found.extension.name: found.extension for found in self.find() if found.compiled is None}
        for extension in lacking.values():
            yield self._command(extension, root=root, build_dir=work, jobs=self.jobs)

    def _status(self, extension: LockedExtension, name: str, key: Key) -> ExtensionStatus:
        compiled = load_compiled(self.store.extension(key.digest))
        return ExtensionStatus(extension=extension, name=name, key=key, compiled=compiled)

    def _build_one(self, extension: LockedExtension, slots: Slots) -> tuple[CachedExtension, ...]:
        match extension.form:
            case Form.PROJECT:
                return (self._build_project(extension, slots),)
            case Form.LOAD:
                return (self._compile_call(extension, *_recipe_call(extension), slots),)
            case Form.CAPTURE:
                captured = self._capture_calls(extension, slots)
                return _run_all(
                    captured.calls, lambda call: (self._compile_call(extension, call, captured.files, slots),)
                )
            case _:
                assert_never(extension.form)

    # One call of `load()` or `load_inline()`.

    def _call_key(self, extension: LockedExtension, call: Call, files: Sequence[tuple[str, Sha256]]) -> Key:
        return make_key(surroundings(self.plan, extension), call=call.to_json(), files=json.dumps(files))

    def _compile_call(
        self, extension: LockedExtension, call: Call, files: Sequence[tuple[str, Sha256]], slots: Slots
    ) -> CachedExtension:
        key = self._call_key(extension, call, files)
        common = surroundings(self.plan, extension)

        def work(build_dir: Path, jobs: int, out: Path, root: Root) -> Compiled:
            began = time.monotonic()
            stage_files({name: self.store.artefact(digest) for name, digest in files}, build_dir)
            for folder in ("src", "build"):  # a call of `load_inline()` may have no files at all
                (build_dir / folder).mkdir(exist_ok=True)
            command = commands.compile_command(
                call,
                extension,
                architectures=self.step.architectures,
                root=root,
                build_dir=build_dir,
                jobs=jobs,
            )
            self._run(command, call.name, build_dir, commands.compile_specification(call))
            library = build_dir / "build" / call.library
            targets = targets_of(library)
            if targets or (call.has_cuda and self.step.architectures):
                check_call(call.name, targets, self.step.architectures)
            if library.is_symlink():
                raise BuildError(f"the extension `{call.name}` was built as a link")
            shutil.copyfile(library, out / library.name)
            facts, read = read_facts(build_dir / commands.FACTS)
            sources, headers = _files_read(call, read, dict(files))
            return Compiled(
                name=call.name,
                key=key,
                facts=facts,
                call=call,
                targets=targets,
                sources=sources,
                headers=headers,
                size=library.stat().st_size,
                seconds=round(time.monotonic() - began, 1),
                timings=ninja_timings(build_dir),
                recipe=self.plan.name,
            )

        wanted = len(call.sources) or len(call.cpp_sources[:1]) + len(call.cuda_sources[:1])
        folder = self._obtain_entry(
            key,
            call.name,
            _Compile(work=work, wanted=wanted, build_dir=_build_dir_key(common, call.to_json())),
            slots,
        )
        return _cached(folder, extension.form)

    # A project with a setup.py or pyproject.toml.

    def _build_project(self, extension: LockedExtension, slots: Slots) -> CachedExtension:
        key = project_key(self.plan, extension)
        common = surroundings(self.plan, extension, reads_all=True)

        def work(build_dir: Path, jobs: int, out: Path, root: Root) -> Compiled:
            began = time.monotonic()
            stage_sources(extension, store=self.store, folder=build_dir / "src")
            command = self._command(extension, root=root, build_dir=build_dir, jobs=jobs)
            specification = commands.build_specification(extension)
            self._run(command, extension.name, build_dir, specification, folder=extension.path)
            shutil.copytree(build_dir / TREE, out / TREE, symlinks=True)
            targets = {path.name: targets_of(path) for path in libraries_of(out)}
            project = build_dir / commands.project_folder(extension).removeprefix(f"{BUILD_DIRECTORY}/")
            check_project(extension.name, targets, self.step.architectures, project)
            facts, _ = read_facts(build_dir / commands.FACTS)
            return Compiled(
                name=extension.name,
                key=key,
                facts=facts,
                call=None,
                targets=tuple(sorted({target for found in targets.values() for target in found})),
                sources=(),
                headers=(),
                size=sum(path.stat().st_size for path in libraries_of(out)),
                seconds=round(time.monotonic() - began, 1),
                timings=ninja_timings(build_dir),
                recipe=self.plan.name,
            )

        job = _Compile(
            work=work,
            wanted=self.jobs,
            build_dir=_build_dir_key(common, f"{extension.name} {extension.path}"),
        )
        return _cached(self._obtain_entry(key, extension.name, job, slots), extension.form)

    def _command(self, extension: LockedExtension, *, root: Root, build_dir: Path, jobs: int) -> Command:
        gpus = self.step.architectures
        match extension.form:
            case Form.LOAD:
                call = recipe_call(extension)
                return commands.compile_command(
                    call, extension, architectures=gpus, root=root, build_dir=build_dir, jobs=jobs
                )
            case Form.CAPTURE:
                return commands.capture_command(extension, architectures=gpus, root=root, build_dir=build_dir)
            case Form.PROJECT:
                return commands.build_command(
                    extension,
                    architectures=gpus,
                    root=root,
                    build_dir=build_dir,
                    jobs=jobs,
                    epoch=self.plan.epoch,
                )
            case _:
                assert_never(extension.form)

    # The calls that a project's own imports make.

    def _load_captured(self, extension: LockedExtension) -> Captured | None:
        return load_captured(self.store.extension(project_key(self.plan, extension).digest), self.store)

    def _capture_calls(self, extension: LockedExtension, slots: Slots) -> Captured:
        key = project_key(self.plan, extension).digest
        with self.store.lock(f"extension-{key}"):
            if captured := self._load_captured(extension):
                return captured
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
                captured = read_captured(build_dir, build_dir / commands.CALLS, self.store)
                if not captured.calls:
                    raise extension_error(
                        ExtensionCode.NOTHING,
                        f"the lines of `capture` of the extension `{extension.name}` compile nothing",
                        "name the import, or the function, that reaches torch's `load()` or `load_inline()`",
                    )
                shown.tell(", ".join(call.name for call in captured.calls))
                out = build_dir / "entry"
                out.mkdir()
                captured.save(out)
                self._publish(out, self.store.extension(key))
        return captured

    # The store.

    def _obtain_entry(self, key: Key, name: str, job: "_Compile", slots: Slots) -> Path:
        """The entry of this key; made by `job` unless the store has it."""
        folder = self.store.extension(key.digest)
        with self.store.lock(f"extension-{key.digest}"):
            if compiled := load_compiled(folder):
                self.console.say(f"  {name}: in the store, compiled for `{compiled.recipe}`")
                return folder
            root = self.root()
            with (
                slots.take(job.wanted) as jobs,
                self.store.lock(f"space-{job.build_dir}"),
                self.console.step(f"compile `{name}`"),
                self.store.workspace() as work,
            ):
                out = work / "entry"
                out.mkdir()
                job.work(self.store.space(job.build_dir), jobs, out, root).save(out)
                self._publish(out, folder)
        return folder

    def _publish(self, out: Path, folder: Path) -> None:
        if folder.exists():  # damaged, or of another version: `publish` would take it for finished
            remove_tree(folder)
        publish(out, folder)

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
        """Run a program of the sandbox; raises BuildError that says why it failed."""
        (build_dir / commands.SPEC).write_text(specification, encoding="utf-8")
        lines: list[str] = []

        def hear(line: str) -> None:
            lines.append(line)
            if compiled := _COMPILED.search(line):
                count = _COUNT.match(line)
                told = f" ({count[1]} of {count[2]} commands)" if count else ""
                self.console.say(f"  {name}: {Path(compiled[1]).name}{told}")

        try:
            self.runner.run(command, on_line=hear)
        except SpaceError:
            raise
        except CommandError as failure:
            raise explain_failure(name, lines, failure, compiles=compiles, folder=folder) from failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compile:
    """How an entry is made: in which compile folder, with how many compilers at best, and by what."""

    work: Callable[[Path, int, Path, Root], Compiled]
    wanted: int
    build_dir: Sha256


def _recipe_call(extension: LockedExtension) -> tuple[Call, tuple[tuple[str, Sha256], ...]]:
    """The call of a recipe's `sources`, and path below the compile folder → digest."""
    return recipe_call(extension), tuple((f"src/{file.path}", file.sha256) for file in extension.files)


def _build_dir_key(common: Sequence[tuple[str, str]], own: str) -> Sha256:
    """Of all that decides an object file but the sources' bytes: those are for ninja to see."""
    return sha256_text(json.dumps([*common, own]))


def _cached(folder: Path, form: Form) -> CachedExtension:
    compiled = load_compiled(folder)
    assert compiled is not None, f"{folder} was just written"
    return CachedExtension(compiled=compiled, folder=folder, form=form)


def _files_read(
    call: Call, read: Mapping[str, str], known: Mapping[str, str]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The sources and the headers of a compile, relative to the call's base."""
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
    """The results in the order of the items; raises BuildError for all that failed, when every one has ended."""
    with ThreadPoolExecutor(len(items), thread_name_prefix="extension") as pool:
        futures: list[Future[tuple[CachedExtension, ...]]] = [pool.submit(work, item) for item in items]
    failures = [error for future in futures if isinstance(error := future.exception(), BuildError)]
    if failures:
        raise merge_failures(failures)
    return tuple(kept for future in futures for kept in future.result())
