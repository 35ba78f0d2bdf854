"""Read the locks of other tools: the versions that they chose, for Linux, a processor and a Python. `init` and a recipe's
`packages: {from: FILE}` read them.

Each format is documented by its tool: uv.lock on uv's page "Locking and syncing", poetry.lock in poetry-core's `Locker`, Pipfile.lock on
Pipenv's page "Pipfile & Pipfile.lock", pylock.toml by PEP 751, pixi.lock on pixi's page "Lock file" and in the crate `rattler_lock`,
conda-lock.yml in conda-lock's `lockfile/v1/models.py`.
"""

import functools
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.markers import InvalidMarker, Marker

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.errors import UsageError
from envbuilder.core.places import Mistakes, load_text, parse_yaml, text_of
from envbuilder.core.processor import X86_64, Processor

_MOST: Final = 32 << 20  # bytes: a lock of conda's packages for three systems has 10 MB
# Channels whose Python packages have their names of the Python index.
_CHANNEL: Final = re.compile(r".*/(conda-forge|main|pytorch|nvidia)/(label/[^/]+/)?(noarch|linux-\w+)/[^/]+")
# What torch requires of NVIDIA's and Triton's packages, each at one version; since CUDA 13 most names have no number.
BROUGHT: Final = re.compile(
    r"nvidia-.*-cu\d+$|nvidia-(cu(blas|fft|file|rand|solver|sparse)|cuda-\w+|nvjitlink|nvtx)$|(pytorch-)?triton$"
)
_EXTRA: Final = re.compile(r"\bextra\s*(==|!=)\s*([\"'])(.*?)\2")
_SYSTEM: Final = re.compile(r"platform|python|os_name|implementation")  # what markers ask for beside extras
_CONDA_FILE: Final = re.compile(r"(.+)-([^-]+)-([^-]+?)(\.conda|\.tar\.bz2)")


class Package(NamedTuple):
    """One package that a tool has locked or installed: of an index by its version, otherwise from its place."""

    name: str
    version: str = ""
    place: Mapping[str, Any] = {}  # git, rev and subdirectory; url; or path
    registry: str = ""  # the address of its index
    build: str | None = None  # conda's; None for one of pip
    is_python: bool = True
    purl: str = ""  # the name on a Python index of one of conda, where that is known
    hashes: tuple[str, ...] = ()  # sha256:…, of all files of this version on its index


PYPI: Final = re.compile(r"https?://(www\.)?pypi\.(python\.)?org/")
PLACES: Final = frozenset(("git", "url", "path", "file"))  # keys of what is taken from no index


def main_index(packages: Iterable[Package]) -> str:
    """Return the index for which that of the machine stands: the Python index, else the one that most packages are from."""
    indexes = Counter(
        package.registry for package in packages if package.build is None and PLACES.isdisjoint(package.place)
    )
    return max(indexes, key=lambda url: (not url or bool(PYPI.match(url)), indexes[url]), default="")


def table_of(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = tables.get(key)
    return table if isinstance(table, dict) else {}


def tables_of(tables: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    rows = tables.get(key)
    return (row for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict))


def texts_of(items: object) -> list[str]:
    return [item for item in items if isinstance(item, str)] if isinstance(items, list) else []


def bounds(text: str) -> str:
    """Return the PEP 440 specifier of Poetry's: ^1.2 is >=1.2,<2."""
    return ",".join(filter(None, (_bound(part.strip()) for part in text.split(","))))


def _bound(text: str) -> str:
    if text == "*":
        return ""
    bound = re.fullmatch(r"([\^~]?)(\d+(?:\.\d+)*)|\d[\d.]*\*", text)
    if not bound or not bound[1]:
        return f"=={text}" if bound else text
    numbers = list(map(int, bound[2].split(".")))
    last = len(numbers) - 1
    first = next((at for at, number in enumerate(numbers) if number), last)
    at = min(1, last) if bound[1] == "~" else first
    above = ".".join(map(str, (*numbers[:at], numbers[at] + 1)))
    return f">={bound[2]},<{above}"


@dataclass(slots=True, kw_only=True)
class LockTarget:
    """What a lock is read for. The readers collect what else it has."""

    markers: Mapping[str, str]
    platform: str  # of conda: linux-64
    wanted: frozenset[str]  # groups, extras and environments of pixi
    active: set[str] = field(default_factory=set)  # their names in markers of uv
    offered: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)  # packages for another system, processor or Python
    notes: list[str] = field(default_factory=list)

    def fits(self, name: str, *markers: object) -> bool:
        """Return whether one of the markers holds; a package for which none does is noted, unless they ask for extras alone."""
        texts = [str(marker or "") for marker in markers]
        if any(map(self._holds, texts)):
            return True
        if any(_SYSTEM.search(text) for text in texts):
            self.others.add(name)
        return False

    def _holds(self, marker: str) -> bool:
        chosen = self.wanted | self.active

        def truth(extra: re.Match[str]) -> str:  # packaging knows one extra at a time
            return f"os_name {'==' if (extra[3] in chosen) == (extra[1] == '==') else '!='} 'posix'"

        environment = dict[str, str | AbstractSet[str]](self.markers, extras=chosen, dependency_groups=chosen)
        return not marker or Marker(_EXTRA.sub(truth, marker)).evaluate(environment, context="lock_file")


def _read_uv(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    """Yield what the project or the members of the workspace reach; the other packages are of groups and extras."""
    manifest, by_name = table_of(lock, "manifest"), defaultdict(list)
    for package in tables_of(lock, "package"):
        by_name[str(package.get("name"))].append(package)
    members = texts_of(manifest.get("members"))
    roots = []
    for package in tables_of(lock, "package"):
        source = table_of(package, "source")
        if package.get("name") in members or "." in (source.get("virtual"), source.get("editable")):
            roots.append(package)
    ways: list[Mapping[str, Any]] = list(tables_of(manifest, "requirements"))
    groups = [("", "group", table_of(manifest, "dependency-groups"))]
    for root in roots:
        ways += tables_of(root, "dependencies")
        for kind, key in (("extra", "optional-dependencies"), ("group", "dev-dependencies")):
            groups.append((str(root.get("name")), kind, table_of(root, key)))
    for name, kind, tables in groups:
        target.offered |= tables.keys()
        for chosen in tables.keys() & target.wanted:
            target.active.add(f"{kind}-{len(name)}-{name}-{chosen}")
            ways += tables_of(tables, chosen)
    seen: set[tuple[int, str]] = set()
    while ways:
        way = ways.pop()
        name = str(way.get("name"))
        for package in by_name[name] if target.fits(name, way.get("marker")) else ():
            if any(key in way and way[key] != package.get(key) for key in ("version", "source")):
                continue
            for extra in ("", *texts_of(way.get("extra"))):
                if (id(package), extra) in seen:
                    continue
                seen.add((id(package), extra))
                tables = table_of(package, "optional-dependencies") if extra else package
                ways += tables_of(tables, extra or "dependencies")
                locked = _uv_package(package)
                if not extra and locked.place != {"path": "."}:
                    yield locked


def _hashes(files: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(file["hash"]) for file in files if "hash" in file)


def _uv_package(package: Mapping[str, Any]) -> Package:
    source, place = table_of(package, "source"), dict[str, str]()
    files = [table_of(package, "sdist"), *tables_of(package, "wheels")]
    paths = [str(source[key]) for key in ("path", "directory", "editable", "virtual") if key in source]
    if git := source.get("git"):
        place = _git_place(str(git))
    elif url := source.get("url"):
        place = _url_place(str(url), files)
    elif paths:
        place = {"path": paths[0]}
    return Package(
        str(package.get("name")), str(package.get("version", "")), place, str(source.get("registry", "")), hashes=_hashes(files)
    )  # fmt: skip


def _git_place(text: str) -> dict[str, str]:
    """Return the place of uv's and pixi's `https://host/project?subdirectory=…&rev=…#COMMIT`."""
    parts = urlsplit(text.removeprefix("git+"))
    below, url = parse_qs(parts.query).get("subdirectory", [""])[0], parts._replace(query="", fragment="")
    return {"git": url.geturl(), "rev": parts.fragment, "subdirectory": below}


def _url_place(url: str, files: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    digest = next(iter(_hashes(files)), "")
    return {"url": f"{url}#{digest.replace(':', '=')}"}


def _read_poetry(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    extras, packages = table_of(lock, "extras"), list(tables_of(lock, "package"))
    older = table_of(table_of(lock, "metadata"), "files")  # of version 1.1
    target.offered |= extras.keys()
    if not any({"groups", "category"} & package.keys() for package in packages):
        target.notes.append("it does not say which packages a group alone needs: all are taken")
    for package in packages:
        name, markers = str(package.get("name")), package.get("markers")
        groups = texts_of(package.get("groups")) or [str(package.get("category", "main"))]
        target.offered |= set(groups) - {"main"}
        wanted = [group for group in groups if group in {"main", *target.wanted}]
        is_extra = package.get("optional") and markers is None and not extras.keys() & target.wanted
        by_group = markers if isinstance(markers, dict) else dict.fromkeys(wanted, markers)
        if not wanted or is_extra or not target.fits(name, *(by_group.get(group) for group in wanted)):
            continue
        source = table_of(package, "source")
        files = list(tables_of(older if name in older else package, name if name in older else "files"))
        url, kind, place = str(source.get("url", "")), source.get("type"), dict[str, Any]()
        if kind == "git":
            below = source.get("subdirectory", "")
            place = {"git": url, "rev": source.get("resolved_reference", ""), "subdirectory": below}
        elif kind == "url":
            place = _url_place(url, files)
        elif kind in ("file", "directory"):
            place = {"path": url}
        version = str(package.get("version", ""))
        yield Package(name, version, place, "" if place else url, hashes=_hashes(files))


def _read_pipenv(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    sources = tables_of(table_of(lock, "_meta"), "sources")
    indexes = {str(source.get("name")): str(source.get("url")) for source in sources}
    target.offered |= lock.keys() - {"_meta", "default"}
    for section in ("default", *sorted(target.wanted & lock.keys())):
        for name in table_of(lock, section):
            package = table_of(table_of(lock, section), name)
            if target.fits(name, package.get("markers")):
                hashes = tuple(texts_of(package.get("hashes")))
                files = [{"hash": digest} for digest in hashes]
                place = _url_place(str(package["file"]), files) if "file" in package else package
                version = str(package.get("version", "")).removeprefix("==").strip("*")
                registry = indexes.get(str(package.get("index")), next(iter(indexes.values()), ""))
                yield Package(name, version, place, registry, hashes=hashes)


def _read_pylock(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    from packaging.pylock import Pylock, PylockValidationError  # noqa: PLC0415 - 30 ms, for this format alone

    try:
        pylock = Pylock.from_dict(lock)
    except PylockValidationError as error:
        raise UsageError(str(error), hint="PEP 751 defines it") from error
    target.active |= {*(pylock.default_groups or ())}
    target.offered |= {*(pylock.extras or ()), *(pylock.dependency_groups or ())} - target.active
    for package in pylock.packages:
        if not target.fits(package.name, package.marker):
            continue
        place: Mapping[str, Any] = {}
        if package.vcs and package.vcs.url:
            below = package.vcs.subdirectory or ""
            place = {"git": package.vcs.url, "rev": package.vcs.commit_id, "subdirectory": below}
        elif package.directory:
            place = {"path": f"./{package.directory.path}"}
        elif package.archive and package.archive.url:
            place = {"url": f"{package.archive.url}#sha256={package.archive.hashes.get('sha256', '')}"}
        files = (*(package.wheels or ()), *([package.sdist] if package.sdist else ()))
        hashes = tuple(f"sha256:{file.hashes['sha256']}" for file in files if "sha256" in file.hashes)
        yield Package(package.name, str(package.version or ""), place, package.index or "", hashes=hashes)


def _read_pixi(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    environments = table_of(lock, "environments")
    target.offered |= environments.keys() - {"default"}
    name = next((name for name in environments if name in target.wanted), "default")
    platforms = table_of(table_of(environments, name), "packages")
    places = ("conda", "pypi", "url", "path")  # the last two before version 6
    details = {
        str(next((row[key] for key in places if key in row), "")): row for row in tables_of(lock, "packages")
    }
    # Version 7 has names for platforms.
    rows = tables_of(lock, "platforms")
    aliases = {str(row.get("name")): str(row.get("subdir", row.get("name"))) for row in rows}
    by_platform = {aliases.get(alias, alias): alias for alias in platforms}
    _need_platform(by_platform, target)
    for entry in tables_of(platforms, str(by_platform[target.platform])):
        kind, url = next(((kind, str(url)) for kind, url in entry.items()), ("", ""))
        row, file = details.get(url, {}), _conda_package(url)
        if kind == "conda" and file:
            purls = " ".join(texts_of(row.get("purls")))
            purl = re.search(r"pkg:pypi/([\w.-]+)", purls)
            depends = [text.split()[:1] for text in texts_of(row.get("depends"))]
            is_python = row.get("noarch") == "python" or ["python"] in depends
            is_python = bool(purl) if "purls" in row else is_python and bool(_CHANNEL.fullmatch(url))
            yield file._replace(is_python=is_python, purl=purl[1] if purl else "")
        elif kind == "pypi":
            name = text_of(row.get("name")) or url
            yield _of_pip(name, text_of(row.get("version")), url, text_of(row.get("sha256", "")))
        else:
            target.notes.append(f"`{kind}: {url}` is left out: built from sources by pixi")


def _read_conda_lock(lock: Mapping[str, Any], target: LockTarget) -> Iterator[Package]:
    rows = list(tables_of(lock, "package"))
    _need_platform({str(row.get("platform")) for row in rows}, target)
    for row in rows:
        name, version, url = text_of(row.get("name")), text_of(row.get("version")), str(row.get("url"))
        group = str(row.get("category", "main"))
        target.offered |= {group} - {"main"}
        if row.get("platform") != target.platform or group not in {"main", *target.wanted}:
            continue
        if row.get("manager") == "conda":
            is_python = "python" in table_of(row, "dependencies") and bool(_CHANNEL.fullmatch(url))
            package = _conda_package(url) or Package(name, build="")
            yield package._replace(name=name, version=version, is_python=is_python)
        else:
            yield _of_pip(name, version, url, text_of(table_of(row, "hash").get("sha256", "")))


def _conda_package(url: str) -> Package | None:
    """Return name, version and build of conda's package, which the name of its file has."""
    file = _CONDA_FILE.fullmatch(unquote(url.rpartition("/")[2]))
    return Package(file[1], file[2], build=file[3]) if file else None


def _of_pip(name: str, version: str, url: str, digest: str) -> Package:
    """Return pip's package in a lock of conda's: a file of an index, a repository, a folder, or another address."""
    if url.startswith("git+"):
        return Package(name, version, _git_place(url))
    if url.startswith("direct+"):
        return Package(name, version, {"url": f"{url.removeprefix('direct+')}#sha256={digest}"})
    return Package(name, version, {} if "://" in url else {"path": url})


def _need_platform(platforms: Iterable[str], target: LockTarget) -> None:
    if target.platform not in platforms:
        raise UsageError(
            f"it has packages for {', '.join(sorted(map(str, platforms))) or 'no system'}, and none for {target.platform}",
            hint=f"lock for `{target.platform}` too, with the tool that wrote it",
        )


class _Format(NamedTuple):
    """A tool's lock: the names of its files, the versions of its format, and where that and the bounds of Python stand."""

    tool: str
    names: str
    versions: tuple[str, ...]
    version: tuple[str, ...]
    python: tuple[str, ...]
    read: Callable[[Mapping[str, Any], LockTarget], Iterator[Package]]
    manifests: str  # the names of the files that it is made of


# Of several in one folder the first one is read.
_FORMATS: Final = (
    _Format("pixi", r"pixi\.lock", ("4", "5", "6", "7"), ("version",), (), _read_pixi, r"pixi\.toml|pyproject\.toml"),
    _Format("uv", r"uv\.lock|.*\.py\.lock", ("1",), ("version",), ("requires-python",), _read_uv, r"pyproject\.toml"),
    _Format("Poetry", r"poetry\.lock", ("1.1", "2.0", "2.1"), ("metadata", "lock-version"), ("metadata", "python-versions"), _read_poetry, r"pyproject\.toml"),
    _Format("Pipenv", r"Pipfile\.lock", ("6",), ("_meta", "pipfile-spec"), ("_meta", "requires", "python_version"), _read_pipenv, r"Pipfile"),
    _Format("PEP 751", r"pylock(\..+)?\.toml", ("1.0",), ("lock-version",), ("requires-python",), _read_pylock, r"pyproject\.toml|requirements?\.(txt|in)"),
    _Format("conda-lock", r"(.*\.)?conda-lock\.ya?ml", ("1",), ("version",), (), _read_conda_lock, r"(conda_?)?env(ironment)?\w*\.ya?ml|conda\.ya?ml"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLock:
    """The lock of another tool."""

    path: Path
    sha256: Sha256
    size: int  # bytes
    python: str  # the specifier of the Pythons that it is for; "" if it names none
    has_markers: bool  # whether it has packages for several Pythons
    _data: Mapping[str, Any]
    _read: Callable[[Mapping[str, Any], LockTarget], Iterator[Package]]

    def packages(
        self, python: str, processor: Processor, wanted: Iterable[str]
    ) -> tuple[list[Package], LockTarget]:
        """Return what it has for a Python and a processor, with the wanted groups, extras and environment.

        Raises UsageError for one with nothing for Linux and the processor.
        """
        platform = "linux-64" if processor is X86_64 else f"linux-{processor.machine}"
        target = LockTarget(markers=processor.markers(python), platform=platform, wanted=frozenset(wanted))
        try:
            return list(self._read(self._data, target)), target
        except InvalidMarker as error:
            raise UsageError(f"`{self.path}` has a marker that cannot be read: {error}") from error
        except UsageError as error:
            raise UsageError(f"`{self.path}` cannot be read: {error.message}", hint=error.hint) from error


def find_locks(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the locks among files, each with a pattern for the names of the files that it was made of; the first one counts."""
    return [(path, row.manifests) for row in _FORMATS for path in paths if re.fullmatch(row.names, path.name)]


def open_lock(path: Path) -> OtherLock:
    """Read the file of a lock. Raises UsageError for one of an unknown name or version, and for a file that is none."""
    row = next((row for row in _FORMATS if re.fullmatch(row.names, path.name)), None)
    if row is None:
        hint = "uv.lock, pixi.lock, poetry.lock, Pipfile.lock, pylock.toml and conda-lock.yml are read"
        raise UsageError(f"`{path}` has the name of no tool's lock", hint=hint)
    mistakes = Mistakes()
    text = load_text(path, mistakes, most=_MOST)
    if text is None:
        raise UsageError(f"`{path}` cannot be read as a lock", findings=mistakes.findings)
    data = _parse(path, text)
    version = _text_at(data, row.version)
    if version not in row.versions:
        raise UsageError(
            f"`{path}` has version {version or 'none'} of {row.tool}'s format, which is not known",
            hint=f"known: {', '.join(row.versions)}; `init --from` also takes the files that it was made of",
        )
    python = _text_at(data, row.python)
    python = f"=={python}.*" if re.fullmatch(r"[\d.]+", python) else bounds(python)
    return OtherLock(
        path=path, sha256=sha256_text(text), size=len(text.encode()), python=python, has_markers=bool(row.python),
        _data=data, _read=row.read,
    )  # fmt: skip


@functools.lru_cache(maxsize=4)  # a command reads its recipe several times
def _parse(path: Path, text: str) -> Mapping[str, Any]:
    mistakes, data = Mistakes(), None
    try:
        if path.suffix in (".yml", ".yaml") or path.name == "pixi.lock":
            root = parse_yaml(text, str(path), mistakes)
            data = root and root.value
        elif path.name == "Pipfile.lock":
            data = json.loads(text)
        else:
            data = tomllib.loads(text)
    except ValueError as error:
        kind = "JSON" if isinstance(error, json.JSONDecodeError) else "TOML"
        raise UsageError(f"`{path}` is not {kind}: {error}") from error
    if mistakes.findings or not isinstance(data, dict):
        raise UsageError(f"`{path}` cannot be read as a lock", findings=mistakes.findings)
    return data


def _text_at(lock: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    tables = functools.reduce(table_of, keys[:-1], lock)
    return text_of(tables.get(keys[-1])) if keys else ""
