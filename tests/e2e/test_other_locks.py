"""An environment of another tool's lock has the packages and the files that the tool itself installs.

`tests/recipe/test_from_lock.py` reads all six formats for every change; `docs/evidence/adopt.md` has four of them, compared once.
"""

import json
from pathlib import Path

import pytest
from uv import find_uv_bin

from envbuilder.sources.names import default_index
from tests.support.workbench import ENVBUILDER, NO_ENGINE, build, run

pytestmark = [pytest.mark.builds, pytest.mark.release]

PROJECT = """\
[project]
name = "study"
version = "0.1"
requires-python = ">=3.11,<3.13"
dependencies = ["antlr4-python3-runtime==4.9.3", "httpx[http2]", "pandas", "rich", "colorama; sys_platform == 'win32'"]
[dependency-groups]
dev = ["pytest"]
"""
RECIPE = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\nlibxcrypt: "4.4"\npytorch: none\npackages: [{from: uv.lock}]\n'
# What an installer writes itself, in each form that it has: programs name their Python, metadata the installer.
LIST = r"""
import hashlib, importlib.metadata, json, re
own = re.compile(r".*\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_\w+\.json)|.*\.pyc|\.\./.*/bin/.*")
found = {}
for package in importlib.metadata.distributions():
    files = {str(file): hashlib.sha256(file.locate().read_bytes()).hexdigest() for file in package.files if not own.fullmatch(str(file))}
    found[f"{package.name}=={package.version}"] = files
print(json.dumps(found))
"""


def test_the_lock_of_uv_becomes_the_files_that_uv_installs(spacious: Path):
    (spacious / "pyproject.toml").write_text(PROJECT)
    (spacious / "mine.yaml").write_text(RECIPE)
    python = ("--python", "3.11", "--no-python-downloads")
    run(find_uv_bin(), "sync", "--no-dev", "--link-mode", "copy", *python, cwd=spacious)
    env = NO_ENGINE | {"ENVBUILDER_INDEX": default_index()}  # as uv asks
    run(ENVBUILDER, "lock", spacious / "mine.yaml", env=env)
    built = build(str(spacious / "mine.yaml"), spacious / "built", env=env)
    expected = json.loads(run(spacious / ".venv/bin/python", "-c", LIST))
    found = json.loads(run(ENVBUILDER, "exec", built.sif, "--", "python", "-c", LIST))
    added = [name for name in found if name not in expected]
    assert [name.partition("==")[0] for name in added] == ["setuptools"]  # every environment has it
    assert {name: files for name, files in found.items() if name not in added} == expected
    assert sum(map(len, expected.values())) > 1000
