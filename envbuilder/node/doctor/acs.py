"""Read the PCIe Access Control Services of a bridge (PCI Express Base Specification, 7.7.11)."""

import struct
from pathlib import Path
from typing import Final

_FIRST: Final = 0x100  # extended capabilities begin here, behind what ordinary users may read
_ACS: Final = 0x000D
_CONTROL: Final = 6
_REDIRECT: Final = 0x0004 | 0x0008 | 0x0020  # request redirect, completion redirect, egress control


def redirects(config: Path) -> bool | None:
    """Whether the bridge redirects traffic between its devices upward; None where unreadable."""
    try:
        space = config.read_bytes()
    except OSError:
        return None
    if len(space) <= _FIRST:
        return None
    place, seen = _FIRST, set[int]()
    while place >= _FIRST and place + 8 <= len(space) and place not in seen:
        seen.add(place)
        head: int = struct.unpack_from("<I", space, place)[0]
        if head & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", space, place + _CONTROL)[0]
            return bool(control & _REDIRECT)
        place = head >> 20
    return False
