import hashlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySquashfsImage import SquashFsImage

from envbuilder import cli
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.artifacts.sif import opened_sif, read_sif
from envbuilder.artifacts.squashfs.reader import Squashfs, SquashfsTree
from envbuilder.core.errors import VerifyError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.layers.entry import Entry, Kind, path_order
from envbuilder.layers.layer import read_manifest, write_layer
from envbuilder.verify.compare import SHOWN, compare, sif_manifest, verify
from tests.support.pairs import EPOCH, Pair, make_layers, make_pair, write_os_tar


def read_entries(image: Path) -> tuple[Entry, ...]:
    return read_tree(image).entries


def everything(pair: Pair) -> list[Entry]:
    return sorted((e for layer in pair.layers for e in read_manifest(layer)), key=path_order)


@pytest.mark.programs
def test_image_and_sif_of_the_same_layers_are_proved_equal(pair: Pair) -> None:
    for layers in (pair.layers, []):
        report = verify(pair.image, pair.sif, layers=layers)
        assert report.findings == ()
        assert report.paths == len(everything(pair))


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{image} {none}", "there is no SIF `{none}`"),
        ("{image} {image}", "`{image}` is a folder; a SIF is expected there"),
        ("{sif} {image}", "the image comes first: envbuilder verify {image} {sif}"),
        ("{sif} {sif}", "`envbuilder diff {sif} {sif}` compares two SIFs"),
    ],
)
def test_what_is_no_image_and_sif_is_told_before_either_is_read(
    pair: Pair, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    places = {"image": pair.image, "sif": pair.sif, "none": pair.sif.with_name("none.sif")}
    code = cli.run(["verify", *words.format(**places).split()])
    err = capsys.readouterr().err
    assert (code, err.startswith("error: ")) == (2, True)  # no step was begun
    assert said.format(**places) in err


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
def test_a_comparison_that_finds_a_difference_is_a_step_that_failed(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(pair.sif, pair.sif.stat().st_size // 2)
    code = cli.run(["verify", str(pair.image), str(pair.sif)])
    err = capsys.readouterr().err
    assert code == 7
    assert "✗ verify image ≡ SIF" in err
    assert "✓" not in err


@pytest.mark.programs
def test_both_readers_see_the_layers_as_they_were_written(pair: Pair) -> None:
    assert list(read_entries(pair.image)) == everything(pair)
    assert list(sif_manifest(pair.sif)) == everything(pair)
    assert list(sif_manifest(pair.sif, threads=1)) == everything(pair)


@pytest.mark.programs
def test_an_independent_reader_agrees_about_the_sif(pair: Pair) -> None:
    part = read_sif(pair.sif).system
    with SquashFsImage.from_file(str(pair.sif), part.offset) as image:
        seen = [
            Entry(
                path=item.path.strip("/"),
                kind=Kind.FILE if item.is_file else Kind.LINK if item.is_symlink else Kind.DIRECTORY,
                mode=item.mode & 0o7777,
                uid=item.uid,
                gid=item.gid,
                mtime=item.time,
                size=item.size if item.is_file else 0,
                sha256=hashlib.sha256(item.read_bytes()).hexdigest() if item.is_file else "",
                target=item.readlink() if item.is_symlink else "",
            )
            for item in image
        ]
    ours = [
        replace(entry, xattrs=()) for entry in sif_manifest(pair.sif)
    ]  # it does not read them from every file
    assert sorted(seen, key=path_order) == ours


@pytest.mark.programs
@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (
            {"content": b"\1" + b"".join(n.to_bytes(4, "big") for n in range(200_000))[1:]},
            "EB703",
            "content is",
        ),
        ({"mode": 0o750}, "EB702", "mode is 0755 in the image and 0750 in the SIF"),
        ({"uid": 4}, "EB702", "owner is 3:65534 in the image and 4:65534 in the SIF"),
        ({"mtime": 12}, "EB702", "time is 11 in the image and 12 in the SIF"),
        ({"pax_headers": {"SCHILY.xattr.user.a": "c"}}, "EB702", "extended attributes"),
        ({"leave_out": "bin/tool"}, "EB701", "only in the image"),
    ],
)
def test_a_planted_difference_is_named(
    tmp_path: Path, changes: dict[str, object], code: str, words: str
) -> None:
    layers = make_layers(tmp_path / "one", write_os_tar(tmp_path / "os.tar"))
    other = make_layers(tmp_path / "two", write_os_tar(tmp_path / "other.tar", **changes))  # type: ignore[arg-type]
    planted = make_pair(tmp_path / "out", layers, other)
    for known in (layers, []):
        (finding,) = verify(planted.image, planted.sif, layers=known).findings
        assert (finding.code, finding.where) == (code, "/bin/tool")
        assert words in finding.message


@pytest.mark.programs
@pytest.mark.parametrize(
    ("one", "other", "code", "where", "words"),
    [
        ({}, {"link": "../elsewhere"}, "EB702", "/bin/sh", "and '../elsewhere' in the SIF"),
        ({"leave_out": "bin/tool"}, {}, "EB701", "/bin/tool", "only in the SIF"),
    ],
    ids=["another link", "an extra file"],
)
def test_a_planted_link_or_extra_file_is_named(
    tmp_path: Path, one: dict[str, str], other: dict[str, str], code: str, where: str, words: str
) -> None:
    layers = make_layers(tmp_path / "one", write_os_tar(tmp_path / "one.tar", **one))
    changed = make_layers(tmp_path / "two", write_os_tar(tmp_path / "two.tar", **other))
    planted = make_pair(tmp_path / "out", layers, changed)
    for known in (layers, []):
        (finding,) = verify(planted.image, planted.sif, layers=known).findings
        assert (finding.code, finding.where) == (code, where)
        assert words in finding.message


@pytest.mark.programs
def test_the_files_of_a_sif_can_be_read_in_any_order(pair: Pair) -> None:
    choose = random.Random(3)
    with opened_sif(pair.sif) as system:
        tree = SquashfsTree(system, system.entries(threads=2))
        for path in ("bin/sh", "bin", "bin/small/x", "nowhere", ""):
            with pytest.raises(KeyError):
                system.open(path)
        for path in ("bin/tool", "bin/zeros", "bin/small", "bin/none", "opt/env/lib/module_7.py"):
            with tree.open(path) as stream, system.open(path) as same:
                whole = stream.read()
                assert same.read() == whole
                entry = next(entry for entry in tree.entries if entry.path == path)
                assert (len(whole), hashlib.sha256(whole).hexdigest()) == (entry.size, entry.sha256)
                for _ in range(20):
                    at, size = choose.randrange(len(whole) + 5), choose.randrange(400_000)
                    stream.seek(at)
                    assert stream.read(size) == whole[at : at + size]


@pytest.mark.programs
def test_names_that_are_no_text_are_in_both(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "tree") + b"/\xff\n")).write_text("x")
    layer = write_layer(name="x", tree=tmp_path / "tree", folder=tmp_path / "layer", epoch=EPOCH, threads=1)
    made = make_pair(tmp_path / "out", [layer])
    assert sif_manifest(made.sif)[1:] == read_entries(made.image) == read_manifest(layer)


@pytest.mark.programs
def test_an_image_of_other_layers_is_named(tmp_path: Path, pair: Pair) -> None:
    other = make_layers(tmp_path / "two", write_os_tar(tmp_path / "other.tar", mode=0o700))
    (finding,) = verify(pair.image, pair.sif, layers=other).findings
    assert (finding.code, "not made of the layers" in finding.message) == ("EB704", True)


def _flip(path: Path, at: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(at)
        (byte,) = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.programs
@pytest.mark.parametrize("known", [True, False])
def test_one_changed_bit_of_a_blob_is_found(pair: Pair, known: bool) -> None:
    layout = read_layout(pair.image)
    blob = layout.path(layout.layers[0].blob)
    _flip(blob, blob.stat().st_size // 2)
    (finding,) = verify(pair.image, pair.sif, layers=pair.layers if known else []).findings
    assert finding.code == "EB704"


@pytest.mark.programs
def test_no_changed_bit_of_a_sif_breaks_the_reader(pair: Pair) -> None:
    part = read_sif(pair.sif).system
    truth = sif_manifest(pair.sif)
    with pair.sif.open("rb") as stream:
        stream.seek(part.offset)
        head = stream.read(96)
    used, inodes = (int.from_bytes(head[at : at + 8], "little") for at in (40, 64))
    choose = random.Random(7)
    places = [
        *range(96),
        *(choose.randrange(96, inodes) for _ in range(60)),
        *(choose.randrange(inodes, used) for _ in range(200)),
    ]
    outcomes = set()
    for place in places:
        _flip(pair.sif, part.offset + place)
        try:
            outcomes.add("same" if sif_manifest(pair.sif) == truth else "different")
        except VerifyError:
            outcomes.add("refused")
        _flip(pair.sif, part.offset + place)
    assert outcomes >= {"different", "refused"}
    assert sif_manifest(pair.sif) == truth


@pytest.mark.programs
def test_changed_content_of_a_sif_is_named_by_its_path(pair: Pair) -> None:
    part = read_sif(pair.sif).system
    _flip(pair.sif, part.offset + 1000)
    (finding,) = verify(pair.image, pair.sif, layers=pair.layers).findings
    assert finding.code in {"EB703", "EB705"}


@pytest.mark.programs
def test_missing_artifacts_are_findings(tmp_path: Path, pair: Pair) -> None:
    codes = [finding.code for finding in verify(tmp_path / "no", tmp_path / "no.sif").findings]
    assert codes == ["EB704", "EB705"]


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")
@pytest.mark.parametrize("packing", ["gzip", "xz", "zstd"])
def test_a_file_system_of_another_writer_is_read(tmp_path: Path, packing: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"x" * 300_000)
    (tree / "b").write_bytes(os.urandom(300_000))
    layer = write_layer(name="x", tree=tree, folder=tmp_path / "layer", epoch=EPOCH, threads=1)
    argv = (
        "mksquashfs",
        str(tree),
        str(tmp_path / "fs"),
        "-comp",
        packing,
        "-all-root",
        "-all-time",
        str(EPOCH),
        "-no-progress",
    )
    ProcessRunner(os.environ).run(Command(argv=argv, why="write"))
    with (tmp_path / "fs").open("rb") as stream:
        assert Squashfs(stream).entries(threads=2)[1:] == read_manifest(layer)


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")
def test_devices_and_fifos_of_others_are_named_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree/fifo")
    argv = ("mksquashfs", str(tmp_path / "tree"), str(tmp_path / "fs"), "-no-progress", "-p", "null c 666 0 0 1 3", "-p", "disk b 660 0 6 259 300")  # fmt: skip
    ProcessRunner(os.environ).run(Command(argv=argv, why="write"))
    with (tmp_path / "fs").open("rb") as stream:
        found = {entry.path: (entry.kind, entry.target) for entry in Squashfs(stream).entries(threads=1)[1:]}
    assert found == {
        "disk": (Kind.SPECIAL, "block 259:300"),
        "fifo": (Kind.SPECIAL, "fifo"),
        "null": (Kind.SPECIAL, "char 1:3"),
    }


# --- comparing ---

FILE = Entry(path="a", kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=1, size=1, sha256="0" * 64)
NAMES = ("the image", "the SIF")


def test_equal_trees_have_no_findings() -> None:
    assert compare([FILE], [replace(FILE)], NAMES) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(e, kind=Kind.LINK, target="b", sha256="", size=1, mode=0o644), "kind is file in the image and link in the SIF"),
        (lambda e: replace(e, size=2), "size is 1 in the image and 2 in the SIF"),
        (lambda e: replace(e, gid=5), "owner is 0:0 in the image and 0:5 in the SIF"),
        (lambda e: replace(e, sha256="1" * 64), f"content is {'0' * 64} in the image and {'1' * 64} in the SIF"),
    ],
)  # fmt: skip
def test_a_field_that_differs_is_named(change: Callable[[Entry], Entry], message: str) -> None:
    assert message in [finding.message for finding in compare([FILE], [change(FILE)], NAMES)]


def test_many_differences_are_counted() -> None:
    one = [replace(FILE, path=f"a{number:03}") for number in range(SHOWN + 5)]
    findings = compare(one, [], NAMES)
    assert len(findings) == SHOWN + 1
    assert findings[0].where == "/a000"
    assert (findings[-1].code, findings[-1].message) == ("EB706", "and 5 more differences")


def test_single_paths_can_be_passed_over() -> None:
    added = [replace(FILE, path=path) for path in ("etc/hosts", "tmpfile")]
    assert [found.where for found in compare([], added, NAMES, without={"etc/hosts"})] == ["/tmpfile"]
