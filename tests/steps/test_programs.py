"""What every program of a step keeps to: any Python from 3.8, its standard library, and the files beside it."""

import ast
import sys

import pytest

from envbuilder import steps

PROGRAMS = sorted(path.name for path in steps.FOLDER.glob("*.py") if path.name != "__init__.py")

OF_TORCH = ("capture_calls.py", "compile_call.py")  # started by another one, for what they do with torch


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_needs_nothing_but_the_standard_library_of_python_3_8(name: str):
    tree = ast.parse(steps.text(name), feature_version=(3, 8))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    beside = {program.removesuffix(".py") for program in PROGRAMS} | (
        {"torch"} if name in OF_TORCH else set()
    )
    assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names | beside


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_hides_a_module_of_the_standard_library(name: str):
    """Python looks into the folder of a program first."""
    assert name.removesuffix(".py") not in sys.stdlib_module_names
