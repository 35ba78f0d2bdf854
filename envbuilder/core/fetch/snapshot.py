"""Debian's archive of all days: finds a package that the mirrors have dropped.

The service answers about each binary package and version which files there were, each by its sha1, and gives them by it
(its interface for machines is described beside its own source, salsa.debian.org/snapshot-team/snapshot). Only the lock's sha256 is trusted.
"""

import json
import re
from urllib.parse import quote


def question(base: str, name: str, version: str) -> str:
    """The URL that tells which files a version of a binary package had."""
    return f"{base}mr/binary/{quote(name, safe='')}/{quote(version, safe='')}/binfiles?fileinfo=1"


def answer(base: str, text: bytes, filename: str) -> str | None:
    """The URL of the file in the service's answer; None when it had none of that name. Raises ValueError for another answer."""
    try:
        files = json.loads(text)["fileinfo"]
        for digest, places in files.items():
            if any(place["name"] == filename for place in places) and re.fullmatch(r"[0-9a-f]{40}", digest):
                return f"{base}file/{digest}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("what it sends is no answer of an archive of all days") from error
    return None
