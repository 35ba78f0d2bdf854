"""The layers of the story: a module imports only from layers below it, and never in a circle."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "envbuilder"

STANDALONE = "runtime"  # runs inside the image, where there is no envbuilder; others take its text from here

# From top to bottom; a name stands for the folder. `builder` stands on `run` because a build tests what it made, `node` is low because
# its NCCL rules are part of every image, and the registry's client is below `lock`, which looks into base images.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"commands"},
    {"builder"},
    {"run"},
    {"verify"},
    {"plan", "init"},
    {"lock"},
    {"compat", "registry"},
    {"recipe", "artifacts"},
    {"node", "layers"},
    {"runners"},
    {"sources", "diagnose", "steps"},
    {"core"},
    {"__init__", STANDALONE},
]
LEVEL = {name: number for number, names in enumerate(LAYERS) for name in names}
FORBIDDEN = [("lock", "node"), ("artifacts", "recipe")]


def modules() -> dict[str, Path]:
    """Dotted name below the package → file; a folder's `__init__` has the folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Dotted names below the package that a module imports, also inside its functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, below = name.partition(".")
            if package == "envbuilder":
                found.add(_module(below))
    return found


def _module(below: str) -> str:
    while below and below not in MODULES:
        below = below.rpartition(".")[0]
    return below or "__init__"


def group(module: str) -> str:
    return module.partition(".")[0]


ABOVE = [name for name in MODULES if group(name) != STANDALONE]


@pytest.mark.parametrize("module", ABOVE)
def test_a_module_has_a_layer(module):
    assert group(module) in LEVEL, f"put `{group(module)}` into its layer in {Path(__file__).name}"


@pytest.mark.parametrize("module", ABOVE)
def test_a_module_imports_only_from_its_layer_and_below(module):
    level = LEVEL.get(group(module), len(LAYERS))
    upward = sorted(name for name in imports(MODULES[module]) if LEVEL.get(group(name), -1) < level)
    assert upward == []


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter({name: imports(path) - {name} for name, path in MODULES.items()}).prepare()


@pytest.mark.parametrize(("upper", "lower"), FORBIDDEN)
def test_what_must_not_see_each_other_does_not(upper, lower):
    seeing = [
        name
        for name in MODULES
        if group(name) == upper and lower in {group(imported) for imported in imports(MODULES[name])}
    ]
    assert seeing == []


@pytest.mark.parametrize("module", [name for name in MODULES if group(name) == STANDALONE])
def test_runtime_imports_only_what_is_in_the_image(module):
    assert {group(name) for name in imports(MODULES[module])} <= {"node"}


# By `sync` and `launch`, to other machines.
SENT = (
    "artifacts.history",
    "artifacts.node_copy",
    "artifacts.parts",
    "artifacts.receive",
    "core.private",
)
ALONE = [name for name in MODULES if name.startswith("node.nccl") or name in SENT]


@pytest.mark.parametrize("module", ALONE)
def test_what_runs_without_envbuilder_needs_nothing_but_an_old_python(module):
    text = MODULES[module].read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    inside = imports(MODULES[module])
    assert {group(name) for name in inside} <= {"node"} or inside <= set(SENT)
    others = {name for name in _foreign(ast.parse(text)) if name not in sys.stdlib_module_names}
    assert others <= {"envbuilder", "pynvml"}


def _foreign(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.partition(".")[0]
        for name in plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    }
