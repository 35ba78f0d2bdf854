"""Run paths that lead outside: folders from which a library would be loaded though the image does not have them."""

import posixpath
from collections.abc import Iterator
from typing import Final

from envbuilder.audit.case import Case, Code, Elf, some
from envbuilder.findings import Finding, Severity

# Folders that others may write, or that a runtime brings from the host.
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
    strange: dict[tuple[str, str], list[str]] = {}
    for elf in case.elves:
        for folder in dict.fromkeys(
            elf.runpaths if elf.runpaths != ("",) else ()
        ):  # one that is empty as a whole is ignored
            if why := _judge(case, elf, folder):
                strange.setdefault((folder, why), []).append(elf.path)
    for (folder, why), paths in sorted(strange.items()):
        yield Finding(
            code=Code.RUNPATH, severity=Severity.WARNING, where=f"/{paths[0]}",
            message=f"{some(paths)} looks for libraries in `{folder}`, {why}",
            hint="whoever can write there decides what is loaded; the package's own build has to be repaired",
        )  # fmt: skip


def _judge(case: Case, elf: Elf, folder: str) -> str:
    """What is wrong with a run path; empty where nothing is."""
    plain = folder.replace("${ORIGIN}", "$ORIGIN")
    if plain.startswith("$ORIGIN"):
        above = posixpath.normpath(f"{posixpath.dirname(elf.path)}/{plain.removeprefix('$ORIGIN')}")
        return "which lies above the root" if above.startswith("..") else ""
    if not plain.startswith("/"):
        return "which is wherever the program is started"
    whole = posixpath.normpath(plain)
    if any(whole == place or whole.startswith(f"{place}/") for place in OPEN):
        return "which is not the image's and which others may write"
    return "which the image does not have" if case.real(whole) is None else ""
