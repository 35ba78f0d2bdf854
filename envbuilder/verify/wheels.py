"""Judge locked wheels that hold code compiled with torch, before their lock is written: does each load in this environment?

`uv` chooses wheels by tags and metadata alone. What is compiled says more: symbols, libraries, GPU code. `lock` calls this with
new wheels. Wheels are judged that are in the cache, and those that a recipe names or whose name has `torch`, if they require torch.
They are fetched, as a build would do. A wheel of torch has a GB, so it is fetched only for a wheel that links torch and does not
pin its release. `verify` checks all files of a build.
"""

import contextlib
import json
import logging
import posixpath
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.context import can_run, load_tables
from envbuilder.compat.tables.table import version_key
from envbuilder.core.archive import DAMAGED_ZIP, BoundedZip
from envbuilder.core.budget import ARCHIVE_SPARE, BudgetError, Entries, most_unpacked, need_within
from envbuilder.core.cache import Store, read_proved, save_proved, sha256_text
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import adapter
from envbuilder.layers.entry import Entry, Kind
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import TORCH, applies, parse_all, read_requirements
from envbuilder.steps.gpu_code import CUBIN, PTX, GpuCode, read_gpu_code
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    Elf,
    ImageTexts,
    read_audited,
    same_in,
)
from envbuilder.verify.audit.linked import Linker, TorchSymbols, links_torch, torch_in
from envbuilder.verify.audit.needed import Lacks, Loader, by_owner

log = logging.getLogger(__name__)
_SYMBOLS: Final = 1  # the form of what is kept of a torch
# The libraries of a toolkit whose number is that of its CUDA.
_OF_CUDA: Final = re.compile(r"lib(cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)[\d.]*")
_RUNTIME: Final = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_GLIBC: Final = re.compile(r"GLIBC_(\d+\.\d+)")
_DATA: Final = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.*)")  # installed beside the packages
_HINT: Final = "take a version or a build of the package for this environment, or build it from its sources as an extension"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an environment has for the wheels that it gets."""

    python: str  # 3.11
    machine: int | None  # the ELF number of its processor
    gpus: tuple[str, ...]  # compute capabilities
    glibc: str  # "" if it is not known
    cudas: frozenset[str] | None  # the major versions of its CUDA libraries; None if they are not known
    torch: TorchSymbols | None  # None if they are not known


@dataclass(slots=True)
class WheelTree:
    """The files of a wheel at their places in an environment. Files that may be ELF are unpacked into a folder when they are opened."""

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
        need_within(
            "bytes of its files",
            size,
            most_unpacked(Path(self.wheel.filename or "").stat().st_size, ARCHIVE_SPARE),
        )
        self.entries += (
            Entry(path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=0, size=info.file_size)
            for path, info in self._members.items()
        )

    def open(self, path: str) -> IO[bytes]:
        info = self._members[path]
        if ".so" not in posixpath.basename(path):
            return self.wheel.open(info)
        unpacked = self.folder / f"{info.header_offset}"
        if not unpacked.exists():
            with self.wheel.open(info) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return unpacked.open("rb")


@contextlib.contextmanager
def open_wheel(path: Path, store: Store, python: str) -> Iterator[AuditedImage]:
    """Yield a wheel as an image that holds it alone. Raises FetchError for one that cannot be read."""
    try:
        with store.workspace() as work, BoundedZip(path) as wheel:
            yield read_audited(
                WheelTree(wheel, f"opt/env/lib/python{python}/site-packages", work), outside=ImageTexts()
            )
    except (*DAMAGED_ZIP, BudgetError) as error:
        raise FetchError(f"`{path}` is no wheel that can be read: {error}") from error


# ---- the verdict


def judge(image: AuditedImage, place: Place) -> Iterator[Finding]:
    """Yield what does not fit. An error is an import that fails for certain, or no code at all for one of the GPUs."""
    loader = Loader(image, place.machine)
    linker = Linker(loader, place.torch, is_whole=False) if place.torch else None
    bundled = {elf.name for elf in image.elves} | {posixpath.basename(elf.path) for elf in image.elves}

    def cudas(elf: Elf) -> tuple[str, ...]:
        needed = (name for name in elf.needed if name not in bundled)
        return tuple(
            name
            for name in needed
            if (match := _OF_CUDA.fullmatch(name)) and match[2] not in (place.cudas or ())
        )

    def glibcs(elf: Elf) -> tuple[str, ...]:
        versions = (match[1] for _, version in elf.needs if (match := _GLIBC.fullmatch(version)))
        return tuple(version for version in versions if version_key(version) > version_key(place.glibc))

    checks: list[tuple[AuditCode, Lacks, Callable[[list[str]], str]]] = []
    if place.cudas is not None:
        have = (
            f"the environment has CUDA {' and '.join(sorted(place.cudas))}"
            if place.cudas
            else "the environment has no CUDA"
        )
        checks.append((AuditCode.NEEDED, cudas, lambda names: f"it needs {_listed(names)}, and {have}"))
    if place.glibc:
        checks.append(
            (
                AuditCode.SYMBOLS,
                glibcs,
                lambda names: f"it needs glibc {max(names, key=version_key)}, and the base has {place.glibc}",
            )
        )
    if linker:
        checks.append((AuditCode.UNDEFINED, linker.lacks, linker.describe))
    for code, lacks, describe in checks:
        for owner, files, is_error in by_owner(loader, lacks):
            lead = f"`import {owner}` fails" if is_error else f"a part of `{owner}` will not load"
            names = sorted({name for names in files.values() for name in names})
            yield Finding(
                code=code, severity=Severity.ERROR if is_error else Severity.WARNING, where=next(iter(files)),
                message=f"{lead}: {describe(names)}{same_in(list(files))}", hint=_HINT if is_error else "",
            )  # fmt: skip
    if linker:
        yield from linker.unreadable()
    yield from _judge_gpus(image, place.gpus)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _judge_gpus(image: AuditedImage, gpus: Sequence[str]) -> Iterator[Finding]:
    """Judge the wheel's GPU code as a whole: packages bring files for single GPUs, and load those that fit."""
    codes: set[GpuCode] = set()
    first = ""
    for elf in image.elves if gpus else ():
        try:
            with image.tree.open(elf.path) as stream:
                found = read_gpu_code(stream)
        except ValueError as error:
            why = f"its code for GPUs cannot be read: {error}"
            yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=elf.path, message=why)
            return
        first = first or (elf.path if found else "")
        codes.update(found)
    cubins = tuple(sorted(code.capability for code in codes if code.kind == CUBIN))
    ptx = tuple(sorted(code.capability for code in codes if code.kind == PTX))
    for gpu in gpus if cubins or ptx else ():
        if not can_run(gpu, cubins):
            is_slow, held = can_run(gpu, (), ptx), " ".join(sorted(code.target for code in codes))
            yield Finding(
                code=AuditCode.ONLY_PTX if is_slow else AuditCode.NO_CODE,
                severity=Severity.WARNING if is_slow else Severity.ERROR, where=first,
                message=f"the wheel has no machine code for a GPU of capability {gpu}, but {held}"
                + ("; the first start compiles its PTX, which takes minutes" if is_slow else ""),
                hint="" if is_slow else _HINT,
            )  # fmt: skip


# ---- the wheels of a lock


def judge_wheels(task: Task, lock: Lock) -> None:
    """Judge the wheels of a lock. Raises IncompatibleError for those that cannot load, and logs what else there is to say."""
    context, recipe = task.context, task.recipe
    torch = next((wheel for wheel in lock.wheels if wheel.name == TORCH and wheel.kind == "wheel"), None)
    if torch is None:
        return
    required = {wheel: pins for wheel in lock.wheels if (pins := _requires_torch(wheel, task)) is not None}
    missing = context.fetcher.missing(required)
    if missing:
        with context.transfer(
            f"fetch {_named(missing)} to judge", sum(wheel.size for wheel in missing)
        ) as progress:
            context.fetcher.fetch(missing, progress)
    findings: list[Finding] = []
    for wheel, pins in required.items():
        with open_wheel(context.store.artifact(wheel.sha256), context.store, recipe.python) as image:
            links = any(map(links_torch, image.elves))
            symbols = torch_symbols(torch, task, may_fetch=not _is_pinned(pins)) if links else None
            judged = tuple(judge(image, _place(task, lock, symbols)))
        findings += (
            replace(finding, where=f"{wheel.filename}: {finding.where.rpartition('site-packages/')[2]}")
            for finding in judged
        )
        if not judged:
            log.info(
                "%s fits%s",
                wheel.filename,
                "" if symbols or not links else "; its symbols were not compared with torch",
            )
    wrong = tuple(finding for finding in findings if finding.severity is Severity.ERROR)
    for finding in findings:
        if finding not in wrong:
            log.warning("%s", finding)
    if wrong:
        raise IncompatibleError("the lock is not written: wheels do not fit the environment", findings=wrong)


def _requires_torch(wheel: Artifact, task: Task) -> tuple[Requirement, ...] | None:
    """Return a wheel's requirements on torch, None for a wheel that is not judged."""
    named = {canonicalize_name(requirement.name) for requirement in parse_all(task.recipe.packages)}
    is_torchs = TORCH in wheel.name
    if wheel.kind != "wheel" or wheel.name == TORCH or wheel.filename.endswith("-any.whl"):
        return None
    if not (is_torchs or wheel.name in named or task.context.store.has_artifact(wheel.sha256)):
        return None
    try:
        requirements = read_requirements(wheel, task.context)
    except FetchError as error:
        log.warning("%s is not judged: %s", wheel.filename, error.message)
        return None
    python, processor = task.recipe.python, task.target.processor
    on_torch = (each for each in requirements if canonicalize_name(each.name) == TORCH)
    pins = tuple(each for each in on_torch if applies(each, python, processor))
    return pins if pins or is_torchs else None


def _is_pinned(pins: Sequence[Requirement]) -> bool:
    """Return whether a wheel was made for exactly one release of torch, which uv has chosen then."""
    return any(bound.operator == "==" and "*" not in bound.version for pin in pins for bound in pin.specifier)


def _named(wheels: Sequence[object]) -> str:
    return ", ".join(wheel.name for wheel in wheels if isinstance(wheel, Artifact))


def torch_symbols(torch: Artifact, task: Task, *, may_fetch: bool) -> TorchSymbols | None:
    """Return what a wheel of torch defines, read once for each sha256. None if it is neither known nor fetched."""
    context = task.context
    key = context.store.proof(sha256_text(json.dumps(["torch symbols", _SYMBOLS, torch.sha256])))
    with contextlib.suppress(OSError, ValueError):
        kept: TorchSymbols = adapter(TorchSymbols).validate_json(read_proved(key))
        return kept
    if not context.store.has_artifact(torch.sha256):
        if not may_fetch:
            return None
        with context.transfer(f"fetch torch {torch.version} to compare symbols", torch.size) as progress:
            context.fetcher.fetch((torch,), progress)
    with open_wheel(context.store.artifact(torch.sha256), context.store, task.recipe.python) as image:
        try:
            symbols = torch_in(image)
        except ValueError as error:
            raise FetchError(f"`{torch.filename}` cannot be read: {error}") from error
    if symbols:
        values = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in asdict(symbols).items()
        }
        save_proved(key, json.dumps(values))
    return symbols


def _place(task: Task, lock: Lock, torch: TorchSymbols | None) -> Place:
    tables, recipe = load_tables(), task.recipe
    majors = {Version(wheel.version).major for wheel in lock.wheels if _RUNTIME.fullmatch(wheel.name)}
    majors |= {int(recipe.cuda.partition(".")[0])} if recipe.cuda else set()
    return Place(
        python=recipe.python, machine=task.target.processor.elf,
        gpus=tuple(tables.gpus.by_name[name].capability for name in recipe.gpus if name in tables.gpus.by_name),
        glibc=task.target.distribution.glibc,
        cudas=None if task.target.base else frozenset(map(str, majors)),
        torch=torch,
    )  # fmt: skip
