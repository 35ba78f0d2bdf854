"""How many compilers run at once, whichever extensions they belong to."""

import contextlib
import threading
from collections.abc import Iterator


class Slots:
    """A number of slots that threads take several of at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted: int) -> Iterator[int]:
        """Wait for as many as wanted, all of them at most, and give them back at the end; yields how many it got."""
        number = max(1, min(wanted, self._count))
        with self._changed:
            self._changed.wait_for(lambda: self._free >= number)
            self._free -= number
        try:
            yield number
        finally:
            with self._changed:
                self._free += number
                self._changed.notify_all()
