"""The build backend of pyproject.toml: flit's, with the recipes of `recipes` as `envbuilder/examples` in a wheel.

Flit packs one folder and has no option to add another. A wheel is therefore made from a copy of the files that it takes.
An editable install needs no copy: envbuilder then reads `recipes` itself.
"""

import os
import shutil
import tempfile
from pathlib import Path

from flit_core import buildapi  # type: ignore[import-untyped]
from flit_core.buildapi import (  # type: ignore[import-untyped]  # noqa: F401 - the other hooks of PEP 517 and 660, as they are
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

_METADATA = ("pyproject.toml", "README.md", "LICENSE")


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None
) -> str:
    tree, target = Path.cwd(), Path(wheel_directory).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        for name in _METADATA:
            shutil.copy2(name, scratch)
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree("envbuilder", Path(scratch, "envbuilder"), ignore=unwanted)
        shutil.copytree("recipes", Path(scratch, "envbuilder/examples"), ignore=unwanted)
        try:
            os.chdir(scratch)
            return buildapi.build_wheel(str(target), config_settings, metadata_directory)
        finally:
            os.chdir(tree)
