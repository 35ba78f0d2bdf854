"""Inspect what was built: verify it against its plan, and write the report."""

from dataclasses import replace
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs, find_outputs, load_record
from envbuilder.artifacts.sif import opened_sif, read_documents
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.builder.built import need_built
from envbuilder.builder.context import BuildContext
from envbuilder.builder.extensions.compiled import HEAD, cells, find_extensions
from envbuilder.builder.job import layer_keys
from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_text
from envbuilder.core.errors import EnvbuilderError, LockError, VerifyError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.plain import pasted
from envbuilder.layers.entry import Entry
from envbuilder.layers.layer import Layer, load_layer
from envbuilder.lock.file import stale_warning
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.named import need_sif
from envbuilder.verify.compare import VerifyCode, sif_manifest
from envbuilder.verify.pair import Verified, VerifiedPair, Verifier
from envbuilder.verify.report import (
    ReportSubject,
    ReportTable,
    layer_sizes,
    make_page,
    measure,
    read_packages,
    render,
)


def verifier(context: BuildContext, *, glibc: str = "", key: Path | None = None) -> Verifier:
    return Verifier(
        store=context.store, runner=context.runner, console=context.console, environment=context.environment,
        threads=context.limits.threads, glibc=glibc, key=key,
    )  # fmt: skip


def verify_built(name: str, context: BuildContext, verifier: Verifier, *, output: Path) -> Verified:
    """Compare the image and the SIF of a recipe, and those with the plan if the cache still has its layers.

    Raises VerifyError with the first differences, or with the errors of the audits.
    """
    outputs = find_outputs(name, output)
    need_built(outputs, name, context.recipes)
    record = load_record(outputs)
    plan, notes = _plan(name, context)
    layers = _layers(plan, context) if plan else ()
    verified = verifier.files(outputs.image, (str(outputs.image), outputs.sif), layers)
    if plan and record and not record.is_of(plan.key):
        message = f"`{outputs.name}` was built from an earlier recipe or lock than those that are here"
        hint = f"`envbuilder build {pasted(name)}` builds what they say"
        warning, where = Severity.WARNING, str(outputs.sif)
        notes = (
            Finding(code=VerifyCode.OTHER_PLAN, severity=warning, where=where, message=message, hint=hint),
        )
    return replace(verified, findings=(*verified.findings, *notes))


def _plan(name: str, context: BuildContext) -> tuple[Plan | None, tuple[Finding, ...]]:
    """Return the plan of the recipe and the lock that are here, or None and, for a lock that fits no more, a warning.

    Raises LockError for a lock that was edited.
    """
    try:
        return make_plan(name, context.recipes, context.store)[1], ()
    except LockError as error:
        return None, (stale_warning(error, name, VerifyCode.OTHER_PLAN, "not compared with the recipe: "),)
    except EnvbuilderError:
        return None, ()


def _layers(plan: Plan, context: BuildContext) -> tuple[Layer, ...]:
    """Return the layers of the plan, or none if one of them is gone."""
    layers = [load_layer(context.store.layer(key)) for key in layer_keys(plan).values()]
    return tuple(layer for layer in layers if layer) if all(layers) else ()


class WrittenReport(Answer):
    """The page, the bytes of each layer, and how many findings the audits have."""

    file: Path
    bytes: int
    layers: dict[str, int]
    findings: int


def write_report(
    name: str, context: BuildContext, artifacts: Path
) -> tuple[WrittenReport, tuple[Finding, ...]]:
    """Read recipe, artifacts and log, and write `NAME.html` beside them; raises UsageError where nothing was built."""
    recipe = load(find_recipe(name, context.recipes))
    outputs = Outputs(folder=artifacts, name=recipe.name)
    packages = read_packages(read_documents(need_sif(name, artifacts, context.recipes).sif)[0])
    verdict, findings, entries = _verify(name, context, artifacts)
    with context.console.step("measure what it holds"), opened_sif(outputs.sif) as system:
        entries = entries or system.entries(threads=context.limits.threads)
        parts = measure(SquashfsTree(system, entries))
    _, plan, _ = make_plan(name, context.recipes, context.store)
    extensions = ReportTable(
        head=tuple("architectures" if title == "for" else title for title in HEAD),
        rows=tuple(cells(extension, recipe.name) for extension in find_extensions(plan, context.store)),
        empty="This environment has none.",
    )
    subject = ReportSubject(
        recipe=recipe, plan=plan, outputs=outputs, record=load_record(outputs), packages=packages, parts=parts,
        verdict=verdict, findings=findings, extensions=extensions,
    )  # fmt: skip
    file = artifacts / f"{recipe.name}.html"
    save_text(file, render(make_page(subject)))
    size, layers = file.stat().st_size, layer_sizes(parts)
    return WrittenReport(file=file, bytes=size, layers=layers, findings=len(findings)), findings


def _verify(
    name: str, context: BuildContext, artifacts: Path
) -> tuple[VerifiedPair | str, tuple[Finding, ...], tuple[Entry, ...]]:
    """Return the answer of `verify` or its error, the findings, and the entries of the SIF where it was read to its end."""
    try:
        verified = verify_built(name, context, verifier(context), output=artifacts)
    except VerifyError as error:
        return error.message, error.findings, ()
    entries = verified.entries or sif_manifest(verified.answer.sif, threads=context.limits.threads)
    return verified.answer, verified.findings, entries
