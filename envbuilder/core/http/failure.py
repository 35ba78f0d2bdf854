"""Says in words why a request failed."""

from typing import Final

UNTRUSTED: Final = "the certificate was not accepted"
_REASONS: Final = (
    ("NameResolutionError", "the host name is not known"),
    ("gaierror", "the host name is not known"),
    ("ProxyError", "the proxy does not answer"),
    ("SSLCertVerificationError", UNTRUSTED),
    ("SSLError", "TLS failed"),
    ("ConnectTimeoutError", "no answer in time"),
    ("ReadTimeoutError", "no more data in time"),
    ("ConnectionRefusedError", "the connection was refused"),
    ("IncompleteRead", "the connection was cut"),
    ("ConnectionResetError", "the connection was cut"),
    ("RemoteDisconnected", "the connection was cut"),
)


def reason(error: BaseException) -> str:
    """Why a request failed, in words; never its own text, which can hold URLs with credentials."""
    chain = [error]
    while (
        inner := chain[-1].__cause__ or chain[-1].__context__ or getattr(chain[-1], "reason", None)
    ) and inner not in chain:
        if not isinstance(inner, BaseException):
            break
        chain.append(inner)
    names = {type(one).__name__ for one in chain}
    for name, words in _REASONS:
        if name in names:
            return words
    return f"the connection failed ({type(chain[-1]).__name__})"
