"""The contents of the layers, for both engines."""

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from envbuilder.core.processor import X86_64, Processor
from envbuilder.plan.model import DRIVER_PARTS, ENV_PREFIX, GPUS, SYSTEM_PATH, RuntimeStep
from envbuilder.steps.distribution import COMPILERS, EXCLUDE, KEEP, SEEDED

# ---- the os layer


# What a machine makes of itself at random, secrets among it.
_OWN: Final = (
    "var/lib/dbus/machine-id",
    *(f"etc/ssh/ssh_host_{kind}_key{end}" for kind in ("ecdsa", "ed25519", "rsa") for end in ("", ".pub")),
)
# Files that a package manager or a first boot leaves behind. They differ in each build.
DROP: Final = (
    "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig/aux-cache", "var/lib/apt", "var/log",
    "var/lib/dpkg/status-old",  # the status before the last package: it shows the order of installation
    "etc/apt/sources.list", *_OWN,
)  # fmt: skip
USER: Final = "vscode"  # in every image; dev container tools give it the UID of the user
USER_ID: Final = 65000  # reserved by Debian, so it is no user's UID and tools always replace it
# Containers still start as root. With `*`, nobody can log in.
ADD_USER: Final = (
    f'echo "{USER}:*:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash" >>"$1/etc/passwd"'
    f' && echo "{USER}:*:{USER_ID}:" >>"$1/etc/group"'
    f' && install -d -o {USER_ID} -g {USER_ID} -m 755 "$1/home/{USER}"'
)


def word_lists(drop: Sequence[str], processor: Processor = X86_64) -> dict[str, str]:
    """Return the lists that `configure_os.sh` reads: variable → words."""
    names = " ".join(f"{name.format(processor.gnu)}={tool}" for name, tool in COMPILERS.items())
    return {"EXCLUDE": " ".join(EXCLUDE), "KEEP": KEEP, "DROP": " ".join(drop), "NAMES": names}


# ---- the layer of added packages

# Files of an environment that its Python layer has. `{}` is the minor version of Python.
OF_PYTHON_LAYER: Final = ("lib64", "pyvenv.cfg", ".lock", "bin/python", "bin/python3", "bin/python{}")

# ---- byte code

# Measured: uv installed 7375 files ten times, equal with 3.11, never with 3.9.
FIRST_REPEATABLE: Final = (3, 11)


def is_repeatable(python: str) -> bool:
    """Return whether each process writes the same byte code. `python` is a minor version such as 3.11.

    Before 3.11, it depends on the hash seed, by the order of sets (python/cpython#81777), and on the modules that the process imported
    before, by the reference marks of strings. So one process with a fixed seed and fixed imports compiles all files in a fixed order
    (`runtime/kit/compile_all.py`).
    """
    return tuple(map(int, python.split("."))) >= FIRST_REPEATABLE


def seeded_python(python: str) -> str:
    """Return this Python if its byte code needs a fixed seed, otherwise ""."""
    return "" if is_repeatable(python) else python


def seeded_package(packages: Iterable[str]) -> str:
    """Return the Python among Debian packages, such as python3.9-minimal, if its byte code needs a fixed seed, otherwise ""."""
    return next((match[1] for name in packages if (match := SEEDED.fullmatch(name))), "")


# ---- the runtime layer

SBOM: Final = "opt/envbuilder/sbom.spdx.json"
PROVENANCE: Final = "opt/envbuilder/provenance.json"
# Apptainer sources env/*.sh in order and executes the runscript. Since 3.6, it has its own action scripts.
START: Final = "/opt/envbuilder/start"
STARTSCRIPT: Final = "#!/bin/sh\n"
USER_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Values that a user may change do not belong here: they would beat the user's own.\n"
)
# `--nv` binds the driver's libraries into a folder that a program finds by this variable alone: without it, no program sees a GPU.
# Without this file Apptainer also ignores `--env` and APPTAINERENV_X.
BASE_ENVIRONMENT: Final = """\
#!/bin/sh
# The driver's libraries of `--nv`. Apptainer sets what `--env` and APPTAINERENV_X say right after this file.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
"""
LOGIN: Final = "etc/profile.d/envbuilder.sh"


def _login_script(env: Sequence[tuple[str, str]]) -> str:
    """Return the script that restores the image's variables in login shells. Variables that are set stay."""
    lines = [
        "# Login shells read this file: /etc/profile sets another PATH, and `su -` and sshd drop the rest."
    ]
    for name, value in env:
        if name == "PATH":
            own = (one for one in value.split(":") if one not in SYSTEM_PATH.split(":"))
            first = shlex.quote(":".join(dict.fromkeys(own)))
            lines.append(f'case :$PATH: in *:{ENV_PREFIX}/bin:*) ;; *) export PATH={first}:"$PATH" ;; esac')
        else:
            lines.append(f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}')
    return "\n".join(lines) + "\n"


def entry_point(step: RuntimeStep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what begins every command line of the image, and the command where none is named."""
    return (START, *step.run), () if step.run else ("/bin/bash",)


def run_lines(step: RuntimeStep) -> tuple[str, ...]:
    """Return the same as the lines of a shell script."""
    first, default = entry_point(step)
    given = (f'if [ "$#" -eq 0 ]; then set -- {shlex.join(default)}; fi',) if default else ()
    return (*given, f'exec {shlex.join(first)} "$@"')


def runtime_files(step: RuntimeStep) -> dict[str, tuple[str, int]]:
    """Return path → text and mode of every file of the layer.

    Only the image's config has the variables that ask for GPUs. Apptainer reads them outside the SIF alone, and a value in the SIF would
    hide what Slurm, a pod or an outer container said of the GPUs to every program inside.
    """
    env = tuple((name, value) for name, value in step.env if name not in {GPUS, DRIVER_PARTS})
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)
    read_at_start = {
        ".singularity.d/env/10-docker2singularity.sh": ("#!/bin/sh\n" + exports, 0o755),
        ".singularity.d/env/90-environment.sh": (USER_ENVIRONMENT, 0o755),
        ".singularity.d/env/99-base.sh": (BASE_ENVIRONMENT, 0o755),
        ".singularity.d/runscript": ("\n".join(("#!/bin/sh", *run_lines(step), "")), 0o755),
        ".singularity.d/labels.json": (json.dumps(dict(step.labels), indent=1, sort_keys=True) + "\n", 0o644),
        ".singularity.d/startscript": (STARTSCRIPT, 0o755),
        LOGIN: (_login_script(env), 0o644),
    }
    return read_at_start | {
        path: (text, 0o755 if text.startswith("#!") else 0o644) for path, text in step.files
    }
