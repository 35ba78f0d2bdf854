"""Seal a lockfile, so that a later edit or merge is found, and each entry that it changed is named.

The key `sha256` is the digest of all else in the file. The key `entries` has the version and a digest of each package, and a
digest of each part. Layout does not count: a lock that another program indented anew is the same.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from envbuilder.core.cache import sha256_text
from envbuilder.core.places import Node

ENTRIES: Final = "entries"
SHA256: Final = "sha256"
_DIGITS: Final = 12  # of a digest in `entries`: it names a change that `sha256` finds


def seal(body: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON of a lock with its seal, instead of the one that it has."""
    bare: dict[str, object] = json.loads(json.dumps(body))  # with lists for tuples, as it is read
    bare.pop(SHA256, None)
    sealed = bare | {ENTRIES: seals(Node(value=bare, where=""))}
    return sealed | {SHA256: _digest(sealed)}


def is_whole(body: Mapping[str, object]) -> bool:
    """Return whether the JSON of a lock is what `seal` returned."""
    return body.get(SHA256) == _digest({key: value for key, value in body.items() if key != SHA256})


def parts(root: Node) -> dict[str, Node]:
    """Return the values of a lock by key. Those of `tools` are parts of their own, such as `tools.debs`."""
    tools = root.get("tools")
    inner = {f"tools.{key}": node for key, node in tools.inner.items()} if tools else {}
    skipped = (ENTRIES, SHA256, *(("tools",) if inner else ()))
    return {str(key): node for key, node in root.inner.items() if key not in skipped} | inner


def entries(part: str, node: Node) -> dict[str, Node]:
    """Return the packages or extensions of a part by `part name`, nothing for a part without names."""
    items = node.inner.values() if isinstance(node.value, list) else ()
    named = (item for item in items if isinstance(item.value, dict) and "name" in item.value)
    return {f"{part} {item.value['name']}": item for item in named}


def seals(root: Node) -> dict[str, str]:
    """Return what `entries` of a lock should be."""
    found: dict[str, str] = {}
    for part, node in parts(root).items():
        items = {label: entry_seal(item.value) for label, item in entries(part, node).items()}
        found |= {**items, part: part_seal(items or node.value)}
    return found


def entry_seal(value: Mapping[str, object]) -> str:
    """Return the seal of a package or an extension, which has no version."""
    return f"{value.get('version', '')} {part_seal(value)}".strip()


def part_seal(value: object) -> str:
    """Return the seal of a part, given the seals of its entries or, if it has none, its value."""
    return _digest(value)[:_DIGITS]


def find_edits(root: Node) -> Iterator[tuple[Node, str]]:
    """Yield the place of each edit of a lock that is not whole, with a sentence."""
    wrote, now = root.value.get(ENTRIES), seals(root)
    if not isinstance(wrote, dict):
        yield root, f"the keys `{ENTRIES}` and `{SHA256}`, which `lock` writes, are not both there"
        return
    nodes = parts(root)
    items = {label: item for part, node in nodes.items() for label, item in entries(part, node).items()}
    digests = {f"{item.value.get('sha256')}": label for label, item in items.items()}
    different = [label for label in wrote.keys() | now.keys() if wrote.get(label) != now.get(label)]
    edited = {label.partition(" ")[0] for label in different if " " in label}
    for label in sorted(different):
        part, _, name = label.partition(" ")
        was, version = (f"{one.get(label, '')}".rpartition(" ")[0] for one in (wrote, now))
        place = items.get(label) or nodes.get(part) or root
        if not name:
            if part not in edited:
                yield place, f"`{part}` is not as `lock` wrote it"
        elif label not in now:
            yield place, f"{_shown(name, was)} is gone from `{part}`"
        elif label not in wrote:
            yield place, f"{_shown(name, version)} in `{part}` is not from `lock`"
        else:
            twin = digests[f"{place.value.get('sha256')}"].partition(" ")[2]
            file = f"{place.value.get('path', '')}".rpartition("/")[2]
            details = (
                f"`lock` wrote {was}" if was != version else "",
                f"its sha256 is that of `{twin}`" if twin != name else "",
                f"its file is `{file}`" if file else "",
            )
            message = f"{_shown(name, version)} in `{part}` is not as `lock` wrote it"
            yield place, "; ".join(filter(None, (message, *details)))
    if not different:
        yield root, f"the order of its entries, or its key `{SHA256}`, is not as `lock` wrote it"


def _shown(name: str, version: str) -> str:
    return f"`{name}` {version}".strip()


def _digest(value: object) -> str:
    return sha256_text(json.dumps(value, sort_keys=True, default=str))
