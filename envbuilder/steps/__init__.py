"""The programs that make layers, and nothing else. Every runner starts the same file with the same words:

    PROGRAM SPEC INPUTS OUT

SPEC is a JSON file: all of the recipe and the lock that decides the layer's bytes, beside the inputs. INPUTS is a folder with the
locked files under their names, and with the results of the programs that ran for this one (`plan/program.py`). OUT is an empty
folder that becomes the layer's tree: what shall be `/opt/env` lies in `OUT/opt/env`.

A program runs in the root of lower layers, without a network, as a user with no rights on the machine. It may write OUT and
temporary folders alone. It gets the environment of `ENVIRONMENT` and no other variable; the one that runs the scripts of
packages also gets SOURCE_DATE_EPOCH. It prints its progress as lines `DONE/TOTAL
WHAT`, which every runner shows alike, and ends with one line of cause when it fails.

A program needs nothing but POSIX sh, or the standard library of Python 3.8. It imports nothing of envbuilder, and can be read from
top to bottom by somebody who has to trust it. It decides every byte of its layer, so it does not depend on the umask. Its text is part of the
layer's key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, sha256_text

FOLDER: Final = Path(__file__).parent
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",  # a warning leaves strings in the process, which changes byte code
}
"""The variables of every program. A program sets what it needs beside them by itself."""


def text(name: str) -> str:
    """Return the text of a program."""
    return (FOLDER / name).read_text(encoding="utf-8")


def digest(name: str) -> Sha256:
    """Return the sha256 of a program's text, which is part of the keys of its layers."""
    return sha256_text(text(name))
