"""The standalone Python: what of its archive comes to /opt/python, and that it works there. A stand-in takes its archive's place."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from envbuilder.builder.assemble.interpreter import unpack

from envbuilder import runtime as image
from envbuilder.core.errors import BuildError
from envbuilder.runtime.kit.install_python import relocated
from tests.support.standalone import COMPILE, EXTENSION, UNWANTED, write_stand_in

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def write_archive(path: Path, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o775 if "/bin/" in name else 0o664
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def test_files_and_links_are_unpacked_without_the_folder_around_them(tmp_path: Path):
    files = {"python/bin/python3.10": b"program", "python/lib/x.py": b"x = 1"}
    links = {"python/bin/python": "python3.10", "python/lib/y.py": "../lib/x.py"}
    unpack(write_archive(tmp_path / "a.tar.gz", files, links), tmp_path / "opt/python")
    found = {
        path.relative_to(tmp_path / "opt"): path
        for path in (tmp_path / "opt").rglob("*")
        if not path.is_dir()
    }
    assert {str(name): path.read_bytes() for name, path in found.items()} == files | {
        "python/bin/python": b"program", "python/lib/y.py": b"x = 1",
    }  # fmt: skip
    modes = {str(name): path.lstat().st_mode & 0o777 for name, path in found.items() if not path.is_symlink()}
    assert modes == {"python/bin/python3.10": 0o755, "python/lib/x.py": 0o644}


@pytest.mark.parametrize("name", ["python/../../etc/passwd", "/etc/passwd", "other/file", "../python/x"])
def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, name: str):
    archive = write_archive(tmp_path / "a.tar.gz", {name: b"x"})
    with pytest.raises(BuildError, match=r"a\.tar\.gz.* holds .*, expected everything below `python/`"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "../.."])
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, target: str):
    archive = write_archive(tmp_path / "a.tar.gz", {}, {"python/lib/x": target})
    with pytest.raises(BuildError, match=r"holds the link `python/lib/x` to .*, outside of `python/`"):
        unpack(archive, tmp_path / "out")


def test_a_file_of_another_form_is_no_archive(tmp_path: Path):
    (tmp_path / "a.tar.gz").write_text("a page of a proxy")
    with pytest.raises(BuildError, match="is no archive of a standalone Python"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


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
    assert relocated(before, "/opt/python") == after


def install(folder: Path, archive: Path) -> Path:
    """Install the archive as a build does, in a sandbox with this machine's programs. Returns its folder there."""
    place = folder / "python"
    unpack(archive, place)
    in_sandbox(place, f"/opt/python/bin/python{MINOR}", "-B", "/mnt/install_python.py", "/opt/python")
    return place


def in_sandbox(place: Path, *argv: str) -> str:
    sandbox = (
        "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/opt", "--bind", place, "/opt/python",
        "--ro-bind", image.path("kit"), "/mnt", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc",
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


def test_the_progress_of_a_python_is_the_archives_bytes(archive: Path, tmp_path: Path):
    told: list[int] = []
    unpack(archive, tmp_path / "python", advance=told.append)
    size = archive.stat().st_size
    assert len([one for one in told if one]) > 10
    assert 0.9 * size < sum(told) <= size


@pytest.mark.programs
def test_an_extension_compiles_by_what_it_says_of_its_build(archive: Path, tmp_path: Path):
    place = install(tmp_path, archive)
    script = f"cat >/tmp/small.c <<'C'\n{EXTENSION}\nC\nexec /opt/python/bin/python{MINOR} -c '{COMPILE}'"
    said = in_sandbox(place, "/bin/sh", "-c", script)
    assert said.split() == ["42", "gcc", f"/opt/python/include/python{MINOR}"]


@pytest.mark.programs
def test_a_python_of_another_form_is_refused(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / f"lib/python{MINOR}").mkdir(parents=True)
    ended = subprocess.run(
        (sys.executable, image.path("kit/install_python.py"), tmp_path),
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "it has no `_sysconfigdata_*.py`, so it is no standalone Python of a known form" in ended.stderr
