"""Make a text fit to leave the program: for a terminal, a log, a JSON answer, or a line of a script.

Every text that is shown passes `plain`, because foreign code wrote parts of it: names of files, output of programs, answers
of servers. Our own colors are added later. All patterns take time in proportion to the text, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

HIDDEN: Final = "***"
# Where a URL's password is. A user alone is a token for http, and a login for ssh: `ssh://git@host`.
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20})://"
    r"(?P<user>[^\s/?#\"`<>]*@(?!sha\d{3}:)"  # docker://name:tag@sha256:digest
    # A password with an unescaped `/`, `?` or `#`. Digits after the colon are a port.
    r"|[^\s/?#\"`<>:@\[]{1,64}:(?!\d{1,5}(?:[/?#]|\s|$))[^\s\"`<>]{1,100}@(?!sha\d{3}:))"
)
_NAME: Final = r"pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|credentials?"
_QUERY: Final = r"(?i)[?&;][\w.-]{0,40}(?:token|signature|sig|password|secret|credential|api_?key)=(?P<value>[^\s&;#'\"`)\]]+)"
_VALUE: Final = r"(?P<value>'[^'\n]*'|\"[^\"\n]*\"|[^\s'\"&;,)}\]]+)"
_NAMED: Final = (
    # HF_TOKEN=x; in lower case only names that are nothing else, so that `pad_token=x` of a tokenizer stays.
    (
        r"(?<![A-Za-z0-9_])(?:[A-Z0-9_]*(?:PASS(?:WORD|WD|PHRASE)?|SECRET|TOKEN|(?:API|ACCESS|SECRET|PRIVATE)_?KEY|CREDENTIALS?|PAT|AUTH)"
        rf"|passw(?:or)?d|passphrase|secret|api_?key|(?:access|auth|private|job|id|refresh)_?[tT]oken|_auth)=(?![\"']?\$){_VALUE}"
    ),
    # --password x, --index-token=x
    rf"(?i)(?<![\w-])--[\w-]{{0,40}}(?:{_NAME})(?:=|\s+)(?!-|[\"']?\$){_VALUE}",
    # ?access_token=x&X-Amz-Signature=x
    _QUERY,
    r"(?i)(?:proxy-)?authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<value>(?:[a-z]{1,12}[ \t]+)?[^\s'\",]+)",
    r"(?i)(?<![\w-])(?:x-[\w-]{1,40}|private|job)-(?:token|key)[\"']?\s{0,4}:\s{0,4}[\"']?(?P<value>[^\s'\",]+)",
    r"(?i)(?<![\w-])(?:set-)?cookie:[ \t]{0,4}(?P<value>[^\n]+)",
    r"(?i)\bbearer[ \t]{1,4}(?P<value>(?=[a-z_.~+/=-]{0,200}\d|[\w.~+/=-]{24})[\w.~+/=-]{6,})",
    rf"(?i)\"[\w-]{{0,40}}(?:{_NAME}|auth)\"[ \t]{{0,4}}:[ \t]{{0,4}}\"(?P<value>[^\"\n]+)\"",
    r"(?i)\bmachine[ \t]{1,9}\S{1,256}[ \t]{1,9}login[ \t]{1,9}\S{1,256}[ \t]{1,9}password[ \t]{1,9}(?P<value>\S+)",
    r"-----BEGIN (?:[A-Z]{1,20} ){0,4}PRIVATE KEY-----(?P<value>[^-]+)",
)
_NAMED_PATTERNS: Final = tuple(re.compile(pattern) for pattern in _NAMED)
_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|gl(?:pat|dt|cbt|ptt|rt)-[\w-]{10,}|hf_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-(?=[A-Za-z_-]{0,200}\d)[\w-]{16,}|xox[abeprs]-[\w-]{10,}|pypi-AgE[\w-]{10,}|npm_[A-Za-z0-9]{20,}"
    r"|dckr_(?:pat|oat)_[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
# A setting whose value is a secret, by its name.
_SECRET_SETTING: Final = re.compile(
    r"(?i)(?:.*_)?(?:pass(?:word|wd|phrase)?|pw|secret|token|api_?key|access_key|secret_key|private_key|credentials?|pat|auth)"
)
_SHORTEST: Final = 8  # characters of a setting's value that is looked for: `true` and `none` are no secrets
# A terminal's commands: those with parameters (CSI), texts for it (OSC, DCS and others) and short ones.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# Control characters, and those that change the direction of a text or take no room. Newline and tab are left out.
_MARKS: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_MARK: Final = re.compile(f"[{_MARKS}]")
_JSON: Final = re.compile(f"[{_MARKS}\ud800-\udfff]")

# The secrets among this process's settings: programs may print one without the words that give it away.
_KNOWN: Final[set[str]] = set()


def know_secrets(environment: Mapping[str, str]) -> None:
    """Redact from now on the values of settings that are secret by their name, and the passwords in URLs of settings."""
    _KNOWN.clear()
    for name, value in environment.items():
        if _SECRET_SETTING.fullmatch(name) and not value.startswith("/"):  # the path of a file with one
            _KNOWN.update(line.strip() for line in value.splitlines())
        _KNOWN.update(address["user"][:-1].rpartition(":")[2] for address in _ADDRESS.finditer(value))
    _KNOWN.difference_update([secret for secret in _KNOWN if len(secret) < _SHORTEST])


def redacted(text: str) -> str:
    """Replace passwords and tokens. Names of users for ssh stay, as do `git@host:path` and mail addresses."""
    if "://" in text:
        text = _ADDRESS.sub(_without_user, text)
    for pattern in _NAMED_PATTERNS:
        text = pattern.sub(_without_value, text)
    text = _TOKEN.sub(HIDDEN, text)
    for secret in sorted(_KNOWN, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def has_credentials(text: str) -> bool:
    """Return whether a text holds a password in a URL or a token."""
    is_address = "://" in text and (re.search(_QUERY, text) or _ADDRESS.sub(_without_user, text) != text)
    return bool(is_address or _TOKEN.search(text))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable with this name and value is a secret."""
    is_named = (
        _SECRET_SETTING.fullmatch(name) and len(value) >= _SHORTEST and not value.startswith(("/", "$"))
    )
    return bool(is_named) or has_credentials(value)


def without_credentials(url: str) -> str:
    """Return the URL without its password, or without the token in its place."""
    return _ADDRESS.sub(
        lambda found: _without_user(found).replace(f":{HIDDEN}@", "@").replace(f"{HIDDEN}@", ""), url
    )


def plain(text: str) -> str:
    """Return the text without commands to a terminal and without credentials. Bytes that are no UTF-8 are escaped."""
    text = _MARK.sub("", _SEQUENCE.sub("", text))
    return redacted(text).encode("utf-8", "backslashreplace").decode()


def plain_json(text: str) -> str:
    """Escape in the text of a JSON value what `plain` removes. Strings keep their meaning."""
    return _JSON.sub(_json_escape, text)


def _without_user(address: re.Match[str]) -> str:
    scheme, user = address["scheme"], address["user"][:-1]
    name, has_password, _ = user.partition(":")
    if scheme.endswith(("ssh", "sftp", "rsync")):
        return f"{scheme}://{name}{f':{HIDDEN}' if has_password else ''}@"
    return f"{scheme}://{HIDDEN}@"


def _without_value(match: re.Match[str]) -> str:
    begin, end = (place - match.start() for place in match.span("value"))
    return f"{match[0][:begin]}{HIDDEN}{match[0][end:]}"


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
