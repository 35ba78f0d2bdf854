"""The program of an extension: its sources, what it starts, its check of GPU code, and what it leaves."""

import dataclasses
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuilder import steps
from envbuilder.builder.job import prepare_run
from envbuilder.builder.sandbox.root import program_command
from envbuilder.core.cache import sha256_text
from envbuilder.core.errors import BuildError, CompileError
from envbuilder.plan.extension import project_key
from envbuilder.plan.model import ExtensionsStep
from tests.support.elves import gpu_library
from tests.support.locks import make_artifact
from tests.support.projects import Machine, make_machine
from tests.support.sdists import own_backend, write_sdist
from tests.support.step_programs import load_program

SOURCES = {
    "csrc/fused.cpp": "int f();\n",
    "csrc/fused.cu": "// gpu\n",
    "csrc/include/fused.h": "#pragma once\n",
}


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """The program, with folders of the test as those of the build."""
    module = load_program("extension")
    module.NEW, module.SOURCE = str(tmp_path / "new"), str(tmp_path / "src")
    return module


def make_spec(**change: object) -> dict[str, Any]:
    base = {
        "name": "fused",
        "form": "load",
        "path": "",
        "files": {},
        "patch": "",
        "archive": False,
        "strip": False,
        "commit": "",
    }
    return base | {"gpus": ["8.0"], "env": [], **change}


def stage(program: Any, folder: Path, files: Mapping[str, str], **change: object) -> dict[str, str]:
    """Stage these files as the sources of an extension. Returns the content of the staged folder."""
    for path, text in files.items():
        (folder / "inputs/files" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "inputs/files" / path).write_text(text)
    digests = {path: sha256_text(text) for path, text in files.items()}
    program.stage(make_spec(files=digests, **change), str(folder / "inputs"))
    program.place(program.NEW, program.SOURCE)
    return contents(Path(program.SOURCE))


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


# The sources


def test_a_source_whose_bytes_are_right_keeps_its_time(program, tmp_path):
    assert stage(program, tmp_path, SOURCES) == SOURCES
    for path in SOURCES:
        os.utime(tmp_path / "src" / path, (1, 1))
    stage(program, tmp_path, SOURCES | {"csrc/fused.cu": "// edited\n"})
    assert [path for path in SOURCES if (tmp_path / "src" / path).stat().st_mtime != 1] == ["csrc/fused.cu"]


def test_strangers_among_the_sources_are_removed_but_not_the_objects_of_setuptools(program, tmp_path):
    stage(program, tmp_path, SOURCES)
    folder = tmp_path / "src"
    (folder / "csrc/include/old.h").write_text("gone from the recipe")
    (folder / "old").mkdir(mode=0)
    (folder / "dangling").symlink_to("nowhere")
    (folder / "csrc/fused.cpp").unlink()
    os.mkfifo(folder / "csrc/fused.cpp")
    for place in ("build/lib.linux-x86_64-3.11", "build/temp.linux-x86_64-3.11"):
        (folder / place).mkdir(parents=True)
        (folder / place / "x.o").write_text("object")
    staged = stage(program, tmp_path, SOURCES)
    assert staged == SOURCES | {"build/temp.linux-x86_64-3.11/x.o": "object"}
    assert not (folder / "old").exists()


def test_another_extension_in_the_same_root_finds_nothing_of_the_last_one(program, tmp_path):
    """Objects of the project before would be files that a captured call may read, and part of its key."""
    program.SPACE = str(tmp_path)
    (tmp_path / "src/build/temp.linux-x86_64-3.11").mkdir(parents=True)
    program.clear_space(is_kept=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_the_locked_one_is_refused(program, tmp_path):
    stage(program, tmp_path, SOURCES)
    (tmp_path / "inputs/files/csrc/fused.cu").write_text("edited since")
    with pytest.raises(SystemExit, match=r"csrc/fused\.cu is not the file that is locked"):
        program.stage(make_spec(files={"csrc/fused.cu": sha256_text("// gpu\n")}), str(tmp_path / "inputs"))


def archive(folder: Path, members: Mapping[str, str | None]) -> None:
    """Write a tar as the archive of an extension; None stands for a link to `real`."""
    (folder / "inputs").mkdir()
    with tarfile.open(folder / "inputs/archive", "w") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            if text is None:
                member.type, member.linkname = tarfile.SYMTYPE, "real"
                tar.addfile(member)
            else:
                (folder / "member").write_text(text)
                member.size = len(text)
                with (folder / "member").open("rb") as stream:
                    tar.addfile(member, stream)


def test_an_sdist_is_unpacked_without_its_first_folder(program, tmp_path):
    archive(tmp_path, {"dw-1/setup.py": "s", "dw-1/csrc/a.cu": "a"})
    assert stage(program, tmp_path, {}, archive=True, strip=True) == {"setup.py": "s", "csrc/a.cu": "a"}


def test_a_program_of_an_sdist_stays_one(program, tmp_path):
    (tmp_path / "inputs").mkdir()
    with tarfile.open(tmp_path / "inputs/archive", "w") as tar:
        for name, mode in (("dw-1/configure", 0o755), ("dw-1/a.c", 0o600)):
            member = tarfile.TarInfo(name)
            member.mode = mode
            tar.addfile(member)
    stage(program, tmp_path, {}, archive=True, strip=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "src").iterdir()}
    assert modes == {"configure": 0o755, "a.c": 0o644}


def test_an_sdist_in_a_zip_file_is_unpacked_as_well(program, tmp_path):
    (tmp_path / "inputs").mkdir()
    write_sdist(tmp_path, "dw", "1", {"setup.py": "s", "csrc/a.cu": "a"}, ".zip").rename(
        tmp_path / "inputs/archive"
    )
    assert stage(program, tmp_path, {}, archive=True, strip=True).keys() == {
        "setup.py",
        "csrc/a.cu",
        "PKG-INFO",
    }


def test_a_link_in_a_repository_stands_for_its_file_and_a_dangling_one_for_nothing(program, tmp_path):
    archive(tmp_path, {"real": "r", "link": None, "far/dangling": None})
    assert stage(program, tmp_path, {}, archive=True) == {"real": "r", "link": "r"}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_an_archive_that_would_write_elsewhere_is_refused(program, tmp_path, name):
    archive(tmp_path, {name: "x"})
    with pytest.raises(SystemExit, match="outside its folder"):
        stage(program, tmp_path, {}, archive=True)
    assert not (tmp_path / "x").exists()


# Patches

SETUP = "".join(f"line {number}\n" for number in range(1, 13))


@pytest.mark.programs
@pytest.mark.parametrize("place", ["third/dw", ""], ids=["own folder", "archive"])
@pytest.mark.parametrize(
    "edited",
    [
        {"setup.py": SETUP.replace("line 2\n", "").replace("line 11", "new 11"), "a.cu": "a"},
        {"setup.py": SETUP + "more", "a.cu": "a", "new/b.cu": "one\ntwo\n"},
        {"setup.py": "first\n" + SETUP.removesuffix("\n")},
        {"setup.py": SETUP, "a.cu": "a\n"},
        {"setup.py": SETUP.replace("line 4\n", "x\nline 4\n\n"), "a.cu": "a", "pkg/__init__.py": ""},
    ],
    ids=[
        "two hunks",
        "a new file, and no end of line",
        "a file that goes",
        "an end of line",
        "an empty file",
    ],
)
def test_a_patch_of_git_gives_the_files_that_it_was_made_from(program, tmp_path, place, edited):
    before = {"setup.py": SETUP, "a.cu": "a"}
    patch = git_diff(tmp_path, before, edited)
    if place:
        staged = stage(
            program,
            tmp_path,
            {f"{place}/{path}": text for path, text in before.items()} | {"x.patch": patch},
            path=place,
            patch="x.patch",
        )
    else:
        archive(tmp_path, before)
        staged = stage(program, tmp_path, {"x.patch": patch}, archive=True, patch="x.patch")
    assert staged == {f"{place}/{path}".lstrip("/"): text for path, text in edited.items()}


def git_diff(folder: Path, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    for name, files in (("a", before), ("b", after)):
        for path, text in files.items():
            (folder / "diff" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "diff" / name / path).write_text(text)
    argv = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
    return subprocess.run(argv, cwd=folder / "diff", capture_output=True, text=True, check=False).stdout


PATCH = "--- a/setup.py\n+++ b/setup.py\n@@ -40,2 +40,2 @@\n line 2\n-line 3\n+new 3\n"


def test_a_hunk_may_lie_elsewhere_but_its_lines_must_be_the_same(program, tmp_path):
    staged = stage(program, tmp_path, {"setup.py": SETUP, "x.patch": PATCH}, patch="x.patch")
    assert staged == {"setup.py": SETUP.replace("line 3", "new 3")}
    with pytest.raises(
        SystemExit, match=r"the patch x\.patch does not fit: setup\.py: the lines of the hunk at 40"
    ):
        stage(program, tmp_path, {"setup.py": "other\n", "x.patch": PATCH}, patch="x.patch")


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("new file mode 120000\n--- /dev/null\n+++ b/leak.h\n@@ -0,0 +1 @@\n+/home\n", "it makes a link"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "expected a path below the project"),
        ("rename from a\nrename to b\n", "only texts"),
        ("GIT binary patch\n", "only texts"),
    ],
)
def test_a_patch_that_is_more_than_changed_lines_is_refused(program, tmp_path, patch, why):
    with pytest.raises(SystemExit, match=why):
        stage(program, tmp_path, {"setup.py": SETUP, "x.patch": patch}, patch="x.patch")


# What is started


def test_the_recipes_variables_beat_those_of_the_program(program):
    env = program.environment(
        make_spec(env=[["MAX_JOBS", "1"], ["TORCH_CUDA_ARCH_LIST", "9.0"]]), 8, chooses=True
    )
    assert (env["MAX_JOBS"], env["TORCH_CUDA_ARCH_LIST"]) == ("1", "9.0")
    assert "_ENVBUILDER_GPUS" not in env, "the recipe names its own"


@pytest.mark.parametrize("gpus", [["8.0", "9.0"], []])
def test_a_project_sees_a_gpu_of_the_recipe_and_compiles_for_all(program, gpus):
    env = program.environment(make_spec(gpus=gpus), 1, simulates=True, chooses=True)
    assert (env.get("_ENVBUILDER_CAPABILITY"), env.get("_ENVBUILDER_GPUS")) == (
        ("8.0", "8.0;9.0") if gpus else (None, None)
    )
    assert "_ENVBUILDER_GPUS" not in program.environment(make_spec(gpus=gpus), 1), "sources keep their flags"


@pytest.mark.parametrize(
    ("gpus", "held", "has_cuda", "why"),
    [
        (["8.0", "9.0"], {"a.so": ["sm_90a", "sm_80"], "host.so": []}, True, ""),
        (["8.0"], {"a.so": ["compute_80"]}, True, "holds code for compute_80; the recipe's GPUs need sm_80"),
        (["8.0", "9.0"], {"a.so": ["sm_80", "sm_90"], "b.so": ["sm_80"]}, True, "holds code for sm_80; the recipe's GPUs need sm_80 sm_90"),
        (["8.0"], {"a.so": []}, True, "holds code for no GPU at all"),
        (["8.0"], {}, True, "holds code for no GPU at all"),
        (["8.0"], {"a.so": []}, False, ""),
        ([], {"a.so": []}, True, ""),
    ],
)  # fmt: skip
def test_libraries_hold_code_for_each_gpu_or_are_refused(program, tmp_path, gpus, held, has_cuda, why):
    out, libraries = tmp_path / "out", []
    for name, targets in held.items():
        (out / "tree").mkdir(parents=True, exist_ok=True)
        (out / "tree" / name).write_bytes(gpu_library(*targets))
        libraries.append(str(out / "tree" / name))
    given = (make_spec(gpus=gpus), str(out), "k", {"name": "fused"}, {}, libraries, has_cuda)
    if why:
        with pytest.raises(SystemExit, match=why):
            program.finish(*given)
    else:
        program.finish(*given)
    index = json.loads((out / "index.json").read_text())
    assert index["held"] == {f"/tree/{name}": sorted(targets) for name, targets in held.items()}


NVCC = """
#include <stdio.h>
int main(int count, char **words) { for (int at = 1; at < count; at++) printf("%s%c", words[at], at + 1 < count ? ' ' : '\\n'); }
"""
FOR_80, FOR_90 = (f"-gencode=arch=compute_{gpu},code=sm_{gpu}" for gpu in (80, 90))


@pytest.mark.programs
def test_nvcc_gets_the_recipes_gpus_whichever_a_project_names(tmp_path: Path):
    """A program in place of nvcc prints its arguments."""
    nvcc, library = tmp_path / "nvcc", tmp_path / "steady.so"
    subprocess.run(["gcc", "-x", "c", "-o", nvcc, "-"], input=NVCC, text=True, check=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, steps.FOLDER / "steady.c"], check=True)

    def arguments(words: str, gpus: str = "") -> str:
        env = {"LD_PRELOAD": str(library)} | ({"_ENVBUILDER_GPUS": gpus} if gpus else {})
        return subprocess.run(
            [nvcc, *words.split()], env=env, capture_output=True, text=True, check=True
        ).stdout.strip()

    given = {
        f"-c a.cu {FOR_80}": f"-c a.cu {FOR_80}",
        "-c a.cu": f"-c a.cu {FOR_80}",
        "-gencode arch=compute_37,code=sm_37 -gencode=arch=compute_75,code=compute_75 -c a.cu": f"-c a.cu {FOR_80}",
        "-arch=sm_70 -rdc=true -c a.cpp": f"-rdc=true -c a.cpp {FOR_80}",
        "--gpu-architecture native -dlink a.o": f"-dlink a.o {FOR_80}",
        "-arch=sm_75 -ptx a.cu": "-arch=sm_75 -ptx a.cu",
        "--version": "--version",
    }
    assert {words: arguments(words, "8.0") for words in given} == given
    assert arguments("-arch=sm_90a a.cu", "8.0;9.0") == f"a.cu {FOR_80} {FOR_90.replace('90', '90a')}"
    assert arguments("-arch=sm_75 a.cu") == "-arch=sm_75 a.cu", "the sources of a recipe keep their flags"


# What it leaves


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("machine"))


CAPTURED = {
    "net/ops.py": "from torch.utils.cpp_extension import load\nload('first', ['a.c'])\nload('second', ['b.c', 'c.c'])\n",
    "net/a.c": '#include "a.h"\nint a = A;\n', "net/a.h": "#define A 1\n", "net/b.c": "int b;\n", "net/c.c": "int c;\n",
}  # fmt: skip


@pytest.mark.programs
def test_a_capture_in_one_go_leaves_what_the_cache_keeps_call_by_call(machine: Machine, tmp_path: Path):
    """BuildKit and a printed text run the program once. The host keeps the capture and each call under keys of their own."""
    captured = machine.project("net", CAPTURED, capture=("import ops",))
    sources = machine.project("key", {"key.c": "int key;\n"}, sources=("key.c",), path="")
    project = machine.project(
        "pkg", {f"pkg/{path}": text for path, text in own_backend("pkg", "1.0").items()}
    )
    extensions = (captured, sources, project)
    built = machine.build(*extensions)
    job = machine.job_of(*extensions)
    (step,) = (step for step in job.plan.steps if isinstance(step, ExtensionsStep))
    (tmp_path / "kept").mkdir()
    machine.join(built, tmp_path / "kept", *extensions)
    (tmp_path / "inputs").mkdir()
    for part in step.made_by(job.plan).parts:
        out = prepare_run(part, tmp_path / part.name, job.store)
        job.runner.run(program_command(part, machine.root, tmp_path / part.name))
        out.rename(tmp_path / "inputs" / part.name)
    (tmp_path / "spec.json").write_text(step.made_by(job.plan).spec)
    load_program("extensions").main(*(str(tmp_path / name) for name in ("spec.json", "inputs", "once")))
    assert tree_of(tmp_path / "once") == tree_of(tmp_path / "kept/out")
    index = json.loads((tmp_path / "once/opt/envbuilder/extensions/index.json").read_text())
    assert [entry["name"] for entry in index["extensions"]] == ["first", "second", "key", "pkg"]
    assert {path.name for path in (tmp_path / "once/opt/envbuilder/extensions/modules").iterdir()} == {
        "first.so",
        "second.so",
        "key.so",
    }


def tree_of(folder: Path) -> dict[str, object]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    return {
        name: path.readlink() if path.is_symlink() else (path.stat().st_mode, path.read_bytes())
        for name, path in files.items()
    }


@pytest.mark.programs
def test_a_captured_call_that_does_not_compile_is_named_by_its_line(machine: Machine):
    broken = CAPTURED | {"net/c.c": '#include "none.h"\n'}
    with pytest.raises(CompileError) as caught:
        machine.build(machine.project("net", broken, capture=("import ops",)))
    assert "the extension `net/second`, which net/ops.py:3 loads, does not compile" in caught.value.message


@pytest.mark.programs
def test_a_capture_that_names_a_link_as_its_source_is_refused(machine: Machine):
    line = "import os; os.symlink('/etc/passwd', 'x.c'); from torch.utils.cpp_extension import load; load('op', ['x.c'])"
    with pytest.raises(BuildError, match=r"names the source `/space/src/net/x\.c`, which is no regular file"):
        machine.build(machine.project("net", CAPTURED, capture=(line,)))


@pytest.mark.programs
def test_a_patch_that_does_not_fit_is_named_with_the_reason(machine: Machine):
    files = {f"dw/{path}": text for path, text in own_backend("dw", "1.0").items()}
    project = machine.project("dw", files | {"dw.patch": PATCH}, patch="dw.patch")
    with pytest.raises(CompileError, match="does not fit its sources") as caught:
        machine.build(project)
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("EB634", "dw.patch")
    assert "setup.py" in finding.message


# What a build asks git


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.programs
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("rev-parse HEAD", COMMIT),
        ("-C /space/src -c core.quiet=1 rev-parse --verify HEAD", COMMIT),
        ("rev-parse --short HEAD", "0123456"),
        ("rev-parse --short=12 HEAD", "0123456789ab"),
        ("rev-parse --abbrev-ref HEAD", "HEAD"),
        ("describe --always --dirty", "0123456"),
        ("log -1 --format=%H", COMMIT),
        ("show -s --pretty=%h", "0123456"),
        ("submodule update --init --recursive", ""),
        ("status --porcelain", ""),
        ("--version", "git version 2.39.5"),
    ],
)
def test_a_build_that_asks_git_gets_the_commit_of_the_lock(tmp_path: Path, words: str, answer: str):
    asked = ask_git(tmp_path, COMMIT, words)
    assert (asked.returncode, asked.stdout.strip()) == (0, answer)


@pytest.mark.programs
@pytest.mark.parametrize(("commit", "words"), [("", "rev-parse HEAD"), (COMMIT, "clone https://host/x")])
def test_a_question_without_an_answer_ends_as_git_does_without_a_repository(tmp_path, commit, words):
    asked = ask_git(tmp_path, commit, words)
    assert asked.returncode == 128
    assert asked.stderr.startswith("fatal: ")


def ask_git(folder: Path, commit: str, words: str) -> subprocess.CompletedProcess[str]:
    text = steps.text("git.sh").replace("=COMMIT", f"={commit}").replace("/usr/bin/git", "/none")
    (folder / "git").write_text(text)
    argv = ["sh", str(folder / "git"), *words.split()]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


@pytest.mark.programs
def test_a_setup_gets_its_options(machine: Machine):
    files = own_backend("opt", "1.0")
    files["backend.py"] = files["backend.py"].replace("config_settings=None", "config_settings")
    files["backend.py"] += (
        "\nmake = build_wheel\ndef build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    assert config_settings == {'--build-option': ['--cpp_ext', '--cuda_ext']}, config_settings\n"
        "    return make(folder, config_settings, metadata_directory)\n"
    )
    files = {f"opt/{path}": text for path, text in files.items()}
    assert machine.build(machine.project("opt", files, options=("--cpp_ext", "--cuda_ext")))
    with pytest.raises(CompileError, match="AssertionError"):
        machine.build(machine.project("opt", files))


@pytest.mark.programs
def test_a_file_that_is_no_python_of_today_does_not_end_the_build(machine: Machine):
    """OpenPCDet has one, which nothing imports."""
    files = own_backend("old", "1.0")
    files["backend.py"] += (
        "\nmake = build_wheel\ndef build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    wheel = make(folder)\n"
        "    with zipfile.ZipFile(folder + '/' + wheel, 'a') as archive:\n"
        "        archive.writestr('dated.py', 'import .old as dated')\n"
        "    return wheel\n"
    )
    (made,) = machine.build(machine.project("old", {f"old/{path}": text for path, text in files.items()}))
    names = {path.name for path in (made.folder / "tree").rglob("*") if path.is_file()}
    assert {"dated.py", "old.py", "old.cpython-311.pyc"} <= names
    assert "dated.cpython-311.pyc" not in names


@pytest.mark.programs
def test_a_setup_that_calls_git_builds_without_a_repository(machine: Machine, tmp_path: Path):
    files = own_backend("ver", "1.0")
    files["backend.py"] += (
        "\nimport subprocess\nassert set(subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()) == {'0'}\n"
    )
    project = machine.project("ver", {f"ver/{path}": text for path, text in files.items()})
    assert machine.build(project)


def test_two_commits_of_the_same_files_are_two_builds(machine: Machine):
    archive = dataclasses.replace(make_artifact("ver", COMMIT), kind="git")
    extension = machine.project("ver", {}, git="https://host/ver", commit=COMMIT, archive=archive)
    other = dataclasses.replace(extension, commit=COMMIT[::-1])
    ground = machine.job_of(extension).plan.ground
    assert project_key(ground, extension).digest != project_key(ground, other).digest
