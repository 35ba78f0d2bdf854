"""The verbs that look at artefacts instead of making them, whoever made them."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.artifacts.docker_engine import connect
from envbuilder.artifacts.oci.reader import read_image, read_tree
from envbuilder.artifacts.outputs import Outputs, Record, find_outputs, load_any_record
from envbuilder.artifacts.sif import is_sif
from envbuilder.artifacts.squashfs.files import SquashfsTree
from envbuilder.build.built import need_built
from envbuilder.build.context import BuildContext
from envbuilder.build.engine import EngineName, layer_keys, record_key
from envbuilder.build.pipeline import make_plan
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.decode import nearest
from envbuilder.core.errors import EnvbuilderError, LockError, UsageError, VerifyError
from envbuilder.core.findings import Finding, Severity
from envbuilder.layers.layer import Layer, load_layer
from envbuilder.layers.overlay import MOST_KEPT
from envbuilder.lock import model as locks
from envbuilder.recipe.model import SUFFIX, list_recipes, load
from envbuilder.verify.audit import Said, Tree, audit
from envbuilder.verify.audit.secret import IN_FILES
from envbuilder.verify.compare import VerifyReport, opened_sif, verify
from envbuilder.verify.diff import (
    EXPORTS,
    LOCK,
    READ,
    Difference,
    Subject,
    compare,
    of_lock,
    of_tree,
    read_exports,
)

PLAN: Final = "opt/envbuilder/plan.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """An image and a SIF that hold the same files."""

    image: str
    sif: Path
    report: VerifyReport
    with_plan: bool  # also compared with the layers that the plan promises
    findings: tuple[Finding, ...]  # warnings of the audits

    def data(self) -> dict[str, object]:
        """The data of the JSON answer."""
        return {
            "image": self.image,
            "sif": str(self.sif),
            "paths": self.report.paths,
            "tree": self.report.tree,
            "plan": self.with_plan,
            "passed_over": list(self.report.passed_over),
        }

    def text(self) -> str:
        """The same for a person."""
        plan = ", those of the plan" if self.with_plan else ""
        head = f"image and SIF hold the same {self.report.paths} paths{plan}; tree sha256:{self.report.tree}"
        if not self.report.passed_over:
            return head
        return f"{head}\npassed over, as `apptainer build` wrote them: /{' /'.join(self.report.passed_over)}"


def verify_built(
    name: str, workshop: BuildContext, *, output: Path, oldest_host: str = "", key: Path | None = None
) -> Verified:
    """Prove that a recipe's image and SIF hold the same files, and those of the plan where the cache still has its layers.

    Raises VerifyError naming the first differences, or what the audits find that cannot stay so.
    """
    outputs = find_outputs(name, output)
    names = (str(outputs.image), outputs.sif)
    need_built(outputs, name, workshop.recipes)
    _check_signatures(outputs.image, outputs.sif, key, workshop)
    layers = _layers(name, workshop, load_any_record(outputs))
    return _verify(outputs.image, names, workshop, layers=layers, oldest_host=oldest_host)


def verify_pair(
    image: str, sif: Path, workshop: BuildContext, *, oldest_host: str = "", key: Path | None = None
) -> Verified:
    """Compare any image with any SIF, and audit what they hold; raises VerifyError, and UsageError for what is no such pair."""
    _need_pair(image, sif)
    with opened_image(image, workshop) as place:
        _check_signatures(place, sif, key, workshop)
        return _verify(place, (image, sif), workshop, layers=(), oldest_host=oldest_host)


def _need_pair(image: str, sif: Path) -> None:
    """Raise UsageError at once for what would be no image and SIF after minutes of reading either."""
    if is_sif(Path(image)):
        swapped = f"the image comes first: envbuilder verify {sif} {image}"
        hint = f"`envbuilder diff {image} {sif}` compares two SIFs" if is_sif(sif) else swapped
        raise UsageError(f"`{image}` is a SIF, and an image is wanted there", hint=hint)
    if not sif.is_file():
        raise UsageError(
            f"`{sif}` is a folder, and a SIF is wanted there" if sif.is_dir() else f"there is no SIF `{sif}`",
            hint="the image comes first, then the SIF",
        )


def _verify(
    place: Path,
    names: tuple[str, Path],
    workshop: BuildContext,
    *,
    layers: tuple[Layer, ...],
    oldest_host: str,
) -> Verified:
    image, sif = names
    glibc = _glibc(oldest_host)
    with workshop.console.step("verify image ≡ SIF" + (" ≡ plan" if layers else "")):
        report = verify(place, sif, layers=layers, threads=workshop.limits.threads, look=IN_FILES)
        if report.findings:
            raise VerifyError(f"`{image}` and `{sif}` do not hold the same files", findings=report.findings)
    with workshop.console.step("audit what they hold"), opened_sif(sif) as system:
        tree = SquashfsTree(system, report.entries)
        read = read_image(place)
        said = Said(environment=read.config.env, texts=read.texts, hidden=report.hidden)
        findings = audit(tree, said=said, gpus=_gpus(tree), oldest_glibc=glibc)
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise VerifyError(
                f"`{image}` and `{sif}` hold the same files, and some of them cannot stay so",
                findings=findings,
            )
    return Verified(image=image, sif=sif, report=report, with_plan=bool(layers), findings=findings)


def _check_signatures(image: Path, sif: Path, key: Path | None, workshop: BuildContext) -> None:
    """With a public key, both must be what its holder signed; raises VerifyError."""
    if key is not None:
        from envbuilder.artifacts.signing import verify_signatures  # noqa: PLC0415 - cryptography is slow to import

        bundle = Outputs(folder=sif.parent, name=sif.stem).bundle
        verify_signatures(image, sif, bundle, key=key, runner=workshop.runner)


def _gpus(tree: Tree) -> tuple[str, ...]:
    """The compute capabilities that the plan in the tree compiled for; none where there is no plan."""
    if not any(entry.path == PLAN for entry in tree.entries):
        return ()
    with tree.open(PLAN) as stream:
        found = re.search(
            r"^step extensions .* for ([\d. ]+)$", stream.read().decode("utf-8", "replace"), re.MULTILINE
        )
    return tuple(found[1].split()) if found else ()


def _glibc(oldest_host: str) -> str:
    """The version of glibc that `--oldest-host` means."""
    known = {row.name: row.glibc for row in load_distributions().rows}
    if oldest_host and oldest_host not in known and not re.fullmatch(r"\d+\.\d+", oldest_host):
        raise UsageError(
            f"`--oldest-host` takes a version of glibc or a base, found `{oldest_host}`",
            hint=f"2.28, or one of {', '.join(known)}",
        )
    return known.get(oldest_host, oldest_host)


@contextlib.contextmanager
def opened_image(text: str, workshop: BuildContext, *, hint: str = "") -> Iterator[Path]:
    """An image by its path, or by its name in the Docker engine: that one is saved to a file for as long as it is looked at."""
    if Path(text).exists():
        yield Path(text)
        return
    docker = connect(workshop.environment)
    if docker is None:
        raise UsageError(
            f"there is no file or folder `{text}`, and no Docker engine answers that could have an image of that name",
            hint=hint,
        )
    with workshop.store.workspace() as work:
        saved = work / "image.tar"
        try:
            with workshop.console.step(f"save `{text}` out of the Docker engine"):
                docker.save(text, saved)
        except UsageError as error:
            raise UsageError(
                f"there is no file or folder `{text}`, and {error.message}", hint=hint
            ) from error
        yield saved


def _layers(name: str, workshop: BuildContext, record: Record | None) -> tuple[Layer, ...]:
    """The layers that the recipe's plan promises, by the engine that made them; none where the recipe or one of them is not here."""
    try:
        _, plan, _ = make_plan(name, workshop)
    except EnvbuilderError:
        return ()
    engines = [engine for engine in EngineName if record and record.key == record_key(plan, engine)]
    keys = layer_keys(plan, *engines or (EngineName.ASSEMBLE,)).values()
    found = [load_layer(workshop.store.layer(key)) for key in keys]
    return tuple(layer for layer in found if layer) if all(found) else ()


def diff(one: str, other: str, workshop: BuildContext) -> Difference:
    """What is different between two locks, images or SIFs; raises UsageError, LockError or VerifyError for what cannot be read."""
    return compare(read_subject(one, workshop), read_subject(other, workshop))


def read_subject(text: str, workshop: BuildContext) -> Subject:
    """A lock by its path or its recipe's name, a SIF by its path, an image by its path or its name in the Docker engine."""
    path = Path(text)
    if path.suffix in (".lock", SUFFIX, ".yml"):
        return _lock_subject(path.with_suffix(".lock"), recipe="" if path.suffix == ".lock" else text)
    if not path.exists() and any((workshop.recipes / f"{text}{end}").is_file() for end in (".lock", SUFFIX)):
        return _lock_subject(workshop.recipes / f"{text}.lock", recipe=text)
    if path.suffix == ".sif":
        return _sif_subject(path, workshop)
    near = nearest(text, list_recipes(workshop.recipes)).strip()
    with opened_image(text, workshop, hint=near) as place, workshop.console.step(f"read `{text}`"):
        tree = read_tree(place, keep=READ)
    return of_tree(
        text,
        "image",
        tree.entries,
        tree.contents,
        environment=dict(tree.image.config.env),
        lock=_lock_inside(tree.contents),
    )


def _lock_subject(path: Path, recipe: str = "") -> Subject:
    """With what the recipe beside it sets, which a lock does not repeat."""
    lock = locks.load(path, recipe=recipe)
    beside = path.with_suffix(SUFFIX)
    wishes = load(beside) if beside.is_file() else None
    environment = dict(wishes.env) if wishes else {}
    return of_lock(str(path), lock, environment=environment, nccl=wishes.nccl if wishes else "")


def _sif_subject(path: Path, workshop: BuildContext) -> Subject:
    with workshop.console.step(f"read `{path}`"), opened_sif(path) as system:
        tree = SquashfsTree(system, system.entries(threads=workshop.limits.threads))
        there = [entry.path for entry in tree.entries if entry.path in READ and entry.size <= MOST_KEPT]
        contents = {name: tree.open(name).read() for name in there}
    environment = read_exports(contents.get(EXPORTS, b"").decode("utf-8", "replace"))
    return of_tree(
        str(path), "sif", tree.entries, contents, environment=environment, lock=_lock_inside(contents)
    )


def _lock_inside(contents: Mapping[str, bytes]) -> locks.Lock | None:
    """The lock that an environment carries; None in other people's, and where an envbuilder of another version wrote it."""
    with contextlib.suppress(LockError):
        return locks.parse(contents[LOCK].decode("utf-8", "replace"), LOCK) if LOCK in contents else None
    return None
