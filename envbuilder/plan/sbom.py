"""The SBOM of an environment in SPDX 2.3: every package with its version, license and hash.

The text depends on the plan and on the licenses that the packages declare. It names no machine, no host and no time, so every build of
the same lock writes the same text. It lies inside both artifacts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from envbuilder import __version__
from envbuilder.compat.image_facts import Name
from envbuilder.core.cache import sha256_text
from envbuilder.lock.model import Artifact, LockedBase, LockedExtension
from envbuilder.plan.license import UNKNOWN, License, own_references
from envbuilder.plan.model import Plan
from envbuilder.sources.names import APT, CUDA, URL

NOASSERTION: Final = "NOASSERTION"


def make_sbom(plan: Plan, licenses: Mapping[str, License]) -> str:
    """Return the SBOM in SPDX 2.3. `licenses` maps the sha256 of a file to its license."""
    top = "SPDXRef-environment"
    packages = [*_artifacts(plan, licenses), *_image(plan), *map(_extension, plan.extensions)]
    references = sorted({name for one in licenses.values() for name in own_references(one.expression)})
    created = datetime.fromtimestamp(plan.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": plan.name,
        "documentNamespace": f"https://spdx.org/spdxdocs/envbuilder-{plan.name}-{plan.key}",
        "creationInfo": {"created": created, "creators": [f"Tool: envbuilder-{__version__}"]},
        "packages": [
            _package(top, plan.name, plan.key[:12]) | {"primaryPackagePurpose": "CONTAINER"},
            *packages,
        ],
        "hasExtractedLicensingInfos": [
            {
                "licenseId": name,
                "extractedText": "named so, and given in full, in /usr/share/doc/PACKAGE/copyright of the packages that refer to it",
            }
            for name in references
        ],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", top),
            *(_relation(top, "CONTAINS", str(package["SPDXID"])) for package in packages),
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def distribution_of(deb: Artifact) -> str:
    """Return the distribution of a package, by the archive that it is from: debian for debian-security.

    For another repository, return its name.
    """
    return deb.source.removeprefix(APT) if deb.source.startswith(APT) else deb.source.partition("-")[0]


def purl(artifact: Artifact) -> str:
    """Return the package URL of a locked file."""
    version = _quoted(artifact.version)
    if artifact.kind == "deb":
        architecture = artifact.filename.removesuffix(".deb").rpartition("_")[2]
        return f"pkg:deb/{distribution_of(artifact)}/{_quoted(artifact.name)}@{version}?arch={architecture}"
    if artifact.kind in {"git", "archive"} or artifact.source.startswith(URL):
        return f"pkg:generic/{_quoted(artifact.name)}@{version}"
    return f"pkg:pypi/{artifact.name.lower().replace('_', '-')}@{version}"


def _supplier(artifact: Artifact) -> str:
    if artifact.source == CUDA:
        return "Organization: NVIDIA"
    if artifact.kind != "deb" or artifact.source.startswith(APT):
        return NOASSERTION
    return f"Organization: {distribution_of(artifact).capitalize()}"


def _artifacts(plan: Plan, licenses: Mapping[str, License]) -> Iterator[dict[str, object]]:
    for one in every_artifact(plan):
        found = licenses.get(one.sha256, UNKNOWN)
        package = _package(_identity(one.kind, one.name, one.sha256), one.name, one.version)
        package = _referred(package, purl(one)) | {
            "packageFileName": one.filename,
            "sourceInfo": f"{one.source}: {one.path}",
            "supplier": _supplier(one),
            "licenseDeclared": found.expression or NOASSERTION,
            "checksums": [{"algorithm": "SHA256", "checksumValue": one.sha256}],
        }
        if found.stated and found.stated != found.expression:
            package["licenseComments"] = f"the package says: {found.stated}"
        yield package


def _image(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield the base image, and its packages that no package of the lock replaces."""
    base = plan.os.base
    if base is None:
        return
    digest = f"sha256:{base.manifest.digest}"
    whole = _package(_identity("image", base.repository, base.manifest.digest), base.repository, digest)
    yield _referred(whole, image_purl(base))
    ours = {one.name for one in plan.os.artifacts}
    family = base.inside.distribution.partition("/")[0] or "linux"
    kind = {"dpkg": "deb", "rpm": "rpm"}.get(base.inside.value(Name.MANAGER), "generic")
    for name, _, version in (one.partition("=") for one in base.packages):
        if name not in ours:
            package = _package(_identity("image", name, sha256_text(version)), name, version)
            package["sourceInfo"] = f"of the image {base.reference}"
            yield _referred(package, f"pkg:{kind}/{family}/{_quoted(name)}@{_quoted(version)}")


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~")


def _referred(package: dict[str, object], locator: str) -> dict[str, object]:
    reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
    return package | {"externalRefs": [reference]}


def image_purl(base: LockedBase) -> str:
    place, _, digest = base.pinned.partition("@")
    name = base.repository.rpartition("/")[2]
    return f"pkg:oci/{_quoted(name)}@{quote(digest, safe='')}?repository_url={quote(place, safe='/')}"


def _extension(extension: LockedExtension) -> dict[str, object]:
    files = "\n".join(f"sha256:{file.sha256} {file.path}" for file in extension.files)
    return _package(_identity("extension", extension.name, ""), extension.name, "") | {
        "comment": f"compiled from the recipe's own sources:\n{files}"
    }


def _package(identity: str, name: str, version: str) -> dict[str, object]:
    package: dict[str, object] = {
        "SPDXID": identity,
        "name": name,
        "downloadLocation": NOASSERTION,  # a lock names no host
        "filesAnalyzed": False,
        "licenseConcluded": NOASSERTION,
        "licenseDeclared": NOASSERTION,
        "copyrightText": NOASSERTION,
        "supplier": NOASSERTION,
    }
    return package | ({"versionInfo": version} if version else {})


def every_artifact(plan: Plan) -> tuple[Artifact, ...]:
    """Return each locked file once: the CUDA toolkit may use a wheel of the Python environment."""
    return tuple({one.sha256: one for step in plan.steps for one in step.artifacts}.values())


def _identity(kind: str, name: str, digest: str) -> str:
    words = ("SPDXRef", kind, re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-"), digest[:8])
    return "-".join(filter(None, words))


def _relation(one: str, kind: str, other: str) -> dict[str, object]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
