"""Packages of conda are unpacked and relocated by conda's rules, and nothing of a hostile one leaves the prefix."""

import contextlib
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.conda_channel import OLD_PLACEHOLDER, PLACEHOLDER, CondaPackage, content_of
from tests.support.debs import header
from tests.support.step_programs import load_program

LIBRARY = b"\x7fELF" + PLACEHOLDER.encode() + b"/share:" + PLACEHOLDER.encode() + b"/etc\0rest\0"
TOOL = CondaPackage(
    name="tool",
    files={
        "bin/tool": f"#!/bin/sh\nexec {PLACEHOLDER}/bin/real {PLACEHOLDER}/etc\n",
        "lib/libtool.so": LIBRARY,
        "share/plain": "of the package\n",
    },
    runnable=("bin/tool",),
    links=(header("lib/libtool.so.1", tarfile.SYMTYPE, target="libtool.so"),),
)
PYTHON = CondaPackage(name="python", version="3.7.9", files={"bin/python3.7": b"\x7fELF\0"})


def unpack(packages: Iterable[CondaPackage], folder: Path) -> list[str]:
    """Write packages, and their tars as the first program does. Returns their files' names."""
    inputs, tars = folder / "packages", folder / "inputs/conda-tars"
    inputs.mkdir()
    tars.mkdir(parents=True)
    for package in packages:
        (inputs / package.filename).write_bytes(content_of(package))
    load_program("conda_tars").main(str(inputs), str(tars))
    return [package.filename for package in packages]


def install(folder: Path, *packages: CondaPackage, allow: tuple[str, ...] = ()) -> Path:
    """Install packages by both programs. Returns the prefix in OUT."""
    spec, out, prefix = folder / "spec.json", folder / "out", folder / "image/prefix"
    names = unpack(packages, folder)
    spec.write_text(json.dumps({"prefix": str(prefix), "packages": names, "allow_scripts": allow}))
    out.mkdir()
    load_program("conda_prefix").main(str(spec), str(folder / "inputs"), str(out))
    assert not os.path.lexists(prefix)
    return Path(f"{out}{prefix}")


def refusal(folder: Path, *packages: CondaPackage, allow: tuple[str, ...] = ()) -> str:
    program = load_program("conda_prefix")
    spec = folder / "spec.json"
    names = unpack(packages, folder)
    spec.write_text(json.dumps({"prefix": str(folder / "prefix"), "packages": names, "allow_scripts": allow}))
    with pytest.raises(program.CondaError) as error:
        program.main(str(spec), str(folder / "inputs"), str(folder / "out"))
    return str(error.value)


def test_text_and_binary_placeholders_become_the_prefix(tmp_path: Path):
    tree, prefix = install(tmp_path, TOOL), str(tmp_path / "image/prefix")
    assert (tree / "bin/tool").read_text() == f"#!/bin/sh\nexec {prefix}/bin/real {prefix}/etc\n"
    assert (tree / "bin/tool").stat().st_mode & 0o777 == 0o755
    library = (tree / "lib/libtool.so").read_bytes()
    assert len(library) == len(LIBRARY)
    assert library.startswith(b"\x7fELF%b/share:%b/etc\0" % (prefix.encode(), prefix.encode()))
    assert library.endswith(b"\0rest\0")
    assert str((tree / "lib/libtool.so.1").readlink()) == "libtool.so"
    assert (tree / "share/plain").stat().st_mode & 0o777 == 0o644


def test_a_package_without_paths_json_is_relocated_by_has_prefix(tmp_path: Path):
    files = {
        "etc/old": f"{OLD_PLACEHOLDER}/x",
        "etc/new": f"{PLACEHOLDER}/x",
        "lib/x.so": LIBRARY,
        "etc/none": "none",
    }
    tree = install(tmp_path, CondaPackage(name="old", old=True, files=files))
    prefix = str(tmp_path / "image/prefix")
    assert (tree / "etc/old").read_text() == (tree / "etc/new").read_text() == f"{prefix}/x"
    assert (tree / "lib/x.so").read_bytes().count(prefix.encode()) == 2
    assert (tree / "etc/none").read_text() == "none"


def test_a_placeholder_at_the_end_of_a_binary_file_is_replaced():
    relocated = load_program("conda_prefix").relocated
    assert relocated(b"\0/long/place/x", "/long/place", "/p", is_binary=True) == b"\0/p/x" + bytes(9)


def test_a_placeholder_that_is_shorter_than_the_prefix_is_refused():
    program = load_program("conda_prefix")
    with pytest.raises(program.CondaError, match="`/p` is shorter than `/long`"):
        program.relocated(b"/p\0", "/p", "/long", is_binary=True)


def test_noarch_python_goes_to_the_site_packages_of_its_python(tmp_path: Path):
    module = CondaPackage(
        name="app", noarch="python", entry_points=("app = app.main:run.all",),
        files={"site-packages/app/main.py": "run = 1\n", "python-scripts/app-old": f"#!{PLACEHOLDER}/bin/python\n"},
        runnable=("python-scripts/app-old",),
    )  # fmt: skip
    tree, prefix = install(tmp_path, module, PYTHON), tmp_path / "image/prefix"
    assert (tree / "lib/python3.7/site-packages/app/main.py").read_text() == "run = 1\n"
    assert (tree / "bin/app-old").read_text() == f"#!{prefix}/bin/python\n"
    script = (tree / "bin/app").read_text()
    assert script.startswith(f"#!{prefix}/bin/python\n")
    assert "from app.main import run\n" in script
    assert "sys.exit(run.all())" in script
    assert (tree / "bin/app").stat().st_mode & 0o777 == 0o755
    record = json.loads((tree / "conda-meta/app-1.0-h0_0.json").read_text())
    assert record["name"] == "app"
    assert record["files"] == ["bin/app", "bin/app-old", "lib/python3.7/site-packages/app/main.py"]


def test_a_python_may_say_where_its_packages_are(tmp_path: Path):
    module = CondaPackage(name="app", noarch="python", files={"site-packages/app.py": ""})
    free = CondaPackage(
        name="python", version="3.7.9", index={"python_site_packages_path": "lib/python3.7t/site-packages"}
    )
    assert (install(tmp_path, module, free) / "lib/python3.7t/site-packages/app.py").is_file()


def test_noarch_python_without_a_python_is_refused(tmp_path: Path):
    module = CondaPackage(name="app", noarch="python", files={"site-packages/app.py": ""})
    assert "`app` is a package of Python, and `python` is not among the packages" in refusal(tmp_path, module)


def test_byte_code_of_packages_is_left_out(tmp_path: Path):
    """Python 3.7 is too old for `byte_code.py`, so none is made."""
    stale = {"lib/python3.7/x.py": "", "lib/python3.7/__pycache__/x.cpython-37.pyc": "stale"}
    tree = install(tmp_path, CondaPackage(name="x", files=stale), PYTHON)
    assert [path.name for path in (tree / "lib").rglob("x*")] == ["x.py"]


SCRIPT = {
    "bin/.hook-post-link.sh": 'echo "$PREFIX $PKG_NAME $PKG_VERSION" >"$PREFIX/made"; echo hi >.messages.txt\n'
}


def test_a_post_link_script_that_is_not_allowed_is_refused(tmp_path: Path):
    message = refusal(tmp_path, TOOL, CondaPackage(name="hook", files=SCRIPT), allow=("tool",))
    assert "`hook` has a script that runs when it is installed, `bin/.hook-post-link.sh`" in message
    assert "`allow_scripts: [hook]`" in message


def test_a_script_among_those_of_python_is_one_too(tmp_path: Path):
    files = {f"python-scripts/{path.removeprefix('bin/')}": text for path, text in SCRIPT.items()}
    hook = CondaPackage(name="hook", noarch="python", files=files)
    assert "`hook` has a script that runs when it is installed" in refusal(tmp_path, PYTHON, hook)


def test_a_pre_link_script_is_refused(tmp_path: Path):
    hook = CondaPackage(name="hook", files={"bin/.hook-pre-link.sh": ""})
    assert "`hook` has a pre-link script" in refusal(tmp_path, hook, allow=("hook",))


@pytest.mark.programs
def test_an_allowed_post_link_script_runs_in_the_prefix(tmp_path: Path):
    tree = install(tmp_path, CondaPackage(name="hook", files=SCRIPT), allow=("hook",))
    assert (tree / "made").read_text() == f"{tmp_path}/image/prefix hook 1.0\n"
    assert not (tree / ".messages.txt").exists()


@pytest.mark.programs
def test_a_post_link_script_that_fails_is_named(tmp_path: Path):
    hook = CondaPackage(name="hook", files={"bin/.hook-post-link.sh": "exit 3\n"})
    assert "post-link script of `hook` ended with exit code 3" in refusal(tmp_path, hook, allow=("hook",))


def test_the_later_package_has_a_path_that_two_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    second = CondaPackage(name="zool", files={"share/plain": "of another\n"})
    tree = install(tmp_path, TOOL, second)
    assert (tree / "share/plain").read_text() == "of another\n"
    assert "`share/plain` is from zool, and no longer from tool" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "links", "words"),
    [
        ({"../out": "x"}, (), "would leave its folder"),
        ({"/etc/passwd": "x"}, (), "would leave its folder"),
        ({}, (header("dev/null", tarfile.CHRTYPE),), "no file, folder or link"),
    ],
)
def test_a_hostile_package_is_refused(files, links, words, tmp_path: Path):
    assert words in refusal(tmp_path, CondaPackage(name="evil", files=files, links=links))


def test_nothing_is_written_through_a_link_of_another_package(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    link = CondaPackage(name="a", links=(header("lib", tarfile.SYMTYPE, target=f"{tmp_path}/outside"),))
    file = CondaPackage(name="b", files={"lib/x": "x"})
    assert "`lib/x` behind a link that leaves its folder" in refusal(tmp_path, link, file)
    assert list((tmp_path / "outside").iterdir()) == []


def test_nothing_is_taken_from_behind_a_link_of_the_package(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    paths = json.dumps({"paths": [{"_path": "lib/secret", "path_type": "hardlink"}]})
    link = header("lib", tarfile.SYMTYPE, target=f"{tmp_path}/outside")
    package = CondaPackage(name="evil", old=True, files={"info/paths.json": paths}, links=(link,))
    assert "`lib/secret` behind a link that leaves its folder" in refusal(tmp_path, package)
    assert (tmp_path / "outside/secret").is_file()


def test_a_package_that_lists_what_it_lacks_is_refused(tmp_path: Path):
    paths = json.dumps({"paths": [{"_path": "bin/x", "path_type": "hardlink"}]})
    package = CondaPackage(name="less", old=True, files={"info/paths.json": paths})
    assert "lists `bin/x`, and does not hold it" in refusal(tmp_path, package)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a-1-0.conda", b"no zip"), ("a-1-0.tar.bz2", b"no bzip2"), ("a-1-0.conda", content_of(TOOL)[:-200])],
)
def test_a_file_that_is_no_package_is_named(name: str, content: bytes, tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    with pytest.raises(SystemExit, match=f"`{name}` is not a readable package of conda"):
        load_program("conda_tars").main(str(tmp_path / "in"), str(tmp_path / "out"))


@pytest.mark.programs
def test_dpkg_reads_zstd_where_python_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = load_program("conda_tars")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / TOOL.filename).write_bytes(content_of(TOOL))
    for folder, module in (("by-python", program.find_zstandard), ("by-dpkg", lambda: None)):
        monkeypatch.setattr(program, "find_zstandard", module)
        (tmp_path / folder).mkdir()
        program.main(str(tmp_path / "in"), str(tmp_path / folder))
    names = [path.name for path in (tmp_path / "by-dpkg" / TOOL.filename).iterdir()]
    assert sorted(names) == ["info-.tar", "pkg-.tar"]
    for name in names:
        places = (tmp_path / folder / TOOL.filename / name for folder in ("by-dpkg", "by-python"))
        with contextlib.ExitStack() as stack:
            by_dpkg, by_python = (stack.enter_context(tarfile.open(place)).getnames() for place in places)
        assert by_dpkg == by_python
