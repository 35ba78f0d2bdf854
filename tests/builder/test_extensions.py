"""The extensions layer: what decides a compiled extension, how it is made or found, and what the image has of it."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.artifacts.outputs import Outputs
from envbuilder.builder import pipeline
from envbuilder.builder.extensions import compile as compile_module
from envbuilder.builder.extensions.compile import ExtensionBuilder
from envbuilder.builder.extensions.compiled import (
    CachedExtension,
    cells,
    describe,
    drop_unfinished,
    find_extensions,
    find_twins,
    known_memory,
    origin,
)
from envbuilder.builder.extensions.compiler_errors import (
    check_call,
    check_project,
    explain_failure,
    warm_error,
)
from envbuilder.builder.job import BuildJob, SharedStores
from envbuilder.builder.recipe_tests import (
    Import,
    explain_import,
    list_imports,
    passed_tests,
)
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot
from envbuilder.builder.slots import NVCC_MEMORY, Slots
from envbuilder.builder.upkeep import mark_used, share
from envbuilder.compat.tables.cuda import load_switches
from envbuilder.compat.tables.toolkit import load_toolkits, toolkit_of
from envbuilder.core.cache import Store, sha256_file, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, CommandError, CompileError
from envbuilder.core.process import Command
from envbuilder.core.system import Limits
from envbuilder.diagnose.catalogue import load_messages
from envbuilder.layers.layer import load_layer, read_manifest
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.extension import LoadCall, recipe_calls
from envbuilder.plan.extension import call_key as extension_key
from envbuilder.plan.model import CudaStep, ExtensionsStep, OsStep, Plan, PythonStep, RuntimeStep, WheelStep
from envbuilder.recipe.load import load
from tests.support.damage import flip
from tests.support.elves import gpu_library
from tests.support.locks import make_parts
from tests.support.plans import SOURCES, locked_files, make_extension
from tests.support.registries import registry
from tests.support.runner import FakeRunner
from tests.support.step_programs import load_program
from tests.support.stores import Listening, open_shared, write_keys

ROOT = SandboxRoot(
    os=LayerFolder(place=Path("/store/os")),
    environment=(LayerFolder(place=Path("/store/python")),),
    cuda=LayerFolder(place=Path("/store/cuda")),
    cuda_version="12.4",
)
FACTS = {"torch": "2.6.0+cu124", "cuda": "12.4", "cxx11_abi": False, "python": "cpython-311"}


def artifact(name: str, version: str = "1", *, kind: str = "deb") -> Artifact:
    return Artifact(
        kind=kind,
        name=name,
        version=version,
        sha256=sha256_text(f"{name} {version}"),
        size=1,
        source="s",
        path=name,
    )


EXTENSION = make_extension()
PROJECT = make_extension(
    {"third/dw/setup.py": "# setup\n", "third/dw/csrc/dw.cu": "// gpu\n"},
    name="dw", sources=(), include=(), cflags=(), cuda_cflags=(), path="third/dw",
)  # fmt: skip
CAPTURE = make_extension(
    {"net/ops/__init__.py": "load(...)\n", "net/ops/scale.cpp": "// cpp\n", "net/ops/scale.h": "// h\n"},
    name="ops", sources=(), include=(), cflags=(), cuda_cflags=(), path="net", capture=("import ops",),
)  # fmt: skip
DEBS = tuple(artifact(name) for name in ("gcc-12", "libc6-dev", "git", "libeigen3-dev"))
WHEELS = tuple(artifact(name, kind="wheel") for name in ("torch", "nvidia-cublas-cu12", "numpy"))


def make_plan(*extensions: LockedExtension, **change: object) -> Plan:
    """A plan whose parts can be changed one by one: `debs`, `wheels`, `gpus`, `cuda`, `python`, `gcc`, `platform`, `epoch`, `name`."""
    given: dict[str, object] = {
        "debs": DEBS,
        "wheels": WHEELS,
        "gpus": ("8.0",),
        "cuda": "12.4",
        "python": "3.11",
        "gcc": "12",
    }
    given |= change
    parts = make_parts(given["cuda"])
    (_, row) = toolkit_of(given["cuda"], parts, load_toolkits().rows)
    toolkit = CudaStep(toolkit=row, artifacts=given.get("parts", parts))
    steps = (
        OsStep(suite="bookworm", gcc=given["gcc"], artifacts=given["debs"]),
        PythonStep(python=given["python"], artifacts=given["wheels"]),
        toolkit,
        ExtensionsStep(architectures=given["gpus"], extensions=extensions or (EXTENSION,)),
        RuntimeStep(env=(), labels=(), files=()),
    )
    return Plan(
        name=given.get("name", "x"),
        platform=given.get("platform", "linux/amd64"),
        epoch=given.get("epoch", 1_700_000_000),
        steps=steps,
    )


class Sandbox(FakeRunner):
    """Stands for the sandbox and what compiles in it. It leaves what the real programs leave in OUT."""

    def __init__(
        self, *, targets: tuple[str, ...] = ("sm_80",), says: str = "", fails: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.targets, self.says, self.fails = targets, says, fails
        self.calls: list[dict[str, object]] = []
        self.memory = 0  # bytes of the largest process
        self.jobs: list[int] = []

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        self.commands.append(command)
        mounts = mounts_of(command)
        step, out = mounts["/step"], mounts["/out"]
        spec = json.loads((step / "spec.json").read_text())
        self.jobs.append(int((step / "jobs").read_text()))
        if self.memory:
            (out / "memory").write_text(str(self.memory))
        for line in self.says.splitlines():
            if on_line:
                on_line(line)
        if any(name in command.why for name in self.fails):
            raise CommandError(f"could not {command.why}: `bwrap` ended with exit code 1")
        if spec.get("only"):
            shutil.copytree(step / "inputs/files", out / "captured/src", ignore=lambda *_: {"__init__.py"})
            (out / "captured/calls.json").write_text(json.dumps(self.calls))
            (out / "captured/places.json").write_text(json.dumps(["net/ops.py:3"] * len(self.calls)))
        else:
            self.compile(spec, out / "0", mounts)
        return ""

    def compile(self, spec: dict[str, Any], out: Path, mounts: dict[str, Path]) -> None:
        captured = mounts.get("/step/inputs/captured")
        sources = captured / "src" if captured else mounts["/step"] / "inputs/files"
        shutil.copytree(sources, mounts["/space"] / "src", dirs_exist_ok=True)
        if call := spec.get("call"):
            name = call["name"] if call["is_standalone"] else f"{call['name']}.so"
            file = f"/opt/envbuilder/extensions/{call['name']}-{spec['key'][:16]}/{name}"
            read = {
                Path(one).name: sha256_file(mounts["/space"] / one.removeprefix("/space/"))
                for one in call["sources"]
            }
            kinds = {kind: call[kind] for kind in ("is_python_module", "is_standalone")}
            entry = {
                "name": call["name"],
                "function": call["function"],
                "file": file,
                "sources": read,
                "headers": {},
                **kinds,
            }
        else:
            file = "/opt/env/lib/python3.11/site-packages/dw/core.so"
            entry = {"name": spec["name"], "function": "package", "libraries": [file]}
        library = out / f"tree{file}"
        library.parent.mkdir(parents=True)
        library.write_bytes(gpu_library(*self.targets))
        library.chmod(0o755)
        has_cuda = not call or bool(call["with_cuda"])
        try:
            load_program("extension").finish(
                spec, str(out), spec["key"], entry, FACTS, [str(library)], has_cuda
            )
        except SystemExit as error:
            raise CommandError(f"could not compile\n  {error}") from error


def mounts_of(command: Command) -> dict[str, Path]:
    """Return target → source of the mounts of a command."""
    words = command.argv
    return {
        words[at + 2]: Path(words[at + 1]) for at, word in enumerate(words) if word in ("--bind", "--ro-bind")
    }


def install(built: Sequence[CachedExtension], step: ExtensionsStep, plan: Plan, tree: Path) -> None:
    """Join the extensions by the real program, outside of a sandbox."""
    work = tree.with_name(f"{tree.name}-step")
    spec = step.made_by(plan).spec
    for number, extension in enumerate(built):
        (work / extension.part).mkdir(parents=True, exist_ok=True)
        (work / extension.part / str(number)).symlink_to(extension.folder)
    (work / "spec.json").write_text(spec)
    tree.mkdir(exist_ok=True)
    try:
        load_program("extensions").main(str(work / "spec.json"), str(work), str(tree))
    except SystemExit as error:
        raise BuildError(str(error)) from error


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def stocked(store: Store, tmp_path: Path) -> Store:
    """A store that holds what the extensions are made of."""
    for extension in (EXTENSION, PROJECT, CAPTURE):
        stock(store, tmp_path, extension)
    return store


def stock(store: Store, tmp_path: Path, extension: LockedExtension) -> None:
    texts = [*SOURCES.values(), "# setup\n", "load(...)\n", "// cpp\n", "// h\n", "// edited\n"]
    known = {sha256_text(text): text for text in texts}
    for file in extension.files:
        (tmp_path / "new").write_text(known[file.sha256])
        store.add_artifact(file.sha256, tmp_path / "new")


def make_job(store: Store, plan: Plan, runner: FakeRunner) -> BuildJob:
    limits = Limits(threads=2, memory=64 << 30, root=True)
    return BuildJob(
        plan=plan, store=store, runner=runner, console=Console(quiet=True), limits=limits
    )  # fmt: skip


def make_builder(store: Store, plan: Plan, runner: FakeRunner) -> ExtensionBuilder:
    return ExtensionBuilder(make_job(store, plan, runner), lambda _: ROOT)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


# What decides the bytes


def call_key(plan: Plan, extension: LockedExtension = EXTENSION) -> str:
    calls = recipe_calls(extension)
    return extension_key(plan.ground, extension, calls.calls[0], calls).digest


@pytest.mark.parametrize(
    "change",
    [
        {"wheels": (artifact("torch", "2", kind="wheel"), *WHEELS[1:])},
        {"wheels": (WHEELS[0], artifact("nvidia-cublas-cu12", "2", kind="wheel"), WHEELS[2])},
        {"python": "3.9"},
        {"cuda": "11.8"},
        {"parts": (artifact("nvidia-cuda-toolkit"),)},
        {"gpus": ("8.0", "9.0")},
        {"gpus": ()},
        {"gcc": "11"},
        {"debs": (artifact("gcc-12", "2"), *DEBS[1:])},
        {"debs": (*DEBS[:1], artifact("libc6-dev", "2"), *DEBS[2:])},
        {"debs": (*DEBS[:3], artifact("libeigen3-dev", "2"))},
        {"platform": "linux/arm64"},
    ],
    ids=" ".join,
)
def test_each_thing_that_an_extension_is_compiled_with_decides_its_key(change):
    assert call_key(make_plan(**change)) != call_key(make_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another-recipe"},
        {"epoch": 1},
        {"debs": (*DEBS[:2], artifact("git", "2"), DEBS[3])},
        {"debs": (*DEBS, artifact("vim"))},
        {"wheels": (*WHEELS[:2], artifact("numpy", "2", kind="wheel"))},
    ],
    ids=" ".join,
)
def test_what_no_compile_reads_does_not_decide_its_key(change):
    assert call_key(make_plan(**change)) == call_key(make_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"sources": ("csrc/fused.cu", "csrc/fused.cpp")},
        {"include": ()},
        {"cflags": ("-O2",)},
        {"cuda_cflags": ()},
        {"env": (("CPATH", "/x"),)},
        {"files": locked_files(SOURCES | {"csrc/fused.cu": "// edited\n"})},
        {"files": locked_files(SOURCES | {"csrc/include/fused.h": "// edited\n"})},
        {"files": locked_files(SOURCES | {"csrc/include/new.h": "\n"})},
    ],
    ids=" ".join,
)
def test_each_thing_that_a_recipe_says_of_an_extension_decides_its_key(change):
    assert call_key(make_plan(), dataclasses.replace(EXTENSION, **change)) != call_key(make_plan())


def test_a_flag_that_names_the_environment_makes_every_wheel_decide():
    extension = make_extension(cflags=("-I/opt/env/lib/python3.11/site-packages/numpy/_core/include",))
    other = make_plan(wheels=(*WHEELS[:2], artifact("numpy", "2", kind="wheel")))
    assert call_key(other, extension) != call_key(make_plan(), extension)


def test_a_project_stands_on_every_package():
    for change in ({"debs": (*DEBS, artifact("cmake"))}, {"wheels": WHEELS[:2]}, {"epoch": 1}):
        keys = {
            plan.ground.surroundings(PROJECT, reads_all=True) for plan in (make_plan(), make_plan(**change))
        }
        assert len(keys) == 2


# Making and finding


def test_a_compiled_extension_is_found_for_any_recipe(stocked):
    runner = Sandbox()
    (made,) = make_builder(stocked, make_plan(name="first"), runner).build()
    (found,) = make_builder(stocked, make_plan(name="second"), runner).build()
    assert (len(runner.commands), found.folder, found.compiled.recipe) == (1, made.folder, "first")


def test_a_changed_source_is_compiled_in_the_same_folder(stocked, tmp_path):
    edited = make_extension(SOURCES | {"csrc/fused.cu": "// edited\n"})
    stock(stocked, tmp_path, edited)
    runner = Sandbox()
    make_builder(stocked, make_plan(), runner).build()
    make_builder(stocked, make_plan(edited), runner).build()
    spaces = {mounts_of(command)["/space"] for command in runner.commands}
    assert (len(runner.commands), len(spaces)) == (2, 1)


def test_another_recipe_finds_no_object_that_this_ones_code_left(stocked, tmp_path):
    edited = make_extension(SOURCES | {"csrc/fused.cu": "// edited\n"})
    stock(stocked, tmp_path, edited)
    runner = Sandbox()
    for extension, recipe in ((EXTENSION, "/one/x.yaml"), (edited, "/other/x.yaml")):
        job = dataclasses.replace(make_job(stocked, make_plan(extension), runner), origin=recipe)
        ExtensionBuilder(job, lambda _: ROOT).build()
    spaces = {mounts_of(command)["/space"] for command in runner.commands}
    assert len(spaces) == 2


def test_the_objects_of_an_earlier_compile_are_left_for_ninja(stocked, tmp_path):
    edited = make_extension(SOURCES | {"csrc/fused.cu": "// edited\n"})
    stock(stocked, tmp_path, edited)
    runner = Sandbox()
    make_builder(stocked, make_plan(), runner).build()
    space = mounts_of(runner.commands[0])["/space"]
    with stocked.build_directory(space.name):
        (space / "build").mkdir()
        (space / "build/fused.o").write_text("object")
    make_builder(stocked, make_plan(edited), runner).build()
    assert (space / "build/fused.o").read_text() == "object"


def test_the_root_is_not_unpacked_when_the_store_has_everything(stocked):
    plan = make_plan()
    make_builder(stocked, plan, Sandbox()).build()
    job = make_job(stocked, plan, Sandbox())
    assert len(ExtensionBuilder(job, lambda _: pytest.fail("unpacked for nothing")).build()) == 1


def test_a_build_notes_when_it_used_an_entry(stocked):
    job = make_job(stocked, make_plan(), Sandbox())
    (made,) = ExtensionBuilder(job, lambda _: ROOT).build()
    os.utime(made.folder, (0, 0))
    mark_used(job)
    assert made.folder.stat().st_mtime > time.time() - 3600


@pytest.mark.programs
def test_a_second_machine_takes_extensions_from_the_store_and_compiles_none(stocked, tmp_path):
    plan, key, machines = make_plan(EXTENSION, PROJECT, CAPTURE), write_keys(tmp_path), []
    calls = [dataclasses.asdict(LoadCall(function="load", name="scale", cpp_sources=("int f();",)))]
    with registry(tmp_path / "registry") as real:
        for number in (1, 2):
            cache, runner = stocked if number == 1 else Store(tmp_path / "second"), Sandbox()
            for extension in plan.extensions:
                stock(cache, tmp_path, extension)
            runner.calls = calls
            job = make_job(cache, plan, runner)
            shared = open_shared(f"{real.host}/team/extensions", key, cache, job.console)
            job = dataclasses.replace(job, shared=SharedStores(extensions=shared))
            built = ExtensionBuilder(job, lambda _: ROOT).build()
            share(job)
            tree = tmp_path / f"tree{number}"
            install(built, plan.steps[3], plan, tree)
            files = {one.relative_to(tree): one.read_bytes() for one in tree.rglob("*") if one.is_file()}
            machines.append(([one.why for one in runner.commands], files))
    (first, there), (second, same) = machines
    assert len(first) == 4
    assert second == ["run the imports of the extension `ops`"], "a capture starts no compiler"
    assert there == same


DAMAGES = [
    (flip, "differs"),
    (lambda path: os.truncate(path, 0), "differs"),
    (lambda path: os.truncate(path, 8), "differs"),
    (Path.unlink, "is gone"),
]


@pytest.mark.parametrize(("do", "how"), DAMAGES)
@pytest.mark.parametrize("name", ["fused.so", "compiled.json"])
def test_a_damaged_entry_is_named_and_made_again(stocked, caplog, name, do, how):
    runner = Sandbox()
    (made,) = make_builder(stocked, make_plan(), runner).build()
    (file,), (library,) = made.folder.rglob(name), made.folder.rglob("fused.so")
    before = library.read_bytes()
    do(file)
    make_builder(stocked, make_plan(), runner).build()
    assert (len(runner.commands), library.read_bytes()) == (2, before)
    inside = file.relative_to(made.folder)
    assert f"cache: extensions/{made.folder.name} is damaged: `{inside}` {how}; made again" in caplog.messages


@pytest.mark.parametrize(("do", "how"), DAMAGES)
def test_a_damaged_file_of_a_projects_build_is_made_again(stocked, caplog, do, how):
    runner = Sandbox()
    (made,) = make_builder(stocked, make_plan(PROJECT), runner).build()
    (library,) = made.folder.rglob("*.so")
    before = library.read_bytes()
    do(library)
    make_builder(stocked, make_plan(PROJECT), runner).build()
    assert (len(runner.commands), library.read_bytes()) == (2, before)
    assert f"`{library.relative_to(made.folder)}` {how}" in caplog.text


def test_a_file_that_is_added_to_a_projects_build_does_not_enter_the_image(stocked):
    runner = Sandbox()
    (made,) = make_builder(stocked, make_plan(PROJECT), runner).build()
    stranger = made.folder / "tree/opt/env/lib/python3.11/site-packages/evil.pth"
    stranger.write_text("import os")
    make_builder(stocked, make_plan(PROJECT), runner).build()
    assert (len(runner.commands), stranger.exists()) == (2, False)


def captured(source: str) -> dict[str, object]:
    """A call that a capture notes."""
    return dataclasses.asdict(LoadCall(function="load", name="scale", sources=(f"/space/src/{source}",)))


@pytest.mark.parametrize(("do", "how"), DAMAGES)
@pytest.mark.parametrize("name", ["captured.json", "captured/src/net/ops/scale.cpp"])
def test_damaged_calls_or_sources_of_a_capture_are_captured_again(stocked, caplog, name, do, how):
    runner = Sandbox()
    runner.calls = [captured("net/ops/scale.cpp")]
    make_builder(stocked, make_plan(CAPTURE), runner).build()
    (file,) = (stocked.root / "extensions").glob(f"*/{name}")
    before = file.read_bytes()
    do(file)
    make_builder(Store(stocked.root), make_plan(CAPTURE), runner).build()
    assert (len(runner.commands), file.read_bytes()) == (3, before)
    assert f"`{name}` {how}" in caplog.text


def test_a_damaged_entry_is_not_shared_with_other_machines(stocked):
    class Shared:
        def __init__(self) -> None:
            self.names: list[str] = []

        def put(self, _key: str, _folder: Path, name: str, *, packed: bool) -> None:
            self.names.append(name)

    shared = Shared()
    job = make_job(stocked, make_plan(), Sandbox())
    (made,) = ExtensionBuilder(job, lambda _: ROOT).build()
    job = dataclasses.replace(job, shared=SharedStores(extensions=shared))
    share(job)
    (library,) = made.folder.rglob("fused.so")
    flip(library)
    share(job)
    assert shared.names == ["`fused`"]


def test_one_that_fails_does_not_stop_the_others(stocked):
    second = make_extension(name="second")
    runner = Sandbox(fails=("`fused`",), says="csrc/fused.cu(3): error: expected a ';'")
    with pytest.raises(BuildError, match="`fused` does not compile"):
        make_builder(stocked, make_plan(EXTENSION, second), runner).build()
    found = find_extensions(make_plan(EXTENSION, second), stocked)
    assert [one.compiled is not None for one in found] == [False, True]


def test_every_failure_is_reported_at_the_end(stocked):
    second = make_extension(name="second")
    with pytest.raises(BuildError, match="2 extensions do not compile") as caught:
        make_builder(
            stocked, make_plan(EXTENSION, second), Sandbox(fails=("fused", "second"), says="x: error: y")
        ).build()
    assert [finding.code for finding in caught.value.findings] == ["EB629", "EB629"]


def test_a_failure_is_told_when_it_happens_and_what_compiles_meanwhile_is_kept(stocked):
    first, second = (make_extension(name=name, sources=("csrc/fused.cu",)) for name in ("fused", "second"))
    told = threading.Event()

    class Console(Listening):
        def say(self, text: str) -> None:
            super().say(text)
            if "failed" in text:
                told.set()

    class Slow(Sandbox):
        def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
            if "second" in command.why:
                assert told.wait(60), "it ends only after the failure of the first was said"
            return super().run(command, on_line=on_line)

    plan, console = make_plan(first, second), Console()
    runner = Slow(fails=("`fused`",), says="csrc/fused.cu(3): error: expected a ';'")
    job = dataclasses.replace(make_job(stocked, plan, runner), console=console)
    with pytest.raises(BuildError, match="`fused` does not compile"):
        ExtensionBuilder(job, lambda _: ROOT).build()
    (line,) = [line for line in console.said if "failed" in line]
    assert line.startswith("  fused failed: the extension `fused` does not compile")
    assert "csrc/fused.cu(3): error" in line
    assert [one.compiled is not None for one in find_extensions(plan, stocked)] == [False, True]


def test_extensions_of_one_name_are_told_apart_and_said(stocked):
    runner, console = Sandbox(targets=()), Listening()
    files = {"ops": "scale.cpp", "twin": "scale.h"}
    other = dataclasses.replace(CAPTURE, name="twin", capture=("import ops as twin",))

    class Two(Sandbox):
        turn = threading.Lock()  # captures run side by side, and each has its own calls

        def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
            name = next((one for one in files if f"`{one}`" in command.why), "ops")
            call = LoadCall(function="load", name="scale", sources=(f"/space/src/net/ops/{files[name]}",))
            with self.turn:
                self.calls = [dataclasses.asdict(call)]
                return super().run(command, on_line=on_line)

    runner = Two(targets=(), says="[1/1] c++ -c scale.cpp")
    plan = make_plan(CAPTURE, other)
    job = dataclasses.replace(make_job(stocked, plan, runner), console=console)
    ExtensionBuilder(job, lambda _: ROOT).build()
    compiled = {line.partition(":")[0].strip() for line in console.said if "scale.cpp" in line}
    assert compiled >= {"ops/scale", "twin/scale"}
    assert [cells(one, "x")[0] for one in find_extensions(plan, stocked)] == ["ops/scale", "twin/scale"]
    (twins,) = find_twins(plan, stocked)
    assert twins.message == "`ops/scale` and `twin/scale` could both answer `import scale`"
    assert [line for line in console.said if twins.message in line]
    assert not list(find_twins(make_plan(CAPTURE, EXTENSION), stocked))


def test_the_calls_of_a_capture_are_compiled_like_written_ones(stocked):
    runner = Sandbox(targets=())
    runner.calls = [
        dataclasses.asdict(
            LoadCall(function="load", name="scale", sources=("/space/src/net/ops/scale.cpp",))
        ),
        dataclasses.asdict(LoadCall(function="load_inline", name="inline", cpp_sources=("int f();",))),
    ]
    kept = make_builder(stocked, make_plan(CAPTURE), runner).build()
    assert [one.compiled.entry.name for one in kept] == ["scale", "inline"]
    spaces = [mounts_of(command)["/space"] for command in runner.commands[1:]]
    assert all((space / "src").is_dir() for space in spaces), "the sandbox begins there"
    assert next(command.why for command in runner.commands) == "run the imports of the extension `ops`"
    assert kept[0].compiled.entry.sources == {"scale.cpp": sha256_text("// cpp\n")}


def test_where_a_line_of_a_capture_stops_for_want_of_a_gpu_is_said(stocked):
    stopped = {"line": "import bench", "error": "RuntimeError: CUDA error", "where": "/space/src/bench.py:15"}
    console = Listening()
    runner = Sandbox(targets=(), says=f"envbuilder capture stopped: {json.dumps(stopped)}")
    runner.calls = [
        dataclasses.asdict(LoadCall(function="load", name="scale", sources=("/space/src/net/ops/scale.cpp",)))
    ]
    job = dataclasses.replace(make_job(stocked, make_plan(CAPTURE), runner), console=console)
    ExtensionBuilder(job, lambda _: ROOT).build()
    said = "  ops: warning: `import bench` stops at bench.py:15, which computes on a GPU: no later call is compiled"
    assert said in console.said


def test_an_edited_python_file_runs_the_capture_again_and_compiles_nothing(stocked, tmp_path):
    runner = Sandbox(targets=())
    runner.calls = [
        dataclasses.asdict(LoadCall(function="load", name="scale", sources=("/space/src/net/ops/scale.cpp",)))
    ]
    make_builder(stocked, make_plan(CAPTURE), runner).build()
    files = {
        "net/ops/__init__.py": "// edited\n",
        "net/ops/scale.cpp": "// cpp\n",
        "net/ops/scale.h": "// h\n",
    }
    edited = dataclasses.replace(CAPTURE, files=locked_files(files))
    stock(stocked, tmp_path, edited)
    runner.commands.clear()
    make_builder(stocked, make_plan(edited), runner).build()
    assert [command.why for command in runner.commands] == ["run the imports of the extension `ops`"]


def test_an_edited_header_of_a_captured_project_compiles_again(stocked, tmp_path):
    runner = Sandbox(targets=())
    runner.calls = [
        dataclasses.asdict(LoadCall(function="load", name="scale", sources=("/space/src/net/ops/scale.cpp",)))
    ]
    make_builder(stocked, make_plan(CAPTURE), runner).build()
    files = {
        "net/ops/__init__.py": "load(...)\n",
        "net/ops/scale.cpp": "// cpp\n",
        "net/ops/scale.h": "// edited\n",
    }
    edited = dataclasses.replace(CAPTURE, files=locked_files(files))
    stock(stocked, tmp_path, edited)
    runner.commands.clear()
    make_builder(stocked, make_plan(edited), runner).build()
    assert len(runner.commands) == 2


def test_a_capture_that_calls_nothing_is_refused(stocked):
    with pytest.raises(BuildError, match="compile nothing") as caught:
        make_builder(stocked, make_plan(CAPTURE), Sandbox()).build()
    assert caught.value.findings[0].code == "EB632"


def test_before_anything_is_built_find_says_what_is_lacking(stocked):
    plan = make_plan(EXTENSION, PROJECT, CAPTURE)
    found = find_extensions(plan, stocked)
    assert [(one.name, one.compiled) for one in found] == [("fused", None), ("dw", None), ("ops", None)]


def test_slots_are_never_overdrawn():
    slots = Slots(Limits(threads=3, memory=64 << 30, root=True))
    running, most, guard = 0, 0, threading.Lock()

    def work(wanted: int) -> None:
        nonlocal running, most
        with slots.take(wanted) as got:
            with guard:
                running += got
                most = max(most, running)
            time.sleep(0.002)
            with guard:
                running -= got

    threads = [threading.Thread(target=work, args=(wanted,)) for wanted in (1, 2, 3, 9, 1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, running) == (3, 0)


def test_a_compiler_gets_the_memory_that_it_needs():
    assert NVCC_MEMORY == 3 << 30
    slots = Slots(Limits(threads=8, memory=16 << 30, root=True))
    with slots.take(8, 5 << 30) as first:
        assert first == 3
        waiting = threading.Thread(target=lambda: slots.take(1, 2 << 30).__enter__())
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive(), "15 of 16 GiB are taken"
    waiting.join(5)
    assert not waiting.is_alive()
    with slots.take(8, 99 << 30) as number:
        assert number == 1


def roomy(store: Store, plan: Plan, runner: Sandbox, console: Console | None = None) -> ExtensionBuilder:
    """The builder of a machine with 8 cores and 64 GiB."""
    limits = Limits(threads=8, memory=64 << 30, root=True)
    job = dataclasses.replace(make_job(store, plan, runner), limits=limits, origin="/one/x.yaml")
    return ExtensionBuilder(dataclasses.replace(job, console=console or job.console), lambda _: ROOT)


def test_the_next_compile_starts_as_many_compilers_as_the_last_one_had_memory_for(stocked, tmp_path):
    runner, edited = Sandbox(), dataclasses.replace(PROJECT, env=(("A", "1"),))
    runner.memory = 20 << 30
    (made,) = roomy(stocked, make_plan(PROJECT), runner).build()
    assert made.compiled.memory == 20 << 30
    (status,) = find_extensions(make_plan(PROJECT), stocked)
    assert describe(status, "x").memory == 20 << 30
    roomy(stocked, make_plan(edited), runner).build()
    assert runner.jobs == [8, 3]


def test_a_build_that_compiles_nothing_says_nothing_of_the_memory_of_compilers(stocked):
    runner, memory = Sandbox(says="[1/1] nvcc -c a.cu -o a.o"), []
    plans = [make_plan(dataclasses.replace(PROJECT, env=(("A", f"{at}"),))) for at in range(3)]
    for plan, size, says in zip(plans, (20 << 30, 1 << 30, 1 << 30), ("", "", runner.says), strict=True):
        runner.memory, runner.says = size, says
        roomy(stocked, plan, runner).build()
        memory.append(known_memory(PROJECT, "/one/x.yaml", stocked) >> 30)
    assert memory == [20, 20, 1]


def test_after_a_compiler_was_killed_fewer_run_at_once_and_the_error_says_so(stocked):
    runner = Sandbox(says="g++: fatal error: Killed signal terminated program cc1plus", fails=("dw",))
    runner.memory = 10_000_000_000
    with pytest.raises(BuildError) as caught:
        roomy(stocked, make_plan(PROJECT), runner).build()
    words = "the largest process had 10.0 GB, with up to 8 at once; the next build runs up to 4 at once"
    assert caught.value.hint.startswith(words)
    assert caught.value.findings[0].hint.startswith(words)
    runner.fails = ()
    roomy(stocked, make_plan(PROJECT), runner).build()
    assert runner.jobs == [8, 4]


def test_what_the_tables_know_of_a_project_counts_before_its_first_compile(store):
    archive = artifact("flash-attn", kind="sdist")
    known = known_memory(dataclasses.replace(PROJECT, archive=archive), "/one/x.yaml", store)
    assert (known, known_memory(PROJECT, "/one/x.yaml", store)) == (9 << 30, NVCC_MEMORY)


def test_progress_says_how_many_of_all_commands_are_done(stocked, monkeypatch):
    times = iter([0.0, 0.0, 100.0, 200.0, 300.0, 400.0])
    monkeypatch.setattr(compile_module.time, "monotonic", lambda: next(times, 500.0))
    console, line = Listening(), "[{}/4] nvcc -c /space/src/{}.cu -o x.o"
    runner = Sandbox(says="\n".join([line.format(1, "a"), line.format(3, "b"), "g++ -c c.cpp"]))
    roomy(stocked, make_plan(PROJECT), runner, console).build()
    shown = [line for line in console.said if line.startswith("  dw: ")]
    assert shown == [
        "  dw: a.cu (1 of 4 commands, about 5 min left)", "  dw: b.cu (3 of 4 commands)", "  dw: c.cpp",
    ]  # fmt: skip


def test_what_a_killed_compile_left_unfinished_is_compiled_again(store):
    log = "# ninja log v5\n0\t9\t{}\tdone.o\tab\n0\t9\t{}\t/space/src/build/temp.x/csrc/old.o\tab\n"
    key = sha256_text("key")
    with store.build_directory(key, drop_unfinished) as folder:
        objects = folder / "src/build/temp.x/csrc"
        for path in (objects, folder / "build", folder / "src/csrc"):
            path.mkdir(parents=True)
        (folder / "src/csrc/half.o").write_text("a source may have that name")
        (objects / ".ninja_log").write_text(log.format(7, 0))
        (objects / "old.o").write_text("an earlier build's")
        os.utime(objects / "old.o", (0, 0))
    kept = {
        "src/csrc/half.o",
        "src/build/temp.x/csrc/.ninja_log",
        "src/build/temp.x/csrc/old.o",
        "build/done.o",
    }
    for log_time, more in ((7, set()), (0, {"src/build/temp.x/csrc/old.o"})):
        with contextlib.suppress(KeyboardInterrupt), store.build_directory(key, drop_unfinished):
            (objects / ".ninja_log").write_text(log.format(7, log_time))
            (objects / "old.o").write_text("begun anew")
            (folder / "build/done.o").write_text("whole")
            (folder / "build/half.o").write_text("ha")
            (folder / "build/half.a").write_text("!<arch>")
            running = store.root / "inventories/build-directories" / f"{key}.running"
            text = running.read_text()
        running.write_text(text)  # as a build leaves it that is killed
        os.utime(running, (time.time() - 60,) * 2)
        with store.build_directory(key, drop_unfinished):
            there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert there == kept - more


# The architectures inside


@pytest.mark.parametrize(
    ("targets", "extra"),
    [
        (("sm_80",), ""),
        (("sm_75", "sm_80", "compute_90"), "compute_90, sm_75"),
    ],
)
def test_code_for_more_gpus_is_a_warning_also_from_the_store(stocked, targets, extra):
    told = f"  fused: warning: it also holds code for {extra}, which is for no GPU of the recipe"
    for extension in (EXTENSION, dataclasses.replace(PROJECT, name="fused")):
        for _ in range(2):
            console = Listening()
            job = dataclasses.replace(
                make_job(stocked, make_plan(extension), Sandbox(targets=targets)), console=console
            )
            ExtensionBuilder(job, lambda _: ROOT).build()
            assert [line for line in console.said if "warning" in line] == ([told] if extra else [])


def test_the_recipes_gpus_are_right_in_any_order():
    check_call("fused", ("sm_80", "sm_90"), ("9.0", "8.0"))


def test_code_with_all_features_of_a_gpu_is_code_for_it():
    check_call("fused", ("sm_90a",), ("9.0",))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((), "holds code for no GPU at all; the recipe's GPUs need sm_80, sm_90"),
        (("sm_80",), "holds code for sm_80; the recipe's GPUs need sm_80, sm_90"),
        (("sm_80", "compute_90"), "holds code for compute_90, sm_80; the recipe's GPUs need sm_80, sm_90"),
    ],
)
def test_a_library_without_code_for_a_gpu_of_the_recipe_is_refused(found, words):
    with pytest.raises(BuildError) as caught:
        check_call("fused", found, ("8.0", "9.0"))
    assert caught.value.message == f"the extension `fused` {words}"
    assert caught.value.findings[0].code == "EB630"


def test_a_compile_for_the_wrong_gpu_does_not_reach_the_store(stocked):
    with pytest.raises(BuildError, match="holds code for sm_70"):
        make_builder(stocked, make_plan(), Sandbox(targets=("sm_70",))).build()
    assert list((stocked.root / "extensions").iterdir()) == []


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Path]:
    def write(setup: str) -> Path:
        (tmp_path / "csrc").mkdir()
        (tmp_path / "csrc/dw.cu").write_text("// gpu\n")
        (tmp_path / "setup.py").write_text(setup)
        return tmp_path

    return write


def test_a_project_without_its_cuda_sources_is_an_error_with_the_deciding_line(project):
    folder = project(
        "import os, torch\nif torch.cuda.is_available() or os.getenv('FORCE_CUDA') == '1':\n    pass\n"
    )
    with pytest.raises(BuildError) as caught:
        check_project("dw", {"core.so": ()}, ("8.0",), folder, "")
    assert (
        "without code for a GPU, though it has `csrc/dw.cu`: `setup.py:2` asks for a GPU"
        in caught.value.message
    )
    assert 'FORCE_CUDA: "1"' in caught.value.hint
    assert caught.value.findings[0].code == "EB631"


def test_a_project_with_a_list_of_its_own_is_refused_with_its_switch(project):
    folder = project(
        "archs = os.environ.get('TCNN_CUDA_ARCHITECTURES')\nflags = ['-gencode=arch=compute_75']\n"
    )
    with pytest.raises(BuildError) as caught:
        check_project("dw", {"core.so": ("sm_75",)}, ("8.0",), folder, "")
    assert "holds code for sm_75 in `core.so`" in caught.value.message
    assert "`setup.py:2` names its own" in caught.value.message
    assert 'TCNN_CUDA_ARCHITECTURES: "80"' in caught.value.hint


def test_a_project_may_hold_libraries_without_gpu_code_beside_one_with(project):
    check_project("dw", {"core.so": ("sm_80",), "host.so": ()}, ("8.0",), project(""), "")


def test_a_project_without_cuda_sources_needs_no_gpu_code(tmp_path):
    check_project("dw", {"core.so": ()}, ("8.0",), tmp_path, "")


def test_every_switch_says_what_to_write():
    settings = {row.variable: row.setting(("8.0", "9.0")) for row in load_switches().rows}
    assert settings["TCNN_CUDA_ARCHITECTURES"] == 'TCNN_CUDA_ARCHITECTURES: "80;90"'
    assert settings["CUMM_CUDA_ARCH_LIST"] == 'CUMM_CUDA_ARCH_LIST: "8.0;9.0"'
    assert not any("{" in setting for setting in settings.values())


# Failures in words


NOTHING = "the programs of `warm` launched no Triton kernel for sm_80"
TROUBLES = [
    ("/usr/include/python3.9/Python.h:44:10: fatal error: crypt.h: No such file or directory", "EB610"),
    ("csrc/dcn.cpp:2:10: fatal error: THC/THC.h: No such file or directory", "EB611"),
    ("auxiliary.h:14:10: fatal error: glm/glm.hpp: No such file or directory", "EB612"),
    ("nvcc fatal   : Unsupported gpu architecture 'compute_37'", "EB613"),
    ("#error -- unsupported GNU version! gcc versions later than 12 are not supported!", "EB614"),
    ("dialect.h:56:6: error: #error Thrust requires at least C++17. Define ...", "EB615"),
    (
        "extension.h:4:2: error: #error C++17 or later compatible compiler is required to use PyTorch.",
        "EB615",
    ),
    ("c10/util/C++20.h:12: error: #error You need C++20 to compile PyTorch", "EB615"),
    ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "EB616"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", "EB616"),
    (
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "EB617",
    ),
    ("    arch_list[-1] += '+PTX'", "EB618"),
    (
        "The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch (11.7).",
        "EB619",
    ),
    ('error: no suitable conversion function from "const at::DeprecatedTypeProperties" to ...', "EB620"),
    ("ModuleNotFoundError: No module named 'setuptools'", "EB621"),
    ("error: invalid command 'bdist_wheel'", "EB621"),
    ("fatal: unable to access 'https://x/': Could not resolve host: x", "EB622"),
    ("RuntimeError: No CUDA GPUs are available", "EB623"),
    (
        "bits/mathcalls.h(79): error: exception specification is incompatible with that of previous function",
        "EB624",
    ),
    ("a.cpp:1:10: fatal error: png.h: No such file or directory", "EB625"),
    (
        "ninja: error: 'csrc/a.cu', needed by 'build/a.o', missing and no known rule to make it",
        "EB636",
    ),
    ("cc1plus: fatal error: csrc/a.cpp: No such file or directory", "EB636"),
    ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "EB626"),
    ("g++: fatal error: Killed signal terminated program cc1plus", "EB627"),
    ("ImportError: /space/build/fused.so: undefined symbol: _Z3foov", "EB628"),
    ('csrc/fused.cu(3): error: expected a ";"', "EB629"),
    ("ninja: build stopped: subcommand failed.", "EB629"),
]


@pytest.mark.parametrize(("line", "code"), TROUBLES)
def test_each_known_trouble_has_a_code_of_its_own(line, code):
    said = ["[1/2] c++ -c x.cpp", line, "ninja: build stopped: subcommand failed."]
    failure = explain_failure("fused", said, CommandError("could not compile: exit code 1"))
    assert failure.findings[0].code == code
    assert line.strip()[:60] in failure.message
    assert failure.hint


def test_a_program_of_warm_that_launches_nothing_is_told_what_to_call():
    lines = (
        "could not run the programs of `warm`: the sandbox ended with exit code 1",
        "/tmp/warm/files/ops.py:3: x",
        NOTHING,
    )
    failure = warm_error("\n".join(lines))
    assert failure.findings[0].code == "EB638"
    assert failure.message == f"`warm` failed\nops.py:3: x\n{NOTHING}"
    assert failure.hint == "call each kernel, or its `warmup`, with the types and sizes that the job has"


def test_a_warning_about_old_type_dispatch_does_not_explain_another_error():
    printed = [
        "ops.h:29:19: warning: 'at::DeprecatedTypeProperties& at::Tensor::type() const' is deprecated",
        "  225 |   DeprecatedTypeProperties & type() const {",
        'ops.cu(34): error: expression must have class type but it has type "c10::ScalarType"',
    ]
    failure = explain_failure("ops", printed, CommandError("x"))
    assert (failure.findings[0].code, failure.findings[0].where) == ("EB629", "ops.cu:34")


@pytest.mark.parametrize(
    "line",
    [
        "cc1plus: fatal error: ../utils/cloud.cpp: No such file or directory",
        "ninja: error: '../utils/cloud.cpp', needed by 'build/cloud.o', missing and no known rule to make it",
    ],
)
def test_a_source_beside_the_project_is_said_to_be_outside(line: str):
    failure = explain_failure("cloud", [line], CommandError("x"))
    assert failure.findings[0].code == "EB636"
    assert "`../utils/cloud.cpp` lies outside of the extension's `path`" in failure.message
    assert "`git` and `commit`" in failure.hint


def test_a_build_without_distutils_is_not_told_to_add_a_package_of_that_name():
    line = "ModuleNotFoundError: No module named 'distutils.core'"
    failure = explain_failure("numpy 1.22.0", [line], CommandError("x"))
    assert failure.findings[0].code == "EB621"
    assert "`python3-distutils` to `apt`" in failure.hint


def test_every_row_of_the_table_is_tried_above():
    tried = {code for _, code in TROUBLES}
    assert tried == {row.build.code for row in load_messages() if row.build}


def test_the_lines_that_matter_are_few():
    said = [f"a.cu({number}): error: number {number}" for number in range(100)]
    assert len(explain_failure("fused", said, CommandError("x")).message.splitlines()) < 16


@pytest.mark.parametrize("reason", ["nvcc fatal   : Unknown option '-foo'", "sh: 1: Cannot fork"])
def test_what_a_failed_command_printed_is_shown_also_without_the_word_error(reason: str) -> None:
    said = [
        "[1/3] nvcc -c a.cu -o a.o", "FAILED: [code=1] a.o ", "nvcc -c a.cu -o a.o", reason,
        "[2/3] g++ -c b.cpp -o b.o", "b.cpp: a warning", "ninja: build stopped: subcommand failed.",
        "error: Failed to build `ops`",
    ]  # fmt: skip
    message = explain_failure("ops", said, CommandError("x")).message
    assert f"    {reason}\n" in message
    assert "-o a.o" not in message
    assert "a warning" not in message


def test_the_first_error_is_shown_and_not_torchs_traceback():
    said = [
        "[1/2] nvcc -c a.cu",
        'a.cu(3): error: identifier "x" is undefined',
        '1 error detected in the compilation of "a.cu".',
        "ninja: build stopped: subcommand failed.",
        "Traceback (most recent call last):",
        "RuntimeError: Error building extension 'fused'",
    ]
    message = explain_failure("fused", said, CommandError("x")).message
    assert 'identifier "x" is undefined' in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("line", "folder", "where"),
    [
        ("/space/src/utils/op.cpp:4:3: error: expected ';'", "", "utils/op.cpp:4:3"),
        ('/space/src/net/csrc/dw.cu(7): error: expected a ";"', "net", "net/csrc/dw.cu:7"),
        ("csrc/dw.cpp:4:3: error: expected ';'", "third/dw", "third/dw/csrc/dw.cpp:4:3"),
        ("/opt/env/include/torch/extension.h:4:3: error: #error", "third/dw", ""),
        ("ninja: build stopped: subcommand failed.", "third/dw", ""),
    ],
)
def test_a_failure_says_where_as_the_recipe_names_its_files(line, folder, where):
    (finding,) = explain_failure("fused", [line], CommandError("x"), folder=folder).findings
    assert finding.where == where
    assert where.partition(":")[0] in finding.message
    assert "/space/" not in finding.message


def test_a_failed_project_is_told_with_the_place_in_the_recipes_folder(stocked):
    runner = Sandbox(fails=("`dw`",), says="csrc/dw.cu(3): error: expected a ';'")
    with pytest.raises(BuildError) as caught:
        make_builder(stocked, make_plan(PROJECT), runner).build()
    assert caught.value.findings[0].where == "third/dw/csrc/dw.cu:3"


def test_a_failure_without_a_known_word_keeps_the_programs_own(stocked):
    failure = CommandError("could not compile: `bwrap` ended with exit code 3")
    assert explain_failure("fused", ["nothing to see"], failure).message == failure.message


def test_a_traceback_of_a_capture_is_not_taken_for_a_compilers_words():
    failure = CommandError("could not run the imports\nValueError: error: no config")
    assert explain_failure("ops", [], failure, compiles=False).message == failure.message


def test_the_line_of_a_capture_that_ended_is_told_with_its_place():
    last = {"line": "import ops", "error": "ValueError: error: no config", "where": "/space/src/net/ops.py:3"}
    said = "could not run the imports\nTraceback (most recent call last):\nValueError: error: no config"
    failure = explain_failure(
        "ops", [], CommandError(f"{said}\nenvbuilder capture: {json.dumps(last)}"), compiles=False
    )
    (finding,) = failure.findings
    assert (finding.code, finding.where) == ("EB633", "net/ops.py:3")
    assert (
        failure.message
        == "the line `import ops` of `capture` of the extension `ops` ends in ValueError: error: no config"
    )


def test_a_known_trouble_of_a_capture_keeps_its_code_and_gets_its_place():
    last = {"line": "import ops", "error": "", "where": "/space/src/net/ops.py:3"}
    said = "could not run the imports\nModuleNotFoundError: No module named 'cv2'"
    failure = explain_failure(
        "ops", [], CommandError(f"{said}\nenvbuilder capture: {json.dumps(last)}"), compiles=False
    )
    assert (failure.findings[0].code, failure.findings[0].where) == ("EB621", "net/ops.py:3")
    assert "{" not in failure.message


@pytest.mark.parametrize(
    ("line", "setup", "hint"),
    [
        ("urllib.error.URLError: <urlopen error>", 'os.getenv("SCAN_FORCE_BUILD", "OFF") == "ON"', 'SCAN_FORCE_BUILD: "ON"'),
        ("RuntimeError: Found no NVIDIA driver", '"--cuda_ext" in sys.argv', 'options: ["--cuda_ext"]'),
        ("RuntimeError: Found no NVIDIA driver", "", "remove the check"),
    ],
)  # fmt: skip
def test_a_hint_names_the_variable_or_option_of_this_setup_and_no_other(line, setup, hint):
    error = explain_failure("scan", [line], CommandError("it failed"), setup=f"import os, sys\n{setup}\n")
    assert hint in error.hint
    assert "FLASH_ATTENTION" not in error.hint


def test_a_package_that_a_capture_lacks_is_told():
    failure = CommandError("could not run the imports\nModuleNotFoundError: No module named 'cv2'")
    assert explain_failure("ops", [], failure, compiles=False).findings[0].code == "EB621"


# The layer


def layer(store: Store, tmp_path: Path, plan: Plan, runner: Sandbox) -> Path:
    built = make_builder(store, plan, runner).build()
    install(built, plan.steps[3], plan, tmp_path / "tree")
    return tmp_path / "tree"


def test_the_paths_of_an_extensions_layer(stocked, tmp_path):
    tree = layer(stocked, tmp_path, make_plan(EXTENSION, PROJECT), Sandbox())
    key = json.loads((tree / "opt/envbuilder/extensions/index.json").read_text())["extensions"][0]["key"]
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()) == [
        "opt/env/lib/python3.11/site-packages/dw/core.so",
        f"opt/envbuilder/extensions/fused-{key[:16]}/fused.so",
        "opt/envbuilder/extensions/index.json",
        "opt/envbuilder/extensions/modules/fused.so",
    ]


def test_an_import_finds_an_extension_without_load(stocked, tmp_path):
    tree = layer(stocked, tmp_path, make_plan(), Sandbox())
    module = tree / "opt/envbuilder/extensions/modules/fused.so"
    assert module.resolve().parent.name.startswith("fused-")
    assert module.read_bytes() == gpu_library("sm_80")


def test_a_call_that_two_captures_make_is_there_once(stocked, tmp_path):
    runner = Sandbox(targets=())
    runner.calls = [
        dataclasses.asdict(LoadCall(function="load", name="scale", sources=("/space/src/net/ops/scale.cpp",)))
    ]
    twin = dataclasses.replace(CAPTURE, name="twin", capture=("import ops as twin",))
    tree = layer(stocked, tmp_path, make_plan(CAPTURE, twin), runner)
    index = json.loads((tree / "opt/envbuilder/extensions/index.json").read_text())
    assert [entry["name"] for entry in index["extensions"]] == ["scale"]
    assert (tree / "opt/envbuilder/extensions/modules/scale.so").exists()


def test_a_library_can_be_executed_whatever_its_mode_was(stocked, tmp_path):
    tree = layer(stocked, tmp_path, make_plan(), Sandbox())
    (library,) = (tree / "opt/envbuilder/extensions").glob("fused-*/fused.so")
    assert library.stat().st_mode & 0o777 == 0o755


def test_two_projects_that_install_one_file_are_refused(stocked, tmp_path):
    twin = dataclasses.replace(PROJECT, name="twin")
    with pytest.raises(BuildError, match="as another does"):
        layer(stocked, tmp_path, make_plan(PROJECT, twin), Sandbox())


def test_the_index_of_two_machines_is_the_same(tmp_path):
    texts = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        store = Store(folder / "cache")
        stock(store, folder, EXTENSION)
        tree = layer(store, folder, make_plan(name=name), Sandbox())
        texts.append((tree / "opt/envbuilder/extensions/index.json").read_text())
    assert texts[0] == texts[1]


# The imports of a build's test


RECIPE = """
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.6.0"
extensions:
  - {name: fused, sources: [a.cpp]}
  - {name: dw, sdist: dw==1}
  - {name: ops, sdist: ops==1, capture: [import ops]%s}
"""


@pytest.mark.parametrize(("key", "captured"), [("", ["scale", "plain"]), (", import: false", [])])
def test_each_extension_is_imported_unless_the_recipe_says_otherwise(stocked, tmp_path, key, captured):
    (tmp_path / "a.cpp").touch()
    (tmp_path / "tried.yaml").write_text(RECIPE % key)
    runner = Sandbox()
    runner.calls = [
        dataclasses.asdict(
            LoadCall(function="load", name=name, sources=("/space/src/net/ops/scale.cpp",), **change)
        )
        for name, change in {
            "scale": {},
            "plain": {"is_python_module": False},
            "program": {"is_standalone": True},
        }.items()
    ]
    plan = make_plan(EXTENSION, PROJECT, CAPTURE)
    (_, dw, *_) = make_builder(stocked, plan, runner).build()
    (core,) = dw.folder.rglob("core.so")
    core.write_bytes(core.read_bytes() + b"PyInit_core")
    (core.parent / "helper.so").write_bytes(core.read_bytes())  # a library, and no module of that name
    imports, unknown = list_imports(load(tmp_path / "tried.yaml"), plan, stocked)
    assert unknown == ()
    assert [one.name for one in imports] == ["fused", "dw.core", *captured]
    assert [one.module for one in imports][:2] == ["", "dw.core"]
    assert re.fullmatch(r"/opt/envbuilder/extensions/fused-\w{16}/fused.so", imports[0].file)
    assert [one.is_python_module for one in imports] == [True, True, True, False][: len(imports)]
    of_docker, _ = list_imports(load(tmp_path / "tried.yaml"), plan, Store(tmp_path / "another"))
    assert of_docker == imports[:1]


@pytest.mark.parametrize(("key", "warned"), [("", {"dw", "ops"}), (", import: false", {"dw"})])
def test_an_extension_without_modules_in_the_cache_does_not_count_as_imported(stocked, tmp_path, key, warned):
    """The docker engine's, and what `cache --gc` removed."""
    (tmp_path / "a.cpp").touch()
    (tmp_path / "tried.yaml").write_text(RECIPE % key)
    recipe, plan = load(tmp_path / "tried.yaml"), make_plan(EXTENSION, PROJECT, CAPTURE)
    _, findings = list_imports(recipe, plan, Store(tmp_path / "another"))
    assert {one.message.split("`")[1] for one in findings} == warned
    assert all(one.where.startswith(f"{tmp_path}/tried.yaml:") for one in findings)
    assert passed_tests(recipe, image=False, findings=findings) == ()


@pytest.mark.parametrize(
    ("error", "words", "repair"),
    [
        ("ModuleNotFoundError: No module named 'pkg_resources'", "setuptools has no `pkg_resources` since 82", "write `setuptools<82`"),
        ("ModuleNotFoundError: No module named 'ocnn.nn'", "the package `ocnn.nn` is not there", "add `ocnn` to `packages`"),
        ("ImportError: libgl.so.1: cannot open shared object file: No such file", "the library `libgl.so.1` is not there", "to `apt`"),
        ("ImportError: /x/fused.so: undefined symbol: _Z3foov", "no library that it loads defines `_Z3foov`", "add the missing source"),
        ("ValueError: x", "ValueError: x", "in the SIF that is kept"),
    ],
)  # fmt: skip
def test_a_failed_import_names_what_is_missing_and_its_repair(error, words, repair):
    finding = explain_import(Import(of="dw", place="a.yaml:3:5", name="dw.core", module="dw.core"), error)
    assert (finding.code, finding.where) == ("EB651", "a.yaml:3:5")
    assert finding.message == f"`import dw.core` of the extension `dw` fails in the SIF: {words}"
    assert repair in finding.hint
    assert "`import: false`" in finding.hint


# The listing


def test_the_listing_says_where_each_extension_came_from(stocked):
    make_builder(stocked, make_plan(name="first"), Sandbox()).build()
    found = list(find_extensions(make_plan(EXTENSION, PROJECT, name="second"), stocked))
    assert [origin(one, "second") for one in found] == [
        "the store: compiled for `first`",
        "not compiled yet",
    ]
    assert origin(found[0], "first") == "compiled for this recipe"


def test_the_listing_for_a_person_has_a_row_for_each(stocked):
    make_builder(stocked, make_plan(), Sandbox()).build()
    found = find_extensions(make_plan(EXTENSION, PROJECT), stocked)
    fused, dw = (cells(one, "x") for one in found)
    assert (fused[0], fused[3]) == ("fused", "sm_80")
    assert (dw[0], dw[2:6]) == ("dw", ("project", "-", "-", "-"))


def test_a_project_of_one_module_shares_the_folder_of_byte_code_with_the_packages(store, tmp_path):
    plan = make_plan(PROJECT)
    job, step = (
        make_job(store, plan, FakeRunner()),
        next(one for one in plan.steps if one.name == "extensions"),
    )
    shared = f"{plan.python.site_packages[1:]}/__pycache__"
    for name, below in (("python", plan.python), ("extensions", step)):
        (tmp_path / name / shared).mkdir(parents=True)
        (tmp_path / name / shared / f"{name}.cpython-311.pyc").write_bytes(b"")
        job.make_layer(
            below, lambda out, _work, below=below, name=name: job.pack(below, tmp_path / name, out)
        )
    layers = [load_layer(store.layer(job.keys[made])) for made in (plan.python, step)]
    assert all(layers)
    shared_paths = set.intersection(
        *({entry.path for entry in read_manifest(layer)} for layer in layers if layer)
    )
    assert max(shared_paths, key=len) == shared


def with_package(plan: Plan, name: str) -> Plan:
    """The plan with one more package, which torch does not need."""
    packages = WheelStep(
        python="3.11", name="packages", is_torchs=False, artifacts=(artifact(name, kind="wheel"),)
    )
    return dataclasses.replace(plan, steps=(*plan.steps[:3], packages, *plan.steps[3:]))


def test_another_package_is_not_there_when_sources_compile_and_makes_nothing_again(stocked):
    runner, plan = Sandbox(), make_plan()
    (made,) = make_builder(stocked, plan, runner).build()
    more = with_package(plan, "evil")
    assert make_builder(stocked, more, runner).build() == (made,)
    assert len(runner.commands) == 1
    (program,) = more.programs[-1].parts
    assert program.root == ("os", "python", "cuda")


def test_a_recipe_whose_compiler_reads_the_environment_has_a_result_of_its_own(stocked):
    runner, plan = Sandbox(), make_plan(dataclasses.replace(EXTENSION, cflags=("-I/opt/env/include",)))
    more = with_package(plan, "evil")
    (program,) = more.programs[-1].parts
    assert program.root == ("os", "python", "cuda", "packages")
    (made,) = make_builder(stocked, more, runner).build()
    (known,) = make_builder(stocked, plan, runner).build()
    assert len(runner.commands) == 2
    assert made.folder != known.folder


@pytest.mark.parametrize(
    ("error", "looks"), [(CompileError("it does not compile"), False), (BuildError("no such tree"), True)]
)
def test_a_failed_compile_hashes_no_layer_of_the_cache(error, looks):
    looked = []

    class Failing(pipeline._Build):
        def _try_once(self, staged: Outputs) -> object:
            raise error

    job = SimpleNamespace(discard_damaged=lambda: looked.append("the layers") or ())
    outputs, given = (
        Outputs(folder=Path("/nowhere"), name="x"),
        dict.fromkeys(("recipe", "context", "docker", "fetcher")),
    )
    with pytest.raises(type(error), match=error.message):
        Failing(outputs=outputs, runner=SimpleNamespace(job=job), **given)._make_verified(outputs)
    assert bool(looked) == looks
