"""Add new releases of CUDA to `toolkits.yaml`: those of the package index, and those of NVIDIA's archive with their digests.

A person writes this file, comments included, so nothing but its lists of releases and digests is written anew.
"""

import re
import threading
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Final

from packaging.version import Version

from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import newer_releases
from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import FetchError
from envbuilder.sources.fetch.source_client import Index
from envbuilder.sources.http import SourceError
from scripts.refresh_tables.rows import Changes

_ROW: Final = re.compile(
    r"(  - source: (?P<source>\w+)\n    releases: )\[(?P<releases>[^]]*)\](\n    further: true\n)"
    r'(?P<digests>    manifests:\n(?:      ".*\n)+)?'
)
_QUOTED: Final = re.compile(r'"([\d.]+)"')
_DIGEST: Final = re.compile(r'"([\d.]+)": "(\w{64})"')
_A_LINE: Final = 12  # releases


def renew(
    path: Path, index: Index, wheels: Iterable[Version], minors: Collection[str], today: date
) -> tuple[str, Changes]:
    """Return the file's text with the releases of these wheels and those that the archive has of `minors`, and the changes."""
    text = path.read_text(encoding="utf-8")
    done: list[str] = []
    notes: list[str] = []
    packaged = {
        ".".join(map(str, one.release[:3])) for one in wheels if len(one.release) > 2 and one.major > 12
    }

    def renewed(row: re.Match[str]) -> str:
        releases, digests = set(_QUOTED.findall(row["releases"])), dict(_DIGEST.findall(row["digests"] or ""))
        new, found = packaged - releases, dict[str, str]()
        if row["source"] == "archive":
            try:
                found = dict(_archived(index, releases, digests.keys(), minors))
            except FetchError as error:
                notes.append(f"{error.message}; its releases stay")
            new = found.keys() - releases
        done.extend(f"+ {row['source']}: CUDA {one}" for one in sorted(new, key=version_key))
        done.extend(
            f"CUDA {one}: manifest: {found[one]}" for one in sorted(found, key=version_key) if one not in new
        )
        digests |= found
        listing = "    manifests:\n" + "".join(
            f'      "{one}": "{digests[one]}"\n' for one in sorted(digests, key=version_key)
        )
        return f"{row[1]}[\n{_wrapped(releases | new)}    ]{row[4]}{listing if digests else ''}"

    renewed_text = _ROW.sub(renewed, text)
    if done:
        renewed_text = re.sub(r'^read: "[0-9-]+"$', f'read: "{today}"', renewed_text, flags=re.MULTILINE)
    return renewed_text, Changes(done=tuple(done), notes=tuple(notes))


def _archived(
    index: Index, known: Collection[str], digested: Collection[str], minors: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the releases whose digest is not known, with it: known ones, then newer ones of these minor versions."""
    for release in sorted(set(known) - set(digested), key=version_key):
        if digest := _digest(index, release):
            yield release, digest
    for minor in sorted(minors, key=version_key):
        yield from newer_releases(minor, known, lambda one: _digest(index, one))


def _digest(index: Index, release: str) -> str:
    """Return the sha256 of a release's manifest in NVIDIA's archive, "" if it has none or no archive is used."""
    archive = index.client.sources.cuda
    try:
        page = index.client.page(f"{archive}redistrib_{release}.json", threading.Event()) if archive else b""
    except SourceError as refusal:
        if refusal.kind == "gone":
            return ""
        raise FetchError(f"could not read NVIDIA's archive: {refusal}") from refusal
    return sha256_bytes(page) if page else ""


def _wrapped(releases: Iterable[str]) -> str:
    every = [f'"{one}",' for one in sorted(releases, key=version_key)]
    return "".join(f"      {' '.join(every[at : at + _A_LINE])}\n" for at in range(0, len(every), _A_LINE))
