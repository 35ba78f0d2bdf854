"""Large files of wheels go from the wheel into the layer in one pass, and lie unpacked nowhere.

uv installs a copy of each wheel in which they are empty, and so decides everything but their contents. The writer of the layer reads
these out of the wheel, and compares them with the digests in its RECORD.
"""

import contextlib
import functools
import shutil
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from isal import igzip_lib

from envbuilder.core.archive import BoundedZip
from envbuilder.core.cache import save_text, sha256_file
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Readable, is_normal
from envbuilder.layers.layer import Streamed
from envbuilder.layers.writer import BLOCK_SIZE
from envbuilder.plan.program import INPUTS, SPEC, Program
from envbuilder.verify.alone import recorded

_CHUNK: Final = 256 << 10  # bytes of a wheel that are inflated at once
_ENCRYPTED: Final = 1  # a flag of a member
# What a member's own header begins with; the lengths of its name and of its extra field are the last two numbers.
_HEADER: Final = struct.Struct("<26xHH")


def empty_large_files(program: Program, work: Path, site: str) -> dict[str, Streamed]:
    """Replace wheels among a program's inputs in `work`, which `prepare_run` has filled. Returns path in the layer → content.

    `site` is where the program installs them. The files of a wheel without a usable RECORD, or with a `.pth` that may import them, stay.
    """
    step = work / Path(SPEC).parent.name
    spec, contents = program.spec, dict[str, Streamed]()
    for name, wheel in program.inputs:
        given = step / Path(INPUTS).name / name
        if large := _large_files(given):
            whole = work / "wheels" / name
            whole.parent.mkdir(exist_ok=True)
            given.rename(whole)
            _copy_without(large, whole, given)
            spec = spec.replace(wheel.sha256, sha256_file(given))
            for path, (member, digest) in large.items():
                contents[f"{site[1:]}/{path}"] = Streamed(
                    size=member.file_size,
                    sha256=digest,
                    stream=functools.partial(_open_member, whole, member),
                )
    save_text(step / Path(SPEC).name, spec)
    return contents


def _large_files(wheel: Path) -> dict[str, tuple[zipfile.ZipInfo, str]]:
    """Return the member and the sha256 of each large file. The modules among them stay, since byte code is made of them."""
    try:
        with BoundedZip(wheel) as opened:
            members = opened.infolist()
            names = Counter(member.filename for member in members)
            lists = [name for name in names if name.endswith(".dist-info/RECORD")]
            if len(lists) != 1 or any(name.endswith(".pth") for name in names):
                return {}
            digests = dict(recorded(opened.read(lists[0]).decode(errors="replace"), ""))
    except zipfile.BadZipFile:  # which uv reports
        return {}
    return {
        member.filename: (member, digests[member.filename])
        for member in members
        if member.file_size >= BLOCK_SIZE and member.filename in digests and names[member.filename] == 1
        and is_normal(member.filename) and not member.filename.endswith(".py")
        and not member.filename.partition("/")[0].endswith((".data", ".dist-info"))
        and member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        and not member.flag_bits & _ENCRYPTED and not stat.S_ISLNK(member.external_attr >> 16)
    }  # fmt: skip


def _copy_without(large: Mapping[str, object], wheel: Path, copy: Path) -> None:
    """Write a copy of a wheel, not compressed, in which the large files are empty."""
    with BoundedZip(wheel) as whole, zipfile.ZipFile(copy, "x") as written:
        for member in whole.infolist():
            info = zipfile.ZipInfo(member.filename, member.date_time)
            info.external_attr, info.create_system = member.external_attr, member.create_system
            if member.filename not in large:
                info.file_size = member.file_size
                with whole.open(member) as source, written.open(info, "w") as target:
                    shutil.copyfileobj(source, target)
            else:
                written.writestr(info, b"")


@contextlib.contextmanager
def _open_member(wheel: Path, member: zipfile.ZipInfo) -> Iterator[Readable]:
    """Open a member at its beginning. Raises BuildError when it is damaged."""
    with wheel.open("rb") as stream:
        stream.seek(member.header_offset)
        stream.seek(sum(_HEADER.unpack(stream.read(_HEADER.size))), 1)
        try:
            yield stream if member.compress_type == zipfile.ZIP_STORED else _Inflated(stream)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # a class, whatever its stub says
            raise BuildError(f"`{member.filename}` of `{wheel.name}` cannot be unpacked: {error}") from error


class _Inflated:
    """Reads what a stream holds deflated, about twice as fast as zlib."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._inflate = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end."""
        pieces, left = list[bytes](), size
        while left and not self._inflate.eof:
            packed = self._stream.read(_CHUNK) if self._inflate.needs_input else b""
            if not packed and self._inflate.needs_input:
                break
            pieces.append(self._inflate.decompress(packed, left))
            left -= len(pieces[-1])
        return b"".join(pieces)
