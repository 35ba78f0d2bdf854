"""How many programs a build runs at once: by the cores and the memory of the machine, and by what each compiler takes."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Final

from envbuilder.core.system import Limits

NVCC_MEMORY: Final = 3 << 30  # bytes of memory that a compile with torch's headers may need


def compilers(limits: Limits, memory: int = NVCC_MEMORY) -> int:
    """Return how many compilers that take so many bytes may run at once, by cores and memory."""
    return max(1, min(limits.threads, limits.memory // memory))


class Slots:
    """Limit the number of compiler processes across all extensions, and the memory that they take."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free, self._memory = max(1, limits.threads), limits.memory
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, wanted: int, each: int = NVCC_MEMORY) -> Iterator[int]:
        """Take the wanted number of slots of `each` so many bytes, at most all, and free them at the end. Yields their number."""
        number = max(1, min(wanted, compilers(self._limits, each)))
        memory = min(number * each, self._limits.memory)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= number and self._memory >= memory)
            self._free, self._memory = self._free - number, self._memory - memory
        try:
            yield number
        finally:
            with self._changed:
                self._free, self._memory = self._free + number, self._memory + memory
                self._changed.notify_all()


class Places:
    """Limit the number of programs that run at once. Of those that wait, the urgent ones begin first, then the first that came."""

    def __init__(self, number: int) -> None:
        self._free, self._numbers = number, itertools.count()
        self._waiting: list[tuple[bool, int]] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, *, is_urgent: bool = False) -> Iterator[None]:
        with self._changed:
            turn = not is_urgent, next(self._numbers)
            self._waiting.append(turn)
            self._changed.wait_for(lambda: self._free and min(self._waiting) == turn)
            self._waiting.remove(turn)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
