"""Work beside a build: loading an image into the Docker engine while layers are still being made."""

import threading
from collections.abc import Callable
from concurrent.futures import Future


class Background:
    """A queue of work in one thread at a time. Nobody waits for it when a build fails: an engine drops a load whose sender is gone."""

    def __init__(self) -> None:
        self._last: Future[None] = Future()
        self._last.set_result(None)

    def begin(self, work: Callable[[], object]) -> None:
        """Do the work after all that was begun before."""
        before, self._last = self._last, Future()

        def run(done: Future[None]) -> None:
            try:
                before.result()
                work()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - `finish` raises it
                done.set_exception(error)

        threading.Thread(target=run, args=(self._last,), daemon=True, name="load").start()

    def finish(self) -> None:
        """Wait for all work; raises the first error."""
        self._last.result()
