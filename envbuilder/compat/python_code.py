"""Read Python files for extensions and requirements, by their syntax tree. Nothing of a project runs."""

import ast
import functools
import re
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.core.beneath import leads_out
from envbuilder.core.places import Mistakes, load_text

_CLASSES: Final = ("CUDAExtension", "CppExtension", "SyclExtension")
_MODULE: Final = "torch.utils.cpp_extension"
_LOADS: Final = (f"{_MODULE}.load", f"{_MODULE}.load_inline")
_LONGEST: Final = 3  # names that stand for names
_SKIPPED: Final = re.compile(
    r"\..*|build|dist|__pycache__|.*\.egg-info|node_modules|site-packages|venv|env|tests?|docs?"
)
_DEEPEST: Final = 6
CODE: Final = (".cpp", ".cc", ".cxx", ".c", ".cu", ".cuh", ".h", ".hpp")
_MOST: Final = 4000  # Python files of a project, and texts of a list
_MAIN: Final = "__main__"
_SETUPS: Final = ("setuptools.setup", "distutils.core.setup", "skbuild.setup")
_BUILDS: Final = tuple(f"{_MODULE}.{name}" for name in _CLASSES)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCall:
    """A call, with the function that it stands in."""

    full: str  # by its imports: torch.utils.cpp_extension.load
    node: ast.Call
    inside: str  # how to reach it: "" when imported, `f()`, `C()`, `C().f()`; "?" with arguments that nobody knows
    owner: str  # the function's name, whose calls reach it

    @property
    def short(self) -> str:
        return self.full.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCode:
    """What a file says: its imports by their names here, and its calls."""

    path: Path
    tree: ast.Module
    imported: frozenset[str]  # modules, and modules with a name of theirs: a.b, a.b.c
    calls: tuple[CodeCall, ...]
    builds: bool  # whether it uses a class of torch that describes an extension

    @property
    def extensions(self) -> tuple[CodeCall, ...]:
        """Return the calls that describe an extension of torch for a build."""
        return tuple(call for call in self.calls if call.full in _BUILDS)

    @property
    def is_without_torch(self) -> bool:
        """Return whether a file builds by setuptools' or distutils' own class alone."""
        return not self.builds and any(call.full.endswith(".Extension") for call in self.calls)

    @property
    def loads(self) -> tuple[CodeCall, ...]:
        return tuple(call for call in self.calls if call.full in _LOADS)

    def sources(self) -> tuple[str, ...]:
        """Return the paths of these extensions' sources that are plain texts, each once."""
        given = (self.argument(call, 1, "sources") for call in self.extensions)
        return tuple(dict.fromkeys(str(PurePosixPath(text)) for node in given for text in self.texts(node)))

    def setup(self) -> CodeCall | None:
        return next((call for call in self.calls if call.full in _SETUPS), None)

    def argument(self, call: CodeCall, position: int, name: str) -> ast.expr | None:
        """Return an argument that is given by its name or by its position."""
        return self.keyword(call, name) or next(iter(call.node.args[position:]), None)

    def keyword(self, call: CodeCall | None, name: str) -> ast.expr | None:
        return next((word.value for word in call.node.keywords if word.arg == name), None) if call else None

    def text(self, node: ast.expr | None) -> str:
        """Return a plain text, also one that a name stands for; "" for anything else."""
        return "" if isinstance(node, ast.List | ast.Tuple) else next(iter(self.texts(node)), "")

    def texts(self, node: ast.expr | None, depth: int = 0) -> tuple[str, ...]:
        """Return the plain texts of a text, a list or a name that stands for one."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return (node.value,)
        if isinstance(node, ast.List | ast.Tuple):
            texts: list[str] = []
            for item in node.elts:
                texts += self.texts(item, depth)
                if len(texts) > _MOST:  # names of lists of names multiply
                    break
            return tuple(texts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.List):
            return (*self.texts(node.left, depth), *self.texts(node.right, depth))
        if isinstance(node, ast.Name) and depth < _LONGEST:
            value = assigned(self.tree).get(node.id)
            return self.texts(value, depth + 1) if value else ()
        return ()

    def written(self, node: ast.expr | None) -> ast.expr | None:
        """Return what a name stands for that the file sets and uses once each, so nothing is added to it; others as they are."""
        if not isinstance(node, ast.Name):
            return node
        uses = [each for each in ast.walk(self.tree) if isinstance(each, ast.Name) and each.id == node.id]
        return assigned(self.tree).get(node.id, node) if len(uses) == 2 else node


def project_files(top: Path) -> Iterator[Path]:
    """Yield the visible files of a project, those of its top first. Folders of envbuilder's recipes below it are left out."""
    folders, count = [top], 0
    while folders and count < _MOST:
        folder = folders.pop(0)
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                depth = len(path.relative_to(top).parts)
                if not _SKIPPED.fullmatch(path.name) and depth <= _DEEPEST and not holds_recipes(path):
                    folders.append(path)
            elif (
                path.suffix in (".py", ".toml", *CODE)
                and path.is_file()
                and not (path.is_symlink() and leads_out(top, path))
            ):
                count += path.suffix == ".py"
                yield path


def holds_recipes(folder: Path) -> bool:
    return any(path.with_suffix(".lock").is_file() for path in folder.glob("*.yaml"))


def read_code(path: Path) -> PythonCode | None:
    """Return what a Python file says, None if it cannot be read, as a FIFO, which never ends."""
    return parse_code(load_text(path, Mistakes()) or "", path) if path.is_file() else None


def parse_code(text: str, path: Path) -> PythonCode | None:
    """Return what the text of a Python file says, None if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a project's texts
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last for what is nested too deep
        return None
    names = dict(_imports(tree))
    calls = _calls(tree, names, is_program=path.name == "setup.py")
    used = (_full(node, names) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute))
    builds = any(name in _BUILDS for name in used)
    return PythonCode(
        path=path, tree=tree, imported=frozenset(_modules(tree)), calls=tuple(calls), builds=builds
    )


def _full(node: ast.expr, names: dict[str, str]) -> str:
    """Return what a dotted name stands for by the imports; "" for other expressions."""
    first, dot, rest = _dotted(node).partition(".")
    return f"{names.get(first, first)}{dot}{rest}"


@functools.lru_cache(16)
def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the last value of each name."""
    values = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    return values


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):  # a relative one by what it names
            above = f"{node.module}." if node.module else ""
            yield from ((alias.asname or alias.name, f"{above}{alias.name}") for alias in node.names)


def imported_modules(text: str) -> list[str]:
    """Return the modules that lines of Python import; raises SyntaxError for other text."""
    return list(_modules(ast.parse(text)))


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _calls(tree: ast.Module, names: dict[str, str], *, is_program: bool) -> Iterator[CodeCall]:
    def walk(
        node: ast.AST, inside: str, owner: str, scope: tuple[ast.ClassDef | Function, ...]
    ) -> Iterator[CodeCall]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and _is_main(child.test) and not is_program:
                continue  # not when it is imported
            if isinstance(child, ast.Call) and (full := _full(child.func, names)):
                yield CodeCall(full=full, node=child, inside=inside, owner=owner)
            if isinstance(child, Function | ast.ClassDef):
                above = (*scope, child)
                if isinstance(child, ast.ClassDef):
                    yield from walk(child, inside, owner, above)
                else:
                    name = scope[-1].name if child.name == "__init__" and scope else child.name
                    yield from walk(child, _way(above), name, above)
            else:
                yield from walk(child, inside, owner, scope)

    yield from walk(tree, "", "", ())


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(one, ast.Constant) and one.value == _MAIN for one in ast.walk(test))


def _way(scope: Sequence[ast.ClassDef | Function]) -> str:
    """Return the call that runs the innermost function, "?" if it needs arguments."""
    match scope:
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as function]:
            way, is_free = f"{function.name}()", not _needs(function, 0)
        case [ast.ClassDef() as kind, ast.FunctionDef() | ast.AsyncFunctionDef() as method]:
            decorators = {node.id for node in method.decorator_list if isinstance(node, ast.Name)}
            begins = [it for it in kind.body if isinstance(it, Function) and it.name == "__init__"]
            way = f"{kind.name}()" if method in begins else f"{kind.name}().{method.name}()"
            is_free = not any(_needs(it, 1) for it in (method, *begins))
            if decorators & {"staticmethod", "classmethod"}:
                way, is_free = (
                    f"{kind.name}.{method.name}()",
                    not _needs(method, int("classmethod" in decorators)),
                )
        case _:
            return "?"
    return way if is_free else "?"


def _needs(function: Function, given: int) -> bool:
    """Return whether a function has parameters without a default, beside those that are given."""
    given_or_default = given + len(function.args.defaults)
    arguments = function.args
    return len(arguments.posonlyargs + arguments.args) > given_or_default or None in arguments.kw_defaults


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{above}.{node.attr}" if (above := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


# A file that has one of these, or a name or attribute with one of the words in a condition, decides by the machine.
_ASKED: Final = re.compile(r"\.(is_available|device_count|CUDA_HOME|version\.(cuda|hip))$")
_ASKING: Final = re.compile(r"cuda|hip|rocm|gpu", re.IGNORECASE)
_BRANCHES: Final = (
    ast.If, ast.Try, ast.While, ast.For, ast.Match, ast.IfExp, ast.BoolOp, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_TESTS: Final = (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp)
_ENDS: Final = frozenset(("exit", "_exit", "setup"))
_PATHS: Final = ("join", "abspath", "str", "Path")  # calls that return their last text in a path


def certain_calls(code: PythonCode) -> Iterator[ast.Call]:
    """Yield the calls that a run of the file reaches whatever it asks: those in no branch, and in functions that these call."""
    names = (node for node in ast.walk(code.tree) if isinstance(node, ast.Name | ast.Attribute))
    tests = (node for node in ast.walk(code.tree) if isinstance(node, _TESTS))
    words = (_word(part) for node in tests for part in ast.walk(getattr(node, "test", node)))
    if any(_ASKED.search(f".{_dotted(node) or _word(node)}") for node in names) or any(
        map(_ASKING.search, words)
    ):
        return
    functions = {node.name: node for node in code.tree.body if isinstance(node, Function)}
    ends = {name for name, node in functions.items() if not _ENDS.isdisjoint(map(_leaves, ast.walk(node)))}
    yield from _certain(code.tree.body, functions, _ENDS | ends)


def _word(node: ast.AST) -> str:
    return f"{getattr(node, 'attr', getattr(node, 'id', ''))}"


def _certain(
    body: Sequence[ast.AST], functions: dict[str, Function], ends: frozenset[str]
) -> Generator[ast.Call, None, set[str]]:
    """Yield the calls of statements up to a branch that may leave them, and return how. Each function is taken once."""
    for node in body:
        left: set[str] = set()
        if isinstance(node, ast.If) and _is_main(node.test):
            left = yield from _certain(node.body, functions, ends)
        elif isinstance(node, _BRANCHES):
            left = {"return", *ends} & set(map(_leaves, ast.walk(node)))
        elif not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            left = yield from _certain(tuple(ast.iter_child_nodes(node)), functions, ends)
            if isinstance(node, ast.Call) and not left:
                yield node
                if isinstance(node.func, ast.Name) and (function := functions.pop(node.func.id, None)):
                    left = (yield from _certain(function.body, functions, ends)) & ends
        if left:
            return left
    return set()


def _leaves(node: ast.AST) -> str:
    """Return the name of the function that a node calls, "return" if it leaves its own."""
    if isinstance(node, ast.Call):
        return _dotted(node.func).rpartition(".")[2]
    return "return" if isinstance(node, ast.Return | ast.Raise) else ""


def certain_parts(code: PythonCode, node: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the parts of a list or a path, in no branch. A name counts that is assigned once, and used only here."""
    inner: Sequence[ast.expr | None] = ()
    if isinstance(node, ast.List | ast.Tuple):
        inner = node.elts
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div | ast.Mod):
        inner = (node.left, node.right)
    elif isinstance(node, ast.Name) and _count(code.tree)[node.id] == 2:
        inner = (assigned(code.tree).get(node.id),)
    elif isinstance(node, ast.Call) and _leaves(node) in _PATHS:
        inner = node.args[-1:]
    elif node:
        yield from node.values[-1:] if isinstance(node, ast.JoinedStr) else (node,)
    for part in inner:
        yield from certain_parts(code, part)


@functools.lru_cache(16)
def _count(tree: ast.Module) -> Counter[str]:
    """Return how often each name of a variable or parameter stands in a file."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.arg))
    return Counter(node.id if isinstance(node, ast.Name) else node.arg for node in nodes)


def plain_texts(code: PythonCode) -> Iterator[tuple[int, str]]:
    """Yield each text of a file with its line, also the parts of one that is put together."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def set_variables(code: PythonCode, name: str) -> Iterator[tuple[int, str]]:
    """Yield each text that a file sets an environment variable to, with its line."""
    for node in ast.walk(code.tree):
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=key)), *_]) if key == name:
                if text := code.text(node.value):
                    yield node.lineno, text
