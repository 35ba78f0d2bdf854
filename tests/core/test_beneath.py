"""Files below a folder that foreign code wrote: no link is followed, on no place of the way, and nothing hangs or lacks an end."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core import beneath
from envbuilder.core.beneath import (
    copy_beneath,
    copy_tree_beneath,
    files_beneath,
    folder_beneath,
    leads_out,
    link_beneath,
    new_beneath,
    read_beneath,
)
from envbuilder.core.cache import remove_tree
from envbuilder.core.errors import BuildError

NAMES = [
    "link",
    "folder/link",
    "away/secret",
    "folder/away/secret",
    "fifo",
    "socket",
    "deep/../../secret",
    "/etc/passwd",
    "a\0b",
    "",
]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    folder = tmp_path / "box"
    (folder / "folder").mkdir(parents=True)
    (folder / "deep").mkdir()
    (folder / "folder/file").write_text("mine")
    (tmp_path / "secret").write_text("secret")
    for place in ("", "folder/"):
        (folder / f"{place}link").symlink_to(tmp_path / "secret")
        (folder / f"{place}away").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    return folder


def new(box: Path, name: str) -> None:
    with new_beneath(box, name) as stream:
        stream.write(b"new")


ACTIONS: dict[str, Callable[[Path, str], object]] = {
    "read": read_beneath,
    "copy": lambda box, name: copy_beneath(box, name, box.parent / "copy"),
    "tree": lambda box, name: copy_tree_beneath(box, name or "fifo", box.parent / "copies"),
}
WRITING: dict[str, Callable[[Path, str], object]] = {
    "new": new,
    "make a link": lambda box, name: link_beneath(box, f"{name}/x", "y"),
    "make a folder": lambda box, name: folder_beneath(box, f"{name}/x"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_read_through_a_link_or_a_device(box: Path, name: str, action: str) -> None:
    with pytest.raises(BuildError):
        ACTIONS[action](box, name)


@pytest.mark.parametrize("name", NAMES[:8])
@pytest.mark.parametrize("action", WRITING)
def test_nothing_is_written_through_a_link_or_a_device(box: Path, name: str, action: str) -> None:
    with pytest.raises((BuildError, FileExistsError)):
        WRITING[action](box, name)
    assert sorted(path.name for path in box.parent.iterdir()) == ["box", "secret"]
    assert (box.parent / "secret").read_text() == "secret"


def test_a_folder_that_is_a_link_is_refused(box: Path) -> None:
    (box.parent / "way").symlink_to(box)
    with pytest.raises(BuildError, match="a link"):
        read_beneath(box.parent / "way", "folder/file")


def test_links_are_listed_by_no_one_and_copied_as_links(box: Path) -> None:
    assert list(files_beneath(box)) == ["folder/file"]
    copy_tree_beneath(box, "folder", box.parent / "copies")
    assert (box.parent / "copies/file").read_text() == "mine"
    assert (box.parent / "copies/away").readlink() == box.parent


def test_sizes_and_trees_have_limits(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (box / "folder/huge").open("wb") as stream:
        stream.truncate(1 << 40)
    for read in (read_beneath, lambda *a, **b: copy_beneath(*a, box.parent / "copy", **b)):
        with pytest.raises(BuildError, match="larger than 9 bytes"):
            read(box, "folder/huge", limit=9)
    with pytest.raises(BuildError, match="larger"):
        copy_tree_beneath(box, "folder", box.parent / "copies")
    monkeypatch.setattr(beneath, "ENTRIES", 5)
    with pytest.raises(BuildError, match="more than 5 files"):
        list(files_beneath(box))


def nest(folder: Path, count: int) -> None:
    at = os.open(folder, os.O_RDONLY)
    for _ in range(count):
        os.mkdir("x", dir_fd=at)
        below = os.open("x", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_folders_in_each_other_have_a_limit_and_are_removed(box: Path) -> None:
    nest(box / "deep", 5000)
    with pytest.raises(BuildError, match="in each other"):
        list(files_beneath(box))
    remove_tree(box)
    assert not box.exists()


@pytest.mark.parametrize(
    ("target", "leads"),
    [
        ("folder/file", False),
        ("../secret", True),
        (".hidden", True),
        ("deep/../folder", False),
        ("circle", False),
    ],
)
def test_a_link_leads_out_or_to_a_hidden_place(box: Path, target: str, leads: bool) -> None:
    (box / ".hidden").touch()
    (box / "circle").symlink_to(target)
    assert leads_out(box, box / "circle") == leads
