"""An extension counts as the distribution that it is, and what it requires is locked."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core.errors import IncompatibleError, UsageError
from envbuilder.core.processor import X86_64
from envbuilder.lock.resolve.extensions import lock_extensions
from envbuilder.lock.resolve.project_metadata import (
    ProjectMetadata,
    are_met,
    need_places,
    read_distribution,
    read_distributions,
    say_gaps,
)
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.extension import Extension
from envbuilder.sources.names import Sources
from tests.support.locks import make_artifact, make_means, make_recipe, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.sdists import write_sdist

SETUP = "from setuptools import setup\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pyproject.toml": "[project]\nname = 'Dw_Conv'\nversion = '1.0'\ndependencies = ['ocnn>=2']\n"}, ("dw-conv", "1.0", ("ocnn>=2",))),
        ({"pyproject.toml": "[project]\nname = 'dw'\nversion = '1.0'\n"}, ("dw", "1.0", ())),
        ({"setup.py": SETUP + "setup(name='dw', version='1.0', install_requires=['ocnn'])"}, ("dw", "1.0", ("ocnn",))),
        ({"setup.py": SETUP + "needs = ['ocnn', 'numpy']\nsetup(name='dw', version='1', install_requires=needs)"}, ("dw", "1", ("ocnn", "numpy"))),
        ({"setup.py": SETUP + "needs = []\nsetup(name='dw', version='1', install_requires=needs)"}, ("dw", "1", ())),
        ({"setup.py": SETUP + "needs = []\nneeds += read()\nsetup(name='dw', version='1', install_requires=needs)"}, ("dw", "1", None)),
        ({"setup.py": SETUP + "needs = ['ocnn', read()]\nsetup(name='dw', version='1', install_requires=needs)"}, ("dw", "1", None)),
        ({"setup.py": SETUP + "setup(name='dw', version='1.0')"}, ("dw", "1.0", ())),
        ({"setup.py": SETUP + "setup(name='dw', version=read(), install_requires=read())"}, ("dw", "", None)),
        ({"setup.py": SETUP + "setup(name='dw', version='1.0', install_requires=['ocnn', read()])"}, ("dw", "1.0", None)),
        ({"setup.py": SETUP + "setup(**read())"}, ("", "", None)),
        ({"setup.cfg": "[metadata]\nname = dw\nversion = 1.0\n[options]\ninstall_requires =\n  ocnn\n  numpy\n"}, ("dw", "1.0", ("ocnn", "numpy"))),
        ({"setup.cfg": "[metadata]\nname = dw\nversion = attr: dw.v\n[options]\n", "setup.py": SETUP + "setup()"}, ("dw", "", ())),
        ({"setup.cfg": "[options]\ninstall_requires = file: needs.txt\n", "setup.py": SETUP + "setup(name='dw')"}, ("dw", "", None)),
        ({"pyproject.toml": "[project]\nname = 'dw'\ndynamic = ['version', 'dependencies']\n[tool.setuptools.dynamic]\ndependencies = {file = 'x'}\n",
          "setup.py": SETUP + "setup(version='2')"}, ("dw", "2", None)),
        ({"pyproject.toml": "[project]\nname = 'dw'\nversion = '1'\ndynamic = ['dependencies']\n",
          "setup.py": SETUP + "setup(install_requires=['ocnn'])"}, ("dw", "1", ("ocnn",))),
        ({"PKG-INFO": "Metadata-Version: 2.2\nName: dw\nVersion: 1.0\nRequires-Dist: ocnn\n", "setup.py": "?"}, ("dw", "1.0", ("ocnn",))),
        ({"PKG-INFO": "Metadata-Version: 1.1\nName: dw\nVersion: 1.0\n", "setup.py": SETUP + "setup(install_requires=['ocnn'])"}, ("dw", "1.0", ("ocnn",))),
        ({"pyproject.toml": "[tool.poetry]\nname = 'dw'\n"}, ("", "", None)),
        ({"pyproject.toml": "no toml", "setup.py": "no python"}, ("", "", None)),
    ],
)  # fmt: skip
def test_a_project_is_read_and_never_run(
    files: dict[str, str], found: tuple[str, str, tuple[str, ...] | None]
) -> None:
    said = read_distribution("it", {name: text.encode() for name, text in files.items()})
    assert (said.name, said.version, said.requires) == found


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", f"project = {DEEP}"), ("pyproject.toml", f"a = {'9' * 6000}"), ("pyproject.toml", "project = 5\ntool = 5"),
        ("pyproject.toml", "[project]\ndependencies = 5"), ("pyproject.toml", "[tool]\nsetuptools = 5\n[project]\nname = 'x'"),
        ("pyproject.toml", "[project]\ndependencies = ['--index-url https://evil.example/simple']"),
        ("pyproject.toml", '[project]\ndependencies = ["numpy\\n--index-url https://evil.example/simple"]'),
        ("PKG-INFO", "Metadata-Version: 2.2\nName: x\nVersion: 1\nRequires-Dist: -r /etc/passwd\n"),
        ("setup.py", SETUP + "setup(install_requires=['-r /etc/passwd'])"),
    ],
)  # fmt: skip
def test_what_a_project_says_of_itself_is_refused_where_it_is_no_requirement(name: str, text: str):
    with pytest.raises(UsageError, match="the project of the extension `it` says of itself cannot be read"):
        read_distribution("it", {name: text.encode()})


@pytest.mark.parametrize("name", ["/tmp/evil", "../evil", "a/b", "x\\nRequires-Dist: evil", "-x", "", "."])
def test_a_name_that_is_none_names_no_file_of_this_machine(tmp_path: Path, name: str):
    text = f'[project]\nname = "{name}"\nversion = "1.0"\n'
    assert read_distribution("it", {"pyproject.toml": text.encode()}).name == ""


OWN = ProjectMetadata(
    extension="dw", name="dw", version="1.0", requires=("numpy>=2", "old; python_version < '3'")
)


@pytest.mark.parametrize(
    ("packages", "are"),
    [(("numpy==2.4",), True), (("numpy==1.26",), False), ((), False), (("numpy==2.4", "dw==1.0"), False)],
    ids=["met", "other-version", "absent", "locked-as-well"],
)
def test_a_lock_is_kept_while_it_has_what_the_extensions_require(
    packages: tuple[str, ...], *, are: bool
) -> None:
    there = tuple(make_artifact(*one.split("==")) for one in packages)
    assert are_met((OWN,), there, "3.11", X86_64) == are


Locked = Callable[..., tuple[str, ...]]
PROJECT = "[project]\nname = 'dw-conv'\nversion = '1.0'\ndependencies = ['ocnn', 'torch>=2']\n"


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    base, files = tmp_path / "base", tmp_path / "files"
    write_wheel(base, "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    wheels = (
        write_wheel(files, "setuptools", "80.0.0"),
        write_wheel(files, "ocnn", "2.2", requires=("dw_conv>=1",)),
        write_wheel(files, "ocnn", "3.0", requires=("dw_conv>=2",)),
        write_wheel(files, "dw_conv", "1.0"),
        write_wheel(files, "dw_conv", "2.0"),
    )
    write_index(tmp_path / "simple", *wheels)
    return Sources(debian=(), indexes=(f"{(tmp_path / 'simple').as_uri()}/",), folders=(base,))


@pytest.mark.programs
@pytest.mark.parametrize("form", ["path", "sdist"])
def test_what_an_extension_requires_is_locked_and_the_extension_is_not(
    tmp_path: Path, sources: Sources, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """Its version holds another package back, which is said."""
    if form == "path":
        (tmp_path / "dw").mkdir()
        (tmp_path / "dw/pyproject.toml").write_text(PROJECT)
        extension = Extension(name="dwconv", path="dw")
    else:
        write_sdist(tmp_path / "base", "dw_conv", "1.0", {"pyproject.toml": PROJECT}, ".zip")
        extension = Extension(name="dwconv", sdist="dw-conv==1.0")
    recipe, means = (
        make_recipe(tmp_path, packages=("ocnn",), extensions=(extension,)),
        make_means(tmp_path, sources),
    )
    locked = lock_extensions(recipe, means, old=None)
    with caplog.at_level(logging.WARNING):
        found = resolve_wheels(make_task(recipe, means), extensions=read_distributions(recipe, locked, means))  # fmt: skip
    assert [(one.name, one.version) for one in found.artifacts] == [
        ("ocnn", "2.2"),
        ("setuptools", "80.0.0"),
        ("torch", "2.13.0+cpu"),
    ]
    assert caplog.messages == ["ocnn is 2.2, not 3.0: 3.0 requires `dw_conv>=2`, and dw-conv is 1.0"]


COMPILING = """
from setuptools import setup
from torch.utils.cpp_extension import CppExtension, CUDAExtension

setup(
    name="dw",
    version="1.0",
    install_requires=[],
    ext_modules=[
        CUDAExtension(name="dw_cuda", sources=["./csrc/dw.cpp", "csrc/dw.cu"] + found()),
        CppExtension("dw_cpu", ["csrc/dw.cpp", "csrc/cpu.cpp"]),
    ],
)
"""


@pytest.mark.parametrize(
    ("there", "patch", "lacking"),
    [
        (("csrc/dw.cpp", "csrc/dw.cu", "csrc/cpu.cpp"), "", ""),
        (("csrc/dw.cpp",), "", "csrc/dw.cu`, `csrc/cpu.cpp"),
        ((), "", "csrc/dw.cpp`, `csrc/dw.cu`, `csrc/cpu.cpp"),
        ((), "more.patch", ""),
        (("csrc/dw.cpp", "csrc/dw.cu", "csrc/cpu.cpp", "amd/dw.cpp"), "", ""),
    ],
    ids=["all", "one", "none", "patched", "renamed by setup.py"],
)
def test_lock_says_which_sources_an_archive_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, there: tuple[str, ...], patch: str, lacking: str
) -> None:
    """Some projects publish source distributions that hold their Python files alone."""
    amd = '        *([CUDAExtension("dw_amd", ["amd/dw.cu"])] if torch.version.hip else []),\n    ],\n)'
    setup = COMPILING.replace("    ],\n)", amd) if "amd/dw.cpp" in there else COMPILING
    files = {"setup.py": setup} | dict.fromkeys(there, "")
    write_sdist(tmp_path / "base", "dw", "1.0", files)
    (tmp_path / "more.patch").write_text("")
    extension = Extension(name="dw", sdist="dw==1.0", patch=patch)
    recipe = make_recipe(tmp_path, extensions=(extension,))
    means = make_means(tmp_path, Sources(debian=(), indexes=(), folders=(tmp_path / "base",)))
    with caplog.at_level(logging.WARNING):
        say_gaps(read_distributions(recipe, lock_extensions(recipe, means, old=None), means))
    told = f"the archive of the extension `dw` lacks `{lacking}`, which its setup.py compiles: "
    told += "take another version, or name `git` and `commit`"
    assert caplog.messages == ([told] if lacking else [])


PLACED = """[project]
name = "app"
version = "1.0"
dependencies = ["Core.Lib>=1", "numpy"]
[tool.uv.sources]
core-lib = [{git = "https://host.invalid/core"}]
numpy = {index = "site"}
other = {workspace = true}
"""


@pytest.mark.parametrize(
    ("packages", "form", "is_refused"),
    [((), "path", True), (("core_lib",), "path", False), (("numpy",), "path", True), ((), "sdist", False)],
)
def test_what_a_project_has_elsewhere_is_not_taken_by_its_name(
    tmp_path: Path, packages: tuple[str, ...], form: str, is_refused: bool
) -> None:
    write_sdist(tmp_path / "base", "app", "1.0", {"pyproject.toml": PLACED})
    (tmp_path / "app").mkdir()
    (tmp_path / "app/pyproject.toml").write_text(PLACED)
    path, sdist = ("app", "") if form == "path" else ("", "app==1.0")
    recipe = make_recipe(
        tmp_path, extensions=(Extension(name="app", path=path, sdist=sdist),), packages=packages
    )
    means = make_means(tmp_path, Sources(debian=(), indexes=(), folders=(tmp_path / "base",)))
    projects = read_distributions(recipe, lock_extensions(recipe, means, old=None), means)
    refused = pytest.raises(IncompatibleError, match="the extension `app` requires `core-lib`")
    with refused if is_refused else contextlib.nullcontext():
        need_places(recipe, projects)


@pytest.mark.parametrize("is_root", [True, False])
def test_the_root_of_a_workspace_says_where_its_members_packages_are(
    tmp_path: Path, *, is_root: bool
) -> None:
    (tmp_path / "members/app").mkdir(parents=True)
    member, _, sources = PLACED.partition("[tool.uv.sources]")
    (tmp_path / "members/app/pyproject.toml").write_text(member)
    workspace = '[tool.uv.workspace]\nmembers = ["members/*"]\n' if is_root else ""
    (tmp_path / "pyproject.toml").write_text(f"{workspace}[tool.uv.sources]{sources}")
    recipe = make_recipe(tmp_path, extensions=(Extension(name="app", path="members/app"),))
    means = make_means(tmp_path, Sources(debian=(), indexes=(), folders=()))
    (project,) = read_distributions(recipe, lock_extensions(recipe, means, old=None), means)
    assert project.elsewhere == ({"core-lib"} if is_root else set())
    (tmp_path / "pyproject.toml").write_text(f"tool = {DEEP}")
    (again,) = read_distributions(recipe, lock_extensions(recipe, means, old=None), means)
    assert (again.requires, again.elsewhere) == (project.requires, set())


@pytest.mark.parametrize("form", ["path", "sdist"])
@pytest.mark.parametrize("is_set", [True, False])
def test_lock_says_which_build_would_download_a_wheel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, *, is_set: bool
) -> None:
    code = COMPILING + 'import os\nforced = os.getenv("MAMBA_FORCE_BUILD", "FALSE") == "TRUE"\n'
    write_sdist(
        tmp_path / "base",
        "dw",
        "1.0",
        {"setup.py": code, "csrc/dw.cpp": "", "csrc/dw.cu": "", "csrc/cpu.cpp": ""},
    )
    (tmp_path / "dw").mkdir()
    (tmp_path / "dw/setup.py").write_text(code)
    path, sdist = ("dw", "") if form == "path" else ("", "dw==1.0")
    env = (("MAMBA_FORCE_BUILD", "TRUE"),) if is_set else ()
    extension = Extension(name="dw", path=path, sdist=sdist, env=env)
    recipe = make_recipe(tmp_path, extensions=(extension,))
    means = make_means(tmp_path, Sources(debian=(), indexes=(), folders=(tmp_path / "base",)))
    with caplog.at_level(logging.WARNING):
        say_gaps(read_distributions(recipe, lock_extensions(recipe, means, old=None), means))
    (line,) = (at for at, text in enumerate(code.splitlines(), start=1) if "getenv" in text)
    told = f"setup.py:{line} of the extension `dw` asks for "
    told += (
        '`env: {MAMBA_FORCE_BUILD: "TRUE"}`: without it, the build looks for a compiled wheel on the network'
    )
    assert caplog.messages == ([] if is_set else [told])


@pytest.mark.parametrize(
    ("gpus", "form", "settings"),
    [
        (("A100",), "sdist", ('env: {DW_WITH_CUDA: "1"}', 'env: {NATTEN_CUDA_ARCH: "8.0"}', 'options: ["--cpp_ext"]')),
        ((), "sdist", ('options: ["--cpp_ext"]',)),
        (("A100",), "path", ()),
    ],
)  # fmt: skip
def test_lock_says_what_a_project_that_it_fetched_compiles_by(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    gpus: tuple[str, ...],
    form: str,
    settings: tuple[str, ...],
) -> None:
    code = (
        COMPILING
        + 'import os, sys\nos.getenv("DW_WITH_CUDA"), os.getenv("NATTEN_CUDA_ARCH"), os.getenv("DW_EXT", "0")\n'
    )
    code += '"--cpp_ext" in sys.argv\n'
    (tmp_path / "dw").mkdir()
    (tmp_path / "dw/setup.py").write_text(code)
    write_sdist(tmp_path / "base", "dw", "1.0", {"setup.py": code})
    path, sdist = ("dw", "") if form == "path" else ("", "dw==1.0")
    extension = Extension(name="dw", path=path, sdist=sdist, env=(("DW_EXT", "0"),))
    recipe = make_recipe(tmp_path, gpus=gpus, extensions=(extension,))
    means = make_means(tmp_path, Sources(debian=(), indexes=(), folders=(tmp_path / "base",)))
    with caplog.at_level(logging.WARNING):
        say_gaps(read_distributions(recipe, lock_extensions(recipe, means, old=None), means))
    asked = [message for message in caplog.messages if "asks for" in message]
    assert [message.split("`")[3] for message in asked] == list(settings)


@pytest.mark.parametrize(("known", "count"), [((), 1), (("mmcv",), 0)])
def test_what_the_table_knows_of_a_project_needs_no_name(
    caplog: pytest.LogCaptureFixture, known: tuple[str, ...], count: int
) -> None:
    say_gaps((ProjectMetadata(extension="mmcv"),), known)
    assert len(caplog.messages) == count
