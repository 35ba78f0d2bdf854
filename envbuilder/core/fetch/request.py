"""What is asked of the sources and how one of them declines: the words between `fetch` and `fetch.web`.

Here, for what speaks HTTP is slow to import and a build that fetches nothing does without it.
"""

import threading
from pathlib import Path
from typing import Final, Protocol

from envbuilder.core.cache import Sha256
from envbuilder.core.http.transfer import Progress
from envbuilder.core.sources import shown

PARALLEL: Final = 4


class Wanted(Protocol):
    """What the lock says of one artefact, see `lock.Artefact` (a layer above this one)."""

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
    """Completes an artefact's bytes in a file, which another attempt may have begun; raises Refusal or EnvbuilderError."""

    def __call__(
        self, artefact: Wanted, partial: Path, *, progress: Progress, stop: threading.Event
    ) -> None: ...


class Refusal(Exception):  # noqa: N818 - no failure yet: the next source may have the file
    """One source does not give the file: where and why; `kind` is `gone`, `wrong`, `refused` or `unreachable`."""

    def __init__(self, url: str, why: str, *, kind: str, status: int = 0) -> None:
        super().__init__(f"{shown(url)}: {why}")
        self.why = why
        self.kind = kind
        self.status = status  # of the server's last answer; 0 where there was none
