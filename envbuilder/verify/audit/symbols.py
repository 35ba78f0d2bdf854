"""Check that the image has the symbol versions that each ELF file needs, of glibc, libstdc++ and all others."""

import re
from collections.abc import Iterator
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.case import Case, Code, same_in

PORTABLE: Final = ("opt/env/", "opt/envbuilder/")  # usable without the image
_GLIBC: Final = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def check_symbols(case: Case) -> Iterator[Finding]:
    """Check each needed version against all copies of the library. Libraries of the host are not checked."""
    given: dict[str, set[str]] = {}
    for elf in case.elves:
        given.setdefault(elf.name, set()).update(elf.gives)
    missing: dict[tuple[str, str], list[str]] = {}
    for elf in case.elves:
        for library, version in elf.needs:
            if given.get(library) and version not in given[library]:
                missing.setdefault((library, version), []).append(elf.path)
    for (library, version), paths in sorted(missing.items()):
        newest = max(
            (name for name in given[library] if _family(name) == _family(version)), key=_key, default="none"
        )
        yield Finding(
            code=Code.SYMBOLS, severity=Severity.ERROR, where=f"/{paths[0]}",
            message=f"needs `{version}`, and the image's `{library}` does not have it (newest: {newest}){same_in(paths)}",
            hint="it cannot be loaded: take a build for an older system, or a newer base",
        )  # fmt: skip


def check_oldest_host(case: Case, glibc: str) -> Iterator[Finding]:
    """Find files of the Python environment and the extensions that a host with this glibc could not load."""
    if not glibc:
        return
    newer: dict[str, list[str]] = {}
    for elf in case.elves:
        if elf.path.startswith(PORTABLE):
            needed = [match[1] for _, version in elf.needs if (match := _GLIBC.fullmatch(version))]
            highest = max(needed, key=_numbers, default="0")
            if _numbers(highest) > _numbers(glibc):
                newer.setdefault(highest, []).append(elf.path)
    for version, paths in sorted(newer.items()):
        yield Finding(
            code=Code.OLDEST_HOST, severity=Severity.WARNING, where=f"/{paths[0]}",
            message=f"needs glibc {version}, and the oldest host has {glibc}{same_in(paths)}",
            hint="inside the image it has its own glibc; outside it would not load there",
        )  # fmt: skip


def _family(version: str) -> str:
    return version.partition("_")[0]


def _key(version: str) -> tuple[int, ...]:
    return _numbers(version.partition("_")[2])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
