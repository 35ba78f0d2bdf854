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
    bare = {key: body[key] for key in body if key != SHA256}
    sealed = bare | {ENTRIES: seals(Node(value=bare, where=""))}
    return sealed | {SHA256: _digest(sealed)}


def is_whole(body: object) -> bool:
    """Return whether a lock is as `lock` wrote it, by its seal. What is no lock at all is another mistake."""
    return not isinstance(body, dict) or bool(
        body.get(SHA256) == _digest({key: body[key] for key in body if key != SHA256})
    )


def parts(root: Node) -> dict[str, Node]:
    """Return the values of a lock by key. Those of `inputs` and `tools` are parts of their own, such as `tools.debs`."""
    found: dict[str, Node] = {}
    for key, node in root.inner.items():
        if key in ("inputs", "tools"):
            found |= {f"{key}.{inner}": value for inner, value in node.inner.items()}
        elif key not in (ENTRIES, SHA256):
            found[str(key)] = node
    return found


def entries(part: str, node: Node) -> dict[str, Node]:
    """Return the packages or extensions of a part by `part name`, nothing for a part without names."""
    items = node.inner.values() if isinstance(node.value, list) else ()
    named = (item for item in items if isinstance(item.value, dict) and "name" in item.value)
    return {f"{part} {item.value['name']}": item for item in named}


def seals(root: Node) -> dict[str, str]:
    """Return what `entries` of a lock should be."""
    found: dict[str, str] = {}
    for part, node in parts(root).items():
        items = {
            label: f"{item.value.get('version', '')} {part_seal(item.value)}".strip()
            for label, item in entries(part, node).items()
        }
        found |= {**items, part: part_seal(items or node.value)}
    return found


def part_seal(value: object) -> str:
    """Return the seal of a part, given the seals of its entries or, if it has none, its value."""
    return _digest(value)[:_DIGITS]


def find_edits(root: Node) -> Iterator[tuple[Node, str]]:
    """Yield the place of each edit of a lock that is not whole, with a sentence."""
    wrote, now, nodes = root.value.get(ENTRIES), seals(root), parts(root)
    wrote = wrote if isinstance(wrote, dict) else now
    items = {label: item for part, node in nodes.items() for label, item in entries(part, node).items()}
    digests = {f"{item.value.get('sha256')}": label for label, item in items.items()}
    different = [label for label in wrote.keys() | now.keys() if wrote.get(label) != now.get(label)]
    edited = {label.partition(" ")[0] for label in different if " " in label}
    for label in sorted(different):
        part, _, name = label.partition(" ")
        was, version = (f"{one.get(label, '')}".rpartition(" ")[0] for one in (wrote, now))
        item, place = items.get(label), nodes.get(part, root)
        if not name:
            if part not in edited:
                yield place, f"`{part}` is not as `lock` wrote it"
        elif item is None:
            yield place, f"{f'`{name}` {was}'.strip()} is gone from `{part}`"
        elif label not in wrote:
            yield item, f"{f'`{name}` {version}'.strip()} in `{part}` is not from `lock`"
        else:
            twin = digests[f"{item.value.get('sha256')}"].partition(" ")[2]
            file = f"{item.value.get('path', '')}".rpartition("/")[2]
            details = (
                f"{f'`{name}` {version}'.strip()} in `{part}` is not as `lock` wrote it",
                f"`lock` wrote {was}" if was != version else "",
                f"its sha256 is that of `{twin}`" if twin != name else "",
                f"its file is `{file}`" if file else "",
            )
            yield item, "; ".join(filter(None, details))
    if not different:
        yield root, f"its order, or one of its keys `{ENTRIES}` and `{SHA256}`, is not as `lock` wrote it"


def _digest(value: object) -> str:
    return sha256_text(json.dumps(value, sort_keys=True, default=str))
