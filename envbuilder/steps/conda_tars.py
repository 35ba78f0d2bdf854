"""Unpack the tars of conda packages: `conda_tars.py SPEC INPUTS OUT`.

INPUTS has the packages: `.conda`, a zip of two tars of zstd, and `.tar.bz2`. OUT gets a folder for each, called as its file, with its
tars. `conda_prefix.py` reads these in a root whose Python may know neither zstd nor bzip2. SPEC is empty.

A package is foreign: it unpacks to at most so many times its size.
"""

import bz2
import os
import sys
import zipfile
from contextlib import contextmanager
from subprocess import PIPE, Popen

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # an isolated Python does not look there

from distribution import CHUNK, DAMAGE, SPARE, TIMES, Zstandard, find_zstandard, need_within

PARTS = ("info-", "pkg-")


@contextmanager
def open_zstd(packed, size, work):
    """Yield what a stream of zstd unpacks to. Where no module reads zstd, `dpkg-deb` does, out of a package that is made of the stream."""
    if find_zstandard():
        yield Zstandard(packed)
        return
    with open(work, "xb") as deb:
        deb.write(b"!<arch>\n")
        for name, length in (("debian-binary", 4), ("control.tar", 1024), ("data.tar.zst", size)):
            deb.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{length:<10}`\n".encode())
            if name == "debian-binary":
                deb.write(b"2.0\n")
            elif name == "control.tar":
                deb.write(bytes(length))
            else:
                copy(packed, deb, length)
                deb.write(b"\n" * (length % 2))
    try:
        with Popen(("dpkg-deb", "--fsys-tarfile", work), stdout=PIPE) as program:
            yield program.stdout
        if program.returncode:
            raise ValueError("`dpkg-deb` cannot read its zstd; one from 2022 on can")
    finally:
        os.unlink(work)


def copy(stream, out, most):
    done = 0
    while True:
        piece = stream.read(CHUNK)
        if not piece:
            return
        done = need_within("bytes that it unpacks to", done + len(piece), most)
        out.write(piece)


def unpack(package, folder):
    """Write the tars of a package into a new folder."""
    most = TIMES * os.stat(package).st_size + SPARE
    os.mkdir(folder)
    if package.endswith(".conda"):
        with zipfile.ZipFile(package) as archive:
            for start in PARTS:
                members = [info for info in archive.infolist() if info.filename.startswith(start)]
                if [info.filename.endswith(".tar.zst") for info in members] != [True]:
                    raise ValueError(f"expected one `{start}….tar.zst` in it, found {len(members)}")
                size = need_within("bytes of a part", members[0].file_size, most)
                target = os.path.join(folder, f"{start}.tar")
                with archive.open(members[0]) as packed, open_zstd(
                    packed, size, f"{target}.deb"
                ) as stream, open(target, "xb") as out:
                    copy(stream, out, most)
    else:
        with bz2.open(package) as stream, open(os.path.join(folder, "pkg-.tar"), "xb") as out:
            copy(stream, out, most)


def main(inputs, out):
    names = sorted(os.listdir(inputs))
    for number, name in enumerate(names):
        print(f"{number}/{len(names)} {name}", flush=True)
        try:
            unpack(os.path.join(inputs, name), os.path.join(out, name))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *DAMAGE) as error:
            sys.exit(f"`{name}` is not a readable package of conda: {error}")


if __name__ == "__main__":
    os.umask(0o022)
    main(*sys.argv[2:])
