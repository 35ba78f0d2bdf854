"""Find the sources of this machine: Debian mirrors, package indexes, local folders.

A lock names sources, never hosts. The hosts come from envbuilder's own settings, otherwise from
those of apt, uv and pip, otherwise from the tools' defaults. `resolve` and `fetch` use no others.
"""

import configparser
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import ToolError
from envbuilder.core.process import Command, Runner

PYTORCH_INDEX: Final = "https://download.pytorch.org/whl"
DEBIAN_SNAPSHOT: Final = "https://snapshot.debian.org/"
DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
REGISTRY: Final = "registry"  # the source of image blobs
BLOBS: Final = "blobs/sha256"  # in an OCI layout, the folder of files that are named by their digest
_APT_FIELDS: Final = "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)"


def default_index() -> str:
    """Return the address of the package index, as its client library defines it."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - slow to import, as all that speaks HTTP

    return PYPI_SIMPLE_ENDPOINT


class Wanted(Protocol):
    """One file to fetch: what a source needs to know of it. `lock.model.Artifact` is one."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def sha256(self) -> Sha256: ...
    @property
    def size(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Base URLs (`http`, `https` or `file`) and folders; URLs may hold credentials, so show them with `shown` only."""

    # Mirrors of the Debian archive. The first one resolves; empty where none is known.
    debian: tuple[str, ...]
    snapshot: str = DEBIAN_SNAPSHOT  # keeps Debian as it was on every day; "" for none
    keyring: Path = DEBIAN_KEYRING  # what signs those mirrors' suites
    # Of the simple API; the first is the main one, all are searched.
    indexes: tuple[str, ...] = field(default_factory=lambda: (default_index(),))
    pytorch: str = PYTORCH_INDEX  # parent of cpu, cu126, …
    folders: tuple[Path, ...] = ()  # wheels and .debs lie in them; OCI layouts too
    certificates: Path | None = None  # CA bundle for HTTPS


def probe_sources(environment: Mapping[str, str], runner: Runner) -> Sources:
    """Read settings and configuration; starts apt-get unless ENVBUILDER_DEBIAN_MIRROR is set."""
    pip = _pip_settings(environment)
    mirrors = environment.get("ENVBUILDER_DEBIAN_MIRROR", "").split()
    snapshot = environment.get("ENVBUILDER_DEBIAN_SNAPSHOT", DEBIAN_SNAPSHOT)
    keyring = environment.get("ENVBUILDER_DEBIAN_KEYRING", "")
    folders = environment.get("ENVBUILDER_FOLDERS", "")
    found = _first(environment, "UV_FIND_LINKS", "PIP_FIND_LINKS") or pip.get("find-links", "")
    links = folders.split(":") if folders else re.split(r"[\s,]+", found.strip())
    bundle = _first(environment, "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT") or pip.get("cert", "")
    return Sources(
        debian=tuple(_base(url) for url in mirrors) or _apt_mirrors(runner),
        snapshot=_base(snapshot) if snapshot else "",
        keyring=Path(keyring) if keyring else DEBIAN_KEYRING,
        indexes=_indexes(environment, pip),
        pytorch=_base(environment.get("ENVBUILDER_PYTORCH_INDEX", "") or PYTORCH_INDEX),
        folders=tuple(dict.fromkeys(path for link in links if (path := _folder(link)))),
        certificates=Path(bundle) if bundle else None,
    )


def shown(url: str) -> str:
    """Return the URL for messages, without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def file_path(url: str) -> Path | None:
    """Return the local path of a `file:` URL, None for any other URL."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _indexes(environment: Mapping[str, str], pip: Mapping[str, str]) -> tuple[str, ...]:
    own = environment.get("ENVBUILDER_INDEX", "").split()
    if own:
        return tuple(_base(url) for url in own)
    main = _first(environment, "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
    extra = _first(environment, "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    urls = [
        main or pip.get("index-url", "") or default_index(),
        *(extra or pip.get("extra-index-url", "")).split(),
    ]
    # uv allows a name before the URL of an index: `name=url`.
    return tuple(dict.fromkeys(_base(re.sub(r"^[A-Za-z0-9._-]+=", "", url)) for url in urls))


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Read pip's configuration files in its order, without pip."""
    home = Path(environment.get("HOME", "/nonexistent"))
    user = Path(environment.get("XDG_CONFIG_HOME", "") or home / ".config")
    folders = filter(None, environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"))
    sites = [Path(folder) / "pip/pip.conf" for folder in folders]
    files = [*reversed(sites), Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    named = environment.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":  # pip's way to say: no configuration files
        return {}
    parser = configparser.RawConfigParser()
    try:
        parser.read([*files, named] if named else files, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ToolError(
            f"could not read pip's configuration: {error}", hint="`pip config debug` lists its files"
        ) from error
    sections = [dict(parser.items(name)) for name in ("global", "install") if parser.has_section(name)]
    return {key: value for section in sections for key, value in section.items()}


def _apt_mirrors(runner: Runner) -> tuple[str, ...]:
    """Return the Debian mirrors of apt's configuration; none without apt."""
    why = "read which Debian mirrors this machine uses"
    targets = ("apt-get", "indextargets", "--format", _APT_FIELDS, "Created-By: Packages")
    try:
        urls = list(_by_origin(runner.run(Command(argv=targets, why=why))))
        if not urls:  # `apt-get update` has not run yet: origins are unknown, but the places are
            listing = runner.run(Command(argv=("apt-get", "update", "--print-uris"), why=why))
            places = re.findall(r"^'([^']+)/dists/", listing, re.MULTILINE)
            urls = [url for url in places if url.rstrip("/").endswith("/debian")]
    except ToolError:
        return ()
    known = (url for url in urls if urlsplit(url).scheme in {"http", "https", "file"})
    return tuple(dict.fromkeys(map(_base, known)))


def _by_origin(listing: str) -> Iterator[str]:
    for line in listing.splitlines():
        origin, label, url = line.split("\t")
        if origin == "Debian" and label == "Debian":  # not Debian-Security, Debian Backports
            yield from _mirror_list(url)


def _mirror_list(url: str) -> tuple[str, ...]:
    """Resolve `mirror+file:`, which Debian's cloud images use; return any other URL unchanged."""
    if not url.startswith("mirror+file:"):
        return (url,)
    path = file_path(url.removeprefix("mirror+"))
    if path is None or not path.is_file():
        return ()
    lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(line[0] for line in lines if line)


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _base(url: str) -> str:
    return url.rstrip("/") + "/"


def _folder(link: str) -> Path | None:
    """Return the folder of a find-links entry, or None for a page on the network."""
    path = file_path(link) if ":" in link else Path(link)
    return path if path is not None and link and path.is_dir() else None
