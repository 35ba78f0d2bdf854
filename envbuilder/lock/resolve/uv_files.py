"""The files of uv: what it is asked (requirements, its configuration, local packages), and what it answers.

Of each package in an answer, the file is chosen that an installer on the target would take.
"""

import contextlib
import functools
import io
import json
import re
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

import uv
from packaging import tags
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuilder.core.archive import BoundedZip
from envbuilder.core.cache import (
    Sha256,
    Store,
    read_proved,
    save_bytes,
    save_proved,
    sha256_file,
    sha256_text,
)
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.core.process import Command
from envbuilder.core.processor import NEWEST_MANYLINUX, X86_64, Processor
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.resolve.context import ResolveContext, Task
from envbuilder.lock.resolve.project_metadata import ProjectMetadata
from envbuilder.lock.resolve.sdists import SUFFIXES, SdistFacts
from envbuilder.recipe.packages import Hashed
from envbuilder.recipe.wheel_sources import WheelIndex, index_of
from envbuilder.sources.names import RECIPE, Sources, file_path, shown

LOCK, ANNOTATED = "pylock.toml", "requirements.txt"  # uv's formats, and the names of its output
PROJECT: Final = "pyproject.toml"  # an input, for packages that come from an index of the recipe
NAME: Final = "envbuilder-recipe"  # of its project
PLACED: Final = "placed"  # the folder of the recipe's wheels
LARGE: Final = 20_000_000  # bytes; a local wheel above this is not given to uv whole
# In the Python that uv asks for its version: it answers, and ends for a program of a project.
_NO_BUILD: Final = "import os, sys; sys.flags.isolated or os._exit(3)\n"
_BUILD: Final = re.compile(r"cpu|cu\d+")

_File = PackageWheel | PackageSdist
Facts = MutableMapping[tuple[str, str], SdistFacts]  # by name and version


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query to uv: the packages that meet these requirements on the target."""

    python: str
    glibc: str
    processor: Processor = X86_64
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    dependencies: bool = True
    build: str = ""  # PyTorch's own index to search as well, e.g. cu126
    prefer: Artifacts = ()  # versions to keep where they fit
    before: date | None = None
    hashes: tuple[Hashed, ...] = ()  # a file that has one of them is taken before others
    wheels_only: bool = False
    finals: tuple[str, ...] = ()  # packages of which no pre-release is taken
    extensions: tuple[ProjectMetadata, ...] = ()  # they are there, and what they require is wanted
    placed: Artifacts = ()  # wheels in the store that the recipe gives by address: no others of their names are taken
    indexes: tuple[WheelIndex, ...] = ()  # of the recipe
    others: tuple[str, ...] = ()  # packages of these indexes that another package requires
    recipes: Path = Path()  # the recipe's folder
    offline: bool = False  # nothing is asked that uv has not read before
    sized: bool = True  # the answer has sizes that no index states

    def prefers(self, package: Artifact) -> bool:
        """Return whether a package has a version that was to be kept."""
        return (package.name, package.version) in {(known.name, known.version) for known in self.prefer}

    def pinned(self, packages: Iterable[Artifact]) -> "Question":
        """Return the question for packages of which these keep their versions."""
        pins = (f"{package.name}=={package.version}" for package in packages)
        return replace(self, constraints=(*self.constraints, *pins), prefer=())

    def listed(self, name: str) -> WheelIndex | None:
        """Return the recipe's index that a package comes from, None for those of this machine."""
        is_ours = any(extension.name == name for extension in self.provided)
        return None if is_ours else index_of(name, self.indexes)

    @property
    def provided(self) -> tuple[ProjectMetadata, ...]:
        """Return the extensions that count for others; of the rest, only what they require is known."""
        return tuple(extension for extension in self.extensions if extension.name and extension.version)


def make_question(task: Task, requirements: tuple[str, ...], *, prefer: Artifacts = ()) -> Question:
    """Return the query for packages of a task's environment."""
    target = task.target
    return Question(
        python=task.recipe.python, glibc=target.distribution.glibc, processor=target.processor,
        requirements=requirements, prefer=prefer, before=task.options.before,
        indexes=task.recipe.indexes, recipes=task.recipe.path.parent,
    )  # fmt: skip


def uv_settings(question: Question, sources: Sources, *, links: Sequence[str] = ()) -> list[str]:
    """Return uv's configuration. As arguments, the indexes' URLs could reveal passwords.

    `links` are folders of packages, by default those of the user.
    """
    folders = links or [str(folder.absolute()) for folder in sources.folders]
    main, *extra = map(_quoted, sources.indexes)
    more = [_quoted(f"{sources.pytorch}{question.build}")] if question.build else []
    return [
        f"find-links = [{', '.join(map(_quoted, folders))}]",
        'index-strategy = "unsafe-best-match"',  # as pip: all configured indexes count equally
        *(f"[[index]]\nurl = {url}" for url in (*extra, *more)),
        f"[[index]]\nurl = {main}\ndefault = true",
    ]


def uv_platform(glibc: str, processor: Processor) -> str:
    """Return uv's platform name for this glibc; for a newer one than uv knows, its newest."""
    return processor.uv_platform(min(int(glibc.split(".")[1]), NEWEST_MANYLINUX))


def show_folders(folders: Sequence[Path], links: Path, kept: Path) -> dict[Path, Path]:
    """Make a folder that shows uv every local package, large wheels by metadata alone. Returns shown → real path.

    uv unpacks a local wheel into its cache to read a few lines of it: 700 MB and 12 000 files for torch.
    """
    links.mkdir()
    files = {path.name: path for folder in reversed(folders) for path in folder.glob("*")}
    local = {links / name: file for name, file in files.items() if name.endswith((".whl", *SUFFIXES))}
    for link, file in local.items():
        _show(file, link, kept)
    return local


def show_placed(question: Question, store: Store, folder: Path) -> None:
    """Make a folder that shows uv the recipe's wheels under their names."""
    folder.mkdir()
    for wheel in question.placed:
        _show(store.artifact(wheel.sha256), folder / wheel.filename, kept_folder(store))


def kept_folder(store: Store) -> Path:
    """Return the folder with what was written of large wheels, for as long as each is the same file."""
    return store.resolver("uv") / "shown"


def _show(file: Path, shown: Path, kept: Path) -> None:
    status = file.stat()
    if shown.suffix != ".whl" or status.st_size < LARGE:
        shown.symlink_to(file.absolute())
        return
    words = (str(file.absolute()), str(status.st_size), str(status.st_mtime_ns))
    short = kept / sha256_text("\n".join(words))
    if not short.exists():
        with contextlib.suppress(zipfile.BadZipFile):  # no wheel, and not shown
            save_bytes(short, _metadata_only(file))
    if short.exists():
        shown.symlink_to(short)


def kept_python(store: Store) -> Path:
    """Return an environment whose Python tells uv what it is, and ends when uv would run a project's code with it.

    It is kept, because uv starts each Python that it has not seen.
    """
    folder = store.tools(sha256_text(f"{Path(sys.executable).resolve()}\n{sys.version}\n{_NO_BUILD}"))
    with store.lock("python"):
        if not store.holds(folder):
            with store.renewed(folder) as out:
                venv.create(out, symlinks=True)
                (site,) = out.glob("lib/python*/site-packages")
                (site / "no_build.pth").write_text(_NO_BUILD, encoding="utf-8")
    return folder


def _metadata_only(wheel: Path) -> bytes:
    """Return a wheel with only the `.dist-info` of another. Raises BadZipFile for a file that is no wheel."""
    written = io.BytesIO()
    with BoundedZip(wheel) as whole, zipfile.ZipFile(written, "w") as part:
        for entry in whole.infolist():
            if re.fullmatch(r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD)", entry.filename):
                part.writestr(entry, whole.read(entry))
    return written.getvalue()


def write_question(question: Question, sources: Sources, work: Path, facts: Facts) -> None:
    """Write uv's input files."""
    wanted = list(question.requirements)
    for extension in question.extensions if question.dependencies else ():
        wanted += (extension.pin,) if extension in question.provided else extension.requires or ()
    settings = uv_settings(question, sources, links=("links",))
    settings += (line for key, sdist in facts.items() for line in _metadata(*key, sdist))
    names = {_name(text) for text in wanted}
    placed = (wheel for wheel in question.placed if wheel.name in names)
    wanted += (f"{wheel.name} @ {(work / PLACED / wheel.filename).as_uri()}" for wheel in placed)
    if question.indexes:
        listed = [text for text in wanted if question.listed(_name(text))]
        wanted = [text for text in wanted if text not in listed]
        (work / PROJECT).write_text(_project(question, [*listed, *question.others]), encoding="utf-8")
    files = {"requirements.in": wanted, "constraints.in": question.constraints, "uv.toml": settings}
    (work / LOCK).unlink(missing_ok=True)
    if question.prefer:  # uv prefers the versions in its output file
        preferred = [(_quoted(package.name), _quoted(package.version)) for package in question.prefer]
        packages = [f"[[packages]]\nname = {name}\nversion = {version}" for name, version in preferred]
        files[LOCK] = ['lock-version = "1.0"\ncreated-by = "envbuilder"', *packages]
    for name, lines in files.items():
        (work / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _project(question: Question, requirements: Sequence[str]) -> str:
    """Return a project's file that names an index for each of its requirements: nothing else of uv's files does.

    uv takes such a package from that index alone, and no other package from there.
    """
    names = dict.fromkeys(_name(text) for text in requirements)
    chosen = {name: index.name for name in names if (index := question.listed(name))}
    lines = [
        f'[project]\nname = "{NAME}"\nversion = "0"',
        f"dependencies = [{', '.join(map(_quoted, requirements))}]",
        "[tool.uv.workspace]",  # otherwise uv looks for one in the folders above
        "[tool.uv.sources]",
        *(f"{_quoted(name)} = {{ index = {_quoted(index)} }}" for name, index in chosen.items()),
    ]
    for index in question.indexes:
        address = _quoted(index.address(question.recipes))
        form = "simple" if index.url else "flat"
        lines.append(f"[[tool.uv.index]]\nname = {_quoted(index.name)}\nurl = {address}")
        lines.append(f'format = "{form}"\nexplicit = true')
    return "".join(f"{line}\n" for line in lines)


def _metadata(name: str, version: str, facts: SdistFacts) -> Iterator[str]:
    """Yield the lines that tell uv what a source distribution requires."""
    yield f"[[dependency-metadata]]\nname = {_quoted(name)}\nversion = {_quoted(version)}"
    yield f"requires-dist = [{', '.join(map(_quoted, facts.requires))}]"
    yield f"provides-extra = [{', '.join(map(_quoted, facts.extras))}]"
    if facts.python:
        yield f"requires-python = {_quoted(facts.python)}"


def _name(requirement: str) -> str:
    """Return the name in a requirement, which may be one that no standard knows."""
    return canonicalize_name(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def _quoted(text: str) -> str:
    """Return a TOML string: a JSON string is one."""
    return json.dumps(text, ensure_ascii=False)


def make_command(question: Question, sources: Sources, *, work: Path, store: Store, output: str) -> Command:
    argv = [
        uv.find_uv_bin(), "pip", "compile", "requirements.in", *([PROJECT] if question.indexes else []),
        "--constraints", "constraints.in",
        "--config-file", "uv.toml",
        "--cache-dir", str(store.resolver("uv")),
        "--python", str(kept_python(store) / "bin/python"),
        "--python-version", question.python,
        "--python-platform", uv_platform(question.glibc, question.processor),
        "--no-build-isolation",
        "--format", output,
        "--output-file", output,
        "--annotation-style", "line", "--no-strip-extras",
        *(f"--prerelease-package={name}=disallow" for name in question.finals),
        "--no-python-downloads", "--no-header", "--quiet",
    ]  # fmt: skip
    if question.wheels_only:
        argv += ["--only-binary", ":all:"]
    # Of what is at an address, only wheels are taken: nothing of a source distribution is known before its code runs.
    names = {_name(text) for text in (*question.requirements, *question.others)}
    argv += (f"--only-binary={name}" for name in sorted(names) if question.listed(name))
    argv += [*([] if question.dependencies else ["--no-deps"]), *(["--offline"] if question.offline else [])]
    if question.before is not None:
        argv += ["--exclude-newer", f"{question.before.isoformat()}T00:00:00Z"]
    patience = (("UV_HTTP_TIMEOUT", "15"), ("UV_HTTP_RETRIES", "1"))  # so a silent index takes 30 s
    env = (*patience, *((("SSL_CERT_FILE", str(sources.certificates)),) if sources.certificates else ()))
    return Command(argv=tuple(argv), cwd=work, env=env, why="resolve the recipe's Python packages")


# ---- the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class UvAnswer:
    """An answer of uv. `local` is shown → real path of local packages."""

    question: Question
    context: ResolveContext
    local: Mapping[Path, Path]

    def read(self, text: str) -> Artifacts:
        """Return the files that an answer names, sorted by name."""
        try:
            packages = Pylock.from_dict(tomllib.loads(text)).packages
        except (PylockValidationError, tomllib.TOMLDecodeError) as error:
            why = f"could not read uv's answer, which repeats what the index says: {error}"
            raise FetchError(why) from error
        provided, files = {extension.name for extension in self.question.provided}, dict[str, Artifact]()
        placed = {wheel.name: wheel for wheel in self.question.placed}
        for package in packages:
            if package.name in placed:
                files[package.name] = placed[package.name]
            elif package.name not in provided:
                file = self._chosen(package)
                files[_url(file)] = self._artifact(package, file)
        every = self._with_sizes(files) if self.question.sized else files.values()
        return tuple(sorted(every, key=lambda file: file.name))

    def _chosen(self, package: Package) -> _File:
        """Return the file to take of a package: one with a hash of the recipe's, if there is such a one."""
        name, version, question = package.name, str(package.version), self.question
        if package.is_direct:
            raise IncompatibleError(
                f"`{name}` would not come as a wheel or a source distribution from an index or a folder",
                hint="name a version; a direct reference (`name @ URL`) cannot be locked",
            )
        lines = (line for line in question.hashes if line.is_about(name, version))
        hashes: set[str | None] = {digest for line in lines for digest in line.sha256}
        files: list[_File] = [*(package.wheels or ()), *([package.sdist] if package.sdist else [])]
        expected = [file for file in files if self._identity(file)[1] in hashes] if hashes else []
        file = self._best(expected) or self._best(files)
        if file is None:
            raise IncompatibleError(
                f"`{name} {version}` has no wheel for Python {question.python} on Linux {question.processor.title} with glibc {question.glibc}",
                hint="choose another version of it, or another base",
            )
        return file

    def _best(self, files: Iterable[_File]) -> _File | None:
        question, named = self.question, {file.filename: file for file in files}
        wheels = [name for name, file in named.items() if isinstance(file, PackageWheel)]
        wheel = choose_wheel(
            wheels, python=question.python, glibc=question.glibc, processor=question.processor
        )
        sdists = () if question.wheels_only else (file for name, file in named.items() if name not in wheels)
        return named[wheel] if wheel else next(iter(sdists), None)

    def _artifact(self, package: Package, file: _File) -> Artifact:
        """Return a file as it is locked. The size is 0 if the index does not state it."""
        sources, (real, digest) = self.context.sources(), self._identity(file)
        url, filename = _url(file), file.filename
        if digest is None:
            raise FetchError(f"the index gives no sha256 for `{filename}`, so it cannot be locked")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            why = f"the index gives `{filename}` a sha256 that is none: expected 64 hexadecimal digits"
            raise FetchError(why)
        index = self.question.listed(package.name)
        is_web = url.startswith(("http://", "https://")) or bool(index and index.source == RECIPE)
        if not (real or is_web or any(map(file_path, (*sources.indexes, sources.pytorch)))):
            raise FetchError(
                f"the index names `{shown(url)}` for `{filename}`, expected an address of HTTP",
                hint="a folder of packages is for ENVBUILDER_FOLDERS to name",
            )
        local_version = package.version.local or "" if package.version else ""
        build = self.question.build if url.startswith(sources.pytorch) else ""
        build = (
            local_version if _BUILD.fullmatch(local_version) else build
        )  # PyTorch's own index has its builds
        source, path = "pytorch" if build else "pypi", f"{build}/{package.name}/{filename}".lstrip("/")
        if index:
            source, path = index.source, index.path(package.name, filename)
        return Artifact(
            kind="wheel" if isinstance(file, PackageWheel) else "sdist", name=package.name, version=str(package.version),
            sha256=Sha256(digest), size=real.stat().st_size if real else file.size or 0, source=source, path=path,
        )  # fmt: skip

    def _identity(self, file: _File) -> tuple[Path | None, str | None]:
        """Return the local file of an entry, if there is one, and its sha256 if it is known."""
        real = self.local.get(file_path(_url(file)) or Path())
        return real, _sha256(real, self.context.store) if real else file.hashes.get("sha256")

    def _with_sizes(self, files: Mapping[str, Artifact]) -> Artifacts:
        """Return the files. Missing sizes come from the old lock, an index that is a folder, the cache or the network."""
        store, known = self.context.store, {file.sha256: file.size for file in self.question.prefer}
        sizes = {}
        for url, file in files.items():
            sizes[url] = file.size or known.get(file.sha256, 0)
            if not sizes[url] and (path := file_path(url)) and path.is_file():
                sizes[url] = path.stat().st_size
            if not sizes[url] and store.has_artifact(file.sha256):
                sizes[url] = store.artifact(file.sha256).stat().st_size
        left = [url for url, size in sizes.items() if not size]
        sizes.update(zip(left, self.context.fetcher.measure(left), strict=True))
        return tuple(replace(file, size=sizes[url]) for url, file in files.items())


def _sha256(file: Path, store: Store) -> Sha256:
    """Return the sha256 of a local package. It is kept for as long as it is the same file."""
    status = file.stat()
    words = (file.absolute(), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    kept = store.proof(sha256_text("\n".join(map(str, words))))
    try:
        return Sha256(read_proved(kept))
    except (OSError, ValueError):
        digest = sha256_file(file)
        save_proved(kept, digest)
        return digest


def _url(file: _File) -> str:
    return file.url or Path(file.path or "").absolute().as_uri()


def choose_wheel(filenames: Iterable[str], *, python: str, glibc: str, processor: Processor) -> str | None:
    """Return the file that an installer on the target would take: best tag first, then highest build number."""
    wheels = [(parse_wheel_filename(filename), filename) for filename in filenames]
    wheels.sort(key=lambda wheel: (wheel[0][2], wheel[1]), reverse=True)
    select = _selector(python, glibc, processor)
    return next(select((filename, fitting) for (*_, fitting), filename in wheels), None)


@functools.cache
def _selector(
    python: str, glibc: str, processor: Processor
) -> Callable[[Iterable[tuple[str, AbstractSet[tags.Tag]]]], Iterator[str]]:
    return tags.create_compatible_tags_selector(target_tags(python, glibc, processor))


@functools.cache
def target_tags(python: str, glibc: str, processor: Processor) -> tuple[tags.Tag, ...]:
    """Return the tags of the wheels that an installer on the target takes, the best first."""
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
