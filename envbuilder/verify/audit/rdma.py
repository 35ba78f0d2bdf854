"""Check that NCCL finds libibverbs and a provider for InfiniBand and RoCE. Otherwise it silently uses sockets."""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.case import Case, Code, Elf

VERBS: Final = "libibverbs.so.1"
# NCCL as a library of its own, or inside torch's.
_NCCL: Final = re.compile(r"(.*/)?(libnccl\.so\.2|libtorch_cuda\.so)")
_PROVIDER: Final = re.compile(r"(.*/)?libibverbs/lib(\w+)-rdmav\d+\.so")
_DRIVER: Final = "etc/libibverbs.d/{}.driver"


def check_rdma(case: Case) -> Iterator[Finding]:
    using = next((elf for elf in case.elves if _NCCL.fullmatch(elf.path)), None)
    if using is None:
        return
    names = {elf.name for elf in case.elves}
    names |= {
        posixpath.basename(path) for path in case.paths if ".so" in path and case.real(path) is not None
    }
    verbs = [elf for elf in case.elves if elf.name == VERBS]
    providers = [
        elf
        for elf in case.elves
        if (match := _PROVIDER.fullmatch(elf.path)) and _DRIVER.format(match[2]) in case.paths
    ]
    for what, elves in ((f"`{VERBS}`", verbs), ("a provider of libibverbs", providers)):
        missing = _missing(elves, names)
        if missing is not None:
            yield Finding(
                code=Code.RDMA, severity=Severity.WARNING, where=f"/{using.path}",
                message=f"NCCL is here and {what} is not, so InfiniBand and RoCE would not be used{missing}",
                hint="the packages libibverbs1 and ibverbs-providers bring it; `envbuilder lock NAME` takes them up",
            )  # fmt: skip


def _missing(elves: list[Elf], names: set[str]) -> str | None:
    """Return what the best candidate lacks, or None when one lacks nothing."""
    lacks = [sorted(set(elf.needed) - names) for elf in elves]
    if not lacks:
        return ""
    least = min(lacks, key=len)
    return f": it needs {', '.join(least)}" if least else None
