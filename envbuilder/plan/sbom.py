"""The SBOM of an environment in SPDX 2.3: every package with its version, license and hash.

The text depends on the plan and on the licenses that the packages declare. It names no machine, no host and no time, so every build of
the same lock writes the same text. It lies inside both artifacts.

Two kinds of packages declare their license in a machine-readable form: wheels in their metadata, Debian packages in copyright files of
the format DEP-5. Nothing is guessed from a license's text: an unclear declaration is quoted, and its expression stays empty.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from packaging.metadata import parse_email

from envbuilder import __version__
from envbuilder.compat.image_facts import Name
from envbuilder.core.cache import sha256_text
from envbuilder.lock.model import Artifact, LockedBase, LockedExtension
from envbuilder.plan.model import Plan
from envbuilder.sources.names import APT, CHANNEL, CUDA, URL

NOASSERTION: Final = "NOASSERTION"
_OWN: Final = "LicenseRef-"
_MOST_SHOWN: Final = 200  # characters of a quoted declaration
# Debian's short names with another SPDX name. `_debian_name` has the rule for GNU licenses.
_DEBIAN: Final = {
    "apache-2": "Apache-2.0", "artistic": "Artistic-1.0-Perl", "bsd-2": "BSD-2-Clause", "bsd-3": "BSD-3-Clause",
    "bsl": "BSL-1.0", "cc0": "CC0-1.0", "expat": "MIT", "mit/x11": "MIT", "python": "PSF-2.0",
}  # fmt: skip
_GNU: Final = re.compile(r"(A|L)?GPL-(\d)(?:\.(\d))?(\+?)")
# Declarations in wheels that are clear but not SPDX names.
_WHEEL: Final = {
    "apache 2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0", "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0", "isc license (iscl)": "ISC", "mit license": "MIT", "psf": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "python software foundation license": "PSF-2.0",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class License:
    """`expression` is an SPDX expression, "" if unclear. `stated` is the package's own text."""

    expression: str = ""
    stated: str = ""


UNKNOWN: Final = License()


def make_sbom(plan: Plan, licenses: Mapping[str, License]) -> str:
    """Return the SBOM in SPDX 2.3. `licenses` maps the sha256 of a file to its license."""
    files = {file: licenses.get(file.sha256, UNKNOWN) for file in every_artifact(plan)}
    return make_document(
        plan.name, plan.key, version=plan.key[:12], epoch=plan.epoch, purpose="CONTAINER", files=files,
        others=(*_image(plan), *map(_extension, plan.extensions)),
    )  # fmt: skip


def make_document(
    name: str, key: str, *,
    version: str, epoch: int, purpose: str, files: Mapping[Artifact, License], others: Sequence[dict[str, object]] = (),
) -> str:  # fmt: skip
    """Return the SBOM of anything that is made of locked files. `key` names its content."""
    top = "SPDXRef-environment"
    packages = [*itertools.starmap(_artifact, files.items()), *others]
    references = sorted({name for declared in files.values() for name in own_references(declared.expression)})
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/envbuilder-{name}-{key}",
        "creationInfo": {"created": created, "creators": [f"Tool: envbuilder-{__version__}"]},
        "packages": [_package(top, name, version) | {"primaryPackagePurpose": purpose}, *packages],
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
    if artifact.kind == "conda":
        stem = re.sub(r"\.conda$|\.tar\.bz2$", "", artifact.filename)
        channel, build = artifact.source.removeprefix(CHANNEL), _quoted(stem.rpartition("-")[2])
        where = f"build={build}&channel={channel}&subdir={artifact.path.partition('/')[0]}"
        return f"pkg:conda/{_quoted(artifact.name)}@{version}?{where}"
    if artifact.kind == "kernel":
        owner, name = artifact.path.partition("/resolve/")[0].split("/")[-2:]
        return f"pkg:huggingface/{_quoted(owner)}/{_quoted(name)}@{version}"
    if artifact.kind in {"git", "archive"} or (artifact.kind != "wheel" and artifact.source.startswith(URL)):
        return f"pkg:generic/{_quoted(artifact.name)}@{version}"
    return f"pkg:pypi/{artifact.name.lower().replace('_', '-')}@{version}"


def _supplier(artifact: Artifact) -> str:
    if artifact.source == CUDA:
        return "Organization: NVIDIA"
    if artifact.kind != "deb" or artifact.source.startswith(APT):
        return NOASSERTION
    return f"Organization: {distribution_of(artifact).capitalize()}"


def _artifact(file: Artifact, declared: License) -> dict[str, object]:
    package = _package(_identity(file.kind, file.name, file.sha256), file.name, file.version)
    package |= {
        "externalRefs": _references(purl(file)),
        "packageFileName": file.filename,
        "sourceInfo": f"{file.source}: {file.path}",
        "supplier": _supplier(file),
        "licenseDeclared": declared.expression or NOASSERTION,
        "checksums": [{"algorithm": "SHA256", "checksumValue": file.sha256}],
    }
    if declared.stated and declared.stated != declared.expression:
        package["licenseComments"] = f"the package says: {declared.stated}"
    return package


def _image(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield the base image, and its packages that no package of the lock replaces."""
    base = plan.os.base
    if base is None:
        return
    digest = f"sha256:{base.manifest.digest}"
    whole = _package(_identity("image", base.repository, base.manifest.digest), base.repository, digest)
    yield whole | {"externalRefs": _references(image_purl(base))}
    ours = {deb.name for deb in plan.os.artifacts}
    family = base.inside.distribution.partition("/")[0] or "linux"
    kind = {"dpkg": "deb", "rpm": "rpm"}.get(base.inside.value(Name.MANAGER), "generic")
    for name, _, version in (package.partition("=") for package in base.packages):
        if name not in ours:
            yield _package(_identity("image", name, sha256_text(version)), name, version) | {
                "sourceInfo": f"of the image {base.reference}",
                "externalRefs": _references(f"pkg:{kind}/{family}/{_quoted(name)}@{_quoted(version)}"),
            }


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~")


def _references(locator: str) -> list[dict[str, str]]:
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}]


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
    return tuple({file.sha256: file for step in plan.steps for file in step.artifacts}.values())


def _identity(kind: str, name: str, digest: str) -> str:
    words = ("SPDXRef", kind, re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-"), digest[:8])
    return "-".join(filter(None, words))


def _relation(element: str, kind: str, related: str) -> dict[str, object]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


if TYPE_CHECKING:
    from license_expression import Licensing

# ---- licenses


def wheel_license(metadata: bytes) -> License:
    """Read the METADATA of a wheel: `License-Expression`, otherwise `License` or its classifiers."""
    fields, _ = parse_email(metadata)
    stated = fields.get("license_expression", "")
    if expression := _normal(stated):
        return License(expression=expression, stated=stated)
    classifiers = (text for text in fields.get("classifiers", ()) if text.startswith("License :: "))
    texts = [fields.get("license", ""), *(text.rpartition(" :: ")[2] for text in classifiers)]
    texts = [text for text in texts if text != "OSI Approved"]
    known = sorted({_WHEEL.get(text.strip().lower(), "") or _normal(text) for text in texts} - {""})
    first = next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")
    return License(expression=known[0] if len(known) == 1 else "", stated=(stated or first)[:_MOST_SHOWN])


def conda_license(stated: str) -> License:
    """Read the license that a package of conda states: mostly an expression of SPDX."""
    return License(expression=_normal(stated), stated=stated[:_MOST_SHOWN])


def debian_license(copyright_text: str) -> License:
    """Read a copyright file of Debian: the licenses of all its files. A file that is not DEP-5 gives UNKNOWN."""
    if not re.match(r"\s*Format(-Specification)?:", copyright_text):
        return UNKNOWN
    stanzas = re.split(r"\n\s*\n", copyright_text)
    files = [text for text in stanzas if re.search(r"^Files:", text, re.MULTILINE)]
    lines = (re.search(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE) for text in files)
    stated = {line[1].strip() for line in lines if line}
    parts = sorted(set(map(_debian_expression, stated)))
    joined = " AND ".join(f"({part})" if " OR " in part and len(parts) > 1 else part for part in parts)
    return License(expression=joined, stated="; ".join(sorted(stated))[:_MOST_SHOWN])


def own_references(expression: str) -> tuple[str, ...]:
    """Return the names in an expression that are not in SPDX's list."""
    return tuple(sorted(set(re.findall(rf"{_OWN}[A-Za-z0-9.-]+", expression))))


def _debian_expression(stated: str) -> str:
    names = re.split(r",?\s+(and|or)\s+", stated)  # every second one is `and` or `or`
    return " ".join(_debian_name(name) if at % 2 == 0 else name.upper() for at, name in enumerate(names))


def _debian_name(name: str) -> str:
    if gnu := _GNU.fullmatch(name):
        kind, major, minor, later = gnu.groups()
        name = f"{kind or ''}GPL-{major}.{minor or 0}-{'or-later' if later else 'only'}"
    known = _DEBIAN.get(name.lower()) or _names().get(name.lower())
    return known or _OWN + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _normal(text: str) -> str:
    """Return the text as an SPDX expression, "" if it has a name that is not in SPDX's list."""
    if not text or len(text) > _MOST_SHOWN or "\n" in text:
        return ""
    licensing, invalid = _licensing()
    try:
        parsed = licensing.parse(text, validate=True)
    except invalid:
        return ""
    if any(str(key).lower() not in _names() for key in licensing.license_keys(parsed)):
        return ""
    return str(parsed.render())


@functools.cache
def _licensing() -> "tuple[Licensing, type[Exception]]":
    from license_expression import ExpressionError, get_spdx_licensing  # noqa: PLC0415 - it takes 0.1 s, for an SBOM alone

    return get_spdx_licensing(), ExpressionError


@functools.cache
def _names() -> dict[str, str]:
    """Return lower case → name of SPDX's list."""
    return {key.lower(): key for key in _licensing()[0].known_symbols if not key.startswith(_OWN)}
