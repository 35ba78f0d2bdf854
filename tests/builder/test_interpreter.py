"""The standalone Python: what of its archive comes to /opt/python, and that it works there. A stand-in takes its archive's place."""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.job import prepare_run
from envbuilder.builder.sandbox.root import program_command
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.errors import CommandError
from envbuilder.core.process import ProcessRunner
from envbuilder.plan.model import InterpreterStep
from envbuilder.runners.sandbox import take_over
from envbuilder.steps import interpreter
from tests.support.locks import make_artifact
from tests.support.plans import make_plan
from tests.support.sdists import HOST
from tests.support.standalone import COMPILE, EXTENSION, UNWANTED, write_stand_in

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def install(folder: Path, archive: Path) -> Path:
    """Install the archive as a build does, in a sandbox with this machine's programs. Returns its folder there."""
    locked = replace(make_artifact("cpython", "1", kind="archive"), sha256=sha256_file(archive))
    store = Store(folder / "cache")
    store.add_artifact(locked.sha256, shutil.copy(archive, folder / "copy"))
    program = InterpreterStep(python=MINOR, archive=locked).made_by(make_plan())
    out = prepare_run(program, folder, store)
    ProcessRunner(os.environ).run(program_command(program, HOST, folder))
    take_over(out)
    return out / "opt/python"


@pytest.mark.programs
@pytest.mark.parametrize("name", ["python/../../etc/passwd", "/etc/passwd", "other/file", "../python/x"])
def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, name: str):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for member in ("python/x", name):
            tar.addfile(tarfile.TarInfo(member))
    with pytest.raises(
        CommandError, match=r"other files than those below python/|no archive of a standalone"
    ):
        install(tmp_path, tmp_path / "a.tar.gz")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "../.."])
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, target: str):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/y").symlink_to("../lib/z")
    interpreter.need_plain(tmp_path)
    (tmp_path / "lib/x").symlink_to(target)
    with pytest.raises(SystemExit, match=r"holds the link `.*/lib/x` to .*, outside of its folder"):
        interpreter.need_plain(tmp_path)


@pytest.mark.programs
def test_a_file_of_another_form_is_no_archive(tmp_path: Path):
    (tmp_path / "a.tar.gz").write_text("a page of a proxy")
    with pytest.raises(CommandError, match="is no archive of a standalone Python"):
        install(tmp_path, tmp_path / "a.tar.gz")


@pytest.mark.programs
def test_an_archive_that_unpacks_to_far_more_than_others_is_refused(tmp_path: Path):
    member = tarfile.TarInfo("python/zeros")
    member.size = 400 << 20
    with gzip.open(tmp_path / "a.tar.gz", "wb") as packed:
        packed.write(member.tobuf())
        for _ in range(400):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1024))
    with pytest.raises(CommandError, match="is no archive of a standalone Python"):
        install(tmp_path, tmp_path / "a.tar.gz")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("'prefix': '/install'", "'prefix': '/opt/python'"),
        ("-L/install/lib -Wl,-rpath,/install/lib", "-L/opt/python/lib -Wl,-rpath,/opt/python/lib"),
        ("-I/install/include/python3.10", "-I/opt/python/include/python3.10"),
        ("LIBDIR=/install/lib", "LIBDIR=/opt/python/lib"),
        ("/usr/bin/install -c; ./install-sh /installed", "/usr/bin/install -c; ./install-sh /installed"),
        ("'CC': 'clang -pthread'", "'CC': 'gcc -pthread'"),
        ('"CXX": "clang++"', '"CXX": "g++"'),
        ("/usr/bin/x86_64-linux-gnu-gcc -pthread -shared", "gcc -pthread -shared"),
        ("/usr/bin/aarch64-linux-gnu-g++ -pthread", "g++ -pthread"),
        ("AR=/tools/clang-linux64/bin/llvm-ar", "AR=ar"),
        ("-march=x clang-19 libclang.so /tools/clang/lib", "-march=x clang-19 libclang.so /tools/clang/lib"),
    ],
)
def test_paths_and_compilers_of_the_machine_that_built_it_are_replaced(before: str, after: str):
    assert interpreter.relocated(before) == after


def in_sandbox(place: Path, *argv: str) -> str:
    sandbox = (
        "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/opt", "--bind", place, "/opt/python",
        "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc",
        "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--",
    )  # fmt: skip
    return subprocess.run((*sandbox, *argv), check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = Path(sys.base_prefix)
    if not (prefix / "include" / f"python{MINOR}" / "Python.h").exists():
        pytest.skip("this machine's Python has no headers")
    path = tmp_path_factory.mktemp("stand-in") / "python.tar.gz"
    write_stand_in(prefix, MINOR, path)
    return path


@pytest.mark.programs
def test_a_python_is_installed_at_its_place_with_the_same_bytes_each_time(archive: Path, tmp_path: Path):
    one, two = (install(tmp_path / name, archive) for name in ("one", "two"))
    trees = [
        {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (one, two)
    ]
    assert trees[0] == trees[1]
    assert not {path.format(MINOR) for path in UNWANTED} & trees[0].keys()
    told = next(name for name in trees[0] if "_sysconfigdata_" in name and name.endswith(".py"))
    assert b"/install/" not in trees[0][told]
    assert b"clang" not in trees[0][told]
    code = f"lib/python{MINOR}/__pycache__/shlex.{sys.implementation.cache_tag}.pyc"
    assert trees[0][code][4:8] == b"\x01\0\0\0"  # not checked against its source
    assert (one / "bin/python").readlink() == Path(f"python{MINOR}")


@pytest.mark.programs
def test_an_extension_compiles_by_what_it_says_of_its_build(archive: Path, tmp_path: Path):
    place = install(tmp_path, archive)
    script = f"cat >/tmp/small.c <<'C'\n{EXTENSION}\nC\nexec /opt/python/bin/python{MINOR} -c '{COMPILE}'"
    said = in_sandbox(place, "/bin/sh", "-c", script)
    assert said.split() == ["42", "gcc", f"/opt/python/include/python{MINOR}"]


def test_a_python_of_another_form_is_refused(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / f"lib/python{MINOR}").mkdir(parents=True)
    with pytest.raises(SystemExit, match="it has no `_sysconfigdata_"):
        interpreter.main(tmp_path)
