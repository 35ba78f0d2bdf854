"""The runtime layer: what Apptainer reads at start, and the texts that say what the image is."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.plan.model import RuntimeStep

# Apptainer sources env/*.sh in order and execs the runscript. Its own action scripts come with the runtime since 3.6.
RUNSCRIPT: Final = (
    '#!/bin/sh\nif [ "$#" -eq 0 ]; then set -- /bin/bash; fi\nexec /opt/envbuilder/start "$@"\n'
)
STARTSCRIPT: Final = "#!/bin/sh\n"
USER_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Values that a user may change do not belong here: they would beat the user's own.\n"
)
# Without this file Apptainer drops what `--env` and APPTAINERENV_X say.
BASE_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Apptainer sets what `--env` and APPTAINERENV_X say right after this file.\n"
)


def runtime_files(step: RuntimeStep) -> dict[str, tuple[str, int]]:
    """Path → text and mode of every file of the layer."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in step.env)
    apptainer = {
        ".singularity.d/env/10-docker2singularity.sh": ("#!/bin/sh\n" + exports, 0o755),
        ".singularity.d/env/90-environment.sh": (USER_ENVIRONMENT, 0o755),
        ".singularity.d/env/99-base.sh": (BASE_ENVIRONMENT, 0o755),
        ".singularity.d/runscript": (RUNSCRIPT, 0o755),
        ".singularity.d/labels.json": (json.dumps(dict(step.labels), indent=1, sort_keys=True) + "\n", 0o644),
        ".singularity.d/startscript": (STARTSCRIPT, 0o755),
    }
    return apptainer | {path: (text, 0o755 if text.startswith("#!") else 0o644) for path, text in step.files}


def write_runtime_files(step: RuntimeStep, tree: Path, documents: Mapping[str, str] | None = None) -> None:
    """Write the layer's files below `tree`; `documents` are the texts that could be written only when the other layers were there."""
    plain = {path: (text, 0o644) for path, text in (documents or {}).items()}
    for path, (text, mode) in (runtime_files(step) | plain).items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)
    (tree / ".singularity.d/libs").mkdir()
    (tree / "singularity").symlink_to(".singularity.d/runscript")
    (tree / "environment").symlink_to(".singularity.d/env/90-environment.sh")
