"""Read uv's own table of the standalone builds of Python, out of uv's newest source distribution."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from packaging.utils import InvalidSdistFilename, parse_sdist_filename

from envbuilder.compat.tables.distribution import archive_name
from envbuilder.compat.tables.table import version_key
from envbuilder.core.archive import DAMAGED_TAR, BoundedTar
from envbuilder.core.budget import DOCUMENT, parse_json, read_within
from envbuilder.core.processor import PROCESSORS
from envbuilder.sources.fetch.source_client import Listed
from scripts.refresh_tables.rows import Row

_MACHINES: Final = tuple(one.machine for one in PROCESSORS)
ORDER: Final = ("python", "read", "source", "version", "release", *_MACHINES)
PROJECT: Final = "uv"
SOURCES: Final = ("uv",)
OLDEST: Final = "3.8"  # the oldest that uv installs wheels for
_TABLE: Final = re.compile(r"[^/]+/crates/[^/]+/download-metadata\.json")


def newest_sdist(files: Iterable[Listed]) -> Listed:
    """Return the newest source distribution. Raises ValueError without one."""
    found = []
    for listed in files:
        try:
            _, version = parse_sdist_filename(listed.filename)
        except InvalidSdistFilename:
            continue
        if not (listed.yanked or version.is_prerelease):
            found.append((version, listed))
    if not found:
        raise ValueError("the index lists no source distribution")
    return max(found, key=lambda pair: pair[0])[1]


def read_standalones(sdist: bytes) -> list[Row]:
    """Return a row for the newest build of each minor version. Raises ValueError for an archive of another form."""
    try:
        return [_row(python, builds) for python, builds in sorted(_newest(_table(sdist)).items())]
    except (*DAMAGED_TAR, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its table of builds has another form: {type(error).__name__} {error}") from error


def _table(sdist: bytes) -> Mapping[str, Any]:
    with BoundedTar.open(fileobj=io.BytesIO(sdist), mode="r:gz") as archive:
        members = [one for one in archive if _TABLE.fullmatch(one.name)]
        content = archive.extractfile(members[0]) if len(members) == 1 else None
        if content is None:
            raise ValueError(f"expected one `download-metadata.json`, found {len(members)}")
        table = parse_json(read_within(content, DOCUMENT, "bytes of its table"))
    return dict(table)


def _newest(table: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, tuple[str, str, str]]]:
    """Return (3, 10) → machine → version, release and sha256 of the newest build."""
    found: dict[tuple[int, int], dict[str, tuple[str, str, str]]] = {}
    for python, machine, build in _builds(table):
        machines = found.setdefault(python, {})
        if machine not in machines or _age(machines[machine]) < _age(build):
            machines[machine] = build
    return found


def _builds(table: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], str, tuple[str, str, str]]]:
    for one in table.values():
        machine, python = one["arch"], (one["major"], one["minor"])
        is_ours = (one["name"], one["os"], one["libc"]) == ("cpython", "linux", "gnu")
        is_plain = not (one["variant"] or one["prerelease"] or machine["variant"])
        if not (is_ours and is_plain and machine["family"] in _MACHINES and python >= version_key(OLDEST)):
            continue
        version = f"{one['major']}.{one['minor']}.{one['patch']}"
        release = str(one["build"])
        name = archive_name(version, release, machine["family"])
        if one["url"].replace("%2B", "+").endswith(f"/{release}/{name}") and one["sha256"]:
            yield python, machine["family"], (version, release, one["sha256"])


def _age(build: tuple[str, str, str]) -> tuple[tuple[int, ...], str]:
    return version_key(build[0]), build[1]


def _row(python: tuple[int, int], builds: Mapping[str, tuple[str, str, str]]) -> Row:
    name = f"{python[0]}.{python[1]}"
    if set(builds) != set(_MACHINES) or len({build[:2] for build in builds.values()}) != 1:
        raise ValueError(f"Python {name} has no newest build for both {' and '.join(_MACHINES)}")
    version, release, _ = builds[_MACHINES[0]]
    digests = {machine: builds[machine][2] for machine in _MACHINES}
    return {"python": name, "source": list(SOURCES), "version": version, "release": release, **digests}
