"""The runtime layer: Apptainer's start-up files, and the texts that describe the image."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.assemble.step import Job, OtherSteps, write_text
from envbuilder.build.engine import tools
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import RuntimeStep, Step

# Apptainer sources env/*.sh in order and execs the runscript. It brings its own action scripts since 3.6.
RUNSCRIPT: Final = (
    '#!/bin/sh\nif [ "$#" -eq 0 ]; then set -- /bin/bash; fi\nexec /opt/envbuilder/start "$@"\n'
)
STARTSCRIPT: Final = "#!/bin/sh\n"
USER_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Values that a user may change do not belong here: they would beat the user's own.\n"
)
# Without this file Apptainer ignores `--env` and APPTAINERENV_X.
BASE_ENVIRONMENT: Final = (
    "#!/bin/sh\n# Apptainer sets what `--env` and APPTAINERENV_X say right after this file.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeMaker:
    """Make the runtime step."""

    step: RuntimeStep
    job: Job

    def inputs(self) -> tuple[Artifact, ...]:
        return ()

    def commands(self, work: Path, root: Root) -> tuple[Command, ...]:  # noqa: ARG002 - as every step's
        return ()  # files are written without a program

    def write_layer(self, out: Path, work: Path, others: OtherSteps) -> None:
        self.write(out, work, others.layers(), others.kept_trees())

    def write(
        self, out: Path, work: Path, layers: Mapping[type[Step], Layer], trees: Mapping[type[Step], Path]
    ) -> None:
        """Write the layer. `layers` are all others, `trees` are the folders that may still hold their files."""
        documents = write_documents(self.job.plan, layers, trees, tools(), self.job.engine)
        write_runtime_files(self.step, work / "tree", documents)
        self.job.pack(self.step, work / "tree", out)

    def write_inputs(self, folder: Path) -> None:
        write_runtime_files(self.step, folder / "runtime")


def runtime_files(step: RuntimeStep) -> dict[str, tuple[str, int]]:
    """Return path → text and mode of every file of the layer."""
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
    """Write the layer's files below `tree`. `documents` are the texts that describe the other layers."""
    plain = {path: (text, 0o644) for path, text in (documents or {}).items()}
    for path, (text, mode) in (runtime_files(step) | plain).items():
        write_text(tree / path, text, mode=mode)
    (tree / ".singularity.d/libs").mkdir()
    (tree / "singularity").symlink_to(".singularity.d/runscript")
    (tree / "environment").symlink_to(".singularity.d/env/90-environment.sh")
