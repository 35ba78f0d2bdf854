"""The tables as code say what the tables say, and are taken only while they do."""

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.compat.tables import cuda, distribution, gpu, python, standard, table, toolkit, torch, written

LOADERS: dict[Path, tuple[Callable[..., object], str]] = {
    cuda.FILE: (cuda.load_cudas, "cuda"),
    distribution.FILE: (distribution.load_all_distributions, ""),
    gpu.FILE: (gpu.load_gpus, ""),
    python.FILE: (python.load_pythons, ""),
    standard.FILE: (standard.load_standards, ""),
    toolkit.FILE: (toolkit.read_toolkits, ""),
    torch.FILE: (torch.load_torches, "torch"),
}
HEAD = '''"""The tables beside this as code, each with the digest of its texts: `pytest --update-golden {test}` writes it."""

from collections.abc import Callable
from typing import Any, Final

TABLES: Final[dict[str, tuple[str, Callable[..., Any]]]] = {{
'''


@pytest.fixture
def from_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TABLES", {})


def read_from(file: Path) -> table.Table[object]:
    """What the loader answers, not what it answered before."""
    load, _ = LOADERS[file]
    return getattr(load, "__wrapped__", load)(file)


def as_code(file: Path) -> str:
    """One table: a row a line, so that a change of one is a change of one."""
    read = read_from(file)
    rows = "".join(f"            {row!r},\n" for row in read.rows)
    body = f"Table(sources={read.sources!r}, read={read.read!r}, rows=(\n{rows}        ))"
    body = re.sub(r"<(\w+\.\w+): '[^']*'>", r"\1", body)  # members of enumerations
    names = sorted({node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)})
    digest = table.digest_of(file, LOADERS[file][1])
    return f'    "{file.name}": (\n        "{digest}",\n        lambda {", ".join(names)}: {body},\n    ),\n'


def test_the_code_is_what_the_tables_say(request: pytest.FixtureRequest, from_yaml: None):
    path = Path(written.__file__)
    text = HEAD.format(test=f"tests/{Path(__file__).name}") + "".join(map(as_code, sorted(LOADERS))) + "}\n"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("file", LOADERS, ids=lambda file: file.stem)
def test_a_table_is_taken_from_the_code(file: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as yaml_alone:
        yaml_alone.setattr(table, "TABLES", {})
        expected = read_from(file)
    monkeypatch.delattr(table, "load")  # the reader of YAML
    assert read_from(file) == expected


@pytest.mark.parametrize("changed", [torch.FILE.name, table.OVERRIDES])
def test_a_table_is_read_where_a_person_has_changed_it(changed: str, tmp_path: Path):
    file = shutil.copy(torch.FILE, tmp_path)
    text = torch.FILE.with_name(changed).read_text()
    assert "glibc: " in text or changed == table.OVERRIDES
    (tmp_path / table.OVERRIDES).write_bytes(torch.FILE.with_name(table.OVERRIDES).read_bytes())
    (tmp_path / changed).write_text(text.replace('read: "2026', 'read: "2027'))
    assert torch.load_torches(Path(file)) != torch.load_torches()


def test_a_table_that_is_missing_is_told_in_the_words_of_the_reader(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be read"):
        gpu.load_gpus(tmp_path / gpu.FILE.name)
