"""The tools that build for another processor: what of them lies over an environment, and what runs without an emulator."""

import dataclasses
import os
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from envbuilder.builder.buildkit.uv_program import fetch_uv, uv_program
from envbuilder.builder.job import BuildJob
from envbuilder.builder.sandbox.foreign import emulation, make_tools, native_python, tools_tree
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot, sandboxed
from envbuilder.builder.sandbox.runner import SandboxRunner, minimal_python
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import FetchError, ToolError
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.model import Artifact, Tools
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support.debs import write_package
from tests.support.locks import make_artifact
from tests.support.plans import make_job

pytestmark = pytest.mark.programs
FILES = {
    "qemu-user": ("usr/bin/qemu-aarch64",),
    "gcc-12-aarch64-linux-gnu": (
        "usr/bin/aarch64-linux-gnu-gcc-12",
        "usr/lib/gcc-cross/aarch64-linux-gnu/12/cc1",
    ),
    "gcc-12": ("usr/bin/gcc-12", "usr/bin/x86_64-linux-gnu-gcc-12", "usr/lib/gcc/x86_64-linux-gnu/12/cc1"),
    "libc6": ("usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
    "python3.11-minimal": ("usr/bin/python3.11",),
}


def make_arm_job(folder: Path) -> BuildJob:
    """Return a job for 64-bit Arm, with toy tools in its store."""
    job = make_job(folder)
    artifacts: list[Artifact] = []
    for name, paths in FILES.items():
        package = write_package(folder / f"{name}.deb", [(path, path, 0o755) for path in paths])
        digest = sha256_file(package)
        job.store.add_artifact(digest, package)
        artifacts.append(dataclasses.replace(make_artifact(name, kind="deb"), sha256=Sha256(digest)))
    tools = Tools(emulator=artifacts[0], debs=tuple(artifacts[1:]), toolkit=())
    plan = dataclasses.replace(job.plan, platform="linux/arm64", tools=tools)
    steps = tuple(one for one in plan.steps if one is not plan.cuda)
    plan = dataclasses.replace(plan, steps=steps)
    return dataclasses.replace(job, plan=plan, runner=ProcessRunner(os.environ))


def test_only_what_names_a_processor_lies_over_an_environment(tmp_path: Path):
    job = make_arm_job(tmp_path)
    make_tools(job)
    over = tools_tree(job) / "usr"
    assert sorted(path.name for path in (over / "bin").iterdir()) == [
        "aarch64-linux-gnu-gcc-12", "x86_64-linux-gnu-gcc", "x86_64-linux-gnu-gcc-12",
    ]  # fmt: skip
    own = over / "lib/gcc/x86_64-linux-gnu/12"
    assert sorted(path.name for path in own.iterdir()) == ["as", "cc1", "ld"]
    assert (own / "as").readlink() == Path("/usr/bin/x86_64-linux-gnu-as")
    assert (over / "lib/gcc-cross/aarch64-linux-gnu/12/cc1").is_file()


def test_a_damaged_tool_is_named_and_unpacked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    job = make_arm_job(tmp_path)
    make_tools(job)
    states = [path.lstat().st_ctime_ns for path in sorted(tools_tree(job).rglob("*"))]
    make_tools(job)
    assert [path.lstat().st_ctime_ns for path in sorted(tools_tree(job).rglob("*"))] == states
    qemu = tools_tree(job) / "qemu-aarch64"
    right, before = qemu.read_bytes(), qemu.stat()
    qemu.write_bytes(right[:-1] + b"?")
    os.utime(qemu, ns=(before.st_atime_ns, before.st_mtime_ns))
    make_tools(job)
    assert qemu.read_bytes() == right
    assert (
        f"cache: tools/{tools_tree(job).name} is damaged: `qemu-aarch64` differs; made again"
        in caplog.messages
    )


def test_programs_of_another_processor_run_by_the_locked_qemu(tmp_path: Path):
    job = make_arm_job(tmp_path)
    make_tools(job)
    by = emulation(job, system=LayerFolder(place=Path("/layers/os")))
    assert by is not None
    assert by.program.read_text() == "usr/bin/qemu-aarch64"
    argv = sandboxed(
        SandboxRoot(os=LayerFolder(place=Path("/layers/os")), emulation=by), ("python", "-V"), why="test"
    ).argv
    at = argv.index("--")
    assert argv[3:at] == ("183", str(by.program), str(tools_tree(job) / "usr"), "/layers/os/usr")
    assert argv[at + 1] == "--unshare-all"


def test_the_python_of_the_distribution_is_a_native_one_while_it_is_configured(tmp_path: Path):
    job = make_arm_job(tmp_path)
    make_tools(job)
    assert native_python(job, tmp_path) == ()  # the root has none
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.11").touch()
    folder, start = native_python(job, tmp_path)
    assert (folder.target, start.target) == ("/usr/lib/x86_64-linux-gnu", "/usr/bin/python3.11")
    loader, real = start.source.read_text().split()[2:4]
    assert loader == "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    assert (folder.source / Path(real).name).read_text() == "usr/bin/python3.11"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_nothing_of_this_runs_for_the_machines_own_processor(machine: str, tmp_path: Path, monkeypatch):
    """`bench/arm` compares the bytes that a machine of each kind gives."""
    monkeypatch.setattr("envbuilder.core.processor.machine_name", lambda: machine)
    job = make_job(tmp_path) if machine == "x86_64" else make_arm_job(tmp_path)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.11").touch()
    assert emulation(job, system=LayerFolder(place=Path("/layers/os"))) is None
    assert native_python(job, tmp_path) == ()
    assert set(minimal_python(job)) <= set(job.plan.os.artifacts)
    artifacts = SandboxRunner(job=job).artifacts()
    assert not {one.sha256 for one in artifacts} & {one.sha256 for one in tools_of(job)}


def tools_of(job: BuildJob) -> tuple[Artifact, ...]:
    return job.plan.tools.artifacts if job.plan.tools else ()


def test_a_machine_for_arm_does_not_build_for_x86_64(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("envbuilder.core.processor.machine_name", lambda: "aarch64")
    job = make_job(tmp_path)
    with pytest.raises(ToolError, match=f"`{job.plan.name}` is for x86-64, and this machine is 64-bit Arm"):
        SandboxRunner(job=job).need_tools(Fetcher(job.store, lambda: (), offline=True))


@pytest.mark.parametrize("platform", ["manylinux2014_aarch64", "manylinux2014_x86_64"])
def test_uv_for_another_processor_is_that_of_the_indexs_wheel(tmp_path: Path, platform: str):
    job, version = make_arm_job(tmp_path), metadata.version("uv")
    page = tmp_path / "simple/uv"
    page.mkdir(parents=True)
    wheel = page / f"uv-{version}-py3-none-manylinux_2_17_aarch64.{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"uv-{version}.data/scripts/uv", "for Arm")
    (page / "index.html").write_text(f'<a href="{wheel.name}#sha256={sha256_file(wheel)}">{wheel.name}</a>')
    index = Sources(debian=(), indexes=(f"{(tmp_path / 'simple').as_uri()}/",))
    fetcher = Fetcher(job.store, lambda: index)
    if platform.endswith("x86_64"):
        with pytest.raises(FetchError, match=f"has a wheel of uv {version} for `manylinux2014_aarch64`"):
            fetch_uv(job, fetcher)
        return
    fetch_uv(job, fetcher)
    assert (uv_program(job).read_text(), uv_program(job).stat().st_mode & 0o777) == ("for Arm", 0o755)
    wheel.unlink()
    fetch_uv(job, fetcher)  # it is there
