"""Which files of a project's folder its lock holds, by what its build names; the rest decides nothing and may change."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from envbuilder.lock.source_files import GitIgnored, own_files
from envbuilder.recipe.extension import Extension
from tests.support.source_files import make_recipe

EXTENSION = "CUDAExtension('pkg._C', ['csrc/a.cpp', 'csrc/a.cu'])"
SETUP = f"""
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name='train', test_suite='tests', url='https://host/train/docs', packages=find_packages(exclude=('tests', 'docs*')), ext_modules=[{EXTENSION}], cmdclass={{'build_ext': BuildExtension}})
"""
LISTED = f"from setuptools import setup\nsetup(name='train', packages=['pkg'], ext_modules=[{EXTENSION}])\n"
# What a folder holds in which people train. None of it decides what is compiled.
TRAINED = {
    "train.py": "import pkg\nopen('runs/x/metrics.json', 'w')\n",
    "train/helper.py": "",
    "logs/cpu/1.txt": "epoch 1\n",
    "runs/x/metrics.json": "{}\n",
    "runs/x/code/csrc/a.cu": "// a copy\n",
    "outputs/config.yaml": "lr: 1\n",
    "wandb/run-1/files/requirements.txt": "torch\n",
    "recipes/other.yaml": "base: debian/bookworm\n",
    "sites/here.yaml": "",
    "tests/__init__.py": "",
    "docs/index.md": "csrc/a.cu\n",
    "notebook.ipynb": "{}",
    "README.md": "",
}
PACKAGE = {"pkg/__init__.py": "from pkg import _C\n", "csrc/a.cpp": "", "csrc/a.cu": ""}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def locked(folder: Path, files: dict[str, str], path: str = ".", capture: tuple[str, ...] = ()) -> set[str]:
    write(folder, files)
    (of,) = own_files(make_recipe(folder, Extension(name="pkg", path=path, capture=capture))).values()
    return {file.path for file in of}


SHAPES: dict[str, tuple[dict[str, str], str]] = {
    "flat": ({"setup.py": SETUP}, "setup.py"),
    "listed": ({"setup.py": LISTED}, "setup.py"),
    "subpackage": ({"setup.py": LISTED.replace("'pkg'", "'pkg.ops'"), "pkg/ops/__init__.py": ""}, "setup.py pkg/ops/__init__.py"),
    "setup.cfg": (
        {
            "setup.py": f"import setuptools\nsetuptools.setup(ext_modules=[{EXTENSION}])\n",
            "setup.cfg": "[metadata]\nname = train\nlong_description = file: README.md\n[options]\npackages = find:\n"
            "[options.packages.find]\nexclude =\n    tests\n    docs\n[flake8]\nexclude = runs,logs\n[tool:pytest]\ntestpaths = outputs\n",
        },
        "setup.py setup.cfg README.md",
    ),
    "pyproject": (
        {
            "pyproject.toml": "[build-system]\nrequires = ['setuptools', 'torch']\n[project]\nname = 'train'\ndescription = 'train runs'\n"
            "dynamic = ['version']\nreadme = 'README.md'\nurls = {Docs = 'https://host/docs'}\n[tool.setuptools]\npackages = ['pkg']\n"
            "[tool.setuptools.dynamic]\nversion = {file = 'VERSION'}\n[tool.ruff]\nexclude = ['runs', 'logs']\n"
            "[[tool.setuptools.ext-modules]]\nname = 'pkg._C'\nsources = [\n  'csrc/a.cpp',\n]\n",
            "LICENSE": "MIT",
            "VERSION": "1",
        },
        "pyproject.toml LICENSE VERSION README.md",
    ),
    "discovered": (
        {
            "pyproject.toml": "[project]\nname = 'pkg'\nversion = '1'\n",
            "setup.py": f"from setuptools import setup\nsetup(ext_modules=[{EXTENSION}])\n",
            "train/helper.py": "", "train.py": "",
        },
        "pyproject.toml setup.py train/helper.py",
    ),
    "helper": (
        {
            "setup.py": f"from tools.gpus import flags\nimport versions\nfrom setuptools import setup\nsetup(packages=['pkg'], ext_modules=[{EXTENSION}])\n",
            "tools/gpus.py": "import os\nflags = open(os.path.join('cfg', 'flags.txt')).read()\n",
            "tools/__init__.py": "", "versions.py": "", "cfg/flags.txt": "-O3",
        },
        "setup.py tools/gpus.py tools/__init__.py versions.py cfg/flags.txt",
    ),
    "includes": (
        {
            "setup.py": LISTED,
            "csrc/a.cu": '#include "../common/x.cuh"\n#include <vector>\n',
            "common/x.cuh": '#include "shared/y.h"\n', "shared/y.h": "", "unused/z.h": "",
        },
        "setup.py common/x.cuh shared/y.h",
    ),
    "namespace": ({"setup.py": SETUP.replace("find_packages", "find_namespace_packages"), "acme/ops/__init__.py": ""},
        "setup.py acme/ops/__init__.py train/helper.py"),
    "namespace by name": ({"setup.py": SETUP.replace("find_packages(", "find_namespace_packages(include=['acme.*', 'pkg'], "), "acme/ops/x.py": ""},
        "setup.py acme/ops/x.py"),
    "namespace in a table": (
        {"pyproject.toml": "[project]\nname='x'\n[tool.setuptools.packages.find]\ninclude = ['acme.*', 'pkg']\n",
         "setup.py": f"from setuptools import setup\nsetup(ext_modules=[{EXTENSION}])\n", "acme/ops/__init__.py": ""},
        "setup.py pyproject.toml acme/ops/__init__.py",
    ),
    "another file's include": ({"setup.py": SETUP, "MANIFEST.in": "include README.md\nexclude more\n", "more/__init__.py": ""}, "setup.py MANIFEST.in README.md more/__init__.py"),
    "read in an argument": (
        {"setup.py": LISTED.replace("packages=", "install_requires=open('requirements.txt').read().split(), extras_require={'x': lines('x.txt')},"
                                    " description=open('README.md').read(), keywords='train logs'.split(), packages="),
         "requirements.txt": "", "x.txt": ""},
        "setup.py requirements.txt x.txt README.md",
    ),
    "make": (
        {"setup.py": LISTED + "subprocess.check_call(['make'])\n", "Makefile": "a.o: gen/a.py\n\tpython gen/a.py\ninclude x/rules.mk\n",
         "gen/a.py": "", "x/rules.mk": "", "kernels/k.cu": ""},
        "setup.py Makefile gen/a.py x/rules.mk kernels/k.cu runs/x/code/csrc/a.cu",
    ),
    "a Makefile for people": ({"setup.py": LISTED, "Makefile": "train:\n\tpython train.py > logs/cpu/1.txt\n"}, "setup.py Makefile"),
    "includes of the top": ({"setup.py": LISTED, "csrc/a.cu": "#include <common/x.h>\n", "common/x.h": ""}, "setup.py common/x.h"),
    "joined": (
        {
            "setup.py": "import os, glob\nhere = os.path.dirname(os.path.abspath(__file__))\nfrom setuptools import setup, Extension\n"
            "setup(packages=['pkg'], ext_modules=[Extension('pkg._C', glob.glob(os.path.join(here, 'csrc', '*.c*')),"
            " extra_compile_args=['-Iinc -O3'], include_dirs=[here + '/third/inc'])])\n",
            "inc/x.h": "", "third/inc/y.h": "",
        },
        "setup.py inc/x.h third/inc/y.h",
    ),
    "tutorial": (
        {
            "setup.py": "import os, glob\nthis_dir = os.path.dirname(os.path.curdir)\next_dir = os.path.join(this_dir, 'pkg', 'csrc')\n"
            "sources = list(glob.glob(os.path.join(ext_dir, '*.cu')))\nfrom setuptools import setup, Extension, find_packages\n"
            "setup(packages=find_packages(exclude=['tests']), ext_modules=[Extension('pkg._C', sources)], py_limited_api=True)\n",
            "pkg/csrc/b.cu": "",
        },
        "setup.py pkg/csrc/b.cu",
    ),
    "manifest": (
        {"setup.py": LISTED, "MANIFEST.in": "graft generated\nrecursive-include pkg *.json\nprune runs\n# logs\n", "generated/t.txt": ""},
        "setup.py MANIFEST.in generated/t.txt",
    ),
    "cmake": (
        {
            "pyproject.toml": "[build-system]\nrequires = ['scikit-build-core', 'torch']\n[project]\nname = 'train'\n"
            "[tool.scikit-build]\nwheel.packages = ['pkg']\n",
            "CMakeLists.txt": "project(train)\n# logs\nfile(GLOB S ${CMAKE_CURRENT_SOURCE_DIR}/csrc/*.cu)\ninclude(cmake/x.cmake)\n",
            "cmake/x.cmake": "",
        },
        "pyproject.toml CMakeLists.txt cmake/x.cmake",
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_build_names_is_locked_and_what_a_training_writes_is_not(tmp_path: Path, shape: str):
    files, more = SHAPES[shape]
    package = PACKAGE if shape != "tutorial" else {"pkg/__init__.py": ""}
    assert locked(tmp_path, TRAINED | package | files) == {*package, *more.split()}


def test_a_source_layout_is_locked_as_a_whole(tmp_path: Path):
    files = {
        "pyproject.toml": "[project]\nname = 'pkg'\n", "src/pkg/__init__.py": "", "src/pkg/a.cu": "",
    }  # fmt: skip
    assert locked(tmp_path, TRAINED | files) == set(files)


@pytest.mark.parametrize("search", [
    "glob.glob('*.cu')", "glob.glob('**/*.cu', recursive=True)", "pathlib.Path('.').rglob('*.cu')", "list(here.glob('*.cu'))",
    "[f for f in os.listdir('.') if f.endswith('.cu')]", "[f for _, _, fs in os.walk(here) for f in fs]", "sources(here)",
])  # fmt: skip
def test_a_setup_py_that_searches_its_folder_makes_each_source_count(tmp_path: Path, search: str):
    setup = f"""
import glob, os, pathlib
from setuptools import Extension, setup
here = pathlib.Path(__file__).parent
def sources(root):
    return glob.glob(os.path.join(root, '*.cu'))
setup(packages=['pkg'], ext_modules=[Extension('pkg._C', {search})])
"""
    files = {
        "setup.py": setup,
        "a.cu": "",
        "logs/x.json": "",
        "train.py": "",
        "pkg/__init__.py": "",
        "logs/b.cu": "",
    }
    assert locked(tmp_path, files) == {"setup.py", "a.cu", "pkg/__init__.py"}


def test_what_git_ignores_is_not_locked_unless_the_build_names_it(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    files = PACKAGE | {
        "setup.py": SETUP + "open('pkg/generated.txt')\n",
        ".gitignore": "*.json\n/lib/\n__pycache__\n",
        "pkg/.gitignore": "cache*/\n*.txt\n",
        "pkg/x.json": "", "pkg/cache_1/x.py": "", "pkg/generated.txt": "", "pkg/other.txt": "", "lib/a.cu": "", "csrc/lib/b.cuh": "",
    }  # fmt: skip
    assert locked(tmp_path, files) == {*PACKAGE, "setup.py", "pkg/generated.txt", "csrc/lib/b.cuh"}
    named = files | {"MANIFEST.in": "graft lib\n"}
    assert locked(tmp_path, named) >= {"MANIFEST.in", "lib/a.cu"}


def test_a_project_below_the_recipe_has_the_same_rule_and_its_data(tmp_path: Path):
    files = TRAINED | PACKAGE | {"setup.py": SETUP, "pkg/x.bin": ""}
    below = {f"third/op/{name}": text for name, text in files.items()}
    # Whoever clones it into a folder that git ignores names it in the recipe.
    (tmp_path / ".git").mkdir()
    counted = locked(tmp_path, below | {".gitignore": "third/\n"}, "third/op")
    assert counted == {f"third/op/{name}" for name in (*PACKAGE, "setup.py", "pkg/x.bin")}


def test_of_the_recipes_folder_data_counts_by_its_suffix_in_the_build(tmp_path: Path):
    files = PACKAGE | {"setup.py": LISTED, "pkg/x.bin": "", "pkg/x.npy": ""}
    assert "pkg/x.bin" not in locked(tmp_path, files)
    with_data = LISTED.replace("name=", "package_data={'pkg': ['*.bin']}, name=")
    assert locked(tmp_path, files | {"setup.py": with_data}) == {*PACKAGE, "setup.py", "pkg/x.bin"}
    table = {"pyproject.toml": "[tool.setuptools.package-data]\npkg = ['logs/*.npy']\n", "logs/y.npy": ""}
    assert locked(tmp_path, files | table) == {*PACKAGE, "setup.py", "pyproject.toml", "pkg/x.npy"}


@pytest.mark.parametrize(
    ("name", "text", "data"),
    [
        ("setup.py", LISTED.replace("name=", "package_data={'pkg': ['data/*', 'deep/**/*.npz']}, name="), {"pkg/data/g.lark", "pkg/data/w.bin", "pkg/deep/a/b.npz"}),
        ("pyproject.toml", '[tool.setuptools.package-data]\n"*" = ["*.lark"]\n', {"pkg/data/g.lark"}),
        ("setup.cfg", "[options.package_data]\npkg = data/*\n", {"pkg/data/g.lark", "pkg/data/w.bin"}),
        ("MANIFEST.in", "graft pkg/data\nprune other\n", {"pkg/data/g.lark", "pkg/data/w.bin"}),
        ("MANIFEST.in", "recursive-include pkg *.npz w.*\n", {"pkg/data/w.bin", "pkg/deep/a/b.npz"}),
    ],
)  # fmt: skip
def test_what_a_build_installs_as_data_is_locked_whatever_its_suffix(
    tmp_path: Path, name: str, text: str, data: set[str]
):
    shipped = dict.fromkeys(("pkg/data/g.lark", "pkg/data/w.bin", "pkg/deep/a/b.npz", "runs/data/w.bin"), "")
    counted = locked(tmp_path, PACKAGE | shipped | {"setup.py": LISTED} | {name: text})
    assert counted == {*PACKAGE, "setup.py", name, *data}


def test_of_a_capture_what_is_imported_counts_with_its_sources(tmp_path: Path):
    files = TRAINED | {
        "train.py": "from torch.utils.cpp_extension import load\nfrom nets import block\nopen('runs/x/metrics.json', 'w')\n"
        "import glob, os\ndata = os.listdir('.') + glob.glob(os.environ['DATA'] + '/*.json')\n"
        "cfg = open('config.yaml')\ndef build():\n    load('op', ['csrc/a.cu'])\n",
        "nets/__init__.py": "", "nets/block.py": "from . import deep\n", "nets/deep.py": "SOURCES = 'kernels/b.cu'\n",
        "csrc/a.cu": "", "kernels/b.cu": "", "kernels/notes.txt": "", "config.yaml": "", "other.py": "", "csrc/c.cuh": "",
    }  # fmt: skip
    assert locked(tmp_path, files, capture=("import train; train.build()",)) == {
        "train.py", "nets/__init__.py", "nets/block.py", "nets/deep.py", "csrc/a.cu", "csrc/c.cuh", "kernels/b.cu", "config.yaml",
        "runs/x/code/csrc/a.cu",
    }  # fmt: skip


def test_a_single_module_is_found_by_itself_and_a_program_beside_packages_is_not(tmp_path: Path):
    module = {
        "setup.py": f"from setuptools import setup\nsetup(ext_modules=[{EXTENSION}])\n",
        "pyproject.toml": "[project]\nname = 'train'\n",
        "foo.py": "", "csrc/a.cu": "", "conftest.py": "",
    }  # fmt: skip
    assert locked(tmp_path / "module", module) == {*module} - {"conftest.py"}
    assert "foo.py" not in locked(tmp_path / "package", module | {"pkg/__init__.py": ""})


@pytest.mark.parametrize(("backend", "more"), [
    ("mesonpy", ["meson.build", "pkg/meson.build", "meson.options"]), ("maturin", ["Cargo.toml", "Cargo.lock", "src/lib.rs", "rust/Cargo.lock"]),
    ("scikit_build_core.build", ["CMakeLists.txt", "cmake/x.cmake", "kernels/a.cpp"]), ("flit_core.buildapi", ["pkg.py"]),
])  # fmt: skip
def test_every_file_counts_for_another_tool_than_setuptools(tmp_path: Path, backend: str, more: list[str]):
    files = dict.fromkeys(more, "") | {"pyproject.toml": f"[build-system]\nbuild-backend = '{backend}'\n"}
    apart = {"logs/1.txt": "", "data.npy": "", "x.yaml": "", "x.lock": ""}
    assert locked(tmp_path, files | apart) == {*files}


def test_what_a_capture_opens_or_imports_by_a_composed_name_counts(tmp_path: Path):
    files = {
        "train.py": "open('configs/default.yaml')\nimport_module(f'models.{name}')\nimport_module('nets.' + x)\nimport_module('heads.%s' % x)\n",
        "configs/default.yaml": "", "models/a.py": "open('csrc/a.cu')\n", "models/deep/b.json": "", "nets/a.py": "", "heads/a.py": "",
        "csrc/a.cu": "",
    }  # fmt: skip
    out = {"configs/other.yaml": "", "logs/x.json": "", "models/.#a.py": "x = 'other'", "other/a.cu": ""}
    (tmp_path / "models").mkdir()
    (tmp_path / "models/.#b.py").symlink_to("me@host.123")
    (tmp_path / "models/old.py").symlink_to("gone.py")
    assert locked(tmp_path, files | out, capture=("import train",)) == {*files}


@pytest.mark.programs
@pytest.mark.parametrize("version", ["2", "3"])
def test_what_git_tracks_counts_although_a_pattern_ignores_it(tmp_path: Path, version: str):
    files = PACKAGE | {"setup.py": SETUP, "pkg/lib/a.cuh": "", "pkg/lib/deep/__init__.py": ""}
    write(tmp_path, files | {".gitignore": "lib/\n", "new/x": ""})

    def git(*argv: str) -> None:
        alone = {"HOME": str(tmp_path / "none"), "PATH": os.environ["PATH"]}
        subprocess.run(["git", "-C", tmp_path, *argv], env=alone, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", "--force", ".")
    git("add", "--intent-to-add", "new/x")  # with flags that only version 3 has
    git("update-index", "--index-version", version)
    write(tmp_path, {"pkg/lib/untracked.cuh": ""})
    assert locked(tmp_path, {}) == {*files}
    (tmp_path / ".git").rename(tmp_path / ".main")
    write(tmp_path, {".git": "gitdir: .main\n"})  # as in a worktree
    assert locked(tmp_path, {}) == {*files}


@pytest.mark.parametrize(
    "content",
    [b"", b"DIRC", b"DIRC\0\0\0\4\xff\xff\xff\xff" + b"\xff" * 5000, b"DIRC\0\0\0\2\xff\xff\xff\xff"],
)
def test_a_damaged_index_of_git_tracks_nothing(tmp_path: Path, content: bytes):
    write(tmp_path, PACKAGE | {"setup.py": SETUP, ".gitignore": "*.h\n", "pkg/x.h": "", ".git/HEAD": ""})
    (tmp_path / ".git/index").write_bytes(content)
    assert locked(tmp_path, {}) == {*PACKAGE, "setup.py"}


def test_what_a_counted_file_includes_or_imports_counts_although_git_ignores_it(tmp_path: Path):
    files = PACKAGE | {
        "csrc/a.cu": '#include "gen.h"\n', "csrc/gen.h": '#include "deep.h"\n', "csrc/deep.h": "",
        "setup.py": SETUP + "import pkg.version\n", "pkg/version.py": "",
    }  # fmt: skip
    assert locked(tmp_path, files | {".gitignore": "*.h\nversion.py\n"}) == {*files}


def test_a_repository_above_that_others_may_write_decides_nothing(tmp_path: Path):
    shared, files = tmp_path / "shared", PACKAGE | {"setup.py": SETUP}
    write(shared, {".git/HEAD": "", ".gitignore": "pkg/\n"})
    shared.chmod(0o755)
    assert locked(shared / "project", files) == {*files} - {"pkg/__init__.py"}
    shared.chmod(0o1777)
    assert locked(shared / "project", files) == {*files}


LONG = "x" * 300


def test_a_strangers_files_end_in_no_error_and_take_no_minutes(tmp_path: Path):
    quadratic = (
        "import glob\nx = ["
        + '"a",' * 20_000
        + "]\nglob.glob("
        + "x," * 20_000
        + ")\n"
        + "glob.glob(x)\n" * 2000
    )
    files = PACKAGE | {
        "csrc/a.cu": f'#include "csrc/{LONG}.h"\n#include "' + "x/" * 100_000 + '"\n#include "' + "../" * 100_000 + 'x.h"\n',
        "setup.py": f"import csrc.{LONG}\n{quadratic}{SETUP}",
    }  # fmt: skip
    start = time.monotonic()
    assert locked(tmp_path / "time", files) == {*files}
    assert time.monotonic() - start < 60
    deep = PACKAGE | {"setup.py": "x = " + "-" * 100_000 + "1\n"}
    assert locked(tmp_path / "deep", deep) == {*deep}


PATTERNS = [
    "a", "b/", "/a", "*.o", "**/lib", "lib/**", "a/**/b", "!a", "!*.o", "run?", "run[0-9]", "run[!0-9]", "run[^1]", r"x\ y", "x y ",
    r"\#h", r"\!n", r"\[z\]", "/d/*", "!/d/a", "d/a", "**", "*", "!d/", "# c", "", "/", "a*b", "foo.*", "!lib/a", "d/**/", r"\a", "[", "!",
]  # fmt: skip
NAMES = ["a", "b", "ab", "a.o", "lib", "run1", "x y", "[z]", "#h", "!n", "foo.txt", "d"]


@pytest.mark.programs
@pytest.mark.parametrize("seed", range(25))
def test_the_ignored_files_are_those_that_git_ignores(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for _ in range(25):
        path = tmp_path.joinpath(*chance.choices(NAMES, k=chance.randint(1, 4)))
        if not any(one.is_file() for one in (path, *path.parents)) and not path.exists():
            write(path.parent, {path.name: ""})
    folders = [
        tmp_path,
        *(path for path in sorted(tmp_path.iterdir()) if path.is_dir() and path.name != ".git"),
    ]
    for folder in folders[:3]:
        write(folder, {".gitignore": "\n".join(chance.choices(PATTERNS, k=4))})
    alone = {"HOME": str(tmp_path / "none"), "PATH": os.environ["PATH"]}
    argv = ["git", "-C", tmp_path, "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, env=alone, check=True, capture_output=True, text=True).stdout
    rules = GitIgnored(tmp_path, tmp_path)

    def visible(folder: Path) -> set[str]:
        inside = [path for path in folder.iterdir() if path.name != ".git"]
        kept = [path for path in inside if not rules.ignores(path, is_folder=path.is_dir())]
        files = {path.relative_to(tmp_path).as_posix() for path in kept if path.is_file()}
        return files.union(*(visible(path) for path in kept if path.is_dir()))

    assert visible(tmp_path) == set(filter(None, listed.split("\0")))


def test_a_hostile_gitignore_neither_hangs_nor_is_followed(tmp_path: Path):
    hostile = ["a*" * 100 + "b", "**/" * 3000 + "y", "**/a/" * 40 + "b", "[z-a]", "\\", "a" * 100_000]
    write(tmp_path, {".gitignore": "\n".join(hostile), "pkg/x": ""})
    os.mkfifo(tmp_path / "pkg/.gitignore")
    rules = GitIgnored(tmp_path, tmp_path)
    deep = tmp_path.joinpath(*["a"] * 60)
    assert not any(
        rules.ignores(path, is_folder=False) for path in (deep, tmp_path / "pkg/x", tmp_path / ("a" * 200))
    )


@pytest.mark.parametrize("line", ["import =", "raise SystemExit(0)", "import torch, none.such"])
def test_where_a_capture_imports_nothing_of_the_folder_every_file_counts(tmp_path: Path, line: str):
    files = {"ops.py": "", "csrc/a.cu": "", "config.yaml": "", "logs/x.json": "", "w.pt": ""}
    assert locked(tmp_path / "net", files | {"other/x.yaml": ""}, capture=(line,)) == {
        "ops.py",
        "csrc/a.cu",
        "other/x.yaml",
    }


@pytest.mark.parametrize("capture", [(), ("import setup",)])
def test_python_that_is_nested_without_end_is_not_read_and_every_file_counts(
    tmp_path: Path, capture: tuple[str, ...]
):
    files = {
        "setup.py": "x = " + "+".join(["'csrc'"] * 2000),
        "csrc/a.cu": "",
        "other.py": "",
        "logs/x.json": "",
    }
    assert locked(tmp_path, files, capture=capture) == {"setup.py", "csrc/a.cu", "other.py"}


def test_a_folder_in_an_ignored_place_of_a_larger_repository_has_its_own_rules(tmp_path: Path):
    """A home with its settings in git ignores `*`."""
    (tmp_path / ".git").mkdir()
    write(tmp_path, {".gitignore": "*\n"})
    files = PACKAGE | {"setup.py": SETUP}
    assert locked(tmp_path / "work/project", files) == set(files)
