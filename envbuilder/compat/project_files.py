"""Decide which files of a project's folder count for its lock, each with the reason.

Most files of a folder in which people train decide nothing that is compiled: programs, logs, results. An entry at the top counts if
a file of the build names it, imports it or installs it, or if a counted source includes it. Of a build by another tool than setuptools,
every file of the folder counts. Nothing of the project runs. A file that does not count is not in the build either, so it decides nothing.
"""

import ast
import fnmatch
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from envbuilder.compat.python_code import PythonCode, assigned, parse_code
from envbuilder.core.beneath import DEPTH_LIMIT
from envbuilder.recipe.extension import SOURCE_SUFFIXES

HEADERS: Final = frozenset({
    ".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".inc", ".ipp", ".ixx", ".tpp", ".tcc", ".txx", ".def",
})  # fmt: skip
COMPILED: Final = tuple(sorted({*SOURCE_SUFFIXES, *HEADERS}))
_SETUP: Final = "setup.py"
_OTHERS: Final = ("setup.cfg", "pyproject.toml", "MANIFEST.in", "CMakeLists.txt", "Makefile")
_RUN: Final = re.compile(r"(?:^|[;&|/]\s*)(c?make)(?:\s|$)")
_PARTS: Final = ("*", "*.cmake", "*.mk", *_OTHERS[3:])  # what make and cmake may read
# Tables of setup.cfg and pyproject.toml that a build reads; those of linters name folders too.
_READ: Final = re.compile(
    r"metadata|options(?!.*(entry_points|extras)).*|build.*"
    r"|project|tool\.(setuptools|scikit-build|py-build-cmake|meson-python|maturin|hatch|poetry|flit|pdm).*"
)
# Arguments and keys whose texts are no paths from the top.
_NO_PATHS: Final = re.compile(
    r"name|description|(author|maintainer)(s|_email)?|keywords|classifiers|(project_)?urls?|platforms|install_requires|extras_require"
    r"|entry_points|(requires-python|python_requires)|(exclude.)?package.data|exclude|(optional-)?dependencies|test_suite|tests_require|table|project"
)
_TABLE: Final = "table"  # the key of a table's own name
_WRITTEN: Final = "written"  # the key of a path that is opened for writing
_WALKS: Final = ("glob", "iglob", "rglob", "walk", "listdir", "scandir", "iterdir")
# What setuptools passes over where no list names packages: setuptools/discovery.py, FlatLayoutPackageFinder.
_NOT_DISCOVERED: Final = re.compile(
    r"ci|bin|debian|docs?|documentation|manpages|news|newsfragments|changelog|(unit_)?tests?|examples?|scripts|tools|utils?|python"
    r"|build|benchmarks?|exercises?|htmlcov"
)
_DISCOVERED_MODULE: Final = re.compile(  # the same, FlatLayoutModuleFinder
    r"(?!(setup|conftest|tests?|examples?|build|(tox|nox|fab|conan)file|pavement|dodo|tasks|[Ss][Cc]onstruct|manage|benchmarks?"
    r"|exercises?)\.py$).*\.py"
)
_LICENSE: Final = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS).*")  # setuptools installs them
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_WILD: Final = re.compile(r"[*?\[]")
_MODULE: Final = re.compile(r"(\w+(?:\.\w+)*)(\.(?:%s|\{\w*\})?)?")  # `models.` of `f"models.{name}"` too
_MOST_TEXTS: Final = 100  # of a search


class _Word(NamedTuple):
    """A text that may be a path."""

    file: str
    line: int
    key: str  # the argument or key that has it
    text: str


@dataclass(frozen=True, slots=True)
class Claims:
    """What decides a build, with reasons; `{}` is where `it` stands if the entry is the file: `setup.py` names{} at line 3."""

    entries: dict[str, str] = field(default_factory=dict)  # of the top folder
    patterns: dict[str, str] = field(default_factory=dict)  # of the names of files anywhere
    paths: set[str] = field(default_factory=set)  # named in full, so they count although git ignores them
    suffixes: set[str] = field(default_factory=set)  # of all paths that are named
    imported: set[str] = field(default_factory=set)  # entries by a capture; of others, only sources count
    data: set[str] = field(default_factory=set)  # patterns of paths that are installed, whatever their suffix

    def reason(self, path: str) -> str:
        """Return why a file counts, "" if it does not."""
        top, *below = PurePosixPath(path).parts
        is_whole = not below or not self.imported or top in self.imported
        if (why := self.entries.get(top)) and (is_whole or path.endswith(COMPILED) or path in self.paths):
            return f"it lies in `{top}`, which {why.format('')}" if below else why.format(" it")
        name = PurePosixPath(path).name
        return next((why for pattern, why in self.patterns.items() if fnmatch.fnmatchcase(name, pattern)), "")

    def has_data(self, path: str) -> bool:
        """Whether the build installs a file as data. A pattern is relative to a package, so its path may end a longer one."""
        return any(
            fnmatch.fnmatchcase(path, text) for pattern in self.data for text in (pattern, f"*/{pattern}")
        )

    def look_for(self, pattern: str, why: str) -> None:
        """Let the files of a pattern count; of `*`, sources and headers."""
        for wanted in [f"*{suffix}" for suffix in COMPILED] if pattern == "*" else [pattern]:
            self.patterns.setdefault(wanted, why)


@dataclass(frozen=True, slots=True)
class Project:
    """A project's folder: the visible entries at its top, how a file of it is read, and the files of an entry without what git ignores."""

    top: Path
    entries: frozenset[str]
    read: Callable[[str], str]
    files: Callable[[str], Iterator[str]]

    def has(self, file: str) -> bool:
        return file.partition("/")[0] in self.entries and os.path.isfile(self.top / file)  # noqa: PTH113 - a name may be too long

    def text(self, name: str) -> str:
        return self.read(name) if name in self.entries else ""

    def modules(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the files that an import reads, each with its entry."""
        parts = name.split(".")[:DEPTH_LIMIT]
        for depth in range(len(parts), 0, -1):
            for file in ("/".join(parts[:depth]) + end for end in (".py", "/__init__.py")):
                if self.has(file):
                    yield file.partition("/")[0], file


def claims_of_build(project: Project) -> Claims:
    """Return what the files of a project's own build claim: everything, if its setup.py cannot be read."""
    code = parse_code(project.text(_SETUP), project.top / _SETUP)
    if code is None:
        return Claims(patterns={"*": f"`{_SETUP}` cannot be read, so every file counts"})
    claims, setup = Claims(), list(_words_of(code.tree, _SETUP))
    runs = {run[1] for word in setup if (run := _RUN.search(word.text))}
    for pattern in _PARTS if runs else ():
        claims.look_for(pattern, f"`{_SETUP}` runs `{min(runs)}`, which may read it")
    words = [word for word in _plain_words(project) if word.file != _OTHERS[-1] or "make" in runs]
    claims.data.update(word.text for word in (*setup, *words) if word.key == "package_data" and word.text)
    claims.data.update(_manifest_data(project.text("MANIFEST.in")))
    tools = project.entries & {"meson.build", "Cargo.toml"}
    tools |= {word.text for word in words if word.key == "build-backend" != word.text}
    if not all(tool.startswith("setuptools") for tool in tools):
        claims.patterns["*"] = "another tool than setuptools builds the project, so every file counts"
    files = project.entries & {_SETUP, *_OTHERS}
    claims.entries.update(dict.fromkeys(files, "it says how the project is built"))
    claims.paths.update(files)
    licenses = filter(_LICENSE.fullmatch, project.entries)
    claims.entries.update(dict.fromkeys(licenses, "the build installs{}"))
    _claim_packages(project, claims, code, [*setup, *(word for word in words if word.file in _OTHERS[:2])])
    packages = set(claims.entries)
    for word in words:
        _claim(project, claims, word)
    scripts = {word.text for word in words if word.text.endswith(".py") and word.text in project.entries}
    for name in (_SETUP, *sorted(scripts - {_SETUP})):
        if script := parse_code(project.text(name), project.top / name):
            _claim_code(project, claims, script, packages)
    return claims


def claims_of_imports(project: Project, lines: Iterable[str]) -> Claims:
    """Return what the lines of a capture import, and the sources that these modules name."""
    claims, code = Claims(), parse_code("\n".join(lines), project.top / "capture")
    if code:
        _claim_code(project, claims, code)
    if not claims.entries:
        claims.patterns["*"] = "no line of `capture` imports a module from its folder, so every file counts"
    return claims


def claim_included(project: Project, claims: Claims, path: str, text: str) -> Iterator[str]:
    """Claim the entries whose headers a counted source includes, and yield the headers, which git may ignore."""
    for include in _INCLUDE.findall(text):
        for base in (PurePosixPath(path).parent, PurePosixPath()):
            parts = list[str]()
            for part in (*base.parts, *include.split("/")):
                parts.append(part)
                if part == "..":
                    del parts[-2:]
            if project.has(header := "/".join(parts)):
                claims.entries.setdefault(parts[0], f"`{path}` includes{{}}")
                claims.paths.add(header)
                yield header


def _claim(project: Project, claims: Claims, word: _Word) -> None:
    """Claim the entries that a text names: as parts of paths, or as packages and modules."""
    texts = word.text.split()
    if not all("/" in text or text.startswith("-") for text in texts):
        texts = [word.text]
    for text in texts:
        path = re.sub(r"^-(?:I|L|isystem)", "", text)
        claims.suffixes.add(PurePosixPath(path).suffix)
        if _NO_PATHS.fullmatch(word.key) or "://" in path:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..") and "$" not in part][
            :DEPTH_LIMIT
        ]
        if (word.file in _OTHERS[3:] or word.key == "global-include") and parts and _WILD.match(parts[0]):
            claims.look_for(parts[-1], f"`{word.file}` takes every `{parts[-1]}` at line {word.line}")
        named = ("/".join(parts[at:]) for at, part in enumerate(parts) if part in project.entries)
        claims.paths.update(named if word.key != _WRITTEN else ())
        if word.file not in _OTHERS[2:] and (module := _MODULE.fullmatch(path)):
            parts += [f"{module[1]}.py", module[1].partition(".")[0]]
        for entry in (part for part in parts if part in project.entries):
            claims.entries.setdefault(entry, f"`{word.file}` names{{}} at line {word.line}")


# ---- setup.py, and what a capture imports


def _claim_code(
    project: Project, claims: Claims, start: PythonCode, packages: set[str] | None = None
) -> None:
    """Claim what Python names, imports and looks for. The modules that it imports are read too, but no packages of the project.

    Without `packages`, it is what a capture imports, whose packages are read as a whole.
    """
    waiting, seen = [start], set[str]()
    for code in waiting:
        name = os.path.relpath(code.path, project.top)
        imports = [pair for module in sorted(code.imported) for pair in project.modules(module)]
        for word in _words_of(code.tree, name):
            _claim(project, claims, word)
            module = _MODULE.fullmatch(word.text) if packages is None else None
            if module and "." in word.text:
                top = module[1].partition(".")[0]
                imports += [(top, "")] if module[2] and top in project.entries else []  # the name goes on
                imports += project.modules(module[1])
        for line, pattern in _searches(code):
            if packages is None and not pattern.endswith(COMPILED):
                continue  # a program of a training lists its data
            claims.look_for(pattern, f"`{name}` looks for `{pattern}` in the folder at line {line}")
        for entry, file in imports:
            claims.entries.setdefault(entry, f"`{name}` imports{{}}")
            claims.paths.add(file)
            files = {file} if file and (packages is None or entry not in packages) else set[str]()
            if packages is None and entry not in claims.imported:
                claims.imported.add(entry)
                files |= {file for file in project.files(entry) if file.endswith(".py")}
            codes = [parse_code(project.read(file), project.top / file) for file in sorted(files - seen)]
            seen |= files
            waiting += filter(None, codes)


def _words_of(
    node: ast.AST, name: str, key: str = "", values: dict[str, ast.expr] | None = None
) -> Iterator[_Word]:
    """Yield the texts of Python code, each with the argument that it belongs to. `values` are those of names, each read once."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _Word(name, node.lineno, key, node.value)
    elif isinstance(node, ast.Name) and values and node.id in values:
        yield from _words_of(values.pop(node.id), name, key)  # not further: names of names multiply
    inside = key
    if isinstance(node, ast.Call):
        if _NO_PATHS.fullmatch(key) and key != "exclude":
            inside = ""  # it may be a path: `install_requires=open("requirements.txt").read()`
        mode = getattr(next(iter(node.args[1:2]), None), "value", "")
        if getattr(node.func, "id", "") == "open" and mode in ("w", "wb", "wt", "x"):
            inside = _WRITTEN
    for child in ast.iter_child_nodes(node):
        argument = key if child is getattr(node, "func", None) else inside
        argument = child.arg or argument if isinstance(child, ast.keyword) else argument
        yield from _words_of(child, name, argument, values)


def _searches(code: PythonCode) -> Iterator[tuple[int, str]]:
    """Yield the patterns of names that are looked for in no folder that the call names, with their lines."""
    # A caller says which folder.
    given = {node.arg for node in ast.walk(code.tree) if isinstance(node, ast.arg)}
    values = assigned(code.tree)
    for call in (node for node in ast.walk(code.tree) if isinstance(node, ast.Call)):
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if called in _WALKS and not used & given:
            texts = _words_of(call, "", values={name: values[name] for name in used & values.keys()})
            words = list(itertools.islice(texts, _MOST_TEXTS))
            split = (part for word in words for part in word.text.split("/"))
            parts = [part for part in split if part not in ("", ".", "..", "**")]
            if len(words) == _MOST_TEXTS:
                yield from ((call.lineno, f"*{suffix}") for suffix in COMPILED)
            elif not parts or _WILD.search(parts[0]):
                yield call.lineno, (parts or ["*"])[-1]


# ---- the other files of a build, and packages


def _plain_words(project: Project) -> Iterator[_Word]:
    """Yield the words of the other files that a build reads, and the names of their tables."""
    for name in _OTHERS:
        has_tables, table, key = name.endswith((".cfg", ".toml")), "", ""
        for at, line in enumerate(project.text(name).splitlines(), 1):
            words = [word for word in re.split(r"[\s,='\"\[\]{}()]+", line) if word]
            if has_tables and re.match(r"\[+[^\[\]]+\]+\s*(#|$)", line):
                table, key, words = words[0], "", []
                yield _Word(name, at, _TABLE, table)
            elif words and (not has_tables or re.match(r"[\w.-]+\s*[=:]", line)):
                is_data = re.search("package.data$", table)
                key = "package_data" if is_data else words[0].rstrip(":").rpartition(".")[2]
            is_read = _READ.fullmatch(table) if has_tables else not re.match(r"#|prune|(\w+-)?exclude", key)
            yield from (
                _Word(name, at, key, word) for word in words if is_read and not line.lstrip().startswith("#")
            )


def _manifest_data(text: str) -> Iterator[str]:
    """Yield the patterns of the folders that a MANIFEST.in takes: `graft FOLDER` and `recursive-include FOLDER PATTERN…`."""
    for line in text.splitlines():
        match line.split():
            case ["graft", folder]:
                yield f"{folder}/*"
            case ["recursive-include", folder, *patterns]:
                yield from (f"{folder}/{start}{pattern}" for pattern in patterns for start in ("", "*/"))
            case _:
                pass


def _claim_packages(project: Project, claims: Claims, code: PythonCode, words: Sequence[_Word]) -> None:
    """Claim the packages at the top that the build looks for and installs. Those of a list are named there."""

    def given(*keys: str) -> list[str]:
        return [word.text for word in words if word.key in keys]

    tables, setup = given(_TABLE), code.setup()
    called = {call.short for call in code.calls}
    looks = {*called, *given("packages"), *("find" for text in tables if text.endswith("packages.find"))}
    looks &= {"find", "find:", "find_namespace:", "find_packages", "find_namespace_packages"}
    listed = given("packages", "py_modules", "py-modules")
    listed += [name for name in ("packages", "py_modules") if code.keyword(setup, name)]
    if not looks and (listed or ("project" not in tables and code.keyword(setup, "ext_modules"))):
        return
    has_namespaces = not looks & {"find_packages", "find:"} and "false" not in given("namespaces")
    include, exclude = [text.partition(".")[0] for text in given("include")] or ["*"], given("exclude")
    packages = set[str]()
    for entry in project.entries if looks or "src" not in project.entries else ("src",):
        fits = [any(fnmatch.fnmatchcase(entry, text) for text in patterns) for patterns in (include, exclude)]
        is_wanted = fits == [True, False] if looks else not _NOT_DISCOVERED.fullmatch(entry)
        files = project.files(entry) if is_wanted and has_namespaces and "." not in entry else ()
        is_package = project.has(f"{entry}/__init__.py") or any(file.endswith(".py") for file in files)
        if entry == "src" or (is_wanted and is_package):
            packages.add(entry)
    if not packages and not looks:
        modules = list(filter(_DISCOVERED_MODULE.fullmatch, project.entries))
        packages.update(modules if len(modules) == 1 else ())  # setuptools refuses several
    claims.entries.update(dict.fromkeys(packages - {*claims.entries}, "the build installs{}"))
