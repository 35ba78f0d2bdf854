"""Prove that image, SIF and plan hold the same files, path by path and byte by byte.

Both artifacts are read back from their files, by code that shares nothing with the code that wrote them. The SIF gives a
manifest. It is compared with that of the layers, whose digests prove the image; where no layers are known, with that of the
image. Every difference is a finding.
"""

import contextlib
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.layout import Layout, read_layout
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.artifacts.sif import opened_sif
from envbuilder.artifacts.squashfs.reader import Content
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import VerifyError
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.layers.entry import Entry, Kind, path_order, tree_digest
from envbuilder.layers.layer import Layer, read_manifest
from envbuilder.layers.overlay import FileScanner
from envbuilder.verify.stored import Known, find_stored, is_known, now_known

SHOWN: Final = 20  # findings of one comparison; further ones are counted

BUILDER_ADDS: Final[Mapping[str, str]] = {
    ".exec": "Apptainer's own links to its start scripts",
    ".run": "the same",
    ".shell": "the same",
    ".singularity.d": "Apptainer's start scripts, environment and labels",
    ".test": "the same as `.exec`",
    "environment": "the same",
    "singularity": "the same",
}
"""The paths that `apptainer build` adds or writes anew, with all below them, and why."""
# Folders that `apptainer build` makes where they are missing.
BUILDER_FOLDERS: Final = ("", "dev", "etc", "home", "proc", "root", "sys", "tmp", "var", "var/tmp")
BUILDER_MARK: Final = ".singularity.d/actions"  # in every SIF that Apptainer built, and in no image
BUILDER_EMPTIES: Final = ("etc/hosts", "etc/resolv.conf")  # replaced by the host's at run time


class VerifyCode(CodeEnum):
    """The findings of `verify`."""

    PRESENCE = "EB701", "a path is in one of the two only"
    FIELD = "EB702", "kind, mode, owner, size, time, target or extended attributes differ"
    CONTENT = "EB703", "a file's bytes differ"
    IMAGE = "EB704", "the OCI layout is damaged, or is not made of the layers it should be made of"
    SIF = "EB705", "the SIF is damaged"
    MORE = "EB706", "how many more findings there are than are shown"
    DOCUMENT = "EB708", "the documents in a SIF contradict each other, or its packages"
    OTHER_PLAN = "EB707", "the artifacts were built from an earlier recipe or lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a comparison. It is a proof only if `findings` is empty."""

    findings: tuple[Finding, ...]
    paths: int
    tree: Sha256  # of the image, see `tree_digest`
    entries: tuple[Entry, ...] = ()  # of the SIF
    contents: Mapping[str, Content] = field(default_factory=dict, compare=False, repr=False)  # of its files
    hidden: tuple[tuple[str, str], ...] = ()  # what `scanner` found in the image's lower layers, by path
    passed_over: tuple[str, ...] = ()  # differences that `apptainer build` makes
    known: Known = field(default_factory=dict, compare=False)  # what later verifications need not unpack


def verify(
    image: Path,
    sif: Path,
    *,
    layers: Sequence[Layer] = (),
    threads: int = 2,
    scanner: FileScanner | None = None,
    digests: Mapping[Path, Sha256] | None = None,
    known: Known | None = None,
) -> VerifyReport:
    """Compare an OCI layout and a SIF, and both with the layers they were made from, if these are known.

    With `layers`, the digests of its blobs prove the image: a layer's manifest is written in the
    same pass as its blob. Without `layers`, any image is accepted that `artifacts/oci/reader.py`
    reads; `scanner` inspects its files. `digests` are those of files that are not hashed again. A content that the
    SIF stores as a layer does is not unpacked if it was for an earlier report, whose `known` is given.

    For a SIF that `apptainer build` wrote, the report lists the differences that Apptainer makes.
    """
    expected: tuple[Entry, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    entries: tuple[Entry, ...] = ()
    contents: Mapping[str, Content] = {}
    shown_now: Known = {}
    passed_over: tuple[str, ...] = ()
    of_image, of_sif = list[Finding](), list[Finding]()
    with ThreadPoolExecutor(1, thread_name_prefix="image") as pool:
        promised = pool.submit(_expect, image, layers, scanner, digests or {})
        with _noted(VerifyCode.SIF, sif, of_sif):
            entries, contents, shown_now = _read_sif(sif, layers, known, threads=threads)
        with _noted(VerifyCode.IMAGE, image, of_image):
            expected, hidden = promised.result()
    findings = (*of_image, *of_sif)
    if not findings:
        passed_over = _builder_made(expected, entries)
        findings = compare(expected, entries, ("the image", "the SIF"), without=frozenset(passed_over))
    tops = [path for path in passed_over if not _is_below(path.rpartition("/")[0], BUILDER_ADDS)]
    return VerifyReport(
        findings=findings, paths=len(expected), tree=tree_digest(expected), entries=entries, contents=contents,
        hidden=hidden,
        passed_over=tuple(tops), known=shown_now,
    )  # fmt: skip


@contextlib.contextmanager
def _noted(code: VerifyCode, path: Path, findings: list[Finding]) -> Iterator[None]:
    """Add a VerifyError of the block to the findings."""
    try:
        yield
    except VerifyError as error:
        findings.append(Finding(code=code, where=str(path), message=error.message, hint=error.hint))


def sif_manifest(path: Path, *, threads: int = 2) -> tuple[Entry, ...]:
    """Return every path in a SIF, sorted, with the digests of all contents; raises VerifyError for damage."""
    with opened_sif(path) as squashfs:
        return squashfs.entries(threads=threads)


def _read_sif(
    path: Path, layers: Sequence[Layer], known: Known | None, *, threads: int
) -> tuple[tuple[Entry, ...], Mapping[str, Content], Known]:
    """Return the manifest of a SIF, the contents of its files, and what is known of its layers after it.

    Without `known`, all is unpacked.
    """
    with opened_sif(path) as squashfs:
        if known is None or not layers:
            return squashfs.entries(threads=threads), squashfs.contents(), {}
        stored = find_stored(squashfs, layers, threads=threads)
        trusted = {content: place.sha256 for content, place in stored.items() if is_known(place, known)}
        entries = squashfs.entries(threads=threads, known=trusted)
        contents = squashfs.contents()
    digests = {contents[entry.path]: entry.sha256 for entry in entries if entry.path in contents}
    right = [place for content, place in stored.items() if digests[content] == place.sha256]
    return entries, contents, now_known(layers, known, right)


def compare(
    left: Collection[Entry], right: Collection[Entry], names: tuple[str, str], *, without: Collection[str] = ()
) -> tuple[Finding, ...]:  # fmt: skip
    """Return a finding for each differing path or field, sorted by path. Paths in `without` are skipped."""
    ours, others = (
        {entry.path: entry for entry in side if entry.path not in without} for side in (left, right)
    )
    if ours == others:
        return ()
    paths = sorted(ours.keys() | others.keys())
    return shown(
        [finding for path in paths for finding in _differences(path, ours.get(path), others.get(path), names)]
    )


def shown(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the first findings, and one that counts the others."""
    more = Finding(code=VerifyCode.MORE, message=f"and {len(findings) - SHOWN} more differences")
    return (*findings[:SHOWN], *([more] if len(findings) > SHOWN else []))


def _builder_made(image: Sequence[Entry], sif: Sequence[Entry]) -> tuple[str, ...]:
    """Return the paths that differ because `apptainer build` wrote the SIF; none for other SIFs."""
    in_image = {entry.path: entry for entry in image}
    in_sif = {entry.path: entry for entry in sif}
    if BUILDER_MARK in in_image or BUILDER_MARK not in in_sif:
        return ()

    made = [
        entry.path
        for entry in sif
        if _is_below(entry.path, BUILDER_ADDS)
        or (entry.path in BUILDER_EMPTIES and entry.kind is Kind.FILE and not entry.size)
        or (entry.path in BUILDER_FOLDERS and entry.kind is Kind.DIRECTORY and entry.path not in in_image)
    ]
    gone = [
        path
        for path, entry in in_image.items()
        if path not in in_sif
        and (_is_below(path, BUILDER_ADDS) or (entry.kind is Kind.SPECIAL and _is_below(path, ("dev",))))
    ]
    different = {path for path in (*made, *gone) if in_image.get(path) != in_sif.get(path)}
    folders = {path.rpartition("/")[0] for path in different if path}
    touched = {path for path in folders if _differs_in_time(in_image.get(path), in_sif.get(path))}
    return tuple(sorted(different | touched))


def _differs_in_time(left: Entry | None, right: Entry | None) -> bool:
    """Whether only the time differs, as of a folder in which a file was created."""
    return left is not None and right is not None and replace(left, mtime=right.mtime) == right


def _expect(
    image: Path, layers: Sequence[Layer], scanner: FileScanner | None, digests: Mapping[Path, Sha256]
) -> tuple[tuple[Entry, ...], tuple[tuple[str, str], ...]]:
    """Return the expected entries of the SIF, and what `scanner` found in lower layers. Raises VerifyError."""
    if not layers:
        tree = read_tree(image, scanner=scanner)
        return tree.entries, tree.hidden
    _check_blobs(read_layout(image), layers, digests)
    entries = {entry.path: entry for layer in layers for entry in read_manifest(layer)}  # they share folders
    return tuple(sorted(entries.values(), key=path_order)), ()


def _check_blobs(layout: Layout, layers: Sequence[Layer], digests: Mapping[Path, Sha256]) -> None:
    """Raise VerifyError unless the image consists of these layers and its blobs match their digests."""
    promised = [(layer.digest, layer.diff_id) for layer in layers]
    if [(layer.blob.digest, layer.diff_id) for layer in layout.layers] != promised:
        raise VerifyError(f"`{layout.folder}` is not made of the layers of this plan")
    for layer in layout.layers:
        path = layout.path(layer.blob)
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != layer.blob.size:
                raise VerifyError(f"`{path}` is not a file of {layer.blob.size} bytes")
            digest = digests.get(path) or sha256_file(path)
        except OSError as error:
            raise VerifyError(f"`{path}` cannot be read: {error}") from error
        if digest != layer.blob.digest:
            raise VerifyError(f"`{path}` does not hold what its name says; its sha256 is {digest}")


def _differences(
    path: str, left: Entry | None, right: Entry | None, names: tuple[str, str]
) -> Iterator[Finding]:
    if left is None or right is None:
        message = f"only in {names[0] if left else names[1]}"
        yield Finding(code=VerifyCode.PRESENCE, where=f"/{path}", message=message)
        return
    for (name, before), after in zip(_fields(left).items(), _fields(right).values(), strict=True):
        if before != after:
            code = VerifyCode.CONTENT if name == "content" else VerifyCode.FIELD
            message = f"{name} is {before} in {names[0]} and {after} in {names[1]}"
            yield Finding(code=code, where=f"/{path}", message=message)


def _fields(entry: Entry) -> dict[str, str]:
    return {
        "kind": entry.kind.value,
        "mode": f"{entry.mode:04o}",
        "owner": f"{entry.uid}:{entry.gid}",
        "size": str(entry.size),
        "time": str(entry.mtime),
        "target": repr(entry.target),
        "extended attributes": " ".join(f"{name}={value.hex()}" for name, value in entry.xattrs) or "none",
        "content": entry.sha256 or "none",
    }


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
