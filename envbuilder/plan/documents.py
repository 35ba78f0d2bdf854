"""The SBOM and the provenance of an environment, written when its other layers exist.

The installed packages are read from the layers and compared with the lock. A difference means that an installer did not do what it
was told.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuilder.artifacts.statement import Subject
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Kind
from envbuilder.layers.layer import Layer, read_files, read_manifest
from envbuilder.plan.license import License, debian_license, wheel_license
from envbuilder.plan.model import OsStep, Plan, PythonStep, RuntimeStep
from envbuilder.plan.provenance import PROVENANCE, make_provenance
from envbuilder.plan.sbom import SBOM, make_sbom

_STATUS: Final = "var/lib/dpkg/status"
_DOC: Final = "usr/share/doc/"
_COPYRIGHT: Final = re.compile(rf"{_DOC}[^/]+/copyright")
_METADATA: Final = re.compile(r".*/site-packages/[^/]+\.dist-info/METADATA")


def write_documents(
    plan: Plan,
    layers: Mapping[type, Layer],
    trees: Mapping[type, Path],
    tools: tuple[str, ...],
    engine: str,
) -> dict[str, str]:
    """Return path → text of both. `trees` are folders that may still hold a layer's files, which saves unpacking it.

    Raises BuildError if a layer holds other packages than the lock.
    """
    licenses: dict[str, License] = {}
    for step in plan.steps:
        if isinstance(step, OsStep | PythonStep):
            read = _debian if isinstance(step, OsStep) else _python
            installed = read(layers[type(step)], trees.get(type(step)))
            _need_same(step, {name: version for name, (version, _) in installed.items()})
            licenses |= {one.sha256: installed[_key(step, one.name)][1] for one in step.artefacts}
    subjects = [
        Subject(name=f"{layers[type(step)].name}.tar", sha256=layers[type(step)].diff_id)
        for step in plan.steps
        if not isinstance(step, RuntimeStep)
    ]
    return {SBOM: make_sbom(plan, licenses), PROVENANCE: make_provenance(plan, subjects, tools, engine)}


def _debian(layer: Layer, tree: Path | None) -> dict[str, tuple[str, License]]:
    """Return the installed packages: name → version and license."""
    entries = read_manifest(layer)
    wanted = {one.path for one in entries if one.path == _STATUS or _COPYRIGHT.fullmatch(one.path)}
    files = read_files(layer, wanted, tree)
    documents = {path.split("/")[3]: text for path, text in files.items() if path != _STATUS}
    for entry in entries:  # a package may link its folder of documents to another's
        if entry.kind is Kind.LINK and entry.path.startswith(_DOC):
            name, _, below = entry.path.removeprefix(_DOC).partition("/")
            other = entry.target.removesuffix("/copyright").rpartition("/")[2]
            if below in ("", "copyright") and other in documents:
                documents.setdefault(name, documents[other])
    found: dict[str, tuple[str, License]] = {}
    for stanza in files.get(_STATUS, b"").decode(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            text = documents.get(fields["Package"], b"").decode(errors="replace")
            found[fields["Package"]] = (fields["Version"], debian_license(text))
    return found


def _python(layer: Layer, tree: Path | None) -> dict[str, tuple[str, License]]:
    wanted = {one.path for one in read_manifest(layer) if _METADATA.fullmatch(one.path)}
    files = read_files(layer, wanted, tree)
    found: dict[str, tuple[str, License]] = {}
    for text in files.values():
        fields, _ = parse_email(text)
        name, version = fields.get("name", ""), fields.get("version", "")
        found[canonicalize_name(name)] = (_version(version), wheel_license(text))
    return found


def _need_same(step: OsStep | PythonStep, installed: Mapping[str, str]) -> None:
    locked = {
        _key(step, one.name): one.version if isinstance(step, OsStep) else _version(one.version)
        for one in step.artefacts
    }
    own = (
        isinstance(step, OsStep) and step.base is not None
    )  # packages of an image, which the lock does not name
    wrong = [
        f"{name}: locked {locked.get(name, 'not')}, installed {installed.get(name, 'not')}"
        for name in sorted(locked.keys() | (set() if own else installed.keys()))
        if locked.get(name) != installed.get(name)
    ]
    if wrong:
        kind = "Debian" if isinstance(step, OsStep) else "Python"
        raise BuildError(f"the {kind} packages are not those of the lock:\n" + "\n".join(wrong))


def _key(step: OsStep | PythonStep, name: str) -> str:
    return name if isinstance(step, OsStep) else canonicalize_name(name)


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text
