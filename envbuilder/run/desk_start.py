"""Run a program in the virtual environment of this file's folder: `start.py [PROGRAM]…`, a shell without one.

The environment's own Python runs it. The virtual environment lies over the environment: it sees the packages of both, its own
first, and its pip moves none of the environment's. What is written here is written anew at each start, so that it fits the
environment of now.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from importlib import metadata
from typing import Sequence

HERE = os.path.dirname(os.path.abspath(__file__))


def write(path: str, content: bytes, mode: int = 0o644) -> None:
    with open(path, "wb") as stream:
        stream.write(content)
    os.chmod(path, mode)


def main(argv: Sequence[str]) -> None:
    below, programs = sysconfig.get_path("purelib"), os.path.join(sys.prefix, "bin")
    packages, bin_folder = os.path.join(HERE, os.path.relpath(below, sys.prefix)), os.path.join(HERE, "bin")
    if not os.path.isdir(packages):
        venv.EnvBuilder(symlinks=True).create(HERE)
    # pip lies in a folder of its own: it is no package of the project.
    line = f"{HERE}/pip\nimport site; site.addsitedir({below!r})\n"
    write(os.path.join(packages, "environment.pth"), line.encode())
    python = os.path.join(bin_folder, "python")
    # As pip writes it, for a path with a space or with more bytes than a first line may have.
    first = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n".encode()
    for name in filter(os.path.isfile, (os.path.join(programs, name) for name in os.listdir(programs))):
        with open(name, "rb") as stream:  # torchrun and others, which are to see both
            if stream.readline(200).startswith(f"#!{programs}/python".encode()):
                write(os.path.join(bin_folder, os.path.basename(name)), first + stream.read(), 0o755)
    write(os.path.join(bin_folder, "pip"), f'#!/bin/sh\nexec "{python}" -m pip "$@"\n'.encode(), 0o755)
    kept = sorted(
        f"{package.metadata['Name']}=={package.version}\n" for package in metadata.distributions(path=[below])
    )
    constraints = os.path.join(HERE, "constraints.txt")
    write(constraints, "".join(kept).encode())
    os.environ.update(
        VIRTUAL_ENV=HERE,
        PATH=f"{bin_folder}:{os.environ['PATH']}",
        PIP_CONSTRAINT=constraints,
        PIP_DISABLE_PIP_VERSION_CHECK="1",
    )
    authorities = os.path.join(HERE, "certificates.pem")
    if os.path.isfile(authorities):  # of the machine; what its variables name is not in the container
        os.environ.update(PIP_CERT=authorities, SSL_CERT_FILE=authorities)
    words = list(argv) or ["/bin/bash"]
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main(sys.argv[1:])
