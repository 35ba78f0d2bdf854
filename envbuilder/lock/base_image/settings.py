"""What an image's config says that concerns what stands on it."""

import json
from dataclasses import dataclass

from envbuilder.core.cache import Sha256, parse_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of an image's config; empty where it says nothing."""

    architecture: str  # amd64
    diff_ids: tuple[Sha256, ...]  # of the layers' tars, the lowest first
    env: tuple[str, ...]  # NAME=value
    user: str
    entrypoint: tuple[str, ...]
    folder: str


def read_settings(text: bytes) -> Settings:
    """Raises ValueError for what is no image's config."""
    try:
        value = json.loads(text)
        said = value.get("config") or {}
        return Settings(
            architecture=str(value.get("architecture", "")),
            diff_ids=tuple(
                parse_sha256(str(one).removeprefix("sha256:")) for one in value["rootfs"]["diff_ids"]
            ),
            env=tuple(map(str, said.get("Env") or ())),
            user=str(said.get("User") or ""),
            entrypoint=tuple(map(str, said.get("Entrypoint") or ())),
            folder=str(said.get("WorkingDir") or ""),
        )
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"its config is not an image's: {error!r}") from error
