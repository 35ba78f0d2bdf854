"""`report`: an HTML page about what was built, which needs neither network nor script."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from envbuilder import __version__
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.build.built import read_documents
from envbuilder.build.context import BuildContext
from envbuilder.build.extensions.list import HEAD, ExtensionStatus, cells, find_extensions
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import Name, Output, Recipes, Session, command
from envbuilder.commands.verify import verify_built
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import Fact, brief, driver_floor, facts
from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_text
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.core.findings import Finding
from envbuilder.layers.entry import Entry
from envbuilder.plan.make import make_plan
from envbuilder.recipe.load import find_recipe, load
from envbuilder.recipe.model import Recipe
from envbuilder.verify.compare import opened_sif
from envbuilder.verify.report.page import Page, Section, Table, render
from envbuilder.verify.report.sizes import Part, layer_sizes, measure
from envbuilder.verify.report.treemap import draw

NOT_STATED: Final = "NOASSERTION"
_STEP: Final = re.compile(r" end: (?P<title>.*) \((?P<seconds>\d+\.\d) s\)$", re.MULTILINE)
_LARGEST: Final = 25  # packages in the table of sizes; the map shows the rest


class WrittenReport(Answer):
    """The page, the bytes of each layer, and how many findings the audits have."""

    file: Path
    bytes: int
    layers: dict[str, int]
    findings: int


@command("report", ("envbuilder report a100",), WrittenReport)
def report(session: Session, name: Name, *, output: Output, recipes: Recipes) -> None:
    """Write one HTML page about what was built: pins, sizes, extensions, audits, build times, licenses, SBOM."""
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
    packages = _packages(read_documents(name, output, context.recipes)[0])
    verdict, findings, entries = _audit(name, context, output)
    with context.console.step("measure what it holds"), opened_sif(outputs.sif) as system:
        entries = entries or system.entries(threads=context.limits.threads)
        parts = measure(SquashfsTree(system, entries))
    tables = load_tables()
    known = facts(recipe, tables)
    _, plan, _ = make_plan(name, context.recipes, context.store)
    sections = (
        _pins(recipe, known),
        _sizes(parts),
        _extensions(recipe, tuple(find_extensions(plan, context.store))),
        _findings(verdict, findings),
        _times(outputs.log),
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
) -> tuple[str, tuple[Finding, ...], tuple[Entry, ...]]:
    """Return the verdict, the findings, and the entries of the SIF where it was read to its end."""
    try:
        verified = verify_built(name, context, output=output)
    except VerifyError as error:
        return error.message, error.findings, ()
    return verified.answer.text(), verified.findings, verified.entries


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
        ("SIF", _size(outputs.sif.stat().st_size)),
        ("files", _size(sum(part.size for part in parts))),
        ("packages", str(len(packages))),
        ("PyTorch", recipe.pytorch),
        ("CUDA", recipe.cuda or "none"),
        ("GPUs", ", ".join(recipe.gpus) or "none"),
        ("driver floor", floor or "no driver needed"),
    )


def _pins(recipe: Recipe, known: tuple[Fact, ...]) -> Section:
    values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
    pins = tuple((key, brief(value), recipe.place(f"$.{key}")) for key, value in values.items())
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
        text="Bytes of the files, before compression; a file with two names counts under each. Each rectangle is a package; hold the pointer over it for its name.",
        picture=draw(parts),
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


def _findings(verdict: str, findings: tuple[Finding, ...]) -> Section:
    rows = tuple((one.code, str(one.severity), one.where, one.message, one.hint) for one in findings)
    head = ("code", "severity", "where", "message", "hint")
    return Section(
        title="Audit",
        text=verdict,
        tables=(Table(head=head, rows=rows, empty="The audits found nothing."),),
    )


def _times(log: Path) -> Section:
    """Return the steps in the log. They run at the same time, so their sum exceeds the time of the build."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    rows = tuple((found["title"], f"{found['seconds']} s") for found in _STEP.finditer(text))
    table = Table(head=("step", "time"), rows=rows, empty=f"There is no `{log}`: it was built elsewhere.")
    return Section(title="Build times", text="Steps run beside each other.", tables=(table,))


def _licenses(packages: tuple[dict[str, Any], ...]) -> Section:
    counted = Counter(sorted(map(_license, packages))).most_common()
    rows = tuple((name, str(count)) for name, count in counted)
    return Section(title="Licenses", tables=(Table(head=("license, in SPDX", "packages"), rows=rows),))


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
        text="The same as `envbuilder sbom` prints in SPDX.",
        tables=(Table(head=("package", "version", "license", "from", "sha256"), rows=rows),),
    )


def _license(package: dict[str, Any]) -> str:
    stated = str(package.get("licenseDeclared", NOT_STATED))
    return "not stated" if stated == NOT_STATED else stated


def _sha256(package: dict[str, Any]) -> str:
    return next((str(one["checksumValue"]) for one in package.get("checksums", ())), "")


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
