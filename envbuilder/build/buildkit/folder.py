"""The folder that `Dockerfile.base` builds from: artefacts as links to the store, programs, and what the plan decides as files.

Each stage reads a part of its own, so that BuildKit makes anew what an edit touches and nothing else.
"""

import shlex
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import uv

from envbuilder import runtime as image
from envbuilder.build.assemble import os as debian
from envbuilder.build.assemble.byte_code import is_repeatable
from envbuilder.build.assemble.runtime import write_runtime_files
from envbuilder.build.extensions.arguments import written
from envbuilder.build.extensions.stage_sources import place_sources
from envbuilder.core.cache import Sha256, Store, link_or_copy
from envbuilder.core.process import Command, Runner
from envbuilder.core.sources import BLOBS
from envbuilder.lock.base_image.layout import layout_files
from envbuilder.lock.base_image.locked import LockedBase
from envbuilder.lock.model import Artefact, LockedExtension, blobs
from envbuilder.plan.model import CudaStep, OsStep, Plan, PythonStep, StartStep
from envbuilder.plan.render import Compile, rules

DOCKERFILE: Final = "Dockerfile.base"
BASE: Final = "base"  # the image that a recipe stands on, as an OCI layout
# Beside those of the kit, and where in its folder: the last is mounted where each Python of a project's build finds it.
_PROGRAMS: Final = {"compile_extension.py": "", "build_project.py": "", "sitecustomize.py": "customize"}
_EXCLUDED: Final = tuple(pattern.removeprefix("/").removesuffix("*") for pattern in debian.EXCLUDE)
# What dpkg itself leaves in an image to which packages are added.
_DROP: Final = (
    "var/log/dpkg.log", "var/log/alternatives.log", "var/log/apt", "var/log/bootstrap.log", "var/lib/dpkg/status-old",
    "var/cache/ldconfig/aux-cache", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old",
)  # fmt: skip


def arguments(plan: Plan) -> dict[str, str]:
    """What `Dockerfile.base` is told of the plan, by the names of its ARGs."""
    kinds = {type(step).name for step in plan.steps}
    given = {
        "BASE": "image" if plan.os.base else "suite",
        "CUDA": "toolkit" if "cuda" in kinds else "",
        "EXTENSIONS": "compiled" if "extensions" in kinds else "",
        "SOURCE_DATE_EPOCH": str(plan.epoch),
    }
    return {name: value for name, value in given.items() if value}


def fill(plan: Plan, folder: Path, *, store: Store, runner: Runner, jobs: int) -> None:
    """Write everything into `folder`; the store must have the plan's artefacts."""
    compiles = written(plan, jobs=jobs)
    _text(folder / DOCKERFILE, image.path(DOCKERFILE).read_text(encoding="utf-8"))
    for name, text in image.files("kit"):
        _text(folder / "kit" / name, text)
    for name, place in _PROGRAMS.items():
        _text(folder / "kit" / place / name, image.path(name).read_text(encoding="utf-8"))
    for step in plan.steps:
        match step:
            case OsStep():
                _fill_os(
                    step,
                    folder / "os",
                    store=store,
                    runner=runner,
                    repeat=_repeat(plan.python),
                    epoch=plan.epoch,
                )
                if step.base:
                    write_base(step.base, folder / BASE, store)
            case PythonStep():
                _fill_python(step, folder / "python", store)
            case CudaStep():
                _fill_cuda(step, plan.python, folder / "cuda", store)
            case StartStep():
                for path, text in step.files:
                    _text(folder / "start" / path, text, mode=0o755 if text.startswith("#!") else 0o644)
            case _:  # extensions and runtime follow
                pass
    _fill_extensions(plan.extensions, compiles, folder / "extensions", store)
    write_runtime_files(plan.runtime, folder / "runtime")


def _fill_os(step: OsStep, folder: Path, *, store: Store, runner: Runner, repeat: str, epoch: int) -> None:
    settings = {
        "GCC": step.gcc,
        "REPEAT": repeat if any(deb.name == f"python{repeat}-minimal" for deb in step.artefacts) else "",
        "EXCLUDE": " ".join(debian.EXCLUDE),
        "KEEP": debian.KEEP,
        "DROP": " ".join(_DROP if step.base else debian.DROP),
        "NAMES": " ".join(f"{name}={tool}" for name, tool in debian.PLAIN_NAMES.items()),
        "DRIVER": step.driver,
    }
    _settings(folder / "settings", settings)
    _text(folder / "finish.sh", f"{debian.ADD_USER}\n")
    _link(
        folder / "debs", ((f"{deb.name}_{deb.sha256[:16]}.deb", deb.sha256) for deb in step.artefacts), store
    )
    if not step.base:
        write_root(step.artefacts, folder / "root.tar", epoch=epoch, store=store, runner=runner)


def write_root(debs: Iterable[Artefact], out: Path, *, epoch: int, store: Store, runner: Runner) -> None:
    """Put what the packages hold into one tar, below the links of the merged /usr: enough of a root for its own dpkg."""
    seen = {f"usr/{name}" for name in debian.MERGED} | set(debian.MERGED) | {"usr", ""}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("usr", *(f"usr/{name}" for name in debian.MERGED)):
            tar.addfile(debian.member(name, kind=tarfile.DIRTYPE, epoch=epoch))
        for name in debian.MERGED:
            tar.addfile(debian.member(name, kind=tarfile.SYMTYPE, epoch=epoch, target=f"usr/{name}"))
        for deb in debs:
            argv = ("dpkg-deb", "--fsys-tarfile", str(store.artefact(deb.sha256)))
            with runner.read(Command(argv=argv, why=f"unpack `{deb.name}`")) as stream:
                for member, content in _members(stream):
                    if member.name not in seen and not member.name.startswith(_EXCLUDED):
                        tar.addfile(member, content)
                        seen.add(member.name)


def _members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """The members with their paths below a merged /usr."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            member.name = _merged(member.name)
            if member.islnk():
                member.linkname = _merged(member.linkname)
            yield member, tar.extractfile(member) if member.isreg() else None


def _merged(name: str) -> str:
    path = name.removeprefix("./").removeprefix("/").rstrip("/")
    path = "" if path == "." else path
    return f"usr/{path}" if path.partition("/")[0] in debian.MERGED else path


def _fill_python(step: PythonStep, folder: Path, store: Store) -> None:
    _settings(
        folder / "settings",
        {"INTERPRETER": step.program, "VERSION": step.python, "REPEAT": _repeat(step)},
    )
    lines = (f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in step.artefacts)
    _text(folder / "requirements.txt", "".join(lines))
    _link(folder / "wheels", ((wheel.filename, wheel.sha256) for wheel in step.artefacts), store)
    link_or_copy(Path(uv.find_uv_bin()), folder / "uv")
    (folder / "uv").chmod(0o755)


def _repeat(step: PythonStep) -> str:
    return "" if is_repeatable(step.python) else step.python


def _fill_cuda(step: CudaStep, python: PythonStep, folder: Path, store: Store) -> None:
    site, version = python.site_packages, step.toolkit.cuda
    _settings(folder / "settings", {"INTERPRETER": python.program, "SITE": site, "CUDA": version})
    _text(folder / "rules.json", rules(step))
    _link(folder / "parts", ((part.filename, part.sha256) for part in step.artefacts), store)


def _fill_extensions(
    extensions: tuple[LockedExtension, ...], compiles: tuple[Compile, ...], folder: Path, store: Store
) -> None:
    for number, (extension, one) in enumerate(zip(extensions, compiles, strict=True)):
        own = folder / f"{number:03}"
        _text(own / "spec.json", one.specification)
        _text(own / "entry.json", one.entry)
        _settings(own / "environment", dict(one.env), export=True)
        if one.project:
            _text(own / "project", one.project)
            place_sources(extension, store=store, folder=own / "src")
            continue
        _text(own / "sources", one.sums)
        for file in one.files:
            target = folder / "sources" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                link_or_copy(store.artefact(Sha256(file.sha256)), target)


def write_base(base: LockedBase, folder: Path, store: Store) -> None:
    """The image as an OCI layout of links to its blobs in the store."""
    _link(folder / BLOBS, ((blob.sha256, blob.sha256) for blob in blobs(base)), store)
    for name, content in layout_files(base).items():
        _text(folder / name, content.decode())


def _link(folder: Path, files: Iterable[tuple[str, str]], store: Store) -> None:
    folder.mkdir(parents=True)
    for name, digest in files:
        target = folder / name
        if not target.exists():
            link_or_copy(store.artefact(Sha256(digest)), target)


def _settings(path: Path, values: dict[str, str], *, export: bool = False) -> None:
    """Assignments as the shell reads them."""
    word = "export " if export else ""
    _text(path, "".join(f"{word}{name}={shlex.quote(value)}\n" for name, value in values.items()))


def _text(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
