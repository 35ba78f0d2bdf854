"""A proxy that cannot be used is blamed by its variable, and not the mirror that is asked through it."""

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.core.errors import AbsentError, AccessError, FetchError
from envbuilder.core.process import ProcessRunner
from envbuilder.sources.git import find_commit
from envbuilder.sources.http import SourceError
from envbuilder.sources.http.proxies import blame, trouble
from envbuilder.sources.http.session import HttpSession
from tests.support.serving import Quiet, ask_directly, serving


@dataclasses.dataclass
class Proxy:
    """What answers in place of a proxy: the status of each method, its headers, and what it was asked."""

    statuses: dict[str, int]
    port: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    asked: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    state = Proxy({})

    class Handler(Quiet):
        def answer(self) -> None:
            state.asked.append(f"{self.command} {self.path}")
            self.reply(state.statuses.get(self.command, 200), headers=dict(state.headers))

        do_GET = do_HEAD = do_CONNECT = answer

    with serving(Handler) as host:
        state.port = int(host.rpartition(":")[2])
        yield state


@pytest.fixture(autouse=True)
def _no_proxy_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


def pull(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Pull from a registry that is nowhere through a proxy; return what is said."""
    monkeypatch.setenv(variable, value)
    assert cli.run(["pull", "registry.invalid/team/toy:1", "--output", "/nonexistent/out"]) == 5
    return capsys.readouterr().err


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    ("value", "shown", "why", "repair"),
    [
        ("htp://PLACE", "htp://PLACE", "cannot be used: `htp` is no scheme", "http://PLACE"),
        ("PLACE", "PLACE", "cannot be used: it has no scheme", "http://PLACE"),
        ("ann:s3cr3t@PLACE", "***@PLACE", "cannot be used: it has no scheme", "http://***@PLACE"),
        ("http://ann:s3 cr3t@PLACE", "http://***@PLACE", "it has a blank, which a password writes as %20", "http://***@PLACE"),
        ("http://ann:s3/cr3t@PLACE", "http://***@PLACE", "its port is no number; a password writes / as %2F", "http://***@PLACE"),
        ("http://127.0.0.1", "http://127.0.0.1", "it names no port", "http://HOST:PORT"),
        ("http://", "http://", "it names no host", "http://HOST:PORT"),
        ("http://proxy:31x8", "http://proxy:31x8", "its port is no number", "http://HOST:PORT"),
        ("proxy:31x8", "proxy:31x8", "its port is no number", "http://HOST:PORT"),
        ("socks5h://PLACE", "socks5h://PLACE", "it is of the kind SOCKS", "http://HOST:PORT"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_named_with_what_to_write(
    value: str,
    shown: str,
    why: str,
    repair: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    place = f"127.0.0.1:{closed_port()}"
    value, shown, repair = (text.replace("PLACE", place) for text in (value, shown, repair))
    said = pull("HTTPS_PROXY", value, monkeypatch, capsys)
    assert f"error: the proxy `{shown}` of HTTPS_PROXY " in said
    assert why in said
    assert f"hint: write `HTTPS_PROXY={repair}`" in said
    assert "cr3t" not in said


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_a_proxy_that_does_not_answer_is_named_by_its_variable(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place = f"http://ann:s3cr3t@127.0.0.1:{closed_port()}"
    said = pull(variable, place, monkeypatch, capsys)
    shown = place.replace("ann:s3cr3t", "***")
    assert f"error: the proxy `{shown}` of {variable} does not answer: the connection was refused" in said
    assert f"hint: correct {variable}, or ask who runs the proxy" in said
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    ("login", "status", "why"),
    [
        ("", 407, "answers 407: it asks for a user and password"),
        ("ann:wrong@", 407, "answers 407: it refuses this user and password"),
        ("", 403, "answers 403 for registry.invalid:443"),
        ("", 405, "answers 405 for registry.invalid:443, as a web server does and no proxy"),
    ],
)  # fmt: skip
def test_the_answer_of_a_proxy_is_told_from_the_registrys(
    proxy: Proxy, login: str, status: int, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    proxy.statuses = {"CONNECT": status}
    said = pull("HTTPS_PROXY", f"http://{login}127.0.0.1:{proxy.port}", monkeypatch, capsys)
    assert f"of HTTPS_PROXY {why}\n" in said


def test_a_sound_proxy_is_named_and_not_blamed(proxy: Proxy):
    error = FetchError("http://mirror.invalid/x: it is gone", hint="look")
    blame(error, {"HTTP_PROXY": f"127.0.0.1:{proxy.port}"})
    assert error.message == "http://mirror.invalid/x: it is gone"
    assert error.hint == "look; it was asked through the proxy of HTTP_PROXY"
    assert proxy.asked == ["HEAD http://mirror.invalid/"]


def test_a_proxy_that_opens_a_tunnel_is_sound_whatever_its_headers(proxy: Proxy):
    proxy.headers = (("Content-Type", "text/html"),)
    error = FetchError("https://mirror.invalid/x: it is gone")
    blame(error, {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"})
    assert error.message == "https://mirror.invalid/x: it is gone"


@pytest.mark.parametrize("status", [404, 405])
def test_where_the_server_answered_the_proxy_is_not_asked(proxy: Proxy, status: int):
    proxy.statuses = {"CONNECT": status}
    gone = FetchError("it cannot be had: https://mirror.invalid/x")
    gone.__cause__ = SourceError(
        "https://mirror.invalid/x", "the server answered 503", kind="unreachable", status=503
    )
    for error in (
        AbsentError("there is no https://r.invalid/x"),
        AccessError("https://r.invalid/x refuses it"),
        gone,
    ):
        before = error.message
        blame(error, {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"})
        assert (error.message, error.hint) == (before, "")
    assert proxy.asked == []


@pytest.mark.parametrize("address", ["https://10.9.9.9:99999/x", "https://[::1/x", "https://a]b/x"])
def test_an_address_that_cannot_be_read_blames_no_proxy(address: str):
    error = FetchError(f"could not read {address}")
    blame(error, {"https_proxy": "http://127.0.0.1:9"})
    assert error.message == f"could not read {address}"
    assert trouble(address, "", {"https_proxy": "htp://nowhere"}) == ""
    assert trouble("the settings:", "", {"all_proxy": "htp://nowhere"}) == ""


def test_a_proxy_without_a_scheme_is_blamed_where_apt_refuses_it(proxy: Proxy):
    place = f"127.0.0.1:{proxy.port}"
    error = FetchError(
        f"Failed to fetch http://mirror.invalid/x  Unsupported proxy configured: 127.0.0.1://{proxy.port}"
    )
    blame(error, {"http_proxy": place})
    assert error.message.startswith(f"the proxy `{place}` of http_proxy cannot be used: it has no scheme")
    assert error.hint.startswith(f"write `http_proxy=http://{place}`")


def test_an_address_that_needs_no_proxy_blames_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_PROXY", "mirror.invalid")
    for address in ("http://mirror.invalid/x", "http://127.0.0.1:8080/x", "http://ann@localhost/x"):
        error = FetchError(f"could not read {address}", hint="look")
        blame(error, {"http_proxy": "htp://nowhere"})
        assert (error.message, error.hint) == (f"could not read {address}", "look")


def test_this_machine_is_asked_without_a_proxy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    with HttpSession(None).send("GET", f"http://127.0.0.1:{proxy.port}/page") as answer:
        assert answer.status_code == 200
    assert proxy.asked == ["GET /page"]


@pytest.mark.programs
def test_programs_read_a_proxy_in_either_spelling_and_ask_this_machine_without(proxy: Proxy, tmp_path: Path):
    """git takes http_proxy in lower case alone, and has no exception for this machine."""
    proxy.statuses = {"GET": 407, "HEAD": 407}
    environment = {
        "HTTP_PROXY": f"http://127.0.0.1:{proxy.port}",
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    runner = ProcessRunner(environment)
    with pytest.raises(FetchError) as caught:
        find_commit("http://code.invalid/x", "HEAD", runner)
    blame(caught.value, environment)
    assert caught.value.message.startswith(f"the proxy `http://127.0.0.1:{proxy.port}` of HTTP_PROXY")
    assert proxy.asked[0].startswith("GET http://code.invalid/x/")
    proxy.asked.clear()
    with pytest.raises(FetchError):
        find_commit(f"http://127.0.0.1:{proxy.port}/x", "HEAD", runner)
    assert proxy.asked[0].startswith("GET /x/")
