"""Find two keys of a recipe that have each other's value."""

import re
from typing import Final

from envbuilder.core.places import Node

# What a value of the key usually looks like: narrower than its shape, so that it tells the keys apart.
_USUAL: Final = {
    "base": r"[a-z]+/[a-z0-9.]+",
    "python": r"3\.\d+",
    "gcc": r"\d+",
    "libxcrypt": r"4\.\d+(\.\d+)?",
    "cuda": r"(9|\d\d)\.\d+(\.\d+)?",
    "pytorch": r"[12]\.\d+\.\d+",
}


def swap_hint(root: Node, key: str) -> str:
    """Return what to write if the key has the value of another one, which has its; "" otherwise."""
    mine = root.get(key)
    for other in _USUAL if mine and key in _USUAL else ():
        theirs = root.get(other)
        if not (mine and theirs) or _fits(other, theirs):
            continue
        if _fits(other, mine) and _fits(key, theirs):
            return f"are `{key}` and `{other}` swapped? write `{key}: {_quoted(theirs)}` and `{other}: {_quoted(mine)}`"
    return ""


def _fits(key: str, node: Node) -> bool:
    return isinstance(node.value, str) and re.fullmatch(_USUAL[key], node.value) is not None


def _quoted(node: Node) -> str:
    text = str(node.value)
    return text if "/" in text else f'"{text}"'
