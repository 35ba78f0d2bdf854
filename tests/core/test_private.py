"""What another user plants or exchanges in a shared folder leads no write and no read elsewhere."""

import logging
import os
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.cache import beside, need_same, remove_tree, save_text
from envbuilder.core.console import log_to
from envbuilder.core.errors import UsageError
from envbuilder.core.private import (
    is_trusted,
    kept_out,
    make_folder_for_all,
    may_be_exchanged,
    private_folder,
)
from tests.support.stranger import (
    MODES,
    STRANGER,
    as_user,
    contents,
    exchanging,
    give,
    reachable_folder,
    shared_folder,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(params=MODES.values(), ids=MODES)
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return shared_folder(tmp_path / "shared", request.param)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the attacked user."""
    folder = tmp_path / "precious"
    (folder / "below").mkdir(parents=True)
    (folder / "below").chmod(0o755)
    (folder / "file").write_text("precious")
    (folder / "file").chmod(0o600)
    folder.chmod(0o755)
    return folder


def link(place: Path, precious: Path) -> None:
    place.symlink_to(precious / "file")


def link_to_nothing(place: Path, precious: Path) -> None:
    place.symlink_to(precious / "new")


def hard_link(place: Path, precious: Path) -> None:
    os.link(precious / "file", place)


def fifo(place: Path, _precious: Path) -> None:
    os.mkfifo(place)


PLANTS = [link, link_to_nothing, hard_link, fifo]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_log_is_a_new_file_whatever_has_its_name(
    shared: Path, precious: Path, plant: Callable[[Path, Path], None]
):
    plant(shared / "a.log", precious)
    if plant is not hard_link:
        give(shared / "a.log")
    before = contents(precious)
    with log_to(shared / "a.log"):
        logging.getLogger("envbuilder").warning("a line")
    assert contents(precious) == before
    assert stat.S_ISREG((shared / "a.log").lstat().st_mode)
    assert "a line" in (shared / "a.log").read_text()


def test_a_folder_under_the_name_of_a_log_is_refused_with_its_owner(shared: Path):
    (shared / "a.log").mkdir()
    give(shared / "a.log")
    with (
        pytest.raises(UsageError, match=rf"a\.log`: .*; it belongs to user {STRANGER}"),
        log_to(shared / "a.log"),
    ):
        pass


@pytest.mark.programs
def test_an_ordinary_user_is_told_who_owns_a_planted_log(tmp_path: Path, precious: Path):
    shared = shared_folder(tmp_path / "shared", 0o1777)
    (shared / "a.log").symlink_to(precious / "new")
    give(shared / "a.log")
    precious.chmod(0o777)
    before = contents(precious)
    script = "import sys; from pathlib import Path; from envbuilder.core.console import log_to\nwith log_to(Path(sys.argv[1])): pass"
    ended = subprocess.run(
        as_user(1001, sys.executable, "-B", "-c", script, shared / "a.log"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"it belongs to user {STRANGER}" in ended.stderr.splitlines()[-1]
    assert contents(precious) == before


@pytest.mark.parametrize("plant", PLANTS)
def test_a_saved_file_is_a_new_one_whatever_has_its_name(
    shared: Path, precious: Path, plant: Callable[[Path, Path], None]
):
    plant(shared / "file", precious)
    before = contents(precious)
    save_text(shared / "file", "text", mode=0o755)
    assert contents(precious) == before
    assert (shared / "file").lstat().st_mode == stat.S_IFREG | 0o755


def test_a_fifo_is_other_content_and_nobody_waits_for_it(shared: Path):
    os.mkfifo(shared / "file")
    with pytest.raises(UsageError, match="exists with other content"):
        need_same(shared / "file", "text", force=False)


def test_a_private_folder_is_neither_a_link_nor_another_users(shared: Path, precious: Path):
    places = {name: shared / name for name in ("link", "foreign", "open", "file")}
    places["link"].symlink_to(precious)
    places["foreign"].mkdir(mode=0o700)
    places["open"].mkdir()
    places["open"].chmod(0o777)
    places["file"].touch()
    give(places["link"], places["foreign"])
    for name, place in places.items():
        said = {"link": f"a link of user {STRANGER}", "foreign": f"belongs to user {STRANGER}"}.get(
            name, f"belongs to user {os.geteuid()}"
        )
        with pytest.raises(PermissionError, match=said), private_folder(str(place)):
            pass
    for _ in range(2):  # made, then found
        with private_folder(str(shared / "own")) as inside:
            Path(inside, "file").write_text("x")
    assert contents(shared / "own")[str(shared / "own")][0] == stat.S_IFDIR | 0o700


def test_without_the_sticky_bit_or_in_a_foreign_folder_names_may_be_exchanged(tmp_path: Path):
    cases = {0o755: False, 0o1777: False, 0o1775: False, 0o777: True, 0o775: True}
    for mode, is_open in cases.items():
        tmp_path.chmod(mode)
        assert may_be_exchanged(str(tmp_path)) is is_open
    tmp_path.chmod(0o1777)
    give(tmp_path)
    assert may_be_exchanged(str(tmp_path))


def test_a_link_of_another_user_to_an_own_file_is_not_trusted(shared: Path, precious: Path):
    (shared / "link").symlink_to(precious / "file")
    assert is_trusted(str(shared / "link"))
    give(shared / "link")
    assert not is_trusted(str(shared / "link"))


@pytest.mark.programs
def test_a_work_folder_that_is_exchanged_during_the_work_leads_nowhere(tmp_path: Path, precious: Path):
    shared = shared_folder(tmp_path / "shared", 0o777)
    before = contents(precious)
    with exchanging(shared, ".a.sif.", ".part", precious) as stranger:
        for _ in range(20):
            try:
                with beside(shared / "a.sif") as work:
                    assert stranger.stdout is not None
                    assert (
                        stranger.stdout.readline() == "done\n"
                    )  # the folder has gone, a link is in its place
                    (work / "file").write_text("overwritten")
                    (work / "below").mkdir(mode=0o700)
                    (work / "file").rename(shared / "a.sif")
            except PermissionError:  # exchanged before it was opened
                continue
            assert (shared / "a.sif").read_text() == "overwritten"
    assert contents(precious) == before


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_work_folder_that_is_gone_before_it_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
):
    """Another run takes it for a killed one's, or another user moves it away."""
    make, made = tempfile.mkdtemp, 0

    def make_and_lose(**given: Any) -> str:
        nonlocal made
        path = make(**given)
        made += 1
        if made <= lost:
            Path(path).rename(tmp_path / f"moved-{made}")
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    if lost < 3:
        with beside(tmp_path / "a.sif") as work:
            assert work.is_dir()
    else:
        with pytest.raises(PermissionError, match="exchanged"), beside(tmp_path / "a.sif"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"moved-{n + 1}" for n in range(lost)]


def test_an_own_folder_that_is_exchanged_before_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "mkdir", lambda *_: None)  # it was moved away at once
    with pytest.raises(PermissionError, match="exchanged"), private_folder(str(tmp_path / "own")):
        pass


def test_what_another_user_left_under_a_temporary_name_stays(shared: Path, precious: Path):
    planted = shared / ".a.sif.x.part"
    planted.mkdir()
    (planted / "link").symlink_to(precious)
    (shared / ".a.sif.y.part").symlink_to(precious)
    give(planted, planted / "link", shared / ".a.sif.y.part")
    before = contents(precious)
    with beside(shared / "a.sif"):
        pass
    assert planted.is_dir()
    assert contents(precious) == before


def test_a_link_in_place_of_a_tree_keeps_its_target(shared: Path, precious: Path):
    (shared / "tree").symlink_to(precious)
    (precious / "below").chmod(0o500)
    before = contents(precious)
    remove_tree(shared / "tree")
    assert not (shared / "tree").is_symlink()
    assert contents(precious) == before


# ---- what is for others


GROUP = 4711
# Modes of two folders and a file in each other, and who cannot read the file: others, also its group, or nobody.
CLOSED = {
    "open": ((0o755, 0o755, 0o644), "nobody"),
    "a home": ((0o700, 0o755, 0o644), "group"),
    "a home for the group": ((0o750, 0o755, 0o644), "others"),
    "a folder in it": ((0o755, 0o700, 0o644), "group"),
    "a file": ((0o755, 0o755, 0o600), "group"),
    "the group's": ((0o2770, 0o755, 0o644), "on purpose"),
    "closed in the group's": ((0o2770, 0o700, 0o644), "group"),
    "the group's in a home": ((0o700, 0o2770, 0o644), "group"),
}


@pytest.mark.programs
@pytest.mark.parametrize("case", CLOSED)
def test_who_cannot_read_a_file_is_told_as_the_kernel_sees_it(tmp_path: Path, case: str):
    modes, who = CLOSED[case]
    paths = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/file"]
    paths[1].mkdir(parents=True)
    paths[2].touch()
    for path, mode in zip(paths, modes, strict=True):
        os.chown(path, -1, GROUP)
        path.chmod(mode)

    def can_read(groups: str) -> bool:
        command = as_user(STRANGER, "test", "-r", paths[2], groups=groups)
        return subprocess.run(command, check=False).returncode == 0

    said = kept_out(str(paths[2]))
    assert (bool(said), can_read(""), can_read(str(GROUP))) == {
        "nobody": (False, True, True), "others": (True, False, True), "group": (True, False, False),
        "on purpose": (False, False, True),
    }[who]  # fmt: skip
    for _ in range(3):  # what it proposes lets them in, where it is about others
        if not kept_out(str(paths[2])):
            break
        command = kept_out(str(paths[2])).split("`")[3]
        subprocess.run(["sh", "-c", command], check=True)
    assert kept_out(str(paths[2])) == ""
    assert can_read(str(GROUP))


@pytest.mark.programs
def test_a_folder_with_an_access_list_is_not_judged(tmp_path: Path):
    (tmp_path / "home").mkdir(mode=0o700)
    # Tag, rights and id of each entry: the owner, the stranger, the group, the mask, others.
    entries = ((1, 7, 2**32 - 1), (2, 5, STRANGER), (4, 0, 2**32 - 1), (16, 5, 2**32 - 1), (32, 0, 2**32 - 1))
    value = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(tmp_path / "home", "system.posix_acl_access", struct.pack("<I", 2) + value)
    (tmp_path / "home/file").touch()
    subprocess.run(as_user(STRANGER, "cat", tmp_path / "home/file"), check=True)
    assert kept_out(str(tmp_path / "home/file")) == ""


def test_a_folder_for_all_is_open_and_those_that_were_there_stay(tmp_path: Path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab").chmod(0o2770)
    before = os.umask(0o077)
    try:
        make_folder_for_all(str(tmp_path / "lab/a/b"))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("lab", "lab/a", "lab/a/b")]
    assert modes == [0o2770, 0o2755, 0o2755]
