"""A root file system in a folder becomes a layer, with the owners that packages and images say."""

import os
import socket
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Owner, read_manifest, write_layer, write_layer_from_root

EPOCH = 1_700_000_000
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("etc", "usr/bin", "dev", "var/log/deep"):
        (root / folder).mkdir(parents=True)
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    for name, mode in (
        ("etc/shadow", 0o640),
        ("usr/bin/su", 0o4755),
        ("usr/bin/sg", 0o6755),
        ("usr/bin/ping", 0o755),
        ("dev/null", 0o644),
    ):
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "etc/machine-id").write_text("random")
    (root / "usr/bin/twin").hardlink_to(root / "usr/bin/ping")
    (root / "usr/bin/link").symlink_to("su")
    return root


def lines(root: Path, tmp_path: Path, owners: dict[str, Owner]) -> list[str]:
    layer = write_layer_from_root(
        name="os",
        root=root,
        owners=owners,
        folder=tmp_path / "out",
        epoch=EPOCH,
        threads=1,
        drop=("var/log",),
    )
    return [
        " ".join(str(one).split(" ")[:3] + str(one).split(" ")[5:6] + str(one).split(" ")[7:])
        for one in read_manifest(layer)
    ]


def test_paths_have_their_modes_and_the_given_owners(root: Path, tmp_path: Path):
    """A set-id bit that a script gave would be root's, so only those of a package or an image stay."""
    owners = {
        "etc/shadow": Owner(0, 42),
        "usr/bin/ping": Owner(xattrs=(("security.capability", CAPABILITY),)),
        "usr/bin/link": Owner(3, 4),
        "usr/bin/su": Owner(special=0o4000),
        "usr": Owner(5, 6),
    }
    capability = f"security.capability={CAPABILITY.hex()}"
    assert lines(root, tmp_path, owners) == [
        "directory 0755 0:0 .", "directory 0755 0:0 dev", "directory 0755 0:0 etc", "file 0644 0:0 etc/hostname",
        "file 0644 0:0 etc/hosts", "file 0644 0:0 etc/machine-id", "file 0644 0:0 etc/resolv.conf",
        "file 0640 0:42 etc/shadow", "directory 0755 5:6 usr", "directory 0755 0:0 usr/bin", "link 0777 3:4 usr/bin/link",
        f"file 0755 0:0 usr/bin/ping {capability}", "file 0755 0:0 usr/bin/sg",
        "file 4755 0:0 usr/bin/su",
        f"file 0755 0:0 usr/bin/twin {capability}", "directory 0755 0:0 var",
    ]  # fmt: skip


def test_what_a_layer_cannot_hold_is_named_all_at_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (root / "etc/open").touch()
    (root / "etc/open").chmod(0o666)
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("etc/socket")
    (root / "etc/.wh.x").touch()
    with pytest.raises(BuildError) as refused:
        lines(root, tmp_path, {})
    for name in ("etc/open", "etc/socket", "etc/.wh.x"):
        assert f"`{name}`: " in refused.value.message


def test_a_tree_that_became_a_link_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/id_ed25519").write_text("secret")
    (tmp_path / "tree").symlink_to(tmp_path / "home")
    (tmp_path / "out").mkdir()
    given = {"name": "x", "folder": tmp_path / "out", "epoch": EPOCH, "threads": 1}
    with pytest.raises(BuildError, match="replaced it"):
        write_layer(tree=tmp_path / "tree", **given)
    with pytest.raises(BuildError, match="replaced it"):
        write_layer_from_root(root=tmp_path / "tree", owners={}, **given)
