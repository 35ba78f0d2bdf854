"""`init --from FOLDER` loses nothing in silence: what public projects have in their files is in the recipe, or is named.

`docs/evidence/adopt.md` has the projects in which each of these was seen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from envbuilder.core.errors import UsageError
from envbuilder.init import read_source
from envbuilder.init.requests import Requests
from tests.support.other_locks import PIXI

POETRY = """\
[tool.poetry.dependencies]
python = "^3.11"
tqdm = "^4"
wandb = {version = "^0.17", optional = true}
[tool.poetry.extras]
log = ["wandb"]
"""
# Each name has another source than the Python index; a stranger may own it there.
SOURCES = """\
[project]
dependencies = ["core", "private>=1", "both", "hooked"]
[tool.poetry.dependencies]
private = {source = "site"}
wild = "4.*"
company = {version = "^1.2", source = "site"}
both = [{version = "^1", python = "<3.11"}, {version = "^2", python = ">=3.11"}]
split = [{version = "^1", python = "<3.11"}, {version = "^2", python = ">=3.11"}]
away = {version = "^1", markers = "sys_platform == 'win32'"}
[tool.poetry.group.train.dependencies]
wandb = "*"
[[tool.poetry.source]]
name = "site"
url = "https://site.invalid/simple"
priority = "explicit"
[tool.uv]
dev-dependencies = ["ruff"]
sources = {core = {workspace = true}, three = {git = "https://host.invalid/three"}}
workspace = {members = ["members/*"]}
[tool.pdm.resolution]
excludes = ["six"]
[tool.hatch.metadata.hooks.custom]
"""
MEMBER = """[project]
name = "core"
dependencies = ["einops", "two", "three", "site-only"]
[tool.uv]
sources = {two = {git = "https://host.invalid/two"}, site-only = {index = "site"}}
"""
PIPFILE = f"""[[source]]
name = "pypi"
url = "{PYPI_SIMPLE_ENDPOINT}"
[[source]]
name = "site"
url = "https://site.invalid/simple"
[packages]
rich = "*"
private = {{version = "==1.0", index = "site"}}
away = {{version = "*", sys_platform = "== 'win32'"}}
"""
PIXI_FILE = """[workspace]
channels = ["conda-forge", "https://host.invalid/robots"]
[dependencies]
robot = {version = "*", channel = "https://host.invalid/robots"}
[pypi-dependencies]
private = {version = ">=1", index = "https://site.invalid/simple", env-markers = "os_name == 'posix'"}
[pypi-options]
extra-index-urls = ["https://other.invalid/simple"]
[constraints]
scipy = "<1.14"
"""
PDM = """\
[project]
dependencies = ["tqdm"]
[tool.pdm]
dev-dependencies = {test = ["rich"]}
source = [{name = "private", url = "https://private.invalid/simple"}]
[tool.hatch.envs.default]
dependencies = ["einops"]
"""
SETUP = 'from setuptools import setup\nEXTRAS = {"vis": ["open3d"], "dev": ["black"]}\nsetup(name="a", extras_require=EXTRAS)\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    files: Mapping[str, str]
    wanted: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # patterns of messages
    homes: tuple[str, ...] = ()  # packages of one index
    indexes: tuple[str, ...] = ()  # of all packages: `take_indexes` reports them


CASES = {
    "a list with other versions than the lock beside it": Case(
        files={"pixi.lock": PIXI, "requirements.txt": "einops==0.6.0\ntqdm==4.66.1\nxxhash>=3\nplac==1; os_name == 'nt'\n"},
        packages=("einops==0.8.0", 'plac==1; os_name == "nt"', "tqdm==4.66.1", "xxhash==3.5.0.*"),
        left=(r"this lock's versions win over `einops==0.6.0` of \S+/requirements.txt:1$",),
    ),
    "scripts that a lock's environment starts with": Case(
        files={"pixi.lock": PIXI, "pixi.toml": '[activation]\nscripts = ["env.sh"]\n[dependencies]\nffmpeg = "*"\n'},
        packages=("einops==0.8.0", "xxhash==3.5.0.*"), left=("activation: scripts",),
    ),
    "Debian's build of a Python module": Case(
        files={"Dockerfile": "FROM debian:12\nRUN apt-get install -y python3-opencv python3-tk python3-pip libgl1\n"},
        apt=("python3-tk", "libgl1"), left=("python3-opencv",),
    ),
    "the extras of a setup.py": Case(files={"setup.py": SETUP}, left=("extras: vis, dev",)),
    "a wanted extra of a setup.py": Case(files={"setup.py": SETUP}, wanted=("vis",), packages=("open3d",), left=("extras: dev",)),
    "the extras of a setup.cfg": Case(
        files={"setup.cfg": "[options.extras_require]\nvis =\n    open3d\n    trimesh>=4\ndev = black\n"},
        wanted=("vis",), packages=("open3d", "trimesh>=4"), left=("extras: dev",),
    ),
    "what an extra of Poetry alone needs": Case(files={"pyproject.toml": POETRY}, packages=("tqdm<5,>=4",), left=("extras: log",)),
    "a wanted extra of Poetry": Case(files={"pyproject.toml": POETRY}, wanted=("log",), packages=("tqdm<5,>=4", "wandb<0.18,>=0.17")),
    "a group and an environment of PDM and Hatch": Case(
        files={"pyproject.toml": PDM},
        packages=("tqdm",), left=("groups of PDM: test", "environments of Hatch: default"), indexes=("https://private.invalid/simple",),
    ),
    "sources of uv's and Poetry's tables": Case(
        files={"pyproject.toml": SOURCES, "members/core/pyproject.toml": MEMBER, "members/app/pyproject.toml": '[project]\nname = "app"\n'},
        packages=('away<2,>=1; sys_platform == "win32"', "both", "company<2,>=1.2", "hooked", "private>=1", 'split<2,>=1; python_version < "3.11"', 'split<3,>=2; python_version >= "3.11"', "wild==4.*"),
        left=(
            "groups of Poetry: train", "hooks of Hatch: custom", "resolution of PDM: excludes", "dev-dependencies of uv: ruff", r"workspace: members/app\"",
            r"pyproject.toml: left out \"two @ git\+https://host.invalid/two\"", "`two`, which `core` requires, .* a stranger's",
            "`three`, which `core` requires, .* a stranger's",
        ),
        homes=("site-only", "private", "company"),
    ),
    "an index of a Pipfile": Case(files={"Pipfile": PIPFILE}, packages=('away; sys_platform == "win32"', "private==1.0", "rich"), homes=("private",)),
    "an index and a channel of pixi": Case(
        files={"pixi.toml": PIXI_FILE}, packages=('private>=1; os_name == "posix"',),
        left=("robots::robot: only conda", "constraints: scipy", "channels: https://host.invalid/robots"), homes=("private",),
    ),
    "commands of a script and a Makefile": Case(
        files={
            "requirements.txt": "tqdm\nnumpy<2; python_version < '3.12'\nnumpy>=2; python_version >= '3.12'\n",
            "bootstrap.sh": "pip install wandb\n", "tools/get.sh": "cd x && $(PYTHON) -m pip install rich\n", "Makefile": "all:\n\t.venv/bin/pip install timm\n",
        },
        packages=('numpy<2; python_version < "3.12"', 'numpy>=2; python_version >= "3.12"', "tqdm"),
        left=("^bootstrap.sh:1: .*`pip install wandb`", r"^get.sh:1: .*`\$\(PYTHON\) -m pip install rich`", "^Makefile:2: .*`.venv/bin/pip install timm`"),
    ),
    "an environment by another name": Case(files={"environment-gpu.yml": "dependencies: [tqdm]\n"}, packages=("tqdm",)),
    "a second environment": Case(
        files={"environment-gpu.yml": "dependencies: [einops]\n", "environment.yml": "dependencies: [tqdm]\n"},
        packages=("tqdm",), left=("environment-gpu.yml: this file is not read",),
    ),
    "the version of a library that Debian has": Case(
        files={"environment.yml": "dependencies: [eigen=3.4, fmt]\n"},
        apt=("libeigen3-dev", "libfmt-dev"), left=("in its versions, stand for conda's eigen=3.4",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_project_is_lost_in_silence(tmp_path: Path, name: str):
    case = CASES[name]
    for file, text in case.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    requests = Requests(wanted=case.wanted)
    read_source(tmp_path, requests)
    said = [f"{Path(left.where).name}: {left.message}" for left in requests.left]
    assert sorted(request.text for request in requests.packages.values()) == list(case.packages)
    assert set(case.indexes) <= {address for _, address, _ in requests.indexes}
    assert tuple(requests.homes) == case.homes
    assert tuple(requests.apt)[: len(case.apt)] == case.apt
    assert all(any(re.search(text, message) for message in said) for text in case.left), said


@pytest.mark.parametrize(
    ("name", "way"), [("pdm.lock", "pdm export"), ("conda.lock", "conda-lock.yml"), ("a.b", "its kind")]
)
def test_a_named_file_that_is_not_read_says_why(tmp_path: Path, name: str, way: str):
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=re.escape(way)):
        read_source(tmp_path / name, Requests())
