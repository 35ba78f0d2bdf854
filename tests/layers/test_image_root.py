"""The layers of an image in a folder: what a container would see of them, and nothing outside of it."""

import hashlib
import io
import stat
import tarfile
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Owner
from envbuilder.layers.overlay import ImageRoot, owners_of
from tests.support.debs import Member, header, make_tar

FOLDER, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def unpack(folder: Path, *layers: tuple[Member, ...]) -> ImageRoot:
    image = ImageRoot(folder / "root")
    for number, members in enumerate(layers):
        tar = make_tar(members)
        image.lay_over(io.BytesIO(tar), name=str(number), sha256="", diff_id=hashlib.sha256(tar).hexdigest())
    return image


def paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder / "root")) for path in (folder / "root").rglob("*"))


def test_owners_modes_and_links_are_those_of_the_layers(tmp_path: Path):
    su, secret = header("usr/su", uid=3, mode=0o4755), header("etc/shadow", gid=42, mode=0)
    su.pax_headers = {"SCHILY.xattr.security.capability": "x"}
    device, pipe = header("etc/disk", tarfile.BLKTYPE), header("etc/pipe", tarfile.FIFOTYPE)
    link, hard = header("usr/link", LINK, target="su", uid=4), header("usr/hard", HARD, target="usr/su")
    layer = (header("etc", FOLDER, mode=0o500), su, secret, device, pipe, link, hard)
    owners = owners_of(unpack(tmp_path, layer))
    assert owners["usr/su"] == Owner(uid=3, special=0o4000, xattrs=(("security.capability", b"x"),))
    assert owners["etc/shadow"] == Owner(gid=42, added=0o600)
    assert (owners["etc"], owners["usr/link"]) == (Owner(added=0o200), Owner(uid=4))
    assert paths(tmp_path) == ["etc", "etc/shadow", "usr", "usr/hard", "usr/link", "usr/su"]
    root = tmp_path / "root"
    assert (root / "usr/su").samefile(root / "usr/hard")
    modes = {name: stat.S_IMODE((root / name).lstat().st_mode) for name in ("etc", "etc/shadow", "usr/su")}
    assert modes == {"etc": 0o700, "etc/shadow": 0o600, "usr/su": 0o4755}


LOWER: tuple[Member, ...] = (
    header("a/deep", FOLDER, mode=0o755), ("a/deep/x", "old", 0o644), ("a/y", "old", 0o644), ("b/z", "old", 0o644),
    header("link", LINK, target="a"),
)  # fmt: skip
UPPER: dict[str, tuple[tuple[Member, ...], list[str]]] = {
    "a whiteout": ((("a/.wh.deep", "", 0o644),), ["a", "a/y", "b", "b/z", "link"]),
    "of a folder that no layer names": ((header(".wh.b"),), ["a", "a/deep", "a/deep/x", "a/y", "link"]),
    "an opaque folder": (
        (("a/new", "", 0o644), header("a/.wh..wh..opq"), ("a/deep/n", "", 0o644)),
        ["a", "a/deep", "a/deep/n", "a/new", "b", "b/z", "link"],
    ),
    "a file for a folder": ((("a", "file", 0o644),), ["a", "b", "b/z", "link"]),
    "a folder for a link": ((header("link", FOLDER, mode=0o755),), ["a", "a/deep", "a/deep/x", "a/y", "b", "b/z", "link"]),
    "a file below a link": (
        (("link/n", "", 0o644),),
        ["a", "a/deep", "a/deep/x", "a/n", "a/y", "b", "b/z", "link"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", UPPER)
def test_an_upper_layer_changes_what_is_below(tmp_path: Path, way: str):
    upper, expected = UPPER[way]
    image = unpack(tmp_path, LOWER, upper)
    assert paths(tmp_path) == expected
    assert {path for path in image if path} <= set(expected)


@pytest.mark.parametrize("target", ["{outside}", "../outside", "../../../../../../outside"])
@pytest.mark.parametrize(
    "member", [("way/file", "x", 0o644), header("way/folder", FOLDER), header("way/.wh.mine")]
)
def test_no_link_leads_out_of_the_folder(tmp_path: Path, target: str, member: Member):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    link = header("way", LINK, target=target.format(outside=outside))
    unpack(tmp_path, (link,), (member,))
    assert [path.name for path in outside.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "layer",
    [
        (header("../x"),),
        (header("x", HARD, target="../../etc/passwd"),),
        (header("a", LINK, target="b"), header("b", LINK, target="a"), header("a/x")),
        (("a", "x", 0o644), ("a/x", "x", 0o644)),
    ],
    ids=["a path", "a hard link", "a circle", "a file above"],
)
def test_a_hostile_layer_is_refused(tmp_path: Path, layer: tuple[Member, ...]):
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpack(tmp_path, layer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
