"""Real .deb packages, written without dpkg: an `ar` archive of three members (deb(5))."""

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import zstandard

# A member of a tar: a header, or name, content and mode of a file. A name that ends with / is a folder's.
Member: TypeAlias = tarfile.TarInfo | tuple[str, str | bytes, int]
PACKERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress,
}  # fmt: skip


def header(
    name: str,
    kind: bytes = tarfile.REGTYPE,
    *,
    target: str = "",
    uid: int = 0,
    gid: int = 0,
    mode: int = 0o644,
) -> tarfile.TarInfo:
    """Return the header of a member without content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.uid, info.gid, info.mode = kind, target, uid, gid, mode
    return info


def make_tar(members: Iterable[Member], tar_format: int = tarfile.DEFAULT_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tar_format) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, text, mode = member
            info = header(name, tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE, mode=mode)
            content = text.encode() if isinstance(text, str) else text
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def write_package(
    path: Path,
    members: Iterable[Member],
    *,
    about: str = "",
    control: Mapping[str, str] = MappingProxyType({}),
    packed: str = ".gz",
    tar_format: int = tarfile.GNU_FORMAT,  # dpkg's
) -> Path:
    """Write a package. `about` are its fields, by default only its name; `control` its scripts and lists."""
    files = {"control": about or f"Package: {path.stem}\nVersion: 1\nArchitecture: all\n", **control}
    parts = {
        "debian-binary": b"2.0\n",
        f"control.tar{packed}": PACKERS[packed](
            make_tar((f"./{name}", text, 0o755) for name, text in files.items())
        ),
        f"data.tar{packed}": PACKERS[packed](make_tar(members, tar_format)),
    }
    text = b"!<arch>\n"
    for name, content in parts.items():
        text += f"{name:<16}{0:<12}{0:<6}{0:<6}{0o100644:<8o}{len(content):<10}`\n".encode() + content
        text += b"\n" * (len(content) % 2)
    path.write_bytes(text)
    return path
