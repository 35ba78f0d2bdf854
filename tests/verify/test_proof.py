import hashlib
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.artifacts.sif import opened_sif
from envbuilder.artifacts.squashfs.reader import Content, Squashfs
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.findings import Finding, Severity
from envbuilder.layers.layer import Kind, Layer, read_blocks, read_manifest, write_layer
from envbuilder.verify.compare import verify as compare
from envbuilder.verify.pair import (
    Proof,
    hash_pair,
    load_contents,
    load_proof,
    save_contents,
    save_proof,
)
from envbuilder.verify.stored import Known, find_stored, unpack_large
from tests.support.pairs import EPOCH, Pair, make_pair

AGAIN = "no byte has changed since both were compared and audited"


def verify(pair: Pair, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = cli.run(["verify", str(pair.image), str(pair.sif), *options])
    out, err = capsys.readouterr()
    return code, out, err


def largest(image: Path) -> Path:
    return max((path for path in image.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int) -> None:
    """Change one byte. The file keeps its number, its size and the time of its last change."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(at)
        (byte,) = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
def test_an_unchanged_pair_is_hashed_and_has_the_same_answer(
    pair: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = verify(pair, capsys, "--json")
    assert (code, AGAIN in err, "audit what they hold" in err) == (0, False, True)

    moved = replace(pair, image=tmp_path / "a", sif=tmp_path / "b.sif")
    shutil.copytree(pair.image, moved.image)
    shutil.copyfile(pair.sif, moved.sif)
    for again in (pair, moved):  # neither places nor times count
        code, second, err = verify(again, capsys, "--json")
        assert (code, AGAIN in err, "audit what they hold" in err) == (0, True, False)
        said, before = json.loads(second), json.loads(out)
        for answer in (said["data"], before["data"]):
            del answer["image"], answer["sif"]
        assert (said["data"], said["findings"]) == (before["data"], before["findings"])


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("where", ["sif", "image", "oci-layout"])
def test_a_changed_byte_is_found_although_size_and_times_are_the_same(
    pair: Pair, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    assert verify(pair, capsys)[0] == 0
    match where:
        case "sif":
            flip(pair.sif, pair.sif.stat().st_size // 2)
        case "image":
            blob = largest(pair.image)
            flip(blob, blob.stat().st_size // 2)
        case _:
            flip(pair.image / "index.json", 0)
    code, _, err = verify(pair, capsys)
    assert (code, AGAIN in err) == (7, False)
    assert verify(pair, capsys)[0] == 7  # nothing is remembered of a failure


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
def test_another_question_is_not_answered_by_an_old_proof(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--oldest-host", "2.28"), ("--oldest-host", "2.31")):
        assert AGAIN not in verify(pair, capsys, *options)[2]
        assert AGAIN in verify(pair, capsys, *options)[2]


@pytest.mark.programs
def test_the_name_of_a_proof_holds_all_bytes_and_settings(pair: Pair) -> None:
    def key(*settings: str) -> str:
        hashed = hash_pair(pair.image, pair.sif, threads=2)
        assert hashed
        return hashed.key(settings)

    names = [key(), key("glibc 2.36"), key("glibc 2.36", "layer")]
    flip(pair.sif, 0)
    names.append(key())
    (pair.image / "more").touch()
    names.append(key())
    assert len(set(names)) == len(names)
    assert key() == names[-1]


@pytest.mark.programs
def test_a_pair_that_changed_while_it_was_verified_is_known(pair: Pair) -> None:
    hashed = hash_pair(pair.image, pair.sif, threads=2)
    assert hashed
    assert hashed.is_unchanged()
    copy = pair.sif.with_suffix(".new")
    shutil.copy2(pair.sif, copy)
    copy.replace(pair.sif)
    assert not hashed.is_unchanged()


@pytest.mark.programs
def test_a_layout_with_links_and_an_unreadable_file_have_no_proof(pair: Pair) -> None:
    assert hash_pair(pair.image, pair.sif.with_name("none"), threads=2) is None
    (pair.image / "link").symlink_to(pair.sif)
    assert hash_pair(pair.image, pair.sif, threads=2) is None


def test_a_proof_is_read_as_it_was_saved_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    store, key = Store(tmp_path / "cache"), sha256_text("")
    finding = Finding(code="EB720", severity=Severity.WARNING, where="/a", message="b", hint="c")
    proof = Proof(paths=3, tree=sha256_text("tree"), passed_over=("etc/hosts",), findings=(finding,))
    assert load_proof(store, key) is None
    save_proof(store, key, proof)
    assert load_proof(store, key) == proof
    store.proof(key).write_text(store.proof(key).read_text()[:-9])
    assert load_proof(store, key) is None


def unpacked(pair: Pair, known: Known, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Compare a pair. Returns the digests of the contents that were unpacked for it."""
    digests: set[str] = set()

    def note(system: Squashfs, content: Content) -> str:
        digests.add(digest := digest_of(system, content))
        return digest

    digest_of = Squashfs._digest
    with monkeypatch.context() as patch:
        patch.setattr(Squashfs, "_digest", note)
        assert compare(pair.image, pair.sif, layers=pair.layers, known=known).findings == ()
    return digests


def with_own_layers(pair: Pair, folder: Path) -> Pair:
    """Return the pair with copies of its layers, for a test to damage."""
    copies = [shutil.copytree(layer.folder, folder / layer.name) for layer in pair.layers]
    return replace(
        pair, layers=[replace(layer, folder=copy) for layer, copy in zip(pair.layers, copies, strict=True)]
    )


def contents(layer: Layer) -> set[str]:
    return {entry.sha256 for entry in read_manifest(layer) if entry.kind is Kind.FILE}


EMPTY = hashlib.sha256().hexdigest()


@pytest.mark.programs
def test_after_an_edit_only_new_bytes_are_unpacked(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "cache")
    before = load_contents(store, pair.layers)
    assert before == {}
    assert unpacked(pair, before, monkeypatch) == contents(pair.layers[0]) | contents(pair.layers[1])
    report = compare(pair.image, pair.sif, layers=pair.layers, known=before)
    assert report == compare(pair.image, pair.sif, layers=pair.layers)
    save_contents(store, pair.layers, before, report.known)
    assert load_contents(store, pair.layers) == report.known

    added = write_small(tmp_path, "added", {"edited.so": os.urandom(700_000)})
    edited = make_pair(tmp_path / "edited", [*pair.layers, added])
    known = load_contents(store, edited.layers)
    assert unpacked(edited, known, monkeypatch) - {EMPTY} == contents(added)
    report = compare(edited.image, edited.sif, layers=edited.layers, known=known)
    assert unpacked(edited, report.known, monkeypatch) - {EMPTY} == set()


@pytest.mark.programs
def test_a_content_is_known_of_the_frames_alone_that_it_was_unpacked_from(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers have it, and the SIF that was verified has that of the lower one."""
    lower, upper = (write_small(tmp_path, name, {name: b"twin"}) for name in ("lower", "upper"))
    both = make_pair(tmp_path / "both", [*pair.layers, lower, upper])
    known = compare(both.image, both.sif, layers=both.layers, known={}).known
    assert (known[lower.digest], known[upper.digest]) == (frozenset(), contents(upper))
    other = make_pair(tmp_path / "other", [*pair.layers, upper])
    assert unpacked(other, known, monkeypatch) - {EMPTY} == contents(upper)


def write_small(folder: Path, name: str, files: dict[str, bytes]) -> Layer:
    """Write a layer of files in `opt`."""
    tree = folder / f"tree-{name}"
    (tree / "opt").mkdir(parents=True)
    for path, content in files.items():
        (tree / "opt" / path).write_bytes(content)
    return write_layer(name=name, tree=tree, folder=folder / name, epoch=EPOCH, threads=1, omit=("opt",))


@pytest.mark.programs
@pytest.mark.parametrize("path", ["bin/tool", "bin/small"])
def test_a_changed_byte_of_a_known_content_is_found(pair: Pair, path: str) -> None:
    known = compare(pair.image, pair.sif, layers=pair.layers, known={}).known
    assert set(known.values()) == {frozenset()}
    layer = pair.layers[0]
    digest = next(entry.sha256 for entry in read_manifest(layer) if entry.path == path)
    blocks = read_blocks(layer)
    frame = blocks.large[digest][0] if digest in blocks.large else blocks.fragments[blocks.small[digest][0]]
    packed = layer.blob.read_bytes()[frame[0] : frame[0] + frame[1]]
    start = pair.sif.read_bytes().index(packed)
    found = 0
    for at in range(start, start + len(packed), max(1, len(packed) // 16)):
        flip(pair.sif, at)
        anew = compare(pair.image, pair.sif, layers=pair.layers)
        again = compare(pair.image, pair.sif, layers=pair.layers, known=known)
        assert again == anew
        found += bool(anew.findings)
        flip(pair.sif, at)
    assert found


@pytest.mark.programs
def test_what_the_tables_of_a_sif_say_of_a_content_is_compared(pair: Pair) -> None:
    """The same bytes of another length, or at another place in a shared block, are another content."""
    with opened_sif(pair.sif) as system:
        small, large = (system.contents()[path] for path in ("bin/small", "bin/tool"))
        stored = find_stored(system, pair.layers, threads=2)
        assert {small, large} <= stored.keys()
        others = [
            ("bin/small", replace(small, size=small.size - 1)),
            ("bin/small", replace(small, offset=small.offset + 1)),
            ("bin/tool", replace(large, blocks=large.blocks[:-1])),
            ("bin/tool", replace(large, start=large.start + 1)),
            ("bin/tool", replace(large, blocks=tuple(length | 1 << 24 for length in large.blocks))),
        ]
        for path, content in others:
            system.contents = lambda path=path, content=content: {path: content}  # type: ignore[method-assign]
            assert find_stored(system, pair.layers, threads=2) == {}, content


@pytest.mark.programs
def test_frames_that_a_sif_stores_unpacked_are_the_same_bytes(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = write_small(tmp_path, "random", {"random": os.urandom(700_000)})
    grown = make_pair(tmp_path / "grown", [*pair.layers, layer])
    with opened_sif(grown.sif) as system:
        assert [is_packed for _, _, is_packed in system.blocks(system.contents()["opt/random"])] == [
            False
        ] * 3
    known = compare(grown.image, grown.sif, layers=grown.layers, known={}).known
    assert known[layer.digest] == frozenset()
    assert unpacked(grown, known, monkeypatch) - {EMPTY} == set()


@pytest.mark.programs
def test_of_a_blob_that_cannot_be_read_all_contents_are_unpacked(pair: Pair, tmp_path: Path) -> None:
    pair = with_own_layers(pair, tmp_path)
    known = compare(pair.image, pair.sif, layers=pair.layers, known={}).known
    pair.layers[0].blob.unlink()
    with opened_sif(pair.sif) as system:
        assert {place.layer for place in find_stored(system, pair.layers, threads=1).values()} == {
            pair.layers[1]
        }
    assert compare(pair.image, pair.sif, layers=pair.layers, known=known).findings == ()


@pytest.mark.programs
def test_what_was_unpacked_out_of_the_blobs_is_not_unpacked_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {layer.digest: unpack_large(layer, threading.Event()) for layer in pair.layers}
    small = {digest for layer in pair.layers for digest in read_blocks(layer).small}
    large = {digest for layer in pair.layers for digest in read_blocks(layer).large}
    assert large
    assert set().union(*known.values()) == small
    assert unpacked(pair, known, monkeypatch) & large == set()
    report = compare(pair.image, pair.sif, layers=pair.layers, known=known)
    assert set(report.known.values()) == {frozenset()}


@pytest.mark.programs
def test_a_damaged_content_of_a_blob_is_not_known(pair: Pair, tmp_path: Path) -> None:
    layer, stop = with_own_layers(pair, tmp_path).layers[0], threading.Event()
    for digest, frames in read_blocks(layer).large.items():
        begin, length, _ = frames[-1]
        flip(layer.blob, begin + length - 1)
        flip(layer.blob, begin + length // 2)
        assert digest in unpack_large(layer, stop)
    assert unpack_large(layer, stop) == contents(layer) - {EMPTY}


@pytest.mark.programs
def test_after_a_stop_nothing_more_is_unpacked(pair: Pair) -> None:
    stop = threading.Event()
    stop.set()
    assert unpack_large(pair.layers[0], stop) == contents(pair.layers[0]) - {EMPTY}
