"""What the layers hold and leave out, whichever engine makes them."""

import json
import shlex
from collections.abc import Sequence
from typing import Final

from envbuilder.plan.model import RuntimeStep

# ---- the os layer

# Plain names of the pinned compiler. Debian's Python was built with those that begin with the triplet, and calls them for extensions.
PLAIN_NAMES: Final = {
    "gcc": "gcc", "cc": "gcc", "x86_64-linux-gnu-gcc": "gcc", "g++": "g++", "c++": "g++", "x86_64-linux-gnu-g++": "g++",
    "cpp": "cpp", "gcc-ar": "gcc-ar", "gcc-nm": "gcc-nm", "gcc-ranlib": "gcc-ranlib", "gcov": "gcov",
}  # fmt: skip
# Files that a package manager or a first boot leaves behind. No rebuild would repeat them.
DROP: Final = (
    "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig/aux-cache", "var/lib/apt", "var/log",
    "var/lib/dpkg/status-old",  # the last state but one: the order in which dpkg set packages up
    "etc/apt/sources.list", "etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
)  # fmt: skip
# Documentation that nobody reads in a container. Copyright files stay.
EXCLUDE: Final = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/doc/*", "/usr/share/locale/*")
KEEP: Final = "/usr/share/doc/*/copyright"
# What dpkg leaves in an image to which packages are added.
DROP_FROM_IMAGE: Final = (
    "var/log/dpkg.log", "var/log/alternatives.log", "var/log/apt", "var/log/bootstrap.log", "var/lib/dpkg/status-old",
    "var/cache/ldconfig/aux-cache", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old",
)  # fmt: skip

USER: Final = "vscode"  # of every image; tools give it the UID of the person who opens the project
USER_ID: Final = 65000  # reserved by Debian, so it is nobody's UID and tools always replace it
# Containers start as root all the same. `*` lets nobody log in.
ADD_USER: Final = (
    f'echo "{USER}:*:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash" >>"$1/etc/passwd"'
    f' && echo "{USER}:*:{USER_ID}:" >>"$1/etc/group"'
    f' && install -d -o {USER_ID} -g {USER_ID} -m 755 "$1/home/{USER}"'
)


def word_lists(drop: Sequence[str]) -> dict[str, str]:
    """Return the lists with which `configure_os.sh` makes a root, by the names of its variables."""
    names = " ".join(f"{name}={tool}" for name, tool in PLAIN_NAMES.items())
    return {"EXCLUDE": " ".join(EXCLUDE), "KEEP": KEEP, "DROP": " ".join(drop), "NAMES": names}


# ---- byte code

FIRST_REPEATABLE: Final = (3, 11)  # ten installs of 7375 files by uv's workers were equal; in 3.9 none were


def is_repeatable(python: str) -> bool:
    """Whether byte code is the same in every process. `python` is a minor version such as 3.11.

    Before 3.11, the order of a set in byte code depends on the hash seed (python/cpython#81777), and the mark of a string on what
    the process has read before. So one process with a fixed seed compiles the same files in the same order, after it has read the
    same of the standard library (`runtime/kit/compile_all.py`).
    """
    return tuple(map(int, python.split("."))) >= FIRST_REPEATABLE


def seeded_python(python: str) -> str:
    """Return the Python whose byte code must be compiled with a fixed seed, "" where none must."""
    return "" if is_repeatable(python) else python


# ---- the runtime layer

# Apptainer sources env/*.sh in order and execs the runscript. It brings its own action scripts since 3.6.
RUNSCRIPT: Final = (
    '#!/bin/sh\nif [ "$#" -eq 0 ]; then set -- /bin/bash; fi\nexec /opt/envbuilder/start "$@"\n'
)
STARTSCRIPT: Final = "#!/bin/sh\n"
USER_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Values that a user may change do not belong here: they would beat the user's own.\n"
)
# Without this file Apptainer ignores `--env` and APPTAINERENV_X.
BASE_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Apptainer sets what `--env` and APPTAINERENV_X say right after this file.\n"
)


def runtime_files(step: RuntimeStep) -> dict[str, tuple[str, int]]:
    """Return path → text and mode of every file of the layer."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in step.env)
    apptainer = {
        ".singularity.d/env/10-docker2singularity.sh": ("#!/bin/sh\n" + exports, 0o755),
        ".singularity.d/env/90-environment.sh": (USER_ENVIRONMENT, 0o755),
        ".singularity.d/env/99-base.sh": (BASE_ENVIRONMENT, 0o755),
        ".singularity.d/runscript": (RUNSCRIPT, 0o755),
        ".singularity.d/labels.json": (json.dumps(dict(step.labels), indent=1, sort_keys=True) + "\n", 0o644),
        ".singularity.d/startscript": (STARTSCRIPT, 0o755),
    }
    return apptainer | {path: (text, 0o755 if text.startswith("#!") else 0o644) for path, text in step.files}
