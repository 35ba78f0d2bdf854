"""Find the sources of this machine: mirrors of Debian and Ubuntu, package indexes, local folders.

A lock names sources, never hosts. The hosts come from envbuilder's own settings, otherwise from
those of apt, uv and pip, otherwise from the tools' defaults. `resolve` and `fetch` use no others.
"""

import configparser
import contextlib
import functools
import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final, Protocol, overload
from urllib.parse import unquote, urlsplit, urlunsplit

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.process import Command, Runner

log = logging.getLogger(__name__)
PYTORCH_INDEX: Final = "https://download.pytorch.org/whl"
DEBIAN: Final = "debian"  # sources of .deb packages: Debian's main archive
DEBIAN_SECURITY: Final = "debian-security"  # Debian's security archive
UBUNTU: Final = "ubuntu"
URL: Final = "url-"  # begins the sources of an extension's archive, and of a wheel with an address
INDEX: Final = "index-"  # begins the sources of the recipe's own indexes
LINKS: Final = "links-"  # begins those of its pages with links to wheels
RECIPE: Final = "recipe"  # the source of wheels in the recipe's folder
APT: Final = "apt-"  # begins the sources of other apt repositories: apt-nvidia-ubuntu2004
CHANNEL: Final = "channel-"  # begins the sources of conda's packages: channel-conda-forge
HUB: Final = "hub"  # the source of kernels
HUB_ADDRESS: Final = "https://huggingface.co/"
CUDA: Final = "cuda"  # the source of toolkits: NVIDIA's redistributable archive
CUDA_REDIST: Final = "https://developer.download.nvidia.com/compute/cuda/redist/"
DEBIAN_SNAPSHOT: Final = "https://snapshot.debian.org/"
STANDALONE: Final = "python-build-standalone"  # the source of standalone Pythons
# As uv: its own mirror, then the releases themselves.
STANDALONE_RELEASES: Final = (
    "https://releases.astral.sh/github/python-build-standalone/releases/download/",
    "https://github.com/astral-sh/python-build-standalone/releases/download/",
)
DEBIAN_ARCHIVE: Final = "http://ftp.debian.org/debian/"
UBUNTU_ARCHIVE: Final = "http://archive.ubuntu.com/ubuntu/"
UBUNTU_SNAPSHOT: Final = "https://snapshot.ubuntu.com/ubuntu/"
UBUNTU_FILES: Final = "https://launchpad.net/ubuntu/+archive/primary/+files/"
REGISTRY: Final = "registry"  # the source of image blobs
BLOBS: Final = "blobs/sha256"  # in an OCI layout, the folder of files that are named by their digest
# apt's configuration names an archive by origin and label. Before the first `apt-get update`, its URL tells.
_BY_LABEL: Final = {
    ("Debian", "Debian"): DEBIAN,  # not Debian Backports
    ("Debian", "Debian-Security"): DEBIAN_SECURITY,
    ("Ubuntu", "Ubuntu"): UBUNTU,
}
_ADDRESSES: Final = (  # settings of one or more addresses
    "ENVBUILDER_INDEX", "ENVBUILDER_PYTORCH_INDEX", "ENVBUILDER_DEBIAN_MIRROR", "ENVBUILDER_DEBIAN_SECURITY",
    "ENVBUILDER_UBUNTU_MIRROR", "UV_PYTHON_INSTALL_MIRROR", "ENVBUILDER_CUDA_REDIST", "ENVBUILDER_DEBIAN_SNAPSHOT",
    "ENVBUILDER_UBUNTU_SNAPSHOT", "ENVBUILDER_UBUNTU_FILES", "HF_ENDPOINT",
)  # fmt: skip
_LOOPBACK: Final = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")
# What apt is asked of its lists without their content: for who published them, it would read every package.
_APT_OPTIONS: Final = (
    "-o", "Dir::State::lists=/nonexistent", "-o", "APT::Get::IndexTargets::ReleaseInfo=false"
)  # fmt: skip
_APT_FIELDS: Final = "$(FILENAME)\t$(METAKEY)\t$(REPO_URI)"
_FIELD: Final = re.compile(r"^(Origin|Label): (.+)$", re.MULTILINE)


def default_index() -> str:
    """Return the address of the package index, as its client library defines it."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - slow to import, as all that speaks HTTP

    return PYPI_SIMPLE_ENDPOINT


class Wanted(Protocol):
    """One file to fetch: what sources and tables need to know of it. `lock.model.Artifact` is one."""

    @property
    def kind(self) -> str: ...
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


class _Asked(Sequence[str]):
    """The mirrors of a source, which are looked up when the first is needed: apt is started to say them."""

    def __init__(self, ask: Callable[[], tuple[str, ...]]) -> None:
        self._ask = ask

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._ask()[index]

    def __len__(self) -> int:
        return len(self._ask())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Base URLs (`http`, `https` or `file`) and folders; URLs may hold credentials, so show them with `shown` only."""

    debian: Sequence[str]  # mirrors of the Debian archive; the first one resolves
    security: Sequence[str] = ()  # of Debian's security archive
    snapshot: str = DEBIAN_SNAPSHOT  # keeps both as they were on every day; "" for none
    keyring: Path | None = None  # what signs the suites of both; None for the toolbox's
    ubuntu: Sequence[str] = (UBUNTU_ARCHIVE,)
    ubuntu_snapshot: str = UBUNTU_SNAPSHOT  # has a folder for each moment; "" for none
    ubuntu_files: str = UBUNTU_FILES  # has every file that was ever published, by its name; "" for none
    ubuntu_keyring: Path | None = None
    # Of the simple API; the first is the main one, all are searched.
    indexes: tuple[str, ...] = field(default_factory=lambda: (default_index(),))
    pytorch: str = PYTORCH_INDEX  # parent of cpu, cu126, …
    standalone: tuple[str, ...] = STANDALONE_RELEASES  # parents of the releases 20261110, …
    hub: str = HUB_ADDRESS  # of Hugging Face
    cuda: str = CUDA_REDIST  # NVIDIA's redistributable archive; "" for none
    apt: tuple[tuple[str, str], ...] = ()  # mirrors of other apt repositories, by the name of their source
    conda: tuple[tuple[str, str], ...] = ()  # mirrors of conda channels, likewise
    folders: tuple[Path, ...] = ()  # wheels and .debs lie in them; OCI layouts too
    certificates: Path | None = None  # CA bundle for HTTPS

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return every address that a setting names."""
        return (
            *self.debian, *self.security, self.snapshot, *self.ubuntu, self.ubuntu_snapshot, self.ubuntu_files, *self.indexes,
            self.pytorch, *self.standalone, self.cuda, self.hub, *(url for _, url in (*self.apt, *self.conda)),
        )  # fmt: skip

    def mirrors(self, source: str) -> Sequence[str]:
        """Return the addresses below which a source has its files; none for a package index."""
        known = {
            DEBIAN: self.debian, DEBIAN_SECURITY: self.security, UBUNTU: self.ubuntu, STANDALONE: self.standalone,
            HUB: (self.hub,),
            CUDA: (self.cuda,) if self.cuda else (),
        }  # fmt: skip
        return known.get(source) or tuple(url for name, url in (*self.apt, *self.conda) if name == source)

    def mirror_of(self, source: str, day: date) -> str:
        """Return the address of a source of .deb packages as it was at 00:00 UTC of that day; "" for none."""
        moment = f"{day:%Y%m%d}T000000Z/"
        if source == UBUNTU:
            return self.ubuntu_snapshot and f"{self.ubuntu_snapshot}{moment}"
        return self.snapshot and f"{self.snapshot}archive/{source}/{moment}"


def probe_sources(environment: Mapping[str, str], runner: Runner) -> Sources:
    """Read settings and configuration. The first use of a mirror starts apt-get, unless every mirror is set."""
    _check_addresses(environment)
    pip = _pip_settings(environment)
    mirrors = functools.cache(lambda: _mirrors(environment, runner))
    folders = environment.get("ENVBUILDER_FOLDERS", "")
    listed = _first(environment, "UV_FIND_LINKS", "PIP_FIND_LINKS") or pip.get("find-links", "")
    links = folders.split(":") if folders else re.split(r"[\s,]+", listed.strip())
    releases = environment.get("UV_PYTHON_INSTALL_MIRROR", "")
    bundle = _first(environment, "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT") or pip.get("cert", "")
    return Sources(
        debian=_Asked(lambda: mirrors()[DEBIAN]),
        security=_Asked(lambda: mirrors()[DEBIAN_SECURITY]),
        snapshot=_service(environment, "ENVBUILDER_DEBIAN_SNAPSHOT", DEBIAN_SNAPSHOT),
        keyring=_keyring(environment, "ENVBUILDER_DEBIAN_KEYRING"),
        ubuntu=_Asked(lambda: mirrors()[UBUNTU]),
        ubuntu_snapshot=_service(environment, "ENVBUILDER_UBUNTU_SNAPSHOT", UBUNTU_SNAPSHOT),
        ubuntu_files=_service(environment, "ENVBUILDER_UBUNTU_FILES", UBUNTU_FILES),
        ubuntu_keyring=_keyring(environment, "ENVBUILDER_UBUNTU_KEYRING"),
        indexes=_indexes(environment, pip),
        pytorch=_base(environment.get("ENVBUILDER_PYTORCH_INDEX", "") or PYTORCH_INDEX),
        standalone=(_base(releases),) if releases else STANDALONE_RELEASES,
        hub=_base(environment.get("HF_ENDPOINT", "") or HUB_ADDRESS),
        cuda=_service(environment, "ENVBUILDER_CUDA_REDIST", CUDA_REDIST),
        apt=_named(environment, "ENVBUILDER_APT_MIRRORS", APT),
        conda=_named(environment, "ENVBUILDER_CONDA_MIRRORS", CHANNEL),
        folders=tuple(dict.fromkeys(path for link in links if (path := _folder(link)))),
        certificates=Path(bundle) if bundle else None,
    )


def _check_addresses(environment: Mapping[str, str]) -> None:
    for name in _ADDRESSES:
        value = environment.get(name, "")
        for word in () if Path(value).is_dir() else value.split():
            if not _is_address(word) and not Path(word).is_dir():
                hint = "write an address such as https://HOST:PORT/PATH, or a folder that is there"
                raise UsageError(f"{name} holds `{shown(word)}`", hint=hint)
    for name in environment.get("ENVBUILDER_FOLDERS", "").split(":"):
        if name and not Path(name).is_dir():
            log.warning("warning: ENVBUILDER_FOLDERS names `%s`, and there is no such folder", name)


def _is_address(word: str) -> bool:
    try:
        return re.match(r"(?i)https?://|file:", word) is not None and urlsplit(word).port != 0
    except ValueError:  # brackets, or a port above 65535
        return False


def shown(url: str) -> str:
    """Return the URL for messages, without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_loopback(place: str) -> bool:
    """Whether a host, with a port or without, is this machine."""
    return _LOOPBACK.fullmatch(place) is not None


def file_path(url: str) -> Path | None:
    """Return the local path of a `file:` URL, None for any other URL."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _indexes(environment: Mapping[str, str], pip: Mapping[str, str]) -> tuple[str, ...]:
    configured = environment.get("ENVBUILDER_INDEX", "").split()
    if configured:
        return tuple(_base(url) for url in configured)
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


def _mirrors(environment: Mapping[str, str], runner: Runner) -> dict[str, tuple[str, ...]]:
    """Return the mirrors of each source of .deb packages.

    Those of Debian's security archive stand beside the main archive's, unless a setting or apt's configuration names some.
    """
    settings = {
        DEBIAN: "ENVBUILDER_DEBIAN_MIRROR", DEBIAN_SECURITY: "ENVBUILDER_DEBIAN_SECURITY", UBUNTU: "ENVBUILDER_UBUNTU_MIRROR"
    }  # fmt: skip
    mirrors = {
        source: tuple(map(_base, environment.get(name, "").split())) for source, name in settings.items()
    }
    if not all(mirrors.values()):
        configured = _apt_mirrors(runner)
        mirrors = {source: urls or configured.get(source, ()) for source, urls in mirrors.items()}
    mirrors[DEBIAN] = mirrors[DEBIAN] or (DEBIAN_ARCHIVE,)
    beside = (url.removesuffix("/debian/") for url in mirrors[DEBIAN] if url.endswith("/debian/"))
    security = tuple(f"{url}/{DEBIAN_SECURITY}/" for url in beside)
    mirrors[DEBIAN_SECURITY] = mirrors[DEBIAN_SECURITY] or security
    mirrors[UBUNTU] = mirrors[UBUNTU] or (UBUNTU_ARCHIVE,)
    return mirrors


def _apt_mirrors(runner: Runner) -> dict[str, tuple[str, ...]]:
    """Return the mirrors of apt's configuration by source; none without apt."""
    why = "read which mirrors of Debian and Ubuntu this machine uses"
    targets = ("apt-get", *_APT_OPTIONS, "indextargets", "--format", _APT_FIELDS, "Created-By: Packages")
    try:
        setting = runner.run(Command(argv=("apt-config", "shell", "lists", "Dir::State::lists/d"), why=why))
        rows = runner.run(Command(argv=targets, why=why)).splitlines()
    except (CommandError, ToolError):
        return {}
    lists = Path("".join(shlex.split(setting)).partition("=")[2])
    publisher = functools.cache(functools.partial(_publisher, lists))
    places: list[tuple[str, str]] = []
    unread: list[tuple[str, str]] = []
    for path, key, url in (row.split("\t") for row in rows):
        release = path.rpartition("/")[2].removesuffix(key.replace("/", "_"))
        if known := publisher(release):
            places += ((_BY_LABEL.get(known, ""), mirror) for mirror in _mirror_list(url))
        elif "/" in key:  # not of a folder of packages
            unread.append((url.rstrip("/").rpartition("/")[2], url))
    labelled = {source for source, _ in places}
    if not {DEBIAN, DEBIAN_SECURITY} <= labelled and UBUNTU not in labelled:
        # The lists that `apt-get update` has not read yet have no labels, but their URLs are known.
        places += (place for place in unread if place[0] not in labelled)
    usable = [(source, url) for source, url in places if urlsplit(url).scheme in {"http", "https", "file"}]
    return {
        source: tuple(dict.fromkeys(_base(url) for name, url in usable if name == source))
        for source in _BY_LABEL.values()
    }


def _publisher(lists: Path, release: str) -> tuple[str, str] | None:
    """Return origin and label of a release among apt's lists, None if it has not been read."""
    for name in ("InRelease", "Release"):
        with contextlib.suppress(OSError):
            text = (lists / f"{release}{name}").read_text(encoding="utf-8", errors="replace")
            fields = dict(_FIELD.findall(text))
            return fields.get("Origin", ""), fields.get("Label", "")
    return None


def _mirror_list(url: str) -> tuple[str, ...]:
    """Resolve `mirror+file:`, which Debian's cloud images use; return any other URL unchanged."""
    if not url.startswith("mirror+file:"):
        return (url,)
    path = file_path(url.removeprefix("mirror+"))
    if path is None or not path.is_file():
        return ()
    lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(line[0] for line in lines if line)


def _named(environment: Mapping[str, str], setting: str, prefix: str) -> tuple[tuple[str, str], ...]:
    """Return the mirrors of a setting NAME=ADDRESS …, by the source of each name."""
    mirrors: list[tuple[str, str]] = []
    for word in environment.get(setting, "").split():
        name, sign, url = word.partition("=")
        if not (name and sign and ":" in url):
            raise UsageError(f"{setting} holds `{shown(word)}`", hint="write NAME=ADDRESS")
        mirrors.append((f"{prefix}{name}", _base(url)))
    return tuple(mirrors)


def _service(environment: Mapping[str, str], name: str, default: str) -> str:
    """Return the address of a service; an empty setting means none."""
    address = environment.get(name, default)
    return _base(address) if address else ""


def _keyring(environment: Mapping[str, str], name: str) -> Path | None:
    path = environment.get(name, "")
    return Path(path) if path else None


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _base(url: str) -> str:
    if ":" not in url:  # a folder
        url = Path(url).absolute().as_uri()
    return url.rstrip("/") + "/"


def _folder(link: str) -> Path | None:
    """Return the folder of a find-links entry, or None for a page on the network."""
    path = file_path(link) if ":" in link else Path(link)
    return path if path is not None and link and path.is_dir() else None
