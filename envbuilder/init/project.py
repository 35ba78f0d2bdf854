"""Read a folder of a project: the files that name what it needs, and its extensions of torch.

A setup.py or pyproject.toml that builds an extension becomes `path`, a call of torch's `load()` becomes `capture` with
the line that reaches it. Everything is read, and nothing runs.
"""

import ast
import configparser
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.python_code import CodeCall, PythonCode, assigned, project_files, read_code
from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.places import Mistakes, load_text
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner
from envbuilder.init.build_tools import TORCH, BuildTool, tool_of_pyproject, tool_of_setup
from envbuilder.init.locks import read_lock
from envbuilder.init.pip import (
    module_name,
    read_extras,
    read_requirement,
    request_build,
    request_imported,
)
from envbuilder.init.requests import Request, Requests, read_text
from envbuilder.init.toml_files import ACTIVATION
from envbuilder.init.unread import ENVIRONMENTS, OURS, name_unread
from envbuilder.recipe.extension import GIT_URL, Extension
from envbuilder.recipe.other_locks import find_locks

_BINDING: Final = re.compile(r"PYBIND11_MODULE\s*\(\s*(\w+)|TORCH_LIBRARY")
_PKG_RESOURCES: Final = "setuptools<82"  # which dropped it: https://setuptools.pypa.io/en/latest/history.html
_LONGEST_WAY: Final = 4  # calls between an import and `load()`


def read_extensions(top: Path, requests: Requests) -> None:
    """Request every extension of torch below a folder."""
    codes = [code for path in project_files(top) if path.suffix == ".py" and (code := read_code(path))]
    _request_pkg_resources(codes, requests)
    built = _builds(top, codes)
    for folder, tool in built.items():
        request_build(folder, tool, requests)
    loads = [(code, call) for code in codes for call in code.loads if code.path.name != "setup.py"]
    inside: dict[Path, list[str]] = {}  # calls in a project that is built as a whole
    for code, call in loads:
        where = f"{code.path}:{call.node.lineno}"
        if project := next((folder for folder in built if code.path.is_relative_to(folder)), None):
            inside.setdefault(project, []).append(where)
            continue
        # A function with arguments makes one extension for each caller.
        ways = dict.fromkeys(_reach(code, call, codes))
        for caller, way in ways:
            _request_capture(caller, way, top, codes, requests)
        if not ways:
            why = "no line without arguments of its own reaches this call"
            line = f"import {code.path.stem}; {code.path.stem}.{call.owner}(…)"
            hint = f"`capture` takes lines of Python, such as `{line}`"
            requests.leave(where, f"{call.short}()", why, hint=hint)
    for project, places in inside.items():
        message = f"`load()` is not captured: the project `{project.resolve().name}` is built as a whole"
        requests.note(", ".join(places), message)
    _leave_others(top, codes, set(built), requests)
    # A `load()` may name sources of any folder beside or below its own.
    near = {folder for code, _ in loads for folder in (code.path.parent, code.path.parent.parent)}
    _check_orphans(top, {*built, *near}, requests)
    check_submodules(dict.fromkeys((top, *built)), requests)


def _request_pkg_resources(codes: list[PythonCode], requests: Requests) -> None:
    """Request a setuptools that has `pkg_resources`, where a file imports it and no file names setuptools."""
    old = next((code for code in codes if "pkg_resources" in code.imported), None)
    if old and "setuptools" not in requests.packages:
        requests.package("setuptools", _PKG_RESOURCES, str(old.path))
        message = f"`{_PKG_RESOURCES}` is added, the last with `pkg_resources`, which this file imports"
        requests.note(str(old.path), message)


def has_loads(path: Path) -> bool:
    """Return whether a Python file, or one below a folder, calls torch's `load()`."""
    files = project_files(path) if path.is_dir() else iter((path,))
    return any((code := read_code(file)) and code.loads for file in files if file.suffix == ".py")


def _builds(top: Path, codes: list[PythonCode]) -> dict[Path, BuildTool]:
    """Return the folders that build an extension, with the tool. Below the top, only extensions of torch count."""
    tools = {code.path.parent: tool_of_setup(code) for code in codes if code.path.name == "setup.py"}
    builds = {folder: tool for folder, tool in tools.items() if tool and (folder == top or tool is TORCH)}
    for path in project_files(top):
        if path.name == "pyproject.toml" and (tool := tool_of_pyproject(path, is_top=path.parent == top)):
            builds.setdefault(path.parent, tool)
    return dict(sorted(builds.items()))


def _leave_others(top: Path, codes: list[PythonCode], built: set[Path], requests: Requests) -> None:
    """Report what else builds compiled code below the top: without torch, it may be another project's."""
    known = {extension.path for extension in requests.extensions.values()}
    for code in codes:
        folder, tool = code.path.parent, tool_of_setup(code) if code.path.name == "setup.py" else None
        is_built = (
            any(folder.is_relative_to(other) for other in built) or folder.resolve().as_posix() in known
        )
        if tool and not is_built:
            name = module_name(code.text(code.keyword(code.setup(), "name")) or folder.name)
            why = f"it builds by {tool.label} below the project's top, so it may be another project's"
            hint = f"extensions: [{{name: {name}, path: {folder.relative_to(top).as_posix()}}}]"
            requests.leave(str(code.path), code.path.name, why, hint=hint)


def _reach(
    code: PythonCode, call: CodeCall, codes: list[PythonCode], depth: int = 0
) -> Iterator[tuple[PythonCode, str]]:
    """Yield the ways to run a call: the file to import, and what to call there; "" if the import is enough."""
    if call.inside != "?":
        yield code, call.inside
    elif call.owner and depth < _LONGEST_WAY:
        for other in sorted(codes, key=lambda other: (other is not code, other.path)):
            for above in other.calls:
                if above.owner != call.owner and _runs(above, call.owner, code, other):
                    yield from _reach(other, above, codes, depth + 1)


def _runs(call: CodeCall, name: str, code: PythonCode, other: PythonCode) -> bool:
    """Return whether a call in `other` runs the function of that name in `code`."""
    if other is code:
        return call.full in (name, f"self.{name}", f"cls.{name}")
    stem = code.path.parent.name if code.path.stem == "__init__" else code.path.stem
    return call.full == f"{stem}.{name}" or call.full.endswith(f".{stem}.{name}")


def _request_capture(
    code: PythonCode, way: str, top: Path, codes: list[PythonCode], requests: Requests
) -> None:
    """Request the line that imports a file and runs its way to `load()`."""
    importable = _importable(code.path, top, codes)
    if importable is None:
        why = "its path has a part that is no Python name"
        requests.leave(str(code.path), code.path.name, why, hint="`capture` takes lines of Python")
        return
    root, module = importable
    line = f"from {module} import {re.split(r'[.(]', way)[0]}; {way}" if way else f"import {module}"
    name = module_name(module.partition(".")[0])
    requests.extension(Extension(name=name, path=root.as_posix(), capture=(line,)), str(code.path))
    request_imported(code, requests)


def _importable(path: Path, top: Path, codes: list[PythonCode]) -> tuple[Path, str] | None:
    """Return the folder from which a file is imported, and its name there.

    It is the outermost folder by which another file imports it. Otherwise the one above its package, or a program's own.
    """
    imported = {name for code in codes for name in code.imported}
    ways: list[tuple[Path, str]] = []
    for root in (top, *(top / part for part in reversed(path.relative_to(top).parents) if part != Path())):
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and all(part.isidentifier() for part in parts):
            ways.append((root, ".".join(parts)))
    for root, module in ways:
        # Or a package above it, which may import it itself.
        if any(f"{name}.".startswith(f"{module}.") or module.startswith(f"{name}.") for name in imported):
            return root, module
    package = next((root for root, _ in reversed(ways) if not (root / "__init__.py").exists()), None)
    if (path.parent / "__init__.py").exists():
        return next((way for way in ways if way[0] == package), None)
    return next(reversed(ways), None)


def check_submodules(folders: Iterable[Path], requests: Requests) -> None:
    """Report the submodules of these folders that are not checked out: extensions may need them, or be in them."""
    taken = {(known.git, known.commit) for known in requests.extensions.values()}
    built = {known.path: name for name, known in requests.extensions.items() if not known.is_remote}
    for folder in folders:
        file = folder / ".gitmodules"
        absent = [
            f"`{path}`"
            for path, _ in _absent_submodules(file)
            if requests.submodules.get((folder / path).resolve()) not in taken
        ]
        if absent and requests.holds(file):
            name = built.get(folder.resolve().as_posix())
            lacks = f"the build of `{name}` lacks it" if name else "what it has is not read"
            hint = f"git -C {pasted(folder)} submodule update --init --recursive"
            message = f"not checked out, so {lacks}: submodule {', '.join(absent)}"
            requests.note(str(file), message, hint=hint)


def _absent_submodules(file: Path) -> Iterator[tuple[str, str]]:
    """Yield path and address of each submodule whose folder is empty."""
    parser = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error):
        parser.read_string(read_text(file) if file.is_file() and not file.is_symlink() else "")
    for section in parser.sections():
        path = parser.get(section, "path", fallback="")
        if path and not any((file.parent / path).glob("*")):
            yield path, parser.get(section, "url", fallback="")


def _check_orphans(top: Path, covered: set[Path], requests: Requests) -> None:
    """Request the folders of CUDA sources that no Python file builds, if they bind to Python."""
    folders: dict[Path, list[Path]] = {}
    for path in project_files(top):
        if path.suffix in (".cpp", ".cu"):
            folders.setdefault(path.parent, []).append(path)
    within = [folder for folder in folders if any(folder.is_relative_to(other) for other in covered)]
    reached = {path.resolve() for folder in within for path in folders[folder]}  # also by links
    for folder, paths in folders.items():
        if all(path.suffix != ".cu" or path.resolve() in reached for path in paths):
            continue
        texts = (load_text(path, Mistakes()) or "" for path in sorted(paths))  # some are not UTF-8
        binding = next(filter(None, map(_BINDING.search, texts)), None)
        above = (place for place in (folder, *folder.parents) if place.is_relative_to(top))
        if cmake := next((place for place in above if (place / "CMakeLists.txt").is_file()), None):
            why = f"`{cmake.name}/CMakeLists.txt` builds these sources, and nothing that installs Python calls it"
            requests.leave(
                str(folder),
                f"{folder.name}/*.cu",
                why,
                hint="build them by `path` with a pyproject.toml of scikit-build-core",
            )
            continue
        if binding is None:
            why = "no setup.py and no `load()` names these sources, and none binds to Python"
            requests.leave(str(folder), f"{folder.name}/*.cu", why)
            continue
        has_name = binding[1] not in (None, "TORCH_EXTENSION_NAME")
        extension = Extension(
            name=module_name(binding[1] if has_name else folder.name),
            sources=tuple(path.as_posix() for path in sorted(paths)),
            include=(folder.as_posix(),) if folder != top else (),
        )
        requests.extension(extension, str(folder))
        message = f"`{extension.name}` has these sources: no setup.py and no `load()` names them"
        requests.note(str(folder), message, hint="check its name and its flags")


def read_folder(top: Path, requests: Requests, read: Callable[[Path, Requests], None]) -> None:
    """Read the files at the top of a project that name what it needs, the least exact first, and its extensions."""

    def named(pattern: str) -> list[Path]:
        return [path for path in files if re.fullmatch(pattern, path.name)]

    def is_there(path: Path) -> bool:
        return path.is_file() and requests.holds(path)

    files = sorted(filter(is_there, top.iterdir()))
    images = named(r"(?i:.*dockerfile.*)|.*\.def")
    nested = [top / "docker/Dockerfile", top / ".devcontainer/Dockerfile"]
    nested = [path for path in nested if is_there(path) and not OURS.match(read_text(path))]
    environments = [
        path
        for path in named(ENVIRONMENTS)
        if re.search(r"(?m)^dependencies\s*:", load_text(path, Mistakes()) or "")
    ]
    environments.sort(key=lambda path: len(path.name))
    below = [top / "requirements" / name for name in ("requirements.txt", "base.txt")]
    lists = named(r"requirements?\.(txt|in)")[-1:] or [path for path in below if is_there(path)][:1]
    builds = [
        top / name
        for name in (".python-version", "pixi.toml", "Pipfile", "pyproject.toml", "setup.cfg", "setup.py")
        if top / name in files
    ]
    scripts = [] if images or nested else named(r"(?i:(install|setup|env(ironment)?)\w*([-_]\w+)*\.sh)")
    chosen = [*(images or nested)[:1], *scripts[:1], *environments[:1], *builds, *lists]
    # A script's or a group's lock has its name too.
    locks = find_locks([path for path in files if path.name.count(".") == 1])[:1]
    made_of = [path for path in chosen for _, names in locks if re.fullmatch(names, path.name)]
    for path in chosen:
        if path not in made_of:
            read(path, requests)
    for path, _ in locks:
        _read_lock(path, made_of, requests, read)
    read_extensions(top, requests)
    name_unread(top, {*chosen, *dict(locks)}, requests)
    if not (chosen or locks or requests.extensions or requests.left):
        message = "no file here says what the project needs, and it has no extension"
        requests.note(str(top), message, hint="`--from FILE` reads one of another name")


def _read_lock(
    lock: Path, made_of: list[Path], requests: Requests, read: Callable[[Path, Requests], None]
) -> None:
    """Read a lock, and of the files that it was made of what it lacks: variables, and what was added to them since."""
    asked = Requests(top=requests.top, submodules=requests.submodules, wanted=requests.wanted)
    for path in made_of:
        read(path, asked)
    listed = dict(requests.packages)
    names = read_lock(lock, requests)
    # A lock does not say what runs beside its packages.
    requests.left += [left for left in asked.left if f"{ACTIVATION}: " in left.message]
    if moved := [f"`{wanted.text}` of {wanted.where}" for wanted, _ in _moved(listed, requests)]:
        requests.note(str(lock), f"this lock's versions win over {', '.join(moved)}")
    known = {canonicalize_name(name) for name in (*requests.offered, *requests.wanted)}
    if others := sorted(name for name in asked.offered if canonicalize_name(name) not in known):
        why = "no package of the lock is for one of them alone"
        requests.leave_all(str(lock), f"groups and extras: {', '.join(others)}", why)
    requests.env, requests.offered = asked.env | requests.env, requests.offered | asked.offered
    if made_of:
        files = ", ".join(f"`{path.name}`" for path in made_of)
        requests.note(str(lock), f"this lock's versions win over the ranges of {files}")
    for wanted, taken in _moved(asked.packages, requests):
        message = f"`{taken.text}` of `{lock.name}` is taken: the lock is older than `{wanted.text}`"
        requests.note(wanted.where, message, hint="lock again with the tool that wrote it")
    for name, wanted in asked.packages.items():
        if name.partition(";")[0] not in names and name not in requests.packages:
            requests.packages[name] = wanted
            message = (
                f"`{wanted.text}` is not in `{lock.name}`, which may be older: `lock` chooses its version"
            )
            requests.note(wanted.where, message)
    for name, extension in asked.extensions.items():
        if name not in requests.extensions and canonicalize_name(name) not in names:
            requests.extension(extension, str(lock))
    requests.pins = {
        key: asked.pins[key] for key in asked.pins if key in ("pytorch", "python")
    } | requests.pins


def _moved(listed: Mapping[str, Request], requests: Requests) -> Iterator[tuple[Request, Request]]:
    """Yield each requirement that the version now requested does not fit, with that request."""
    for name, wanted in listed.items():
        taken = requests.packages.get(name)
        exact = (
            re.search(r"^[^;]*==([^*,;]+?)(\.\*)?$", taken.text) if taken and taken is not wanted else None
        )
        if taken and exact and not Requirement(wanted.text).specifier.contains(exact[1], prereleases=True):
            yield wanted, taken


def read_python_version(path: Path, requests: Requests) -> None:
    """Read the `.python-version` of pyenv and uv: a version, or the name of an interpreter with it."""
    text = read_text(path).strip()
    if version := re.search(r"^(?:c?python-?)?(3\.\d+)(?:\.\d+)?\s*$", text, re.MULTILINE):
        requests.pin("python", f"=={version[1]}.*", str(path))
    else:
        requests.leave(str(path), text, "no version of CPython")


def git_of(folder: Path, runner: Runner) -> Callable[..., str]:
    """Return what asks git in a folder.

    A stranger's `.git/config` may name programs to start and servers to fetch from: neither happens.
    """
    settings = ("-c", "log.showSignature=false", "-c", "core.fsmonitor=false")

    def git(*words: str, why: str) -> str:
        argv = ("git", "-C", str(folder), *settings, *words)
        return runner.run(Command(argv=argv, why=why, env=(("GIT_ALLOW_PROTOCOL", "none"),)))

    return git


def read_git(path: Path, runner: Runner, requests: Requests) -> None:
    """Ask git when a project last changed, and for the commits of the submodules that are not checked out."""
    folder = (path if path.is_dir() else path.parent).resolve()
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return
    git = git_of(folder, runner)
    with contextlib.suppress(CommandError, ToolError, ValueError):
        day = git("log", "-1", "--format=%cs", "--", ".", why="ask when the project last changed")
        requests.day = max(filter(None, (requests.day, date.fromisoformat(day.strip()))))
    for name, url in _absent_submodules(folder / ".gitmodules"):
        with contextlib.suppress(CommandError, ToolError):
            words = git("ls-files", "--stage", "--", name, why="ask for the commit of a submodule").split()
            if words[:1] == ["160000"] and re.fullmatch(GIT_URL.pattern, url):
                requests.submodules[folder / name] = (url, words[1])


def read_setup(path: Path, requests: Requests) -> None:
    """Read what a setup.py requires, where it stands as plain text."""
    code = read_code(path)
    setup = code.setup() if code else None
    if code is None or setup is None:
        requests.leave(str(path), path.name, "no call of `setup` that can be read")
        return
    where = f"{path}:{setup.node.lineno}"
    if python := code.text(code.keyword(setup, "python_requires")):
        requests.pin("python", python, where)
    needed = code.keyword(setup, "install_requires")
    if needed and not code.texts(needed) and not isinstance(needed, ast.List):
        why = "it is computed when setup.py runs, and nothing runs"
        requests.leave(where, f"install_requires={ast.unparse(needed)}", why)
    for text in code.texts(needed):
        read_requirement(text, where, requests)
    extras = code.keyword(setup, "extras_require")
    extras = assigned(code.tree).get(extras.id) if isinstance(extras, ast.Name) else extras
    pairs = zip(extras.keys, extras.values, strict=True) if isinstance(extras, ast.Dict) else ()
    read_extras({code.text(key): code.texts(value) for key, value in pairs}, where, requests)
    if tool := tool_of_setup(code):
        request_build(path.parent, tool, requests)


def read_setup_cfg(path: Path, requests: Requests) -> None:
    """Read what a setup.cfg requires."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(read_text(path))
    except configparser.Error as error:
        raise UsageError(f"`{path}` cannot be read: {error}") from error
    if python := parser.get("options", "python_requires", fallback=""):
        requests.pin("python", python, str(path))
    for line in parser.get("options", "install_requires", fallback="").splitlines():
        if text := line.partition(" #")[0].strip():
            read_requirement(text, str(path), requests)
    extras = parser["options.extras_require"] if parser.has_section("options.extras_require") else {}
    read_extras({name: text.split("\n") for name, text in extras.items()}, str(path), requests)
