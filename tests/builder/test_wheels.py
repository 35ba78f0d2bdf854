"""Wheels of source distributions: built in the sandbox by content, with the same bytes each time."""

import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.extensions.built_wheels import built_wheels, wheel_commands, wheel_key
from envbuilder.builder.extensions.compiled import known_memory, save_memory
from envbuilder.builder.job import BuildJob, SharedStores
from envbuilder.builder.upkeep import share
from envbuilder.core.cache import Store
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.process import Command, Runner
from envbuilder.core.system import Limits
from envbuilder.lock.model import Lock
from tests.support.plans import RECIPE, deb, make_plan, sdist, wheel
from tests.support.registries import registry
from tests.support.runner import FakeRunner
from tests.support.sdists import HOST, make_job, own_backend, sdist_job, sdist_step, with_sdist, with_source
from tests.support.stores import Listening, open_shared, write_keys


@pytest.mark.programs
def test_a_c_source_gives_the_same_wheel_each_time(tmp_path: Path) -> None:
    content = set()
    for name in ("first", "second"):
        job = sdist_job(tmp_path / name, with_source("zlang", "1.0"))
        (built,) = built_wheels(sdist_step(job.plan), job, lambda _: HOST)
        content.add(built.read_bytes())
    assert len(content) == 1
    with zipfile.ZipFile(built) as archive:
        assert archive.namelist() == sorted(archive.namelist())
        assert "fast.so" in archive.namelist()
        assert b"/space" not in archive.read("fast.so"), "without debug information, which names folders"


@pytest.mark.programs
def test_a_wheel_is_built_once(tmp_path: Path) -> None:
    job = sdist_job(tmp_path, with_source("zlang", "1.0"))
    step = sdist_step(job.plan)
    assert len(tuple(wheel_commands(step, job, root=lambda _: HOST, work=tmp_path))) == 1
    first = built_wheels(step, job, lambda _: HOST)
    idle = replace(job, runner=FakeRunner())
    assert built_wheels(step, idle, lambda _: HOST) == first
    assert tuple(wheel_commands(step, job, root=lambda _: HOST, work=tmp_path)) == ()


@pytest.mark.programs
def test_a_damaged_wheel_is_named_and_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = sdist_job(tmp_path, with_source("zlang", "1.0"))
    (wheel,) = built_wheels(sdist_step(job.plan), job, lambda _: HOST)
    right, before = wheel.read_bytes(), wheel.stat()
    flipped = bytearray(right)
    flipped[len(right) // 2] ^= 1
    for damage in (bytes(flipped), b"", right[:100]):
        wheel.write_bytes(damage)
        os.utime(wheel, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert built_wheels(sdist_step(job.plan), job, lambda _: HOST) == (wheel,)
        assert wheel.read_bytes() == right
    (wheel.parent / "zlang-9-py3-none-any.whl").write_bytes(right)
    assert built_wheels(sdist_step(job.plan), job, lambda _: HOST) == (wheel,)
    assert f"cache: extensions/{wheel.parent.name} is damaged: `{wheel.name}` differs" in caplog.text


@pytest.mark.programs
def test_a_second_machine_takes_the_wheel_from_the_store(tmp_path: Path) -> None:
    def machine(job: BuildJob, cache: Store, runner: Runner) -> bytes:
        store = open_shared(f"{real.host}/team/extensions", key, cache, job.console)
        own = replace(job, store=cache, runner=runner, shared=SharedStores(extensions=store))
        (wheel,) = built_wheels(sdist_step(own.plan), own, lambda _: HOST)
        share(own)
        return wheel.read_bytes()

    key, job, idle = write_keys(tmp_path), sdist_job(tmp_path, with_source("zlang", "1.0")), FakeRunner()
    with registry(tmp_path / "registry") as real:
        made = machine(job, job.store, job.runner)
        assert machine(job, Store(tmp_path / "second"), idle) == made
    assert idle.commands == []


@pytest.mark.programs
def test_a_build_that_fails_says_where_missing_packages_belong(tmp_path: Path) -> None:
    job = sdist_job(tmp_path, with_source("zlang", "1.0") | {"fast.c": "#include <nowhere.h>"})
    with pytest.raises(BuildError) as caught:
        built_wheels(sdist_step(job.plan), job, lambda _: HOST)
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("EB625", "fast.c:1:10")
    assert finding.message.splitlines() == [
        "the source distribution `zlang 1.0` does not compile: the header `nowhere.h` is missing",
        "    fast.c:1:10: fatal error: nowhere.h: No such file or directory",
        "        1 | #include <nowhere.h>",
    ]
    assert "`apt`" in caught.value.hint


@pytest.mark.programs
def test_a_build_that_ends_in_an_exception_is_told_by_it_first(tmp_path: Path) -> None:
    refusing = "def build_wheel(*_, **__):\n    raise RuntimeError('it needs a newer compiler')\n"
    job = sdist_job(tmp_path, with_source("zlang", "1.0") | {"backend.py": refusing})
    with pytest.raises(BuildError) as caught:
        built_wheels(sdist_step(job.plan), job, lambda _: HOST)
    assert caught.value.message.splitlines() == [
        "RuntimeError: it needs a newer compiler",
        "  so ends the build of the source distribution `zlang 1.0`",
    ]
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("EB637", "backend.py:2")


ONE, TOOL = sdist("zlang", "1.0"), wheel("setuptools", "80.0.0")


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        (with_sdist(replace(ONE, sha256=TOOL.sha256), TOOL), True),
        (with_sdist(ONE, wheel("setuptools", "81.0.0")), True),
        (replace(with_sdist(ONE, TOOL), debs=(deb("gcc-12", "12.2.0-15"), deb("libc6", "2.36-9"))), True),
        (replace(with_sdist(ONE, TOOL), wheels=(wheel("einops", "1.0"), ONE)), False),
        (replace(with_sdist(ONE, TOOL), epoch=1), False),
    ],
    ids=["source", "tool", "compiler", "other-package", "epoch"],
)
def test_the_key_of_a_wheel_holds_what_decides_its_bytes(change: Lock, is_other: bool) -> None:
    before, after = (
        wheel_key(sdist_step(plan).made_by(plan).parts[0], plan)
        for plan in (make_plan(RECIPE, with_sdist(ONE, TOOL)), make_plan(RECIPE, change))
    )
    assert (before != after) == is_other


# What ninja does, as far as a build that goes on needs it: it notes what is complete, and says which of how many commands is done.
NINJA = """

pure = build_wheel


def build_wheel(folder, config_settings=None, metadata_directory=None):
    import os, subprocess

    os.makedirs("build/temp.x", exist_ok=True)
    log = "build/temp.x/.ninja_log"
    known = open(log).read() if os.path.exists(log) else ""
    names = [name for name in ("a", "b", "c", "d") if "/%s.o" % name not in known]
    for number, name in enumerate(names, 1):
        object = os.path.abspath("build/temp.x/%s.o" % name)
        subprocess.run([os.environ["CC"], "-c", "part.c", "-DPART=" + name, "-o", object], check=True)
        with open(log, "a") as stream:
            stream.write("0\\t9\\t7\\t%s\\tab\\n" % object)
        print("[%d/%d] gcc -c %s.c" % (number, len(names), name), flush=True)
    wheel = pure(folder)
    with zipfile.ZipFile(folder + "/" + wheel, "a") as archive:
        archive.writestr("jobs.txt", os.environ["MAX_JOBS"])
        for name in ("a", "b", "c", "d"):
            archive.write("build/temp.x/%s.o" % name, name + ".o")
    return wheel
"""


class Stopping(Listening):
    """A user who stops the build when a line says so."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def say(self, text: str) -> None:
        super().say(text)
        if self.at in text:
            raise KeyboardInterrupt


@pytest.mark.programs
def test_a_build_that_is_stopped_goes_on_and_makes_the_same_wheel(tmp_path: Path) -> None:
    files = own_backend("zlang", "1.0") | {"part.c": "int PART(void) { return 1; }\n"}
    files["backend.py"] += NINJA
    job, console = sdist_job(tmp_path / "first", files), Stopping("(2 of 4 commands")
    with pytest.raises(KeyboardInterrupt):
        built_wheels(sdist_step(job.plan), replace(job, console=console), lambda _: HOST)
    assert console.said == ["  zlang 1.0: a.c (1 of 4 commands)", "  zlang 1.0: b.c (2 of 4 commands)"]
    (space,) = (job.store.root / "build-directories").iterdir()
    (space / "src/build/temp.x/c.o").write_text("half")
    (wheel,) = built_wheels(
        sdist_step(job.plan), replace(job, console=(again := Listening())), lambda _: HOST
    )
    assert again.said == ["  zlang 1.0: c.c (1 of 2 commands)", "  zlang 1.0: d.c (2 of 2 commands)"]
    whole = sdist_job(tmp_path / "second", files)
    assert built_wheels(sdist_step(whole.plan), whole, lambda _: HOST)[0].read_bytes() == wheel.read_bytes()


@pytest.mark.programs
def test_a_build_starts_as_many_compilers_as_the_last_one_had_memory_for(tmp_path: Path) -> None:
    files = own_backend("zlang", "1.0") | {"part.c": "int PART(void) { return 1; }\n"}
    files["backend.py"] += NINJA
    limits = Limits(threads=8, memory=64 << 30, root=True)
    job = replace(sdist_job(tmp_path, files), limits=limits)
    (sdist,) = sdist_step(job.plan).sdists
    jobs = []
    for memory in (0, 20 << 30):
        if memory:
            save_memory(sdist, job.origin, job.store, memory)
        (wheel,) = built_wheels(sdist_step(job.plan), job, lambda _: HOST)
        jobs.append(zipfile.ZipFile(wheel).read("jobs.txt"))
        assert 1 << 20 < known_memory(sdist, job.origin, job.store) < 1 << 30, "what this build took"
        shutil.rmtree(wheel.parent)
    assert jobs == [b"8", b"3"]


class Killing(FakeRunner):
    """A build whose compiler needs more memory than there is."""

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        folder = Path(command.argv[command.argv.index("/out") - 1])
        (folder / "memory").write_text(f"{10 << 30}")
        assert on_line is not None
        on_line("g++: fatal error: Killed signal terminated program cc1plus")
        raise CommandError(f"could not {command.why}: `bwrap` ended with exit code 1")


def test_after_a_compiler_was_killed_a_build_of_an_sdist_starts_fewer_and_says_so(tmp_path: Path) -> None:
    job = make_job(tmp_path, with_sdist(ONE), Killing())
    job = replace(job, limits=Limits(threads=8, memory=64 << 30, root=True))
    (tmp_path / "archive").write_text("")
    job.store.add_artifact(ONE.sha256, tmp_path / "archive")
    with pytest.raises(BuildError) as caught:
        built_wheels(sdist_step(job.plan), job, lambda _: HOST)
    assert caught.value.hint == (
        "the largest process had 10.7 GB, with up to 8 at once; the next build runs up to 4 at once and keeps what is compiled; "
        "name a version that has a wheel, or build on a machine with more memory"
    )
    assert known_memory(ONE, job.origin, job.store) == 16 << 30


class LeavingLink(FakeRunner):
    """A build whose project leaves a link to a file of the machine."""

    def __init__(self, target: Path) -> None:
        super().__init__()
        self.target = target

    def run(self, command: Command, *, on_line: Callable[[str], None] | None = None) -> str:
        folder = Path(command.argv[command.argv.index("/out") - 1])
        (folder / "zlang-1.0-py3-none-any.whl").symlink_to(self.target)
        return ""


def test_a_link_in_place_of_a_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    one = sdist("zlang", "1.0")
    job = make_job(tmp_path, with_sdist(one), LeavingLink(tmp_path / "secret"))
    (tmp_path / "archive").write_text("")
    job.store.add_artifact(one.sha256, tmp_path / "archive")
    with pytest.raises(BuildError, match=r"zlang-1\.0-py3-none-any\.whl` is a link"):
        built_wheels(sdist_step(job.plan), job, lambda _: HOST)
