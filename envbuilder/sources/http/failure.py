"""Why a request failed: permanently at one source, or in a way that may pass."""

from typing import Final

from envbuilder.sources.names import shown

UNTRUSTED: Final = "the certificate was not accepted"
UNKNOWN_HOST: Final = "the host name is not known"
REFUSED: Final = "the connection was refused"
SLOW: Final = "its answer comes too slowly"
EMPTY: Final = "it sends headers or frames without end"
_REASONS: Final = (
    ("SlowAnswerError", SLOW),
    ("EmptyAnswerError", EMPTY),
    ("ProxyError", "the proxy does not answer"),
    ("NameResolutionError", UNKNOWN_HOST),
    ("gaierror", UNKNOWN_HOST),
    ("SSLCertVerificationError", UNTRUSTED),
    ("SSLError", "TLS failed"),
    ("ConnectTimeoutError", "no answer in time"),
    ("TimeoutError", "no answer in time"),
    ("ReadTimeoutError", "no more data in time"),
    ("ConnectionRefusedError", REFUSED),
    ("IncompleteRead", "the connection was cut"),
    ("ConnectionResetError", "the connection was cut"),
    ("RemoteDisconnected", "the connection was cut"),
)


class SourceError(Exception):
    """One source does not give the file; `kind` is `gone`, `wrong`, `refused`, `unreachable` or `unusable`.

    Unusable is an answer that breaks a rule: too large, too slow, of another form, or with an address that no server may name.
    Not an EnvbuilderError yet: the next source may have the file.
    """

    def __init__(self, url: str, why: str, *, kind: str, status: int = 0) -> None:
        super().__init__(f"{shown(url)}: {why}")
        self.why = why
        self.kind = kind
        self.status = status  # of the server's last answer; 0 where there was none


class TransientError(Exception):
    """The connection or the server failed in a way that may pass; `status` is the server's answer, if there was one."""

    def __init__(self, why: str, *, pause: float = 0.0, status: int = 0) -> None:
        super().__init__(why)
        self.pause = pause
        self.status = status


def reason(error: BaseException) -> str:
    """Say why a request failed. The exception's own text is not used: it can hold URLs with credentials."""
    chain = [error]
    while (
        inner := chain[-1].__cause__ or chain[-1].__context__ or getattr(chain[-1], "reason", None)
    ) and inner not in chain:
        if not isinstance(inner, BaseException):
            break
        chain.append(inner)
    names = {type(error).__name__ for error in chain}
    for name, words in _REASONS:
        if name in names:
            return words
    return f"the connection failed ({type(chain[-1]).__name__})"
