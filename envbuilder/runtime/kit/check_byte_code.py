"""Fail if a Python source below a folder has no byte code: `check_byte_code.py FOLDER`.

uv and compileall do not report a file that could not be written, as on a disk that was full for a moment. Only files that are not
Python of this version may lack byte code, such as templates and fixtures of tests.
"""

import importlib.util
import sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).rglob("*.py")):
    if path.is_file() and not Path(importlib.util.cache_from_source(str(path))).exists():
        try:
            compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError, RecursionError):
            continue
        sys.exit(f"{path}: its byte code was not written, as on a disk that was full for a moment")
