"""Find faults in a tree that image and SIF agree about: libraries that cannot load, unsafe permissions, secrets.

Each module checks one kind of fault. The tree is read once for all of them.
"""

from collections.abc import Sequence

from envbuilder.core.findings import Finding
from envbuilder.core.processor import Processor
from envbuilder.verify.audit import libraries
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    AuditedTree,
    ImageTexts,
    read_audited,
)
from envbuilder.verify.audit.files import check_rights, check_secrets
from envbuilder.verify.audit.linked import check_linked
from envbuilder.verify.audit.needed import check_needed, check_openmp, is_of_environment

__all__ = [
    "AuditCode",
    "AuditedImage",
    "AuditedTree",
    "ImageTexts",
    "audit",
    "check_needed",
    "is_of_environment",
    "read_audited",
]  # fmt: skip


def audit(
    tree: AuditedTree,
    *,
    outside: ImageTexts | None = None,
    gpus: Sequence[str] = (),
    oldest_glibc: str = "",
    processor: Processor | None = None,
) -> tuple[Finding, ...]:
    """Return every finding, sorted by code and place.

    `gpus` are compute capabilities; without them, GPU code is not checked. `oldest_glibc` is that of the
    oldest machine that may use the Python environment without the image around it. `processor` is the
    image's; without it, programs of any are accepted.
    """
    image = read_audited(tree, outside=outside or ImageTexts())
    machine = processor.elf if processor else None
    findings = (
        *libraries.check_processor(image, processor),
        *libraries.check_gpus(image, gpus),
        *check_needed(image, machine),
        *check_linked(image, machine),
        *check_openmp(image, machine),
        *libraries.check_symbols(image),
        *libraries.check_oldest_host(image, oldest_glibc),
        *libraries.check_copies(image),
        *libraries.check_rdma(image),
        *check_rights(image),
        *libraries.check_runpaths(image),
        *check_secrets(image),
    )
    return tuple(sorted(findings, key=lambda finding: (finding.code, finding.where)))
