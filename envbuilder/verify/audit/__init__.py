"""Find faults in a tree that image and SIF agree about: libraries that cannot load, unsafe permissions, secrets.

Each module checks one kind of fault. The tree is read once for all of them.
"""

from collections.abc import Sequence

from envbuilder.core.findings import Finding
from envbuilder.verify.audit.audited_image import AuditedImage, Code, ImageTexts, Tree, read_audited
from envbuilder.verify.audit.files import check_rights, check_secrets
from envbuilder.verify.audit.libraries import (
    check_copies,
    check_gpus,
    check_oldest_host,
    check_rdma,
    check_runpaths,
    check_symbols,
)

__all__ = ["AuditedImage", "Code", "ImageTexts", "Tree", "audit"]


def audit(
    tree: Tree,
    *,
    outside: ImageTexts | None = None,
    gpus: Sequence[str] = (),
    oldest_glibc: str = "",
) -> tuple[Finding, ...]:
    """Return every finding, sorted by code and place.

    `gpus` are compute capabilities; without them, GPU code is not checked. `oldest_glibc` is that of the
    oldest machine that may use the Python environment without the image around it.
    """
    image = read_audited(tree, outside=outside or ImageTexts())
    findings = (
        *check_gpus(image, gpus),
        *check_symbols(image),
        *check_oldest_host(image, oldest_glibc),
        *check_copies(image),
        *check_rdma(image),
        *check_rights(image),
        *check_runpaths(image),
        *check_secrets(image),
    )
    return tuple(sorted(findings, key=lambda finding: (finding.code, finding.where)))
