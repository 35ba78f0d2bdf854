"""Write the modules that each Python of the environment runs first, with their byte code: `start.py SPEC INPUTS OUT`.

SPEC has `files`: path below / → text. The byte code is unchecked, because an image is read-only.
"""

import compileall
import json
import os
import sys
from py_compile import PycInvalidationMode

spec_file, _, out = sys.argv[1:]
with open(spec_file, encoding="utf-8") as stream:
    files = json.load(stream)["files"]
for path, text in sorted(files.items()):
    target = os.path.join(out, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(target, 0o755 if text.startswith("#!") else 0o644)
    if path.endswith(".py"):
        # Compiled at its place in the image: byte code names the path of its source.
        compileall.compile_file(
            target,
            ddir=os.path.dirname(f"/{path}"),
            quiet=1,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
