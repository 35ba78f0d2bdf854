"""Serve the wheels of a lock from a package index on loopback. It can require a password, refuse, or cut answers short."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from envbuilder.lock.model import Lock


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
    wheels = {one.filename: one for one in lock.wheels}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if manner.basic and self.headers.get("Authorization", "").encode() != b"Basic " + manner.basic:
                self.answer(manner.refusal, b"", {"WWW-Authenticate": 'Basic realm="index"'})
                return
            name = self.path.rpartition("/")[2]
            if name in wheels:
                digest = wheels[name].sha256
                self.answer_file((cache / "artifacts" / digest[:2] / digest).read_bytes())
                return
            project = self.path.strip("/").rpartition("/")[2]
            links = [
                f'<a href="/files/{name}#sha256={one.sha256}">{name}</a>'
                for name, one in wheels.items()
                if re.sub(r"[-_.]+", "-", one.name).lower() == project
            ]
            page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
            self.answer(200 if links else 404, page.encode(), {"Content-Type": "text/html"})

        do_HEAD = do_GET  # noqa: N815 - http.server's own name

        def answer_file(self, content: bytes) -> None:
            """Send the file from the requested byte to the end, or as far as the index's manner allows."""
            begin = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
            headers = {"Content-Type": "application/octet-stream"}
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            end = len(content) if manner.cut is None else begin + manner.cut
            self.answer(206 if begin else 200, content[begin:end], headers, length=len(content) - begin)
            time.sleep(manner.delay)
            self.close_connection = True

        def answer(
            self, status: int, content: bytes, headers: dict[str, str], *, length: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
