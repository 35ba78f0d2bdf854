"""The reader of other people's images: what lies over what, in which packing, and what is refused."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from envbuilder.artifacts.oci.reader import read_image, read_tree
from envbuilder.core.errors import VerifyError
from envbuilder.layers.entry import Entry, Kind

TIME = 1_700_000_000


def make_tar(*members: tuple[str, str | None], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer: `name/` is a folder, `name -> target` a link, `name => target` a hard link, else a file with this text."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, text in members:
            item = tarfile.TarInfo(name.split(" ")[0].rstrip("/"))
            item.mtime, item.mode = TIME, 0o755 if name.endswith("/") else 0o644
            if name.endswith("/"):
                item.type = tarfile.DIRTYPE
            elif " -> " in name or " => " in name:
                item.type = tarfile.SYMTYPE if " -> " in name else tarfile.LNKTYPE
                item.linkname = name.split(" ")[2]
            elif name.startswith("dev/"):
                item.type, item.devmajor, item.devminor = tarfile.CHRTYPE, 1, 3
            data = (text or "").encode()
            item.size = len(data) if item.isreg() else 0
            archive.addfile(item, io.BytesIO(data))
    return out.getvalue()


def plain(data: bytes) -> bytes:
    return data


PACKINGS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "plain": plain}


def add_blob(files: dict[str, bytes], value: object) -> dict[str, object]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": ""}


def make_layout(*tars: bytes, packing: str = "gzip", nested: bool = False) -> dict[str, bytes]:
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["A=1=2", "B="], "Labels": {"x": "y"}},
        "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]},
    }
    manifest = add_blob(
        files,
        {
            "schemaVersion": 2,
            "config": add_blob(files, config),
            "layers": [add_blob(files, PACKINGS[packing](tar)) for tar in tars],
        },
    )
    listed = [manifest]
    if nested:  # as BuildKit writes it: an index for one name, in it the image and a statement about it
        statement = add_blob(files, {"schemaVersion": 2, "layers": []}) | {
            "platform": {"os": "unknown", "architecture": "unknown"}
        }
        arm = {
            "digest": "sha256:" + "0" * 64,
            "size": 9,
            "platform": {"os": "linux", "architecture": "arm64"},
        }
        here = manifest | {"platform": {"os": "linux", "architecture": "amd64"}}
        listed = [add_blob(files, {"schemaVersion": 2, "manifests": [here, statement, arm]})]
    return files | {"index.json": json.dumps({"schemaVersion": 2, "manifests": listed}).encode()}


def make_saved(*tars: bytes) -> dict[str, bytes]:
    """What engines before version 25 save."""
    config = {
        "config": None,
        "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]},
    }
    names = [f"layer{number}/layer.tar" for number in range(len(tars))]
    manifest = [{"Config": "config.json", "RepoTags": ["a:1"], "Layers": names}]
    files = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    return files | dict(zip(names, tars, strict=True))


def write_folder(files: dict[str, bytes], place: Path) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def write_archive(files: dict[str, bytes], place: Path) -> Path:
    with tarfile.open(place, "w") as archive:
        for name, data in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return place


LOWER = make_tar(
    ("./", None), ("./a/", None), ("./a/one", "1"), ("./a/two", "2"), ("b/", None), ("b/in", "b"), ("c", "c"), ("d/", None), ("d/x", "x"),
    ("dev/", None), ("dev/null", None), ("link -> a/one", None),
)  # fmt: skip
UPPER = make_tar(
    ("a/two", "changed"), ("a/.wh.one", ""), ("b/new", "n"), ("b/.wh..wh..opq", ""), (".wh.c", ""), ("d", "now a file"),
    ("hard => a/two", None), ("e/", None), ("e/.wh.never", ""),
)  # fmt: skip
SEEN = {"": "", "a": "", "a/two": "changed", "b": "", "b/new": "n", "d": "now a file", "dev": "", "dev/null": "char 1:3",
        "e": "", "hard": "changed", "link": "a/one"}  # fmt: skip


def contents(place: Path) -> dict[str, str]:
    return {entry.path: entry.sha256 or entry.target for entry in read_tree(place).entries}


def expected() -> dict[str, str]:
    files = {"a/two", "b/new", "d", "hard"}
    return {p: hashlib.sha256(t.encode()).hexdigest() if p in files else t for p, t in SEEN.items()}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("nested", [False, True])
def test_layers_lie_over_each_other_and_hide_what_they_say(tmp_path: Path, packing: str, nested: bool):
    files = make_layout(LOWER, UPPER, packing=packing, nested=nested)
    assert contents(write_folder(files, tmp_path / "folder")) == expected()
    assert contents(write_archive(files, tmp_path / "image.tar")) == expected()


def test_what_older_engines_save_is_read(tmp_path: Path):
    assert contents(write_archive(make_saved(LOWER, UPPER), tmp_path / "image.tar")) == expected()


def test_the_settings_are_read(tmp_path: Path):
    image = read_image(write_folder(make_layout(LOWER), tmp_path))
    assert (image.config.env, image.config.labels) == ((("A", "1=2"), ("B", "")), (("x", "y"),))
    assert len(image.manifest) == 64


def test_every_text_of_the_config_is_read_with_its_place(tmp_path: Path):
    texts = read_image(write_folder(make_layout(LOWER), tmp_path)).texts
    assert texts == (("architecture", "architecture=amd64"), ("os", "os=linux"), ("config.Labels.x", "x=y"))


class Words:
    """Looks for a word in files below `etc`."""

    def wants(self, entry: Entry) -> bool:
        return entry.path.startswith("etc/")

    def finds(self, content: bytes) -> Iterator[str]:
        return (word for word in ("secret",) if word.encode() in content)


@pytest.mark.parametrize(
    ("upper", "hidden"),
    [
        (("etc/.wh.key", None), True),
        (("etc/key", "harmless"), True),
        (("etc/.wh..wh..opq", None), True),
        ((".wh.etc", None), True),
        (("etc/other", "a secret"), False),
    ],
    ids=["removed", "replaced", "all removed", "folder removed", "left"],
)
def test_what_a_later_layer_removes_is_looked_at(tmp_path: Path, upper: tuple[str, str | None], hidden: bool):
    lower = make_tar(("etc/", None), ("etc/key", "a secret"), ("opt/key", "a secret"))
    tree = read_tree(write_folder(make_layout(lower, make_tar(upper)), tmp_path), scanner=Words())
    assert tree.hidden == ((("etc/key", "secret"),) if hidden else ())


def test_modes_owners_times_and_attributes_are_kept(tmp_path: Path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        item = tarfile.TarInfo("ü" * 60)
        item.mode, item.uid, item.gid, item.mtime = 0o4711, 3, 70_000, 11.5
        item.pax_headers = {"SCHILY.xattr.user.a": "b", "comment": "none of ours"}
        archive.addfile(item)
    (entry,) = read_tree(write_folder(make_layout(out.getvalue()), tmp_path)).entries
    assert (entry.path, entry.kind, entry.mode, entry.uid, entry.gid, entry.mtime) == (
        "ü" * 60, Kind.FILE, 0o4711, 3, 70_000, 11,
    )  # fmt: skip
    assert entry.xattrs == (("user.a", b"b"),)


def test_gnu_long_names_are_read(tmp_path: Path):
    tar = make_tar(("n" * 150, "x"), form=tarfile.GNU_FORMAT)
    assert list(contents(write_folder(make_layout(tar), tmp_path))) == ["n" * 150]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda files: files.pop("index.json"), "neither `index.json`"),
        (lambda files: files.update({"index.json": b"{"}), "not an image"),
        (lambda files: files.update({"index.json": b'{"schemaVersion": 2, "manifests": []}'}), "0 images"),
        (lambda files: files.update({"index.json": b'{"schemaVersion": 2, "manifests": [{"digest": "md5:1"}]}'}), "expected a sha256"),
        (lambda files: files.update({"index.json": b'{"schemaVersion": 2, "manifests": [7]}'}), "not an image"),
        (lambda files: files.update({"index.json": b"[" * 100_000}), "not an image"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(tmp_path: Path, change, why):
    files = make_layout(LOWER)
    change(files)
    with pytest.raises(VerifyError, match=why):
        read_tree(write_folder(files, tmp_path))


def test_a_blob_that_is_not_what_it_is_named_is_refused(tmp_path: Path):
    files = make_layout(LOWER, packing="plain")
    (name,) = [name for name, data in files.items() if data == LOWER]
    with pytest.raises(VerifyError, match="does not hold what its name says"):
        read_tree(write_folder(files | {name: LOWER + bytes(512)}, tmp_path))


def test_a_saved_layer_that_is_not_the_one_of_the_config_is_refused(tmp_path: Path):
    files = make_saved(LOWER) | {"layer0/layer.tar": UPPER}
    with pytest.raises(VerifyError, match="not the one that the config names"):
        read_tree(write_archive(files, tmp_path / "image.tar"))


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/abs", "a//b"])
def test_paths_that_are_not_plain_are_refused(tmp_path: Path, name: str):
    tar = make_tar((name, "x"))
    with pytest.raises(VerifyError, match="is not plain"):
        read_tree(write_folder(make_layout(tar), tmp_path))


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(VerifyError, match="is not an image that can be read"):
        read_tree(tmp_path / "nothing")
