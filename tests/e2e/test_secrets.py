"""A password for an index, planted where people keep one: it opens the index, and stands in nothing that comes out."""

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import zstandard
from faults import Bench
from workbench import CACHE, ENVBUILDER, NO_ENGINE, attempt, build_command, findings

from envbuilder.lock import Lock

pytestmark = pytest.mark.builds

USER, PASSWORD = "reader", "tr0ub4dor-and-3-horses"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode())
PLANTED = (PASSWORD.encode(), BASIC)


@contextmanager
def guarded_index(lock: Lock) -> Iterator[str]:
    """A package index on loopback that shows its wheels to that user alone; gives its host and port."""
    wheels = {one.filename: one for one in lock.wheels}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization", "").encode() != b"Basic " + BASIC:
                self.answer(401, b"")
                return
            name = self.path.rpartition("/")[2]
            if name in wheels:
                digest = wheels[name].sha256
                self.answer(200, (CACHE / "artefacts" / digest[:2] / digest).read_bytes())
                return
            project = self.path.strip("/").rpartition("/")[2]
            links = [
                f'<a href="/files/{name}#sha256={one.sha256}">{name}</a>'
                for name, one in wheels.items()
                if re.sub(r"[-_.]+", "-", one.name).lower() == project
            ]
            page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
            self.answer(200 if links else 404, page.encode(), "text/html")

        def answer(self, status: int, content: bytes, kind: str = "application/octet-stream") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.end_headers()
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


@pytest.fixture
def tiny(bench: Bench) -> tuple[Path, Lock, Path]:
    """The tiny recipe, its lock, and a cache that lacks the wheels."""
    cache = bench.cache(1)
    for wheel in bench.lock.wheels:
        (cache / "artefacts" / wheel.sha256[:2] / wheel.sha256).unlink()
    return bench.recipe, bench.lock, cache


def environment(cache: Path, home: Path, index: str) -> dict[str, str]:
    return NO_ENGINE | {
        "ENVBUILDER_CACHE": str(cache), "ENVBUILDER_INDEX": index, "ENVBUILDER_PYTORCH_INDEX": index,
        "ENVBUILDER_FOLDERS": "/nonexistent", "HOME": str(home),
    }  # fmt: skip


def keep_password(home: Path, how: str, host: str) -> str:
    """Put the password where people keep one; returns the index's URL as it is then configured."""
    home.mkdir()
    if how == "in the address":
        return f"http://{USER}:{PASSWORD}@{host}/simple/"
    netrc = home / ".netrc"
    netrc.write_text(f"machine {host.partition(':')[0]} login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    return f"http://{host}/simple/"


def holding(*folders: Path) -> list[str]:
    """Every file below the folders that holds the password, in clear or as it is sent; layers and SIFs are unpacked."""
    found = []
    for path in (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()):
        content = path.read_bytes()
        if content.startswith(zstandard.FRAME_HEADER):
            content = zstandard.ZstdDecompressor().stream_reader(content).read()
        if any(secret in content for secret in PLANTED):
            found.append(str(path))
    return found


@pytest.mark.parametrize("how", ["in the address", "in the netrc"])
def test_a_password_opens_the_index_and_stands_in_nothing(tiny, spacious: Path, how: str):
    recipe, lock, cache = tiny
    with guarded_index(lock) as host:
        url = keep_password(spacious / "home", how, host)
        env = environment(cache, spacious / "home", url)
        ended = attempt(*build_command(recipe, spacious / "out"), "-vv", env=env)
        assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    said = (ended.stdout + ended.stderr).encode()
    assert [secret for secret in PLANTED if secret in said] == []
    assert holding(cache, spacious / "out", recipe.parent) == []
    assert (spacious / "out/tiny.log").stat().st_size > 0


@pytest.mark.parametrize("verb", ["build", "lock"])
def test_an_error_does_not_tell_the_password(tiny, spacious: Path, verb: str):
    """The index refuses it, knows nothing of the packages, or is not there."""
    recipe, lock, cache = tiny
    wrong = f"http://{USER}:{PASSWORD}@127.0.0.1:1/simple/"  # nobody listens there
    with guarded_index(lock) as host:
        for url in (
            wrong,
            f"http://other:{PASSWORD}@{host}/simple/",
            f"http://{USER}:{PASSWORD}@{host}/empty/no/",
        ):
            env = environment(cache, spacious, url)
            command = build_command(recipe, spacious / "out") if verb == "build" else (
                ENVBUILDER, "lock", recipe, "--upgrade", "numpy", "--json",
            )  # fmt: skip
            ended = attempt(*command, "-vv", env=env)
            if ended.returncode == 0:
                continue
            assert ended.returncode in (3, 5), ended.stdout + ended.stderr[-2000:]
            assert findings(ended)[0]["message"]
            said = (ended.stdout + ended.stderr).encode()
            assert [secret for secret in PLANTED if secret in said] == [], said
    assert holding(spacious / "out", recipe.parent) == []


def test_the_search_for_a_secret_finds_one(spacious: Path):
    """Else the tests above could not fail."""
    for name, content in {"plain": PLANTED[0], "sent": PLANTED[1]}.items():
        (spacious / name).write_bytes(b"x" + content)
    (spacious / "layer").write_bytes(zstandard.ZstdCompressor().compress(b"y" * 9999 + PLANTED[0]))
    (spacious / "clean").write_bytes(b"nothing")
    assert [Path(path).name for path in holding(spacious)] == ["layer", "plain", "sent"]
