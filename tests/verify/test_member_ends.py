"""The ends of a large file in a wheel are read without what is between, and never a byte that is not the file's."""

import io
import random
import subprocess
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from envbuilder.verify import member_ends
from envbuilder.verify.audit.audited_image import read_symbols
from envbuilder.verify.member_ends import open_ends

NAME = "torch/lib/libtorch_cpu.so"


class Counted(io.BytesIO):
    """A file that counts the bytes which are read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def packed(content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> Counted:
    stream = Counted()
    with zipfile.ZipFile(stream, "w", kind) as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr(NAME, content)
        wheel.writestr("torch/version.py", "")
    return stream


def repeating(size: int) -> bytes:
    """Return lines in the shape of mangled names. Many repeat an earlier one, also from far before."""
    draw = random.Random(41)
    lines = [b"_ZN2at%d%dE" % (draw.getrandbits(90), draw.getrandbits(20)) for _ in range(200)]
    content = bytearray()
    while len(content) < size:
        fresh = b"_ZN3c10%xE" % draw.getrandbits(200)
        lines[draw.randrange(len(lines))] = fresh
        content += fresh + b"\0" + draw.choice(lines) + b"\0"
    return bytes(content)


def test_each_byte_that_is_read_is_that_of_the_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(member_ends, "_HEAD", 1 << 20)
    # Texts repeat each other without end. A table of numbers between them does not.
    content = repeating(14 << 20) + random.Random(41).randbytes(1 << 16) + repeating(1 << 20)
    stream = packed(content)
    with zipfile.ZipFile(stream) as wheel, open_ends(wheel, info := wheel.getinfo(NAME)) as file:
        assert info.compress_size > 4 << 20
        stream.count = 0
        assert file.read(1000) == content[:1000]
        file.seek(-900_000, io.SEEK_END)
        assert file.read(900_000) == content[-900_000:]
        assert stream.count < 2 << 20
        outcomes = set[bool]()
        for at in range(0, len(content), 200_003):
            file.seek(at)
            try:
                assert file.read(500) == content[at : at + 500]
                outcomes.add(True)
            except ValueError:
                outcomes.add(False)
        assert outcomes == {True, False}, "some lie too far from both ends"


def test_a_small_file_is_read_as_a_whole_and_a_large_one_must_be_deflated():
    with zipfile.ZipFile(packed(b"\0".join([b"small"] * 9))) as wheel:
        assert open_ends(wheel, wheel.getinfo(NAME)).read().startswith(b"small\0small")
    with (
        zipfile.ZipFile(packed(bytes(4 << 20), zipfile.ZIP_STORED)) as wheel,
        pytest.raises(ValueError, match="not packed by deflate"),
    ):
        open_ends(wheel, wheel.getinfo(NAME))


def test_blocks_that_lead_to_no_end_are_given_up():
    packer, text = zlib.compressobj(wbits=-15), repeating(3 << 20)
    data = b"".join(
        packer.compress(text[at : at + 600]) + packer.flush(zlib.Z_FULL_FLUSH)
        for at in range(0, len(text), 600)
    )
    started = time.process_time()
    assert member_ends._inflate_end(data) == ()
    assert time.process_time() - started < 10, "each of 5,000 blocks would be inflated to the end"


@pytest.mark.programs
def test_the_symbols_of_a_large_library_are_those_of_the_whole(tmp_path: Path):
    (tmp_path / "filling").write_bytes(repeating(14 << 20))
    source = f'asm(".section .rodata\\n.incbin \\"{tmp_path}/filling\\"");\n'
    source += "".join(f"int given_{number}(void) {{ return {number}; }}\n" for number in range(300))
    source += "extern int needed(void); int (*keep)(void) = needed;\n"
    (tmp_path / "large.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "large.c", "-o", "large.so"], cwd=tmp_path, check=True)
    content = (tmp_path / "large.so").read_bytes()
    stream = packed(content)
    with zipfile.ZipFile(stream) as wheel:
        stream.count = 0
        symbols = read_symbols(open_ends(wheel, wheel.getinfo(NAME)))
    assert symbols == read_symbols(io.BytesIO(content))
    assert {"given_299"} < symbols.given
    assert "needed" in symbols.needed
    assert stream.count < 3 << 20
