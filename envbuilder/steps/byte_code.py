"""Byte-compile every Python source below a folder, and look whether all is there: `byte_code.py compile|check FOLDER`.

The byte code is unchecked, because an image is read-only. One process compiles all, with the same bytes each time: before Python 3.11
they depend on the strings in the process. So no modules of a site are loaded, and the standard library is read from its sources.

uv and compileall do not report a file that could not be written, as on a disk that was full for a moment. Only files that are not
Python of this version may lack byte code, such as templates and fixtures of tests.
"""

import os
import sys

verb, folder = sys.argv[1:]
if verb == "compile" and sys.pycache_prefix is None:
    options = ("-S", "-B", "-X", "pycache_prefix=/nonexistent")
    os.execv(sys.executable, [sys.executable, *options, *sys.argv])  # noqa: S606 - the same Python, begun anew

if verb == "compile":
    import compileall
    from py_compile import PycInvalidationMode

    sys.pycache_prefix = None
    compileall.compile_dir(folder, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)

import importlib.util  # noqa: E402 - the strings of these two shall not be in the process that compiles
from pathlib import Path  # noqa: E402

for path in sorted(Path(folder).rglob("*.py")):
    if path.is_file() and not Path(importlib.util.cache_from_source(str(path))).exists():
        try:
            compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError, RecursionError):
            continue
        sys.exit(f"{path}: its byte code was not written, as on a disk that was full for a moment")
