"""Find run paths that leave the image: folders that others control and libraries would be loaded from."""

import itertools
import operator
import posixpath
from collections.abc import Iterator
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.case import Case, Code, Elf, same_in

# Folders that others can write, or that a runtime mounts from the host.
OPEN: Final = (
    "/tmp",  # noqa: S108
    "/var/tmp",  # noqa: S108
    "/dev",
    "/run",
    "/home",
    "/root",
    "/mnt",
    "/media",
    "/proc",
    "/scratch",
    "/builds",
    "/workspace",
)


def check_runpaths(case: Case) -> Iterator[Finding]:
    # A package's build gives all its files the same folders.
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for elf in case.elves:
        folders = elf.runpaths if elf.runpaths != ("",) else ()  # one that is empty as a whole is ignored
        strange = [(_judge(case, elf, folder), folder) for folder in dict.fromkeys(folders)]
        if found := tuple(sorted((why, folder) for why, folder in strange if why)):
            alike.setdefault(found, []).append(elf.path)
    for found, paths in sorted(alike.items()):
        by_reason = itertools.groupby(found, key=operator.itemgetter(0))
        told = [f"{', '.join(f'`{folder}`' for _, folder in some)} ({why})" for why, some in by_reason]
        yield Finding(
            code=Code.RUNPATH, severity=Severity.WARNING, where=f"/{paths[0]}",
            message=f"looks for libraries in {', and '.join(told)}{same_in(paths)}",
            hint="whoever can write there decides what is loaded; the package's own build has to be repaired",
        )  # fmt: skip


def _judge(case: Case, elf: Elf, folder: str) -> str:
    """Say what is wrong with a run path, or return ""."""
    plain = folder.replace("${ORIGIN}", "$ORIGIN")
    if plain.startswith("$ORIGIN"):
        above = posixpath.normpath(f"{posixpath.dirname(elf.path)}/{plain.removeprefix('$ORIGIN')}")
        return "above the root" if above.startswith("..") else ""
    if not plain.startswith("/"):
        return "wherever the program is started"
    whole = posixpath.normpath(plain)
    if any(whole == place or whole.startswith(f"{place}/") for place in OPEN):
        return "not the image's, and others may write there"
    return "not in the image" if case.real(whole) is None else ""
