"""Ask uv which packages meet requirements on the target, and name one file for each."""

import contextlib
import functools
import json
import re
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import uv
from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.core.fetch import NETWORK_HINT
from envbuilder.core.http.reachable import silent
from envbuilder.core.process import Command
from envbuilder.core.sources import Sources, file_path
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.distributions import Distribution
from envbuilder.lock.resolve.held import Choice, is_fair, parse_all, read_requirements
from envbuilder.lock.resolve.sdists import SUFFIXES, SdistFacts, find_sdist, open_index, read_sdist

_LOCK, _ANNOTATED = "pylock.toml", "requirements.txt"  # uv's formats, and the names of its output
LARGE: Final = 20_000_000  # bytes; a local wheel above this is not given to uv whole
_LOOSEN: Final = "loosen a bound in `packages`, or choose a version that has a wheel for this Python"
_BUILD: Final = re.compile(r"cpu|cu\d+")
_NOT_FOUND: Final = re.compile(r"([\w.-]+) was not found in the package registry|no version of ([\w.-]+)")
NEWEST_MANYLINUX: Final = 40  # the last minor version of glibc 2 that `uv --python-platform` takes
_UNBUILT: Final = re.compile(r"Failed to (?:download and )?build `([\w.-]+)==([^`\s]+)`")
# In the Python that uv asks for its version: it answers, and ends for a program of a project.
_NO_BUILD: Final = "import os, sys; sys.flags.isolated or os._exit(3)\n"
_LEGACY: Final = {5: ("manylinux1_x86_64",), 12: ("manylinux2010_x86_64",), 17: ("manylinux2014_x86_64",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query to uv: the packages that meet these requirements on the target."""

    python: str
    glibc: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    dependencies: bool = True
    build: str = ""  # PyTorch's own index to search as well, e.g. cu126
    prefer: tuple[Artifact, ...] = ()  # versions to keep where they fit
    before: date | None = None
    parent: str = ""  # the recipe whose versions are the constraints
    wheels_only: bool = False
    candidates: bool = False  # pre-releases may be chosen where no release fits
    extensions: tuple[Distribution, ...] = ()  # they are there, and what they require is wanted

    @property
    def provided(self) -> tuple[Distribution, ...]:
        """Return the extensions that count for others; of the rest, only what they require is known."""
        return tuple(one for one in self.extensions if one.name and one.version)


Facts = MutableMapping[tuple[str, str], SdistFacts]  # by name and version


def make_choice(
    own: Sequence[str], found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> Choice:
    def requires(package: Artifact) -> tuple[Requirement, ...]:
        known = facts.get((package.name, package.version))
        if known is None and package.kind == "wheel":
            return read_requirements(package, context)
        return tuple(parse_all(known.requires)) if known else ()

    given = [("the recipe", one) for one in parse_all(own)]
    for one in question.extensions:
        given += [(f"the extension {one.extension}", wanted) for wanted in parse_all(one.requires or ())]
    fixed = (one for one in (*question.requirements, *question.constraints) if one not in own)
    return Choice(
        python=question.python,
        packages={one.name: one for one in found},
        extensions={one.name: one.version for one in question.provided},
        parents=_parents(found, question, context, facts),
        own=tuple(given),
        fixed=tuple(parse_all(tuple(fixed))),
        requires=functools.cache(requires),
    )


def _parents(
    found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> dict[str, list[str]]:
    """Ask uv which packages require each package."""
    pins = tuple(f"{one.name}=={one.version}" for one in found)
    pinned = replace(question, constraints=(*question.constraints, *pins), prefer=())
    with _answered(pinned, context, facts, _ANNOTATED) as (work, _):
        lines = (work / _ANNOTATED).read_text(encoding="utf-8").splitlines()
    known = {one.name for one in found}
    rows = (line.partition("# via ") for line in lines)
    return {
        pin.partition("==")[0]: [name for name in via.split(", ") if name in known] for pin, _, via in rows
    }


def ask_uv(question: Question, context: ResolveContext, facts: Facts | None = None) -> tuple[Artifact, ...]:
    """Return the packages of uv's answer, with every preferred version if one exists.

    The first attempt pins the preferred versions. Without pins, uv drops a preferred version if the first
    index that has it has no wheel for the target: another package turned numpy 1.26.4 into 1.26.3.
    A pre-release is chosen only where pip would choose it. What only a project's own code knows goes into `facts`.
    """
    facts = {} if facts is None else facts
    try:
        return _ask_once(question, context, facts)
    except IncompatibleError:
        if question.candidates:
            raise
        found = _with_candidates(question, context, facts)
        if not found:
            raise
        return found


def _with_candidates(question: Question, context: ResolveContext, facts: Facts) -> tuple[Artifact, ...]:
    """Return the answer with pre-releases, nothing if there is none, or if pip would not take one of them.

    uv would take one whenever no release can be installed, for whatever reason.
    """
    wider = replace(question, candidates=True)
    try:
        found = _ask_once(wider, context, facts)
        choice = make_choice(question.requirements, found, wider, context, facts)
        early = (one.name for one in found if Version(one.version).is_prerelease)
        is_like_pip = all(is_fair(choice, name, _installable(name, question, context)) for name in early)
    except (FetchError, IncompatibleError):
        return ()
    return found if is_like_pip else ()


def _installable(name: str, question: Question, context: ResolveContext) -> set[Version]:
    """Return the versions of a package in the indexes that have a file for the target."""
    versions = set()
    for listed in open_index(context).files(name):
        with contextlib.suppress(InvalidWheelFilename, InvalidSdistFilename):
            if not listed.filename.endswith(".whl"):
                versions.add(parse_sdist_filename(listed.filename)[1])
            elif choose_wheel((listed.filename,), python=question.python, glibc=question.glibc):
                versions.add(parse_wheel_filename(listed.filename)[1])
    return versions


def _ask_once(question: Question, context: ResolveContext, facts: Facts) -> tuple[Artifact, ...]:
    with _answered(question, context, facts, _LOCK) as (work, local):
        text = (work / _LOCK).read_text(encoding="utf-8")
        return _with_sizes(_read_answer(text, question, context.sources(), local), question, context)


@contextlib.contextmanager
def _answered(
    question: Question, context: ResolveContext, facts: Facts, output: str
) -> Iterator[tuple[Path, dict[Path, Path]]]:
    """Yield the folder with uv's answer in the file `output`, and the local packages as `_show_folders` returns them.

    uv never runs a project's own code. What only that knows is read in a sandbox, and uv is asked again.
    """
    sources = context.sources()
    pins = tuple(f"{one.name}=={one.version}" for one in question.prefer)
    pinned = replace(question, constraints=(*question.constraints, *pins), prefer=())
    with context.store.workspace() as work:
        local = _show_folders(sources.folders, work / "links")
        for one in question.provided:
            one.write_wheel(work / "links")
        _write_python(work / "python")
        attempts = [pinned, question] if pins else [question]
        while attempts:
            _write_question(attempts[0], sources, work, facts)
            command = _command(
                question, sources, work=work, cache=context.store.resolver("uv"), output=output
            )
            try:
                with context.waiting(lambda: silent(_asked(question, sources), sources.certificates)):
                    context.runner.run(command)
                break
            except CommandError as error:
                if _read_unbuilt(error, question, context, facts):
                    continue
                attempt = attempts.pop(0)
                if attempt is question or not _is_unsolvable(error):
                    _need_access(question, sources, error, context)
                    raise _refused(question, error) from error
        yield work, local


def _read_unbuilt(error: CommandError, question: Question, context: ResolveContext, facts: Facts) -> bool:
    """Return whether uv lacks the facts of a source distribution, which are known now."""
    found = _UNBUILT.search(error.message)
    if found is None:
        return False
    name, version = str(canonicalize_name(found[1])), found[2]
    if (name, version) in facts:
        raise error
    if question.dependencies:
        sdist = find_sdist(name, version, context)
        facts[name, version] = read_sdist(sdist, context, uv_settings(question, context.sources()))
    else:
        facts[name, version] = SdistFacts(builds_with=(), requires=(), extras=(), python="")
    return True


def _show_folders(folders: Sequence[Path], links: Path) -> dict[Path, Path]:
    """Make a folder that shows uv every local package, large wheels by metadata alone. Returns shown → real path.

    uv unpacks a local wheel into its cache to read a few lines of it: 700 MB and 12 000 files for torch.
    """
    links.mkdir()
    local: dict[Path, Path] = {}
    files = (path for folder in reversed(folders) for path in folder.glob("*"))
    for file in sorted(path for path in files if path.name.endswith((".whl", *SUFFIXES))):
        shown = links / file.name
        shown.unlink(missing_ok=True)
        if file.suffix != ".whl" or file.stat().st_size < LARGE:
            shown.symlink_to(file.absolute())
        else:
            _write_metadata_only(file, shown)
        local[shown] = file
    return local


def _write_python(folder: Path) -> None:
    """Make an environment whose Python tells uv what it is, and ends when uv would run a project's code with it."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "no_build.pth").write_text(_NO_BUILD, encoding="utf-8")


def _write_metadata_only(wheel: Path, shown: Path) -> None:
    """Write a wheel with only the `.dist-info` of another. A file that is no wheel is skipped."""
    with (
        contextlib.suppress(zipfile.BadZipFile),
        zipfile.ZipFile(wheel) as whole,
        zipfile.ZipFile(shown, "w") as part,
    ):
        for entry in whole.infolist():
            if re.fullmatch(r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD)", entry.filename):
                part.writestr(entry, whole.read(entry))


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


def _write_question(question: Question, sources: Sources, work: Path, facts: Facts) -> None:
    """Write uv's input files."""
    files: dict[str, Sequence[str]] = {
        "requirements.in": (
            *question.requirements,
            *(_extension_lines(question) if question.dependencies else ()),
        ),
        "constraints.in": question.constraints,
        "uv.toml": [
            *uv_settings(question, sources, links=("links",)),
            *(line for key, found in facts.items() for line in _metadata(*key, found)),
        ],
    }
    (work / _LOCK).unlink(missing_ok=True)
    if question.prefer:  # uv prefers the versions in its output file
        kept = [(_quoted(one.name), _quoted(one.version)) for one in question.prefer]
        packages = [f"[[packages]]\nname = {name}\nversion = {version}" for name, version in kept]
        files[_LOCK] = ['lock-version = "1.0"\ncreated-by = "envbuilder"', *packages]
    for name, lines in files.items():
        (work / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _extension_lines(question: Question) -> Iterator[str]:
    """Yield what the extensions are, or what they require if nobody knows their version."""
    for one in question.extensions:
        yield from (one.pin,) if one in question.provided else one.requires or ()


def _metadata(name: str, version: str, facts: SdistFacts) -> Iterator[str]:
    """Yield the lines that tell uv what a source distribution requires."""
    yield f"[[dependency-metadata]]\nname = {_quoted(name)}\nversion = {_quoted(version)}"
    yield f"requires-dist = [{', '.join(map(_quoted, facts.requires))}]"
    yield f"provides-extra = [{', '.join(map(_quoted, facts.extras))}]"
    if facts.python:
        yield f"requires-python = {_quoted(facts.python)}"


def _quoted(text: str) -> str:
    """Return a TOML string: a JSON string is one."""
    return json.dumps(text, ensure_ascii=False)


def _command(question: Question, sources: Sources, *, work: Path, cache: Path, output: str) -> Command:
    argv = [
        uv.find_uv_bin(), "pip", "compile", "requirements.in",
        "--constraints", "constraints.in",
        "--config-file", "uv.toml",
        "--cache-dir", str(cache),
        "--python", "python/bin/python",
        "--python-version", question.python,
        "--python-platform", uv_platform(question.glibc),
        "--no-build-isolation",
        "--format", output,
        "--output-file", output,
        "--annotation-style", "line",
        "--prerelease", "if-necessary-or-explicit" if question.candidates else "explicit",
        "--no-python-downloads", "--no-header", "--quiet",
    ]  # fmt: skip
    if question.wheels_only:
        argv += ["--only-binary", ":all:"]
    if not question.dependencies:
        argv.append("--no-deps")
    if question.before is not None:
        argv += ["--exclude-newer", f"{question.before.isoformat()}T00:00:00Z"]
    patience = (("UV_HTTP_TIMEOUT", "15"), ("UV_HTTP_RETRIES", "1"))  # so a silent index takes 30 s
    env = (*patience, *((("SSL_CERT_FILE", str(sources.certificates)),) if sources.certificates else ()))
    return Command(argv=tuple(argv), cwd=work, env=env, why="resolve the recipe's Python packages")


def _need_access(question: Question, sources: Sources, error: CommandError, context: ResolveContext) -> None:
    """Raise FetchError if uv found no package because an index refused access; uv does not report that."""
    places = _asked(question, sources)
    names = dict.fromkeys(one or other for one, other in _NOT_FOUND.findall(error.message))
    try:
        context.fetcher.need_access([f"{place}{name}/" for name in names for place in places])
    except FetchError as failure:
        output = error.message.partition("\n")[2]
        raise FetchError(f"{failure.message}\n{output}", hint=failure.hint) from error


def _asked(question: Question, sources: Sources) -> tuple[str, ...]:
    """Return the addresses of the indexes that uv searches."""
    return (*sources.indexes, *([f"{sources.pytorch}{question.build}/"] if question.build else []))


def _is_unsolvable(error: CommandError) -> bool:
    return "ended with exit code 1\n" in error.message


def _refused(question: Question, error: CommandError) -> IncompatibleError | FetchError:
    """Return the error to raise, in terms of the recipe, with uv's message below the reason."""
    output = error.message.partition("\n")[2]
    if not _is_unsolvable(error):
        return FetchError(f"could not read the package index\n{output}", hint=NETWORK_HINT)
    asked = [Requirement(text) for text in question.requirements]
    missing = re.findall(r"([\w.-]+) was not found in the package registry", output)
    # Only requirements of the recipe itself: everything depends on them.
    unknown = dict.fromkeys(f"`{one.name}`" for one in asked if canonicalize_name(one.name) in missing)
    if unknown:
        return IncompatibleError(
            f"no package index knows {', '.join(unknown)}\n{output}",
            hint="write the name that pip installs; it may differ from the name of the import or of conda's package",
        )
    if question.parent:
        return IncompatibleError(
            f"`{question.parent}` keeps its torch and all other packages, and what is added does not fit them\n{output}",
            hint=f"add a version that fits; `extends: {question.parent}` with `packages` instead of `add` makes another environment",
        )
    ways = [_LOOSEN, *_pin_hints(asked, output)]
    return IncompatibleError(
        f"no set of packages for Python {question.python} and glibc {question.glibc} fits what the recipe requires\n{output}",
        hint="; ".join(ways),
    )


def _pin_hints(asked: Sequence[Requirement], output: str) -> Iterator[str]:
    """Yield what to do about each pinned package without a wheel: build its source distribution, or choose a Python.

    Nobody builds torch for want of a Python.
    """
    rows = load_torches().rows
    for one in asked:
        name = canonicalize_name(one.name)
        pin = re.fullmatch(r"==([^,*]+)", str(one.specifier))
        if not pin or not re.search(
            rf"(?<![\w.-]){re.escape(name)}=={re.escape(pin[1])} has no (usable )?wheels", output
        ):
            continue
        version = pin[1].partition("+")[0]
        torch = next(
            (row for row in rows if (name, version) in (("torch", row.version), *row.companions)), None
        )
        if torch:
            pythons = ", ".join(one for one in torch.pythons if not one.endswith("t"))
            yield f"or take a Python for which {name} {version} has wheels: {pythons}"
        elif name != "torch":
            sdist = f"{{name: {name.replace('-', '_')}, sdist: {one.name}=={pin[1]}}}"
            yield f"or build it as an extension: `extensions: [{sdist}]`"


def uv_platform(glibc: str) -> str:
    """Return uv's platform name for this glibc; for a newer one than uv knows, its newest."""
    major, minor = (int(part) for part in glibc.split("."))
    return f"x86_64-manylinux_{major}_{min(minor, NEWEST_MANYLINUX)}"


def _read_answer(
    text: str, question: Question, sources: Sources, local: Mapping[Path, Path]
) -> dict[str, Artifact]:
    """Return URL → file of uv's answer: a wheel, or the sdist. The size is 0 if the index does not state it."""
    found = {}
    own = {one.name for one in question.provided}
    for package in tomllib.loads(text).get("packages", []):
        name = package["name"]
        if name in own:
            continue
        if not package.get("wheels") and not package.get("sdist"):
            raise IncompatibleError(
                f"`{name}` would not come as a wheel or a source distribution from an index or a folder",
                hint="name a version; a direct reference (`name @ URL`) cannot be locked",
            )
        wheels = {_filename(wheel): wheel for wheel in package.get("wheels", [])}
        filename = choose_wheel(tuple(wheels), python=question.python, glibc=question.glibc)
        kind = "wheel"
        if filename is None and package.get("sdist") and not question.wheels_only:
            kind, filename = "sdist", _filename(package["sdist"])
            wheels[filename] = package["sdist"]
        if filename is None:
            raise IncompatibleError(
                f"`{name} {package['version']}` has no wheel for Python {question.python} on Linux x86-64 with glibc {question.glibc}",
                hint="choose another version of it, or another base",
            )
        wheel = wheels[filename]
        url = wheel.get("url") or Path(wheel["path"]).absolute().as_uri()
        real = local.get(file_path(url) or Path())
        digest = sha256_file(real) if real else wheel.get("hashes", {}).get("sha256")
        if digest is None:
            raise FetchError(f"the index gives no sha256 for `{filename}`, so it cannot be locked")
        size = real.stat().st_size if real else wheel.get("size", 0)
        found[url] = Artifact(
            kind=kind, name=name, version=package["version"], sha256=Sha256(digest), size=size,
            **_place(url, name, package["version"], question, sources),
        )  # fmt: skip
    return found


def choose_wheel(filenames: Sequence[str], *, python: str, glibc: str) -> str | None:
    """Return the file that an installer on the target would take: best tag first, then highest build number."""
    order = _tag_order(python, glibc)
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
def _tag_order(python: str, glibc: str) -> Mapping[tags.Tag, int]:
    version = tuple(int(part) for part in python.split("."))
    interpreter = f"cp{version[0]}{version[1]}"
    platforms: list[str] = []
    for minor in range(int(glibc.split(".")[1]), 4, -1):  # manylinux_2_5 is the oldest for x86-64
        platforms += [f"manylinux_2_{minor}_x86_64", *_LEGACY.get(minor, ())]
    platforms.append("linux_x86_64")
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
            wheel.size or known.get(wheel.sha256) or (cached.stat().st_size if cached.is_file() else 0)
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
