"""References to images: `registry/repository:tag@sha256:…`, in short and in full."""

import re
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.core.cache import Sha256, parse_sha256

LATEST: Final = "latest"
SCHEMES: Final = ("oras://", "docker://")  # which Apptainer and skopeo put before a reference
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One image or artifact of a registry. A digest takes precedence over the tag."""

    registry: str  # host, or host:port
    repository: str
    tag: str = ""
    digest: Sha256 | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@sha256:{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def key(self) -> str:
        """The part of a registry's URL that names the manifest: the digest, otherwise the tag."""
        return f"sha256:{self.digest}" if self.digest else self.tag or LATEST

    @property
    def name(self) -> str:
        """The last part of the repository: what a pull calls its files, and a signature its release."""
        return self.repository.rpartition("/")[2]

    def with_tag(self, tag: str) -> "Reference":
        return replace(self, tag=tag, digest=None)

    def with_digest(self, digest: Sha256) -> "Reference":
        return replace(self, digest=digest)


def default_registry() -> str:
    """Return the registry of names that name none, as the Docker SDK defines it."""
    return _docker_hub()[0]


def default_registry_url() -> str:
    """Return the URL of that registry; clients keep its credentials under this name."""
    return _docker_hub()[1]


def _docker_hub() -> tuple[str, str]:
    from docker import auth  # noqa: PLC0415 - the SDK takes 0.25 s, and `check` parses references without it

    return str(auth.INDEX_NAME), str(auth.INDEX_URL)


def names_registry(text: str) -> bool:
    """Whether a reference as typed names a registry."""
    first, slash, _ = _bare(text).partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def parse_reference(text: str) -> Reference:
    """Parse a reference; raises ValueError.

    As in engines, a name without a registry is in the default one, and one without a folder in its `library`.
    """
    bare = _bare(text)
    named, at, digest = bare.partition("@")
    registry, repository = default_registry(), named
    if names_registry(bare):
        registry, _, repository = named.partition("/")
    elif "/" not in named:
        repository = f"library/{named}"
    repository, colon, tag = repository.partition(":")
    if not _HOST.fullmatch(registry):
        raise ValueError(f"`{text}` is no image reference: `{registry}` is no host")
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"`{text}` is no image reference: `{repository}` is no repository")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"`{text}` is no image reference: `{tag}` is no tag")
    if at and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{text}` is no image reference: a digest is sha256: and 64 hexadecimal digits")
    return Reference(
        registry=registry, repository=repository, tag=tag, digest=parse_sha256(digest[7:]) if at else None
    )  # fmt: skip


def _bare(text: str) -> str:
    return next((text.removeprefix(scheme) for scheme in SCHEMES if text.startswith(scheme)), text)
