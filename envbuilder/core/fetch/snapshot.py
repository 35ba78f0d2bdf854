"""Debian's snapshot archive: find a package that the mirrors dropped.

The service lists the files of each binary package and version by sha1, and serves them by it (its
API is described at salsa.debian.org/snapshot-team/snapshot). Only the lock's sha256 is trusted.
"""

import json
import re
from urllib.parse import quote


def question(base: str, name: str, version: str) -> str:
    """Return the URL that lists the files of a version of a binary package."""
    return f"{base}mr/binary/{quote(name, safe='')}/{quote(version, safe='')}/binfiles?fileinfo=1"


def answer(base: str, text: bytes, filename: str) -> str | None:
    """Return the file's URL from the answer, or None when there is none; raises ValueError for a malformed answer."""
    try:
        files = json.loads(text)["fileinfo"]
        for digest, places in files.items():
            if any(place["name"] == filename for place in places) and re.fullmatch(r"[0-9a-f]{40}", digest):
                return f"{base}file/{digest}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("what it sends is no answer of an archive of all days") from error
    return None
