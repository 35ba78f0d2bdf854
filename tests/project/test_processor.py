"""The names of a processor stand in one module, and the code asks it."""

import ast
import re
from pathlib import Path

import pytest
from packaging.markers import default_environment

from envbuilder.core.processor import AARCH64, PROCESSORS, X86_64, processor_of

PACKAGE = Path(__file__).parents[2] / "envbuilder"
OWN = PACKAGE / "core/processor.py"
NAME = re.compile(r"x86_64|amd64|aarch64|arm64|armv8|sbsa|x86-64\.so", re.IGNORECASE)
# Programs of steps import nothing. Facts by processor, packages elsewhere, locked programs, and what users read about logs.
TABLES = ("steps/", "compat/tables/", "core/packages.toml", "runners/toolbox.json", "diagnose/catalogue/")
MODULES = [path for path in PACKAGE.rglob("*.py") if path != OWN and path.parent.name != "steps"]


def names(source: str) -> list[str]:
    """Return the texts of a program that name a processor; documentation may."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [
        f"{node.lineno}: {node.value!r}"
        for node in texts
        if isinstance(node.value, str | bytes) and id(node) not in documentation
        if NAME.search(node.value if isinstance(node.value, str) else node.value.decode("latin-1"))
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_spells_a_processor(path):
    assert names(path.read_text(encoding="utf-8")) == []


def other_texts() -> list[Path]:
    """Return the package's files that are no Python: scripts, Dockerfiles, settings."""
    every = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    return sorted(path for path in every if not str(path.relative_to(PACKAGE)).startswith(TABLES))


@pytest.mark.parametrize("path", other_texts(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_script_and_no_setting_spells_a_processor(path):
    assert NAME.search(path.read_text(encoding="utf-8")) is None


@pytest.mark.parametrize(
    "source", ["a = 'linux/amd64'", "a = f'lib/x86_64-{b}'", "a = b'aarch64'", "a('ld-linux-x86-64.so.2')"]
)
def test_a_spelled_processor_is_found(source):
    assert len(names(source)) == 1


def test_documentation_may_name_a_processor():
    assert names('"""Of amd64."""\na = 1  # amd64\n') == []


def test_a_processor_is_found_by_the_platform_of_an_image():
    assert [processor_of(one.platform) for one in PROCESSORS] == list(PROCESSORS)
    assert processor_of("linux/arm64/v8") == AARCH64
    assert [processor_of(one) for one in ("linux/arm", "linux/amd64x", "windows/amd64", "")] == [None] * 4


def test_no_two_processors_share_a_name():
    for field in ("title", "debian", "machine", "cuda", "sif", "elf", "loader"):
        assert len({getattr(one, field) for one in PROCESSORS}) == len(PROCESSORS), field


def test_markers_have_the_keys_of_packaging():
    known = {*default_environment(), "extra"}
    assert set(X86_64.markers("3.11")) <= known
    assert X86_64.markers("3.11", "3.11.2")["python_full_version"] == "3.11.2"
    assert AARCH64.markers("3.11")["platform_machine"] == "aarch64"
