"""`verify`: prove that image and SIF hold the same files, and audit what they hold."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.oci.reader import read_image
from envbuilder.artifacts.outputs import SIF, Outputs, find_outputs, load_record, names_built
from envbuilder.artifacts.sif import is_sif, opened_sif, processor_in
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.builder.built import need_built
from envbuilder.builder.context import BuildContext
from envbuilder.builder.engine import layer_keys
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import Output, Recipes, Session, command, recipe_argument
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.answer import Answer, BareAnswer
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import EnvbuilderError, LockError, UsageError, VerifyError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.plain import pasted
from envbuilder.core.process import Runner
from envbuilder.layers.entry import Entry
from envbuilder.layers.layer import Layer, load_layer
from envbuilder.lock.fresh import stale_warning
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.run.named import need_file
from envbuilder.verify.alone import verify_alone
from envbuilder.verify.audit import ImageTexts, Tree, audit
from envbuilder.verify.audit.files import IN_FILES
from envbuilder.verify.compare import Code, VerifyReport
from envbuilder.verify.compare import verify as compare_artifacts
from envbuilder.verify.diff import EXPORTS, read_exports
from envbuilder.verify.proof import (
    Proof,
    hash_pair,
    load_contents,
    load_proof,
    save_contents,
    save_proof,
)
from envbuilder.verify.subjects import open_image

UNSEEN: Final = "no signature was looked at, so who made it is not known: `--key` checks that"
PLAN: Final = "opt/envbuilder/plan.txt"


class VerifiedPair(Answer):
    """An image and a SIF that hold the same files. `plan` says whether they are also those that the plan promises."""

    image: str
    sif: Path
    paths: int
    tree: str
    plan: bool
    passed_over: tuple[str, ...]
    signed: str = ""  # with --key: for what, when and by which key

    def text(self) -> str:
        plan = ", those of the plan" if self.plan else ""
        head = f"image and SIF hold the same {self.paths} paths{plan}; tree sha256:{self.tree}"
        head += f"\n{f'the signatures of both are good: {self.signed}' if self.signed else UNSEEN}"
        if not self.passed_over:
            return head
        return f"{head}\npassed over, as `apptainer build` wrote them: /{' /'.join(self.passed_over)}"


class VerifiedPairs(BareAnswer[tuple[VerifiedPair, ...]]):
    """The answer for a recipe that was built for several processors, one row for each."""


class VerifiedSif(Answer):
    """A SIF without its image: whole, and as its own documents and lists of packages say.

    `listed` of its `files` have the bytes that the list of a package names. `build_key` is that of its provenance.
    """

    sif: Path
    paths: int
    tree: str
    build_key: str
    files: int
    listed: int
    signed: bool
    key: str = ""  # with --key: the first digits of its sha256

    def text(self) -> str:
        signed = (
            f"its signature is good, with the key {self.key}; one in a SIF has neither a tag nor a time"
            if self.signed
            else UNSEEN
        )
        return (
            f"the SIF is whole: {self.paths} paths; tree sha256:{self.tree}\n"
            f"its recipe, lock and plan are those of build key {self.build_key}\n"
            f"{self.listed} of {self.files} files are as the lists of their packages say; no list names the others\n"
            f"not compared: image and layers, which are not here; {signed}"
        )


@command(
    "verify",
    (
        "envbuilder verify a100",
        "envbuilder verify build/a100.oci build/a100.sif",
        "envbuilder verify a100.sif --key public.pem",
    ),
    VerifiedPair | VerifiedPairs | VerifiedSif,
)
def verify(
    session: Session,
    name: Annotated[
        str,
        recipe_argument(
            "a recipe that was built, or a SIF; or an image: an OCI layout, an archive, a name in the Docker engine",
            "NAME|SIF|IMAGE",
        ),
    ],
    sif: Annotated[Path | None, typer.Argument(help="the SIF, if the first argument is an image")] = None,
    *,
    key: Annotated[
        Path | None, typer.Option(help="a public key: image and SIF must be signed with it")
    ] = None,
    oldest_host: Annotated[
        str,
        typer.Option(
            metavar="GLIBC",
            help="report files that need a newer glibc: a version, or a base such as debian/bullseye",
        ),
    ] = "",
    output: Output,
    recipes: Recipes,
) -> None:
    """Prove that an image and a SIF hold the same files, path by path, and audit them."""
    context = build_context(session, recipes)
    is_named = Path(name).suffix == SIF
    if sif is None and (is_named or is_sif(Path(name))) and not find_outputs(name, output).image.exists():
        need_file(Path(name), name, recipes)
        answer, warnings = verify_sif(Path(name), context, oldest_host=oldest_host, key=key)
        session.data, session.text = answer, answer.text()
        session.findings += warnings
        return
    done: list[VerifiedPair] = []
    for one in (name,) if sif else names_built(name, output):
        with context.console.group(f"verify {one}"):
            if sif:
                verified = verify_pair(one, sif, context, oldest_host=oldest_host, key=key)
            else:
                verified = verify_built(one, context, output=output, oldest_host=oldest_host, key=key)
        done.append(verified.answer)
        session.findings += verified.findings
    session.data = done[0] if len(done) == 1 else VerifiedPairs(tuple(done))
    session.text = "\n".join(one.text() for one in done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    answer: VerifiedPair
    entries: tuple[Entry, ...]  # of the SIF; none if only its hash was needed
    findings: tuple[Finding, ...]  # warnings of the audits


def verify_built(
    name: str, context: BuildContext, *, output: Path, oldest_host: str = "", key: Path | None = None
) -> Verified:
    """Compare the image and the SIF of a recipe, and those with the plan if the cache still has its layers.

    Raises VerifyError with the first differences, or with the errors of the audits.
    """
    outputs = find_outputs(name, output)
    names = (str(outputs.image), outputs.sif)
    need_built(outputs, name, context.recipes)
    record = load_record(outputs)
    plan, notes = _plan(name, context)
    layers = _layers(plan, context) if plan else ()
    verified = _verify(outputs.image, names, context, layers=layers, oldest_host=oldest_host, key=key)
    if plan is None or record is None or record.is_of(plan.key):
        return replace(verified, findings=(*verified.findings, *notes))
    older = Finding(
        code=Code.OTHER_PLAN, severity=Severity.WARNING, where=str(outputs.sif),
        message=f"`{outputs.name}` was built from an earlier recipe or lock than those that are here",
        hint=f"`envbuilder build {pasted(name)}` builds what they say",
    )  # fmt: skip
    return replace(verified, findings=(*verified.findings, older))


def verify_pair(
    image: str, sif: Path, context: BuildContext, *, oldest_host: str = "", key: Path | None = None
) -> Verified:
    """Compare any image with any SIF, and audit what they hold; raises VerifyError or UsageError."""
    _need_pair(image, sif)
    with open_image(image, context.environment, context.store, context.console) as place:
        return _verify(place, (image, sif), context, layers=(), oldest_host=oldest_host, key=key)


def verify_sif(
    sif: Path, context: BuildContext, *, oldest_host: str = "", key: Path | None = None
) -> tuple[VerifiedSif, tuple[Finding, ...]]:
    """Verify a SIF by what it carries, and audit it. Returns the warnings as well; raises VerifyError."""
    glibc = _glibc(oldest_host)
    name = _need_signatures(sif, key, context.runner) if key else ""
    with context.console.step("verify the SIF by its own lists"):
        found = verify_alone(sif, threads=context.limits.threads)
    if found.findings:
        raise VerifyError(f"`{sif}` is not what its own documents and lists say", findings=found.findings)
    with context.console.step("audit what it holds"), opened_sif(sif) as system:
        tree = SquashfsTree(system, found.entries)
        outside = ImageTexts(environment=tuple(_exports(tree).items()))
        warnings = audit(
            tree, outside=outside, gpus=_gpus(tree), oldest_glibc=glibc, processor=processor_in(sif)
        )
    if any(finding.severity is Severity.ERROR for finding in warnings):
        raise VerifyError(f"`{sif}` is whole, but the audits found errors", findings=warnings)
    answer = VerifiedSif(
        sif=sif, paths=len(found.entries), tree=found.tree, build_key=found.build_key,
        files=found.files, listed=found.listed, signed=key is not None, key=name,
    )  # fmt: skip
    return answer, warnings


def _need_signatures(sif: Path, key: Path, runner: Runner, image: Path | None = None) -> str:
    """Return what they were signed for, or of a SIF alone by which key. Raises VerifyError unless the key signed them."""
    from envbuilder.artifacts import signing  # noqa: PLC0415 - cryptography, for signatures alone

    if image is None:
        return signing.verify_sif_signature(sif, key=key, runner=runner)
    bundle = Outputs(folder=sif.parent, name=sif.stem).bundle
    return signing.verify_signatures(image, sif, bundle, key=key, runner=runner)


def _exports(tree: SquashfsTree) -> dict[str, str]:
    """Return the environment that the SIF sets."""
    if not any(entry.path == EXPORTS for entry in tree.entries):
        return {}
    with tree.open(EXPORTS) as stream:
        return read_exports(stream.read().decode("utf-8", "replace"))


def _need_pair(image: str, sif: Path) -> None:
    """Raise UsageError for a pair that is not an image and a SIF, before either is read for minutes."""
    if is_sif(Path(image)):
        swapped = f"the image comes first: envbuilder verify {pasted(sif, image)}"
        hint = f"`envbuilder diff {pasted(image, sif)}` compares two SIFs" if is_sif(sif) else swapped
        raise UsageError(f"`{image}` is a SIF; an image is expected there", hint=hint)
    if not sif.is_file():
        raise UsageError(
            f"`{sif}` is a folder; a SIF is expected there" if sif.is_dir() else f"there is no SIF `{sif}`",
            hint="the image comes first, then the SIF",
        )


def _verify(
    place: Path,
    names: tuple[str, Path],
    context: BuildContext,
    *,
    layers: tuple[Layer, ...],
    oldest_host: str,
    key: Path | None,
) -> Verified:
    sif = names[1]
    signed = _need_signatures(sif, key, context.runner, image=place) if key else ""
    glibc = _glibc(oldest_host)
    promised = [f"{layer.digest} {layer.diff_id} {layer.tree}" for layer in layers]
    with context.console.step("verify image ≡ SIF" + (" ≡ plan" if layers else "")):
        hashed = hash_pair(place, sif, threads=context.limits.threads)
        name = hashed and hashed.key([f"glibc {glibc}", *promised])
        proof = load_proof(context.store, name) if name else None
        if proof is not None:
            context.console.say("no byte has changed since both were compared and audited")
            return _verified(names, proof, is_planned=bool(layers), signed=signed)
        digests = hashed.digests if hashed else None
        report = _compare(place, names, context, layers=layers, digests=digests)
    findings = _audit(place, names, context, report=report, glibc=glibc)
    proof = Proof(paths=report.paths, tree=report.tree, passed_over=report.passed_over, findings=findings)
    if hashed and name and hashed.is_unchanged():
        save_proof(context.store, name, proof)
    return _verified(names, proof, is_planned=bool(layers), signed=signed, entries=report.entries)


def _verified(
    names: tuple[str, Path],
    proof: Proof,
    *,
    is_planned: bool,
    signed: str,
    entries: tuple[Entry, ...] = (),
) -> Verified:
    image, sif = names
    answer = VerifiedPair(
        image=image, sif=sif, paths=proof.paths, tree=proof.tree, plan=is_planned, passed_over=proof.passed_over,
        signed=signed,
    )  # fmt: skip
    return Verified(answer=answer, entries=entries, findings=proof.findings)


def _compare(
    place: Path,
    names: tuple[str, Path],
    context: BuildContext,
    *,
    layers: tuple[Layer, ...],
    digests: Mapping[Path, Sha256] | None,
) -> VerifyReport:
    """Raise VerifyError with the differences."""
    image, sif = names
    known = load_contents(context.store, layers)
    report = compare_artifacts(
        place,
        sif,
        layers=layers,
        threads=context.limits.threads,
        scanner=IN_FILES,
        digests=digests,
        known=known,
    )
    if report.findings:
        raise VerifyError(f"`{image}` and `{sif}` do not hold the same files", findings=report.findings)
    save_contents(context.store, layers, known)
    return report


def _audit(
    place: Path, names: tuple[str, Path], context: BuildContext, *, report: VerifyReport, glibc: str
) -> tuple[Finding, ...]:
    """Return the warnings of the audits; raises VerifyError when there is an error among the findings."""
    image, sif = names
    with context.console.step("audit what they hold"), opened_sif(sif) as system:
        tree = SquashfsTree(system, report.entries)
        read = read_image(place)
        outside = ImageTexts(environment=read.config.env, texts=read.texts, hidden=report.hidden)
        findings = audit(
            tree, outside=outside, gpus=_gpus(tree), oldest_glibc=glibc, processor=processor_in(sif)
        )
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise VerifyError(
                f"`{image}` and `{sif}` hold the same files, but the audits found errors", findings=findings
            )
    return findings


def _gpus(tree: Tree) -> tuple[str, ...]:
    """Return the compute capabilities that the plan in the tree compiled for, or none without a plan."""
    if not any(entry.path == PLAN for entry in tree.entries):
        return ()
    with tree.open(PLAN) as stream:
        found = re.search(
            r"^step extensions .* for ([\d. ]+)$", stream.read().decode("utf-8", "replace"), re.MULTILINE
        )
    return tuple(found[1].split()) if found else ()


def _glibc(oldest_host: str) -> str:
    """Return the version of glibc that `--oldest-host` means."""
    known = {row.name: row.glibc for row in load_distributions().rows}
    if oldest_host and oldest_host not in known and not re.fullmatch(r"\d+\.\d+", oldest_host):
        raise UsageError(
            f"`--oldest-host` takes a version of glibc or a base, found `{oldest_host}`",
            hint=f"2.28, or one of {', '.join(known)}",
        )
    return known.get(oldest_host, oldest_host)


def _plan(name: str, context: BuildContext) -> tuple[Plan | None, tuple[Finding, ...]]:
    """Return the plan of the recipe and the lock that are here, or None and, for a lock that fits no more, a warning.

    Raises LockError for a lock that was edited.
    """
    try:
        return make_plan(name, context.recipes, context.store)[1], ()
    except LockError as error:
        return None, (stale_warning(error, name, Code.OTHER_PLAN, "not compared with the recipe: "),)
    except EnvbuilderError:
        return None, ()


def _layers(plan: Plan, context: BuildContext) -> tuple[Layer, ...]:
    """Return the layers of the plan, or none if one of them is gone."""
    found = [load_layer(context.store.layer(key)) for key in layer_keys(plan).values()]
    return tuple(layer for layer in found if layer) if all(found) else ()
