"""`exec --writable`: a virtual environment of the project over an environment, in which pip tries packages.

It lies in `.envbuilder/NAME` of the folder. Only `exec --writable` uses it: jobs and `exec` alone see the environment as it was
built, until `add --installed` writes what pip has installed into the recipe.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uv

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.beneath import pinned_folder
from envbuilder.core.cache import save_bytes, save_text
from envbuilder.core.errors import CommandError, FetchError, UsageError, blaming_path
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.run.container import IMAGE_FOLDERS
from envbuilder.run.desk_packages import PLACE, venv_of
from envbuilder.run.environment_pins import probe_pins
from envbuilder.sources.names import probe_sources

_PYTHON: Final = "/opt/env/bin/python"
_PROGRAM: Final = Path(__file__).with_name("desk_start.py")
_START: Final = "start.py"


def through_venv(
    outputs: Outputs, folder: Path, argv: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command that runs `argv` in the SIF and in the virtual environment of `folder`, which is made if it is not there.

    Raises UsageError for a folder that the container has itself, and FetchError if no index gives pip.
    """
    place = venv_of(outputs.name, folder)
    if str(folder) in IMAGE_FOLDERS:
        raise UsageError(f"`{folder}` is a folder of the container too", hint="go to the folder of a project")
    with (
        blaming_path(f"cannot write to `{place}`"),
        pinned_folder(folder, f"{PLACE}/{outputs.name}") as inside,
    ):
        save_text(inside / ".gitignore", "*\n")
        save_text(inside / _START, _PROGRAM.read_text(encoding="utf-8"))
        _save_settings(inside, environment)
    if not (place / "pip/pip").is_dir():
        _fetch_pip(place / "pip", probe_pins(outputs.sif).python, environment)
    return (_PYTHON, str(place / _START), *argv)


def _save_settings(folder: Path, environment: Mapping[str, str]) -> None:
    """Give this machine's indexes and certificates to the pip inside: the container has another `/etc`."""
    sources = probe_sources(environment, ProcessRunner(environment))
    # Folders of this machine are not in the container.
    urls = [url for url in sources.indexes if not url.startswith("file:")]
    lines = ["[global]", *(f"index-url = {url}" for url in urls[:1])]
    if urls[1:]:
        lines.append(f"extra-index-url = {' '.join(urls[1:])}")
    if sources.certificates:
        save_bytes(folder / "certificates.pem", sources.certificates.read_bytes())
    save_text(folder / "pip.conf", "\n".join(lines) + "\n", mode=0o600)  # an address may hold a password


def _fetch_pip(target: Path, python: str, environment: Mapping[str, str]) -> None:
    """Install pip into a folder; the environment itself has none."""
    runner = ProcessRunner(environment)
    sources = probe_sources(environment, runner)
    main, *more = sources.indexes
    variables = {
        "UV_DEFAULT_INDEX": main, "UV_INDEX": " ".join(more), "UV_FIND_LINKS": " ".join(map(str, sources.folders)),
        "SSL_CERT_FILE": str(sources.certificates or ""),
    }  # fmt: skip
    argv = (
        uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--python", sys.executable, "--python-version", python,
        "--target", str(target), "--only-binary", ":all:", "pip",
    )  # fmt: skip
    given = tuple((name, value) for name, value in variables.items() if value)
    try:
        runner.run(Command(argv=argv, env=given, why=f"bring pip for Python {python}"))
    except CommandError as error:
        hint = (
            "`ENVBUILDER_INDEX` names an index that has pip, or `ENVBUILDER_FOLDERS` a folder with its wheel"
        )
        raise FetchError(f"pip could not be brought\n{error.message}", hint=hint) from error
