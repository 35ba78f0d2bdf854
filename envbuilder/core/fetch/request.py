"""What is fetched: the part of a locked artifact that a source needs to know."""

import threading
from pathlib import Path
from typing import Protocol

from envbuilder.core.cache import Sha256
from envbuilder.core.http.transfer import Progress


class Wanted(Protocol):
    """One file to fetch; `lock.Artifact` is one."""

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


class Pull(Protocol):
    """Downloads an artifact into a file that an earlier attempt may have begun; raises SourceError or EnvbuilderError."""

    def __call__(
        self, artefact: Wanted, partial: Path, *, progress: Progress, stop: threading.Event
    ) -> None: ...
