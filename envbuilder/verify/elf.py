"""Open ELF files with pyelftools, which is imported for the first one: a command that reads no library does without."""

from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_MACHINE: Final = 18  # where e_machine begins, elf(5)


def open_elf(stream: IO[bytes]) -> "ELFFile":
    """Return the file; raises ELFError (`elftools.common.exceptions`) for one that is damaged, or no ELF file."""
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - it takes 0.05 s, and `report --help` reads no library

    return ELFFile(stream)


def machine_of(elf: "ELFFile") -> int:
    """Return the number of the file's processor, e_machine, also where pyelftools has a name for it."""
    elf.stream.seek(_MACHINE)
    return int.from_bytes(elf.stream.read(2), "little" if elf.little_endian else "big")
