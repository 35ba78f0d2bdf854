"""Read a Dockerfile: its base, its variables, and what it installs with apt, pip and conda.

Every other instruction is left out with a reason.
"""

import io
import re
from pathlib import Path
from typing import Final

from dockerfile_parse import DockerfileParser

from envbuilder.compat.init.readers import commands
from envbuilder.compat.init.requests import Requests, read_text
from envbuilder.core.errors import UsageError

_WHY: Final = {
    "COPY": commands.NO_CODE,
    "ADD": commands.NO_CODE,
    "WORKDIR": "the folder is yours when it runs",
    "USER": "who runs it is who it runs as",
    "ENTRYPOINT": commands.STARTED,
    "CMD": commands.STARTED,
    "VOLUME": "folders are bound when it runs",
    "EXPOSE": "ports are opened when it runs",
    "SHELL": commands.NO_COMMANDS,
    "HEALTHCHECK": "a job is watched by its launcher",
}


def read_dockerfile(path: Path, requests: Requests) -> None:
    """Read every instruction; raises UsageError for what cannot be read."""
    arguments: dict[str, str] = {}
    copied = commands.Copied(context=path.parent)
    parts = DockerfileParser(fileobj=io.BytesIO(read_text(path).encode())).structure
    if not any(part["instruction"] == "FROM" for part in parts):
        raise UsageError(f"`{path}` has no `FROM`: it is no Dockerfile")
    for part in parts:
        where = f"{path}:{part['startline'] + 1}"
        name, value = str(part["instruction"]), _filled(str(part["value"]), arguments)
        match name:
            case "COMMENT" | "LABEL" | "MAINTAINER":
                pass
            case "FROM":
                commands.read_base(value, where, requests)
            case "ARG":
                key, _, default = value.partition("=")
                arguments[key.strip()] = default.strip().strip("\"'")
            case "ENV":
                arguments |= commands.read_variables(value, where, requests)
            case "RUN":
                folder = copied.folder
                commands.read_run(value, where, requests, copied)
                copied.folder = folder  # each RUN is a shell of its own
            case _:
                if name == "WORKDIR":
                    copied.enter(value)
                elif name in ("COPY", "ADD"):
                    copied.copy(value)
                why = _WHY.get(name, "not an instruction that is read; here-documents are not")
                requests.leave(where, f"{name} {value}".strip(), why)
    copied.report(requests)


def _filled(text: str, arguments: dict[str, str]) -> str:
    """Replace the variables of ENV, and the ARGs that have a default."""

    def fill(found: re.Match[str]) -> str:
        return arguments.get(found[1] or found[2]) or found[0]

    return re.sub(r"\$(?:\{(\w+)(?::-[^}]*)?\}|(\w+))", fill, text)
