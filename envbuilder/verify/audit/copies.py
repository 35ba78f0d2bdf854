"""Find second copies of CUDA's, cuDNN's and NCCL's libraries: which one is loaded, and the size of the others."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.case import Case, Code, Elf, some

LIBRARY: Final = re.compile(
    r"lib(cuda(rt|devrt)?|cublas(Lt)?|cudnn\w*|cufftw?|cufile\w*|cupti|curand|cusolver(Mg)?|cusparse(Lt)?|nccl|npp\w+|nvJitLink|nvToolsExt|nvjpeg|nvrtc\w*|nvshmem\w*)"
    r"\.so(\.[\d.]+)?"
)
DEFAULT_FOLDERS: Final = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib",
)


def check_copies(case: Case) -> Iterator[Finding]:
    by_name: dict[str, list[Elf]] = {}
    for elf in case.elves:
        if LIBRARY.fullmatch(elf.name):
            by_name.setdefault(elf.name, []).append(elf)
    for name, copies in sorted(by_name.items()):
        if len(copies) > 1:
            yield _finding(case, name, copies)


def _finding(case: Case, name: str, copies: Sequence[Elf]) -> Finding:
    takers: dict[str, list[str]] = {}
    for elf in case.elves:
        if name in elf.needed and (taken := loaded(case, elf, name)):
            takers.setdefault(taken, []).append(elf.path)
    told = "; ".join(f"/{taken} is loaded by {some(paths)}" for taken, paths in sorted(takers.items()))
    keep = max(copies, key=lambda elf: (len(takers.get(elf.path, ())), elf.entry.size))
    spare = sum(elf.entry.size for elf in copies if elf is not keep)
    alike = "the same bytes" if len({elf.entry.sha256 for elf in copies}) == 1 else "different bytes"
    return Finding(
        code=Code.COPIES, severity=Severity.WARNING, where=f"/{keep.path}",
        message=f"{len(copies)} copies of `{name}` with {alike}: {some([elf.path for elf in copies])}; {told or 'nothing names it as needed'}",
        hint=f"one would do and save {spare / 1e6:.1f} MB",
    )  # fmt: skip


def loaded(case: Case, elf: Elf, name: str) -> str | None:
    """Return the file that the loader takes for `name` on behalf of `elf`: run paths first, then system folders."""
    origin = posixpath.dirname(elf.path)
    for folder in (*elf.runpaths, *(f"/{folder}" for folder in _system_folders(case))):
        plain = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", f"/{origin}")
        if plain.startswith("/") and (real := case.real(f"{plain}/{name}")):
            return real
    return None


def _system_folders(case: Case) -> Iterator[str]:
    """Return the folders of the loader's cache, in its order."""
    for path in sorted(path for path in case.paths if re.fullmatch(r"etc/ld\.so\.conf\.d/[^/]+\.conf", path)):
        lines = case.read(path).decode("utf-8", "replace").splitlines()
        yield from (line.strip().strip("/") for line in lines if line.startswith("/"))
    yield from DEFAULT_FOLDERS
