"""Run a real registry on loopback, behind a proxy that makes the faults a test asks for."""

import contextlib
import http.client
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.support import bases
from tests.support.serving import Quiet, serving

USER = "ann"
PASSWORD = "s3cr3t-planted"
_PATIENCE = 300  # seconds: a registry answers once it has written, and other tests write to the same disk
HTPASSWD = "ann:$2b$04$lQmQ2Hwmvh62vzsf1aZS.uf1Pam4tNDrAGBRcUISwzT3EuJuAek8q"


@dataclass
class Registry:
    """docker-registry in a folder of its own."""

    host: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def port(self) -> int:
        return int(self.host.rpartition(":")[2])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It answers nobody."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def registry_command(folder: Path, address: str, *, login: bool = False) -> tuple[str, ...]:
    """Write the settings of a registry and return the command that serves `folder` at `address`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(HTPASSWD + "\n")
    auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n" if login else ""
    settings = folder / "settings.yml"
    settings.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '{address}'}}\n{auth}"
    )
    return ("docker-registry", "serve", str(settings))


@contextlib.contextmanager
def registry(folder: Path, *, login: bool = False) -> Iterator[Registry]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = registry_command(folder, f"127.0.0.1:{port}", login=login)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            begin = time.monotonic()
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                is_waiting = process.poll() is None and time.monotonic() - begin < _PATIENCE
                assert is_waiting, (folder / "log").read_text()
                time.sleep(0.05)
            yield Registry(host=f"127.0.0.1:{port}", folder=folder, process=process)
        finally:
            process.terminate()
            process.wait()


@dataclass
class Fault:
    """A fault of one answer or request. The first fault that matches is used and removed."""

    method: str = ""  # "" matches every method
    path: str = ""  # a part of the path
    status: int = 0  # answer with this status without asking the registry
    retry_after: str = ""
    cut_answer: int = -1  # bytes of the answer's body before the connection ends
    cut_request: int = -1  # bytes of the request's body
    flip: bool = False  # one bit of the answer's body
    delay: float = 0.0  # seconds before the answer
    after: int = 0  # matching requests that pass first
    hold: float = 0.0  # seconds between the last byte sent and the end of the connection
    no_range: bool = False  # the whole blob, whatever range is asked for

    def fits(self, method: str, path: str) -> bool:
        return self.method in ("", method) and self.path in path


@dataclass
class Proxy:
    host: str = ""
    faults: list[Fault] = field(default_factory=list)
    used: list[Fault] = field(default_factory=list)
    resumed: int = 0  # bytes that a Range request or a later piece did not ask for or send again
    received: int = 0  # bytes of blobs that were uploaded through here
    sent: int = 0  # bytes of answers
    asked: list[tuple[str, str]] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, method: str, path: str) -> Fault:
        with self.guard:
            self.asked.append((method, path))
            for fault in self.faults:
                if not fault.fits(method, path):
                    continue
                if fault.after:
                    fault.after -= 1
                else:
                    self.faults.remove(fault)
                    self.used.append(fault)
                    return fault
        return Fault()


@contextlib.contextmanager
def faulty(behind: Registry) -> Iterator[Proxy]:
    """Run a proxy that passes on whole requests, as nginx does by default."""
    state = Proxy()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            fault = state.take(self.command, self.path)
            body = self.body(fault)
            if body is None:
                return
            time.sleep(fault.delay)
            if fault.status:
                self.send(
                    fault.status, {"Retry-After": fault.retry_after} if fault.retry_after else {}, b"{}"
                )
                return
            self.count(body)
            onward = http.client.HTTPConnection("127.0.0.1", behind.port, timeout=60)
            try:
                asked = dict(self.headers)
                if fault.no_range:
                    asked.pop("Range", None)
                onward.request(self.command, self.path, body=body, headers=asked)
                answer = onward.getresponse()
                content = answer.read()
                headers = {
                    name: value
                    for name, value in answer.getheaders()
                    if name not in ("Date", "Transfer-Encoding")
                }
            finally:
                onward.close()
            if fault.flip and content:
                content = bytes([content[0] ^ 1]) + content[1:]
            self.send(answer.status, headers, content, cut=fault.cut_answer, hold=fault.hold)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = answer

        def body(self, fault: Fault) -> bytes | None:
            """Return the whole body, or None if the fault ends the connection within it."""
            size = int(self.headers.get("Content-Length", 0))
            if 0 <= fault.cut_request < size:
                self.rfile.read(fault.cut_request)
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            return self.rfile.read(size)

        def count(self, body: bytes) -> None:
            start = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
            piece = self.headers.get("Content-Range", "").partition("-")[0]
            with state.guard:
                state.resumed += int(start or 0) + (int(piece or 0) if self.command == "PATCH" else 0)
                state.received += len(body) if "/blobs/uploads/" in self.path else 0

        def send(
            self, status: int, headers: dict[str, str], content: bytes, *, cut: int = -1, hold: float = 0
        ) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name != "Content-Length":
                    self.send_header(name, value)
            length = (
                headers.get("Content-Length", str(len(content)))
                if self.command == "HEAD"
                else str(len(content))
            )
            self.send_header("Content-Length", length)
            self.end_headers()
            if 0 <= cut < len(content):
                content, self.close_connection = content[:cut], True
            if self.command != "HEAD":
                with state.guard:
                    state.sent += len(content)
                with contextlib.suppress(OSError):
                    self.wfile.write(content)
                    self.wfile.flush()
            time.sleep(hold)

    with serving(Handler) as state.host:
        yield state


IMAGE = "application/vnd.oci.image.manifest.v1+json"


def upload(host: str, repository: str, data: bytes) -> None:
    began = requests.post(f"http://{host}/v2/{repository}/blobs/uploads/", timeout=_PATIENCE)
    place = began.headers["Location"]
    mark = "&" if "?" in place else "?"
    done = requests.put(f"{place}{mark}digest={bases.sha256(data)}", data=data, timeout=_PATIENCE)
    assert done.status_code == 201, done.text


def put_manifest(host: str, repository: str, tag: str, text: bytes, kind: str) -> None:
    url = f"http://{host}/v2/{repository}/manifests/{tag}"
    answer = requests.put(url, data=text, headers={"Content-Type": kind}, timeout=_PATIENCE)
    assert answer.status_code == 201, answer.text


def push(host: str, name: str, packed: bases.Packed, tag: str = "1") -> None:
    for data in (packed.config, *packed.blobs):
        upload(host, f"site/{name}", data)
    put_manifest(host, f"site/{name}", tag, packed.manifest, IMAGE)
