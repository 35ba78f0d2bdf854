"""A server on loopback that sends raw bytes, as an attacker would, and records what it was asked and told."""

import contextlib
import datetime as dt
import ipaddress
import itertools
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import BytesParser
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Sent = bytes | Callable[[], Iterable[bytes]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = HEAD + b"Content-Length: 1000000000000\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    authorization: str
    cookie: str
    body: bytes


@dataclass
class Attacker:
    """`answers` has what is sent by path, without the query. Any other path gets 404."""

    host: str
    url: str
    certificates: Path | None = None
    answers: dict[str, Sent] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0  # bytes

    def told(self) -> str:
        """Return every secret-like thing that came here."""
        return "\n".join(f"{one.authorization} {one.cookie} {one.path} {one.body!r}" for one in self.asked)


def reply(status: int, body: bytes = b"", *headers: str, kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", f"Content-Type: {kind}", *headers]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


def then(head: bytes, piece: bytes, pause: float = 0.0) -> Sent:
    """Return an answer that begins with `head` and repeats `piece` without end."""

    def pieces() -> Iterator[bytes]:
        yield head
        for again in itertools.repeat(piece):
            time.sleep(pause)
            yield again

    return pieces


@contextlib.contextmanager
def attacker(folder: Path | None = None, *, host: str = "127.0.0.1") -> Iterator[Attacker]:
    """Serve until the end of the block; with a folder by TLS, with a certificate in it that the client may trust.

    The host 0.0.0.0 is loopback as well, and no client takes it for that.
    """
    context = None
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_write_certificate(folder, host))

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            if context:
                self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()
            self.request.close()

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                while line := self.rfile.readline():
                    self.answer(line.decode("latin-1"))

        def answer(self, line: str) -> None:
            method, target, _ = line.split()
            lines = list(iter(self.rfile.readline, b"\r\n"))
            headers = BytesParser().parsebytes(b"".join(lines), headersonly=True)
            state.asked.append(
                Asked(
                    method=method, path=target, authorization=headers.get("Authorization", ""),
                    cookie=headers.get("Cookie", ""), body=self.rfile.read(int(headers.get("Content-Length", 0))),
                )
            )  # fmt: skip
            sent = state.answers.get(target.partition("?")[0], reply(404))
            for piece in [sent] if isinstance(sent, bytes) else sent():
                self.request.sendall(piece)
                state.sent += len(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

        def handle_error(self, *_arguments: object) -> None:
            """Ignore clients that end the connection: that is what they should do."""

    with Server(("127.0.0.1", 0), Handler) as server:
        address = f"{host}:{server.server_address[1]}"
        scheme = "https" if folder else "http"
        state = Attacker(address, f"{scheme}://{address}/", folder / "server.pem" if folder else None)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()


def _write_certificate(folder: Path, host: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "attacker")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path
