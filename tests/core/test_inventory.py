"""Entries of the cache: whatever is done to one after its commit, it is not used as it is, and a message names the file."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core.cache import INVENTORIES, Store, boot_identity, read_proved, save_proved, sha256_text
from envbuilder.core.inventory import Inventory, parse_inventory
from tests.support.damage import flip

KEY = sha256_text("key")
HEADER = "usr/include/x.h"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def entry(store: Store) -> Path:
    """A committed entry with a file, an empty one, a link and folders."""
    fill(store, store.tools(KEY))
    return store.tools(KEY)


def fill(store: Store, final: Path, contents: dict[str, str] | None = None) -> None:
    with store.workspace() as work:
        (work / "tree/usr/include").mkdir(parents=True)
        (work / "tree/usr/empty").mkdir()
        (work / "tree" / HEADER).write_text("#define GOOD 1\n")
        (work / "tree/usr/none").touch()
        (work / "tree/usr/link").symlink_to("include/x.h")
        (work / "tree/usr/a line\nor two é").write_text("odd")
        store.commit(work / "tree", final, contents)


def swap(path: Path) -> None:
    """Put another file of the same size and times in its place."""
    before = path.stat()
    path.with_name("new").write_bytes(b"#define EVIL 1\n")
    os.utime(path.with_name("new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_name("new").rename(path)


def retarget(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def swap_folder(path: Path) -> None:
    """Put a link to a copy in the place of a folder."""
    shutil.copytree(path, path.parent.parent.parent.parent / "copy")
    shutil.rmtree(path)
    path.symlink_to(path.parent.parent.parent.parent / "copy")


DAMAGES: list[tuple[str, str, Callable[[Path], object]]] = [
    (HEADER, "differs", flip),
    (HEADER, "differs", swap),
    (HEADER, "differs", lambda path: os.truncate(path, 0)),
    (HEADER, "differs", lambda path: os.truncate(path, 5)),
    (HEADER, "is gone", lambda path: path.unlink()),
    (HEADER, "differs", lambda path: path.chmod(0o755)),
    (HEADER, "differs", lambda path: path.chmod(0o4644)),
    (HEADER, "differs", lambda path: (path.unlink(), os.mkfifo(path))),
    (HEADER, "differs", lambda path: (path.unlink(), path.mkdir())),
    ("usr/none", "differs", lambda path: path.write_text("x")),
    ("usr/link", "differs", retarget),
    ("usr/empty/new", "was added", lambda path: path.write_text("x")),
    ("usr/empty/new", "was added", lambda path: path.symlink_to("/")),
    ("usr/empty", "is gone", lambda path: path.rmdir()),
    ("usr/empty", "differs", lambda path: path.chmod(0o777)),
    ("usr/include", "differs", swap_folder),
]


def test_an_entry_as_it_was_committed_is_used(store: Store, entry: Path, caplog: pytest.LogCaptureFixture):
    os.utime(entry)  # as builds do, for `cache --gc --unused`
    assert store.holds(entry)
    assert store.holds(entry, whole=True)
    assert caplog.messages == []


@pytest.mark.parametrize(("name", "how", "do"), DAMAGES)
@pytest.mark.parametrize("whole", [False, True])
def test_a_change_of_any_kind_is_noticed_and_named(
    store: Store, entry: Path, caplog: pytest.LogCaptureFixture, name: str, how: str, do: Callable[[Path], object], whole: bool
):  # fmt: skip
    do(entry / name)
    assert not store.holds(entry, whole=whole)
    assert caplog.messages == [f"cache: tools/{KEY} is damaged: `{name}` {how}; made again"]


def test_a_write_to_a_file_without_a_digest_is_noticed(store: Store):
    fill(store, store.tools(KEY), {})
    flip(store.tools(KEY) / HEADER)
    assert not store.holds(store.tools(KEY))


def test_a_bit_that_the_disk_changed_is_noticed_where_every_file_is_hashed(store: Store, entry: Path):
    """No program can do this to a file: its state is the one that the inventory has."""
    flip(entry / HEADER)
    noted = store.root / INVENTORIES / "tools" / KEY
    before, after = parse_inventory(noted.read_bytes()), Inventory.take(entry)
    known = {os.fsdecode(path): item.content for path, item in before.items.items()}
    noted.write_bytes(Inventory.take(entry, known).to_bytes())
    assert before.items.keys() == after.items.keys()
    assert store.holds(entry)
    assert not store.holds(entry, whole=True)


def test_a_new_hard_link_or_a_copy_of_the_cache_damages_nothing(store: Store, entry: Path, tmp_path: Path):
    (tmp_path / "link").hardlink_to(entry / HEADER)
    assert store.holds(entry)
    shutil.copytree(store.root, tmp_path / "copied", symlinks=True)
    assert Store(tmp_path / "copied").holds(tmp_path / "copied/tools" / KEY)


def test_a_file_of_another_owner_is_noticed(store: Store, entry: Path):
    if os.geteuid():
        pytest.skip("only root gives files away")
    os.chown(entry / HEADER, 65534, 65534)
    assert not store.holds(entry)


@pytest.mark.parametrize("content", [b"", b"x", None])
def test_an_entry_without_a_good_inventory_is_not_used(store: Store, entry: Path, content: bytes | None):
    noted = store.root / INVENTORIES / "tools" / KEY
    noted.write_bytes(noted.read_bytes()[:-1] if content is None else content)
    assert not store.holds(entry)


def test_an_entry_of_an_older_version_counts_as_absent(
    store: Store, entry: Path, caplog: pytest.LogCaptureFixture
):
    (store.root / INVENTORIES / "tools" / KEY).unlink()
    assert not store.holds(entry)
    assert caplog.messages == []
    fill(store, entry)
    assert store.holds(entry)


def test_an_entry_that_is_a_link_is_replaced_and_nothing_is_written_through_it(
    store: Store, entry: Path, tmp_path: Path
):
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o750)
    assert not store.holds(entry)
    fill(store, entry)
    assert not entry.is_symlink()
    assert (tmp_path / "elsewhere" / HEADER).is_file()
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o750


def test_a_damaged_entry_is_replaced_by_its_commit(store: Store, entry: Path):
    flip(entry / HEADER)
    assert not store.holds(entry)
    fill(store, entry)
    assert store.holds(entry, whole=True)
    assert (entry / HEADER).read_text() == "#define GOOD 1\n"


def test_an_entry_is_on_the_disk_before_it_has_its_name(store: Store, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    calls = {"fsync": os.fsync, "rename": os.rename, "replace": os.replace}

    def watched(name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if name == "fsync":
                done.append(Path(f"/proc/self/fd/{arguments[0]}").readlink().name)
            else:
                done.append(f"to {Path(os.fsdecode(arguments[1])).name}")
            return calls[name](*arguments, **options)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, watched(name))
    fill(store, store.tools(KEY))
    named = [number for number, word in enumerate(done) if word == f"to {KEY}"]
    assert {"x.h", "none", "include", "tree"} <= set(done[: named[-1]])
    assert len(named) == 2, "the inventory's and the entry's"


def test_what_many_files_hold_is_on_the_disk_too(store: Store, monkeypatch: pytest.MonkeyPatch):
    synced: list[Path] = []
    monkeypatch.setattr("envbuilder.core.cache.sync_file_system", synced.append)
    with store.workspace() as work:
        (work / "tree").mkdir()
        for number in range(100):
            (work / f"tree/{number}").touch()
        store.commit(work / "tree", store.tools(KEY))
        assert synced == [work / "tree"]


def test_a_damaged_artifact_is_named_and_replaced(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    digest = sha256_text("source")
    (tmp_path / "source").write_text("source")
    store.add_artifact(digest, tmp_path / "source")
    flip(store.artifact(digest))
    again = Store(store.root)
    again.add_artifact(digest, tmp_path / "source")
    assert again.artifact(digest).read_text() == "source"
    assert caplog.messages == [
        f"cache: artifacts/{digest[:2]}/{digest} is damaged: its sha256 is another; made again"
    ]


@pytest.mark.parametrize("do", [flip, lambda path: os.truncate(path, 0), lambda path: path.unlink()])
def test_a_build_directory_with_another_object_is_emptied(store: Store, do: Callable[[Path], object]):
    with store.build_directory(KEY) as folder:
        (folder / "x.o").write_text("object")
        (folder / "y.o").write_text("object")
    do(folder / "x.o")
    with store.build_directory(KEY) as folder:
        assert list(folder.iterdir()) == []


def test_a_build_directory_that_a_power_cut_left_is_emptied(store: Store):
    """A killed build left no inventory. Until the next start of the machine, nothing that it wrote is lost."""
    running = store.root / INVENTORIES / "build-directories" / f"{KEY}.running"
    with store.build_directory(KEY) as folder:
        (folder / "x.o").write_text("object")
        begun = running.read_text()
    running.write_text(begun)
    (store.root / INVENTORIES / "build-directories" / KEY).unlink()
    with store.build_directory(KEY) as folder:
        assert (folder / "x.o").is_file()
    running.write_text("an earlier start")
    (store.root / INVENTORIES / "build-directories" / KEY).unlink()
    with store.build_directory(KEY) as folder:
        assert list(folder.iterdir()) == []
    assert begun == boot_identity()


def test_clearing_a_kind_removes_its_inventories(store: Store, entry: Path):
    with store.build_directory(KEY):
        pass
    store.clear(("tools", "build-directories"))
    assert not entry.exists()
    assert not any((store.root / INVENTORIES / "tools").iterdir())
    assert not any((store.root / INVENTORIES / "build-directories").iterdir())


@pytest.mark.parametrize("do", [flip, lambda path: os.truncate(path, 0)])
def test_a_damaged_proof_is_not_read(tmp_path: Path, do: Callable[[Path], object]):
    save_proved(tmp_path / "proof", "é\n")
    assert read_proved(tmp_path / "proof") == "é\n"
    do(tmp_path / "proof")
    with pytest.raises(ValueError):  # noqa: PT011 - of either kind
        read_proved(tmp_path / "proof")


def test_a_file_that_cannot_be_read_is_named(
    store: Store, entry: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    before = os.open

    def refused(path: os.PathLike[str] | bytes, *arguments: int, **options: int) -> int:
        if os.fsdecode(path).endswith(HEADER):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
        return before(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    assert not store.holds(entry, whole=True)
    assert caplog.messages == [
        f"cache: tools/{KEY} is damaged: `{entry / HEADER}` cannot be read: Input/output error; made again"
    ]
