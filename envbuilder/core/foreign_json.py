"""Read JSON that a server, an index or a file of another program gave."""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")  # of a character; alone, it is in no text that can be written


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value; raises ValueError for all that is no JSON, for NaN, deep nesting and texts that are no Unicode.

    `pairs` makes an object of its keys and values. Without it, an object is a dict.
    """
    # `json.loads` would take bytes that are no UTF-8.
    content = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = json.loads(content, parse_constant=_refuse, object_pairs_hook=pairs)
        if _HALF.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")
