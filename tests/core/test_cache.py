"""The cache: nothing half-written under a final name, nothing left of a killed run, one worker at a time."""

import contextlib
import errno
import fcntl
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core.cache import (
    INVENTORIES,
    KINDS,
    WORK,
    Sha256,
    Store,
    beside,
    cache_limit,
    commit_path,
    link_or_copy,
    parse_sha256,
    remove_tree,
    save_text,
    sha256_file,
    sha256_text,
    space_errors,
)
from envbuilder.core.errors import SpaceError, UsageError
from tests.support.stranger import STRANGER, as_user, give, reachable_folder

DIGEST = sha256_text("content")
runs_programs = pytest.mark.programs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@contextlib.contextmanager
def other_process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another Python that has said `ready` on its stdout; it is killed at the end."""
    head = (
        "import sys, time\nfrom pathlib import Path\nfrom envbuilder.core.cache import Store, beside, save_text\n"
        "def ready(): print('ready', flush=True)\n"
    )
    command = [sys.executable, "-c", head + script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    """Kill it as the kernel does: it cannot tidy up."""
    process.kill()
    assert process.wait(10) == -signal.SIGKILL


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


HOLD_WORKSPACE = """
with Store(Path(sys.argv[1])).workspace() as work:
    (work / "sub").mkdir()
    (work / "sub/file").write_text("half")
    (work / "sub").chmod(0o555)
    ready()
    time.sleep(60)
"""
HOLD_LOCK = """
with Store(Path(sys.argv[1])).lock("one"):
    ready()
    sys.stdin.read()
"""
HOLD_BESIDE = """
with beside(Path(sys.argv[1])) as work:
    (work / "file").write_text("half")
    ready()
    time.sleep(60)
"""


def test_a_new_cache_is_for_its_owner_alone(tmp_path):
    store = Store(tmp_path / "above" / "cache")
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (store.root, *store.root.iterdir())}
    assert modes == dict.fromkeys(("cache", *KINDS, INVENTORIES, "work", "locks"), "0o700")


def test_a_new_cache_works_whatever_the_users_umask(tmp_path):
    before = os.umask(0o002)
    try:
        Store(tmp_path / "cache")
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_a_cache_may_be_opened_again(store):
    assert Store(store.root).root == store.root


def test_looking_at_a_cache_writes_nothing(tmp_path):
    Store(tmp_path / "cache", create=False)
    assert files(tmp_path) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702], ids=oct)
def test_a_cache_that_others_can_write_is_refused(tmp_path, mode):
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(UsageError, match="nobody else can write"):
        Store(root)


def test_a_refused_cache_is_left_as_it_was(tmp_path):
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(UsageError):
        Store(root)
    assert files(root) == []


def test_a_cache_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to("real")
    with pytest.raises(UsageError, match="is a link") as caught:
        Store(tmp_path / "cache")
    assert caught.value.hint == f"name the folder: ENVBUILDER_CACHE={tmp_path / 'real'}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 65534, 65534)
    with pytest.raises(UsageError, match="must be a folder of yours"):
        Store(tmp_path / "cache")


def test_a_digest_is_64_small_hexadecimal_digits():
    assert parse_sha256("0123456789abcdef" * 4) == "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "sha256:" + "0" * 64]
)
def test_anything_else_is_no_digest(text):
    with pytest.raises(ValueError, match="expected 64 hexadecimal digits"):
        parse_sha256(text)


def test_a_file_has_the_digest_of_its_text(tmp_path):
    (tmp_path / "file").write_text("content")
    assert sha256_file(tmp_path / "file") == DIGEST


def test_an_artifact_is_named_by_its_digest(store, tmp_path):
    (tmp_path / "file").write_text("content")
    assert store.add_artifact(DIGEST, tmp_path / "file") == store.root / "artifacts" / DIGEST[:2] / DIGEST
    assert store.artifact(DIGEST).read_text() == "content"


def test_an_artifact_that_is_there_stays(store, tmp_path):
    (tmp_path / "file").write_text("content")
    first = store.add_artifact(DIGEST, tmp_path / "file").stat()
    assert store.add_artifact(DIGEST, tmp_path / "file").stat() == first


def test_an_artifact_does_not_change_with_the_file_it_came_from(store, tmp_path):
    (tmp_path / "file").write_text("content")
    store.add_artifact(DIGEST, tmp_path / "file")
    (tmp_path / "file").write_text("an edit")
    assert store.artifact(DIGEST).read_text() == "content"


def test_kinds_have_their_own_folders(store):
    assert [
        path.relative_to(store.root)
        for path in (store.layer(DIGEST), store.tools(DIGEST), store.resolver("uv"))
    ] == [
        Path("layers", DIGEST),
        Path("tools", DIGEST),
        Path("uv"),
    ]


def test_a_space_stays_as_it_was_left(store):
    with store.build_directory(DIGEST) as folder:
        (folder / "object").write_text("compiled")
    with store.build_directory(DIGEST) as folder:
        assert (folder / "object").read_text() == "compiled"


def test_a_workspace_is_gone_at_the_end(store):
    with store.workspace() as work:
        (work / "file").write_text("x")
    assert files(store.root / "work") == []


def test_a_workspace_is_gone_after_an_error(store):
    with pytest.raises(FileNotFoundError), store.workspace() as work:
        (work / "file").rename(work / "folder/file")
    assert files(store.root / "work") == []


def test_a_workspace_in_use_is_not_swept(store):
    with store.workspace() as work:
        store.sweep()
        assert work.is_dir()


@runs_programs
def test_the_workspace_of_a_living_process_is_not_swept(store):
    with other_process(HOLD_WORKSPACE, store.root):
        store.sweep()
        assert len(list((store.root / "work").iterdir())) == 1


@runs_programs
def test_the_workspace_of_a_killed_process_is_swept(store):
    with other_process(HOLD_WORKSPACE, store.root) as process:
        end(process)
    assert len(list((store.root / "work").iterdir())) == 1
    store.sweep()
    assert files(store.root / "work") == []


def test_every_lock_is_one_that_nfs_has(store, monkeypatch):
    """There a shared lock needs a file open for reading, an exclusive one a file open for writing, and a folder has none."""
    asked = []
    real = fcntl.flock

    def flock(file, how):
        number = file if isinstance(file, int) else file.fileno()
        mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        kind = stat.S_IFMT(os.fstat(number).st_mode)
        wanted = (os.O_RDONLY, os.O_RDWR) if how & fcntl.LOCK_SH else (os.O_WRONLY, os.O_RDWR)
        asked.append(kind == stat.S_IFREG and mode in wanted)
        return real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with store.in_use(), store.lock("one"), store.workspace():
        store.sweep()
        store.leftovers()
    store.clear(["uv"])
    assert len(asked) >= 6
    assert all(asked)


def test_nothing_is_left_of_the_lock_of_a_workspace(store):
    with store.workspace() as work:
        assert (store.root / "locks" / work.name).exists()
    assert [path.name for path in (store.root / "locks").iterdir()] == ["work"]


def test_a_sweep_does_not_mind_workspaces_that_end_meanwhile(store):
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            with store.workspace():
                pass

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            store.sweep()
    finally:
        done.set()
        thread.join()
    assert files(store.root / "work") == []


def test_a_full_disk_in_a_workspace_is_an_error_of_its_own(store):
    with pytest.raises(SpaceError, match="no space left"), store.workspace():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert files(store.root / "work") == []


@runs_programs
def test_a_lock_of_another_process_is_waited_for_and_told_of_once(store):
    told = []
    with other_process(HOLD_LOCK, store.root) as process:

        def waiting() -> None:
            told.append(process.poll())
            assert process.stdin is not None
            process.stdin.close()  # lets the other end

        with store.lock("one", waiting=waiting):
            assert process.wait(10) == 0
    assert told == [None]


@runs_programs
def test_the_lock_of_a_killed_process_is_free(store):
    told = []
    with other_process(HOLD_LOCK, store.root) as process:
        end(process)
        with store.lock("one", waiting=lambda: told.append("waiting")):
            pass
    assert told == []


def test_a_free_lock_is_taken_without_a_word(store):
    told = []
    for _ in range(2):
        with store.lock("one", waiting=lambda: told.append("waiting")):
            pass
    assert told == []


def test_locks_of_other_names_do_not_exclude_each_other(store):
    told = []
    with store.lock("one"), store.lock("two", waiting=lambda: told.append("waiting")):
        pass
    assert told == []


def test_a_lock_is_free_after_an_error(store):
    told = []
    with pytest.raises(ZeroDivisionError), store.lock("one"):
        raise ZeroDivisionError
    with store.lock("one", waiting=lambda: told.append("waiting")):
        pass
    assert told == []


def test_a_cache_in_use_is_not_cleared(store):
    store.layer(DIGEST).mkdir()
    with store.in_use(), store.in_use(), pytest.raises(UsageError, match="is in use"):
        store.clear(KINDS)
    assert store.layer(DIGEST).is_dir()


def test_clearing_removes_the_kinds_that_are_asked_for(store):
    store.layer(DIGEST).mkdir()
    store.tools(DIGEST).mkdir()
    store.clear(["layers"])
    assert (store.layer(DIGEST).exists(), store.tools(DIGEST).exists()) == (False, True)


def test_clearing_removes_single_files_too(store):
    (store.resolver("uv") / "CACHEDIR.TAG").write_text("x")
    store.clear(["uv"])
    assert files(store.resolver("uv")) == []


def test_sizes_count_a_file_with_two_names_once(store):
    file = store.layer(DIGEST) / "blob"
    file.parent.mkdir()
    file.write_bytes(bytes(1 << 16))
    store.tools(DIGEST).mkdir()
    (store.tools(DIGEST) / "blob").hardlink_to(file)
    assert store.sizes() == dict.fromkeys((*KINDS, WORK), 0) | {"layers": file.stat().st_blocks * 512}


@pytest.mark.programs
def test_sizes_count_what_a_killed_process_left_and_not_what_is_in_use(store):
    with other_process(HOLD_WORKSPACE, store.root) as process:
        end(process)
    (left,) = (store.root / WORK).iterdir()
    (left / "blob").write_bytes(bytes(1 << 16))
    with store.workspace() as work:
        (work / "blob").write_bytes(bytes(1 << 17))
        assert store.sizes()[WORK] == sum(
            (left / name).stat().st_blocks * 512 for name in ("blob", "sub/file")
        )
    store.sweep()
    assert store.sizes()[WORK] == 0


OLD = tuple(sha256_text(name) for name in ("oldest", "middle", "newest"))


@pytest.fixture
def full(store: Store) -> Store:
    """A cache with an entry of every kind, of 1 MiB each, and three build directories."""
    for at, key in enumerate(OLD):
        write_entry(directory(store, key), at)
    store.partial(DIGEST).write_bytes(bytes(1 << 20))
    for folder in (store.layer(DIGEST), store.extension(DIGEST), store.tools(DIGEST)):
        write_entry(folder, 0)
    return store


def directory(store: Store, key: Sha256) -> Path:
    return store.root / "build-directories" / key


def write_entry(folder: Path, last_use: int) -> None:
    folder.mkdir()
    (folder / "blob").write_bytes(bytes(1 << 20))
    os.utime(folder, (last_use, last_use))


def test_the_oldest_goes_first_and_no_more_than_needed(full):
    assert full.collect(lambda: (1 << 20) + 1) == {"build-directories": 2 << 20}
    assert [directory(full, key).exists() for key in OLD] == [False, False, True]


def test_layers_extensions_and_tools_never_go_by_themselves(full):
    assert full.collect(lambda: math.inf) == {"build-directories": 3 << 20, "partial": 1 << 20}
    left = {name: size >> 20 for name, size in full.sizes().items() if size}
    assert left == {"layers": 1, "tools": 1, "extensions": 1}


def test_nothing_goes_where_nothing_is_too_much(full):
    before = full.sizes()
    assert full.collect(lambda: 0) == {}
    assert full.sizes() == before


@pytest.mark.programs
def test_a_build_directory_and_a_download_in_use_stay(full):
    with full.lock(f"build-directories-{OLD[0]}"), full.lock("fetch"):
        full.collect(lambda: math.inf)
    assert full.partial(DIGEST).exists()
    assert [directory(full, key).exists() for key in OLD] == [True, False, False]


REMOVE_TWO = """
import shutil
store = Store(Path(sys.argv[1]))
ready()
sys.stdin.readline()
store.collect(lambda: store.sizes()["build-directories"] - int(sys.argv[2]))
"""


@pytest.mark.programs
def test_two_builds_that_end_at_once_do_not_remove_twice(full):
    with (
        other_process(REMOVE_TWO, full.root, 1 << 20) as one,
        other_process(REMOVE_TWO, full.root, 1 << 20) as two,
    ):
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in (one, two)] == [0, 0]
    assert full.sizes()["build-directories"] == 1 << 20  # the newest


KILLED_WHILE_IT_REMOVES = """
import shutil
shutil.rmtree = lambda path: (ready(), time.sleep(60))
Store(Path(sys.argv[1])).collect(lambda: 1)
"""


@pytest.mark.programs
def test_a_removal_that_is_killed_leaves_no_entry_that_counts(store, tmp_path):
    write_entry(tmp_path / "made", 0)
    entry = directory(store, DIGEST)
    store.commit(tmp_path / "made", entry)
    assert store.holds(entry)
    with other_process(KILLED_WHILE_IT_REMOVES, store.root) as process:
        end(process)
    assert entry.is_dir()
    assert not store.holds(entry)
    assert store.collect(lambda: 1) == {"build-directories": 1 << 20}


@pytest.mark.parametrize(
    ("setting", "limit"),
    [("", 25e9), ("20GB", 20e9), ("20 G", 20e9), ("1.5TB", 1.5e12), ("0M", 0), ("none", math.inf)],
)
def test_the_limit_is_a_quarter_of_what_is_free_without_the_cache_or_what_is_said(setting, limit):
    assert cache_limit({"ENVBUILDER_CACHE_LIMIT": setting}, 100e9) == limit


def test_the_limit_is_never_more_than_50_gb_by_itself():
    assert cache_limit({}, 1e15) == 50e9


@pytest.mark.parametrize("setting", ["20", "much", "-1GB", "GB"])
def test_a_limit_that_is_no_size_is_refused(setting):
    with pytest.raises(UsageError, match=f"ENVBUILDER_CACHE_LIMIT is `{setting}`"):
        cache_limit({"ENVBUILDER_CACHE_LIMIT": setting}, 1)


def test_a_finished_folder_appears_under_its_final_name(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new/file").write_text("x")
    commit_path(tmp_path / "new", tmp_path / "a/b")
    assert files(tmp_path) == ["a", "a/b", "a/b/file"]


def test_a_folder_that_is_there_stays(tmp_path):
    for name in ("new", "final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    commit_path(tmp_path / "new", tmp_path / "final")
    assert (tmp_path / "final/file").read_text() == "final"


def test_a_file_that_is_there_is_replaced(tmp_path):
    for name in ("new", "final"):
        (tmp_path / name).write_text(name)
    commit_path(tmp_path / "new", tmp_path / "final")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"final": "new"}


def test_a_saved_text_is_there_in_utf8_for_everyone_to_read(tmp_path):
    save_text(tmp_path / "a/file", "räksmörgås\n")
    assert (tmp_path / "a/file").read_bytes() == "räksmörgås\n".encode()
    assert (tmp_path / "a/file").stat().st_mode & 0o777 == 0o644


def test_a_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    save_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        save_text(tmp_path / "file", "new \udc80")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_a_full_disk_is_told_of_with_a_folder_that_stays(tmp_path):
    with (
        pytest.raises(SpaceError) as caught,
        beside(tmp_path / "environment") as outer,
        beside(outer / "sif"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.message == f"no space left on the file system of `{tmp_path}`"


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_text(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpaceError, match="no space left"):
        save_text(tmp_path / "file", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


@runs_programs
def test_a_file_that_may_not_grow_leaves_the_old_file(tmp_path):
    limited = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from envbuilder.core.cache import save_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: save_text(Path(sys.argv[1]), 'new' * 1000)\n"
        "except OSError as error: sys.exit(error.errno)\n"
    )
    save_text(tmp_path / "file", "old")
    ended = subprocess.run([sys.executable, "-B", "-c", limited, tmp_path / "file"], check=False)
    assert ended.returncode == errno.EFBIG
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def test_a_disk_that_fills_up_while_a_folder_is_copied_is_named(tmp_path: Path):
    def copy(source: str, _target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    (tmp_path / "from").mkdir()
    (tmp_path / "from/file").touch()
    with pytest.raises(SpaceError, match="no space left"), space_errors(tmp_path):
        shutil.copytree(tmp_path / "from", tmp_path / "to", copy_function=copy)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_where_and_what_to_do(tmp_path, number):
    with pytest.raises(SpaceError) as caught, space_errors(tmp_path):
        raise OSError(number, "full")
    assert str(tmp_path) in caught.value.message
    assert ("quota" in caught.value.message) == (number == errno.EDQUOT)
    assert "ENVBUILDER_CACHE" in caught.value.hint


@pytest.mark.parametrize("names", [("/nowhere/out/x.sif",), ("from", None, "/nowhere/out/x.sif")])
def test_a_full_disk_is_the_one_of_the_file_that_was_written(tmp_path, names):
    with pytest.raises(SpaceError, match=r"file system of `/nowhere/out/x\.sif`"), space_errors(tmp_path):
        raise OSError(errno.ENOSPC, "full", *names)
    with pytest.raises(SpaceError, match=f"file system of `{tmp_path}`"), space_errors(tmp_path):
        raise OSError(errno.ENOSPC, "full", str(tmp_path / "work/x"))


# Fills a file system with files: in a workspace, in a folder beside its place, and by a program. Each is removed afterwards.
MANY_FILES = """
import os, sys
from pathlib import Path
from envbuilder.core.cache import Store, beside
from envbuilder.core.errors import SpaceError
from envbuilder.core.process import Command, ProcessRunner
def fill(folder):
    for number in range(500): (folder / str(number)).touch()
def unpack(folder):
    script = 'cd "$1" && for n in $(seq 500); do : >$n || exit 1; done'
    ProcessRunner(dict(os.environ)).run(Command(argv=("sh", "-c", script, "sh", str(folder)), why="unpack"))
disk = Path(sys.argv[1])
store = Store(disk / "cache")
for place, work in ((store.workspace(), fill), (beside(disk / "final"), fill), (store.workspace(), unpack)):
    try:
        with place as folder: work(folder)
    except SpaceError as error: print(error.message)
"""


@runs_programs
def test_a_disk_without_inodes_is_not_called_full(tmp_path):
    script = f"mount -t tmpfs -o size=10m,nr_inodes=200 none {tmp_path} && exec '{sys.executable}' -B -c \"$1\" {tmp_path}"
    words = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c", script, "sh", MANY_FILES]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    told = [line for line in lines if line.startswith("no inodes left on the file system of `")]
    assert [line.partition("`")[2].partition("`")[0] for line in told][:2] == [
        f"{tmp_path}/cache",
        f"{tmp_path}/final",
    ]
    assert len(told) == 3
    assert all("0 of 200 are free" in line for line in told)


def test_another_error_of_the_system_stays_what_it_is(tmp_path):
    with pytest.raises(PermissionError), space_errors(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_tree_is_removed_whatever_modes_its_folders_have(tmp_path):
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").write_text("x")
    (tree / "a/b").chmod(0o500)
    (tree / "a").chmod(0o000)
    remove_tree(tree)
    assert files(tmp_path) == []


@runs_programs
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_removes_folders_that_cannot_be_entered():
    script = (
        "import sys; from pathlib import Path; from envbuilder.core.cache import remove_tree\n"
        "tree = Path(sys.argv[1]); (tree / 'a/b').mkdir(parents=True)\n"
        "(tree / 'a/b').chmod(0); (tree / 'a').chmod(0); tree.chmod(0)\n"
        "remove_tree(tree)\n"
    )
    with reachable_folder() as place:
        give(place)
        subprocess.run(as_user(STRANGER, sys.executable, "-c", script, place / "tree"), check=True)
        assert files(place) == []


def test_removing_a_tree_leaves_what_its_links_point_to(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other").chmod(0o500)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to("../other")
    remove_tree(tmp_path / "tree")
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o500


def test_a_second_name_shares_the_bytes(tmp_path):
    (tmp_path / "a").write_text("x")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_a_file_system_that_refuses_links_gets_a_copy(tmp_path, monkeypatch):
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    (tmp_path / "a").write_text("x")
    (tmp_path / "a").chmod(0o755)  # a program stays one
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "b").read_text(), (tmp_path / "a").samefile(tmp_path / "b")) == ("x", False)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755


def test_a_name_that_is_taken_is_not_overwritten_by_a_link(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "a", tmp_path / "b")


def test_a_folder_beside_is_on_the_same_file_system_and_gone_at_the_end(tmp_path):
    with beside(tmp_path / "out/a.sif") as work:
        assert work.parent == tmp_path / "out"
        (work / "file").write_text("x")
    assert files(tmp_path) == ["out"]


def test_what_was_renamed_out_of_a_folder_beside_stays(tmp_path):
    with beside(tmp_path / "a.sif") as work:
        (work / "file").write_text("x")
        (work / "file").rename(tmp_path / "a.sif")
    assert files(tmp_path) == ["a.sif"]


@runs_programs
def test_what_a_killed_run_left_beside_is_removed_by_the_next(tmp_path):
    with other_process(HOLD_BESIDE, tmp_path / "a.sif") as process:
        end(process)
    left = files(tmp_path)
    with beside(tmp_path / "a.sif"):
        assert [name for name in files(tmp_path) if name in left] == []


@runs_programs
def test_what_a_living_run_has_beside_is_left_alone(tmp_path):
    with other_process(HOLD_BESIDE, tmp_path / "a.sif"):
        before = files(tmp_path)
        with beside(tmp_path / "a.sif"):
            pass
        assert files(tmp_path) == before


def test_what_belongs_to_another_name_beside_is_left_alone(tmp_path):
    (tmp_path / ".b.sif.x.part").mkdir()
    with beside(tmp_path / "[ab].sif"):
        pass
    assert files(tmp_path) == [".b.sif.x.part"]


def test_a_full_disk_beside_is_an_error_of_its_own(tmp_path):
    with pytest.raises(SpaceError), beside(tmp_path / "a.sif"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert files(tmp_path) == []
