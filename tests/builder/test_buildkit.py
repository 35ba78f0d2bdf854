"""The decisions of the runner `buildkit`: the command, the folder that BuildKit reads, its progress, and what it cannot do."""

import base64
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import IMAGE
from envbuilder.builder.buildkit import buildx
from envbuilder.builder.buildkit.buildx import BuildKitProgress, title
from envbuilder.builder.buildkit.runner import BuildKitRunner, exported_tars, write_base, write_folder
from envbuilder.builder.context import Builder, RunnerChoice, RunnerName
from envbuilder.builder.job import BuildJob, layer_keys
from envbuilder.core.cache import Store, sha256_file, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, CommandError, CompileError, SpaceError, ToolError, UsageError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.system import Limits
from envbuilder.layers.layer import read_manifest, write_layer, write_layer_from_tar
from envbuilder.plan.model import OsStep, Plan
from tests.support.bases import BASE
from tests.support.plans import make_small_printed
from tests.support.runner import FakeRunner

EPOCH = 1_700_000_000


def plan_of(name: str, *, on_image: bool = False) -> Plan:
    plan = make_small_printed(name).plan
    first = plan.steps[0]
    assert isinstance(first, OsStep)
    return replace(plan, steps=(replace(first, base=BASE, suite=""), *plan.steps[1:])) if on_image else plan


# What is asked of BuildKit


def test_the_command_names_the_image_by_digest_and_passes_options_on():
    builder = Builder(
        name="far", cache_from=("type=registry,ref=a",), cache_to=("type=registry,ref=b",), no_cache=True
    )
    command = buildx.build_command(
        plan_of("cpu", on_image=True), Path("W/folder"), Path("W/out"), builder, context=False
    )
    assert command.argv[:11] == (
        "docker", "buildx", "build", "--file", "W/folder/Dockerfile", "--builder", "far",
        "--cache-from", "type=registry,ref=a", "--cache-to", "type=registry,ref=b",
    )  # fmt: skip
    assert "--no-cache" in command.argv
    assert f"base=oci-layout://W/folder/base@sha256:{BASE.manifest.digest}" in command.argv
    assert command.argv[-1] == "W/folder"


def test_a_context_of_dockers_is_named_as_one():
    """buildx lists it among its builders and refuses it as `--builder`: use `docker --context=… buildx`."""
    builder, runner = Builder(name="far", no_cache=True), FakeRunner({"docker": "default\nfar\n"})
    assert buildx.is_context(builder, runner)
    assert not buildx.is_context(Builder(name="farther"), runner)
    assert not buildx.is_context(Builder(), Failing("context", CommandError("nobody asks")))
    assert not buildx.is_context(builder, Failing("context", CommandError("of an old client")))
    command = buildx.manual_command(plan_of("cpu"), Path("W"), builder, context=True)
    assert command.argv[:7] == (
        "docker",
        "--context",
        "far",
        "buildx",
        "build",
        "--file",
        "W/Dockerfile",
    )
    assert "--no-cache" in command.argv
    assert "--builder" not in command.argv


def test_the_named_runner_is_chosen_otherwise_the_sandbox():
    assert RunnerChoice().runner_for("cpu") is RunnerName.SANDBOX
    assert RunnerChoice(runner=RunnerName.BUILDKIT).runner_for("cpu") is RunnerName.BUILDKIT


@pytest.mark.parametrize(
    ("choice", "option"),
    [
        (RunnerChoice(builder=Builder(name="x")), "`--builder`"),
        (RunnerChoice(builder=Builder(cache_from=("x",))), "`--cache-from`"),
        (RunnerChoice(builder=Builder(cache_to=("x",))), "`--cache-to`"),
        (RunnerChoice(builder=Builder(no_cache=True)), "`--no-cache`"),
    ],
)
def test_a_buildkit_option_is_an_error_in_the_sandbox(choice: RunnerChoice, option: str):
    with pytest.raises(UsageError, match=option) as caught:
        choice.runner_for("cpu")
    assert caught.value.hint == "add `--runner buildkit`"


# The folder


def add(store: Store, path: Path) -> str:
    digest = sha256_file(path)
    store.add_artifact(digest, path)
    return digest


def test_an_image_is_a_layout_of_links_to_the_store(tmp_path: Path):
    store = Store(tmp_path / "store")
    for blob in (BASE.manifest, BASE.config, *BASE.layers):
        path = store.artifact(blob.digest)
        path.parent.mkdir(exist_ok=True)
        path.write_text(blob.digest)
    write_base(BASE, tmp_path / "base", store)
    index = json.loads((tmp_path / "base/index.json").read_text())
    assert index["manifests"][0]["digest"] == f"sha256:{BASE.manifest.digest}"
    blobs = {path.name for path in (tmp_path / "base/blobs/sha256").iterdir()}
    assert blobs == {blob.digest for blob in (BASE.manifest, BASE.config, *BASE.layers)}


def buildkit_runner(folder: Path, plan: Plan, *, cache_to: tuple[str, ...] = ()) -> BuildKitRunner:
    limits = Limits(threads=1, memory=1, root=True)
    job = BuildJob(
        plan=plan, store=Store(folder), runner=FakeRunner(), console=Console(quiet=True), limits=limits
    )  # fmt: skip
    return BuildKitRunner(job=job, builder=Builder(cache_to=cache_to))


def test_every_blob_is_an_input_unless_no_layer_is_missing(tmp_path: Path):
    plan = plan_of("cpu", on_image=True)
    wanted = buildkit_runner(tmp_path / "store", plan).artifacts()
    assert {blob.digest for blob in (BASE.manifest, BASE.config, *BASE.layers)} <= {
        one.sha256 for one in wanted
    }
    assert {"torch", "libc6"} <= {one.name for one in wanted}


@pytest.mark.programs
def test_the_folder_may_lie_on_another_file_system_than_the_cache(tmp_path: Path):
    whole = plan_of("cpu")
    plan = replace(whole, steps=(OsStep(suite="bookworm", gcc="12", artifacts=()), whole.runtime))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        assert Path(memory).stat().st_dev != tmp_path.stat().st_dev
        job = replace(buildkit_runner(Path(memory), plan).job, runner=ProcessRunner(os.environ))
        write_folder(job, tmp_path / "folder", {"os"})
        assert list(Path(memory).rglob("work-*")) == []
    assert (tmp_path / "folder/os/inputs/unpack/owners.json").exists()
    assert sorted(path.name for path in (tmp_path / "folder/os").iterdir()) == [
        "inputs",
        "root.tar",
        "spec.json",
    ]


# Layers


def layout(folder: Path, count: int) -> tuple[Path, list[str]]:
    """An OCI layout with so many layers, and their digests."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    layers = [sha256_text(str(number)) for number in range(count)]

    def describe(content: object) -> dict[str, object]:
        text = json.dumps(content)
        (blobs / sha256_text(text)).write_text(text)
        return {"mediaType": "x", "digest": f"sha256:{sha256_text(text)}", "size": len(text)}

    config = describe({"rootfs": {"diff_ids": [f"sha256:{digest}" for digest in layers]}})
    listed = [{"mediaType": "x", "digest": f"sha256:{digest}", "size": 1} for digest in layers]
    manifest = describe({"schemaVersion": 2, "config": config, "layers": listed}) | {"mediaType": IMAGE}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return folder, layers


def test_the_layers_are_known_by_their_order(tmp_path: Path):
    folder, layers = layout(tmp_path, 2)
    found = exported_tars(folder, ("os", "python"))
    assert {name: path.name for name, path in found.items()} == dict(
        zip(("os", "python"), layers, strict=True)
    )
    folder, _ = layout(tmp_path / "other", 4)
    with pytest.raises(BuildError, match="BuildKit wrote 4 layers, not the 2"):
        exported_tars(folder, ("os", "python"))


def test_an_edit_is_exported_alone(tmp_path: Path):
    plan, store = plan_of("cpu"), Store(tmp_path)
    runner = buildkit_runner(tmp_path, plan)
    (tmp_path / "tree").mkdir()
    for step, key in layer_keys(plan).items():
        if step.name not in ("extensions", "runtime"):
            folder = store.layer(key)
            write_layer(name=step.name, tree=tmp_path / "tree", folder=folder, epoch=EPOCH, threads=1)
    assert [step.name for step in runner.wanted()] == ["extensions"]


def test_a_cache_is_filled_though_no_layer_is_missing(tmp_path: Path):
    plan = plan_of("cpu")
    runner = buildkit_runner(tmp_path, plan)
    (tmp_path / "tree").mkdir()
    for step, key in layer_keys(plan).items():
        folder = runner.job.store.layer(key)
        write_layer(name=step.name, tree=tmp_path / "tree", folder=folder, epoch=EPOCH, threads=1)
    assert runner.commands() == runner.artifacts() == ()
    filling = buildkit_runner(tmp_path, plan, cache_to=("type=registry,ref=a",))
    assert len(filling.commands()) == 1
    assert filling.artifacts() == plan.artifacts


def write_tar(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member)
    return path


FOLDER = {"type": tarfile.DIRTYPE, "mode": 0o700, "mtime": 5}


def test_a_plain_layer_says_nothing_of_who_wrote_its_files(tmp_path: Path):
    tar = write_tar(
        tmp_path / "x.tar", ("opt", FOLDER), ("opt/env", FOLDER), ("opt/env/run", {"mode": 0o700, "uid": 7, "mtime": 9}),
        ("opt/env/same", {"type": tarfile.LNKTYPE, "linkname": "opt/env/run"}),
    )  # fmt: skip
    layer = write_layer_from_tar(
        name="python",
        tar=tar,
        folder=tmp_path / "layer",
        epoch=EPOCH,
        threads=1,
        omit=("", "opt"),
        plain=True,
    )
    found = {entry.path: (entry.mode, entry.uid, entry.mtime) for entry in read_manifest(layer)}
    assert found == dict.fromkeys(("opt/env", "opt/env/run", "opt/env/same"), (0o755, 0, EPOCH))


def test_a_plain_layer_refuses_what_would_run_as_another_user(tmp_path: Path):
    tar = write_tar(tmp_path / "x.tar", ("su", {"mode": 0o4755}))
    with pytest.raises(BuildError, match=r"`su`: it would run .*\(set-id bit\)"):
        write_layer_from_tar(name="x", tar=tar, folder=tmp_path / "layer", epoch=EPOCH, threads=1, plain=True)


# Progress


RUN_OF = "RUN --network=none --mount=type=bind,source=x,target=/step env -i A=b {} /steps/{} /step/spec.json /step/inputs {}"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("[internal] load build definition from Dockerfile", ""),
        ("[layers 2/5] COPY --link --from=python /out /", ""),
        ("[os 1/3] ADD os/root.tar /", ""),
        (f"[python 1/1] {RUN_OF.format('python3', 'wheels.py', '/out')}", "python: wheels.py"),
        ("exporting to oci image format", "BuildKit writes the layers"),
        ("exporting cache to registry", "BuildKit writes its cache"),
    ],
)
def test_the_title_of_a_vertex_is_its_stage_and_its_program(name: str, told: str):
    assert title(name) == told


def line(**value: object) -> str:
    return json.dumps(value)


def said(vertex: str, text: str) -> str:
    return line(logs=[{"vertex": vertex, "stream": 2, "data": base64.b64encode(text.encode()).decode()}])


RUN = f"[os 1/2] {RUN_OF.format('sh', 'x.sh', '/')}"


def test_an_instruction_that_ran_is_a_step_and_a_cached_one_is_not(capsys: pytest.CaptureFixture[str]):
    with BuildKitProgress(Console(color=False)) as progress:
        progress.feed(line(vertexes=[{"digest": "a", "name": RUN, "started": "1"}]))
        progress.feed(
            line(
                vertexes=[
                    {
                        "digest": "b",
                        "name": RUN.replace("x.sh", "old.sh"),
                        "started": "1",
                        "completed": "1",
                        "cached": True,
                    }
                ]
            )
        )
        progress.feed(line(vertexes=[{"digest": "a", "name": RUN, "started": "1", "completed": "2"}]))
    shown = capsys.readouterr().err
    assert "✓ os: x.sh" in shown
    assert "old" not in shown
    assert (progress.cached, progress.ran) == (1, 1)


def test_a_step_that_failed_shows_its_own_last_lines(capsys: pytest.CaptureFixture[str]):
    with BuildKitProgress(Console(color=False)) as progress:
        progress.feed(line(vertexes=[{"digest": "a", "name": RUN, "started": "1"}]))
        progress.feed(said("a", "one\ntwo\n"))
        progress.feed(
            line(
                vertexes=[
                    {"digest": "a", "name": RUN, "started": "1", "completed": "2", "error": "exit code: 1"}
                ]
            )
        )
        progress.feed("ERROR: failed to build")
    assert "✗ os: x.sh" in capsys.readouterr().err
    assert progress.failure == "os: x.sh\none\ntwo"
    assert progress.words == "ERROR: failed to build"


def test_what_runs_when_the_program_ends_is_closed_as_failed(capsys: pytest.CaptureFixture[str]):
    with BuildKitProgress(Console(color=False)) as progress:
        progress.feed(line(vertexes=[{"digest": "a", "name": RUN, "started": "1"}]))
    assert "✗ os: x.sh" in capsys.readouterr().err


# Troubles


class Failing(FakeRunner):
    """Programs whose arguments hold a word end badly, with these lines."""

    def __init__(
        self, word: str, error: Exception, lines: str = "", answers: dict[str, str] | None = None
    ) -> None:
        super().__init__(answers)
        self._word, self._error, self._lines = word, error, lines

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        if self._word in command.argv:
            for one in self._lines.splitlines():
                if on_line:
                    on_line(one)
            raise self._error
        return super().run(command, on_line=on_line)


BUILDX = {"docker": "github.com/docker/buildx 0.29.1 0.29.1"}


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (Failing("version", ToolError("`docker` is not installed")), "it is not installed"),
        (Failing("version", CommandError("unknown command")), "no plugin `buildx`"),
        (
            FakeRunner({"docker": "github.com/docker/buildx v0.12.1 x"}),
            "buildx 0.13 or newer is needed; found 0.12.1",
        ),
        (FakeRunner({"docker": "nothing"}), "found no version"),
        (
            Failing("inspect", CommandError("x\nno such builder"), answers=BUILDX),
            "the builder `far` does not answer: no such builder",
        ),
    ],
)
def test_a_missing_tool_is_a_finding_with_its_repair(runner: FakeRunner, words: str):
    with pytest.raises(ToolError) as caught:
        buildx.need_buildkit(Builder(name="far"), runner)
    (found,) = caught.value.findings
    assert words in found.message
    assert found.hint


def test_an_unreachable_engine_is_reported_although_inspect_succeeds():
    class Unreachable(FakeRunner):
        def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
            return (
                BUILDX["docker"] if "version" in command.argv else "Name: default\nError:   cannot connect\n"
            )

    with pytest.raises(ToolError) as caught:
        buildx.need_buildkit(Builder(), Unreachable())
    assert caught.value.findings[0].message == "the Docker engine does not answer: cannot connect"


def test_nothing_is_missing_where_a_builder_answers():
    buildx.need_buildkit(Builder(), FakeRunner(BUILDX))


BUILD = Command(argv=("docker", "buildx", "build"), why="build the layers with BuildKit")


def test_a_builder_that_writes_no_layout_is_a_missing_tool():
    words = "ERROR: OCI exporter is not supported for the docker driver."
    with pytest.raises(ToolError) as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), words), Console(quiet=True))
    (found,) = caught.value.findings
    assert found.message == "OCI exporter is not supported for the docker driver."
    assert "containerd-snapshotter" in found.hint


def test_a_failed_build_shows_the_last_lines_of_the_failed_instruction():
    lines = "\n".join(
        [
            line(vertexes=[{"digest": "a", "name": RUN, "started": "1"}]),
            said("a", "dpkg: x depends on y"),
            line(
                vertexes=[
                    {"digest": "a", "name": RUN, "started": "1", "completed": "2", "error": "exit code: 1"}
                ]
            ),
        ]
    )
    with pytest.raises(BuildError, match=r"(?s)with BuildKit: os: x.sh\ndpkg: x depends on y"):
        buildx.run(BUILD, Failing("build", CommandError("x"), lines), Console(quiet=True))


@pytest.mark.parametrize(
    ("stage", "program", "kind"),
    [
        ("extension-0", "extension.py", CompileError),
        ("wheel-causal-conv1d", "build_sdist.py", CompileError),
        ("extensions", "extensions.py", BuildError),
        ("python", "wheels.py", BuildError),
    ],
)
def test_only_a_failure_of_foreign_code_is_a_compile_error(stage: str, program: str, kind: type[BuildError]):
    """The layers of the cache are hashed after any other failure, because a damaged one may be its cause."""
    name = f"[{stage} 3/3] {RUN_OF.format('python3', program, '/out')}"
    lines = line(vertexes=[{"digest": "a", "name": name, "started": "1", "error": "exit code: 1"}])
    with pytest.raises(BuildError) as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), lines), Console(quiet=True))
    assert type(caught.value) is kind


def test_a_failed_program_of_warm_has_its_own_code():
    name = f"[warm 7/7] {RUN_OF.format('python3', 'warm.py', '/out')}"
    data = base64.b64encode(b"ModuleNotFoundError: No module named 'ops'\n").decode()
    lines = line(
        vertexes=[{"digest": "a", "name": name, "started": "1", "error": "exit code: 1"}],
        logs=[{"vertex": "a", "data": data}],
    )
    with pytest.raises(CompileError) as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), lines), Console(quiet=True))
    (finding,) = caught.value.findings
    assert (finding.code, finding.message) == (
        "EB638", "`warm` failed\nModuleNotFoundError: No module named 'ops'",
    )  # fmt: skip
    assert "`files` of `warm`" in finding.hint


IMPORT = "importing cache manifest from registry.site/cache"


def test_an_unreadable_cache_is_reported_and_is_not_the_failure(capsys: pytest.CaptureFixture[str]):
    absent = {
        "digest": "i",
        "name": IMPORT,
        "completed": "1",
        "error": "registry.site/cache:latest: not found",
    }
    failed = {"digest": "a", "name": RUN, "started": "1", "completed": "2", "error": "exit code: 1"}
    with BuildKitProgress(Console(color=False)) as progress:
        progress.feed(line(vertexes=[absent]))
        progress.feed(line(vertexes=[absent, failed]))
    told = "cannot read the cache `registry.site/cache`: registry.site/cache:latest: not found"
    assert capsys.readouterr().err.count(told) == 1
    assert progress.failure == "os: x.sh"


def exporting(error: str) -> str:
    name = "exporting cache to registry"
    return line(vertexes=[{"digest": "e", "name": name, "started": "1", "completed": "2", "error": error}])


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (
            exporting("dial tcp: connection refused"),
            "`--cache-to`: dial tcp: connection refused",
            "docker login",
        ),
        (
            exporting("http: server gave HTTP response to HTTPS client"),
            "`--cache-to`: http: server gave HTTP response to HTTPS client",
            "insecure-registries",
        ),
        (
            'ERROR: failed to build: failed to solve: unknown cache exporter: "registy"',
            '`--cache-to`: unknown cache exporter: "registy"',
            "type=registry",
        ),
        (
            "ERROR: failed to build: registry cache exporter requires ref",
            "`--cache-to`: registry cache exporter requires ref",
            "ref=",
        ),
        (
            "ERROR: failed to solve: failed to configure registry cache exporter: invalid reference format",
            "`--cache-to`: failed to configure registry cache exporter: invalid reference format",
            "ref=",
        ),
    ],
)
def test_a_cache_that_cannot_be_written_is_a_finding_with_its_repair(said: str, message: str, hint: str):
    with pytest.raises(BuildError) as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), said), Console(quiet=True))
    (found,) = caught.value.findings
    assert (found.code, found.message) == ("EB804", message)
    assert hint in found.hint


def test_an_engine_that_can_export_no_cache_is_a_missing_tool():
    words = "ERROR: failed to build: Cache export is not supported for the docker driver.\nSwitch to a different driver"
    with pytest.raises(ToolError, match="cannot export its cache") as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), words), Console(quiet=True))
    (found,) = caught.value.findings
    assert found.code == "EB803"
    assert "containerd-snapshotter" in found.hint


def test_the_number_of_cached_instructions_is_reported(capsys: pytest.CaptureFixture[str]):
    lines = line(vertexes=[{"digest": "a", "name": RUN, "started": "1", "completed": "1", "cached": True}])

    class Fed(FakeRunner):
        def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
            assert on_line
            on_line(lines)
            return ""

    buildx.run(BUILD, Fed(), Console(color=False))
    assert "BuildKit had 1 of 1 instructions in its cache" in capsys.readouterr().err


def test_a_full_disk_has_a_hint_and_passwords_are_redacted():
    words = "ERROR: write https://ann:s3cr3t@index.example/x: no space left on device"
    with pytest.raises(SpaceError, match=r"https://\*\*\*@index.example") as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), words), Console(quiet=True))
    assert caught.value.hint == "`docker builder prune` clears the cache of BuildKit"
    lines = f"{exporting('write /x: no space left on device')}\nERROR: write /x: no space left on device"
    with pytest.raises(SpaceError) as caught:
        buildx.run(BUILD, Failing("build", CommandError("x"), lines), Console(quiet=True))
    assert caught.value.hint == "`docker builder prune` clears the cache of BuildKit"


@pytest.mark.programs
def test_a_merged_command_gives_both_streams_to_its_reader():
    lines: list[str] = []
    runner = ProcessRunner({"PATH": "/usr/bin:/bin"})
    runner.run(
        Command(argv=("sh", "-c", "echo one; echo two >&2"), why="x", merged=True), on_line=lines.append
    )
    assert lines == ["one", "two"]
