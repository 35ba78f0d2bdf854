"""Read what a pyproject.toml requires, by the standard's tables, Poetry's, pixi's, and from where uv's tables say; and a
pixi.toml and a Pipfile.

A name alone would be fetched from the Python index, where it may be a stranger's: a requirement that uv or Poetry takes from
a repository, a folder or its own workspace is never requested by its name. uv's page "Managing dependencies" defines the tables.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from envbuilder.compat.python_code import project_files
from envbuilder.core.errors import UsageError
from envbuilder.core.processor import X86_64
from envbuilder.init.build_tools import load_toml, parse_toml, requirement_name
from envbuilder.init.conda import read_spec, take_channels
from envbuilder.init.pip import module_name, read_arguments, read_extras, read_index, read_requirement
from envbuilder.init.requests import Requests, read_text
from envbuilder.recipe.other_locks import PLACES, PYPI, bounds, table_of, tables_of, texts_of

_MARKERS: Final = X86_64.markers("3.11")  # a marker of a place asks for the system, hardly for Python
ACTIVATION: Final = "activation"  # a table of pixi: scripts and variables of a shell
_STRANGER: Final = "on the Python index, its name may be a stranger's"
# Variables of markers that Pipenv has as keys.
_VARIABLES: Final = (
    "sys_platform", "os_name", "platform_machine", "platform_system", "python_version", "python_full_version",
    "implementation_name", "platform_python_implementation",
)  # fmt: skip
_DEVELOPS: Final = "who develops the project needs them"
_FIXED: Final = "the lock fixes every version"
_BOUNDS: Final = "add the bounds that matter to `packages`"
# Tables of pixi that nothing reads, and why.
_PIXI: Final = dict.fromkeys(
    ("feature", "environments", ACTIVATION), "only the default environment of pixi is read"
) | {
    "host-dependencies": "they are for building a package of conda",
    "build-dependencies": "they are for building a package of conda",
    "system-requirements": "`base`, `cuda` and the machine's driver decide",
    "constraints": _FIXED,
}


def read_pyproject(path: Path, requests: Requests) -> None:
    """Read the dependencies, and report the settings of uv, Poetry, PDM and Hatch that a recipe does not take."""
    tables = load_toml(path)
    project, tool, where = tables.get("project", {}), tables.get("tool", {}), str(path)
    poetry = table_of(tool, "poetry")
    if isinstance(python := project.get("requires-python"), str):
        requests.pin("python", python, where)
    extras, groups = table_of(project, "optional-dependencies"), table_of(tables, "dependency-groups")
    requests.offered |= extras.keys() | groups.keys()
    chosen = (
        text for name in requests.wanted for text in (*texts_of(extras.get(name)), *_group(groups, name))
    )
    listed = [*texts_of(project.get("dependencies")), *chosen]
    for text, place in _placed(listed, tool):
        if not read_place(requirement_name(text), place, path, requests, _indexes(tool)):
            read_requirement(text, where, requests)
    needed = {name: given for name, given in table_of(poetry, "dependencies").items() if name != "python"}
    if "dependencies" in texts_of(project.get("dynamic")) and not needed:
        _read_dynamic(tool, path, requests)
    reasons = {
        "optional-dependencies": "who installs a project chooses extras",
        "dependency-groups": "who develops it needs groups",
    }
    for (key, why), tables_by_name in zip(reasons.items(), (extras, groups), strict=True):
        if others := [name for name in tables_by_name if name not in requests.wanted]:
            requests.leave(where, f"{key}: {', '.join(others)}", why, hint=f"`--with {others[0]}` takes it")
    extras = table_of(poetry, "extras")
    read_extras(dict.fromkeys(extras, ()), where, requests)
    wanted_names = {name for extra in requests.wanted for name in texts_of(extras.get(extra))}
    if isinstance(python := table_of(poetry, "dependencies").get("python"), str):
        requests.pin("python", bounds(python), where)
    names = set(map(requirement_name, listed))  # which Poetry's table adds a source to
    for name, given in needed.items():
        is_optional = _place_of(given).get("optional") is True and name not in wanted_names
        if canonicalize_name(name) not in names and not is_optional:
            _read_entry(name, given, path, requests, _indexes(tool))
    _leave_settings(tool, path, requests)
    read_pixi(table_of(tool, "pixi"), path, requests)


def _indexes(tool: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the indexes that uv's and Poetry's tables name."""
    rows = (*tables_of(table_of(tool, "uv"), "index"), *tables_of(table_of(tool, "poetry"), "source"))
    return {str(row.get("name")): str(row.get("url")) for row in rows}


def _placed(texts: Iterable[str], tool: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each requirement with the place that uv's or Poetry's tables have for its name."""
    given = {
        **table_of(table_of(tool, "poetry"), "dependencies"),
        **table_of(table_of(tool, "uv"), "sources"),
    }
    places: dict[str, Mapping[str, Any]] = {
        canonicalize_name(name): _place_of(place) for name, place in given.items()
    }
    yield from ((text, places.get(requirement_name(text), {})) for text in texts)


def _group(groups: Mapping[str, Any], name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the requirements of a group and of those that it includes (PEP 735)."""
    for item in groups.get(name, ()) if name not in above else ():
        if isinstance(item, str):
            yield item
        else:
            yield from _group(groups, str(item.get("include-group")), (*above, name))


def read_pixi(tables: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Read what a pixi.toml or pyproject.toml's table of pixi requires on Linux, of conda's channels and of the Python index."""
    for key, why in _PIXI.items():
        if named := tables.get(key):
            texts = f"{key}: {', '.join(named)}" if isinstance(named, dict) else key
            requests.leave(str(path), texts, why)
    _read_indexes(table_of(tables, "pypi-options"), path, requests)
    targets = table_of(tables, "target")
    for table in (tables, *(table_of(targets, name) for name in ("linux", "linux-64", "unix"))):
        for name, given in table_of(table, "dependencies").items():
            place = _place_of(given)
            wanted = place.get("version", "") if isinstance(given, dict) else given
            channel = str(place.get("channel", "")).rstrip("/").rpartition("/")[2]
            spec = f"{channel and f'{channel}::'}{name} {_spec(str(wanted))}".strip()
            read_spec(spec, str(path), requests)
        for name, given in table_of(table, "pypi-dependencies").items():
            _read_entry(name, given, path, requests, {})
    about = table_of(tables, "workspace") or table_of(tables, "project")
    ranked = (row.get("channel") for row in tables_of(about, "channels"))  # with a priority
    names = (*texts_of(about.get("channels")), *ranked)
    take_channels([(str(name), str(path)) for name in names], requests)
    requests.say_together()


def read_pixi_file(path: Path, requests: Requests) -> None:
    """Read a pixi.toml."""
    read_pixi(load_toml(path), path, requests)


def _spec(text: str) -> str:
    """Return a version of pixi as conda's commands take it: `3.11.*` is `=3.11`, `*` is "", `>=6,<7` stays."""
    return f"={text.removesuffix('.*')}" if re.match(r"\d", text) else text.removeprefix("*")


def read_pipfile(path: Path, requests: Requests) -> None:
    """Read the packages of a Pipfile."""
    tables = parse_toml(read_text(path), path)
    if isinstance(python := table_of(tables, "requires").get("python_version"), str):
        requests.pin("python", f"=={python}.*", str(path))
    if others := sorted(tables.keys() - {"requires", "packages", "scripts", "pipenv", "source"}):
        requests.leave(
            str(path), f"groups: {', '.join(others)}", "a lock that has them can be read with them"
        )
    indexes = {str(source.get("name")): str(source.get("url")) for source in tables_of(tables, "source")}
    for name, given in table_of(tables, "packages").items():
        _read_entry(name, given, path, requests, indexes)
    _read_indexes({"extra-index-url": list(indexes.values())}, path, requests)


def _read_entry(name: str, given: object, path: Path, requests: Requests, indexes: Mapping[str, str]) -> None:
    """Read a package of Poetry, pixi or Pipenv: its version, or tables that say from where it is taken, and when."""
    for row in given if isinstance(given, list) else [given]:
        place = row if isinstance(row, dict) else {"version": row}
        version, marker = place.get("version", "*"), _marker(place)
        if not isinstance(version, str):
            requests.leave(str(path), f"{name} = {row}", "no version that a recipe can say")
        elif PLACES.isdisjoint(place) or _fits(marker):
            if not read_place(name, place, path, requests, indexes):
                extras = ",".join(texts_of(place.get("extras")))
                text = f"{name}{extras and f'[{extras}]'}{bounds(version)}{marker and f'; {marker}'}"
                read_requirement(text, str(path), requests)
        else:
            requests.leave(str(path), f"{name} = {row}", "for another system or Python")


def _marker(place: Mapping[str, Any]) -> str:
    """Return when an entry counts, as pip writes it. Pipenv has a key for each variable, Poetry `python` and `platform`."""
    texts = [f"({place[key]})" for key in ("marker", "markers", "env-markers") if place.get(key)]
    texts += [f"{name} {place[name]}" for name in _VARIABLES if name in place]
    for sign, version in re.findall(r"([<>=!~]*)\s*([^\s,]+)", bounds(str(place.get("python", "")))):
        texts.append(f"python_version {sign or '=='} '{version}'")
    texts += [f"sys_platform == '{place['platform']}'"] if "platform" in place else []
    return " and ".join(texts)


def _place_of(given: object) -> Mapping[str, Any]:
    """Return where uv or Poetry takes a requirement from: of several places, the first that is for Linux."""
    rows = given if isinstance(given, list) else [given]
    fitting = (
        row for row in rows if isinstance(row, dict) and not {"extra", "group"} & row.keys() and _fits(_marker(row))
    )  # fmt: skip
    return next(fitting, {})


def _fits(marker: str) -> bool:
    try:
        return not marker or Marker(marker).evaluate(_MARKERS)
    except InvalidMarker:
        return False


def read_place(
    name: str,
    place: Mapping[str, Any],
    path: Path,
    requests: Requests,
    indexes: Mapping[str, str] | None = None,
) -> bool:
    """Request what lies at a place; False where there is none but an index. With `indexes`, the package comes from that alone."""
    where, locate = str(path), path.parent.joinpath
    if "git" in place:
        revision = next((str(place[key]) for key in ("rev", "ref", "tag", "branch") if key in place), "")
        text = _git(name, str(place["git"]), revision, str(place.get("subdirectory", "")))
        read_requirement(text, where, requests)
    elif "url" in place:
        read_requirement(f"{name} @ {place['url']}", where, requests)
    elif "path" in place:
        read_arguments(("--editable", str(place["path"])), where, requests, locate=locate)
    elif place.get("workspace") is True:
        member = next(_members(name, path), None)
        if member is None:
            why = f"it is of the project's own workspace, and no folder here has it; {_STRANGER}"
            requests.leave(where, name, why, hint="`--from` names the folder of the whole workspace")
        else:
            read_arguments(("--editable", f"./{member}"), where, requests, locate=locate)
            _read_sources(path.parent / member / path.name, path, requests, indexes or {})
    else:
        given = str(place.get("index") or place.get("source") or "")
        if given and indexes is not None:
            read_index(name, indexes.get(given, given), where, requests)
        return False
    return True


def _read_sources(path: Path, root: Path, requests: Requests, indexes: Mapping[str, str]) -> None:
    """Request what a member of a workspace takes from places, its own or the root's. `lock` reads its other requirements."""
    if path.resolve() in requests.read:
        return
    requests.read.add(path.resolve())
    tables = load_toml(path)
    tool, above = table_of(tables, "tool"), {"uv": table_of(table_of(load_toml(root), "tool"), "uv")}
    texts = texts_of(table_of(tables, "project").get("dependencies"))
    for (text, direct), (_, inherited) in zip(_placed(texts, tool), _placed(texts, above), strict=True):
        name, place, origin = requirement_name(text), direct or inherited, path if direct else root
        is_lost = place and read_place(name, place, origin, requests, {**indexes, **_indexes(tool)})
        if is_lost and "git" in place and module_name(name) not in requests.extensions:
            message = f"`{name}`, which `{path.parent.name}` requires, is to be an extension: {_STRANGER}"
            requests.note(str(path), message, hint="`lock` ends there until it is one, or is in `packages`")


def _git(name: str, url: str, revision: str, below: str) -> str:
    """Return the requirement of a project in a repository, as pip takes it."""
    return f"{name} @ git+{url}{revision and f'@{revision}'}{below and f'#subdirectory={below}'}"


def _members(name: str, path: Path) -> Iterator[str]:
    """Yield the folders below a pyproject.toml that have a project of that name."""
    for file in project_files(path.parent):
        if file.name == path.name and file.parent != path.parent:
            try:
                project = load_toml(file).get("project", {})
            except UsageError:  # a template's, or a test's
                continue
            if canonicalize_name(str(project.get("name", ""))) == canonicalize_name(name):
                yield file.parent.relative_to(path.parent).as_posix()


def _read_dynamic(tool: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Read the files from which setuptools or a hook of Hatch takes the dependencies. Those of a setup.py are read with it."""
    hooks = table_of(table_of(table_of(tool, "hatch"), "metadata"), "hooks")
    given = table_of(table_of(table_of(tool, "setuptools"), "dynamic"), "dependencies").get("file")
    files = given or table_of(hooks, "requirements_txt").get("files") or []
    for name in [files] if isinstance(files, str) else texts_of(files):
        read_arguments(("--requirement", name), str(path), requests, locate=path.parent.joinpath)
    if not files and not any((path.parent / name).is_file() for name in ("setup.py", "setup.cfg")):
        requests.leave(str(path), 'dynamic = ["dependencies"]', "its build computes them, and nothing runs")


def _leave_settings(tool: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Report the indexes and bounds that uv, Poetry and PDM have for all packages, and the parts that nothing reads."""
    uv, poetry, pdm, hatch = (table_of(tool, name) for name in ("uv", "poetry", "pdm", "hatch"))
    hooks = table_of(table_of(hatch, "metadata"), "hooks")
    lock = "once `poetry.lock` is there, `--with GROUP` takes one"
    parts: tuple[tuple[str, Iterable[str], str, str], ...] = (
        ("groups of Poetry", [*table_of(poetry, "group"), *(poetry.keys() & {"dev-dependencies"})], _DEVELOPS, lock),
        ("groups of PDM", table_of(pdm, "dev-dependencies"), _DEVELOPS, ""),
        ("environments of Hatch", table_of(hatch, "envs"), _DEVELOPS, ""),
        ("dev-dependencies of uv", texts_of(uv.get("dev-dependencies")), _DEVELOPS, ""),
        ("hooks of Hatch", hooks.keys() - {"requirements_txt"}, "they run in a build, and nothing runs", ""),
        ("override-dependencies", texts_of(uv.get("override-dependencies")), _FIXED, _BOUNDS),
        ("constraint-dependencies", texts_of(uv.get("constraint-dependencies")), _FIXED, _BOUNDS),
        ("resolution of PDM", table_of(pdm, "resolution"), _FIXED, _BOUNDS),
        ("members of the workspace", _unread_members(uv, path, requests), "no dependency names them", "`--from FOLDER` reads one"),
    )  # fmt: skip
    for key, names, why, hint in parts:
        if texts := ", ".join(names):
            requests.leave(str(path), f"{key}: {texts}", why, hint=hint)
    for index in (*tables_of(uv, "index"), *tables_of(poetry, "source"), *tables_of(pdm, "source")):
        if not (index.get("explicit") or index.get("priority") == "explicit"):
            _read_indexes({"extra-index-url": index.get("url")}, path, requests)
    _read_indexes(uv, path, requests)


def _unread_members(uv: Mapping[str, Any], path: Path, requests: Requests) -> Iterator[str]:
    """Yield the folders of a workspace that no extension is."""
    known = {extension.path for extension in requests.extensions.values()}
    for pattern in texts_of(table_of(uv, "workspace").get("members")):
        with contextlib.suppress(ValueError, NotImplementedError):  # an absolute pattern, or an empty one
            for folder in sorted(path.parent.glob(pattern)):
                file = folder / path.name
                if folder.resolve().as_posix() not in known and file.is_file() and requests.holds(file):
                    yield folder.relative_to(path.parent).as_posix()


def _read_indexes(options: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Read the indexes of a tool's table, whose keys are pip's options."""
    for key in ("index-url", "extra-index-url", "extra-index-urls", "find-links"):
        given = options.get(key, [])
        for url in [given] if isinstance(given, str) else texts_of(given):
            if not PYPI.match(url):
                words = (f"--{key.removesuffix('s') if key.endswith('urls') else key}", url)
                read_arguments(words, str(path), requests, locate=path.parent.joinpath)
