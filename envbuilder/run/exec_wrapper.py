"""Write a script that runs commands in a SIF with the options of `exec`, without envbuilder.

The commands of a module are links to this script. Called as `python`, it runs the environment's
`python`.
"""

from pathlib import Path
from typing import Final

from envbuilder import __version__
from envbuilder.core.plain import one_line
from envbuilder.plan.shell import left_out, untold
from envbuilder.run.container import IMAGE_FOLDERS, IMAGE_TREES, SHARED_BY_APPTAINER, START_FILES
from envbuilder.run.launch.script import PARTS, quoted, quoted_list, quoted_path
from envbuilder.run.launch.site import Site

BODY: Final = Path(__file__).with_suffix(".sh")


def render_enter(name: str, sif: Path, site: Site) -> str:
    """Return the script. Called as `NAME-exec`, it runs its arguments. It needs START_FILE beside it."""
    settings = {
        "name": quoted(name),
        "sif": quoted(str(sif)),
        "apptainer": quoted(site.apptainer),
        "binds": f"({' '.join(map(quoted_path, site.all_binds))})",
        "left_out": quoted_list(left_out()),
        "untold": quoted_list(untold()),
        "image_trees": quoted_list(IMAGE_TREES),
        "image_folders": quoted_list(IMAGE_FOLDERS),
        "shared_trees": quoted_list(SHARED_BY_APPTAINER),
        "start_files": quoted_list(START_FILES),
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    head = [
        "#!/usr/bin/env bash",
        f"# Runs a command in the environment {one_line(name)}. Written by envbuilder {__version__}; it runs without envbuilder.",
        "# shellcheck disable=SC2016,SC1003 # settings are quoted as data",
        "set -euo pipefail",
    ]
    parts = [path.read_text(encoding="utf-8") for path in (PARTS / "keep_out.sh", BODY)]
    return "\n".join([*head, "", *lines, "", *parts])
