"""The sections of a report: what each says of an environment."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from envbuilder import __version__
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import brief, driver_floor, facts
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.system import utc_time
from envbuilder.lock.file import lock_path
from envbuilder.plan.model import Plan
from envbuilder.recipe.model import Recipe
from envbuilder.verify.pair import VerifiedPair
from envbuilder.verify.report.page import Line, Page, Section, Table
from envbuilder.verify.report.sizes import Part, layer_sizes

NOT_STATED: Final = "NOASSERTION"
_LARGEST: Final = 25  # packages in the table of sizes
Package = dict[str, Any]  # of an SBOM in SPDX


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An environment that was built, and what is known of it."""

    recipe: Recipe
    plan: Plan
    outputs: Outputs
    record: Record | None
    packages: tuple[Package, ...]
    parts: tuple[Part, ...]
    verdict: VerifiedPair | str  # the answer of `verify`, or its error
    findings: tuple[Finding, ...]
    extensions: Table


def make_page(subject: Subject) -> Page:
    sections = (_identity, _usage, _proof, _pins, _sizes, _extensions, _times, _licenses, _sbom)
    return Page(
        title=subject.recipe.name,
        summary=subject.recipe.summary,
        figures=_figures(subject),
        sections=tuple(section(subject) for section in sections),
        version=__version__,
    )


def read_packages(sbom: str) -> tuple[Package, ...]:
    """Return the packages of the SBOM, without the environment itself; raises UsageError."""
    try:
        packages = json.loads(sbom)["packages"]
        return tuple(package for package in packages if "primaryPackagePurpose" not in package)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("the SBOM in the SIF cannot be read", hint="build it again") from error


def _figures(subject: Subject) -> tuple[tuple[str, str], ...]:
    """Return the figures at the top of the page."""
    recipe, sif = subject.recipe, subject.outputs.sif.stat()
    floor = driver_floor(recipe, load_tables())
    return (
        ("built", f"{utc_time(sif.st_mtime):%Y-%m-%d}"),
        ("SIF", _size(sif.st_size)),
        ("files", _size(sum(part.size for part in subject.parts))),
        ("packages", str(len(subject.packages))),
        ("Python", recipe.python),
        ("PyTorch", recipe.pytorch or "none"),
        ("CUDA", recipe.cuda or "none"),
        ("GPUs", ", ".join(recipe.gpus) or "none"),
        *([("driver floor", floor)] if floor else []),
    )


def _identity(subject: Subject) -> Section:
    """Return what names the artifacts, whichever copy of them a reader has."""
    outputs, record, lock = subject.outputs, subject.record, lock_path(subject.recipe)
    lines = {
        f"{outputs.sif.name}, sha256": record.sif if record else sha256_file(outputs.sif),
        "image": outputs.image_name,
        "its manifest, sha256": record.manifest if record else read_layout(outputs.image).manifest.digest,
        "lock": f"{lock}, as of {datetime.fromtimestamp(subject.plan.epoch, UTC):%Y-%m-%d}",
        "its sha256": sha256_file(lock),
        "build key": subject.plan.key,
    }
    return Section(title="Identity", lines=_lines(lines))


def _usage(subject: Subject) -> Section:
    """Return a line to copy for each way to run it."""
    recipe, outputs = subject.recipe, subject.outputs
    name, sif, image = recipe.name, outputs.sif.name, outputs.image_name
    nv, gpus, nodes = ("--nv ", "--gpus all ", " --gpus-per-node 4") if recipe.gpus else ("", "", "")
    docker = f'docker run --rm {gpus}--ipc=host --user "$(id -u):$(id -g)" --env HOME=/tmp'
    mount = '--volume "$PWD:/work" --workdir /work'
    has_kernel = any(package["name"] == "ipykernel" for package in subject.packages)
    lines = {
        "envbuilder": f"envbuilder exec {name} -- python train.py",
        "Apptainer": f"apptainer exec {nv}{sif} python train.py",
        "Docker": f"{docker} \\\n  {mount} {image} python train.py",
        "Slurm": f"envbuilder launch slurm {name} --nodes 2{nodes} -- train.py",
        "VS Code": f"envbuilder devcontainer {name} --write PROJECT",
        **({"Jupyter": f"envbuilder kernel {name}"} if has_kernel else {}),
        "build it again": f"envbuilder build {name}",
    }
    return Section(title="Run it", lines=_lines(lines))


def _lines(lines: dict[str, str]) -> tuple[Line, ...]:
    return tuple(Line(label=label, text=text) for label, text in lines.items())


def _proof(subject: Subject) -> Section:
    """Return what was checked now, and what the build tested."""
    ended = {title for title, _ in subject.record.steps} if subject.record else set()
    tests = tuple(
        (test, ", ".join(kind for kind in ("SIF", "image") if f"test in the {kind}: {test}" in ended) or "not known")
        for test in subject.recipe.tests
    )  # fmt: skip
    verdict = subject.verdict
    if isinstance(verdict, VerifiedPair):
        plan = ", those of the plan" if verdict.plan else ""
        again = f"`envbuilder verify {subject.recipe.name}` checks it again."
        verdict = f"Image and SIF hold the same {verdict.paths} paths{plan}. {again}"
    if subject.outputs.bundle.is_file():
        verdict += " A signed statement lies beside them: `envbuilder verify --key FILE.pub` checks it."
    audits = tuple(
        (
            finding.code,
            str(finding.severity),
            f"{finding}\nhint: {finding.hint}" if finding.hint else str(finding),
        )
        for finding in subject.findings
    )
    nothing = "The audits of `verify` found nothing. `check` asks for security updates."
    return Section(
        title="Proof",
        text=verdict,
        tables=(
            Table(title="Tests of the recipe", head=("test", "passed in"), rows=tests, empty="The recipe has none."),
            Table(title="Audits", head=("code", "severity", "finding"), rows=audits, empty=nothing),
        ),
    )  # fmt: skip


def _pins(subject: Subject) -> Section:
    recipe = subject.recipe
    unset: tuple[object, ...] = ("", [], {})
    pins = tuple(
        (key, brief(value), recipe.place(f"$.{key}"))
        for key, value in json.loads(recipe.canonical()).items()
        if value not in unset and key != "format"
    )
    follow = tuple((fact.name, fact.value, fact.source) for fact in facts(recipe, load_tables()))
    return Section(
        title="Pins",
        tables=(
            Table(title="In the recipe", head=("key", "value", "written in"), rows=pins),
            Table(title="What follows from them", head=("fact", "value", "source"), rows=follow),
        ),
    )


def _sizes(subject: Subject) -> Section:
    layers = layer_sizes(subject.parts)
    total = sum(layers.values()) or 1
    largest = sorted(subject.parts, key=lambda part: -part.size)[:_LARGEST]
    by_layer = tuple((name, _size(size), f"{100 * size / total:.1f} %") for name, size in layers.items())
    by_part = tuple((part.name, part.layer, _size(part.size)) for part in largest)
    return Section(
        title="Sizes",
        text="Bytes of the files, before compression; a file with two names counts under each.",
        tables=(
            Table(title="Layers", head=("layer", "size", "share"), rows=by_layer),
            Table(title=f"The {len(largest)} largest", head=("package", "layer", "size"), rows=by_part),
        ),
    )


def _extensions(subject: Subject) -> Section:
    return Section(title="Extensions", tables=(subject.extensions,))


def _times(subject: Subject) -> Section:
    """Return the steps of the build. They run at the same time, so their sum exceeds the time of the build."""
    steps = subject.record.steps if subject.record else ()
    table = Table(
        head=("step", "time"),
        rows=tuple((title, f"{seconds:.1f} s") for title, seconds in steps),
        empty="Not known: these files were built elsewhere, or changed since.",
    )
    text = "Of the build that made these files. Steps run beside each other; what the cache had has none."
    return Section(title="Build times", text=text, tables=(table,))


def _licenses(subject: Subject) -> Section:
    counted = Counter(sorted(map(_license, subject.packages))).most_common()
    rows = tuple((name, str(count)) for name, count in counted)
    return Section(
        title="Licenses", is_folded=True, tables=(Table(head=("license, in SPDX", "packages"), rows=rows),)
    )


def _sbom(subject: Subject) -> Section:
    rows = tuple(
        (
            str(package["name"]), str(package.get("versionInfo", "")), _license(package),
            str(package.get("sourceInfo", "")), _sha256(package.get("checksums", ())),
        )
        for package in subject.packages
    )  # fmt: skip
    return Section(
        title="SBOM",
        text="The same as `envbuilder show --sbom` prints in SPDX, with whole digests there.",
        is_folded=True,
        tables=(Table(head=("package", "version", "license", "from", "sha256"), rows=rows),),
    )


def _license(package: Package) -> str:
    stated = str(package.get("licenseDeclared", NOT_STATED))
    return "not stated" if stated == NOT_STATED else stated


def _sha256(checksums: Sequence[Package]) -> str:
    return next((str(checksum["checksumValue"])[:12] for checksum in checksums), "")


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
