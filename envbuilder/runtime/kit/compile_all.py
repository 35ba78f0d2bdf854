"""Byte-compile every Python source below a folder, with the same bytes in each process: `compile_all.py FOLDER`.

For Pythons before 3.11, whose byte code depends on the strings in the compiling process (`builder/assemble/python.py`). So no modules
of a site are loaded, and the standard library is always read from its sources. `check_byte_code.py` tells files that are not Python
of this version from those that could not be written.
"""

import os
import sys

if sys.pycache_prefix is None:
    own = ("-S", "-B", "-X", "pycache_prefix=/nonexistent")
    os.execv(sys.executable, [sys.executable, *own, *sys.argv])  # noqa: S606 - the same Python, begun anew

import compileall
from py_compile import PycInvalidationMode

sys.pycache_prefix = None
compileall.compile_dir(sys.argv[1], quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
