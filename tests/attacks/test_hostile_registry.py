"""Registries and token services that attack whoever asks them."""

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import Descriptor, make_index, make_manifest
from envbuilder.artifacts.oci.naming import Reference
from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import AccessError, ContentError, RegistryError
from envbuilder.registry.client import Client
from envbuilder.registry.download import MOST_PAGES, fetch_blob, read_blob, read_manifest, read_referrers
from envbuilder.registry.upload import Source, push_blob
from envbuilder.sources.http import RequestLimits
from tests.support.attacker import ENDLESS, Attacker, Sent, attacker, reply, then
from tests.support.bounded import within
from tests.support.runner import FakeRunner

pytestmark = pytest.mark.usefixtures("directly")
SECRET = "s3cr3t-planted"
SHORT = RequestLimits(window=0.4, floor=4096, answer=1.0)
BLOB = bytes(range(256)) * 64
MANIFEST = "/v2/team/a/manifests/1"
UPLOADS = "/v2/team/a/blobs/uploads/"
TAGGED = make_manifest(
    config=Descriptor(media_type="application/x", digest=sha256_bytes(b"{}"), size=2),
    layers=[],
    annotations={},
)
REFERRERS = f"/v2/team/a/referrers/sha256:{TAGGED.digest}"


def make_client(server: Attacker, home: Path, *, token: str = "") -> Client:
    """A client that has credentials for the server."""
    secret = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    entry = {"identitytoken": token} if token else {"auth": secret}
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker/config.json").write_text(json.dumps({"auths": {server.host: entry}}))
    certificates = {"SSL_CERT_FILE": str(server.certificates)} if server.certificates else {}
    return Client({"HOME": str(home), **certificates}, FakeRunner(), limits=SHORT)


def here(server: Attacker) -> Reference:
    return Reference(registry=server.host, repository="team/a", tag="1")


def challenge(realm: str) -> bytes:
    return reply(401, b"{}", f'WWW-Authenticate: Bearer realm="{realm}",service="s"')


class Silent:
    def advance(self, count: int, /) -> None:
        pass


def push(server: Attacker, home: Path) -> None:
    blob = Descriptor(digest=sha256_bytes(BLOB), size=len(BLOB))
    push_blob(
        make_client(server, home), here(server), Source(blob=blob, content=BLOB), progress=Silent(), stop=threading.Event()
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- realms


def test_a_token_is_read_from_no_file_of_this_machine(server: Attacker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(json.dumps({"token": SECRET}))
    server.answers[MANIFEST] = challenge(f"file://{tmp_path}/token")
    with pytest.raises(RegistryError, match="expected an address of HTTP"):
        read_manifest(make_client(server, tmp_path), here(server))
    assert SECRET not in server.told()


@pytest.mark.parametrize(
    "realm", ["ftp://127.0.0.1/x", "data:,{}", "http://[", "//[", "http://127.0.0.1:x/", "javascript:x"]
)
def test_a_realm_that_is_no_address_of_http_is_refused(server: Attacker, tmp_path: Path, realm: str) -> None:
    server.answers[MANIFEST] = challenge(realm)
    with pytest.raises(RegistryError, match="it names"):
        read_manifest(make_client(server, tmp_path), here(server))


def test_a_realm_in_clear_text_at_another_host_gets_no_password(tmp_path: Path, server: Attacker) -> None:
    """The registry is loopback, so plain HTTP is allowed to it, and to nobody else."""
    server.answers[MANIFEST] = challenge("http://tokens.test/token")
    with pytest.raises(AccessError, match="without encryption"):
        read_manifest(make_client(server, tmp_path), here(server))


def test_a_registry_with_tls_has_no_realm_in_clear_text(tmp_path: Path, elsewhere: Attacker) -> None:
    with attacker(tmp_path, host="0.0.0.0") as server:
        server.answers[MANIFEST] = challenge(f"{elsewhere.url}token")
        with pytest.raises(RegistryError, match="without encryption"):
            read_manifest(make_client(server, tmp_path), here(server))
    assert not elsewhere.asked


def test_the_challenge_of_another_host_is_not_answered(
    server: Attacker, elsewhere: Attacker, tmp_path: Path
) -> None:
    server.answers[MANIFEST] = reply(307, b"", f"Location: {elsewhere.url}x")
    elsewhere.answers["/x"] = challenge(f"{elsewhere.url}token")
    elsewhere.answers["/token"] = reply(200, b'{"token": "x"}')
    with pytest.raises(AccessError):
        read_manifest(make_client(server, tmp_path), here(server))
    assert [request.path for request in elsewhere.asked] == ["/x"]


def test_an_identity_token_is_not_redirected(server: Attacker, elsewhere: Attacker, tmp_path: Path) -> None:
    server.answers[MANIFEST] = challenge("/token")
    server.answers["/token"] = reply(307, b"", f"Location: {elsewhere.url}token")
    with pytest.raises(RegistryError, match="it redirects what is sent"):
        read_manifest(make_client(server, tmp_path, token=SECRET), here(server))
    assert not elsewhere.asked


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"[" * 30_000, b'{"token": NaN}', b'{"token": 5}', b'{"token": ' + b"9" * 5_000 + b"}", b"\xff",
     b'{"token": "a\\r\\nX-Injected: 1"}', '{"token": "\u20ac"}'.encode(), b'{"token": {"a": []}}', b'{"access_token": ["x"]}'],
)  # fmt: skip
def test_a_token_that_is_none_is_told(server: Attacker, tmp_path: Path, answer: bytes) -> None:
    server.answers[MANIFEST] = challenge("/token")
    server.answers["/token"] = reply(200, answer)
    with pytest.raises(AccessError, match="sends no token"):
        read_manifest(make_client(server, tmp_path), here(server))


def test_a_long_challenge_is_read_at_once(server: Attacker, tmp_path: Path) -> None:
    server.answers[MANIFEST] = reply(401, b"{}", "WWW-Authenticate: Bearer " + "a" * 65_000)
    with within(5), pytest.raises(RegistryError):
        read_manifest(make_client(server, tmp_path), here(server))


# ---------------------------------------------------------------------------------------------- Location and Link


def test_an_upload_does_not_leave_tls(tmp_path: Path, elsewhere: Attacker) -> None:
    with attacker(tmp_path, host="0.0.0.0") as server:
        for place in (f"{elsewhere.url}u", f"http://{server.host}/u"):
            server.answers[UPLOADS] = reply(202, b"", f"Location: {place}")
            with pytest.raises(RegistryError, match="without encryption"):
                push(server, tmp_path)
    assert not elsewhere.asked


@pytest.mark.parametrize("place", ["file:///tmp/x", "ftp://127.0.0.1/x", "http://["])
def test_an_upload_goes_to_an_address_of_http(server: Attacker, tmp_path: Path, place: str) -> None:
    server.answers[UPLOADS] = reply(202, b"", f"Location: {place}")
    with pytest.raises(RegistryError, match="it names"):
        push(server, tmp_path)


def test_an_upload_to_another_port_has_no_password(
    server: Attacker, elsewhere: Attacker, tmp_path: Path
) -> None:
    asked = []

    def begin() -> Iterator[bytes]:
        asked.append(server.asked[-1].authorization)
        place = reply(202, b"", f"Location: {elsewhere.url}u")
        yield place if asked[-1] else reply(401, b"{}", 'WWW-Authenticate: Basic realm="r"')

    server.answers[UPLOADS] = begin
    elsewhere.answers["/u"] = reply(201)
    push(server, tmp_path)
    assert asked[-1]
    assert [request.authorization for request in elsewhere.asked] == [""]


def test_a_page_of_referrers_at_another_port_gets_no_password(
    server: Attacker, elsewhere: Attacker, tmp_path: Path
) -> None:
    empty = make_index([]).content

    def first() -> Iterator[bytes]:
        if server.asked[-1].authorization:
            yield reply(200, empty, f'Link: <{elsewhere.url}next>; rel="next"')
        else:
            yield reply(401, b"{}", 'WWW-Authenticate: Basic realm="r"')

    server.answers[REFERRERS] = first
    elsewhere.answers["/next"] = reply(200, empty)
    read_referrers(make_client(server, tmp_path), here(server).with_digest(TAGGED.digest))
    assert [request.authorization for request in elsewhere.asked] == [""]


@pytest.mark.parametrize("following", [REFERRERS, f"{REFERRERS}?page=2"])
def test_pages_of_referrers_without_end_are_ended(server: Attacker, tmp_path: Path, following: str) -> None:
    server.answers[REFERRERS] = reply(200, make_index([]).content, f'Link: <{following}>; rel="next"')
    with pytest.raises(ContentError, match=f"more than {MOST_PAGES} pages"):
        read_referrers(make_client(server, tmp_path), here(server).with_digest(TAGGED.digest))
    assert len(server.asked) <= MOST_PAGES


def test_a_page_of_referrers_is_no_file(server: Attacker, tmp_path: Path) -> None:
    planted = Descriptor(media_type=TAGGED.media_type, digest=sha256_bytes(b"planted"), size=1)
    (tmp_path / "index").write_bytes(make_index([planted]).content)
    following = f'Link: <file://{tmp_path}/index>; rel="next"'
    server.answers[REFERRERS] = reply(200, make_index([]).content, following)
    listed = read_referrers(make_client(server, tmp_path), here(server).with_digest(TAGGED.digest))
    assert listed == ()


# ----------------------------------------------------------------------------------------------- what is answered

ENDLESS_ANSWERS = {
    "slow": then(ENDLESS, b"x", 0.05),
    "endless": then(ENDLESS, b"x" * 65_536),
    "both": then(ENDLESS, b"x" * 2_048, 0.02),
}


@pytest.mark.parametrize("answer", ENDLESS_ANSWERS.values(), ids=ENDLESS_ANSWERS)
@pytest.mark.parametrize("part", ["manifest", "blob", "token"])
def test_an_answer_without_end_is_ended(server: Attacker, tmp_path: Path, answer: Sent, part: str) -> None:
    client, blob = make_client(server, tmp_path), Descriptor(digest=sha256_bytes(BLOB), size=len(BLOB) << 4)
    place = f"/v2/team/a/blobs/sha256:{blob.digest}"
    server.answers = {
        MANIFEST: challenge("/token") if part == "token" else answer,
        "/token": answer,
        place: answer,
    }
    with within(5), pytest.raises(RegistryError, match=r"too slowly|more than \d+ bytes|not complete"):
        read_blob(client, here(server), blob) if part == "blob" else read_manifest(client, here(server))
    assert server.sent < 64 << 20


def test_a_refusal_without_end_is_ended(server: Attacker, tmp_path: Path) -> None:
    server.answers[MANIFEST] = then(b"HTTP/1.1 403 X\r\nContent-Length: 1000000000000\r\n\r\n", b"x" * 65_536)
    with pytest.raises(AccessError):
        read_manifest(make_client(server, tmp_path), here(server))
    assert server.sent < 64 << 20


def test_referrers_without_end_are_ended(server: Attacker, tmp_path: Path) -> None:
    server.answers[REFERRERS] = ENDLESS_ANSWERS["slow"]
    with within(5):
        assert read_referrers(make_client(server, tmp_path), here(server).with_digest(TAGGED.digest)) == ()


@pytest.mark.parametrize("kind", ["slow", "endless"])
def test_a_blob_without_end_is_ended(server: Attacker, tmp_path: Path, kind: str) -> None:
    blob = Descriptor(digest=sha256_bytes(BLOB), size=len(BLOB))
    server.answers[f"/v2/team/a/blobs/sha256:{blob.digest}"] = ENDLESS_ANSWERS[kind]
    with within(5), pytest.raises(RegistryError, match=r"too slowly|larger than"):
        fetch_blob(
            make_client(server, tmp_path), here(server), blob, tmp_path / "p/x", progress=Silent(), stop=threading.Event()
        )  # fmt: skip


def nested(depth: int) -> bytes:
    deep = b"[" * depth + b"]" * depth
    return b'{"schemaVersion": %b, "mediaType": %b}' % (deep, deep)


def described(rest: bytes) -> bytes:
    """Return a manifest whose config has a digest, and then this."""
    return b'{"schemaVersion": 2, "config": {"digest": "sha256:%b", %b' % (b"a" * 64, rest)


MANIFESTS = {
    "negative": described(b'"size": -1}, "layers": []}'),
    "number": described(b'"size": %b}}' % (b"9" * 5_000)),
    "no number": described(b'"size": NaN}}'),
    "infinite": described(b'"size": 1e999}}'),
    "bytes": b'{"schemaVersion": 2, "config": "\xff"}',
    "half a character": described(b'"size": 1, "mediaType": "\\ud800"}}'),
    "its bytes": described(b'"size": 1, "mediaType": "\xed\xa0\x80"}}'),
    "size": described(b'"size": 1%b}}' % (b"0" * 400)),
    "version": b'{"schemaVersion": [2]}',
    "type": b'{"schemaVersion": 2, "mediaType": {"a": []}}',
    "layers": described(b'"size": 1}, "layers": 3}'),
    "names": b'{"schemaVersion": 2, "manifests": [{"digest": "sha256:%b", "size": 1, "annotations": {"a": 1}}]}' % (b"a" * 64),
    **{f"nested {depth}": nested(depth) for depth in (*range(700, 1000, 30), 5_000, 100_000)},
}  # fmt: skip


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_is_none_is_told(server: Attacker, tmp_path: Path, content: bytes) -> None:
    server.answers[MANIFEST] = reply(200, content, kind=TAGGED.media_type)
    with pytest.raises(ContentError, match="cannot be used"):
        read_manifest(make_client(server, tmp_path), here(server))


@pytest.mark.parametrize("depth", [*range(700, 1000, 30), 30_000])
def test_errors_that_are_nested_deeply_are_passed_over(server: Attacker, tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = f'{{"errors": [{{"code": {deep}, "message": {deep}}}]}}'
    server.answers[MANIFEST] = reply(403, text.encode())
    with pytest.raises(AccessError, match="refuses access"):
        read_manifest(make_client(server, tmp_path), here(server))
