"""Read what a pyproject.toml requires, by the standard's tables, Poetry's, pixi's, and from where uv's tables say; and a
pixi.toml and a Pipfile.

A name alone would be fetched from the Python index, where it may be a stranger's: a requirement that uv or Poetry takes from
a repository, a folder or its own workspace is never requested by its name. uv's page "Managing dependencies" defines the tables.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from envbuilder.compat.python_code import project_files
from envbuilder.core.errors import UsageError
from envbuilder.core.processor import X86_64
from envbuilder.init.build_tools import load_toml, requirement_name
from envbuilder.init.conda import read_spec
from envbuilder.init.pip import read_arguments, read_extras, read_requirement
from envbuilder.init.requests import Requests
from envbuilder.recipe.other_locks import bounds, table_of, tables_of, texts_of

_MARKERS: Final = X86_64.markers("3.11")  # a marker of a place asks for the system, hardly for Python
ACTIVATION: Final = "activation"  # a table of pixi: scripts and variables of a shell
_STRANGER: Final = "on the Python index, its name may be a stranger's"


def read_pyproject(path: Path, requests: Requests) -> None:
    """Read the dependencies, and report the settings of uv and Poetry that a recipe does not take."""
    tables = load_toml(path)
    project, tool, where = tables.get("project", {}), tables.get("tool", {}), str(path)
    uv, poetry = table_of(tool, "uv"), table_of(tool, "poetry")
    if isinstance(python := project.get("requires-python"), str):
        requests.pin("python", python, where)
    indexes = {str(index.get("name")): str(index.get("url")) for index in tables_of(uv, "index")}
    places: dict[str, Mapping[str, Any]] = {
        canonicalize_name(name): _place_of(given) for name, given in table_of(uv, "sources").items()
    }
    extras, groups = table_of(project, "optional-dependencies"), table_of(tables, "dependency-groups")
    requests.offered |= extras.keys() | groups.keys()
    chosen = (
        text for name in requests.wanted for text in (*texts_of(extras.get(name)), *_group(groups, name))
    )
    for text in (*texts_of(project.get("dependencies")), *chosen):
        place = places.get(requirement_name(text), {})
        if url := indexes.get(str(place.get("index"))):
            read_arguments(("--extra-index-url", url), where, requests, locate=path.parent.joinpath)
        if not read_place(requirement_name(text), place, path, requests):
            read_requirement(text, where, requests)
    if "dependencies" in texts_of(project.get("dynamic")):
        _read_dynamic(table_of(table_of(tool, "setuptools"), "dynamic").get("dependencies"), path, requests)
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
    for name, given in table_of(poetry, "dependencies").items():
        place = _place_of(given)
        if place.get("optional") is True and name not in wanted_names:
            continue
        wanted = place.get("version") if place else given
        if read_place(name, place, path, requests):
            continue
        if not isinstance(wanted, str):
            requests.leave(where, f"{name} = {given}", "no version that a recipe can say")
        elif name == "python":
            requests.pin("python", bounds(wanted), where)
        else:
            read_requirement(f"{name}{_extras(place)}{bounds(wanted)}", where, requests)
    _leave_settings(tool, path, requests)
    read_pixi(table_of(tool, "pixi"), path, requests)


def _group(groups: Mapping[str, Any], name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the requirements of a group and of those that it includes (PEP 735)."""
    for item in groups.get(name, ()) if name not in above else ():
        if isinstance(item, str):
            yield item
        else:
            yield from _group(groups, str(item.get("include-group")), (*above, name))


def read_pixi(tables: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Read what a pixi.toml or pyproject.toml's table of pixi requires on Linux, of conda's channels and of the Python index."""
    for key in ("feature", "environments", "pypi-options", ACTIVATION):
        if named := tables.get(key):
            texts = f"{key}: {', '.join(named)}" if isinstance(named, dict) else key
            requests.leave(str(path), texts, "only the default environment of pixi is read")
    targets = table_of(tables, "target")
    for table in (tables, *(table_of(targets, name) for name in ("linux", "linux-64", "unix"))):
        for name, given in table_of(table, "dependencies").items():
            wanted = _place_of(given).get("version", "") if isinstance(given, dict) else given
            read_spec(f"{name} {_spec(str(wanted))}".strip(), str(path), requests)
        for name, given in table_of(table, "pypi-dependencies").items():
            _read_entry(name, given, path, requests)
    requests.say_together()


def read_pixi_file(path: Path, requests: Requests) -> None:
    """Read a pixi.toml."""
    read_pixi(load_toml(path), path, requests)


def _spec(text: str) -> str:
    """Return a version of pixi as conda's commands take it: `3.11.*` is `=3.11`, `*` is "", `>=6,<7` stays."""
    return f"={text.removesuffix('.*')}" if re.match(r"\d", text) else text.removeprefix("*")


def read_pipfile(path: Path, requests: Requests) -> None:
    """Read the packages of a Pipfile."""
    tables = load_toml(path)
    if isinstance(python := tables.get("requires", {}).get("python_version"), str):
        requests.pin("python", f"=={python}.*", str(path))
    if others := sorted(tables.keys() - {"requires", "packages", "scripts", "pipenv"}):
        requests.leave(
            str(path), f"groups: {', '.join(others)}", "a lock that has them can be read with them"
        )
    for name, given in tables.get("packages", {}).items():
        _read_entry(name, given, path, requests)


def _read_entry(name: str, given: object, path: Path, requests: Requests) -> None:
    """Read a package of pixi or Pipenv: a version of pip's, `*` for any, or a table that says from where it is taken."""
    place = _place_of(given)
    if not read_place(name, place, path, requests):
        wanted = place.get("version", "*") if place else given
        read_requirement(f"{name}{_extras(place)}{'' if wanted == '*' else wanted}", str(path), requests)


def _extras(place: Mapping[str, Any]) -> str:
    """Return the extras that a table asks for, as pip writes them."""
    names = texts_of(place.get("extras"))
    return f"[{','.join(names)}]" if names else ""


def _place_of(given: object) -> Mapping[str, Any]:
    """Return where uv or Poetry takes a requirement from: of several places, the first that is for Linux."""
    rows = given if isinstance(given, list) else [given]
    fitting = (
        row for row in rows if isinstance(row, dict) and not {"extra", "group"} & row.keys() and _fits(row.get("marker"))
    )  # fmt: skip
    return next(fitting, {})


def _fits(marker: object) -> bool:
    try:
        return marker is None or Marker(str(marker)).evaluate(_MARKERS)
    except InvalidMarker:
        return False


def read_place(name: str, place: Mapping[str, Any], path: Path, requests: Requests) -> bool:
    """Request what lies at a place; False where there is none but an index."""
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
    else:
        return False
    return True


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


def _read_dynamic(given: object, path: Path, requests: Requests) -> None:
    """Read the files from which setuptools takes the dependencies. Those of a setup.py are read with it."""
    files = given.get("file", []) if isinstance(given, dict) else []
    for name in [files] if isinstance(files, str) else texts_of(files):
        read_arguments(("--requirement", name), str(path), requests, locate=path.parent.joinpath)
    if not files and not any((path.parent / name).is_file() for name in ("setup.py", "setup.cfg")):
        requests.leave(str(path), 'dynamic = ["dependencies"]', "its build computes them, and nothing runs")


def _leave_settings(tool: Mapping[str, Any], path: Path, requests: Requests) -> None:
    """Report the indexes and bounds that uv, Poetry and PDM have for all packages, and the groups that nothing reads."""
    uv, poetry, pdm, hatch = (table_of(tool, name) for name in ("uv", "poetry", "pdm", "hatch"))
    groups = {
        "groups of Poetry": [*table_of(poetry, "group"), *(poetry.keys() & {"dev-dependencies"})],
        "groups of PDM": list(table_of(pdm, "dev-dependencies")),
        "environments of Hatch": list(table_of(hatch, "envs")),
    }
    for key, names in groups.items():
        if names:
            requests.leave(str(path), f"{key}: {', '.join(names)}", "who develops the project needs them")
    for index in (*tables_of(uv, "index"), *tables_of(poetry, "source"), *tables_of(pdm, "source")):
        if not (index.get("explicit") or index.get("priority") == "explicit"):
            words = ("--extra-index-url", str(index.get("url")))
            read_arguments(words, str(path), requests, locate=path.parent.joinpath)
    for key in ("index-url", "extra-index-url", "find-links"):
        given = uv.get(key, [])
        for url in [given] if isinstance(given, str) else texts_of(given):
            read_arguments((f"--{key}", url), str(path), requests, locate=path.parent.joinpath)
    for key in ("override-dependencies", "constraint-dependencies"):
        if texts := texts_of(uv.get(key)):
            hint = "add the bounds that matter to `packages`"
            requests.leave(str(path), f"{key}: {', '.join(texts)}", "the lock fixes every version", hint=hint)
