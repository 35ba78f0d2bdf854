"""Read an environment that is installed: what pip, uv and conda noted in its files. Nothing of it runs.

Sources: "Recording installed projects" and "Direct URL" of the Python packaging standards, the `pyvenv.cfg` of PEP 405, and
conda's `conda-meta/*.json`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.places import Mistakes, load_text
from envbuilder.core.process import Runner
from envbuilder.init.locks import request
from envbuilder.init.project import git_of
from envbuilder.init.requests import Requests, read_text
from envbuilder.recipe.extension import GIT_URL
from envbuilder.recipe.other_locks import Package

_SITES: Final = ("lib*/python3*/*-packages", "local/lib/python3*/*-packages")
_INFO: Final = re.compile(r"(.*\.(?:dist-info|egg-info))(?:/METADATA|/PKG-INFO)?")
_NOTED: Final = (".dist-info", ".egg-info", ".egg", ".egg-link")
_OF_TOOLS: Final = ("__pycache__", "_virtualenv.py", "_virtualenv.pth")
_MOST: Final = 32 << 20  # bytes: conda's record of a CUDA package names 20,000 files
_CUDA: Final = re.compile(r"^cuda\b[^=\n]*= *(?:None|['\"](\d+)\.(\d+)['\"])", re.MULTILINE)
_STRANGER: Final = "its setup.py installed it from a folder that nothing names, and its name may be a stranger's on the index"


class _Record(NamedTuple):
    """What conda noted of a package: the folders of Python's metadata in it, and what it put beside other modules."""

    package: Package
    infos: tuple[Path, ...]
    owned: tuple[Path, ...]


def read_live(place: Path, runner: Runner, requests: Requests) -> None:
    """Request every package of an environment, by its version or its commit. `place` is its folder, or its Python.

    Raises UsageError where there is none. What no tool noted is listed.
    """
    prefix, sites = _find(place)
    where, requests.top = str(prefix), None
    if version := re.search(r"python(3\.\d+)/", " ".join(map(str, sites))):
        requests.pin("python", f"=={version[1]}.*", where)
    links = {Path(read_text(link).partition("\n")[0]) for site in sites for link in site.glob("*.egg-link")}
    eggs = {egg for site in sites for egg in site.glob("*.egg")}
    records = list(_records(prefix))
    of_conda = {info: record.package for record in records for info in record.infos}
    packages = {f"conda {record.package.name}": record.package for record in records if not record.infos}
    infos, owned = dict[str, Path](), {path for record in records for path in record.owned}
    for dist in distributions(path=[str(path) for path in (*sites, *sorted(eggs), *sorted(links))]):
        info = Path(str(getattr(dist, "_path")))  # noqa: B009 - no public name has it
        if "Name" not in dist.metadata:
            requests.leave(where, info.name, "an installation that was interrupted left it")
            continue
        name = str(canonicalize_name(dist.name))
        owned |= {info.parent / file.parts[0] for file in dist.files or ()}
        owned |= {info.parent / module for module in (dist.read_text("top_level.txt") or "").split()}
        if name not in infos:
            infos[name] = info
            if package := _package(dist, of_conda.get(info), runner, requests):
                packages[name] = package
        elif info.parent == infos[name].parent:
            requests.note(where, f"`{name}` is there twice: {info.name} and {infos[name].name}")
    for record in records:
        for info in sorted(set(record.infos) - set(infos.values())):
            name = canonicalize_name(info.name.partition("-")[0])
            other = f"{packages[name].version} is in its place" if name in packages else "it is gone"
            requests.note(where, f"conda noted `{name}` {record.package.version}, and {other}")
    if packages.pop("pip", None):
        hint = "packages go into the recipe's `packages`"
        requests.leave(where, "pip", "an environment cannot change, and has no pip", hint=hint)
    for site in sites:
        _list_others(site, owned, links | eggs, requests)
    request(list(packages.values()), prefix, requests)
    requests.note(where, "all that is installed is listed, also what only other packages require")


def _find(place: Path) -> tuple[Path, list[Path]]:
    """Return the folder of an environment, and those of its packages: before those of the Python below it, where they count."""
    ways = [path.parent.parent for path in (place.absolute(), place.resolve())] if place.is_file() else []
    for prefix in ways or [place]:
        if sites := _sites(prefix):
            settings = load_text(prefix / "pyvenv.cfg", Mistakes()) or ""
            home = re.search(r"^home *= *(.+)$", settings, re.MULTILINE)
            if home and re.search(r"^include-system-site-packages *= *true", settings, re.MULTILINE):
                sites += _sites(Path(home[1].strip()).parent)
            return prefix.resolve(), sites
    message = f"`{place}` is no environment and no Python of one: no `lib/python3.*/site-packages` is there"
    hint = "`python -c 'import sys; print(sys.prefix)'` of that environment says its folder"
    raise UsageError(message, hint=hint)


def _sites(prefix: Path) -> list[Path]:
    return list(dict.fromkeys(path.resolve() for pattern in _SITES for path in sorted(prefix.glob(pattern))))


def _records(prefix: Path) -> Iterator[_Record]:
    for path in sorted(prefix.glob("conda-meta/*.json")):
        try:
            record = json.loads(load_text(path, Mistakes(), most=_MOST) or "")
            files = [str(file) for file in record.get("files", ())]
            infos = dict.fromkeys(prefix / match[1] for match in map(_INFO.fullmatch, files) if match)
            owned = {prefix / re.sub(r"(-packages/[^/]+)/.*", r"\1", file) for file in files}
            build, is_python = str(record.get("build", "")), bool(infos)
            package = Package(record["name"], record["version"], build=build, is_python=is_python)
            yield _Record(package, tuple(infos), tuple(owned))
        except (ValueError, KeyError, AttributeError) as error:
            raise UsageError(f"`{path}` is no record of conda: {error}") from error


def _package(
    dist: Distribution, of_conda: Package | None, runner: Runner, requests: Requests
) -> Package | None:
    """Return what to request for an installed distribution; None after reporting that nothing says its origin."""
    name, site = canonicalize_name(dist.name), Path(str(dist.locate_file("")))
    installer = (dist.read_text("INSTALLER") or "").strip()
    if of_conda:
        if installer not in ("", "conda"):
            requests.note(str(site), f"conda and {installer} both claim `{name}` {dist.version}")
        return of_conda._replace(purl=name)
    if not site.name.endswith("-packages") and site.suffix != ".egg":  # that of an .egg-link
        return Package(name, dist.version, _folder(site, runner, requests))
    if text := dist.read_text("direct_url.json"):
        return Package(name, dist.version, _origin(text, runner, requests))
    if installer or "dist-packages" in site.parts:
        return Package(name, dist.version + (_build_of_torch(site) if name == "torch" else ""))
    hint = "`--from FOLDER` reads the one with its setup.py"
    requests.leave(str(site), f"{name} {dist.version}", _STRANGER, hint=hint)
    return None


def _origin(text: str, runner: Runner, requests: Requests) -> Mapping[str, Any]:
    """Return from where a `direct_url.json` says that a package was installed."""
    try:
        direct = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise UsageError(f"a `direct_url.json` cannot be read: {error}") from error
    url, below = str(direct.get("url")), str(direct.get("subdirectory", ""))
    if commit := direct.get("vcs_info", {}).get("commit_id"):
        return {"git": url, "rev": commit, "subdirectory": below}
    if "dir_info" in direct:
        return _folder(Path(unquote(urlsplit(url).path)) / below, runner, requests)
    archive = direct.get("archive_info", {})
    digest = archive.get("hashes", {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
    return {"url": f"{url}#sha256={digest}"}


def _folder(folder: Path, runner: Runner, requests: Requests) -> Mapping[str, Any]:
    """Return the place of a folder: by address and commit if it is a clone of a repository."""
    git = git_of(folder, runner)
    with suppress(CommandError, ToolError):
        above = git("rev-parse", "--show-prefix", why="ask where a clone begins").strip()
        url = git("remote", "get-url", "origin", why="ask for the address of a clone").strip()
        commit = git("rev-parse", "HEAD", why="ask for the commit of a clone").strip()
        if re.fullmatch(GIT_URL.pattern, url):
            if git("status", "--porcelain", "--untracked-files=no", "--", ".", why="ask for changes").strip():
                requests.note(str(folder), f"files differ from commit {commit}, which is taken: push them")
            elif not git("branch", "--remotes", "--contains", "HEAD", why="ask where a commit is").strip():
                requests.note(str(folder), f"commit {commit} is in no branch of {url}: push it")
            return {"git": url, "rev": commit, "subdirectory": above.rstrip("/")}
    return {"path": str(folder)}


def _build_of_torch(site: Path) -> str:
    """Return the local version of torch, which a wheel of an index leaves out: +cu124, or +cpu."""
    cuda = _CUDA.search(load_text(site / "torch/version.py", Mistakes()) or "")
    return (f"+cu{cuda[1]}{cuda[2]}" if cuda[1] else "+cpu") if cuda else ""


def _list_others(site: Path, owned: set[Path], known: set[Path], requests: Requests) -> None:
    """Report the modules that no package names, and the folders that `.pth` files add to Python's path."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for path in sorted(site.iterdir()):
        names = {path, site / path.name.partition(".")[0]}
        if names & owned or path.suffix in _NOTED or path.name in _OF_TOOLS:
            continue
        is_compiled = path.suffix == ".so" or any(path.rglob("*.so"))
        if is_compiled or path.suffix == ".py" or any(path.rglob("*.py")):
            kinds[is_compiled].append(path.name)
        for line in read_text(path).splitlines() if path.suffix == ".pth" else ():
            if (site / line).is_dir() and (site / line).resolve() not in known:
                hint = f"`--from {line}` reads a project"
                requests.leave(str(path), line, "a folder on Python's path", hint=hint)
    if kinds[True]:
        why = "compiled, and no package names it: `extensions` compiles its sources"
        requests.leave_all(str(site), ", ".join(kinds[True]), why)
    if kinds[False]:
        requests.leave_all(str(site), ", ".join(kinds[False]), "no package names it")
