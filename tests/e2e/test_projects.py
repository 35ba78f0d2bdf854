"""Extensions of the shapes that projects have, compiled by real compilers through the sandbox; no image is written."""

import dataclasses
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.builder.buildkit import buildx
from envbuilder.builder.buildkit.runner import BuildKitRunner, exported_tars, pack_tar, write_folder
from envbuilder.builder.context import RunnerChoice, RunnerName
from envbuilder.builder.extensions.compiled import CachedExtension
from envbuilder.builder.pipeline import open_step_runner
from envbuilder.commands import context as sessions
from envbuilder.commands._console import build_context
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import read_manifest
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import ExtensionsStep
from tests.support.stores import Listening
from tests.support.workbench import (
    ENVBUILDER,
    ROOT,
    make_extensions,
    make_layers,
    open_folder,
    recipe_like,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.torch]
PROJECTS = Path(__file__).with_name("projects")
CAPTURED = {
    "scale": "load_at_import", "lazy": "lazy", "gated": "gpu_gated", "hidden": "hides_failure",
    "first": "flat_folder", "second": "flat_folder", "plugin": "gpu_name_in_path", "sorter": "thrust_cub",
    "own": "own_std",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Made:
    kept: dict[str, CachedExtension]
    said: list[str]


def make(recipe: Path) -> Made:
    """Renew the recipe's lock and make its extensions; raises BuildError for one that fails."""
    run(ENVBUILDER, "lock", recipe)
    console = Listening()
    return Made(
        {extension.compiled.entry.name: extension for extension in make_extensions(recipe, console)},
        [text.strip() for text in console.said],
    )


def write_recipe(folder: Path, like: str, *extensions: str) -> Path:
    """A recipe like another one with these extensions; the projects lie beside it."""
    if not (folder / "setup_py").exists():
        shutil.copytree(PROJECTS, folder, dirs_exist_ok=True)
    return recipe_like(like, folder / "tried.yaml", *extensions)


def never_compiled() -> str:
    """A comment that no source had before: the store keeps what an earlier run compiled."""
    return f"// {uuid.uuid4()}\n"


def failed(recipe: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        make(recipe)
    return caught.value


# Without CUDA


def test_a_project_with_a_setup_py_becomes_part_of_the_environment(spacious: Path):
    made = make(write_recipe(spacious, "cpu", "{name: setup_py, path: setup_py}"))
    tree = made.kept["setup_py"].folder / "tree/opt/env/lib/python3.11/site-packages"
    assert [path.name.partition(".")[0] for path in tree.glob("tinyconv/core*.so")] == ["core"]
    above = [path for path in (made.kept["setup_py"].folder / "tree").rglob("*") if not path.is_dir()]
    assert [path for path in above if not path.is_relative_to(tree)] == [], "the Python layer has the rest"
    (code,) = tree.glob("tinyconv/__pycache__/*.pyc")
    assert code.read_bytes()[4:8] == b"\x01\0\0\0", "byte code is by hash and never compared"
    assert b"/opt/env/lib/python3.11/site-packages/tinyconv/__init__.py" in code.read_bytes()
    assert b"/space" not in b"".join(path.read_bytes() for path in tree.rglob("*") if path.is_file())


def test_a_project_is_the_same_bytes_in_another_compile_folder(spacious: Path):
    trees = []
    for name in ("setup_py", "again"):  # the name of an extension decides its folder, and nothing in it
        (kept,) = make(write_recipe(spacious, "cpu", f"{{name: {name}, path: setup_py}}")).kept.values()
        files = sorted(path for path in (kept.folder / "tree").rglob("*") if path.is_file())
        trees.append({str(path.relative_to(kept.folder)): path.read_bytes() for path in files})
    assert trees[0] == trees[1]
    assert any(name.endswith(".so") for name in trees[0])


@pytest.mark.release
def test_the_docker_engine_makes_the_same_layer_of_every_form(spacious: Path):
    """The extensions alone are taken out of BuildKit; what they stand on is compared elsewhere.

    For every change, `tests/plan/test_printer.py` holds the text of its stages, whose programs the other tests here run.
    """
    capture = "{name: inline, path: inline, capture: [import inline_ops]}"
    sources = "{name: fused, sources: [fused/fused_bias_act.cpp, fused/fused_bias_act_cpu.cpp]}"
    shutil.copytree(ROOT / "recipes/fused", spacious / "fused")
    recipe = write_recipe(spacious, "cpu", "{name: setup_py, path: setup_py}", capture, sources)
    make(recipe)
    (composed,) = (layer for layer in make_layers(recipe) if layer.name == "extensions")

    shop = build_context(sessions.Session(environment=dict(os.environ)), ROOT / "recipes")
    _, plan, _ = make_plan(str(recipe), shop.recipes, shop.store)
    folder, layout = spacious / "folder", spacious / "layout"
    docker = open_step_runner(plan, RunnerChoice(runner=RunnerName.BUILDKIT), shop)
    assert isinstance(docker, BuildKitRunner)
    (step,) = (step for step in plan.steps if isinstance(step, ExtensionsStep))
    write_folder(docker.job, folder, {step.name})
    shop.runner.run(buildx.build_command(plan, folder, layout, docker.builder, context=False))
    tar = exported_tars(layout, (step.name,))[step.name]
    baked = pack_tar(step, docker.job, tar, folder, spacious / "baked")
    assert read_manifest(baked) == read_manifest(composed)
    assert [entry.path for entry in read_manifest(baked) if re.search(r"opt/env/.*/core\..*so$", entry.path)]
    assert baked.digest == composed.digest


def test_a_call_of_load_inline_is_captured(spacious: Path):
    """Its module uses torch.compile, FSDP and a library of operators of its own, as packages that import torch do."""
    made = make(write_recipe(spacious, "cpu", "{name: inline, path: inline, capture: [import inline_ops]}"))
    assert made.kept["inline_add"].compiled.entry.function == "load_inline"


@pytest.mark.release
def test_an_op_of_deepspeed_is_compiled_as_a_program_would(spacious: Path):
    """For every change, `tests/recipe/test_recipe.py` holds the lines that reach an op, and the others here run captures."""
    recipe = write_recipe(spacious, "cpu", "{name: ds_ops, deepspeed: [cpu_adam]}")
    pins = recipe.read_text().replace("  - numpy>=2,<3\n", "  - numpy>=2,<3\n  - deepspeed==0.19.8\n")
    recipe.write_text(pins)
    entry = make(recipe).kept["cpu_adam"].compiled.entry
    assert set(entry.sources) == {"cpu_adam.cpp", "cpu_adam_impl.cpp"}


@pytest.mark.parametrize(
    ("line", "code", "where", "words"),
    [
        ("import lacking", "EB633", "inline/lacking.py:3", "the call that compiles `op` names the source `inline/none.cpp`"),
        ("import half", "EB633", "inline/half.py:1", "SyntaxError"),
        ("import =", "EB633", "", "the line `import =` of `capture`"),
        ("raise SystemExit(0)", "EB633", "", "SystemExit: 0"),
        ("import torch, none.such", "EB621", "", "No module named 'none'"),
    ],
)  # fmt: skip
def test_a_capture_that_ends_says_in_which_line_and_where(
    spacious: Path, line: str, code: str, where: str, words: str
):
    recipe = write_recipe(spacious, "cpu", f"{{name: inline, path: inline, capture: ['{line}']}}")
    load = "from torch.utils.cpp_extension import load\n\nload('op', ['none.cpp'])\n"
    (spacious / "inline/lacking.py").write_text(load)
    (spacious / "inline/half.py").write_text("half = (\n")
    error = failed(recipe)
    (finding,) = error.findings
    assert (finding.code, finding.where) == (code, where)
    assert words in finding.message
    assert "bwrap" not in error.message + error.hint


def test_after_one_changed_source_that_file_alone_is_compiled(spacious: Path):
    (spacious / "pair").mkdir(parents=True)
    binding = '#include <pybind11/pybind11.h>\nint {0}(int);\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("f", &{0}); }}\n'
    comment = never_compiled()
    (spacious / "pair/module.cpp").write_text(comment + binding.format("twice"))
    (spacious / "pair/part.cpp").write_text(f"{comment}int twice(int value) {{ return 2 * value; }}\n")
    recipe = write_recipe(spacious, "cpu", "{name: pair, sources: [pair/module.cpp, pair/part.cpp]}")
    first = make(recipe)
    assert sorted(line.partition(" (")[0] for line in first.said) == ["pair: module.cpp", "pair: part.cpp"]
    (spacious / "pair/part.cpp").write_text(f"{comment}int twice(int value) {{ return value + value; }}\n")
    second = make(recipe)
    assert [line.partition(" (")[0] for line in second.said] == ["pair: part.cpp"]
    assert second.kept["pair"].compiled.seconds < first.kept["pair"].compiled.seconds


def test_two_troubles_at_once_are_each_told_in_words(spacious: Path):
    recipe = write_recipe(
        spacious, "cpu",
        "{name: syntax, sources: [broken/syntax.cpp]}",
        "{name: submodule, sources: [broken/submodule.cpp]}",
    )  # fmt: skip
    error = failed(recipe)
    assert sorted(finding.code for finding in error.findings) == ["EB612", "EB629"]
    messages = "\n".join(finding.message for finding in error.findings)
    assert "`glm/glm.hpp` belongs to a submodule" in messages
    assert "syntax.cpp:3" in messages


def test_a_repository_is_built_from_its_commit_and_submodules(
    spacious: Path, monkeypatch: pytest.MonkeyPatch
):
    (spacious / ".gitconfig").write_text(
        "[protocol.file]\nallow = always\n"
    )  # git takes no submodules from a disk
    monkeypatch.setenv("HOME", str(spacious))
    commit = make_repository(spacious / "repository", spacious / "headers")
    source = f"git: 'file://{spacious}/repository', commit: {commit}, path: project"
    recipe = write_recipe(spacious, "cpu", f"{{name: small, {source}}}")
    made = make(recipe)
    assert made.kept["small"].compiled.entry.function == "package"
    shutil.rmtree(spacious / "repository")
    assert make(recipe).said[-1].startswith("small: in the store"), "the archive is in the store"


# It takes a second to compile, where a source that includes torch's headers takes half a minute.
SMALL = {
    "project/setup.py": """
from setuptools import Extension, setup
setup(name="small", version="1", ext_modules=[Extension("small", ["small.c"], include_dirs=["../headers"])])
""",
    "project/small.c": """
#include <Python.h>
#include "shape.h"
static struct PyModuleDef small = {PyModuleDef_HEAD_INIT, "small", NULL, SHAPE};
PyMODINIT_FUNC PyInit_small(void) { return PyModule_Create(&small); }
""",
}


def make_repository(folder: Path, headers: Path) -> str:
    """A repository with a small project in a folder and the header that it includes in a submodule; returns its commit."""
    for path, files in (
        (headers, {"shape.h": f"#define SHAPE {uuid.uuid4().int % 10**6}\n"}),
        (folder, SMALL),
    ):
        path.mkdir()
        git(path, "init", "--quiet")
        for name, text in files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
    git(headers, "add", "."), git(headers, "commit", "--quiet", "--message", "headers")
    git(folder, "submodule", "--quiet", "add", "--", f"{headers}", "headers")
    git(folder, "add", "."), git(folder, "commit", "--quiet", "--message", "project")
    return git(folder, "rev-parse", "HEAD").strip()


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always")
    return run("git", "-C", folder, *identity, *words)


# With nvcc


@pytest.fixture(scope="module")
def shapes() -> Iterator[tuple[Path, Made]]:
    with open_folder() as folder:
        shutil.copytree(PROJECTS, folder, dirs_exist_ok=True)
        shutil.copyfile(ROOT / "recipes/a100.lock", folder / "shapes.lock")
        yield folder, make(folder / "shapes.yaml")


def test_every_shape_is_compiled_for_the_recipes_gpu_and_no_other(shapes: tuple[Path, Made]):
    _, made = shapes
    assert {name: one.compiled.entry.targets for name, one in made.kept.items()} == dict.fromkeys(
        [*CAPTURED, "setup_py"], ("sm_80",)
    )


def test_what_is_compiled_knows_its_sources_by_name_and_content(shapes: tuple[Path, Made]):
    folder, made = shapes
    plugin = made.kept["plugin"].compiled.entry
    assert list(plugin.sources) == ["plugin.cpp", "plugin_kernel.cu"]
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in plugin.sources.values())
    assert (folder / "gpu_name_in_path/plugins/plugin.cpp").is_file()


def test_after_one_changed_kernel_that_file_alone_is_compiled(shapes: tuple[Path, Made]):
    folder, _ = shapes
    kernel = folder / "load_at_import/ops/scale_kernel.cu"
    kernel.write_text(kernel.read_text() + never_compiled())
    steps = [line for line in make(folder / "shapes.yaml").said if line.startswith("load_at_import/scale:")]
    assert [line.partition(" (")[0] for line in steps] == ["load_at_import/scale: scale_kernel.cu"]


def test_a_project_with_its_own_architectures_is_compiled_for_the_recipes(shapes: tuple[Path, Made]):
    folder, _ = shapes
    recipe = write_recipe(folder, "a100", "{name: owned, path: own_arch_list}")
    assert make(recipe).kept["owned"].compiled.entry.targets == ("sm_80",)


def test_a_flag_for_a_gpu_that_nvcc_has_forgotten_is_told_in_words(shapes: tuple[Path, Made]):
    folder, _ = shapes
    sources = "[lazy/lazy_ops/src/lazy.cpp, lazy/lazy_ops/src/lazy_kernel.cu]"
    flags = "['-gencode=arch=compute_37,code=sm_37']"
    error = failed(write_recipe(folder, "a100", f"{{name: lazy, sources: {sources}, cuda_cflags: {flags}}}"))
    assert error.findings[0].code == "EB613"
    assert "does not support `compute_37`" in error.message
