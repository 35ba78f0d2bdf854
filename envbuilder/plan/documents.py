"""The SBOM and the provenance of an environment, written when all other layers exist.

They describe the installed packages, read from the layers. A package that differs from the lock is an error of an installer.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuilder import __version__
from envbuilder.artifacts.statement import SLSA_PROVENANCE, Subject, make_statement
from envbuilder.core.budget import parse_json
from envbuilder.core.cache import sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Kind
from envbuilder.layers.layer import Layer, read_files, read_manifest
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import PROVENANCE, SBOM
from envbuilder.plan.model import CondaStep, OsStep, Plan, PythonStep, RuntimeStep
from envbuilder.plan.sbom import (
    License,
    conda_license,
    debian_license,
    every_artifact,
    image_purl,
    make_sbom,
    purl,
    wheel_license,
)
from envbuilder.recipe.channels import CONDA_PREFIX
from envbuilder.sources.installed import DPKG, read_dpkg

BUILD_TYPE: Final = "urn:envbuilder:layers:1"
BUILDER: Final = "urn:envbuilder:local"  # the user's own machine: level 1 of SLSA, whoever signs it
_DOC: Final = "usr/share/doc/"
_COPYRIGHT: Final = re.compile(rf"{_DOC}[^/]+/copyright")
_RECORD: Final = re.compile(rf"{CONDA_PREFIX[1:]}/conda-meta/[^/]+\.json")
_METADATA: Final = re.compile(r".*/site-packages/[^/]+\.dist-info/METADATA")


def write_documents(plan: Plan, made: Callable[[str], Layer], tools: tuple[str, ...]) -> dict[str, str]:
    """Return path → text of both. `made` waits for the layer of a step: some are read while later ones are made.

    Raises BuildError if a layer holds other packages than the lock.
    """
    licenses: dict[str, License] = {}
    for step in plan.steps:
        if isinstance(step, OsStep | PythonStep | CondaStep):
            others = _conda if isinstance(step, CondaStep) else _debian
            read = _python if isinstance(step, PythonStep) else others
            installed = read(made(step.name))
            _need_same(step, {name: version for name, (version, _) in installed.items()})
            licenses |= {file.sha256: installed[_key(step, file.name)][1] for file in step.artifacts}
    subjects = [
        Subject(name=f"{step.name}.tar", sha256=made(step.name).diff_id)
        for step in plan.steps
        if not isinstance(step, RuntimeStep)
    ]
    return {SBOM: make_sbom(plan, licenses), PROVENANCE: make_provenance(plan, subjects, tools)}


def make_provenance(plan: Plan, subjects: Sequence[Subject], tools: Sequence[str]) -> str:
    """Return the provenance: an in-toto statement about the subjects, with SLSA provenance of version 1.

    Like the SBOM, it depends on the plan alone and lies inside both artifacts.
    """
    dependencies = [
        {"name": file.filename, "uri": purl(file), "digest": {"sha256": file.sha256}}
        for file in dict.fromkeys((*every_artifact(plan), *_tools(plan)))
    ]
    if base := plan.os.base:
        digest = {"sha256": base.manifest.digest}
        dependencies.append({"name": base.reference, "uri": image_purl(base), "digest": digest})
    dependencies += [
        {"name": f"{extension.name}/{file.path}", "digest": {"sha256": file.sha256}}
        for extension in plan.extensions
        for file in extension.files
    ]
    warm = plan.warm.files if plan.warm else ()
    dependencies += [{"name": f"warm/{file.path}", "digest": {"sha256": file.sha256}} for file in warm]
    files = [Subject(name=path, sha256=sha256_text(text)).data() for path, text in plan.runtime.files]
    versions = {"envbuilder": __version__} | dict(tool.split(" ", 1) for tool in tools)
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": plan.name, "files": files},
            "internalParameters": {"platform": plan.platform, "epoch": plan.epoch, "plan": plan.key},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": BUILDER, "version": versions}},
    }
    return make_statement(subjects, predicate_type=SLSA_PROVENANCE, predicate=predicate)


def _tools(plan: Plan) -> Iterator[Artifact]:
    """Yield the packages that are in no layer, because only builds need them."""
    yield from plan.tools.artifacts if plan.tools else ()
    for step in plan.steps:
        if isinstance(step, PythonStep):
            yield from (wheel for build in step.builds for wheel in build.wheels)


def _debian(layer: Layer) -> dict[str, tuple[str, License]]:
    entries = read_manifest(layer)
    wanted = {entry.path for entry in entries if entry.path == DPKG or _COPYRIGHT.fullmatch(entry.path)}
    files = read_files(layer, wanted)
    documents = {path.split("/")[3]: text for path, text in files.items() if path != DPKG}
    for entry in entries:  # some packages link their documentation to that of another
        if entry.kind is Kind.LINK and entry.path.startswith(_DOC):
            name, _, below = entry.path.removeprefix(_DOC).partition("/")
            other = entry.target.removesuffix("/copyright").rpartition("/")[2]
            if below in ("", "copyright") and other in documents:
                documents.setdefault(name, documents[other])
    return {
        name: (version, debian_license(documents.get(name, b"").decode(errors="replace")))
        for name, version in read_dpkg(files).items()
    }


def _python(layer: Layer) -> dict[str, tuple[str, License]]:
    wanted = {entry.path for entry in read_manifest(layer) if _METADATA.fullmatch(entry.path)}
    packages: dict[str, tuple[str, License]] = {}
    for text in read_files(layer, wanted).values():
        fields, _ = parse_email(text)
        name = canonicalize_name(fields.get("name", ""))
        packages[name] = (_version(fields.get("version", "")), wheel_license(text))
    return packages


def _conda(layer: Layer) -> dict[str, tuple[str, License]]:
    wanted = {entry.path for entry in read_manifest(layer) if _RECORD.fullmatch(entry.path)}
    packages: dict[str, tuple[str, License]] = {}
    for path, text in read_files(layer, wanted).items():
        try:
            record = parse_json(text)
            name, version = str(record["name"]), str(record["version"])
            packages[name] = version, conda_license(str(record.get("license") or ""))
        except (ValueError, LookupError, TypeError) as error:
            raise BuildError(f"`/{path}` is no record of a package of conda: {error}") from error
    return packages


def _need_same(step: OsStep | PythonStep | CondaStep, installed: Mapping[str, str]) -> None:
    is_python = isinstance(step, PythonStep)
    locked = {
        _key(step, file.name): _version(file.version) if is_python else file.version
        for file in step.artifacts
    }
    # The lock does not name the packages of a base image.
    names = locked.keys() if isinstance(step, OsStep) and step.base else locked.keys() | installed.keys()
    wrong = [
        f"{name}: locked {locked.get(name, 'not')}, installed {installed.get(name, 'not')}"
        for name in sorted(names)
        if locked.get(name) != installed.get(name)
    ]
    if wrong:
        kind = "Debian" if isinstance(step, OsStep) else "Python" if is_python else "conda"
        raise BuildError(f"the {kind} packages are not those of the lock:\n" + "\n".join(wrong))


def _key(step: OsStep | PythonStep | CondaStep, name: str) -> str:
    return canonicalize_name(name) if isinstance(step, PythonStep) else name


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text
