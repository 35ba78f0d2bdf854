import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.artifacts.sif import opened_sif
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.findings import Finding, Severity
from envbuilder.layers.layer import Kind, read_blocks, read_manifest, write_layer
from envbuilder.verify.compare import sif_manifest
from envbuilder.verify.compare import verify as compare
from envbuilder.verify.pair import (
    Proof,
    hash_pair,
    load_contents,
    load_proof,
    save_contents,
    save_proof,
)
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


@pytest.mark.programs
def test_after_an_edit_only_new_bytes_are_unpacked(pair: Pair, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    known = load_contents(store, pair.layers)
    assert known == {}
    report = compare(pair.image, pair.sif, layers=pair.layers, known=known)
    assert report == compare(pair.image, pair.sif, layers=pair.layers)
    save_contents(store, pair.layers, known)

    tree = tmp_path / "tree"
    (tree / "opt").mkdir(parents=True)
    (tree / "opt/edited.so").write_bytes(os.urandom(700_000))
    added = write_layer(
        name="added", tree=tree, folder=tmp_path / "added", epoch=EPOCH, threads=1, omit=("opt",)
    )
    edited = make_pair(tmp_path / "edited", [*pair.layers, added])
    known = load_contents(store, edited.layers)
    before = set(known.values())
    files = (entry for layer in pair.layers for entry in read_manifest(layer))
    assert before == {entry.sha256 for entry in files if entry.kind is Kind.FILE}
    assert compare(edited.image, edited.sif, layers=edited.layers, known=known).findings == ()
    assert set(known.values()) - before == {entry.sha256 for entry in read_manifest(added)}

    lies = dict.fromkeys(known, "0" * 64)  # what is known is not unpacked, so its digest is believed
    digests = {entry.sha256 for entry in sif_manifest(edited.sif, known=lies) if entry.kind is Kind.FILE}
    assert digests == {"0" * 64}


@pytest.mark.programs
@pytest.mark.parametrize("path", ["bin/tool", "bin/small"])
def test_a_changed_byte_of_a_known_content_is_found(pair: Pair, path: str) -> None:
    known: dict[str, str] = {}
    assert compare(pair.image, pair.sif, layers=pair.layers, known=known).findings == ()
    layer = pair.layers[0]
    digest = next(entry.sha256 for entry in read_manifest(layer) if entry.path == path)
    blocks = read_blocks(layer)
    frame = blocks.large[digest][0] if digest in blocks.large else blocks.fragments[blocks.small[digest][0]]
    packed = layer.blob.read_bytes()[frame[0] : frame[0] + frame[1]]
    start = pair.sif.read_bytes().index(packed)
    found = 0
    for at in range(start, start + len(packed), len(packed) // 16):  # a fragment also holds what is no file's
        flip(pair.sif, at)
        anew = compare(pair.image, pair.sif, layers=pair.layers)
        assert compare(pair.image, pair.sif, layers=pair.layers, known=dict(known)) == anew
        found += bool(anew.findings)
        flip(pair.sif, at)
    assert found


@pytest.mark.programs
def test_the_same_stored_bytes_of_another_length_are_another_content(pair: Pair) -> None:
    known: dict[str, str] = {}
    sif_manifest(pair.sif, known=known)
    with opened_sif(pair.sif) as system:
        small = system.contents()["bin/small"]
        names = {
            system.stored_digest(one)
            for one in (
                small,
                replace(small, size=small.size - 1),
                replace(small, offset=small.offset + 1),
            )
        }
    assert len(names) == 3
    assert len(names & known.keys()) == 1
