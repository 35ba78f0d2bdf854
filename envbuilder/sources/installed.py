"""Read which packages an image holds, from the database of dpkg or rpm and without either program."""

import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from typing import Final

DPKG: Final = "var/lib/dpkg/status"
DPKG_PARTS: Final = "var/lib/dpkg/status.d/"  # images without a shell keep a file for each package
RPM: Final = ("usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite")
_FIELD: Final = re.compile(r"^(Package|Version|Status): *(.*)$", re.MULTILINE)
_TAGS: Final = {1000: "name", 1001: "version", 1002: "release"}
_STRING: Final = 6  # the type number of a text in a header
_MOST: Final = 100_000  # packages, or tags of one, that are read


def read_dpkg(texts: Mapping[str, bytes]) -> dict[str, str]:
    """Return name → version of what is installed, from `DPKG` and the files below `DPKG_PARTS`."""
    packages = {}
    for path, content in texts.items():
        if path != DPKG and not path.startswith(DPKG_PARTS):
            continue
        for stanza in content.decode("utf-8", "replace").split("\n\n"):
            fields = dict(_FIELD.findall(stanza))
            state = fields.get("Status", "install ok installed")
            if "Package" in fields and "Version" in fields and state.endswith(" installed"):
                packages[fields["Package"]] = fields["Version"]
    return packages


def read_rpm(database: bytes) -> dict[str, str]:
    """Return name → version-release; raises ValueError for a file that is not an rpm database."""
    # SQLite does not open a database in WAL mode without its log. These two bytes hold the mode.
    plain = database[:18] + b"\x01\x01" + database[20:]
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(plain)
        rows = connection.execute("SELECT blob FROM Packages LIMIT ?", (_MOST,)).fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"it is no database of rpm: {error}") from error
    finally:
        connection.close()
    headers = (dict(_header(row[0])) for row in rows)
    whole = (tags for tags in headers if len(tags) == len(_TAGS))
    return {tags["name"]: f"{tags['version']}-{tags['release']}" for tags in whole}


def _header(blob: bytes) -> Iterator[tuple[str, str]]:
    """Yield the texts of `_TAGS` in one package's header: numbers, then 16 bytes for each tag, then the values."""
    try:
        count, _ = struct.unpack_from(">2I", blob)
        values = 8 + 16 * min(count, _MOST)
        for place in range(8, values, 16):
            tag, kind, offset, _ = struct.unpack_from(">4I", blob, place)
            if tag in _TAGS and kind == _STRING:
                end = blob.index(b"\0", values + offset)
                yield _TAGS[tag], blob[values + offset : end].decode("utf-8", "replace")
    except (struct.error, ValueError) as error:
        raise ValueError(f"a package's header is damaged: {error}") from error
