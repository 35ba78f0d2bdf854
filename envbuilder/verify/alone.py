"""Verify a SIF by what it carries, without its image, its lock or the cache.

A SIF has documents of its own: recipe, lock, plan and provenance, which name each other by sha256. And it has the lists
of its packages: dpkg's with an md5 of each file, and RECORD of each Python package with a sha256. Whoever changes a
file and its list is found by a signature alone.
"""

import base64
import csv
import hashlib
import io
import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envbuilder.artifacts.sif import DataType, Sif, opened_sif, read_sif
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.core.answer import Answer
from envbuilder.core.budget import DOCUMENT, read_within
from envbuilder.core.errors import LockError, VerifyError
from envbuilder.core.findings import Finding
from envbuilder.layers.entry import Entry, Kind, follow, tree_digest
from envbuilder.lock.file import parse_lock
from envbuilder.lock.model import Lock
from envbuilder.plan.contents import PROVENANCE, SBOM
from envbuilder.plan.model import ENV_PREFIX
from envbuilder.sources.installed import DPKG, read_dpkg
from envbuilder.steps.distribution import EXCLUDE
from envbuilder.verify.compare import VerifyCode, shown
from envbuilder.verify.diff import LOCK

_LEFT_OUT: Final = tuple(folder.strip("/*") + "/" for folder in EXCLUDE)  # a build does not unpack them
_DPKG_LISTS: Final = "var/lib/dpkg/info/"
UNSEEN: Final = "no signature was looked at, so who made it is not known: `--key` checks that"


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


def verify_alone(
    sif: Path, *, threads: int = 2, key: str | None = None
) -> tuple[VerifiedSif, tuple[Entry, ...]]:
    """Unpack every block of a SIF, and compare its files with its own documents and lists. Returns its entries as well.

    `key` is the one that signed it, if a signature was looked at. Raises VerifyError for a SIF that is damaged or contradicts itself,
    and for one that envbuilder did not make.
    """
    with opened_sif(sif) as system:
        entries = system.entries(threads=threads)
        files = _Files(SquashfsTree(system, entries), {entry.path: entry for entry in entries})
        if PROVENANCE not in files.there:
            raise VerifyError(
                f"`{sif}` carries nothing to verify it by: it has no /{PROVENANCE}",
                hint="envbuilder did not make it; `envbuilder verify IMAGE SIF` compares it with its image",
            )
        lock, build_key, findings = _check_documents(files, read_sif(sif))
        listed, differing = _check_lists(files, is_whole=lock is not None and lock.base is None)
    if findings or differing:
        raise VerifyError(
            f"`{sif}` is not what its own documents and lists say", findings=(*findings, *shown(differing))
        )
    answer = VerifiedSif(
        sif=sif, paths=len(entries), tree=tree_digest(entries), build_key=build_key,
        files=sum(entry.kind is Kind.FILE for entry in entries), listed=listed, signed=key is not None, key=key or "",
    )  # fmt: skip
    return answer, entries


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a SIF by their paths."""

    tree: SquashfsTree
    there: Mapping[str, Entry]
    digests: dict[str, str] = field(default_factory=dict)  # md5 by path

    def read(self, path: str) -> bytes:
        with self.tree.open(path) as stream:
            return read_within(stream, DOCUMENT, f"bytes of /{path}")

    def md5(self, path: str) -> str:
        if path not in self.digests:  # many lists may name one file
            with self.tree.open(path) as stream:
                digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
            self.digests[path] = digest.hexdigest()
        return self.digests[path]

    def below(self, start: str, end: str) -> Iterator[str]:
        for path, entry in self.there.items():
            if path.startswith(start) and path.endswith(end) and entry.kind is Kind.FILE:
                yield path


def _check_documents(files: _Files, sif: Sif) -> tuple[Lock | None, str, list[Finding]]:
    """Return the lock, the build key, and what contradicts the provenance: other documents, packages that are not locked.

    A SIF that Apptainer's builder wrote has no documents outside its file system.
    """
    findings: list[Finding] = []
    for path, kind in ((PROVENANCE, DataType.JSON), (SBOM, DataType.SBOM)) if sif.read(DataType.SBOM) else ():
        if path in files.there and sif.read(kind) != files.read(path):
            message = f"it differs from the SIF's own object of the type {kind.name}"
            findings.append(Finding(code=VerifyCode.DOCUMENT, where=f"/{path}", message=message))
    where = PROVENANCE  # what is read
    try:
        build: dict[str, Any] = json.loads(files.read(PROVENANCE))["predicate"]["buildDefinition"]
        key = str(build["internalParameters"]["plan"])
        texts = build["externalParameters"]["files"]
        named = {str(text["name"]): str(text["digest"]["sha256"]) for text in texts}
        findings += _differing(named, files.there, f"/{PROVENANCE}")
        where = LOCK
        lock = parse_lock(files.read(LOCK).decode("utf-8", "replace"), LOCK)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, LockError) as error:
        message = f"it cannot be read: {error}"
        return None, "", [*findings, Finding(code=VerifyCode.DOCUMENT, where=f"/{where}", message=message)]
    installed = read_dpkg({DPKG: files.read(DPKG)} if DPKG in files.there else {})
    for deb in lock.debs:
        if installed.get(deb.name) != deb.version:
            message = (
                f"the lock has {deb.name} {deb.version}, and dpkg's list {installed.get(deb.name, 'not')}"
            )
            findings.append(Finding(code=VerifyCode.DOCUMENT, where=f"/{DPKG}", message=message))
    return lock, key, findings


def _check_lists(files: _Files, *, is_whole: bool) -> tuple[int, list[Finding]]:
    """Return how many files have the bytes that the list of their package names, and what differs.

    Files that dpkg's lists name and that are not there count if the system `is_whole`: a base image may lack some.
    """
    findings: list[Finding] = []
    listed = set[str]()
    for path in files.below(ENV_PREFIX.lstrip("/"), ".dist-info/RECORD"):
        folder = posixpath.dirname(posixpath.dirname(path))
        if posixpath.basename(folder) != "site-packages":
            continue  # of a copy inside another package, which may have left files out; its own list has the rest
        try:
            named = dict(recorded(files.read(path).decode("utf-8", "replace"), folder))
        except csv.Error as error:
            message = f"it cannot be read: {error}"
            findings.append(Finding(code=VerifyCode.DOCUMENT, where=f"/{path}", message=message))
            continue
        findings += _differing(named, files.there, f"/{path}")
        listed.update(named)
    for path in files.below(_DPKG_LISTS, ".md5sums"):
        listing = path.removesuffix("md5sums") + "list"
        if listing not in files.there:
            findings.append(
                Finding(code=VerifyCode.DOCUMENT, where=f"/{path}", message=f"there is no /{listing}")
            )
            continue
        owned = set(files.read(listing).split(b"\n"))
        for md5, _, raw in (line.partition(b"  ") for line in files.read(path).split(b"\n")):
            if b"/" + raw not in owned:  # another package has the file now
                continue
            name = follow(files.there, os.fsdecode(raw))
            if name is not None and files.there[name].kind is Kind.FILE:
                listed.add(name)
                if (digest := files.md5(name)).encode() != md5:
                    message = f"its md5 is {digest}, and {md5.decode(errors='replace')} in /{path}"
                    findings.append(Finding(code=VerifyCode.CONTENT, where=f"/{name}", message=message))
            elif name is None and is_whole and not os.fsdecode(raw).startswith(_LEFT_OUT):
                where = f"/{os.fsdecode(raw)}"
                findings.append(Finding(code=VerifyCode.PRESENCE, where=where, message=f"only in /{path}"))
    wrong = {finding.where.removeprefix("/") for finding in findings}
    return len(listed - wrong), sorted(findings, key=lambda finding: finding.where)


def recorded(text: str, folder: str) -> Iterator[tuple[str, str]]:
    """Yield path and sha256 of each file that a RECORD names with one."""
    for row in csv.reader(io.StringIO(text)):
        if len(row) > 1 and row[1].startswith("sha256="):
            try:
                digest = base64.urlsafe_b64decode(row[1].removeprefix("sha256=") + "==").hex()
            except ValueError:  # also binascii.Error
                digest = row[1]
            yield posixpath.normpath(posixpath.join(folder, row[0])), digest


def _differing(named: Mapping[str, str], there: Mapping[str, Entry], by: str) -> Iterator[Finding]:
    """Yield a finding for each file that is not there with its sha256."""
    for path, digest in named.items():
        entry = there.get(path)
        if entry is None:
            yield Finding(code=VerifyCode.PRESENCE, where=f"/{path}", message=f"only in {by}")
        elif entry.kind is Kind.FILE and entry.sha256 != digest:
            message = f"content is {entry.sha256}, and {digest} in {by}"
            yield Finding(code=VerifyCode.CONTENT, where=f"/{path}", message=message)
