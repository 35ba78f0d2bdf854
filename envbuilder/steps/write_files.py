"""Put small files in their places, with the byte code of Python's: `write_files.py SPEC INPUTS OUT`.

INPUTS holds the files under their paths below /. SPEC has `links`: path below / → target, and `folders`, which are empty. A file that
names its interpreter in the first line can be executed. Byte code is unchecked, because an image is read-only.
"""

import compileall
import json
import os
import shutil
import sys
from py_compile import PycInvalidationMode

os.umask(0o022)
spec_file, inputs, out = sys.argv[1:]
with open(spec_file, encoding="utf-8") as stream:
    spec = json.load(stream)
for parent, _, names in os.walk(inputs):
    place = os.path.relpath(parent, inputs)
    os.makedirs(os.path.join(out, place), exist_ok=True)
    for name in names:
        file = os.path.join(out, place, name)
        shutil.copyfile(os.path.join(parent, name), file)
        with open(file, "rb") as stream:
            os.chmod(file, 0o755 if stream.read(2) == b"#!" else 0o644)
        if name.endswith(".py"):  # byte code names the path that its source has in the image
            ddir = os.path.join("/", place)
            mode = PycInvalidationMode.UNCHECKED_HASH
            compileall.compile_file(file, ddir=ddir, quiet=1, invalidation_mode=mode)
for path in spec["folders"]:
    os.makedirs(os.path.join(out, path))
for path, target in sorted(spec["links"].items()):
    os.symlink(target, os.path.join(out, path))
