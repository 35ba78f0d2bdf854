"""Find a registry's credentials where `docker login`, `podman login` and `apptainer registry login` leave them.

`docker.auth` reads one file, takes every key for its host alone, and passes over a user and a password in plain text. podman
keeps credentials for a folder of a registry.
"""

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envbuilder.artifacts.oci.naming import Reference, default_registry, default_registry_url
from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command, Runner

log = logging.getLogger(__name__)

TOKEN_USER: Final = "<token>"  # noqa: S105 - a helper's word for an identity token in place of a password


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user and a password, or an identity token; `source` says where they were found."""

    user: str
    source: str
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def credential_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that may hold credentials, in their order."""
    home = Path(environment.get("HOME") or "/nonexistent")
    named = environment.get("REGISTRY_AUTH_FILE", "")
    run = environment.get("XDG_RUNTIME_DIR", "")
    settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker")
    files = (
        Path(named) if named else None,
        Path(run) / "containers/auth.json" if run else None,
        settings / "containers/auth.json",
        docker / "config.json",
        Path(environment.get("APPTAINER_CONFIGDIR") or home / ".apptainer") / "docker-config.json",
        home / ".singularity/docker-config.json",
    )
    return tuple(dict.fromkeys(path for path in files if path is not None))


def find_credentials(
    reference: Reference, environment: Mapping[str, str], runner: Runner
) -> Credentials | None:
    """Return the credentials of the first file that has some. In a file, the longest matching name wins."""
    names = _names(reference)
    for path in credential_files(environment):
        settings = _read(path)
        credentials = _in_file(settings, names, str(path)) or _from_helper(settings, names, runner)
        if credentials:
            return credentials
    return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        log.warning("`%s` cannot be read and is passed over (%s)", path, type(error).__name__)
        return {}
    return value if isinstance(value, dict) else {}


def _names(reference: Reference) -> tuple[str, ...]:
    """Return the names that credentials may be kept under, the longest first."""
    parts = reference.repository.split("/")
    names = [f"{reference.registry}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
    names.append(reference.registry)
    if reference.registry == default_registry():
        names.append(default_registry_url())
    return tuple(names)


def _in_file(settings: Mapping[str, Any], names: Sequence[str], source: str) -> Credentials | None:
    """Look the names up in a file. Its keys are hosts, hosts with folders, or URLs of old clients."""
    auths = settings.get("auths")
    if not isinstance(auths, dict):
        return None
    entries = {_plain(key): entry for key, entry in auths.items() if isinstance(entry, dict)}
    candidates = (_entry(entries.get(_plain(name), {}), source) for name in names)
    return next(filter(None, candidates), None)


def _plain(key: str) -> str:
    bare = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return bare.removesuffix("/v1").removesuffix("/v2")


def _entry(entry: Mapping[str, Any], source: str) -> Credentials | None:
    user, password = str(entry.get("username", "")), str(entry.get("password", ""))
    if entry.get("auth"):
        try:
            user, _, password = base64.b64decode(str(entry["auth"])).decode().partition(":")
        except ValueError:
            log.warning("`%s` holds credentials that cannot be read", source)
            return None
    token = str(entry.get("identitytoken", ""))
    if not token and not (user and password):
        return None
    return Credentials(user=user, password=password.rstrip("\0"), token=token, source=source)


def _from_helper(settings: Mapping[str, Any], names: Sequence[str], runner: Runner) -> Credentials | None:
    for helper, server in _helpers(settings, names):
        program = f"docker-credential-{helper}"
        command = Command(
            argv=(program, "get"), why=f"ask for the credentials of {server}", input=server.encode(), accept=(0, 1)
        )  # fmt: skip
        try:
            with runner.read(command) as stream:  # its output is secret: `read` writes no log
                answer = json.loads(stream.read())
            user, secret = str(answer["Username"]), str(answer["Secret"])
        except (ToolError, CommandError) as error:
            log.warning("%s", error.message)
            continue
        except (ValueError, KeyError, TypeError):  # it has none, and says so in words
            continue
        if user == TOKEN_USER:
            return Credentials(user="", token=secret, source=f"`{program}`")
        return Credentials(user=user, password=secret, source=f"`{program}`")
    return None


def _helpers(settings: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield credential helpers, each with a server to ask for: the registry's own, then the general one."""
    helpers = settings.get("credHelpers")
    for name in names:
        if isinstance(helpers, dict) and isinstance(helpers.get(name), str):
            yield helpers[name], name
    store = settings.get("credsStore")
    if isinstance(store, str) and store:
        yield from ((store, name) for name in names if name.count("/") == 0 or "://" in name)
