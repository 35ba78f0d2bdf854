"""Parts of SIFs: the same bytes give the same parts wherever they lie, and parts give the same bytes."""

import contextlib
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.artifacts import parts
from envbuilder.artifacts.parts import Assembly, cut, digest
from envbuilder.artifacts.parts_index import PartsIndex, make_index, parse_index
from tests.support.toys import make_toy


def frames(seed: int, count: int) -> list[bytes]:
    dice, pack = random.Random(seed), zstandard.ZstdCompressor()
    return [pack.compress(dice.randbytes(dice.randrange(1, 5000))) for _ in range(count)]


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + size] for at, size, _ in cut(io.BytesIO(data))]


@given(
    st.lists(st.sampled_from([b"\x28", b"\xb5", b"\x2f\xfd", parts.FRAME, b"text", bytes(40)]), max_size=60)
)
def test_parts_follow_each_other_and_are_the_whole(words):
    data = b"".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MOST", 64)
        found = list(cut(io.BytesIO(data)))
    assert b"".join(data[at : at + size] for at, size, _ in found) == data
    assert [at for at, *_ in found] == [
        sum(size for _, size, _ in found[:number]) for number in range(len(found))
    ]
    assert all(name == digest(data[at : at + size]) for at, size, name in found)


def test_a_change_in_one_place_changes_the_parts_of_that_place():
    first = frames(1, 40)
    edited = [*first[:20], *frames(2, 1), *first[21:]]
    old, new = (pieces(b"front" + b"".join(one)) for one in (first, edited))
    assert len(set(new) - set(old)) == 1
    assert len(new) == 41


def test_where_no_frame_begins_parts_have_a_most_size(monkeypatch):
    monkeypatch.setattr(parts, "MOST", 1000)
    data = bytes(2500) + frames(3, 1)[0]
    assert [len(one) for one in pieces(data)][:3] == [1000, 1000, 500]


def index_of(data: bytes) -> list[tuple[int, str]]:
    return [(size, name) for _, size, name in cut(io.BytesIO(data))]


def test_an_old_file_gives_what_it_has_and_the_rest_is_missing(tmp_path):
    first = frames(1, 40)
    wanted = b"other front" + b"".join([*first[:20], *frames(2, 2), *first[20:]])
    (tmp_path / "old").write_bytes(b"front" + b"".join(first))
    made = Assembly(str(tmp_path / "new"), index_of(wanted))
    made.take(str(tmp_path / "old"))
    assert made.missing == {0, 21, 22}
    assert made.lacks == sum(made.parts[number][0] for number in made.missing)
    assert not made.put(0, b"wrong bytes")
    for number in sorted(made.missing):
        at = made.places[number]
        assert made.put(number, wanted[at : at + made.parts[number][0]])
    made.finish()
    made.close()
    assert (tmp_path / "new").read_bytes() == wanted


def test_a_second_attempt_keeps_what_is_right_and_nothing_else(tmp_path):
    wanted = b"".join(frames(4, 10))
    (tmp_path / "new").write_bytes(wanted[:-3000] + bytes(10))
    made = Assembly(str(tmp_path / "new"), index_of(wanted))
    kept = set(range(10)) - made.missing
    assert kept == {
        number for number in range(10) if made.places[number] + made.parts[number][0] <= len(wanted) - 3000
    }
    made.close()


def test_inside_one_file_system_the_kernel_copies(tmp_path, monkeypatch):
    """Whole blocks at equal places of their blocks are calls of their own, which Btrfs and XFS answer with a reflink."""
    calls, copy = [], os.copy_file_range

    def note(source, out, size, at, to):
        calls.append((size, at, to))
        return copy(source, out, size, at, to)

    def refuse(*_):
        raise AssertionError("bytes went through the program")

    monkeypatch.setattr("os.copy_file_range", note)
    monkeypatch.setattr("os.pwrite", refuse)
    kept = b"".join(frames(5, 10))
    for shift, first in ((2 * 4096, (4096 - 100, 100, 100 + 2 * 4096)), (7, (len(kept), 100, 107))):
        wanted = bytes(shift) + bytes(100) + kept
        (tmp_path / "old").write_bytes(bytes(100) + kept)
        with contextlib.closing(Assembly(str(tmp_path / f"new{shift}"), index_of(wanted))) as made:
            made.take(str(tmp_path / "old"))
            assert made.missing == {0}
        assert (tmp_path / f"new{shift}").read_bytes()[shift + 100 :] == kept
        assert calls[0] == first
        calls.clear()


def test_a_file_system_without_shared_copies_gets_the_bytes(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "another device")

    monkeypatch.setattr("os.copy_file_range", refuse)
    wanted = b"".join(frames(5, 10))
    (tmp_path / "old").write_bytes(b"shifted" + wanted)
    made = Assembly(str(tmp_path / "new"), index_of(wanted))
    made.take(str(tmp_path / "old"))
    assert not made.missing
    made.finish()
    made.close()
    assert (tmp_path / "new").read_bytes() == wanted


def dense(seed: int, size: int) -> bytes:
    """Bytes that do not compress, among them frames of zstd, as the libraries of CUDA 13 have them."""
    return b"".join(frames(seed, size // 2000))[:size]


def index_with(*part: object) -> bytes:
    return PartsIndex(parts=(part,), blobs=("aa" * 32,)).to_bytes()


CONTENTS = {
    "text": {name: random.Random(name).randbytes(600_000).hex().encode() for name in ("os", "python")},
    "dense": {name: dense(number, 1_500_000 + number) for number, name in enumerate(("os", "python"))},
    "dense among text": {
        name: bytes(700_000) + dense(number, 900_000) + bytes(100_000) for number, name in enumerate(("os", "python"))
    },
    "the same twice": {"os": dense(1, 1_000_000), "python": dense(1, 1_000_000)},
    "a part that only one layer has": {"os": dense(1, 262_144), "python": dense(2, 262_144 + 70)},
}  # fmt: skip


@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS)
def test_a_sif_lies_in_its_layers_and_the_index_says_where(tmp_path, contents):
    """But for its tables, and 256 KiB where a part lies in two layers."""
    toy = make_toy(tmp_path, contents)
    blobs = {
        name * 32: tmp_path / f"{layer}-layer/layer.tar.zst"
        for name, layer in (("aa", "os"), ("bb", "python"))
    }
    index = make_index(toy.sif, blobs)
    assert parse_index(index.to_bytes()) == index
    sif, at = toy.sif.read_bytes(), 0
    assert index.size == len(sif)
    for part in index.parts:
        if part.blob >= 0:
            layer = blobs[index.blobs[part.blob]].read_bytes()
            found = b"".join(layer[at : at + size] for at, size in part.pieces)
            assert found == sif[at : at + part.size]
        at += part.size
    assert index.rest < 300_000
    whole, rest = index.with_rest(toy.sif)
    assert (whole.rest, len(rest)) == (0, index.rest)


def test_a_layer_of_another_program_has_no_part_of_a_sif(tmp_path):
    toy = make_toy(tmp_path, {"os": dense(1, 400_000)})
    layer = (tmp_path / "os-layer/layer.tar.zst").read_bytes()
    for number, content in enumerate((b"text", b"\x1f\x8b" + layer, layer[:5], layer[: len(layer) // 2])):
        (tmp_path / f"{number}").write_bytes(content)
    index = make_index(toy.sif, {f"{number}": tmp_path / f"{number}" for number in range(3)})
    assert index.rest == index.size
    make_index(toy.sif, {"cut off": tmp_path / "3"})


@pytest.mark.parametrize(
    "content",
    [
        b"", b"text", zstandard.ZstdCompressor().compress(b"[]"), index_with(5, "ab", 1, ((0, 5),)), index_with(5, "ab", 0),
        index_with(5, "ab", 0, ((0, 4),)), index_with(5, "ab", 0, ((3, 2), (0, 3))), index_with(5, "ab", 0, ((0, 2), (1 << 40, 3))),
        index_with(5, "ab", 0, ((0, 9), (9, -4))), index_with(5, "ab", 0, ((-5, 5),)), index_with(5 << 30, "ab"),
    ],
)  # fmt: skip
def test_another_text_is_no_index(content):
    with pytest.raises(ValueError, match="not an index"):
        parse_index(content)


@pytest.mark.programs
def test_parts_are_cut_by_python_alone():
    """`sync` sends this text to machines that have nothing else."""
    text = Path(parts.__file__).read_text(encoding="utf-8")
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text + "\nprint(MOST)"], check=True, capture_output=True
    )
    assert int(said.stdout) == parts.MOST
