"""What a build with nothing to do asks the Docker engine, without its SDK: that takes longer to import than all else.

Only a socket of this machine is asked, as the SDK would be without settings; whatever is not plain is left to the SDK.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

_DEFAULT: Final = "unix:///var/run/docker.sock"
_PATIENCE: Final = 5.0  # seconds


def has_image(environment: Mapping[str, str], name: str, manifest: str) -> bool | None:
    """Whether the engine holds `name` with exactly this manifest; None where only the SDK can tell."""
    path = _socket(environment)
    if path is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(str(path))
            # Of an older HTTP, in which an answer ends with the connection.
            connection.sendall(f"GET /images/{quote(name)}/json HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            with connection.makefile("rb") as stream:
                head, _, body = stream.read().partition(b"\r\n\r\n")
        if head.split()[1] != b"200":
            return None
        return holds(json.loads(body), manifest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def holds(said: Mapping[str, Any], manifest: str) -> bool:
    """Whether what an engine says of an image is said of this manifest and of a whole image: of another it names no layers."""
    return said["Id"] == f"sha256:{manifest}" and bool(said["RootFS"].get("Layers"))


def is_absent(environment: Mapping[str, str]) -> bool:
    """Whether the socket that the SDK would ask is not even there."""
    path = _socket(environment)
    return path is not None and not path.exists()


def _socket(environment: Mapping[str, str]) -> Path | None:
    kind, _, path = (environment.get("DOCKER_HOST") or _DEFAULT).partition("://")
    return Path(path) if kind == "unix" else None
