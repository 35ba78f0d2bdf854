"""Find faults in a tree that image and SIF agree about: libraries that cannot load, unsafe permissions, secrets.

Each module checks one kind of fault. The tree is read once for all of them.
"""

from collections.abc import Sequence

from envbuilder.core.findings import Finding
from envbuilder.verify.audit.case import Case, Code, Said, Tree, read_case
from envbuilder.verify.audit.copies import check_copies
from envbuilder.verify.audit.gpu import check_gpus
from envbuilder.verify.audit.rdma import check_rdma
from envbuilder.verify.audit.rights import check_rights
from envbuilder.verify.audit.runpath import check_runpaths
from envbuilder.verify.audit.secret import check_secrets
from envbuilder.verify.audit.symbols import check_oldest_host, check_symbols

__all__ = ["Case", "Code", "Said", "Tree", "audit"]


def audit(
    tree: Tree,
    *,
    said: Said | None = None,
    gpus: Sequence[str] = (),
    oldest_glibc: str = "",
) -> tuple[Finding, ...]:
    """Every finding, by code and place; empty for a tree that is as it should be.

    `gpus` are compute capabilities; without them code for GPUs is not judged. `oldest_glibc` is
    that of the oldest machine which may use the Python environment without the image around it.
    """
    case = read_case(tree, said=said or Said())
    findings = (
        *check_gpus(case, gpus),
        *check_symbols(case),
        *check_oldest_host(case, oldest_glibc),
        *check_copies(case),
        *check_rdma(case),
        *check_rights(case),
        *check_runpaths(case),
        *check_secrets(case),
    )
    return tuple(sorted(findings, key=lambda finding: (finding.code, finding.where)))
