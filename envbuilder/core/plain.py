"""Put words into a command line, a script or a settings file, where no part of them becomes a line or a secret of its own."""

import shlex
import unicodedata
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.core.text.redact import has_credentials, redacted

GIVE_BY: Final = (
    "leave it out: git asks its credential helper or ~/.netrc, ENVBUILDER_INDEX and apt's auth.conf hold those of mirrors, and "
    "`exec --env NAME` passes a variable"
)


def pasted(*words: object) -> str:
    """Return words of a command line as a shell takes them, for a message or an answer."""
    return shlex.join(map(str, words))


def need_no_credentials(text: str) -> None:
    """Raise UsageError for a text that holds a password or a token."""
    if has_credentials(text):
        raise UsageError(f"`{redacted(text)}` is given with a password or a token", hint=GIVE_BY)


def one_line(text: str, *, forbidden: str = "") -> str:
    """Return a text that becomes part of a line in a script or in a settings file.

    Raises UsageError for a line break, which would begin a line of its own, for another control character, and for one of
    `forbidden`, which end a text of that format.
    """
    found = next((sign for sign in text if unicodedata.category(sign) == "Cc" or sign in forbidden), "")
    if found:
        raise UsageError(
            f"expected a text of one line without control characters, found {found!a} in {redacted(text)!a}",
            hint="rename the SIF, the folder or the setting: in a script the rest would be a command of its own",
        )
    return text
