"""What pip has installed in the virtual environment of `exec --writable`."""

import json
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.core.plain import pasted

PLACE: Final = ".envbuilder"


def venv_of(name: str, folder: Path) -> Path:
    return folder / PLACE / name


def installed(name: str, folder: Path) -> tuple[str, ...]:
    """Return the requirements that pip was asked for in the virtual environment of `folder`, with their versions.

    Raises UsageError for one that came from a folder or a file, which no recipe can name.
    """
    place = venv_of(name, folder)
    requirements = tuple(_requested(place))
    if not requirements:
        hint = f"`envbuilder exec {pasted(name)} --writable -- pip install PACKAGE` installs one"
        raise UsageError(f"pip has installed nothing in `{place}`", hint=hint)
    return requirements


def requested_names(name: str, folder: Path) -> tuple[str, ...]:
    return tuple(package.metadata["Name"] for package in _distributions(venv_of(name, folder)))


def _distributions(place: Path) -> Iterator[metadata.Distribution]:
    """Yield what pip was asked for; what these require has no file REQUESTED (PEP 376)."""
    for folder in sorted(place.glob("lib/python3.*/site-packages/*.dist-info")):
        if os.path.lexists(folder / "REQUESTED"):
            yield metadata.PathDistribution(folder)


def _requested(place: Path) -> Iterator[str]:
    for package in _distributions(place):
        name, origin = package.metadata["Name"], json.loads(package.read_text("direct_url.json") or "{}")
        if version_control := origin.get("vcs_info"):
            yield f"{version_control['vcs']}+{origin['url']}@{version_control['commit_id']}"
        elif origin:
            undo = f"`envbuilder exec NAME --writable -- pip uninstall {pasted(name)}`"
            raise UsageError(
                f"`{name}` was installed from `{origin.get('url')}`, which is on this machine alone",
                hint=f"{undo}; a folder of the project is an entry of `extensions`",
            )
        else:
            yield f"{name}=={package.version}"
