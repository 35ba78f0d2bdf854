"""Read uv's answer: choose the file of each package that an installer on the target would take."""

import functools
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from packaging import tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.processor import Processor
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.uv_question import Question
from envbuilder.sources.names import Sources, file_path, shown

_BUILD: Final = re.compile(r"cpu|cu\d+")


def read_answer(
    text: str, question: Question, context: ResolveContext, local: Mapping[Path, Path]
) -> tuple[Artifact, ...]:
    """Return the files of uv's answer, sorted by name. `local` is shown → real path of local packages."""
    return _with_sizes(_chosen_files(text, question, context.sources(), local), question, context)


def _chosen_files(
    text: str, question: Question, sources: Sources, local: Mapping[Path, Path]
) -> dict[str, Artifact]:
    """Return URL → file of uv's answer: a wheel, or the sdist. The size is 0 if the index does not state it."""
    found = {}
    own = {one.name for one in question.provided}
    for package in tomllib.loads(text).get("packages", []):
        name = package["name"]
        if name in own:
            continue
        version = package["version"]
        if not package.get("wheels") and not package.get("sdist"):
            raise IncompatibleError(
                f"`{name}` would not come as a wheel or a source distribution from an index or a folder",
                hint="name a version; a direct reference (`name @ URL`) cannot be locked",
            )
        hashes = {one for line in question.hashes if line.is_about(name, version) for one in line.sha256}
        chosen = _choose_file(package, question, local, hashes) if hashes else None
        chosen = chosen or _choose_file(package, question, local)
        if chosen is None:
            raise IncompatibleError(
                f"`{name} {version}` has no wheel for Python {question.python} on Linux {question.processor.title} with glibc {question.glibc}",
                hint="choose another version of it, or another base",
            )
        kind, file = chosen
        real, digest = _identity(file, local)
        if digest is None:
            raise FetchError(f"the index gives no sha256 for `{_filename(file)}`, so it cannot be locked")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise FetchError(
                f"the index gives `{_filename(file)}` a sha256 that is none: expected 64 hexadecimal digits"
            )
        if real is None and not _may_be_at(_url(file), sources):
            raise FetchError(
                f"the index names `{shown(_url(file))}` for `{_filename(file)}`, expected an address of HTTP",
                hint="a folder of packages is for ENVBUILDER_FOLDERS to name",
            )
        found[_url(file)] = Artifact(
            kind=kind, name=name, version=version, sha256=Sha256(digest), size=real.stat().st_size if real else file.get("size", 0),
            **_place(_url(file), name, version, question, sources),
        )  # fmt: skip
    return found


def _choose_file(
    package: Mapping[str, Any],
    question: Question,
    local: Mapping[Path, Path],
    hashes: Collection[str] | None = None,
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the kind and the entry of the file to take, among those with one of these hashes."""

    def is_fit(file: Mapping[str, Any]) -> bool:
        return hashes is None or _identity(file, local)[1] in hashes

    wheels = {_filename(one): one for one in package.get("wheels", []) if is_fit(one)}
    filename = choose_wheel(
        tuple(wheels), python=question.python, glibc=question.glibc, processor=question.processor
    )
    if filename:
        return "wheel", wheels[filename]
    sdist = package.get("sdist")
    return ("sdist", sdist) if sdist and not question.wheels_only and is_fit(sdist) else None


def _identity(file: Mapping[str, Any], local: Mapping[Path, Path]) -> tuple[Path | None, str | None]:
    """Return the local file of an entry, if there is one, and its sha256 if it is known."""
    real = local.get(file_path(_url(file)) or Path())
    return real, sha256_file(real) if real else file.get("hashes", {}).get("sha256")


def _may_be_at(url: str, sources: Sources) -> bool:
    """Whether an index may name this address: one of HTTP, or a file if an index of the user is one."""
    return url.startswith(("http://", "https://")) or any(
        file_path(index) for index in (*sources.indexes, sources.pytorch)
    )


def _url(file: Mapping[str, Any]) -> str:
    return str(file.get("url") or Path(file["path"]).absolute().as_uri())


def choose_wheel(filenames: Sequence[str], *, python: str, glibc: str, processor: Processor) -> str | None:
    """Return the file that an installer on the target would take: best tag first, then highest build number."""
    order = _tag_order(python, glibc, processor)
    ranked = []
    for filename in filenames:
        try:
            _, version, build, wheel_tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        fitting = [order[tag] for tag in wheel_tags if tag in order]
        if fitting:
            ranked.append((-min(fitting), build or (), version, filename))
    return max(ranked)[-1] if ranked else None


@functools.cache
def _tag_order(python: str, glibc: str, processor: Processor) -> Mapping[tags.Tag, int]:
    version = tuple(int(part) for part in python.split("."))
    interpreter = f"cp{version[0]}{version[1]}"
    older, names = dict(processor.manylinux), list[str]()
    for minor in range(int(glibc.split(".")[1]), processor.oldest_glibc - 1, -1):
        names += [f"manylinux_2_{minor}", *([older[minor]] if minor in older else [])]
    platforms = [f"{name}_{processor.machine}" for name in (*names, "linux")]
    ordered = [
        *tags.cpython_tags(version, abis=[interpreter], platforms=platforms),
        *tags.compatible_tags(version, interpreter=interpreter, platforms=platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def _with_sizes(
    found: Mapping[str, Artifact], question: Question, context: ResolveContext
) -> tuple[Artifact, ...]:
    """Return the wheels, sorted by name. Missing sizes come from the old lock, the cache or the network."""
    known = {one.sha256: one.size for one in question.prefer}
    sizes = {}
    for url, wheel in found.items():
        cached = context.store.artifact(wheel.sha256)
        sizes[url] = (
            wheel.size
            or known.get(wheel.sha256)
            or (cached.stat().st_size if context.store.has_artifact(wheel.sha256) else 0)
        )
    left = [url for url, size in sizes.items() if not size]
    sizes.update(zip(left, context.fetcher.measure(left), strict=True))
    wheels = (replace(wheel, size=sizes[url]) for url, wheel in found.items())
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _place(url: str, name: str, version: str, question: Question, sources: Sources) -> dict[str, str]:
    """Return the source and path of a wheel in a lock: PyTorch's own index for its builds, otherwise PyPI."""
    filename = _filename({"url": url})
    local = Version(version).local or ""
    own = question.build if url.startswith(sources.pytorch) else ""
    build = local if _BUILD.fullmatch(local) else own
    if build:
        return {"source": "pytorch", "path": f"{build}/{name}/{filename}"}
    return {"source": "pypi", "path": f"{name}/{filename}"}


def _filename(wheel: Mapping[str, str]) -> str:
    return unquote(urlsplit(wheel.get("url") or wheel["path"]).path).rpartition("/")[2]
