"""Servers on loopback, each for one block of a test: of a handler, a folder, the wheels of a lock, and one that never answers."""

import contextlib
import functools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from envbuilder.lock.model import Lock
from envbuilder.sources.http import session


def ask_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients repeat a request at once, and use no proxy of the machine."""
    monkeypatch.setattr(session, "PAUSES", (0.01, 0.01, 0.01))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Quiet(BaseHTTPRequestHandler):
    """Prints no line for each request."""

    def reply(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Answer. `headers` may have another Content-Length than that of the body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Folder(Quiet, SimpleHTTPRequestHandler):
    pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is what some tests are about."""


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve until the end of the block. Gives host and port."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as `python -m http.server` does, which never sends a part of a file. Gives its address."""
    with serving(functools.partial(Folder, directory=str(folder))) as host:
        yield f"http://{host}/"


@contextlib.contextmanager
def guarded(folder: Path, basic: bytes) -> Iterator[str]:
    """Serve a folder to those who send this user and password, encoded. Gives its address."""

    class Handler(Folder):
        def send_head(self) -> Any:
            if self.headers.get("Authorization", "").encode() == b"Basic " + basic:
                return super().send_head()
            self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
            return None

    with serving(functools.partial(Handler, directory=str(folder))) as host:
        yield f"http://{host}/"


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
        for connection, _ in held:
            connection.close()
        listener.close()


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How an index treats its clients."""

    basic: bytes = b""  # user and password as they are sent; without them it answers `refusal`
    refusal: int = 401
    cut: int | None = None  # bytes of a file after which the connection ends
    delay: float = 0.0  # seconds before it does


@contextlib.contextmanager
def package_index(lock: Lock, cache: Path, manner: Manner) -> Iterator[str]:
    """Serve the wheels that lie in a cache; gives the index's host and port."""
    wheels = {wheel.filename: wheel for wheel in lock.wheels}

    class Handler(Quiet):
        def do_GET(self) -> None:
            if manner.basic and self.headers.get("Authorization", "").encode() != b"Basic " + manner.basic:
                self.reply(manner.refusal, b"", {"WWW-Authenticate": 'Basic realm="index"'})
                return
            name = self.path.rpartition("/")[2]
            if name in wheels:
                digest = wheels[name].sha256
                self.answer_file((cache / "artifacts" / digest[:2] / digest).read_bytes())
                return
            project = self.path.strip("/").rpartition("/")[2]
            links = [
                f'<a href="/files/{name}#sha256={wheel.sha256}">{name}</a>'
                for name, wheel in wheels.items()
                if re.sub(r"[-_.]+", "-", wheel.name).lower() == project
            ]
            page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
            self.reply(200 if links else 404, page.encode(), {"Content-Type": "text/html"})

        do_HEAD = do_GET

        def answer_file(self, content: bytes) -> None:
            """Send the file from the requested byte to the end, or as far as the index's manner allows."""
            begin = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(len(content) - begin),
            }
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            end = len(content) if manner.cut is None else begin + manner.cut
            self.reply(206 if begin else 200, content[begin:end], headers)
            time.sleep(manner.delay)
            self.close_connection = True

    with serving(Handler) as host:
        yield host
