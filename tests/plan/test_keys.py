"""Which layers are made again after an edit of envbuilder itself: those whose bytes the edited file decides."""

import dataclasses
import json
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from envbuilder.plan.extension import call_key, project_key, recipe_calls
from tests.support.plans import EXTENSION, make_plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explain/keys.md"
# Runs in a copy of the package: append a line to each file in turn, and print the layers whose key is another one then.
EDIT = """
import json, sys
from pathlib import Path
from envbuilder.builder.job import layer_keys
from envbuilder.core.cache import Store
from envbuilder.plan.make import load_locked, plan_of

package, recipes = map(Path, sys.argv[1:])
recipe, lock, _ = load_locked("a100", recipes, Store(package / "cache"))
keys = lambda: {step.name: key for step, key in layer_keys(plan_of(recipe, lock)).items()}
before, changed = keys(), {}
for path in sorted(package.rglob("*")):
    if path.is_file() and path.suffix != ".pyc":
        text = path.read_bytes()
        path.write_bytes(text + b"\\n")
        changed[str(path.relative_to(package))] = [name for name, key in keys().items() if key != before[name]]
        path.write_bytes(text)
print(json.dumps(changed))
"""


@pytest.mark.programs
def test_the_page_lists_what_an_edit_of_each_file_makes_again(request: pytest.FixtureRequest, tmp_path: Path):
    package = tmp_path / "envbuilder"
    shutil.copytree(ROOT / "envbuilder", package, ignore=shutil.ignore_patterns("__pycache__"))
    words = (sys.executable, "-B", "-c", EDIT, package, ROOT / "recipes")
    ended = subprocess.run(words, cwd=tmp_path, env={}, check=True, capture_output=True, text=True)
    changed: dict[str, list[str]] = json.loads(ended.stdout)
    assert len(changed) > 200
    table = rows(changed)
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition("| a file of `envbuilder/`")
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else "\n"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(head + table + after, encoding="utf-8")
        text = head + table + after
    assert table in text, "`pytest --update-golden` writes it anew"
    # What only reads, decides or prints makes nothing again.
    idle = (
        "commands",
        "compat",
        "core",
        "diagnose",
        "init",
        "lock",
        "recipe",
        "registry",
        "run",
        "runners",
        "sources",
        "verify",
    )
    assert {path for path, names in changed.items() if names and path.split("/")[0] in idle} == set()


def test_another_uv_builds_projects_anew_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    project = dataclasses.replace(EXTENSION, sources=(), path=".")
    versions = {"uv": "1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    ground, calls = make_plan().ground, recipe_calls(EXTENSION)

    def entries() -> tuple[str, str]:
        return project_key(ground, project).entry, call_key(ground, EXTENSION, calls.calls[0], calls).entry

    (project_1, call_1), plan_1 = entries(), make_plan().key
    versions["uv"] = "2"
    (project_2, call_2), plan_2 = entries(), make_plan().key
    assert project_1 != project_2
    assert (call_1, plan_1) == (call_2, plan_2)  # a plan says nothing of this machine's programs


def rows(changed: dict[str, list[str]]) -> str:
    """Files whose edit changes the same layers, one row for each folder."""
    lines = ["| a file of `envbuilder/` | its edit makes again |", "|:--|:--|"]
    touching = [
        (str(Path(path).parent), tuple(names), Path(path).name) for path, names in changed.items() if names
    ]
    for (folder, names), files in groupby(sorted(touching), key=lambda row: row[:2]):
        listed = ", ".join(name for _, _, name in files)
        lines.append(f"| `{folder}`: {listed} | {', '.join(names)} |")
    return "\n".join(lines)
