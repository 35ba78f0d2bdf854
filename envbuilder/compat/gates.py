"""Find what decides in a setup.py whether it compiles: variables of the environment that it reads, and options of its command line.

Builds have no GPU, so a setup.py that asks for one needs the variable that says yes in its place. Each project names its own.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from envbuilder.compat.python_code import PythonCode, plain_texts
from envbuilder.compat.tables.cuda import for_gpus, load_switches

# The ends of names, by what they switch on. A project's own name may stand before them.
_ENDS: Final = {
    "compile": r"FORCE_(BUILD|COMPILE)",
    "cuda": r"(FORCE|WITH|USE|BUILD|ENABLE|COMPILE)_CUDA(_EXT|_EXTENSIONS?|_OPS)?|CUDA_EXT(ENSIONS?)?|BUILD_OPS|WITH_OPS",
    "code": r"(FORCE_)?CPP(_EXT(ENSIONS?)?)?|(BUILD|WITH|ENABLE|COMPILE)_(CPP_)?EXT(ENSIONS?)?",
}
_GATE: Final = re.compile("|".join(f"(?P<{effect}>(\\w+_)?({ends}))" for effect, ends in _ENDS.items()))
_NOT: Final = re.compile(r"(^|_)(NO|NOT|SKIP|DISABLE|WITHOUT)_")
_OPTION: Final = re.compile(r"--[a-zA-Z][\w-]*")
_YES: Final = {
    "0": "1",
    "": "1",
    "FALSE": "TRUE",
    "False": "True",
    "false": "true",
    "OFF": "ON",
    "off": "on",
    "NO": "YES",
    "no": "yes",
}
_READS: Final = ("os.getenv", "getenv", "os.environ.get", "environ.get", "os.environ.pop", "environ.pop")
_COMPUTED: Final = "(computed)"
_ARGV: Final = ("sys.argv", "argv", "sys.argv[1:]")
_ENVIRON: Final = ("os.environ", "environ")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableRead:
    """One place where a file reads a variable. The name is "" where it is computed."""

    name: str
    line: int
    default: str | None = None  # what it has where nothing sets it; None: nothing
    compared: str | None = None  # the first text that it is compared with
    is_needed: bool = False  # an error where nothing sets it

    @property
    def value(self) -> str:
        """Return the value that says yes, "" where the default does."""
        if self.compared is None:
            return "1" if _YES.get(self.default or "") else ""
        if self.compared == self.default or self.compared in _YES:  # it asks for the value of no
            return _YES.get(self.compared, "")
        return self.compared


_REASONS: Final = {
    "compile": "without it, the build looks for a compiled wheel on the network",
    "cuda": "without it, the build may leave out what is for GPUs",
    "code": "without it, the build leaves out compiled code",
    "architectures": "without it, the build leaves out what is for GPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A variable, or an option, without which a setup.py leaves something out."""

    name: str  # of the variable, or the option: --cuda_ext
    value: str  # "" of an option; {dots} and the like stand for GPUs, unless `find_gates` knew them
    effect: str
    line: int

    @property
    def setting(self) -> str:
        """Return what sets it in the extension of a recipe."""
        return f'env: {{{self.name}: "{self.value}"}}' if self.value else f'options: ["{self.name}"]'

    @property
    def reason(self) -> str:
        return _REASONS[self.effect]


def find_gates(code: PythonCode, architectures: tuple[str, ...] = ()) -> tuple[Gate, ...]:
    """Return the variables that this setup.py reads, with the values by which it compiles, then options; each sorted by name."""
    lines = {text: line for line, text in reversed(tuple(plain_texts(code)))}
    gates = {}
    for row in load_switches().rows:
        if (row.effect != "architectures" or row.needed) and row.variable in lines:
            value, line = (
                for_gpus(row.value, architectures) if architectures else row.value,
                lines[row.variable],
            )
            gates[row.variable] = Gate(name=row.variable, value=value, effect=row.effect, line=line)
    reads = tuple(variable_reads(code))
    computed = next((read for read in reads if not read.name), None)
    named = {read.name: read for read in reversed(reads) if read.name}
    passed = set(_passed_on(code)) - named.keys() if computed else set()
    for name in (*named, *passed):
        read = named.get(name, computed)
        effect = _effect(name)
        if read and effect and read.value and name not in gates:
            gates[name] = Gate(name=name, value=read.value, effect=effect, line=lines.get(name, read.line))
    options = {gate.name: gate for gate in reversed(tuple(_options(code, lines)))}
    return tuple(gate for group in (gates, options) for _, gate in sorted(group.items()))


def _options(code: PythonCode, texts: Iterable[str]) -> Iterator[Gate]:
    """Yield the options that switch compiled code on, where the file names no variable that does."""
    functions = _functions(code)
    for node in ast.walk(code.tree):
        match node:
            case ast.Compare(left=ast.Constant(value=str(option)), ops=[ast.In()], comparators=[place]):
                is_asked = ast.unparse(place) in _ARGV
            case ast.Call(func=ast.Name(id=called), args=[ast.Constant(value=str(option)), place, *_]):
                is_asked = called in functions and ast.unparse(place) in _ARGV
            case _:
                continue
        name = option[2:].replace("-", "_").upper()
        effect = _effect(name) if is_asked and _OPTION.fullmatch(option) else ""
        if effect and not any(re.fullmatch(rf"(\w+_)?{name}", text) for text in texts):
            yield Gate(name=option, value="", effect=effect, line=node.lineno)


def _effect(name: str) -> str:
    gate = None if _NOT.search(name) else _GATE.fullmatch(name)
    return next((effect for effect in _ENDS if gate[effect]), "") if gate else ""


def variable_reads(code: PythonCode) -> Iterator[VariableRead]:
    """Yield each place where a file reads a variable of the environment."""
    compared = {
        id(part): _compared(node)
        for node in ast.walk(code.tree)
        if isinstance(node, ast.Compare)
        for part in ast.walk(node.left)
    }
    asked = {
        node.left.value: node.lineno
        for node in ast.walk(code.tree)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str) and ast.unparse(node.comparators[0]) in _ENVIRON
    }  # fmt: skip
    calls = {id(call.node): call.full for call in code.calls}
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Call) and node.args and calls.get(id(node)) in _READS:
            given = node.args[1] if len(node.args) > 1 else None
            default = _text(given) if given is None or isinstance(given, ast.Constant) else _COMPUTED
            yield VariableRead(
                name=_text(node.args[0]) or "",
                line=node.lineno,
                default=default,
                compared=compared.get(id(node)),
            )
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node.value) in _ENVIRON
        ):
            name = _text(node.slice) or ""
            yield VariableRead(
                name=name, line=node.lineno, compared=compared.get(id(node)), is_needed=name not in asked
            )
    yield from (VariableRead(name=name, line=line) for name, line in asked.items())


def _compared(node: ast.Compare) -> str | None:
    """Return the first text of what a value is compared with."""
    other = node.comparators[0]
    first = next(iter(other.elts), None) if isinstance(other, ast.List | ast.Tuple | ast.Set) else other
    return _text(first)


def _text(node: ast.expr | None) -> str | None:
    """Return a plain text or number as the environment holds it, None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | str):
        return str(int(node.value)) if isinstance(node.value, bool) else str(node.value)
    return None


def _functions(code: PythonCode) -> set[str]:
    return {node.name for node in code.tree.body if isinstance(node, ast.FunctionDef)}


def _passed_on(code: PythonCode) -> Iterator[str]:
    """Yield the texts that may become the name of a variable: parts of a dictionary, and arguments of the file's own functions."""
    functions = _functions(code)
    for node in ast.walk(code.tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            given = [*node.keys, *node.values]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            given = list(node.args)
        yield from (text for part in given if (text := _text(part)))
