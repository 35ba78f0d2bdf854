import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import BuildError
from envbuilder.layers.blob import index_blob
from envbuilder.layers.entry import from_bytes, make_header, make_manifest, parse_entry, parse_manifest
from envbuilder.layers.layer import (
    Entry,
    Kind,
    Layer,
    check_disjoint,
    damage_of,
    extract,
    load_layer,
    read_files,
    read_manifest,
    tree_digest,
    write_layer,
    write_layer_from_tar,
)
from envbuilder.layers.writer import BLOCK_SIZE

EPOCH = 1_700_000_000
EMPTY = hashlib.sha256().hexdigest()


def write_files(root: Path, files: dict[str, str | bytes]) -> Path:
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def make_layer(
    folder: Path, tree: Path, *, name: str = "python", threads: int = 1, omit: tuple[str, ...] = ()
) -> Layer:
    return write_layer(name=name, tree=tree, folder=folder, epoch=EPOCH, threads=threads, omit=omit)


def entry(path: str, kind: Kind = Kind.FILE, **fields: object) -> Entry:
    given = {"mode": 0o755 if kind is Kind.DIRECTORY else 0o644, "uid": 0, "gid": 0, "mtime": EPOCH} | fields
    return Entry(path=path, kind=kind, **given)  # type: ignore[arg-type]


def open_tar(layer: Layer) -> tarfile.TarFile:
    with layer.blob.open("rb") as blob:
        plain = zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True).read()
    return tarfile.open(fileobj=io.BytesIO(plain))


def by_path(layer: Layer) -> dict[str, Entry]:
    return {found.path: found for found in read_manifest(layer)}


# --- one line a path ---

NAMES = st.binary(min_size=1, max_size=20).map(lambda raw: from_bytes(raw.replace(b"\0", b"_")))
XATTRS = st.dictionaries(NAMES, st.binary(max_size=8), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)


@settings(max_examples=300, deadline=None)
@given(
    path=NAMES, target=NAMES, kind=st.sampled_from(Kind), mode=st.integers(0, 0o7777), size=st.integers(0, 1 << 40),
    uid=st.integers(0, 1 << 32), mtime=st.integers(0, 1 << 40), xattrs=XATTRS,
)  # fmt: skip
def test_an_entry_survives_its_line(
    path: str,
    target: str,
    kind: Kind,
    mode: int,
    size: int,
    uid: int,
    mtime: int,
    xattrs: tuple[tuple[str, bytes], ...],
) -> None:
    content = {"size": size, "sha256": "0" * 64} if kind is Kind.FILE else {}
    content |= {"target": target} if kind in (Kind.LINK, Kind.SPECIAL) else {}
    made = Entry(path=path, kind=kind, mode=mode, uid=uid, gid=uid, mtime=mtime, xattrs=xattrs, **content)
    line = str(made)
    assert parse_entry(line) == made
    assert line.isascii()
    assert len(line.splitlines()) == 1


def test_an_entry_reads_as_a_line_of_text() -> None:
    made = entry("usr/bin/ping", size=3, sha256="a" * 64, xattrs=(("security.capability", b"\x01"),))
    assert str(made) == f"file 0644 0:0 3 {EPOCH} usr/bin/ping {'a' * 64} security.capability=01"


@pytest.mark.parametrize(
    "line", ["", "file", "fifo 0644 0:0 0 0 a -", "file 0644 0:0 0 0 a -", f"file 9999 0:0 0 0 a {'a' * 64}"]
)
def test_a_line_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected a manifest line"):
        parse_entry(line)


def test_a_manifest_is_sorted_whatever_the_order_of_its_entries() -> None:
    entries = [entry("a/b", sha256="0" * 64), entry("a-b", sha256="0" * 64), entry("a", Kind.DIRECTORY)]
    assert [found.path for found in parse_manifest(make_manifest(entries))] == ["a", "a-b", "a/b"]
    assert tree_digest(entries) == tree_digest(entries[::-1])


# --- layers of a folder ---


def test_order_umask_and_times_of_a_tree_leave_no_trace(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a/x": "1", "b/y": "22", "b/c/z": "", "b/long" + "g" * 120: "3"}
    one = write_files(tmp_path / "one", files)
    before = os.umask(0o077)
    try:
        two = write_files(tmp_path / "two", dict(reversed(files.items())))
    finally:
        os.umask(before)
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
    layers = [make_layer(tmp_path / f"layer-{tree.name}", tree) for tree in (one, two)]
    assert layers[0].digest == layers[1].digest
    assert layers[0].tree == layers[1].tree


def test_the_number_of_threads_does_not_change_a_layer(tmp_path: Path) -> None:
    noise = b"".join(bytes([n * n % 251, n % 7]) for n in range(1 << 19))
    tree = write_files(tmp_path / "tree", {"big": noise * 24, "small": "x"})
    assert len({make_layer(tmp_path / str(n), tree, threads=n).digest for n in (1, 2, 5)}) == 1


def test_the_facts_of_a_layer_are_those_of_its_files(tmp_path: Path) -> None:
    layer = make_layer(tmp_path / "layer", write_files(tmp_path / "tree", {"a/x": "hello", "b": "you"}))
    with zstandard.ZstdDecompressor().stream_reader(
        layer.blob.read_bytes(), read_across_frames=True
    ) as stream:
        tar = stream.read()
    assert (layer.digest, layer.size) == (sha256_file(layer.blob), layer.blob.stat().st_size)
    assert layer.tar_size == len(tar)
    assert layer.content_size == 8
    assert layer.tree == tree_digest(read_manifest(layer)) == sha256_file(layer.manifest)


def test_another_reader_sees_the_same_tar(tmp_path: Path) -> None:
    names = {"plain", "ü" * 70, "n" * 150 + "/" + "m" * 150, "odd\nline"}
    tree = write_files(tmp_path / "tree", {name: name.encode() for name in names})
    (tree / "link").symlink_to("/" + "t" * 200)
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o700)
    layer = make_layer(tmp_path / "layer", tree)
    with open_tar(layer) as tar:
        members = {member.name: member for member in tar}
        assert {tar.extractfile(members[name]).read().decode() for name in names} == names  # type: ignore[union-attr]
    assert members["link"].linkname == "/" + "t" * 200
    assert {member.mtime for member in members.values()} == {EPOCH}
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members.values()} == {
        (0, 0, "", "")
    }
    assert members["run"].mode == 0o755


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff\xfe")).write_text("x")
    layer = make_layer(tmp_path / "layer", tree)
    extract(layer, tmp_path / "again")
    assert [os.fsencode(path.name) for path in (tmp_path / "again").iterdir()] == [b"\xff\xfe"]


def test_omitted_folders_and_the_root_are_not_in_the_layer(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"opt/env/bin/python": "x"})
    layer = make_layer(tmp_path / "layer", tree, omit=("", "opt"))
    assert list(by_path(layer)) == ["opt/env", "opt/env/bin", "opt/env/bin/python"]


def test_an_omitted_path_must_be_a_folder(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"opt": "x"})
    with pytest.raises(BuildError, match="`opt` is not a folder"):
        make_layer(tmp_path / "layer", tree, omit=("opt",))


def test_hard_links_of_a_tree_are_files_of_their_own(tmp_path: Path) -> None:
    linked, copied = (write_files(tmp_path / name, {"a": "same"}) for name in ("linked", "copied"))
    (linked / "b").hardlink_to(linked / "a")
    (copied / "b").write_text("same")
    assert make_layer(tmp_path / "l", linked).digest == make_layer(tmp_path / "c", copied).digest


def test_every_path_that_cannot_be_in_a_layer_is_named(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"fine": "", "su": "", "a/.wh.b": ""})
    (tree / "su").chmod(0o4755)
    os.mkfifo(tree / "pipe")
    with pytest.raises(BuildError) as caught:
        make_layer(tmp_path / "layer", tree)
    assert all(name in caught.value.message for name in ("`su`", "`pipe`", "`a/.wh.b`"))
    assert not (tmp_path / "layer" / "layer.json").exists()


def test_a_written_layer_is_found_again(tmp_path: Path) -> None:
    layer = make_layer(tmp_path / "layer", write_files(tmp_path / "tree", {"a": "b"}))
    assert load_layer(tmp_path / "layer") == layer
    assert load_layer(tmp_path / "nowhere") is None


def _cut_blob(folder: Path) -> None:
    (folder / "layer.tar.zst").chmod(0o600)
    os.truncate(folder / "layer.tar.zst", 5)


def _change_manifest(folder: Path) -> None:
    (folder / "manifest.txt").write_text("")


def _break_json(folder: Path) -> None:
    (folder / "layer.json").write_text("{")


def _drop_field(folder: Path) -> None:
    facts = json.loads((folder / "layer.json").read_text())
    del facts["diff_id"]
    (folder / "layer.json").write_text(json.dumps(facts))


def test_a_bit_that_changes_in_the_facts_of_a_layer_is_noticed_and_named(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a": "a"})
    make_layer(tmp_path / "layer", tree)
    facts = tmp_path / "layer/layer.json"
    right = facts.read_bytes()
    for at in range(len(right)):
        facts.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        assert load_layer(tmp_path / "layer") is None, right[max(0, at - 10) : at + 10]
    for damage in (b"", right[:9], b"[]", b"null"):
        facts.write_bytes(damage)
        assert load_layer(tmp_path / "layer") is None
        assert damage_of(tmp_path / "layer") == "`layer.json` differs"
    facts.write_bytes(right)
    assert load_layer(tmp_path / "layer") is not None


@pytest.mark.parametrize("name", ["layer.tar.zst", "manifest.txt", "blocks.json"])
def test_an_empty_file_of_a_layer_is_named(tmp_path: Path, name: str) -> None:
    make_layer(tmp_path / "layer", write_files(tmp_path / "tree", {"a": "a"}))
    (tmp_path / "layer" / name).unlink()
    (tmp_path / "layer" / name).touch()
    assert damage_of(tmp_path / "layer") == f"`{name}` differs"


@pytest.mark.parametrize("damage", [_cut_blob, _change_manifest, _break_json, _drop_field])
def test_a_damaged_layer_is_not_found(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    make_layer(tmp_path / "layer", write_files(tmp_path / "tree", {"a": "b"}))
    damage(tmp_path / "layer")
    assert load_layer(tmp_path / "layer") is None


# --- layers of another program's tar ---


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in fields.items():
        setattr(made, key, value)
    return made


ETC = (member("./", tarfile.DIRTYPE), member("./etc", tarfile.DIRTYPE))


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for item in members:
            info, content = item if isinstance(item, tuple) else (item, b"")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def rewrite(
    tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes] | tarfile.TarInfo, drop: tuple[str, ...] = ()
) -> Layer:
    tar = write_tar(tmp_path / "os.tar", *members)
    return write_layer_from_tar(name="os", tar=tar, folder=tmp_path / "os", epoch=EPOCH, threads=1, drop=drop)


def test_a_tar_keeps_owners_and_modes_and_has_its_times_clamped(tmp_path: Path) -> None:
    layer = rewrite(
        tmp_path, *ETC,
        (member("./etc/shadow", mode=0o640, gid=42, mtime=EPOCH + 5), b"x"),
        member("./etc/old", mtime=3.7),
        member("./etc/older", mtime=-4),
        member("./tmp", tarfile.DIRTYPE, mode=0o1777),
        member("./su", mode=0o4755, uid=1 << 22),
    )  # fmt: skip
    found = by_path(layer)
    assert (found["etc/shadow"].mode, found["etc/shadow"].gid, found["etc/shadow"].mtime) == (
        0o640,
        42,
        EPOCH,
    )
    assert (found["etc/old"].mtime, found["etc/older"].mtime) == (3, 0)
    assert (found["tmp"].mode, found["su"].mode, found["su"].uid) == (0o1777, 0o4755, 1 << 22)
    assert "" in found


def test_what_a_runtime_brings_is_dropped_or_emptied(tmp_path: Path) -> None:
    layer = rewrite(
        tmp_path, *ETC,
        (member("./etc/hostname"), b"build-machine\n"),
        member("./etc/resolv.conf", tarfile.SYMTYPE, linkname="../run/x"),
        member("./dev", tarfile.DIRTYPE), member("./dev/null", tarfile.CHRTYPE), member("./.dockerenv"),
        member("./proc", tarfile.DIRTYPE), member("./proc/1", tarfile.DIRTYPE),
    )  # fmt: skip
    found = by_path(layer)
    assert sorted(found) == [
        "",
        "dev",
        "etc",
        "etc/hostname",
        "etc/hosts",
        "etc/machine-id",
        "etc/resolv.conf",
        "proc",
    ]
    assert {found[path].size for path in found} == {0}
    assert found["etc/resolv.conf"].kind is Kind.FILE


def test_dropped_paths_go_with_all_below_them(tmp_path: Path) -> None:
    paths = ("a", "a/b", "ab", "c", "c/d")
    layer = rewrite(tmp_path, *(member(path, tarfile.DIRTYPE) for path in paths), drop=("a", "c/*"))
    assert list(by_path(layer)) == ["", "ab", "c"]


def test_hard_links_name_the_first_path_in_order(tmp_path: Path) -> None:
    layer = rewrite(
        tmp_path, (member("z"), b"same"), member("b", tarfile.LNKTYPE, linkname="./z"),
        member("m", tarfile.LNKTYPE, linkname="b"), (member("x/gone"), b"other"),
        member("y", tarfile.LNKTYPE, linkname="x/gone"), drop=("x",),
    )  # fmt: skip
    with open_tar(layer) as tar:
        links = {found.name: found.linkname for found in tar}
    assert links == {".": "", "b": "", "m": "b", "y": "", "z": "b"}
    found = by_path(layer)
    assert found["z"].sha256 == found["b"].sha256 != found["y"].sha256
    extract(layer, tmp_path / "tree")
    assert {(tmp_path / "tree" / name).read_bytes() for name in "bmz"} == {b"same"}


def test_capabilities_stay_and_labels_of_the_host_go(tmp_path: Path) -> None:
    capability = b"\x01\x00\x00\x02\x00\x20\xff"
    xattrs = {
        "SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape"),
        "SCHILY.xattr.security.selinux": "host",
        "SCHILY.xattr.user.rootlesscontainers": "x",
    }
    layer = rewrite(tmp_path, (member("ping", pax_headers=xattrs), b"x"))
    assert by_path(layer)["ping"].xattrs == (("security.capability", capability),)


def test_the_texts_of_a_layer_follow_from_its_blob(tmp_path: Path) -> None:
    noise = os.urandom(3 * BLOCK_SIZE)
    xattrs = {"SCHILY.xattr.security.capability": b"\x01\xff".decode("utf-8", "surrogateescape")}
    layer = rewrite(
        tmp_path, *ETC, *((member(f"small{number}"), noise[: 997 * number]) for number in range(300)),
        *((member(f"large{size}"), noise[:size]) for size in range(BLOCK_SIZE - 1, BLOCK_SIZE + 2)),
        (member("many"), noise), (member("same"), noise), (member("half"), noise[:4000] * 300),
        member("z", tarfile.LNKTYPE, linkname="many"), member("empty"), member("link", tarfile.SYMTYPE, linkname="many"),
        (member("ping", pax_headers=xattrs, uid=1 << 22), b"x"), (member("n\udcff" + "a" * 200, mode=0o4755), b"x"),
    )  # fmt: skip
    (tmp_path / "again").mkdir()
    os.link(layer.blob, tmp_path / "again/layer.tar.zst")
    index_blob(tmp_path / "again", name="os", digest=layer.digest, diff_id=layer.diff_id)
    for name in ("manifest.txt", "blocks.json", "layer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (layer.folder / name).read_bytes()


def frame(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize(
    "blob",
    {
        "nothing": b"", "gzip": b"\x1f\x8b" + bytes(600), "no tar": frame(b"x" * 5000), "cut off": frame(bytes(9000))[:-3],
        "a large frame": frame(bytes(BLOCK_SIZE + 1)), "a whiteout": frame(make_header(entry(".wh.a")) + bytes(1024)),
        "a device": frame(member("a", tarfile.CHRTYPE).tobuf() + bytes(1024)),
        "a file in two frames": frame(make_header(entry("a", size=1000)) + b"x" * 9) + frame(b"x" * 1015 + bytes(1024)),
        "a large file after others": frame(make_header(entry("a", size=BLOCK_SIZE)) + bytes(9)) + frame(bytes(BLOCK_SIZE)),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_a_blob_that_no_writer_wrote_is_refused(tmp_path: Path, blob: tuple[str, bytes]) -> None:
    (tmp_path / "layer.tar.zst").write_bytes(blob[1])
    with pytest.raises(BuildError, match="is not one that envbuilder wrote"):
        index_blob(tmp_path, name="os", digest=Sha256("0" * 64), diff_id=Sha256("0" * 64))


def test_a_rewritten_tar_does_not_depend_on_the_order_of_its_members(tmp_path: Path) -> None:
    members = [member("b"), member("a", tarfile.DIRTYPE), member("a/x")]
    digests = set()
    for number, order in enumerate((members, members[::-1])):
        (tmp_path / str(number)).mkdir()
        digests.add(rewrite(tmp_path / str(number), *order).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("../x")], "not plain"),
        ([member("a/../../x")], "not plain"),
        ([member("/etc/passwd")], "not plain"),
        ([member("a//b")], "not plain"),
        ([member(".wh.etc")], "not plain"),
        ([member("x"), member("./x")], "there twice"),
        ([member("disk", tarfile.BLKTYPE)], "neither a file"),
        ([member("pipe", tarfile.FIFOTYPE)], "neither a file"),
        ([member("x", mode=0o666)], "everybody could write"),
        ([member("x", tarfile.DIRTYPE, mode=0o777)], "everybody could write"),
        ([member("x", tarfile.LNKTYPE, linkname="../../etc/shadow")], "hard link"),
        ([member("x", tarfile.LNKTYPE, linkname="later"), member("later")], "hard link"),
        ([member("x", tarfile.LNKTYPE, linkname="x")], "hard link"),
        ([member("a", tarfile.SYMTYPE, linkname="/etc"), member("a/x")], "its folder is not there"),
        ([member("a/x")], "its folder is not there"),
        ([member("x", tarfile.SYMTYPE, linkname="")], "link to nothing"),
        ([member("x", uid=1 << 40)], "out of range"),
        ([member("x", pax_headers={"mtime": "inf"})], "`x`"),
    ],
)
def test_hostile_and_foreign_members_are_refused(
    tmp_path: Path, members: list[tarfile.TarInfo], words: str
) -> None:
    with pytest.raises(BuildError, match=words):
        rewrite(tmp_path, *members)
    assert load_layer(tmp_path / "os") is None


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100])
def test_what_is_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "os.tar").write_bytes(content)
    with pytest.raises(BuildError, match=r"os\.tar"):
        write_layer_from_tar(
            name="os", tar=tmp_path / "os.tar", folder=tmp_path / "os", epoch=EPOCH, threads=1
        )


def test_a_tar_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "os.tar", (member("x"), b"x" * 100_000))
    os.truncate(tar, 50_000)
    with pytest.raises(BuildError):
        write_layer_from_tar(name="os", tar=tar, folder=tmp_path / "os", epoch=EPOCH, threads=1)
    assert load_layer(tmp_path / "os") is None


# --- unpacking ---


def forge(folder: Path, *entries: Entry) -> Layer:
    """A layer with paths of our choice."""
    folder.mkdir()
    (folder / "layer.tar.zst").write_bytes(b"")
    (folder / "manifest.txt").write_text("".join(f"{one}\n" for one in entries))
    (folder / "blocks.json").write_text('{"fragments":[],"small":{},"large":{}}')
    none = Sha256("0" * 64)
    return Layer(
        name="forged",
        folder=folder,
        digest=none,
        size=0,
        diff_id=none,
        tar_size=0,
        content_size=0,
        tree=none,
        blocks=none,
    )


def test_an_unpacked_layer_is_the_tree_it_was_made_of(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a/x": "1", "a/b/y": b"\0" * 3_000_000})
    (tree / "a" / "b" / "link").symlink_to("../x")
    (tree / "a" / "x").chmod(0o755)
    layer = make_layer(tmp_path / "layer", tree)
    extract(layer, tmp_path / "again")
    assert make_layer(tmp_path / "second", tmp_path / "again").digest == layer.digest
    assert (tmp_path / "again" / "a" / "x").stat().st_mtime == EPOCH


@pytest.mark.programs
def test_root_of_a_namespace_with_one_user_unpacks_the_files_of_others(tmp_path: Path) -> None:
    layer = rewrite(tmp_path, (member("his", uid=5, gid=6), b"x"), member("./hers", tarfile.DIRTYPE, uid=7))
    code = f"""
from pathlib import Path
from envbuilder.layers.layer import extract, load_layer
extract(load_layer(Path({str(layer.folder)!r})), Path({str(tmp_path / "tree")!r}))
"""
    ended = subprocess.run(
        ("unshare", "--user", "--map-root-user", sys.executable, "-c", code),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(one.name for one in (tmp_path / "tree").iterdir()) == ["hers", "his"]


def test_unpacking_leaves_out_set_id_bits(tmp_path: Path) -> None:
    layer = rewrite(tmp_path, (member("su", mode=0o4755), b"x"))
    extract(layer, tmp_path / "tree")
    assert stat.S_IMODE((tmp_path / "tree" / "su").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "entries",
    [
        [entry("a", Kind.LINK, target="/{outside}", mode=0o777), entry("a/x", sha256=EMPTY)],
        [entry("a", Kind.LINK, target="..", mode=0o777), entry("a/x/y", sha256=EMPTY)],
        [entry("a", Kind.LINK, target="..", mode=0o777), entry("a/x", Kind.DIRECTORY)],
        [entry("../x", sha256=EMPTY)],
        [entry("/x", sha256=EMPTY)],
        [entry("x", sha256=EMPTY), entry("x", sha256=EMPTY)],
        [entry("x", Kind.SPECIAL, target="fifo")],
        [entry("x", sha256=EMPTY, size=3)],
    ],
)
def test_nothing_is_written_outside_the_folder(tmp_path: Path, entries: list[Entry]) -> None:
    write_files(tmp_path / "outside", {"secret": "x"})
    layer = forge(tmp_path / "layer", *entries)
    with pytest.raises(BuildError, match=r"the forged layer in .* cannot be unpacked"):
        extract(layer, tmp_path / "inside" / "tree")
    assert sorted(path.name for path in tmp_path.rglob("*") if "inside" not in str(path.parent)) == [
        "blocks.json", "inside", "layer", "layer.tar.zst", "manifest.txt", "outside", "secret",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["tree"]


def test_files_are_read_without_unpacking_the_layer(tmp_path: Path) -> None:
    files = {"a": b"", "b": b"small", "c": b"same", "d/e": b"large" * 100_000}
    members = [(member(path), content) for path, content in files.items() if "/" not in path]
    layer = rewrite(
        tmp_path, *members, member("d", tarfile.DIRTYPE), (member("d/e"), files["d/e"]),
        member("f", tarfile.LNKTYPE, linkname="c"),
    )  # fmt: skip
    assert read_files(layer, {*files, "f", "d", "nowhere"}) == files | {"f": b"same"}
    assert read_files(layer, {"b"}) == {"b": b"small"}


@pytest.mark.parametrize("part", [slice(0, 9), slice(300, 400), slice(-400_000, -399_000)])
def test_a_damaged_layer_is_refused(tmp_path: Path, part: slice) -> None:
    files: dict[str, str | bytes] = {"a": os.urandom(500), "b": os.urandom(600_000)}
    layer = make_layer(tmp_path / "layer", write_files(tmp_path / "tree", files))
    content = bytearray(layer.blob.read_bytes())
    content[part] = bytes(len(content[part]))
    layer.blob.chmod(0o644)
    layer.blob.write_bytes(content)
    words = r"the python layer in .* cannot be unpacked"
    with pytest.raises(BuildError, match=words):
        read_files(layer, {"a", "b"})
    with pytest.raises(BuildError, match=words):
        extract(layer, tmp_path / "again")


# --- layers together ---


def test_layers_that_share_only_folders_above_them_fit(tmp_path: Path) -> None:
    lower = rewrite(tmp_path, *ETC, member("opt", tarfile.DIRTYPE))
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "tree", {"opt/env/x": ""}), omit=("opt",))
    check_disjoint([lower, upper])


def test_layers_may_share_a_folder_that_is_the_same_in_each(tmp_path: Path) -> None:
    lower = make_layer(tmp_path / "low", write_files(tmp_path / "a", {"opt/env/x": ""}))
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "b", {"opt/env/y": ""}), name="start")
    check_disjoint([rewrite(tmp_path, *ETC), lower, upper])


def test_a_file_in_two_layers_is_named(tmp_path: Path) -> None:
    lower = make_layer(tmp_path / "low", write_files(tmp_path / "a", {"opt/x": ""}))
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "b", {"opt/x": ""}), name="start")
    with pytest.raises(BuildError, match="`opt/x` is in the python and the start layer"):
        check_disjoint([rewrite(tmp_path, *ETC), lower, upper])


def test_a_layer_of_a_wheel_may_be_replaced_in_part_and_only_by_files(tmp_path: Path) -> None:
    system = rewrite(tmp_path, *ETC)
    wheel = make_layer(
        tmp_path / "low", write_files(tmp_path / "a", {"opt/x": "", "opt/y": ""}), name="wheel"
    )
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "b", {"opt/x": "1"}))
    check_disjoint([system, wheel, upper], among=["wheel", "python"])
    again = make_layer(tmp_path / "again", write_files(tmp_path / "c", {"opt/x": "2"}), name="start")
    with pytest.raises(BuildError, match="`opt/x` is in the python and the start layer"):
        check_disjoint([system, wheel, upper, again], among=["wheel", "python"])
    folder = make_layer(tmp_path / "folder", write_files(tmp_path / "d", {"opt/y/z": ""}), name="start")
    with pytest.raises(BuildError, match="the folder `opt/y` differs in the wheel and the start layer"):
        check_disjoint([system, wheel, folder], among=["wheel", "python"])


def test_a_folder_that_differs_in_two_layers_is_named(tmp_path: Path) -> None:
    lower = rewrite(tmp_path, *ETC, member("opt", tarfile.DIRTYPE, mode=0o1777))
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "tree", {"opt/x": ""}))
    with pytest.raises(BuildError, match="the folder `opt` differs in the os and the python layer"):
        check_disjoint([lower, upper])


@pytest.mark.parametrize(
    "opt", [member("srv", tarfile.DIRTYPE), member("opt", tarfile.SYMTYPE, linkname="srv")]
)
def test_a_path_without_a_folder_below_it_is_named(tmp_path: Path, opt: tarfile.TarInfo) -> None:
    lower = rewrite(tmp_path, *ETC, opt)
    upper = make_layer(tmp_path / "up", write_files(tmp_path / "tree", {"opt/x": ""}), omit=("opt",))
    with pytest.raises(BuildError, match="`opt/x` is in the python layer, and its folder is in no layer"):
        check_disjoint([lower, upper])
