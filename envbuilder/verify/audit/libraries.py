"""Check libraries: their processor, GPU code, symbol versions, copies, run paths, and what NCCL needs for InfiniBand."""

import itertools
import operator
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from envbuilder.compat.context import can_run
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.processor import PROCESSORS, Processor
from envbuilder.recipe.channels import CONDA_PREFIX
from envbuilder.steps.gpu_code import CUBIN, PTX, GpuCode, read_gpu_code
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    Elf,
    is_of_conda,
    same_in,
    seen_by_conda,
    some,
)

# Torch's libraries, what is compiled against torch and lies beside it, and our extensions. NVIDIA's own libraries
# choose code in their own ways, and several keep it compressed.
JUDGED: Final = re.compile(
    r"(opt/envbuilder/|.*/site-packages/(?!nvidia/|cusparselt/|triton/|nvidia_|cuda/|cupy)).*\.so(\.[\d.]+)?"
)


def check_gpus(image: AuditedImage, gpus: Sequence[str]) -> Iterator[Finding]:
    """Check each library's code for GPUs. A package may bring a file for each kind of GPU: the one that fits is loaded."""
    unreadable, read = dict(image.unreadable), dict[str, tuple[GpuCode, ...]]()
    for elf in image.elves:
        if not (gpus and JUDGED.fullmatch(elf.path)):
            continue
        try:
            with image.tree.open(elf.path) as stream:
                read[elf.path] = read_gpu_code(stream)
        except ValueError as error:
            unreadable[elf.path] = f"its code for GPUs cannot be read: {error}"
    ready = {
        (_package(path), gpu)
        for path, codes in read.items()
        for gpu in gpus
        if can_run(gpu, capabilities(codes, CUBIN))
    }
    for path, codes in read.items():
        ptx = capabilities(codes, PTX)
        for gpu in gpus if capabilities(codes, CUBIN) or ptx else ():
            if (_package(path), gpu) in ready:
                continue
            compiles = can_run(gpu, (), ptx)
            held = " ".join(sorted({code.target for code in codes}))
            yield Finding(
                code=AuditCode.ONLY_PTX if compiles else AuditCode.NO_CODE,
                severity=Severity.WARNING if compiles else Severity.ERROR,
                where=f"/{path}",
                message=f"it holds no machine code that a GPU of capability {gpu} runs, but {held}",
                hint="the first start compiles its PTX, which takes minutes"
                if compiles
                else "`no kernel image is available` is what a job would say",
            )
    for path, why in unreadable.items():
        yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=f"/{path}", message=why)


_IN_PACKAGE: Final = re.compile(r".*/(?:site|dist)-packages/(.*)")


def capabilities(codes: Iterable[GpuCode], kind: str) -> tuple[str, ...]:
    """Return for which GPUs there is code of a kind."""
    return tuple(code.capability for code in codes if code.kind == kind)


def _package(path: str) -> str:
    """Return the folder of the Python package that a file lies in, the file itself outside of packages."""
    inside = _IN_PACKAGE.fullmatch(path)
    return inside[1].partition("/")[0] if inside else path


def check_processor(image: AuditedImage, processor: Processor | None) -> Iterator[Finding]:
    """Find programs and libraries for another processor, and those that its kernels with the largest pages cannot load."""
    if processor is None:
        return
    foreign: dict[tuple[str, Severity], list[str]] = {}
    small: dict[int, list[str]] = {}
    for elf in image.elves:
        if elf.machine != processor.elf:
            other = next((known for known in PROCESSORS if known.elf == elf.machine), None)
            title = other.title if other else f"the ELF machine {elf.machine}"
            is_error = other is not None and not _is_choice(elf.path, other)
            foreign.setdefault((title, Severity.ERROR if is_error else Severity.WARNING), []).append(elf.path)
        elif elf.alignment and elf.alignment % processor.page:
            small.setdefault(elf.alignment, []).append(elf.path)
    for (title, severity), paths in sorted(foreign.items()):
        yield Finding(
            code=AuditCode.FOREIGN, severity=severity, where=f"/{paths[0]}",
            message=f"it is for {title}, and the image is for {processor.title}{same_in(paths)}",
            hint="it cannot be loaded: take the package's build for the image's processor"
            if severity is Severity.ERROR
            else "its package brings it for other machines, and nothing of the image can load it",
        )  # fmt: skip
    for alignment, paths in sorted(small.items()):
        yield Finding(
            code=AuditCode.PAGES, severity=Severity.ERROR, where=f"/{paths[0]}",
            message=f"its segments are aligned to {alignment} bytes, and kernels for {processor.title} "
            f"have pages of up to {processor.page}{same_in(paths)}",
            hint="such a kernel cannot load it: take another version, or build it from its sources "
            f"with `-Wl,-z,max-page-size={processor.page}`",
        )  # fmt: skip


def _is_choice(path: str, processor: Processor) -> bool:
    """Whether a Python package brings the file for this processor among others, as its name says: attach_linux_amd64.so."""
    inside = _IN_PACKAGE.fullmatch(path)
    return inside is not None and any(name in inside[1] for name in (processor.debian, processor.machine))


PORTABLE: Final = ("opt/env/", "opt/envbuilder/", "opt/python/")  # usable without the image
_GLIBC: Final = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def check_symbols(image: AuditedImage) -> Iterator[Finding]:
    """Check each needed version against all copies of the library. Libraries of the host are not checked.

    Those of conda's packages serve these packages alone: the loader finds them by no other way than run paths. Where conda's Python
    sees the environment, a file of that may get either copy.
    """
    everywhere, system, conda = dict[str, set[str]](), dict[str, set[str]](), dict[str, set[str]]()
    is_seen = seen_by_conda(image)
    for elf in image.elves:
        everywhere.setdefault(elf.name, set()).update(elf.gives)
        if not is_of_conda(elf.path):
            system.setdefault(elf.name, set()).update(elf.gives)
        elif is_seen and posixpath.dirname(elf.path) == f"{CONDA_PREFIX[1:]}/lib":
            conda.setdefault(elf.name, set()).update(elf.gives)
    missing: dict[tuple[str, str], list[str]] = {}
    for elf in image.elves:
        copies = (
            [everywhere]
            if is_of_conda(elf.path)
            else [system, conda if elf.path.startswith(PORTABLE) else {}]
        )
        for (library, version), given in itertools.product(elf.needs, copies):
            if given.get(library) and version not in given[library]:
                missing.setdefault((library, version), []).append(elf.path)
    for (library, version), paths in sorted(missing.items()):
        copies = [everywhere] if is_of_conda(paths[0]) else [system, conda]
        given = next(given for given in copies if given.get(library) and version not in given[library])
        newest = max(
            (name for name in given[library] if _family(name) == _family(version)), key=_key, default="none"
        )
        yield Finding(
            code=AuditCode.SYMBOLS, severity=Severity.ERROR, where=f"/{paths[0]}",
            message=f"needs `{version}`, and the image's `{library}` does not have it (newest: {newest}){same_in(paths)}",
            hint="it cannot be loaded: take a build for an older system, or a newer base",
        )  # fmt: skip


def check_oldest_host(image: AuditedImage, glibc: str) -> Iterator[Finding]:
    """Find files of the Python environment and the extensions that a host with this glibc could not load."""
    if not glibc:
        return
    newer: dict[str, list[str]] = {}
    for elf in image.elves:
        if elf.path.startswith(PORTABLE):
            needed = [match[1] for _, version in elf.needs if (match := _GLIBC.fullmatch(version))]
            highest = max(needed, key=_numbers, default="0")
            if _numbers(highest) > _numbers(glibc):
                newer.setdefault(highest, []).append(elf.path)
    for version, paths in sorted(newer.items()):
        yield Finding(
            code=AuditCode.OLDEST_HOST, severity=Severity.WARNING, where=f"/{paths[0]}",
            message=f"needs glibc {version}, and the oldest host has {glibc}{same_in(paths)}",
            hint="inside the image it has its own glibc; outside it would not load there",
        )  # fmt: skip


def _family(version: str) -> str:
    return version.partition("_")[0]


def _key(version: str) -> tuple[int, ...]:
    return _numbers(version.partition("_")[2])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


LIBRARY: Final = re.compile(
    r"lib(cuda(rt|devrt)?|cublas(Lt)?|cudnn\w*|cufftw?|cufile\w*|cupti|curand|cusolver(Mg)?|cusparse(Lt)?|nccl"
    r"|npp\w+|nvJitLink|nvToolsExt|nvjpeg|nvrtc\w*|nvshmem\w*)"
    r"\.so(\.[\d.]+)?"
)
DEFAULT_FOLDERS: Final = (
    *(f"{folder}/{one.gnu}" for one in PROCESSORS for folder in ("lib", "usr/lib")),
    *("lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib"),
)


def check_copies(image: AuditedImage) -> Iterator[Finding]:
    by_name: dict[str, list[Elf]] = {}
    for elf in image.elves:
        if LIBRARY.fullmatch(elf.name):
            by_name.setdefault(elf.name, []).append(elf)
    for name, copies in sorted(by_name.items()):
        if len(copies) > 1:
            yield _copies(image, name, copies)


def _copies(image: AuditedImage, name: str, copies: Sequence[Elf]) -> Finding:
    takers: dict[str, list[str]] = {}
    for elf in image.elves:
        if name in elf.needed and (taken := loaded(image, elf, name)):
            takers.setdefault(taken, []).append(elf.path)
    users = "; ".join(f"/{taken} is loaded by {some(paths)}" for taken, paths in sorted(takers.items()))
    keep = max(copies, key=lambda elf: (len(takers.get(elf.path, ())), elf.entry.size))
    spare = sum(elf.entry.size for elf in copies if elf is not keep)
    alike = "the same bytes" if len({elf.entry.sha256 for elf in copies}) == 1 else "different bytes"
    return Finding(
        code=AuditCode.COPIES, severity=Severity.WARNING, where=f"/{keep.path}",
        message=f"{len(copies)} copies of `{name}` with {alike}: {some([elf.path for elf in copies])}; "
        f"{users or 'nothing names it as needed'}",
        hint=f"one would do and save {spare / 1e6:.1f} MB",
    )  # fmt: skip


def loaded(image: AuditedImage, elf: Elf, name: str) -> str | None:
    """Return the file that the loader takes for `name` on behalf of `elf`: run paths first, then system folders."""
    folders = (*elf.runpaths, *(f"/{folder}" for folder in system_folders(image)))
    return next(filter(None, (resolved(image, elf, folder, name) for folder in folders)), None)


def resolved(image: AuditedImage, elf: Elf, folder: str, name: str) -> str | None:
    """Return the file of this name in a folder that the loader searches on behalf of `elf`."""
    plain = folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", f"/{posixpath.dirname(elf.path)}")
    return image.real(f"{plain}/{name}") if plain.startswith("/") else None


def system_folders(image: AuditedImage) -> Iterator[str]:
    """Yield the folders of the loader's cache, in its order."""
    for path in sorted(
        path for path in image.paths if re.fullmatch(r"etc/ld\.so\.conf\.d/[^/]+\.conf", path)
    ):
        lines = image.read(path).decode("utf-8", "replace").splitlines()
        yield from (line.strip().strip("/") for line in lines if line.startswith("/"))
    yield from DEFAULT_FOLDERS


# Folders that others can write, or that a runtime mounts from the host.
OPEN: Final = re.compile(r"/(tmp|var/tmp|dev|run|home|root|mnt|media|proc|scratch|builds|workspace)(/|$)")
# Nobody makes a folder there: only root may, and `exec` mounts nothing there.
CLOSED: Final = re.compile(r"/(bin|etc|lib|lib32|lib64|opt/env|sbin|usr)(/|$)")


def check_runpaths(image: AuditedImage) -> Iterator[Finding]:
    # A package's build gives all its files the same folders.
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for elf in image.elves:
        folders = elf.runpaths if elf.runpaths != ("",) else ()  # one that is empty as a whole is ignored
        strange = [(_strange(image, elf, folder), folder) for folder in dict.fromkeys(folders)]
        if wrong := tuple(sorted((why, folder) for why, folder in strange if why)):
            alike.setdefault(wrong, []).append(elf.path)
    for wrong, paths in sorted(alike.items()):
        by_reason = itertools.groupby(wrong, key=operator.itemgetter(0))
        described = [f"{', '.join(f'`{folder}`' for _, folder in some)} ({why})" for why, some in by_reason]
        yield Finding(
            code=AuditCode.RUNPATH, severity=Severity.WARNING, where=f"/{paths[0]}",
            message=f"looks for libraries in {', and '.join(described)}{same_in(paths)}",
            hint="whoever can write there decides what is loaded: mount no such folder; only a new build of the package changes it",
        )  # fmt: skip


def _strange(image: AuditedImage, elf: Elf, folder: str) -> str:
    """Say what is wrong with a run path, or return ""."""
    plain = folder.replace("${ORIGIN}", "$ORIGIN")
    if plain.startswith("$ORIGIN"):
        above = posixpath.normpath(f"{posixpath.dirname(elf.path)}/{plain.removeprefix('$ORIGIN')}")
        return "above the root" if above.startswith("..") else ""
    if not plain.startswith("/"):
        return "wherever the program is started"
    whole = posixpath.normpath(plain)
    if OPEN.match(whole):
        return "not the image's, and others may write there"
    return "not in the image" if image.real(whole) is None and not CLOSED.match(whole) else ""


VERBS: Final = "libibverbs.so.1"
# NCCL as a library of its own, or inside torch's.
_NCCL: Final = re.compile(r"(.*/)?(libnccl\.so\.2|libtorch_cuda\.so)")
_PROVIDER: Final = re.compile(r"(.*/)?libibverbs/lib(\w+)-rdmav\d+\.so")
_DRIVER: Final = "etc/libibverbs.d/{}.driver"


def check_rdma(image: AuditedImage) -> Iterator[Finding]:
    using = next((elf for elf in image.elves if _NCCL.fullmatch(elf.path)), None)
    if using is None:
        return
    has_verbs = any(elf.name == VERBS for elf in image.elves)
    providers = (match[2] for elf in image.elves if (match := _PROVIDER.fullmatch(elf.path)))
    has_provider = any(_DRIVER.format(name) in image.paths for name in providers)
    for what, is_there in ((f"`{VERBS}`", has_verbs), ("a provider of libibverbs", has_provider)):
        if not is_there:
            yield Finding(
                code=AuditCode.RDMA, severity=Severity.WARNING, where=f"/{using.path}",
                message=f"NCCL is here and {what} is not, so InfiniBand and RoCE would not be used",
                hint="the packages libibverbs1 and ibverbs-providers bring it; `envbuilder lock NAME` takes them up",
            )  # fmt: skip
