"""Find libraries that programs and modules of the environment need and nothing in the image brings.

A missing library is an error where an import surely fails: the module is an extension of the recipe, a top-level module, or one
that `import PACKAGE` reaches by its plain import lines. Elsewhere it is a warning: plugins and optional parts may never be loaded.
"""

import ast
import contextlib
import functools
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.core.places import Mistakes, load
from envbuilder.lock.base_image.packages import DPKG
from envbuilder.verify.audit.audited_image import AuditedImage, Code, Elf, same_in
from envbuilder.verify.audit.libraries import LIBRARY, system_folders

# The driver's own, which `--nv` and Docker's runtime bring from the node.
_DRIVER: Final = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w-]+|(GLX|EGL|GLESv\w+|vdpau)_nvidia)\.so[\w.]*"
)
# Parts of NVIDIA's libraries that these open only on a machine with that fabric.
_OPENED_BY_OWNER: Final = re.compile(r".*/site-packages/nvidia/(nvshmem|cufile)/.*")
_LISTED: Final = 6  # libraries that one finding names; its hint names all their packages
_OS: Final = re.compile(r"(usr/(?!local/)|lib|s?bin/)")
_JUDGED: Final = re.compile(r"(opt/(env|envbuilder|python)/|usr/(?!local/)|lib|s?bin/)")
_SITE: Final = re.compile(r"(opt/env/lib/python(\d\.\d+)/site-packages)/(.*)")
_RECIPE: Final = re.compile(r"opt/envbuilder/extensions/[^/]+/([^/]+)\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loader:
    """Which libraries the loader finds in an image, by the name in DT_NEEDED."""

    image: AuditedImage
    system: frozenset[str]  # in the folders of its cache and of LD_LIBRARY_PATH
    # Outside the system's folders. A package loads its own and its dependencies' libraries first, as torch does, so any will do.
    environment: Mapping[str, Elf]
    by_path: Mapping[str, Elf]

    def taken(self, user: Elf, name: str) -> Elf | None:
        """Return the library of the environment that is loaded, if it is not one of the system."""
        for folder in user.runpaths:
            plain = re.sub(r"\$ORIGIN|\$\{ORIGIN\}", f"/{posixpath.dirname(user.path)}", folder)
            if plain.startswith("/") and (elf := self.by_path.get(self.image.real(f"{plain}/{name}") or "")):
                return elf
        return None if name in self.system else self.environment.get(name)

    def missing(self, elf: Elf) -> tuple[str, ...]:
        return tuple(
            name
            for name in elf.needed
            if not (name in self.system or _DRIVER.fullmatch(name) or self.taken(elf, name))
            and self.image.real(name) is None  # a path
        )

    def missing_below(self, elf: Elf) -> dict[str, tuple[str, ...]]:
        """Return path → missing libraries of a module and of every library that is loaded with it."""
        todo, seen, found = [elf], {elf.path}, {}
        while todo:
            one = todo.pop()
            if names := self.missing(one):
                found[one.path] = names
            for taken in (self.taken(one, name) for name in one.needed):
                if taken and taken.path not in seen:
                    seen.add(taken.path)
                    todo.append(taken)
        return found


def is_of_environment(path: str) -> bool:
    """Return whether a file is none of the distribution's packages, which depend on the packages of their libraries."""
    return not _OS.match(path)


def check_needed(image: AuditedImage, machine: int | None) -> Iterator[Finding]:
    """Find what the loader will not. `machine` is the ELF number of the image's processor: files for another are no part of it."""
    elves = [elf for elf in image.elves if machine in (None, elf.machine)]
    loader = _make_loader(image, elves)
    missing = {
        elf.path: names
        for elf in elves
        if _JUDGED.match(elf.path)
        and not _OPENED_BY_OWNER.fullmatch(elf.path)
        and (names := loader.missing(elf))
    }
    told: set[str] = set()
    for owner, files in sorted(_failing_imports(loader).items()) if missing else ():
        told |= files.keys()
        yield _finding(image, owner, files, Severity.ERROR)
    whole = {_family(elf.path) for elf in elves if elf.path not in missing}
    rest: dict[str, dict[str, tuple[str, ...]]] = {}
    for path, names in missing.items():
        if path not in told and _family(path) not in whole:
            rest.setdefault(_owner(path), {})[path] = names
    for owner, files in sorted(rest.items()):
        yield _finding(image, owner, files, Severity.WARNING)
    preloaded = re.split(r"[ :]+", dict(image.outside.environment).get("LD_PRELOAD", ""))
    for name in filter(None, preloaded):
        if not (name in loader.system or _DRIVER.fullmatch(name) or image.real(name)):
            yield Finding(
                code=Code.NEEDED, severity=Severity.WARNING, where="the environment's LD_PRELOAD",
                message=f"`{name}` is not in the image, so each program complains and goes on without it",
                hint=_repair(image, [posixpath.basename(name)]),
            )  # fmt: skip


def _finding(
    image: AuditedImage, owner: str, files: Mapping[str, tuple[str, ...]], severity: Severity
) -> Finding:
    names = sorted({name for missing in files.values() for name in missing})
    more = f" and {len(names) - _LISTED} more libraries" if len(names) > _LISTED else ""
    listed = ", ".join(f"`{name}`" for name in names[:_LISTED]) + more
    repair = _repair(image, names)
    is_error = severity is Severity.ERROR
    lead = f"`import {owner}` fails" if is_error else f"a part of `{owner}` cannot be loaded"
    return Finding(
        code=Code.NEEDED, severity=severity, where=f"/{next(iter(files))}",
        message=f"{lead}: nothing in the image has {listed}{same_in(list(files))}",
        hint=repair if is_error else f"if you use that part: {repair}",
    )  # fmt: skip


def _repair(image: AuditedImage, names: Sequence[str]) -> str:
    """Name the packages that have the libraries, as the image's distribution calls them."""
    is_newer = _is_t64(image)
    tables, packages, unknown = _load_packages(), [], []
    for name in names:
        keys = (name, name.partition(".so")[0])
        same = next((tables["same"][key] for key in keys if key in tables["same"]), "")
        t64 = tables["t64"].get(name, "")
        if package := same or (t64 + "t64" * is_newer if t64 else ""):
            packages.append(package)
        else:
            unknown.append(name)
    debian = f"`apt: [{', '.join(dict.fromkeys(packages))}]`"
    parts = []
    if packages:
        parts.append(
            f"add {debian} to the recipe, then `envbuilder lock`"
            if DPKG in image.paths
            else f"take a base that has them; Debian's packages are {debian}"
        )
    if others := [name for name in unknown if LIBRARY.fullmatch(name)]:
        listed = ", ".join(f"`{name}`" for name in others)
        parts.append(f"{listed}: of another CUDA than the recipe's; take the package's build for that one")
    if others := [name for name in unknown if not LIBRARY.fullmatch(name)]:
        parts.append(f"`apt-file search {others[0]}` names a package, if Debian has one")
    return "; ".join(parts)


@functools.cache
def _load_packages() -> Mapping[str, Mapping[str, str]]:
    mistakes = Mistakes()
    root = load(Path(__file__).with_name("packages.yaml"), mistakes)
    assert root is not None, mistakes.findings
    tables: Mapping[str, Mapping[str, str]] = root.value
    return tables


def _is_t64(image: AuditedImage) -> bool:
    """Return whether the names of packages are those since Debian 13 and Ubuntu 24.04."""
    path = image.real("etc/os-release")
    text = image.read(path).decode("utf-8", "replace") if path else ""
    facts = dict(re.findall(r'^(ID|VERSION_ID)="?([\w.]+)"?$', text, re.MULTILINE))
    number = float(match[0]) if (match := re.match(r"\d+(\.\d+)?", facts.get("VERSION_ID", ""))) else 0
    return number >= {"debian": 13, "ubuntu": 24.04}.get(facts.get("ID", ""), 1000)


def _make_loader(image: AuditedImage, elves: Sequence[Elf]) -> _Loader:
    named = dict(image.outside.environment).get("LD_LIBRARY_PATH", "").split(":")
    folders = {image.real(folder) for folder in (*system_folders(image), *filter(None, named))}
    system = {
        posixpath.basename(path)
        for path in image.paths
        if posixpath.dirname(path) in folders and image.real(path) is not None
    }
    environment: dict[str, Elf] = {}
    for elf in elves:
        if is_of_environment(elf.path):
            for name in (elf.name, posixpath.basename(elf.path)):
                environment.setdefault(name, elf)
    by_path = {elf.path: elf for elf in elves}
    return _Loader(image=image, system=frozenset(system), environment=environment, by_path=by_path)


def _family(path: str) -> str:
    """Return what variants of one library have in common: a package brings them for several versions and loads the fitting one."""
    folder, name = posixpath.split(path)
    return f"{folder}/{re.sub(r'[0-9]+', '#', name)}"


def _owner(path: str) -> str:
    """Return the Python package or the extension of a file, otherwise its folder."""
    if match := _SITE.fullmatch(path) or _RECIPE.fullmatch(path):
        return match[match.lastindex or 0].partition("/")[0].partition(".")[0]
    return f"/{posixpath.dirname(path)}"


# ---- what an import reaches


def _failing_imports(loader: _Loader) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return owner → file → missing libraries of the modules whose import fails for certain."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    modules: dict[str, str] = {}  # path without its ending → path
    for path in loader.by_path:
        if match := _SITE.fullmatch(path):
            tag = f"cpython-{match[2].replace('.', '')}"
            name, _, ending = posixpath.basename(path).partition(".")
            if ending == "abi3.so" or (ending.startswith(tag) and ending.endswith(".so")):
                modules[f"{posixpath.dirname(path)}/{name}"] = path
    reached = functools.cache(functools.partial(_reached, loader.image, modules))
    for base, path in modules.items():
        match = _SITE.fullmatch(base)
        assert match is not None
        below = loader.missing_below(loader.by_path[path])
        parts = match[3].split("/")
        if below and (
            len(parts) == 1
            or parts == [parts[0], parts[0]]  # as cv2/cv2.abi3.so: its package looks for it by a path
            or path in reached(match[1], parts[0])
        ):
            found.setdefault(parts[0], {}).update(below)
    for path, elf in loader.by_path.items():
        if (recipe := _RECIPE.fullmatch(path)) and (below := loader.missing_below(elf)):
            found.setdefault(recipe[1], {}).update(below)
    return found


def _reached(image: AuditedImage, modules: Mapping[str, str], site: str, top: str) -> set[str]:
    """Return the files of a package that `import` of it loads by import lines in no condition, function or `try` that goes on without."""
    todo, seen, files = [top], set[str](), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name.partition(".")[0] != top:
            continue
        seen.add(name)
        base = f"{site}/{name.replace('.', '/')}"
        ways = (f"{base}/__init__.py", modules.get(base, ""), f"{base}.py")
        path = next((way for way in ways if way in image.paths), "")
        files.add(path)
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        if path.endswith(".py"):
            for line in _plain_imports(image.read(path).decode("utf-8", "replace")):
                todo += _names(line, package)
    return files


def _plain_imports(text: str) -> Iterator[ast.Import | ast.ImportFrom]:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts
        todo: list[ast.stmt] = list(ast.parse(text).body)
        while todo:
            line = todo.pop()
            if isinstance(line, ast.Import | ast.ImportFrom):
                yield line
            elif isinstance(line, ast.Try) and all(
                isinstance(one.body[-1], ast.Raise) for one in line.handlers
            ):
                todo += line.body  # it says why in its own words


def _names(line: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules that an import line loads, and the packages around them."""
    if isinstance(line, ast.Import):
        whole = [one.name for one in line.names]
    else:
        parts = package.split(".")
        above = ".".join(parts[: len(parts) + 1 - line.level]) if line.level else ""
        module = ".".join(filter(None, (above, line.module)))
        whole = [module, *(f"{module}.{one.name}" for one in line.names)]
    for name in whole:
        parts = name.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
