"""Verify an image and a SIF, or a SIF alone: compare what they hold, audit it, and check signatures.

Bytes that were verified are only hashed the next time. A proof is named by everything that decides it: the sha256 of each file of image
and SIF, what they were compared with, and the code that read and compared them. For each layer it is remembered which contents were
unpacked from its frames, so that after an edit only new ones are; of a new layer, a build unpacks the large files while compilers run.
`verify` reads every byte each time: names, sizes and times prove nothing to it. A build hashes no blob that
nobody has written to since it was hashed (`builder/hashed_blobs.py`).
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.reader import read_image
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import is_sif, opened_sif, processor_in
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Sha256, Store, read_proved, save_proved, sha256_file, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import adapter
from envbuilder.core.plain import pasted
from envbuilder.core.process import Runner
from envbuilder.layers.entry import Entry
from envbuilder.layers.layer import Layer
from envbuilder.verify.alone import UNSEEN, VerifiedSif, verify_alone
from envbuilder.verify.audit import AuditedTree, ImageTexts, audit, files
from envbuilder.verify.compare import VerifyReport, verify
from envbuilder.verify.diff import EXPORTS, open_image, read_exports
from envbuilder.verify.stored import Known

PLAN: Final = "opt/envbuilder/plan.txt"
_LIBRARIES: Final = ("pyelftools", "zstandard")  # that read what is checked
_State = tuple[int, ...]


# ---- what is remembered of bytes that were verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of a verification without an error."""

    paths: int
    tree: Sha256
    passed_over: tuple[str, ...]
    findings: tuple[Finding, ...]  # warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPair:
    """The digests of all files of an image and a SIF, and the files' state before they were read."""

    image: Path
    sif: Path
    digests: Mapping[Path, Sha256]
    states: Mapping[Path, _State]

    def key(self, settings: Sequence[str]) -> Sha256:
        """Return the name of the proof that the present code finds for these bytes and settings."""
        blobs = sorted(
            (path.relative_to(self.image).as_posix(), self.digests[path]) for path in _files_of(self.image)
        )
        return sha256_text(json.dumps([_code(), *settings, self.digests[self.sif], blobs]))

    def is_unchanged(self) -> bool:
        """Whether the files are those that were hashed. A file may be replaced while it is verified."""
        with contextlib.suppress(OSError):
            return {path: _state(path) for path in (self.sif, *_files_of(self.image))} == self.states
        return False


def hash_pair(image: Path, sif: Path, *, threads: int) -> HashedPair | None:
    """Hash every file of both; None when one cannot be read, or the layout has links or special files."""
    try:
        states = {path: _state(path) for path in (sif, *_files_of(image))}
        largest_first = sorted(states, key=lambda path: -path.stat().st_size)
        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="hash") as pool:
            digests = dict(zip(largest_first, pool.map(sha256_file, largest_first), strict=True))
    except OSError:
        return None
    return HashedPair(image=image, sif=sif, digests=digests, states=states)


def load_proof(store: Store, key: Sha256) -> Proof | None:
    with contextlib.suppress(OSError, ValueError):
        proof: Proof = adapter(Proof).validate_json(read_proved(store.proof(key)))
        return proof
    return None


def save_proof(store: Store, key: Sha256, proof: Proof) -> None:
    save_proved(store.proof(key), json.dumps(asdict(proof)) + "\n")


def load_contents(store: Store, layers: Sequence[Layer]) -> Known:
    """Return which contents of these layers were not yet unpacked from their frames, of layers that were verified."""
    known: dict[Sha256, frozenset[str]] = {}
    for layer in layers:
        with contextlib.suppress(OSError, ValueError):
            text = read_proved(store.proof(_contents_key(layer)))
            known[layer.digest] = adapter(frozenset[str]).validate_json(text)
    return known


def save_contents(store: Store, layers: Sequence[Layer], before: Known, now: Known) -> None:
    """Remember what is known now, after a verification without an error. `before` was loaded."""
    for layer in layers:
        if now[layer.digest] != before.get(layer.digest):
            save_proved(store.proof(_contents_key(layer)), json.dumps(sorted(now[layer.digest])))


def _contents_key(layer: Layer) -> Sha256:
    return sha256_text(json.dumps(["contents", _code(), layer.digest, layer.blocks]))


def _files_of(image: Path) -> Iterator[Path]:
    """Yield an archive, or the files of a layout; raises OSError for anything else in it."""
    if not image.is_dir():
        yield image
        return
    for parent, folders, names in os.walk(image):
        for path in (Path(parent, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise OSError(f"`{path}` is neither a file nor a folder")


def _state(path: Path) -> _State:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _code() -> Sha256:
    """Return the sha256 of envbuilder's code and tables, and of the versions of what it reads with."""
    digest = hashlib.sha256(sys.version.encode())
    for name in _LIBRARIES:
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    package = Path(__file__).parents[1]
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(package)} {sha256_file(path)}\n".encode())
    return Sha256(digest.hexdigest())


# ---- the verification


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A pair without an error."""

    answer: VerifiedPair
    entries: tuple[Entry, ...]  # of the SIF; none if only its hash was needed
    findings: tuple[Finding, ...]  # warnings of the audits


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """What a verification looks at, and with which means."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    threads: int
    glibc: str = ""  # the oldest that the files must run with; "" for any
    key: Path | None = None  # the public key that must have signed them

    def pair(self, image: str, sif: Path) -> Verified:
        """Compare any image with any SIF, and audit what they hold; raises VerifyError or UsageError."""
        _need_pair(image, sif)
        with open_image(image, self.environment, self.store, self.console) as place:
            return self.files(place, (image, sif))

    def files(self, place: Path, names: tuple[str, Path], layers: tuple[Layer, ...] = ()) -> Verified:
        """Compare an image at a place with a SIF, and both with the plan's layers if there are any; `names` are for people."""
        sif = names[1]
        signed = self._need_signatures(sif, place) if self.key else ""
        promised = [f"{layer.digest} {layer.diff_id} {layer.tree}" for layer in layers]
        with self.console.step("verify image ≡ SIF" + (" ≡ plan" if layers else "")):
            hashed = hash_pair(place, sif, threads=self.threads)
            name = hashed.key([f"glibc {self.glibc}", *promised]) if hashed else None
            proof = load_proof(self.store, name) if name else None
            report = None if proof else self._compare(place, names, layers, hashed)
            if proof:
                self.console.say("no byte has changed since both were compared and audited")
        if report:
            proof = Proof(
                paths=report.paths, tree=report.tree, passed_over=report.passed_over, findings=self._audit(place, names, report),
            )  # fmt: skip
            if hashed and name and hashed.is_unchanged():
                save_proof(self.store, name, proof)
        assert proof
        answer = VerifiedPair(
            image=names[0], sif=sif, paths=proof.paths, tree=proof.tree, plan=bool(layers),
            passed_over=proof.passed_over, signed=signed,
        )  # fmt: skip
        return Verified(answer=answer, entries=report.entries if report else (), findings=proof.findings)

    def alone(self, sif: Path) -> tuple[VerifiedSif, tuple[Finding, ...]]:
        """Verify a SIF by what it carries, and audit it. Returns the warnings as well; raises VerifyError."""
        key = self._need_signatures(sif) if self.key else None
        with self.console.step("verify the SIF by its own lists"):
            answer, entries = verify_alone(sif, threads=self.threads, key=key)
        with self.console.step("audit what it holds"), opened_sif(sif) as system:
            tree = SquashfsTree(system, entries)
            outside = ImageTexts(environment=tuple(read_exports(_text(tree, EXPORTS)).items()))
            return answer, self._findings(tree, outside, sif, f"`{sif}` is whole")

    def _need_signatures(self, sif: Path, image: Path | None = None) -> str:
        """Return what they were signed for, or of a SIF alone by which key. Raises VerifyError unless the key signed them."""
        from envbuilder.artifacts import signing  # noqa: PLC0415 - cryptography, for signatures alone

        assert self.key
        if image is None:
            return signing.verify_sif_signature(sif, key=self.key, runner=self.runner)
        bundle = Outputs(folder=sif.parent, name=sif.stem).bundle
        return signing.verify_signatures(image, sif, bundle, key=self.key, runner=self.runner)

    def _compare(
        self, place: Path, names: tuple[str, Path], layers: tuple[Layer, ...], hashed: HashedPair | None
    ) -> VerifyReport:
        """Raise VerifyError with the differences."""
        image, sif = names
        known = load_contents(self.store, layers)
        report = verify(
            place, sif, layers=layers, threads=self.threads, scanner=files,
            digests=hashed.digests if hashed else None, known=known,
        )  # fmt: skip
        if report.findings:
            raise VerifyError(f"`{image}` and `{sif}` do not hold the same files", findings=report.findings)
        save_contents(self.store, layers, known, report.known)
        return report

    def _audit(self, place: Path, names: tuple[str, Path], report: VerifyReport) -> tuple[Finding, ...]:
        image, sif = names
        with self.console.step("audit what they hold"), opened_sif(sif) as system:
            read = read_image(place)
            outside = ImageTexts(environment=read.config.env, texts=read.texts, hidden=report.hidden)
            tree = SquashfsTree(system, report.entries, report.contents)
            return self._findings(tree, outside, sif, f"`{image}` and `{sif}` hold the same files")

    def _findings(self, tree: SquashfsTree, outside: ImageTexts, sif: Path, good: str) -> tuple[Finding, ...]:
        """Return the warnings of the audits. Raises VerifyError, which says what is good, when there is an error among them."""
        compiled = re.search(r"^step extensions .* for ([\d. ]+)$", _text(tree, PLAN), re.MULTILINE)
        gpus = tuple(compiled[1].split()) if compiled else ()  # what the plan in the tree compiled for
        findings = audit(
            tree, outside=outside, gpus=gpus, oldest_glibc=self.glibc, processor=processor_in(sif)
        )
        if any(finding.severity is Severity.ERROR for finding in findings):
            raise VerifyError(f"{good}, but the audits found errors", findings=findings)
        return findings


def glibc_of(host: str) -> str:
    """Return the version of glibc that `--oldest-host` means."""
    known = {row.name: row.glibc for row in load_distributions().rows}
    if host and host not in known and not re.fullmatch(r"\d+\.\d+", host):
        raise UsageError(
            f"`--oldest-host` takes a version of glibc or a base, found `{host}`",
            hint=f"2.28, or one of {', '.join(known)}",
        )
    return known.get(host, host)


def _text(tree: AuditedTree, path: str) -> str:
    """Return the text of a file in the tree, "" where it is not there."""
    if not any(entry.path == path for entry in tree.entries):
        return ""
    with tree.open(path) as stream:
        return stream.read().decode("utf-8", "replace")


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
