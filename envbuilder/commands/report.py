"""`report`: an HTML page about what was built, which needs neither network nor script."""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from envbuilder import __version__
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import Outputs, Record, load_record
from envbuilder.artifacts.sif import opened_sif
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.builder.built import read_documents
from envbuilder.builder.context import BuildContext
from envbuilder.builder.extensions.list import HEAD, ExtensionStatus, cells, find_extensions
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import Name, Output, Recipes, Session, command
from envbuilder.commands.verify import VerifiedPair, verify_built
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import Fact, brief, driver_floor, facts
from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_text, sha256_file
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.core.findings import Finding
from envbuilder.core.system import utc_time
from envbuilder.layers.entry import Entry
from envbuilder.lock.known_base import lock_path
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.recipe.load import find_recipe, load
from envbuilder.recipe.model import Recipe
from envbuilder.run.named import need_sif
from envbuilder.verify.compare import sif_manifest
from envbuilder.verify.report.page import Line, Page, Section, Table, render
from envbuilder.verify.report.sizes import Part, layer_sizes, measure

NOT_STATED: Final = "NOASSERTION"
_LARGEST: Final = 25  # packages in the table of sizes


class WrittenReport(Answer):
    """The page, the bytes of each layer, and how many findings the audits have."""

    file: Path
    bytes: int
    layers: dict[str, int]
    findings: int


@command("report", ("envbuilder report a100",), WrittenReport)
def report(session: Session, name: Name, *, output: Output, recipes: Recipes) -> None:
    """Write one HTML page about what was built: digests, how to run it, what is proven, pins, sizes, licenses, SBOM."""
    context = build_context(session, recipes)
    with context.console.group(f"report {name}"):
        session.data, findings = _make_report(name, context, output=output)
    session.text = str(session.data.file)
    if session.as_json:  # the page says the same
        session.findings = findings


def _make_report(
    name: str, context: BuildContext, *, output: Path
) -> tuple[WrittenReport, tuple[Finding, ...]]:
    """Read recipe, artifacts and log, and write `NAME.html` beside them; raises UsageError where nothing was built."""
    recipe = load(find_recipe(name, context.recipes))
    outputs = Outputs(folder=output, name=recipe.name)
    packages = _packages(read_documents(need_sif(name, output, context.recipes).sif)[0])
    verdict, findings, entries = _audit(name, context, output)
    with context.console.step("measure what it holds"), opened_sif(outputs.sif) as system:
        entries = entries or system.entries(threads=context.limits.threads)
        parts = measure(SquashfsTree(system, entries))
    tables = load_tables()
    _, plan, _ = make_plan(name, context.recipes, context.store)
    record = load_record(outputs)
    sections = (
        _identity(outputs, record, plan, lock_path(recipe)),
        _usage(recipe, outputs, {str(one["name"]) for one in packages}),
        _proof(verdict, findings, outputs, record, recipe),
        _pins(recipe, facts(recipe, tables)),
        _sizes(parts),
        _extensions(recipe, tuple(find_extensions(plan, context.store))),
        _times(record),
        _licenses(packages),
        _sbom(packages),
    )
    page = Page(
        title=recipe.name,
        summary=recipe.summary,
        figures=_figures(recipe, outputs, parts, packages, driver_floor(recipe, tables)),
        sections=sections,
        version=__version__,
    )
    file = output / f"{recipe.name}.html"
    save_text(file, render(page))
    size, layers = file.stat().st_size, layer_sizes(parts)
    return WrittenReport(file=file, bytes=size, layers=layers, findings=len(findings)), findings


def _audit(
    name: str, context: BuildContext, output: Path
) -> tuple[VerifiedPair | str, tuple[Finding, ...], tuple[Entry, ...]]:
    """Return the answer of `verify` or its error, the findings, and the entries of the SIF where it was read to its end."""
    try:
        verified = verify_built(name, context, output=output)
    except VerifyError as error:
        return error.message, error.findings, ()
    entries = verified.entries or sif_manifest(verified.answer.sif, threads=context.limits.threads)
    return verified.answer, verified.findings, entries


def _packages(sbom: str) -> tuple[dict[str, Any], ...]:
    """Return the packages of the SBOM, without the environment itself; raises UsageError."""
    try:
        return tuple(one for one in json.loads(sbom)["packages"] if "primaryPackagePurpose" not in one)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("the SBOM in the SIF cannot be read", hint="build it again") from error


def _figures(
    recipe: Recipe, outputs: Outputs, parts: Iterable[Part], packages: tuple[dict[str, Any], ...], floor: str
) -> tuple[tuple[str, str], ...]:
    """Return the figures at the top of the page."""
    return (
        ("built", f"{utc_time(outputs.sif.stat().st_mtime):%Y-%m-%d}"),
        ("SIF", _size(outputs.sif.stat().st_size)),
        ("files", _size(sum(part.size for part in parts))),
        ("packages", str(len(packages))),
        ("Python", recipe.python),
        ("PyTorch", recipe.pytorch or "none"),
        ("CUDA", recipe.cuda or "none"),
        ("GPUs", ", ".join(recipe.gpus) or "none"),
        *([("driver floor", floor)] if floor else []),
    )


def _identity(outputs: Outputs, record: Record | None, plan: Plan, lock: Path) -> Section:
    """Return what names the artifacts, whichever copy of them a reader has."""
    manifest = record.manifest if record else read_layout(outputs.image).manifest.digest
    lines = (
        Line(label=f"{outputs.sif.name}, sha256", text=record.sif if record else sha256_file(outputs.sif)),
        Line(label="image", text=outputs.image_name),
        Line(label="its manifest, sha256", text=manifest),
        Line(label="lock", text=f"{lock}, as of {datetime.fromtimestamp(plan.epoch, UTC):%Y-%m-%d}"),
        Line(label="its sha256", text=sha256_file(lock)),
        Line(label="build key", text=plan.key),
    )
    return Section(title="Identity", lines=lines)


def _usage(recipe: Recipe, outputs: Outputs, packages: set[str]) -> Section:
    """Return a line to copy for each way to run it."""
    name, sif, image = recipe.name, outputs.sif.name, outputs.image_name
    nv, gpus, nodes = ("--nv ", "--gpus all ", " --gpus-per-node 4") if recipe.gpus else ("", "", "")
    docker = f'docker run --rm {gpus}--ipc=host --user "$(id -u):$(id -g)" --env HOME=/tmp'
    mount = '--volume "$PWD:/work" --workdir /work'
    lines = {
        "envbuilder": f"envbuilder exec {name} -- python train.py",
        "Apptainer": f"apptainer exec {nv}{sif} python train.py",
        "Docker": f"{docker} \\\n  {mount} {image} python train.py",
        "Slurm": f"envbuilder launch slurm {name} --nodes 2{nodes} -- train.py",
        "VS Code": f"envbuilder devcontainer {name} --write PROJECT",
        **({"Jupyter": f"envbuilder kernel {name}"} if "ipykernel" in packages else {}),
        "build it again": f"envbuilder build {name}",
    }
    return Section(title="Run it", lines=tuple(Line(label=label, text=text) for label, text in lines.items()))


def _pins(recipe: Recipe, known: tuple[Fact, ...]) -> Section:
    unset: tuple[object, ...] = ("", [], {})
    values = json.loads(recipe.canonical()).items()
    pins = tuple(
        (key, brief(value), recipe.place(f"$.{key}"))
        for key, value in values
        if value not in unset and key != "format"
    )
    follow = tuple((one.name, one.value, one.source) for one in known)
    return Section(
        title="Pins",
        tables=(
            Table(title="In the recipe", head=("key", "value", "written in"), rows=pins),
            Table(title="What follows from them", head=("fact", "value", "source"), rows=follow),
        ),
    )


def _sizes(parts: tuple[Part, ...]) -> Section:
    layers = layer_sizes(parts)
    total = sum(layers.values()) or 1
    largest = sorted(parts, key=lambda part: -part.size)[:_LARGEST]
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


def _extensions(recipe: Recipe, found: tuple[ExtensionStatus, ...]) -> Section:
    head = tuple("architectures" if name == "for" else name for name in HEAD)
    rows = tuple(cells(one, recipe.name) for one in found)
    return Section(
        title="Extensions", tables=(Table(head=head, rows=rows, empty="This environment has none."),)
    )


def _proof(
    verdict: VerifiedPair | str,
    findings: tuple[Finding, ...],
    outputs: Outputs,
    record: Record | None,
    recipe: Recipe,
) -> Section:
    """Return what was checked now, and what the build tested."""
    ended = {title for title, _ in record.steps} if record else set()
    tests = tuple(
        (test, ", ".join(kind for kind in ("SIF", "image") if f"test in the {kind}: {test}" in ended) or "not known")
        for test in recipe.tests
    )  # fmt: skip
    if isinstance(verdict, VerifiedPair):
        plan = ", those of the plan" if verdict.plan else ""
        verdict = f"Image and SIF hold the same {verdict.paths} paths{plan}. `envbuilder verify {recipe.name}` checks it again."
    if outputs.bundle.is_file():
        verdict += " A signed statement lies beside them: `envbuilder verify --key FILE.pub` checks it."
    rows = tuple(
        (one.code, str(one.severity), f"{one}\nhint: {one.hint}" if one.hint else str(one))
        for one in findings
    )
    head = ("code", "severity", "finding")
    return Section(
        title="Proof",
        text=verdict,
        tables=(
            Table(title="Tests of the recipe", head=("test", "passed in"), rows=tests, empty="The recipe has none."),
            Table(title="Audits", head=head, rows=rows, empty="The audits of `verify` found nothing. `check` asks for security updates."),
        ),
    )  # fmt: skip


def _times(record: Record | None) -> Section:
    """Return the steps of the build. They run at the same time, so their sum exceeds the time of the build."""
    rows = tuple((title, f"{seconds:.1f} s") for title, seconds in record.steps) if record else ()
    table = Table(
        head=("step", "time"),
        rows=rows,
        empty="Not known: these files were built elsewhere, or changed since.",
    )
    text = "Of the build that made these files. Steps run beside each other; what the cache had has none."
    return Section(title="Build times", text=text, tables=(table,))


def _licenses(packages: tuple[dict[str, Any], ...]) -> Section:
    counted = Counter(sorted(map(_license, packages))).most_common()
    rows = tuple((name, str(count)) for name, count in counted)
    return Section(
        title="Licenses", is_folded=True, tables=(Table(head=("license, in SPDX", "packages"), rows=rows),)
    )


def _sbom(packages: tuple[dict[str, Any], ...]) -> Section:
    rows = tuple(
        (
            str(one["name"]),
            str(one.get("versionInfo", "")),
            _license(one),
            str(one.get("sourceInfo", "")),
            _sha256(one),
        )
        for one in packages
    )
    return Section(
        title="SBOM",
        text="The same as `envbuilder sbom` prints in SPDX, with whole digests there.",
        is_folded=True,
        tables=(Table(head=("package", "version", "license", "from", "sha256"), rows=rows),),
    )


def _license(package: dict[str, Any]) -> str:
    stated = str(package.get("licenseDeclared", NOT_STATED))
    return "not stated" if stated == NOT_STATED else stated


def _sha256(package: dict[str, Any]) -> str:
    return next((str(one["checksumValue"])[:12] for one in package.get("checksums", ())), "")


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
