"""Writes the byte code of every Python source below a folder, alike in each process: `compile_all.py FOLDER`.

For Pythons before 3.11, whose byte code hangs on the strings that the compiling process holds (`engines/byte_code.py`): no site's
modules are loaded, and the standard library is read from its sources, whether it has byte code by now or not. Packages hold
files that are no Python of this version; `check_byte_code.py` tells them from those that could not be written.
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
