"""Writes small ELF files, section by section, for tests of what reads them."""

import struct

PROGBITS = 1


def elf(sections: dict[str, bytes]) -> bytes:
    """A shared library for x86-64 that holds these sections and nothing that could run."""
    names = b"\0"
    body = b""
    heads = [struct.pack("<2I4Q2I2Q", *[0] * 10)]
    for name, given in {**sections, ".shstrtab": b""}.items():
        begin = len(names)
        names += name.encode() + b"\0"
        content = given if name != ".shstrtab" else names
        body += bytes(-len(body) % 16)
        kind = PROGBITS if name != ".shstrtab" else 3
        heads.append(struct.pack("<2I4Q2I2Q", begin, kind, 0, 0, 64 + len(body), len(content), 0, 0, 16, 0))
        body += content
    head = struct.pack(
        "<4s5B7x2HI3QI6H", b"\x7fELF", 2, 1, 1, 0, 0, 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(heads), len(heads) - 1
    )  # fmt: skip
    return head + body + b"".join(heads)
