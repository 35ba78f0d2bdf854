"""Read this machine's settings for registries: prefix, mirrors, plain HTTP, certificates."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.sources.names import is_loopback

# Where engines look for the certificate authority of one registry (`dockerd`, `containers-certs.d(5)`).
CERTIFICATES: Final = (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings for registries. `prefix` is the `registry/folder` of recipes, or empty."""

    prefix: str = ""
    mirrors: tuple[tuple[str, str], ...] = ()  # a registry, and the `registry/folder` that mirrors it
    plain: frozenset[str] = frozenset()  # registries without TLS
    certificates: Path | None = None  # CA bundle

    def scheme(self, registry: str) -> str:
        return "http" if registry in self.plain or is_loopback(registry) else "https"

    def certificates_of(self, registry: str) -> Path | None:
        """Return the certificate authority of this registry, from the folders that engines read."""
        for folder in CERTIFICATES:
            for path in sorted((folder / registry).glob("*.crt")):
                return path
        return None


def probe_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises UsageError for a malformed mirror."""
    mirrors = []
    for word in environment.get("ENVBUILDER_REGISTRY_MIRRORS", "").split():
        registry, equals, mirror = word.partition("=")
        if not equals or "://" in mirror:
            raise UsageError(
                f"ENVBUILDER_REGISTRY_MIRRORS holds `{word}`", hint="write REGISTRY=MIRROR or REGISTRY=MIRROR/FOLDER"
            )  # fmt: skip
        mirrors.append((registry, mirror.rstrip("/")))
    names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    named = next((environment[name] for name in names if environment.get(name)), None)
    bundle = named or ssl.get_default_verify_paths().cafile  # the system's
    return Settings(
        prefix=environment.get("ENVBUILDER_REGISTRY", "").rstrip("/"),
        mirrors=tuple(mirrors),
        plain=frozenset(environment.get("ENVBUILDER_REGISTRY_HTTP", "").split()),
        certificates=Path(bundle) if bundle else None,
    )
