"""Serve the wheels of a lock from a package index on loopback. It can require a password, refuse, or cut answers short."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.lock.model import Lock
from tests.support.serving import Quiet, serving


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
                self.answer_file((cache / "artefacts" / digest[:2] / digest).read_bytes())
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
