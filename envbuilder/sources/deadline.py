"""End programs that speak to servers for us: apt, git and uv bound what they read, but not how slowly it comes."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from envbuilder.core.errors import EnvbuilderError, FetchError
from envbuilder.core.process import Runner
from envbuilder.sources.fetch import NETWORK_HINT

PATIENCE: Final = 3600.0  # seconds for one call


@contextlib.contextmanager
def deadline(runner: Runner, what: str, seconds: float = PATIENCE) -> Iterator[Runner]:
    """Yield a runner whose programs end after a time. Raises FetchError for `what` they were doing."""
    bounded, expired = runner.named(""), threading.Event()

    def end() -> None:
        expired.set()
        bounded.stop()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield bounded
    except EnvbuilderError as error:
        if not expired.is_set():
            raise
        raise FetchError(f"{what} was not done in {seconds:.0f} s", hint=NETWORK_HINT) from error
    finally:
        timer.cancel()
