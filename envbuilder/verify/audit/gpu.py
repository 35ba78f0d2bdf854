"""Check that torch and every extension hold code for the recipe's GPUs.

NVIDIA's own libraries are left out: they choose code in their own ways, and several keep it
compressed.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from envbuilder.compat.context import can_run
from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.case import Case, Code
from envbuilder.verify.fatbin import CodeKind, read_gpu_code

# Torch's libraries, what is compiled against torch and lies beside it, and our extensions.
JUDGED: Final = re.compile(
    r"(opt/envbuilder/|.*/site-packages/(?!nvidia/|cusparselt/|triton/|nvidia_|cuda/|cupy)).*\.so(\.[\d.]+)?"
)


def check_gpus(case: Case, gpus: Sequence[str]) -> Iterator[Finding]:
    for elf in case.elves:
        if not (gpus and JUDGED.fullmatch(elf.path)):
            continue
        try:
            with case.tree.open(elf.path) as stream:
                found = read_gpu_code(stream)
        except ValueError as error:
            yield Finding(
                code=Code.UNREADABLE,
                severity=Severity.WARNING,
                where=f"/{elf.path}",
                message=f"its code for GPUs cannot be read: {error}",
            )
            continue
        cubins = tuple(code.capability for code in found if code.kind is CodeKind.CUBIN)
        ptx = tuple(code.capability for code in found if code.kind is CodeKind.PTX)
        for gpu in gpus if cubins or ptx else ():
            if can_run(gpu, cubins):
                continue
            compiles = can_run(gpu, (), ptx)
            held = " ".join(sorted({code.target for code in found}))
            yield Finding(
                code=Code.ONLY_PTX if compiles else Code.NO_CODE,
                severity=Severity.WARNING if compiles else Severity.ERROR,
                where=f"/{elf.path}",
                message=f"it holds no machine code that a GPU of capability {gpu} runs, but {held}",
                hint="the first start compiles its PTX, which takes minutes" if compiles else "`no kernel image is available` is what a job would say",
            )  # fmt: skip
    for path, why in case.unreadable.items():
        yield Finding(code=Code.UNREADABLE, severity=Severity.WARNING, where=f"/{path}", message=why)
