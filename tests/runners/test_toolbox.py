"""The toolbox: what its lock names, and programs that run by its own loader from any folder."""

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import FetchError, ToolError
from envbuilder.core.process import ProcessRunner
from envbuilder.runners.toolbox import (
    LOADER,
    LOCK,
    PROGRAMS,
    ToolboxFile,
    bwrap_version,
    make_toolbox,
    open_sandbox,
    toolbox_files,
    toolbox_folder,
    unpack_toolbox,
)
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support.debs import header, write_package
from tests.support.runner import SAYS, Machine


def test_the_lock_of_the_toolbox_names_no_host_and_what_is_needed():
    rows = json.loads(LOCK.read_text(encoding="utf-8"))
    assert "://" not in LOCK.read_text(encoding="utf-8")
    names = [one["name"] for one in rows]
    assert names == sorted(set(names))
    assert {"apt", "bubblewrap", "debian-archive-keyring", "gpgv", "libc6", "proot", "ubuntu-keyring"} <= set(
        names
    )
    assert {one.source for one in toolbox_files()} <= {"debian", "debian-security"}
    assert sum(one.size for one in toolbox_files()) < 14e6


@pytest.mark.programs
def test_a_program_runs_by_the_toolboxs_loader_in_any_folder(tmp_path: Path):
    library = Path("/lib/x86_64-linux-gnu")
    deb = write_package(
        tmp_path / "some.deb",
        [
            ("./bin/echo", Path("/bin/echo").read_bytes(), 0o755),
            header("./bin/say", tarfile.SYMTYPE, target="echo"),
            header("./bin/out", tarfile.SYMTYPE, target="/etc/passwd"),
            header("./etc/conf"),
            ("./lib/x86_64-linux-gnu/libc.so.6", (library / "libc.so.6").read_bytes(), 0o644),
            (f"./{LOADER}", (library / "ld-linux-x86-64.so.2").read_bytes(), 0o755),
        ],
    )
    root = tmp_path / "a b é"
    owners = unpack_toolbox((deb,), root)
    assert owners["usr/bin/echo"] == deb
    assert not (root / PROGRAMS / "out").is_symlink()
    moved = root.rename(tmp_path / "moved ü")
    said = subprocess.run(
        ["say", "1 2", "3"],
        env={"PATH": f"{moved / PROGRAMS}:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "1 2 3\n"


def test_offline_without_the_packages_nothing_is_left(tmp_path: Path):
    store = Store(tmp_path / "cache")
    fetcher = Fetcher(store, lambda: Sources(debian=(), snapshot=""), offline=True)
    with pytest.raises(FetchError, match=f"{len(toolbox_files())} files are not in the cache"):
        make_toolbox(store, fetcher, Console(quiet=True).step)
    assert not any((store.root / "tools").iterdir())


@pytest.mark.parametrize(
    ("do", "how"),
    [
        (lambda path: path.write_bytes(b""), "differs"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"good", b"evil")), "differs"),
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.with_name("apt-evil").write_text("x"), "was added"),
    ],
)
def test_a_damaged_toolbox_is_named_and_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    do: Callable[[Path], object], how: str,
):  # fmt: skip
    store = Store(tmp_path / "cache")
    deb = write_package(tmp_path / "some.deb", [("./usr/bin/apt-get", b"#!/bin/sh\necho good\n", 0o755)])
    digest = sha256_file(deb)
    store.add_artifact(digest, deb)
    locked = ToolboxFile(
        name="apt", version="1", sha256=digest, size=deb.stat().st_size, source="debian", path="some.deb"
    )
    monkeypatch.setattr("envbuilder.runners.toolbox.toolbox_files", lambda: (locked,))
    fetcher = Fetcher(store, lambda: Sources(debian=()), offline=True)
    folder = make_toolbox(store, fetcher, Console(quiet=True).step)
    do(folder / PROGRAMS / "apt-get")
    assert make_toolbox(Store(store.root), fetcher, Console(quiet=True).step) == folder
    assert (folder / PROGRAMS / "apt-get").read_bytes() == b"#!/bin/sh\necho good\n"
    assert not (folder / PROGRAMS / "apt-evil").exists()
    name = "apt-evil" if how == "was added" else "apt-get"
    assert caplog.messages == [f"cache: tools/{folder.name} is damaged: `usr/bin/{name}` {how}; made again"]
    do(folder / PROGRAMS / "apt-get")
    store.artifact(digest).unlink()
    with pytest.raises(FetchError, match=r"some\.deb"):  # offline, it cannot be made again
        make_toolbox(Store(store.root), fetcher, Console(quiet=True).step)


@pytest.mark.programs
def test_a_machine_that_refuses_every_sandbox_is_told_why(tmp_path: Path):
    program = tmp_path / "usr/bin/bwrap"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'No permissions' >&2; exit 1\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)  # for root, another id starts it
    store = Store(tmp_path / "cache")
    (tmp_path / "empty").mkdir()
    store.commit(tmp_path / "empty", toolbox_folder(store))
    fetcher = Fetcher(store, lambda: Sources(debian=()), offline=True)
    runner = ProcessRunner({"PATH": str(program.parent)})
    with pytest.raises(ToolError, match="refuses namespaces and ptrace\n  No permissions"):
        open_sandbox(store, fetcher, runner, Console(quiet=True).step)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("bubblewrap 0.8.0\n", "0.8.0"),
        ("bubblewrap 0.4\n", "0.4"),
        ("bubblewrap 0.10\n", "0.10"),
        ("bubblewrap 0.3.9\n", ""),
        ("bubblewrap (version unknown)", ""),
    ],
)
def test_a_bubblewrap_that_is_too_old_is_none(answer: str, version: str):
    assert bwrap_version(Machine({"bwrap": answer})) == version


def test_a_bubblewrap_that_is_missing_or_does_not_run_is_none():
    assert bwrap_version(Machine({})) == bwrap_version(Machine(SAYS, broken=("bwrap",))) == ""
