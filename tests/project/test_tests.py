"""The rules of the tests' own tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path
    for folder in ("tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
    if "projects" not in path.parts
)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_a_test_module(path: Path):
    """What tests share lies in `tests/support`."""
    found = [
        name
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split(".")[:3])
    ]
    assert found == []
