"""Write the program that puts a copy of the SIF on each node of a job.

One file, beside the job's logs: the modules that copy, and the index of the SIF's parts. The nodes
run it with the Python of the SIF, so they need neither Python nor envbuilder.
"""

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Final

from envbuilder.artifacts.parts_index import make_index
from envbuilder.core.cache import save_bytes
from envbuilder.core.private import is_trusted
from envbuilder.run.launch.job import Job
from envbuilder.run.sync import module_text

_MODULES: Final = (
    "core.private",
    "artifacts.parts",
    "artifacts.history",
    "artifacts.receive",
    "artifacts.node_copy",
)
_MAIN: Final = "from envbuilder.artifacts.node_copy import main\n\nmain()\n"


def save_copier(job: Job) -> None:
    """Write `job.copier`, unless an earlier job of this SIF did. The first reads the whole SIF.

    Nodes run it, so a link or another user's file of that name is replaced.
    """
    if job.copier.is_file() and not job.copier.is_symlink() and is_trusted(str(job.copier)):
        return
    environment = job.environment
    parts = [(part.size, part.digest) for part in make_index(Path(environment.location), {}).parts]
    index = {"name": environment.name, "sha256": environment.sha256, "parts": parts}
    texts = {f"envbuilder/{below}__init__.py": "" for below in ("", "core/", "artifacts/")}
    texts |= {f"envbuilder/{name.replace('.', '/')}.py": module_text(name) for name in _MODULES}
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in (texts | {"__main__.py": _MAIN, "index.json": json.dumps(index)}).items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # without the time of day
    save_bytes(job.copier, content.getvalue())
