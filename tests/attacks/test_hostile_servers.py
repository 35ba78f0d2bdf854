"""Servers, mirrors and package indexes that attack whoever asks them."""

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.errors import FetchError
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.fetch.source_client import MOST_MARKS, Index
from envbuilder.sources.http import PAGE, RequestLimits, SourceError
from envbuilder.sources.http.reachable import reach
from envbuilder.sources.http.session import HttpSession
from envbuilder.sources.names import Sources
from tests.support.attacker import CHUNKED, ENDLESS, HEAD, Attacker, Sent, attacker, reply, then
from tests.support.bounded import within
from tests.support.locks import CONTENT, make_deb, make_wheel

pytestmark = pytest.mark.usefixtures("directly")
SECRET = "s3cr3t-planted"
SHORT = RequestLimits(window=0.4, floor=4096, answer=1.0)
DEB = "/debian/pool/tool_1.0_amd64.deb"
PAGE_OF_TOOL = "/simple/tool/"


@pytest.fixture
def fetcher(server: Attacker, tmp_path: Path) -> Fetcher:
    return make_fetcher(server, tmp_path)


def make_fetcher(
    server: Attacker, tmp_path: Path, *, user: str = "", limits: RequestLimits | None = SHORT
) -> Fetcher:
    url = server.url.replace("//", f"//{user}@") if user else server.url
    sources = Sources(
        debian=(f"{url}debian/",), indexes=(f"{url}simple/",), snapshot=f"{url}snapshot/", certificates=server.certificates
    )  # fmt: skip
    return Fetcher(Store(tmp_path / "cache"), lambda: sources, limits=limits)


def moved(place: str) -> bytes:
    return reply(302, b"", f"Location: {place}")


def link(url: str) -> bytes:
    return reply(200, f'<a href="{url}">tool-1.0-py3-none-any.whl</a>'.encode(), kind="text/html")


def use_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "netrc"
    path.write_text(f"machine 127.0.0.1 login ann password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(path))


# ----------------------------------------------------------------------------------------- where a server may lead


@pytest.mark.parametrize(
    "place", ["file://{}", "ftp://127.0.0.1/x", "data:,x", "//[", "http://127.0.0.1:99999/"]
)
def test_a_redirect_leads_to_addresses_of_http_alone(
    server: Attacker, fetcher: Fetcher, tmp_path: Path, place: str
) -> None:
    secret = tmp_path / "tool_1.0_amd64.deb"
    secret.write_bytes(CONTENT)
    server.answers[DEB] = moved(place.format(secret))
    with pytest.raises(FetchError, match="it names") as caught:
        fetcher.fetch([make_deb()])
    assert server.url in caught.value.message


def test_a_redirect_to_a_fifo_does_not_hang(server: Attacker, fetcher: Fetcher, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    server.answers["/list"] = moved(f"file://{tmp_path}/fifo")
    with pytest.raises(SourceError, match="expected an address of HTTP"):
        fetcher.page(f"{server.url}list")


def test_a_fifo_in_a_folder_of_the_user_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    os.mkfifo(tmp_path / "pool/tool_1.0_amd64.deb")
    sources = Sources(debian=(f"{tmp_path.as_uri()}/",), snapshot="")
    with pytest.raises(FetchError, match="not found"):
        Fetcher(Store(tmp_path / "cache"), lambda: sources).fetch([make_deb()])


def test_redirects_without_end_are_ended(server: Attacker, fetcher: Fetcher) -> None:
    server.answers[DEB] = moved(DEB)
    with pytest.raises(FetchError, match="redirects more than"):
        fetcher.fetch([make_deb()])
    assert len(server.asked) < 20


def test_the_body_of_a_redirect_is_not_read(server: Attacker, fetcher: Fetcher) -> None:
    head = f"HTTP/1.1 302 X\r\nLocation: {server.url}file\r\nContent-Length: 1000000000000\r\n\r\n".encode()
    server.answers[DEB] = then(head, b"x" * (1 << 16))
    server.answers["/file"] = reply(200, CONTENT)
    fetcher.fetch([make_deb()])
    assert server.sent < 32 << 20


def test_https_is_not_left_for_plain_http(tmp_path: Path, elsewhere: Attacker) -> None:
    elsewhere.answers["/x"] = reply(200, CONTENT)
    with attacker(tmp_path) as server:
        server.answers[DEB] = moved(f"{elsewhere.url}x")
        with pytest.raises(FetchError, match="without encryption"):
            make_fetcher(server, tmp_path, user=f"ann:{SECRET}").fetch([make_deb()])
    assert not elsewhere.asked


def test_the_password_of_an_address_stays_at_its_host_and_port(
    server: Attacker, elsewhere: Attacker, tmp_path: Path
) -> None:
    server.answers[DEB] = moved("/again")
    server.answers["/again"] = moved(f"{elsewhere.url}x")
    elsewhere.answers["/x"] = reply(200, CONTENT)
    make_fetcher(server, tmp_path, user=f"ann:{SECRET}").fetch([make_deb()])
    assert [bool(request.authorization) for request in server.asked] == [True, True]
    assert [request.authorization for request in elsewhere.asked] == [""]


@pytest.mark.parametrize("is_link", [True, False])
def test_what_netrc_has_for_a_host_is_not_sent_to_another_port(
    server: Attacker, elsewhere: Attacker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_link: bool
) -> None:
    """On a machine that several users share, the other port may be another user's."""
    use_netrc(monkeypatch, tmp_path)
    server.answers[PAGE_OF_TOOL] = link(f"{elsewhere.url}x" if is_link else "/file")
    server.answers["/file"] = moved(f"{elsewhere.url}x")
    elsewhere.answers["/x"] = reply(200, CONTENT)
    make_fetcher(server, tmp_path).fetch([make_wheel()])
    assert {bool(request.authorization) for request in server.asked} == {True}
    assert [request.authorization for request in elsewhere.asked] == [""]


def test_a_cookie_is_not_sent_to_another_port(
    server: Attacker, elsewhere: Attacker, fetcher: Fetcher
) -> None:
    cookie = f"Set-Cookie: session={SECRET}; Path=/"
    server.answers[DEB] = reply(302, b"", f"Location: {elsewhere.url}x", cookie)
    elsewhere.answers["/x"] = reply(200, CONTENT)
    fetcher.fetch([make_deb()])
    assert [request.cookie for request in elsewhere.asked] == [""]


def test_what_is_sent_is_not_redirected_to_another_port(server: Attacker, elsewhere: Attacker) -> None:
    server.answers["/token"] = reply(307, b"", f"Location: {elsewhere.url}token")
    with pytest.raises(SourceError, match="it redirects what is sent"):
        HttpSession(None).send("POST", f"{server.url}token", body=f"refresh_token={SECRET}".encode())
    assert not elsewhere.asked


# ------------------------------------------------------------------------------------------- what an index may name


@pytest.mark.parametrize(
    "named", ["file://{}/tool-1.0-py3-none-any.whl", "file://{}/fifo", "ftp://127.0.0.1/x", "data:,x"]
)
def test_an_index_of_the_network_names_no_file_of_this_machine(
    server: Attacker, fetcher: Fetcher, tmp_path: Path, named: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "tool-1.0-py3-none-any.whl").write_bytes(CONTENT)
    server.answers[PAGE_OF_TOOL] = link(named.format(tmp_path))
    with pytest.raises(FetchError, match=r"there is no `tool-1\.0-py3-none-any\.whl`"):
        fetcher.fetch([make_wheel()])


HOSTILE_PAGES = {
    "nested": b"[" * 200_000, "nested files": b'{"files": ' * 5_000,
    "number": b'{"meta": {"api-version": "1.0"}, "name": "tool", "files": [{"size": ' + b"9" * 5_000 + b"}]}",
    "bytes": b'\xff\xfe{"files": []}', "other": b'{"meta": 3, "name": [], "files": {}}', "list": b"[]",
    "nothing": b"",
    "address": b'{"meta": {"api-version": "1.0"}, "name": "tool", "files": [{"filename": "a", "url": "http://[", "hashes": {}}]}',
    "version": b'{"meta": {"api-version": "99.0"}, "name": "tool", "files": []}',
}  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE_PAGES.values(), ids=HOSTILE_PAGES)
def test_a_page_that_is_no_index_ends_in_an_error_with_its_address(
    server: Attacker, fetcher: Fetcher, body: bytes
) -> None:
    server.answers[PAGE_OF_TOOL] = reply(200, body, kind="application/vnd.pypi.simple.v1+json")
    with pytest.raises(FetchError, match="not a package index") as caught:
        fetcher.fetch([make_wheel()])
    assert f"{server.url}simple/tool/" in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        b'<a href="http://[">x</a>',
        b'<base href="http://["><a href="x">x</a>',
        b"<![",
        b'<meta name="pypi:repository-version" content="x">',
    ],
)
@pytest.mark.parametrize(
    "kind", ["text/html", "text/html; charset=none-such", "x", ";", "text/html; charset="]
)
def test_html_that_is_no_index_ends_in_an_error(
    server: Attacker, fetcher: Fetcher, body: bytes, kind: str
) -> None:
    server.answers[PAGE_OF_TOOL] = reply(200, body, kind=kind)
    with pytest.raises(FetchError):
        fetcher.fetch([make_wheel()])


def test_a_page_of_too_many_elements_is_not_parsed(server: Attacker, fetcher: Fetcher) -> None:
    server.answers[PAGE_OF_TOOL] = reply(200, b"<a>" * (MOST_MARKS + 1), kind="text/html")
    with pytest.raises(FetchError, match="too many elements"):
        fetcher.fetch([make_wheel()])


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 100_000,
        b'{"fileinfo": NaN}',
        b'{"fileinfo": {"x": [{"name": 1}]}, "y": ' + b"9" * 5_000 + b"}",
        b"\xff",
    ],
)
def test_an_answer_of_the_archive_of_all_days_that_is_none_is_told(
    server: Attacker, fetcher: Fetcher, answer: bytes
) -> None:
    server.answers["/snapshot/mr/binary/tool/1.0/binfiles"] = reply(200, answer)
    with pytest.raises(FetchError, match="no answer of an archive"):
        fetcher.fetch([make_deb()])


@pytest.mark.parametrize("size", ["-5", "9" * 5_000, "1e3", "1_0", "", "5, 6", "9" * 16])
def test_a_size_that_is_none_is_told(server: Attacker, fetcher: Fetcher, size: str) -> None:
    server.answers["/x"] = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
    with pytest.raises(FetchError):
        fetcher.measure([f"{server.url}x"])


@pytest.mark.parametrize(
    "head",
    [b"\x00\x01\x02", b"HTTP/1.1 99999 X\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", CHUNKED + b"zz\r\nx", CHUNKED + b"-5\r\nx", CHUNKED + b"-1\r\nx",
     CHUNKED + b"9" * 6_000 + b"\r\nx"],
    ids=["bytes", "status", "headers", "lengths", "chunk", "negative", "to the end", "number"],
)  # fmt: skip
def test_an_answer_that_is_no_http_is_told(server: Attacker, fetcher: Fetcher, head: bytes) -> None:
    def once() -> Iterator[bytes]:
        yield head
        raise OSError  # end the connection

    server.answers["/x"] = once
    with pytest.raises(SourceError):
        fetcher.page(f"{server.url}x")


# ---------------------------------------------------------------------------------------- answers without an end


SLOW_ANSWERS: dict[str, Sent] = {
    "headers": then(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.05),
    "lines": then(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.1),
    "body": then(ENDLESS, b"x", 0.05),
    "chunks": then(CHUNKED, b"1\r\nx\r\n", 0.05),
    "a chunk": then(CHUNKED + b"ffffff\r\n", b"x", 0.05),
    "a chunk's length": then(CHUNKED, b"0", 0.05),
    "trailers": then(CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n", 0.05),
}


@pytest.mark.parametrize("answer", SLOW_ANSWERS.values(), ids=SLOW_ANSWERS)
@pytest.mark.parametrize("is_download", [True, False])
def test_a_byte_now_and_then_ends_after_one_window(
    server: Attacker, fetcher: Fetcher, answer: Sent, *, is_download: bool
) -> None:
    server.answers[DEB] = answer
    with within(5), pytest.raises((FetchError, SourceError), match="comes too slowly"):
        fetcher.fetch([make_deb()]) if is_download else fetcher.page(f"{server.url}{DEB[1:]}")


ENDLESS_ANSWERS: dict[str, Sent] = {
    "interim answers": then(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "headers of interim answers": then(b"HTTP/1.1 100 Continue\r\n", b"a: b\r\n" * 10_000),
    "a chunk's length": then(CHUNKED, b"0" * (1 << 16)),
    "a chunk to the end": then(CHUNKED + b"-1\r\n", b"x" * (1 << 16)),
    "trailers": then(CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n" * 10_000),
    "a trailer": then(CHUNKED + b"1\r\nx\r\n0\r\n", b"a" * (1 << 16)),
}


@pytest.mark.parametrize("answer", ENDLESS_ANSWERS.values(), ids=ENDLESS_ANSWERS)
def test_frames_without_content_are_ended(server: Attacker, fetcher: Fetcher, answer: Sent) -> None:
    server.answers[DEB] = answer
    with within(10), pytest.raises(FetchError):
        fetcher.fetch([make_deb()])
    assert server.sent < 256 << 20


@pytest.mark.parametrize("head", [ENDLESS, CHUNKED, HEAD + b"\r\n"], ids=["length", "chunked", "neither"])
@pytest.mark.parametrize("path", [PAGE_OF_TOOL, "/snapshot/mr/binary/tool/1.0/binfiles"])
def test_a_page_without_end_is_ended_at_its_bound(
    server: Attacker, tmp_path: Path, head: bytes, path: str
) -> None:
    chunk = b"x" * (1 << 20)
    server.answers[path] = then(head, b"100000\r\n" + chunk + b"\r\n" if head is CHUNKED else chunk)
    fetcher = make_fetcher(server, tmp_path, limits=RequestLimits(answer=60))
    with pytest.raises(FetchError, match=f"more than {PAGE} bytes"):
        fetcher.fetch([make_wheel() if path == PAGE_OF_TOOL else make_deb()])
    assert server.sent < 4 * PAGE


def test_a_page_that_is_slow_but_not_too_slow_has_a_deadline(server: Attacker, fetcher: Fetcher) -> None:
    server.answers["/list"] = then(ENDLESS, b"x" * 4096, 0.05)
    with within(5), pytest.raises(SourceError, match="it was not complete in 1 s"):
        fetcher.page(f"{server.url}list")


def test_a_download_keeps_no_byte_above_its_size(server: Attacker, fetcher: Fetcher, tmp_path: Path) -> None:
    server.answers[DEB] = then(ENDLESS, CONTENT)
    with pytest.raises(FetchError, match="larger than"):
        fetcher.fetch([make_deb()])
    assert not [path for path in (tmp_path / "cache/partial").iterdir() if path.stat().st_size]


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "br", "gzip, gzip"])
def test_a_compressed_page_counts_with_its_content(server: Attacker, fetcher: Fetcher, encoding: str) -> None:
    bomb = gzip.compress(bytes(PAGE + 1))
    server.answers["/list"] = reply(200, bomb, f"Content-Encoding: {encoding}")
    with pytest.raises(SourceError, match=r"bytes, compressed|not asked for"):
        fetcher.page(f"{server.url}list")


def test_a_page_that_is_compressed_unasked_is_read(server: Attacker, fetcher: Fetcher) -> None:
    server.answers["/list"] = reply(200, gzip.compress(b"content"), "Content-Encoding: gzip")
    assert fetcher.page(f"{server.url}list") == b"content"


def test_a_file_that_is_served_as_compressed_has_its_own_bytes(server: Attacker, fetcher: Fetcher) -> None:
    """Apache says so of each `.tar.gz`."""
    content = gzip.compress(CONTENT)
    server.answers[DEB] = reply(200, content, "Content-Encoding: x-gzip")
    fetcher.fetch([make_deb(content)])


def test_a_patient_server_of_a_large_file_is_not_cut(server: Attacker, tmp_path: Path) -> None:
    """The floor is for each window, and a download has no deadline of its own."""

    def pieces() -> Iterator[bytes]:
        yield f"HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n".encode()
        for at in range(0, len(CONTENT), 1 << 15):
            time.sleep(0.05)
            yield CONTENT[at : at + (1 << 15)]

    server.answers[DEB] = pieces
    make_fetcher(server, tmp_path, limits=RequestLimits(window=0.3, answer=0.5)).fetch([make_deb()])


def test_whether_a_source_answers_is_known_in_time(server: Attacker, elsewhere: Attacker) -> None:
    endless = b"HTTP/1.1 302 X\r\nLocation: /\r\nContent-Length: 1000000\r\n\r\n"
    server.answers["/"] = then(endless, b"x", 0.05)
    elsewhere.answers["/"] = reply(200, b"", "Date: Fri, 31 Dec 9999 23:59:59 -2359")
    with within(20):
        reached = reach((server.url, elsewhere.url), None)
    assert reached[0].trouble


def test_an_index_of_a_source_distribution_has_a_bound(server: Attacker) -> None:
    """`scripts/refresh_tables` reads uv's own."""
    page = b'<a href="/uv-1.0.tar.gz">uv-1.0.tar.gz</a>'
    server.answers["/simple/uv/"] = reply(200, page, kind="text/html")
    server.answers["/uv-1.0.tar.gz"] = then(ENDLESS, b"x", 0.05)
    index = Index(Sources(debian=(), indexes=(f"{server.url}simple/",)), SHORT)
    (listed,) = index.files("uv")
    with pytest.raises(FetchError, match="comes too slowly"):
        index.read(listed)
