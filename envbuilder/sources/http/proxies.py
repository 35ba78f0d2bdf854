"""Say what is wrong with the proxy that a variable names: its form, or what it answers.

Programs differ in what they make of a wrong form: uv goes around such a proxy, apt refuses one without a scheme, and git
takes port 1080 where none is written.
"""

import base64
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from envbuilder.core.errors import AbsentError, AccessError, BusyError, FetchError
from envbuilder.core.text.redact import HIDDEN
from envbuilder.sources.http import SourceError, reason
from envbuilder.sources.names import is_loopback

SECONDS: Final = 3.0
_INEXACT: Final = (
    "it has no scheme, and apt takes none without",
    "it names no port, and programs differ in the one they take",
)
_ADDRESS: Final = re.compile(r"https?://[^\s`'\"<>()]*[^\s`'\"<>().,:;]")


def blame(error: FetchError, environment: Mapping[str, str]) -> None:
    """Say first what is wrong with the proxy that the address in an error is asked through, if anything is."""
    # The error of a registry has the address in its cause alone.
    texts = [str(error), str(error.__cause__), *(finding.message for finding in error.findings)]
    words = "\n".join(texts)
    address = _ADDRESS.search(words)
    name, value = _proxy_of(address[0], environment) if address else ("", "")
    if not address or not name:
        return
    cause = error.__cause__
    by_server = isinstance(error, AccessError | BusyError) or (
        isinstance(cause, SourceError) and (cause.status or cause.kind in ("gone", "refused", "wrong"))
    )
    if isinstance(error, AbsentError) or (by_server and address[0].startswith("https:")):
        return
    wrong = trouble(address[0], words, environment)
    if not wrong:
        error.hint += f"{'; ' if error.hint else ''}it was asked through the proxy of {name}"
        return
    _, at, host = value.rpartition("://")[2].rpartition("@")
    place = host if re.fullmatch(r"[\w.-]+:\d+", host) and "socks" not in value else "HOST:PORT"
    repair = f"correct {name}, or ask who runs the proxy"
    if mistake(value):
        repair = f"write `{name}=http://{at and HIDDEN}{at}{place}`"
    error.message = f"{wrong}\n{error.message}"
    error.hint = f"{repair}; NO_PROXY names hosts that need none"


def trouble(url: str, output: str, environment: Mapping[str, str]) -> str:
    """Return what is wrong with the proxy that an address is asked through, "" if nothing is or there is none.

    `output` is what the failed request says. Some programs use a proxy without a scheme or a port, so that alone is no trouble.
    """
    name, value = _proxy_of(url, environment)
    if not name:
        return ""
    form = mistake(value)
    if form and (form not in _INEXACT or re.search("(?i)proxy|port 1080", output)):
        why = f"cannot be used: {form}"
    else:
        why = _refusal(url, value if "://" in value else f"http://{value}")
    hidden = re.sub(r"^(.*?://)?.*@", rf"\1{HIDDEN}@", value)
    return f"the proxy `{hidden}` of {name} {why}" if why else ""


def _proxy_of(url: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names the proxy for an address, and its value, as requests chooses it; "" for none."""
    from requests.utils import should_bypass_proxies  # noqa: PLC0415 - 0.15 s, as below

    try:
        parts = urlsplit(url)
        scheme, netloc, _ = parts.scheme, parts.netloc, parts.port
    except ValueError:  # brackets, or a port above 65535
        return "", ""
    if scheme not in ("http", "https"):
        return "", ""
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if environment.get(name)), "")
    is_direct = (
        not name or is_loopback(netloc.rpartition("@")[2]) or should_bypass_proxies(url, no_proxy=None)
    )
    return ("", "") if is_direct else (name, environment[name])


def mistake(value: str) -> str:
    """Return what is wrong with the form of a proxy's address, "" if every program reads it alike."""
    scheme, mark, rest = value.partition("://") if "://" in value else ("http", "", value)
    if re.search(r"\s", value):
        return "it has a blank, which a password writes as %20"
    if scheme.lower().startswith("socks"):
        return "it is of the kind SOCKS, and envbuilder needs one for HTTP"
    if scheme.lower() not in ("http", "https"):
        return f"`{scheme}` is no scheme of a proxy"
    try:
        host, port = urlsplit(f"//{rest}").hostname, urlsplit(f"//{rest}").port
    except ValueError:
        return "its port is no number; a password writes / as %2F, ? as %3F and # as %23"
    if not host:
        return "it names no host"
    if not mark:
        return _INEXACT[0]
    return "" if port else _INEXACT[1]


def _refusal(url: str, proxy: str) -> str:
    """Ask a proxy for an address; return what is wrong with its answer."""
    import http.client  # noqa: PLC0415 - 0.1 s, and few requests fail

    place, target = urlsplit(proxy), urlsplit(url)
    make = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = make(place.hostname or "", place.port, timeout=SECONDS)
    login = "" if place.username is None else f"{unquote(place.username)}:{unquote(place.password or '')}"
    headers = {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    is_tunnel = target.scheme == "https"
    host = f"{target.hostname}:{target.port or 443}"
    try:
        connection.request(
            *(("CONNECT", host) if is_tunnel else ("HEAD", f"http://{target.netloc}/")), headers=headers
        )
        answer = connection.getresponse()
    except http.client.HTTPException:
        return "does not answer in HTTP"
    except ValueError:  # the address cannot be sent
        return ""
    except OSError as error:
        return f"does not answer: {reason(error)}"
    finally:
        connection.close()
    if answer.status == http.client.PROXY_AUTHENTICATION_REQUIRED:
        return f"answers 407: it {'refuses this' if login else 'asks for a'} user and password"
    if not is_tunnel or answer.status < 300:
        return ""
    if answer.status in (403, 429) or answer.status > 501:
        return f"answers {answer.status} for {host}"
    return f"answers {answer.status} for {host}, as a web server does and no proxy"
