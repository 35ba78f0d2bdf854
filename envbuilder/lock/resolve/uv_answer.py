"""Read uv's answer: choose the file of each package that an installer on the target would take."""

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging import tags
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.utils import parse_wheel_filename

from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.processor import Processor
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.uv_question import Question
from envbuilder.sources.names import Sources, file_path, shown

_BUILD: Final = re.compile(r"cpu|cu\d+")
_File = PackageWheel | PackageSdist


def read_answer(
    text: str, question: Question, context: ResolveContext, local: Mapping[Path, Path]
) -> tuple[Artifact, ...]:
    """Return the files of uv's answer, sorted by name. `local` is shown → real path of local packages."""
    try:
        packages = Pylock.from_dict(tomllib.loads(text)).packages
    except (PylockValidationError, tomllib.TOMLDecodeError) as error:
        raise FetchError(f"could not read uv's answer, which repeats what the index says: {error}") from error
    provided, files = {extension.name for extension in question.provided}, {}
    for package in packages:
        if package.name not in provided:
            file = _chosen_file(package, question, local)
            files[_url(file)] = _artifact(package, file, question, context.sources(), local)
    return _with_sizes(files, question, context)


def _chosen_file(package: Package, question: Question, local: Mapping[Path, Path]) -> _File:
    """Return the file to take of a package: one with a hash of the recipe's, if there is such a one."""
    name, version = package.name, str(package.version)
    if package.is_direct:
        raise IncompatibleError(
            f"`{name}` would not come as a wheel or a source distribution from an index or a folder",
            hint="name a version; a direct reference (`name @ URL`) cannot be locked",
        )
    hashes = {digest for line in question.hashes if line.is_about(name, version) for digest in line.sha256}
    file = _choose_file(package, question, local, hashes) if hashes else None
    file = file or _choose_file(package, question, local)
    if file is None:
        raise IncompatibleError(
            f"`{name} {version}` has no wheel for Python {question.python} on Linux {question.processor.title} with glibc {question.glibc}",
            hint="choose another version of it, or another base",
        )
    return file


def _choose_file(
    package: Package, question: Question, local: Mapping[Path, Path], hashes: Collection[str] | None = None
) -> _File | None:
    """Return the file to take, among those with one of these hashes."""

    def is_fit(file: _File) -> bool:
        return hashes is None or _identity(file, local)[1] in hashes

    wheels = {wheel.filename: wheel for wheel in package.wheels or () if is_fit(wheel)}
    filename = choose_wheel(
        wheels, python=question.python, glibc=question.glibc, processor=question.processor
    )
    if filename:
        return wheels[filename]
    sdist = package.sdist
    return sdist if sdist and not question.wheels_only and is_fit(sdist) else None


def choose_wheel(filenames: Iterable[str], *, python: str, glibc: str, processor: Processor) -> str | None:
    """Return the file that an installer on the target would take: best tag first, then highest build number."""
    wheels = [(parse_wheel_filename(filename), filename) for filename in filenames]
    wheels.sort(key=lambda wheel: (wheel[0][2], wheel[1]), reverse=True)
    select = tags.create_compatible_tags_selector(_tags(python, glibc, processor))
    return next(select((filename, fitting) for (*_, fitting), filename in wheels), None)


@functools.cache
def _tags(python: str, glibc: str, processor: Processor) -> tuple[tags.Tag, ...]:
    """Return the tags of the target, the best first."""
    version = tuple(int(part) for part in python.split("."))
    interpreter = f"cp{version[0]}{version[1]}"
    older, names = dict(processor.manylinux), list[str]()
    for minor in range(int(glibc.split(".")[1]), processor.oldest_glibc - 1, -1):
        names += [f"manylinux_2_{minor}", *([older[minor]] if minor in older else [])]
    platforms = [f"{name}_{processor.machine}" for name in (*names, "linux")]
    return (
        *tags.cpython_tags(version, abis=[interpreter], platforms=platforms),
        *tags.compatible_tags(version, interpreter=interpreter, platforms=platforms),
    )


def _artifact(
    package: Package, file: _File, question: Question, sources: Sources, local: Mapping[Path, Path]
) -> Artifact:
    """Return a file as it is locked. The size is 0 if the index does not state it."""
    real, digest = _identity(file, local)
    url, filename = _url(file), file.filename
    if digest is None:
        raise FetchError(f"the index gives no sha256 for `{filename}`, so it cannot be locked")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise FetchError(
            f"the index gives `{filename}` a sha256 that is none: expected 64 hexadecimal digits"
        )
    is_web = url.startswith(("http://", "https://"))
    if not (real or is_web or any(map(file_path, (*sources.indexes, sources.pytorch)))):
        raise FetchError(
            f"the index names `{shown(url)}` for `{filename}`, expected an address of HTTP",
            hint="a folder of packages is for ENVBUILDER_FOLDERS to name",
        )
    local_version = package.version.local or "" if package.version else ""
    build = question.build if url.startswith(sources.pytorch) else ""
    build = local_version if _BUILD.fullmatch(local_version) else build  # PyTorch's own index has its builds
    return Artifact(
        kind="wheel" if isinstance(file, PackageWheel) else "sdist", name=package.name, version=str(package.version),
        sha256=Sha256(digest), size=real.stat().st_size if real else file.size or 0,
        source="pytorch" if build else "pypi", path=f"{build}/{package.name}/{filename}".lstrip("/"),
    )  # fmt: skip


def _identity(file: _File, local: Mapping[Path, Path]) -> tuple[Path | None, str | None]:
    """Return the local file of an entry, if there is one, and its sha256 if it is known."""
    real = local.get(file_path(_url(file)) or Path())
    return real, sha256_file(real) if real else file.hashes.get("sha256")


def _url(file: _File) -> str:
    return file.url or Path(file.path or "").absolute().as_uri()


def _with_sizes(
    files: Mapping[str, Artifact], question: Question, context: ResolveContext
) -> tuple[Artifact, ...]:
    """Return the files, sorted by name. Missing sizes come from the old lock, the cache or the network."""
    known = {artifact.sha256: artifact.size for artifact in question.prefer}
    sizes = {}
    for url, file in files.items():
        sizes[url] = file.size or known.get(file.sha256, 0)
        if not sizes[url] and context.store.has_artifact(file.sha256):
            sizes[url] = context.store.artifact(file.sha256).stat().st_size
    left = [url for url, size in sizes.items() if not size]
    sizes.update(zip(left, context.fetcher.measure(left), strict=True))
    sized = (replace(file, size=sizes[url]) for url, file in files.items())
    return tuple(sorted(sized, key=lambda file: file.name))
