"""Find libraries that modules and programs of the environment need and nothing in the image brings.

It is an error where an import fails for certain: of an extension of the recipe, a module beside the packages, or one that
`import PACKAGE` reaches by import lines in no condition. Elsewhere it is a warning: plugins and optional parts may never be loaded.
"""

import ast
import contextlib
import functools
import posixpath
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.core.places import Mistakes, load
from envbuilder.sources.installed import DPKG
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    Elf,
    is_of_conda,
    same_in,
    seen_by_conda,
    some,
)
from envbuilder.verify.audit.libraries import resolved, system_folders

Missing = dict[str, tuple[str, ...]]  # path → libraries or symbols
Lacks = Callable[[Elf], tuple[str, ...]]  # what the loader misses for one file
_LISTED: Final = 6  # libraries that one finding names; its hint names all their packages
# The driver's own, which `--nv` and Docker's runtime bring from the node.
_DRIVER: Final = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w-]+|(GLX|EGL|GLESv\w+|vdpau)_nvidia)\.so[\w.]*"
)
_GNU: Final = "gomp"
_OPENMP: Final = re.compile(rf"lib({_GNU}|i?omp5?)(-\w+)?\.so[\d.]*")
_OS: Final = re.compile(r"(usr/(?!local/)|lib|s?bin/)")
# NVIDIA's libraries open these parts only on a machine with that fabric. Other folders are of an image that someone else made.
_JUDGED: Final = re.compile(
    rf"(?!.*/site-packages/nvidia/(nvshmem|cufile)/)(opt/(env|envbuilder|python)/|{_OS.pattern})"
)
_SITE: Final = re.compile(r"(opt/env/lib/python(\d\.\d+)/site-packages)/(.*)")
_RECIPE: Final = re.compile(r"opt/envbuilder/extensions/[^/]+/([^/]+)\.so")


def is_of_environment(path: str) -> bool:
    """Return whether a file is none of the distribution's packages, which depend on the packages of their libraries."""
    return not _OS.match(path)


def check_needed(image: AuditedImage, machine: int | None) -> Iterator[Finding]:
    """Find what the loader will not. `machine` is the ELF number of the image's processor: files for another are no part of it."""
    loader = Loader(image, machine)
    for owner, files, is_error in by_owner(loader, loader.missing):
        every = sorted({name for names in files.values() for name in names})
        listed = ", ".join(f"`{name}`" for name in every[:_LISTED])
        more = f" and {len(every) - _LISTED} more libraries" if len(every) > _LISTED else ""
        repair = _repair(image, every)
        hint = repair if is_error else f"if you use that part: {repair}"
        words = f"nothing in the image has {listed}{more}"
        yield of_owner(AuditCode.NEEDED, owner, files, words, hint, is_error=is_error)
    for name in re.findall(r"[^ :]+", dict(image.outside.environment).get("LD_PRELOAD", "")):
        if not (name in loader.system or _DRIVER.fullmatch(name) or image.real(name)):
            yield Finding(
                code=AuditCode.NEEDED, severity=Severity.WARNING, where="the environment's LD_PRELOAD",
                message=f"`{name}` is not in the image, so each program complains and goes on without it",
                hint=_repair(image, [posixpath.basename(name)]),
            )  # fmt: skip


def check_openmp(image: AuditedImage, machine: int | None) -> Iterator[Finding]:
    """Find OpenMP of LLVM or Intel beside another one, in what one Python of the environment may load.

    Several of GNU's are no fault: they go together, and many wheels bring one. conda's counts where a module takes it by a run path,
    also a module of conda whose Python sees the environment.
    """
    loader, users = Loader(image, machine), dict[str, list[str]]()
    is_seen = seen_by_conda(image)
    inside = [
        elf for elf in loader.elves.values()
        if is_of_environment(elf.path) and (not is_of_conda(elf.path) or (is_seen and "/site-packages/" in elf.path))
    ]  # fmt: skip
    for elf in inside:  # by its name alone, MKL opens Intel's
        if (match := _OPENMP.fullmatch(elf.name)) and match[1] != _GNU:
            users[elf.path] = []
    for elf in loader.below(*inside).values():
        for name in filter(_OPENMP.fullmatch, elf.needed):
            library = loader.taken(elf, name)
            path = library.path if library else image.real(loader.system.get(name, name))
            users.setdefault(path or name, []).append(elf.path)
    others = [path for path in users if f"/lib{_GNU}" not in path]
    if others and len(users) > 1:
        loaded = "; ".join(
            f"/{path} by {some(takers) or 'its name'}" for path, takers in sorted(users.items())
        )
        yield Finding(
            code=AuditCode.OPENMP, severity=Severity.WARNING, where=f"/{min(others)}",
            message=f"one process may load {len(users)} OpenMP libraries: {loaded}",
            hint="it may end with `OMP: Error #15`, hang or compute slowly: take builds with the OpenMP of torch",
        )  # fmt: skip


def of_owner(
    code: AuditCode, owner: str, files: Missing, words: str, hint: str, *, is_error: bool
) -> Finding:
    """Return the finding for what `by_owner` yields of an image; `words` say what is missing."""
    lead = f"`import {owner}` fails" if is_error else f"a part of `{owner}` cannot be loaded"
    return Finding(
        code=code, severity=Severity.ERROR if is_error else Severity.WARNING, where=f"/{next(iter(files))}",
        message=f"{lead}: {words}{same_in(list(files))}", hint=hint,
    )  # fmt: skip


def by_owner(loader: "Loader", lacks: Lacks) -> Iterator[tuple[str, Missing, bool]]:
    """Yield each package and extension with its files that lack something, and whether its import fails for certain."""
    missing = {
        path: names for path, elf in loader.elves.items() if _JUDGED.match(path) and (names := lacks(elf))
    }
    failing = _failing_imports(loader, lacks) if missing else {}
    reported = {path for files in failing.values() for path in files}
    whole = {_family(path) for path in loader.elves if path not in missing}
    rest: dict[str, Missing] = {}
    for path, names in missing.items():
        if path not in reported and _family(path) not in whole:
            rest.setdefault(owner_of(path), {})[path] = names
    yield from ((owner, failing[owner], True) for owner in sorted(failing))
    yield from ((owner, rest[owner], False) for owner in sorted(rest))


class Loader:
    """The libraries that the loader finds in an image. `machine` is as for `check_needed`."""

    def __init__(self, image: AuditedImage, machine: int | None) -> None:
        self.image = image
        elves = [elf for elf in image.elves if machine in (None, elf.machine)]
        self.elves = {elf.path: elf for elf in elves}
        named = dict(image.outside.environment).get("LD_LIBRARY_PATH", "").split(":")
        folders = {image.real(folder) for folder in (*system_folders(image), *filter(None, named))}
        paths = (path for path in image.paths if posixpath.dirname(path) in folders and image.real(path))
        self.system = {posixpath.basename(path): path for path in paths}
        # Name → library outside of those. Packages load their own and their dependencies' first, as torch does, so any will do.
        # Those of conda's packages serve these alone, and are not looked at where the environment has one of the name.
        others = [elf for elf in reversed(elves) if is_of_environment(elf.path)]
        others.sort(key=lambda elf: not is_of_conda(elf.path))
        self.for_conda = {name: elf for elf in others for name in (elf.name, posixpath.basename(elf.path))}
        self.environment = {name: elf for name, elf in self.for_conda.items() if not is_of_conda(elf.path)}

    def taken(self, user: Elf, name: str) -> Elf | None:
        """Return the library of the environment that is loaded, if it is not one of the system."""
        paths = (resolved(self.image, user, folder, name) for folder in user.runpaths)
        beside = next((elf for path in paths if path and (elf := self.elves.get(path))), None)
        known = self.for_conda if is_of_conda(user.path) else self.environment
        return beside or (None if name in self.system else known.get(name))

    def missing(self, elf: Elf) -> tuple[str, ...]:
        others = (name for name in elf.needed if name not in self.system and not _DRIVER.fullmatch(name))
        return tuple(name for name in others if not (self.taken(elf, name) or self.image.real(name)))

    def below(self, *elves: Elf) -> dict[str, Elf]:
        """Return files, and every library of the environment that is loaded with them."""
        todo = {elf.path: elf for elf in elves}
        for path in (queue := list(todo)):
            taken = (self.taken(todo[path], name) for name in todo[path].needed)
            new = {library.path: library for library in taken if library and library.path not in todo}
            todo |= new
            queue += new
        return todo


def _family(path: str) -> str:
    """Return what variants of a library for several versions have in common. Their package loads the one that fits."""
    folder, name = posixpath.split(path)
    return f"{folder}/{re.sub(r'[0-9]+', '#', name)}"


def owner_of(path: str) -> str:
    """Return the Python package or the extension of a file, otherwise its folder."""
    match = _SITE.fullmatch(path) or _RECIPE.fullmatch(path)
    return re.split(r"[/.]", match[match.lastindex or 0])[0] if match else f"/{posixpath.dirname(path)}"


def _repair(image: AuditedImage, names: Sequence[str]) -> str:
    """Name the packages that have the libraries, as the image's distribution calls them."""
    tables, installed = _load_packages(), image.read(DPKG) if DPKG in image.paths else b""
    t64 = "t64" if re.search(rb"^Package: \S+t64$", installed, re.MULTILINE) else ""
    packages: dict[str, None] = {}
    unknown: list[str] = []
    for name in names:
        if package := tables["same"].get(name) or tables["same"].get(name.partition(".so")[0]):
            packages[package] = None
        elif package := tables["t64"].get(name):
            packages[f"{package}{t64}"] = None
        else:
            unknown.append(name)
    listed = f"`apt: [{', '.join(packages)}]`"
    debian = f"add {listed} to the recipe, then `envbuilder lock`"
    other = f"take a base that has them; Debian's packages are {listed}"
    parts = [debian if installed else other] if packages else []
    if unknown:
        parts.append(
            f"for {', '.join(f'`{name}`' for name in unknown[:_LISTED])}, take another build of the package"
        )
    return "; ".join(parts)


@functools.cache
def _load_packages() -> Mapping[str, Mapping[str, str]]:
    root = load(Path(__file__).with_name("packages.yaml"), mistakes := Mistakes())
    assert root, mistakes.findings
    tables: Mapping[str, Mapping[str, str]] = root.value
    return tables


# ---- what an import reaches


def _failing_imports(loader: Loader, lacks: Lacks) -> dict[str, Missing]:
    """Return by owner what modules lack whose import fails for certain."""

    def lacking(elf: Elf) -> Missing:
        return {path: names for path, user in loader.below(elf).items() if (names := lacks(user))}

    modules: dict[str, Elf] = {}  # those that the environment's Python can import, by path without ending
    failing: dict[str, Missing] = {}
    for path, elf in loader.elves.items():
        folder, (name, _, ending) = posixpath.dirname(path), posixpath.basename(path).partition(".")
        if match := _SITE.fullmatch(path):
            if re.fullmatch(rf"(abi3|cpython-{match[2].replace('.', '')}\b.*)\.so", ending):
                modules[f"{folder}/{name}"] = elf
        elif _RECIPE.fullmatch(path) and (below := lacking(elf)):
            failing.setdefault(name, {}).update(below)
    reached = functools.cache(functools.partial(_reached, loader.image, modules))
    for base, elf in modules.items():
        if (match := _SITE.fullmatch(base)) and (below := lacking(elf)):
            top, _, rest = match[3].partition("/")
            # A package such as cv2 looks for the module of its own name by a path.
            if rest in ("", top) or elf.path in reached(match[1], top):
                failing.setdefault(top, {}).update(below)
    return failing


def _reached(image: AuditedImage, modules: Mapping[str, Elf], site: str, top: str) -> set[str]:
    """Return the files of a package that its import loads for certain."""
    todo, seen, files = [top], set[str](), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name.partition(".")[0] != top:
            continue
        seen.add(name)
        base = f"{site}/{name.replace('.', '/')}"
        module = modules[base].path if base in modules else ""
        path = next((way for way in (f"{base}/__init__.py", module, f"{base}.py") if way in image.paths), "")
        files.add(path)
        if path.endswith(".py"):
            package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
            todo += _imported(image.read(path).decode("utf-8", "replace"), package.split("."))
    return files


def _imported(text: str, package: Sequence[str]) -> Iterator[str]:
    """Yield the modules that import lines in no condition, function or `try` load, and the packages around them."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts
        for line in ast.parse(text).body:
            lead: Sequence[str] = ()
            if isinstance(line, ast.ImportFrom):
                above = package[: len(package) + 1 - line.level] if line.level else ()
                lead = (*above, *(line.module or "").split("."))
            for alias in line.names if isinstance(line, ast.Import | ast.ImportFrom) else ():
                parts = [part for part in (*lead, *alias.name.split(".")) if part]
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
