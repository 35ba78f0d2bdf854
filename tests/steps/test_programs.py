"""What every program of a step keeps to: one file, any Python from 3.8, and its standard library alone."""

import ast
import sys

import pytest

from envbuilder import steps

PROGRAMS = sorted(path.name for path in steps.FOLDER.glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_needs_nothing_but_the_standard_library_of_python_3_8(name: str):
    tree = ast.parse(steps.text(name), feature_version=(3, 8))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {module.partition(".")[0] for module in modules} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_hides_a_module_of_the_standard_library(name: str):
    """Python looks into the folder of a program first."""
    assert name.removesuffix(".py") not in sys.stdlib_module_names
