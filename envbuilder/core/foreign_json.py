"""Read JSON that a server, an index or a file of another program gave."""

import json
from collections.abc import Callable
from typing import Any, NoReturn


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value; raises ValueError for all that is no JSON, for NaN, deep nesting and bytes that are no UTF-8.

    `pairs` makes an object of its keys and values. Without it, an object is a dict.
    """
    content = text if isinstance(text, str) else text.decode("utf-8-sig")  # `json.loads` takes others too
    try:
        return json.loads(content, parse_constant=_refuse, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")
