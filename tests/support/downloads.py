"""Artifacts of a lock, for tests that download them."""

import hashlib

from envbuilder.core.cache import Sha256
from envbuilder.lock.model import Artifact

CONTENT = bytes(range(256)) * 4096  # 1 MiB


def make_deb(content: bytes = CONTENT, *, name: str = "tool", size: int | None = None) -> Artifact:
    return Artifact(
        kind="deb",
        name=name,
        version="1.0",
        sha256=Sha256(hashlib.sha256(content).hexdigest()),
        size=len(content) if size is None else size,
        source="debian",
        path=f"pool/{name}_1.0_amd64.deb",
    )


def make_wheel(
    content: bytes = CONTENT, *, source: str = "pypi", path: str = "tool/tool-1.0-py3-none-any.whl"
) -> Artifact:
    digest = Sha256(hashlib.sha256(content).hexdigest())
    return Artifact(
        kind="wheel", name="tool", version="1.0", sha256=digest, size=len(content), source=source, path=path
    )
