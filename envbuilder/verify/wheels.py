"""Judge locked wheels that hold code compiled with torch, before their lock is written: does each load in this environment?

`uv` chooses wheels by tags and metadata alone. What is compiled says more: symbols, libraries, GPU code. `lock` calls this with
new wheels, and `check` with those of the cache. Wheels are judged that are in the cache, and those that a recipe names or whose name
has `torch`, if they require torch.
Some link torch and do not require it: those of the table of CUDA packages are judged too, and what a recipe names and the cache has.
They are fetched, as a build would do. A wheel of torch has a GB, so the ends of its libraries are read instead, and it is fetched
only from a server that gives no parts of a file. Both happen only for a wheel that links torch and does not pin its release, and for
another NCCL than torch's own. `verify` checks all files of a build.
"""

import contextlib
import functools
import io
import json
import logging
import posixpath
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder import steps
from envbuilder.compat import tables
from envbuilder.compat.context import can_run, load_tables
from envbuilder.compat.tables.distribution import libstdcxx_of
from envbuilder.compat.tables.table import version_key
from envbuilder.core.archive import DAMAGED_ZIP, BoundedZip
from envbuilder.core.budget import ARCHIVE_SPARE, BudgetError, Entries, most_unpacked, need_within
from envbuilder.core.cache import Sha256, Store, read_proved, save_proved, sha256_text
from envbuilder.core.errors import FetchError, SpaceError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import adapter
from envbuilder.layers.entry import Entry, Kind
from envbuilder.lock.candidates import (
    TORCH,
    LinkCandidate,
    Verdicts,
    chosen_names,
    find_candidates,
    keep_plain,
    torch_wheel,
)
from envbuilder.lock.model import Artifact, Lock, LockedKernel
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import applies, read_requirements
from envbuilder.lock.resolve.nccl import nccl_package
from envbuilder.lock.resolve.sdists import open_index
from envbuilder.steps.gpu_code import CUBIN, PTX, GpuCode, read_gpu_code
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    Elf,
    ImageTexts,
    read_audited,
    read_symbols,
    same_in,
)
from envbuilder.verify.audit.libraries import capabilities
from envbuilder.verify.audit.linked import Linker, TorchSymbols, links_torch, listed, torch_in
from envbuilder.verify.audit.needed import Lacks, Loader, by_owner
from envbuilder.verify.member_ends import open_ends
from envbuilder.verify.other_torches import OtherTorches, keep_symbols, known_symbols, remote_symbols

log = logging.getLogger(__name__)
# The libraries of a toolkit whose number is that of its CUDA.
_OF_CUDA: Final = re.compile(r"lib(cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)[\d.]*")
_RUNTIME: Final = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
# The symbol versions of the C and the C++ library, numbered in order.
_OF_SYSTEM: Final = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)")
_LIBSTDCXX: Final = "libstdc++6"  # Debian's and Ubuntu's package
_LARGE: Final = 64 << 20  # bytes of a wheel whose ends are a small part of it
_NCCL: Final = "libnccl.so.2"
_DATA: Final = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.*)")  # installed beside the packages
_HINT: Final = "take a version or a build of the package for this environment, or build it from its sources as an extension"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelTarget:
    """What an environment has for the wheels that it gets."""

    python: str  # 3.11
    machine: int | None  # the ELF number of its processor
    gpus: tuple[str, ...]  # compute capabilities
    glibc: str  # "" if it is not known
    libstdcxx: str = ""  # the gcc release that the base's is of; likewise
    cudas: frozenset[str] | None  # the major versions of its CUDA libraries; None if they are not known
    torch: TorchSymbols | None  # None if they are not known


@dataclass(slots=True)
class WheelTree:
    """The files of a wheel at their places in an environment. Files that may be ELF are unpacked into a folder when they are opened.

    Of a wheel that an index has, their ends alone are read.
    """

    wheel: zipfile.ZipFile
    site: str
    folder: Path
    entries: list[Entry] = field(default_factory=list)
    _members: dict[str, zipfile.ZipInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise BudgetError for a wheel that is too large, as for names that lead outside."""
        counted, size = Entries(), 0
        for info in self.wheel.infolist():
            name = match[1] if (match := _DATA.fullmatch(info.filename)) else info.filename
            path = posixpath.normpath(f"{self.site}/{name}")
            counted.add(path)
            size += info.file_size
            if not info.is_dir() and path.startswith(f"{self.site}/"):
                self._members[path] = info
        packed = sum(info.compress_size for info in self._members.values())
        if self.wheel.filename:
            packed = Path(self.wheel.filename).stat().st_size
        need_within("bytes of its files", size, most_unpacked(packed, ARCHIVE_SPARE))
        self.entries += _entries({path: info.file_size for path, info in self._members.items()})

    def open(self, path: str) -> IO[bytes]:
        info = self._members[path]
        if ".so" not in posixpath.basename(path):
            return self.wheel.open(info)
        if not self.wheel.filename:
            return open_ends(self.wheel, info)
        unpacked = self.folder / f"{info.header_offset}"
        if not unpacked.exists():
            with self.wheel.open(info) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return unpacked.open("rb")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTree:
    """The files of a kernel of the hub as a package of the environment: path there → file of the store."""

    files: Mapping[str, Path]

    @property
    def entries(self) -> list[Entry]:
        return _entries({path: file.stat().st_size for path, file in self.files.items()})

    def open(self, path: str) -> IO[bytes]:
        return self.files[path].open("rb")


def _entries(sizes: Mapping[str, int]) -> list[Entry]:
    """Return entries of files with these sizes by path, and of their folders."""
    file = Entry(path="", kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=0)
    folders = {str(folder) for path in sizes for folder in PurePosixPath(path).parents} - {"."}
    return [
        *(replace(file, path=path, kind=Kind.DIRECTORY) for path in sorted(folders)),
        *(replace(file, path=path, size=size) for path, size in sizes.items()),
    ]


@contextlib.contextmanager
def open_wheel(
    path: Path | contextlib.AbstractContextManager[zipfile.ZipFile], store: Store, python: str
) -> Iterator[AuditedImage]:
    """Yield a wheel as an image that holds it alone. Raises FetchError if it cannot be read, now or in the block."""
    try:
        with store.workspace() as work, BoundedZip(path) if isinstance(path, Path) else path as wheel:
            yield read_audited(
                WheelTree(wheel, f"opt/env/lib/python{python}/site-packages", work), outside=ImageTexts()
            )
    except (*DAMAGED_ZIP, BudgetError) as error:
        raise FetchError(f"`{path}` is no wheel that can be read: {error}") from error


# ---- the verdict


def judge(
    image: AuditedImage, target: WheelTarget, which: Callable[[Sequence[str]], str] = lambda _: ""
) -> Iterator[Finding]:
    """Yield what does not fit, by the first reason of each file. An error is a module whose import fails for certain.

    `which` names the torch that defines symbols which the target's lacks.
    """
    loader = Loader(image, target.machine)
    linker = Linker(loader, target.torch, is_whole=False) if target.torch else None
    bundled = {name for elf in image.elves for name in (elf.name, posixpath.basename(elf.path))}

    def of_other_cuda(elf: Elf) -> tuple[str, ...]:
        majors, others = target.cudas, (name for name in elf.needed if name not in bundled)
        matches = () if majors is None else tuple(filter(None, map(_OF_CUDA.fullmatch, others)))
        return tuple(match[0] for match in matches if match[2] not in (majors or ()))

    have = {"GLIBC": target.glibc} if target.glibc else {}
    if row := libstdcxx_of(target.libstdcxx) if target.libstdcxx else None:
        have |= row.newest

    def of_newer_system(elf: Elf) -> tuple[str, ...]:
        others = (version for library, version in elf.needs if library not in bundled)
        matches = filter(None, map(_OF_SYSTEM.fullmatch, others))
        return tuple(
            match[0] for match in matches if match[1] in have and version_key(match[2]) > version_key(have[match[1]])
        )  # fmt: skip

    def newer(names: list[str]) -> str:
        """Name the newest version of each library."""
        newest = {name.partition("_")[0]: name for name in sorted(names, key=_version)}
        needs = [f"glibc {name[6:]}" if kind == "GLIBC" else f"`{name}`" for kind, name in newest.items()]
        bases = [f"glibc {have['GLIBC']}"] if "GLIBC" in newest else []
        bases += (f"`{kind}_{have[kind]}` of gcc {target.libstdcxx}" for kind in newest if kind != "GLIBC")
        return f"needs {' and '.join(needs)}, and the base has {' and '.join(bases)}"

    def of_other_torch(elf: Elf) -> tuple[str, ...]:
        return linker.lacks(elf) if linker and not (of_newer_system(elf) or of_other_cuda(elf)) else ()

    cuda = f"CUDA {' and '.join(sorted(target.cudas))}" if target.cudas else "no CUDA"
    checks: tuple[tuple[AuditCode, Lacks, Callable[[list[str]], str]], ...] = (
        (AuditCode.NEEDED, of_other_cuda, lambda names: f"needs {listed(names)}, and the environment has {cuda}"),
        (AuditCode.SYMBOLS, of_newer_system, newer),
        (AuditCode.UNDEFINED, of_other_torch, linker.describe if linker else listed),
    )  # fmt: skip
    for code, lacks, describe in checks:
        for owner, files, is_error in by_owner(loader, lacks):
            lead = f"`import {owner}` fails" if is_error else f"a part of `{owner}` will not load"
            names = sorted({name for names in files.values() for name in names})
            other = which(names) if is_error and code is AuditCode.UNDEFINED else ""
            yield Finding(
                code=code, severity=Severity.ERROR if is_error else Severity.WARNING, where=next(iter(files)),
                message=f"{lead}: {describe(names)}{other}{same_in(list(files))}", hint=_HINT if is_error else "",
            )  # fmt: skip
    for path, why in image.unreadable.items():
        yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=path, message=why)
    if linker:
        yield from linker.unreadable()
    yield from _judge_gpus(image, target.gpus)


def _version(name: str) -> tuple[int, ...]:
    return version_key(name.partition("_")[2])


def _judge_gpus(image: AuditedImage, gpus: Sequence[str]) -> Iterator[Finding]:
    """Judge a wheel's GPU code as a whole: packages bring files for single GPUs, and load those that fit.

    Lacking code is no error: a package may compile it with Triton, or do without.
    """
    codes: dict[GpuCode, str] = {}  # code → its file
    for elf in image.elves if gpus else ():
        try:
            with image.tree.open(elf.path) as stream:
                codes |= dict.fromkeys(read_gpu_code(stream), elf.path)
        except ValueError as error:
            why = f"its code for GPUs cannot be read: {error}"
            yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=elf.path, message=why)
            return
    cubins, ptx = capabilities(codes, CUBIN), capabilities(codes, PTX)
    for gpu in gpus if cubins or ptx else ():
        if can_run(gpu, cubins):
            continue
        is_slow, held = can_run(gpu, (), ptx), " ".join(sorted(code.target for code in codes))
        effect = (
            "the first start compiles its PTX, which takes minutes"
            if is_slow
            else "what it compiled for GPUs does not run there"
        )
        yield Finding(
            code=AuditCode.ONLY_PTX if is_slow else AuditCode.NO_CODE, severity=Severity.WARNING, where=next(iter(codes.values())),
            message=f"the wheel has no machine code for a GPU of capability {gpu}, but {held}: {effect}",
        )  # fmt: skip


# ---- the wheels of a lock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What does not fit of a wheel. In part: its symbols were not compared with those of torch, which it links."""

    findings: tuple[Finding, ...] = ()
    is_whole: bool = True


def judge_wheels(task: Task, lock: Lock) -> None:
    """Judge the wheels of a lock, and log what is no error. Raises IncompatibleError for those that cannot load."""
    torch, store = torch_wheel(lock), task.context.store
    if torch is None:
        return
    candidates = find_candidates(task.recipe, lock, store)
    pins = {each.wheel: pins for each in candidates if (pins := _requires_torch(each, task)) is not None}
    known = {wheel: _known(wheel, torch, task, lock) for wheel in pins}
    unknown = [wheel for wheel, verdict in known.items() if verdict is None]
    findings = [finding for verdict in known.values() if verdict for finding in verdict.findings]
    try:
        for kernel in lock.kernels:
            _fetch(kernel.files, task)
            findings += _judged_kernel(kernel, torch, task, lock, may_fetch=True).findings
        others = {wheel: OtherTorches(task, torch, pins[wheel], may_ask=True) for wheel in unknown}
        early = [finding for wheel in unknown for finding in _judged_early(wheel, others[wheel], lock)]
        if early:
            findings, unknown = [*findings, *early], []
        _fetch(unknown, task)
        for wheel in unknown:
            may_fetch = not _is_pinned(pins[wheel])
            findings += _judged(wheel, others[wheel], lock, may_fetch=may_fetch).findings
    except (FetchError, SpaceError) as error:  # a build would end with it; the lock does not depend on it
        log.warning("not all wheels are judged: %s", error.message)
    wrong = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    for finding in findings:
        if finding not in wrong:
            log.warning("%s", finding)
    Verdicts(findings=wrong).need_fitting(lock)


def examine_wheels(task: Task, lock: Lock) -> Verdicts:
    """Judge those wheels and kernels of a lock that are in the cache. Nothing is fetched."""
    torch, store = torch_wheel(lock), task.context.store
    if torch is None:
        return Verdicts()

    def of_kernel(kernel: LockedKernel) -> _Verdict | None:
        is_here = all(store.has_artifact(file.sha256) for file in kernel.files)
        return _judged_kernel(kernel, torch, task, lock, may_fetch=False) if is_here else None

    def of_wheel(each: LinkCandidate) -> _Verdict | None:
        known = _known(each.wheel, torch, task, lock) if each.is_here else None
        if known or not (each.is_here and store.has_artifact(each.wheel.sha256)):
            return known
        pins = _requires_torch(each, task)
        if pins is None:
            return _Verdict()
        # Others are read in a moment, and torch's symbols in ten seconds.
        is_slow, title = bool(pins) or each.is_torchs, f"judge {each.wheel.filename}"
        others = OtherTorches(task, torch, pins, may_ask=False)
        with task.context.transfer(title, None) if is_slow else contextlib.nullcontext():
            return _judged(each.wheel, others, lock, may_fetch=False)

    judges = {kernel.name: functools.partial(of_kernel, kernel) for kernel in lock.kernels}
    for each in find_candidates(task.recipe, lock, store):
        judges[each.wheel.name] = functools.partial(of_wheel, each)
    verdicts: dict[str, _Verdict | None] = {}
    for name, verdict_of in judges.items():
        try:
            verdicts[name] = verdict_of()
        # A damaged file, or a cache that cannot be written.
        except (FetchError, SpaceError, OSError) as error:
            log.warning("%s is not judged: %s", name, error)
            verdicts[name] = None
    return Verdicts(
        findings=tuple(finding for verdict in verdicts.values() if verdict for finding in verdict.findings),
        absent=tuple(name for name, verdict in verdicts.items() if verdict is None),
        in_part=tuple(name for name, verdict in verdicts.items() if verdict and not verdict.is_whole),
    )


def _judged(wheel: Artifact, others: OtherTorches, lock: Lock, *, may_fetch: bool) -> _Verdict:
    """Judge a wheel of the cache, and keep the verdict there."""
    task, torch, is_chosen = others.task, others.torch, wheel.name in chosen_names(lock)
    store = task.context.store
    if wheel.name == nccl_package(task.recipe):
        return _keep(_judge_nccl(wheel, torch, task, may_fetch=may_fetch), wheel, torch, task, lock)
    with open_wheel(store.artifact(wheel.sha256), store, task.recipe.python) as image:
        links = any(map(links_torch, image.elves))
        if not (links or others.pins or is_chosen or TORCH in wheel.name):
            keep_plain(wheel, store)
            return _Verdict()
        symbols = torch_symbols(torch, task, may_fetch=may_fetch) if links else None
        findings = tuple(judge(image, _target(task, lock, symbols), others.which))
    is_whole = symbols is not None or not links
    if not findings:
        log.info(
            "%s fits%s", wheel.filename, "" if is_whole else "; its symbols are not compared with torch's"
        )
    # In place of a wheel that `lock` chose there is another one, or a build.
    refused = {AuditCode.NO_CODE} if is_chosen else set[AuditCode]()
    verdict = _Verdict(findings=_placed(findings, wheel, refused), is_whole=is_whole)
    return verdict if others.has_failed else _keep(verdict, wheel, torch, task, lock)


def _judged_early(wheel: Artifact, others: OtherTorches, lock: Lock) -> tuple[Finding, ...]:
    """Return why a large wheel of an index cannot load, by the ends of its files; nothing if that needs all of it."""
    task, torch, store = others.task, others.torch, others.task.context.store
    is_other = wheel.name == nccl_package(task.recipe) or _is_pinned(others.pins)
    if is_other or wheel.size < _LARGE or store.has_artifact(wheel.sha256):
        return ()
    try:
        opened = open_index(task.context).open_artifact(wheel)
        with (
            task.context.transfer(f"look into {wheel.filename}", None),
            open_wheel(opened, store, task.recipe.python) as image,
        ):
            symbols = (
                torch_symbols(torch, task, may_fetch=True) if any(map(links_torch, image.elves)) else None
            )
            target = replace(_target(task, lock, symbols), gpus=())  # their code lies between the ends
            findings = _placed(tuple(judge(image, target, others.which)), wheel)
    except FetchError as error:
        log.info("%s is fetched to be judged: %s", wheel.filename, error.message)
        return ()
    # What is not readable here might define what others lack.
    is_read = all(finding.code != AuditCode.UNREADABLE for finding in findings)
    wrong = tuple(finding for finding in findings if is_read and finding.severity is Severity.ERROR)
    if wrong and not others.has_failed:
        _keep(_Verdict(findings=wrong), wheel, torch, task, lock)
    return wrong


def _placed(
    findings: Iterable[Finding], wheel: Artifact, refused: Collection[AuditCode] = ()
) -> tuple[Finding, ...]:
    """Return the findings with their places in a wheel. Those of a code in `refused` become errors."""
    return tuple(
        replace(
            finding, where=f"{wheel.filename}: {finding.where.rpartition('site-packages/')[2]}",
            severity=Severity.ERROR if finding.code in refused else finding.severity,
        )
        for finding in findings
    )  # fmt: skip


def _keep(verdict: _Verdict, wheel: Artifact, torch: Artifact, task: Task, lock: Lock) -> _Verdict:
    save_proved(_proof(wheel, torch, task, lock), adapter(_Verdict).dump_json(verdict).decode())
    return verdict


def _known(wheel: Artifact, torch: Artifact, task: Task, lock: Lock) -> _Verdict | None:
    """Return the verdict of the cache, None without one, or if torch came there since and says more."""
    with contextlib.suppress(OSError, ValueError):
        text = read_proved(_proof(wheel, torch, task, lock))
        verdict: _Verdict = adapter(_Verdict).validate_json(text)
        if verdict.is_whole or not task.context.store.artifact(torch.sha256).is_file():
            return verdict
    return None


def _proof(wheel: Artifact, torch: Artifact, task: Task, lock: Lock) -> Path:
    """Return the place of the verdict on a wheel: by this program, wheel, torch and target."""
    target, is_chosen = asdict(_target(task, lock, None)), wheel.name in chosen_names(lock)
    parts = (_judges(), wheel.sha256, torch.sha256, is_chosen, target)
    return task.context.store.proof(sha256_text(json.dumps(["fits", *parts], default=sorted)))


@functools.cache
def _judges() -> Sha256:
    """Return the sha256 of the programs and tables that judge a wheel."""
    folders = (Path(__file__).parent, Path(tables.__file__).parent, Path(steps.__file__).parent)
    paths = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml")
    )
    return sha256_text("".join(path.read_text(encoding="utf-8") for path in paths))


def _judged_kernel(
    kernel: LockedKernel, torch: Artifact, task: Task, lock: Lock, *, may_fetch: bool
) -> _Verdict:
    """Return what does not fit of a kernel of the hub, which its maker built for a release of torch."""
    store = task.context.store
    top = f"opt/env/lib/python{task.recipe.python}/site-packages/{kernel.name.rpartition('/')[2]}"
    paths = {file: file.path.partition(f"/build/{kernel.variant}/")[2] for file in kernel.files}
    tree = KernelTree(files={f"{top}/{path}": store.artifact(file.sha256) for file, path in paths.items()})
    image = read_audited(tree, outside=ImageTexts())
    links = any(map(links_torch, image.elves))
    symbols = torch_symbols(torch, task, may_fetch=may_fetch) if links else None
    others = OtherTorches(task, torch, (), may_ask=may_fetch)
    findings = tuple(judge(image, _target(task, lock, symbols), others.which))
    if not findings:
        log.info("%s fits: %s", kernel.name, kernel.variant)
    hint = "take another revision of the kernel, or another release of torch"
    placed = tuple(
        replace(
            finding,
            where=f"{kernel.name}: {finding.where.rpartition(f'{top}/')[2]}",
            hint=finding.hint and hint,
        )
        for finding in findings
    )
    return _Verdict(findings=placed, is_whole=symbols is not None or not links)


def _judge_nccl(wheel: Artifact, torch: Artifact, task: Task, *, may_fetch: bool) -> _Verdict:
    """Find what torch needs of the recipe's NCCL and does not get: its import fails then. Python resolves each symbol at once."""
    store = task.context.store
    symbols = torch_symbols(torch, task, may_fetch=may_fetch)
    with open_wheel(store.artifact(wheel.sha256), store, task.recipe.python) as image:
        library = next((elf for elf in image.elves if elf.name == _NCCL), None)
        where = f"{wheel.filename}: {library.path.rpartition('site-packages/')[2] if library else _NCCL}"
        try:
            with image.tree.open(library.path) if library else io.BytesIO() as stream:
                given = read_symbols(stream).given if library else frozenset[str]()
        except ValueError as error:
            raise FetchError(f"{where}: {error}") from error
    if symbols is None:
        return _Verdict(is_whole=False)
    lacking = sorted(symbols.nccl - given)
    older = task.target.torch.nccl if task.target.torch else ""
    if not lacking:
        count = len(symbols.nccl)
        log.info("%s fits: it defines the %d functions that %s needs", wheel.filename, count, symbols.title)
        return _Verdict()
    finding = Finding(
        code=AuditCode.UNDEFINED, where=where,
        hint=f"take a release from {older} on, with which torch is compiled" if older else "take a newer one",
        message=f"`import torch` fails: {symbols.title} needs {listed(lacking)}, and NCCL {wheel.version} does not define it",
    )  # fmt: skip
    return _Verdict(findings=(finding,))


def _fetch(wheels: Sequence[Artifact], task: Task) -> None:
    """Fetch what the store lacks, and show names and size."""
    missing = task.context.fetcher.missing(wheels)
    if missing:
        names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in missing)
        size = sum(wheel.size for wheel in missing)
        with task.context.transfer(
            f"fetch {names} ({size / 1e6:.0f} MB) to judge what is compiled", size
        ) as progress:
            task.context.fetcher.fetch(missing, progress)


def _requires_torch(candidate: LinkCandidate, task: Task) -> tuple[Requirement, ...] | None:
    """Return a wheel's requirements on torch, None for a wheel that is not judged."""
    wheel = candidate.wheel
    try:
        requirements = read_requirements(wheel, task.context)
    except FetchError as error:
        log.warning("%s is not judged: %s", wheel.filename, error.message)
        return None
    python, processor = task.recipe.python, task.target.processor
    on_torch = (each for each in requirements if canonicalize_name(each.name) == TORCH)
    pins = tuple(each for each in on_torch if applies(each, python, processor))
    is_judged = candidate.is_torchs or (candidate.is_here and candidate.is_named)
    return pins if pins or is_judged else None


def _is_pinned(pins: Sequence[Requirement]) -> bool:
    """Return whether a wheel was made for exactly one release of torch, which uv has chosen then."""
    return any(bound.operator == "==" and "*" not in bound.version for pin in pins for bound in pin.specifier)


def torch_symbols(torch: Artifact, task: Task, *, may_fetch: bool) -> TorchSymbols | None:
    """Return what a wheel of torch defines, read once for each sha256. None if it is neither known nor fetched."""
    store, symbols = task.context.store, known_symbols(torch.sha256, task.context.store)
    if symbols:
        return symbols
    if not store.has_artifact(torch.sha256):
        if not may_fetch:
            return None
        try:
            symbols = remote_symbols(
                open_index(task.context).open_artifact(torch), f"torch {torch.version}", task
            )
        except FetchError as error:
            log.info("%s is fetched as a whole: %s", torch.filename, error.message)
            _fetch((torch,), task)
    if symbols is None:
        with open_wheel(store.artifact(torch.sha256), store, task.recipe.python) as image:
            symbols = torch_in(image)
    if symbols:
        keep_symbols(torch.sha256, symbols, store)
    return symbols


def _target(task: Task, lock: Lock, torch: TorchSymbols | None) -> WheelTarget:
    gpus, recipe, target = load_tables().gpus.by_name, task.recipe, task.target
    runtimes = (wheel for wheel in lock.wheels if _RUNTIME.fullmatch(wheel.name))
    majors = {wheel.version.partition(".")[0] for wheel in runtimes} | {recipe.cuda.partition(".")[0]} - {""}
    # What a base image or packages of `apt` bring is not known here.
    is_known = target.base is None and not any("cudart" in deb.name for deb in lock.debs)
    return WheelTarget(
        python=recipe.python, machine=target.processor.elf, torch=torch,
        gpus=tuple(gpus[name].capability for name in recipe.gpus if name in gpus),
        glibc="" if target.base else target.distribution.glibc, libstdcxx="" if target.base else _gcc_of(lock),
        cudas=frozenset(majors) if is_known else None,
    )  # fmt: skip


def _gcc_of(lock: Lock) -> str:
    """Return the gcc release of a suite's libstdc++: 12.2.0 of 12.2.0-14+deb12u1, "" if the lock has none."""
    versions = (deb.version for deb in lock.debs if deb.name == _LIBSTDCXX)
    match = re.match(r"(?:\d+:)?(\d+\.\d+(?:\.\d+)?)", next(versions, ""))
    return match[1] if match else ""
