"""Compile one extension inside the sandbox; runs under the image's own Python, whatever its version.

Called as `python compile_extension.py SPEC`, a JSON file. It calls torch's public `load()`, so that an extension is
built by the same rules as the projects that ship it; ninja's state stays in the build folder, so that a second run
compiles what changed.
"""

import json
import sys
from pathlib import Path

spec = json.loads(Path(sys.argv[1]).read_text())
stale = Path(spec["build_directory"], "lock")
if (
    stale.exists()
):  # a killed run's, for our caller lets one run at a time; torch <= 2.13 would wait for it for ever
    stale.unlink()

from torch.utils import cpp_extension  # noqa: E402  slow, and of no use before

cpp_extension.load(verbose=True, **spec)
