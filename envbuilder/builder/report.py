"""Gather what the report says of an environment, and write its page."""

from pathlib import Path

from envbuilder.artifacts.outputs import Outputs, load_record
from envbuilder.artifacts.sif import opened_sif, read_documents
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.builder.built import verifier, verify_built
from envbuilder.builder.context import BuildContext
from envbuilder.builder.extensions.list import HEAD, cells, find_extensions
from envbuilder.core.answer import Answer
from envbuilder.core.cache import save_text
from envbuilder.core.errors import VerifyError
from envbuilder.core.findings import Finding
from envbuilder.layers.entry import Entry
from envbuilder.plan.make import make_plan
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.named import need_sif
from envbuilder.verify.compare import sif_manifest
from envbuilder.verify.pair import VerifiedPair
from envbuilder.verify.report.page import Table, render
from envbuilder.verify.report.sections import Subject, make_page, read_packages
from envbuilder.verify.report.sizes import layer_sizes, measure


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
    extensions = Table(
        head=tuple("architectures" if title == "for" else title for title in HEAD),
        rows=tuple(cells(extension, recipe.name) for extension in find_extensions(plan, context.store)),
        empty="This environment has none.",
    )
    subject = Subject(
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
