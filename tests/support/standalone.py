"""A stand-in of a standalone Python: a real Python in the form of python-build-standalone's archives.

Those are not reached from every machine. They were built with the prefix `/install` by a clang, and hold pip, Tk and manual pages,
which an environment does not take over (https://github.com/astral-sh/python-build-standalone/blob/main/docs/distributions.rst).
"""

import gzip
import io
import re
import runpy
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.distribution import archive_name
from envbuilder.core.cache import sha256_file
from envbuilder.lock.model import Artifact
from envbuilder.sources.names import STANDALONE
from tests.support.workbench import CACHE, resolve_context, run

RELEASE: Final = "20261110"
# The last one is there for a Python before 3.10 alone.
PACKAGES: Final = (
    "python{}-minimal", "libpython{}-minimal", "libpython{}-stdlib", "libpython{}-dev", "python3-distutils",
)  # fmt: skip

# What an installation leaves out, each with a text; {0} is the minor version.
UNWANTED: Final = {
    "bin/pip{0}": '#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python{0}" "$0" "$@"\n\' \'\'\'\nimport pip\n',
    "bin/idle{0}": "#!/bin/sh\n",
    "lib/tcl8.6/init.tcl": "set x 1\n",
    "lib/libtcl8.6.so": "no library\n",
    "lib/pkgconfig/tcl.pc": "prefix=/install\n",
    "lib/python{0}/ensurepip/_bundled/pip.whl": "no wheel\n",
    "lib/python{0}/idlelib/idle.py": "import tkinter\n",
    "lib/python{0}/site-packages/pip/__init__.py": "__version__ = '26.0'\n",
    "lib/python{0}/tkinter/tix.py": "x = 1\n",
    "lib/python{0}/turtle.py": "x = 1\n",
    "share/man/man1/python{0}.1": ".TH\n",
    "share/terminfo/x/xterm": "xterm\n",
}
WANTED: Final = {
    "lib/python{0}/LICENSE.txt": "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2\n",
    "lib/pkgconfig/python-{0}.pc": "prefix=/install\nlibdir=${{prefix}}/lib\nName: Python\n",
}
LINKS: Final = {"bin/python": "python{0}", "bin/python3": "python{0}"}
# A small extension, and a program that compiles and loads it as setuptools does: by what the Python says of its own build.
EXTENSION: Final = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "small", 0, -1, methods};
PyMODINIT_FUNC PyInit_small(void) { return PyModule_Create(&module); }
"""
COMPILE: Final = """
import shlex, subprocess, sys, sysconfig
value = sysconfig.get_config_var
sys.path.insert(0, "/tmp")
library = "/tmp/small" + value("EXT_SUFFIX")
flags = [*shlex.split(value("CFLAGS")), *shlex.split(value("CCSHARED")), "-I" + sysconfig.get_path("include")]
subprocess.run([*shlex.split(value("CC")), *flags, "-c", "/tmp/small.c", "-o", "/tmp/small.o"], check=True)
subprocess.run([*shlex.split(value("LDSHARED")), "/tmp/small.o", "-o", library], check=True)
import small
print(small.answer(), value("CC").split()[0], sysconfig.get_path("include"))
"""
_LEFT: Final = (
    "__pycache__", "dist-packages", "site-packages", "EXTERNALLY-MANAGED", "sitecustomize.py", "test",
)  # fmt: skip


def write_stand_in(prefix: Path, minor: str, archive: Path) -> None:
    """Write the archive out of the Python of this minor version whose files are below `prefix`."""
    name = f"python{minor}"
    library, headers = prefix / "lib" / name, prefix / "include" / name
    files = {path.format(minor): text.format(minor).encode() for path, text in (WANTED | UNWANTED).items()}
    files |= {f"lib/{name}/{path.relative_to(library)}": path.read_bytes() for path in _files(library)}
    files |= {f"include/{name}/{path.relative_to(headers)}": path.read_bytes() for path in _files(headers)}
    # Debian's own one includes that of the processor.
    settings = prefix.glob(f"include/*-linux-gnu/{name}/pyconfig.h")
    files |= {f"include/{name}/pyconfig.h": path.read_bytes() for path in settings}
    files |= {f"lib/{name}/{path.name}": _told(path) for path in library.glob("_sysconfigdata_*.py")}
    files[f"bin/{name}"] = (prefix / "bin" / name).read_bytes()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        archive.open("wb") as out,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=out, mtime=0) as packed,  # the same bytes each time
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(f"python/{path}")
            member.size, member.mode = len(content), 0o755 if path.startswith("bin/") else 0o644
            tar.addfile(member, io.BytesIO(content))
        for path, target in LINKS.items():
            member = tarfile.TarInfo(f"python/{path}")
            member.type, member.linkname = tarfile.SYMTYPE, target.format(minor)
            tar.addfile(member)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(path.relative_to(folder).parts) & set(_LEFT):
            yield path


def _told(path: Path) -> bytes:
    """Return what a Python says of its build, as if it had been configured for `/install` with clang."""
    values = runpy.run_path(str(path))["build_time_vars"]
    old = re.escape(values["prefix"])
    plain = {
        rf"(?<![\w./-])((?:-[IL])?){old}(?=/(?:bin|lib|include|share)\b|$| )": r"\g<1>/install",
        r"\b(?:x86_64-linux-gnu-)?g\+\+": "clang++",
        r"\b(?:x86_64-linux-gnu-)?gcc(?![\w-])": "clang",
    }
    for pattern, word in plain.items():
        values = {
            key: re.sub(pattern, word, value) if isinstance(value, str) else value
            for key, value in values.items()
        }
    values |= {"AR": "/tools/clang-linux64/bin/llvm-ar", "CXX": "/usr/bin/x86_64-linux-gnu-g++"}
    return f"build_time_vars = {values!r}\n".encode()


def write_from_packages(packages: Iterable[Artifact], minor: str, releases: Path) -> Artifact:
    """Write an archive out of the Debian packages of this Python among `packages`, below a mirror's folder. Returns its artifact."""
    version = f"{minor}.0"
    archive = releases / RELEASE / archive_name(version, RELEASE, "x86_64")
    wanted = [package for package in packages if package.name in {name.format(minor) for name in PACKAGES}]
    resolve_context().fetcher.fetch(wanted)
    with tempfile.TemporaryDirectory() as folder:
        for package in wanted:
            run("dpkg-deb", "--extract", CACHE / "artifacts" / package.sha256[:2] / package.sha256, folder)
        write_stand_in(Path(folder, "usr"), minor, archive)
    return Artifact(
        kind="archive", name="cpython", version=f"{version}+{RELEASE}", sha256=sha256_file(archive),
        size=archive.stat().st_size, source=STANDALONE, path=f"{RELEASE}/{archive.name}",
    )  # fmt: skip
