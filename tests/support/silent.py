"""A server that never answers, for tests of timeouts."""

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """Accept connections and send nothing. The event tells whether a client connected."""
    asked, held = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(listener.accept())
                asked.set()

    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        taker.join()
        for one, _ in held:
            one.close()
        listener.close()
