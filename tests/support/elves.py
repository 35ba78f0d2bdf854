"""Writes small ELF files, section by section, for tests of what reads them."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROGBITS, STRTAB, DYNAMIC, DYNSYM, VERDEF, VERNEED = 1, 3, 6, 11, 0x6FFFFFFD, 0x6FFFFFFE
GLOBAL, WEAK = 1, 2
LOAD = 1
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29


@dataclass(frozen=True)
class Section:
    kind: int
    content: bytes
    link: int = 0  # the number of the section with its names
    info: int = 0  # how many entries it has


class Names:
    """A section of texts."""

    def __init__(self) -> None:
        self.content = b"\0"

    def place(self, text: str) -> int:
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at


def elf(sections: Mapping[str, bytes]) -> bytes:
    """Return an x86-64 shared library with these sections and no code."""
    return _write({name: Section(PROGBITS, content) for name, content in sections.items()})


def gpu_library(*targets: str) -> bytes:
    """Return a library with the heads that nvcc would write for code of these targets, such as sm_90a and compute_80."""
    images = b""
    for target in targets:
        kind, _, gpu = target.partition("_")
        exact = 1 << 20 if gpu.endswith("a") else 0
        images += struct.pack("<2HIQ12xI8xQ", 2 if kind == "sm" else 1, 1, 48, 0, int(gpu.rstrip("a")), exact)
    fat = {".nv_fatbin": struct.pack("<I2HQ", 0xBA55ED50, 1, 16, len(images)) + images} if targets else {}
    return elf({".text": b"code", **fat})


def library(
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    runpath: str | None = None,
    rpath: str | None = None,
    needs: Mapping[str, Sequence[str]] = {},  # library → symbol versions
    gives: Sequence[str] = (),
    undefined: Sequence[str] = (),  # symbols
    weak: Sequence[str] = (),  # undefined ones
    defined: Sequence[str] = (),
    sections: Mapping[str, bytes] = {},
    machine: int = 62,
    alignment: int = 4096,
) -> bytes:
    """Return a shared library with these entries for the loader, and one segment that is loaded."""
    names = Names()
    texts = [(NEEDED, name) for name in needed]
    texts += [(tag, path) for tag, path in ((RUNPATH, runpath), (RPATH, rpath)) if path is not None]
    texts += [(SONAME, soname)] if soname else []
    dynamic = b"".join(struct.pack("<2Q", tag, names.place(text)) for tag, text in texts) + bytes(16)
    wanted = b""
    for number, (file, versions) in enumerate(needs.items(), 1):
        last = number == len(needs)
        wanted += struct.pack(
            "<2H3I", 1, len(versions), names.place(file), 16, 0 if last else 16 + 16 * len(versions)
        )
        for count, version in enumerate(versions, 1):
            wanted += struct.pack(
                "<I2H2I", 0, 0, 2, names.place(version), 0 if count == len(versions) else 16
            )
    given = b""
    for count, version in enumerate(gives, 1):
        given += struct.pack("<4H3I", 1, 0, count, 1, 0, 20, 0 if count == len(gives) else 28)
        given += struct.pack("<2I", names.place(version), 0)
    made = {".dynstr": Section(STRTAB, names.content), ".dynamic": Section(DYNAMIC, dynamic, link=1)}
    if needs:
        made[".gnu.version_r"] = Section(VERNEED, wanted, link=1, info=len(needs))
    if gives:
        made[".gnu.version_d"] = Section(VERDEF, given, link=1, info=len(gives))
    if undefined or weak or defined:
        symbols = [(name, GLOBAL, 0) for name in undefined] + [(name, WEAK, 0) for name in weak]
        symbols += [(name, GLOBAL, 1) for name in defined]
        table = bytes(24) + b"".join(
            struct.pack("<IBxH16x", names.place(name), binding << 4, index)
            for name, binding, index in symbols
        )
        made[".dynsym"] = Section(DYNSYM, table, link=1, info=1)
        made[".dynstr"] = Section(STRTAB, names.content)
    made |= {name: Section(PROGBITS, content) for name, content in sections.items()}
    return _write(made, machine, alignment)


def _write(sections: Mapping[str, Section], machine: int = 62, alignment: int = 4096) -> bytes:
    names = Names()
    places = {name: names.place(name) for name in (*sections, ".shstrtab")}
    body = b""
    heads = [bytes(64)]
    for name, section in {**sections, ".shstrtab": Section(STRTAB, names.content)}.items():
        body += bytes(-len(body) % 16)
        size, at = len(section.content), 64 + len(body)
        place = (
            places[name],
            section.kind,
            0,
            0,
            at,
            size,
            section.link,
            section.info,
            16,
            24 if section.kind == DYNSYM else 0,
        )
        heads.append(struct.pack("<2I4Q2I2Q", *place))
        body += section.content
    at = 64 + len(body)
    segments = at + 64 * len(heads)
    head = struct.pack(
        "<4s5B7x2HI3QI6H", b"\x7fELF", 2, 1, 1, 0, 0, 3, machine, 1, 0, segments, at, 0, 64, 56, 1, 64, len(heads), len(heads) - 1
    )  # fmt: skip
    load = struct.pack("<2I6Q", LOAD, 4, 0, 0, 0, at, at, alignment)
    return head + body + b"".join(heads) + load
