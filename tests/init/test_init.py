"""`init`: files of research projects, a machine or three answers become a sound recipe, and each line that does not is told."""

import json
import os
import re
import shlex
import shutil
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envbuilder import cli
from envbuilder.compat.check import load_tables
from envbuilder.compat.context import distance
from envbuilder.compat.tables.cuda import load_late
from envbuilder.core.errors import IncompatibleError, UsageError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.init import (
    RecipeSources,
    ask_missing,
    make,
    read_facts,
    read_machine,
    read_source,
    write_recipe,
)
from envbuilder.init.choose_pins import choose
from envbuilder.init.conda import read_environment, read_spec
from envbuilder.init.pip import read_line, read_requirement
from envbuilder.init.project import read_git
from envbuilder.init.requests import Requests
from envbuilder.lock.file import load_fresh
from envbuilder.node.nccl.facts import Facts, Gpu
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.load import examples_folder, list_recipes, load, new_path
from envbuilder.recipe.model import Recipe
from tests.support.runner import FakeRunner

FILES = Path(__file__).parent
TABLES = load_tables()
pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project's files, as the working folder."""
    folder = Path(shutil.copytree(FILES, tmp_path / "project"))
    monkeypatch.chdir(folder)
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.run(list(arguments))
    return (code, *capsys.readouterr())


@pytest.mark.parametrize("source", ["requirements.txt", "environment.yml", "Dockerfile", "train.def"])
def test_a_file_becomes_a_recipe_and_every_line_that_does_not_is_told(
    source: str, project: Path, capsys, golden
):
    code, out, err = call(capsys, "init", "mine", "--from", source, "--gpu", "A100")
    assert code == 0
    assert out.splitlines()[0] == "recipes/mine.yaml"
    golden(f"init-{source}.txt", f"{(project / 'recipes/mine.yaml').read_text()}---\n{err}")
    assert call(capsys, "check", "mine")[0] == 0


@pytest.mark.parametrize("source", ["requirements.txt", "environment.yml", "Dockerfile", "train.def"])
def test_no_package_and_no_bound_is_written_silently(source: str, project: Path, tmp_path: Path):
    requests = Requests(gpus=("A100",))
    read_source(Path(source), requests)
    asked = {wanted.text for wanted in requests.packages.values()}
    added = set(made(tmp_path / "recipes", requests).packages) - asked
    said = "\n".join(finding.message for finding in requests.left)
    assert [text for text in sorted(added) if f"`{text}`" not in said] == []


def test_the_bound_of_numpy_is_said_and_numpy_is_not_added(tmp_path: Path):
    requests = wishes(pytorch="==1.13.1")
    assert made(tmp_path / "without", requests).packages == ()
    requests = wishes(pytorch="==1.13.1")
    requests.package("numpy", "numpy", "r.txt:3")
    assert made(tmp_path / "with", requests).packages == ("numpy<2",)
    (finding,) = [finding for finding in requests.left if finding.where == "r.txt:3"]
    assert finding.message == "`numpy<2` stands for `numpy`: torch 1.13.1 needs it"


def lines(path: Path) -> set[int]:
    """Those with something to convert; a continuation counts as the line that it begins on."""
    found, goes_on = set(), False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not goes_on and line.strip() and not line.strip().startswith("#"):
            found.add(number)
        goes_on = line.endswith("\\")
    return found


def test_no_line_of_a_requirements_file_is_lost(project: Path):
    requests = Requests(gpus=())
    read_source(Path("requirements.txt"), requests)
    kept = {wanted.where for wanted in requests.packages.values()} | {
        asked.where for asked in requests.pins.values()
    }
    told = kept | {finding.where for finding in requests.left} | {where for *_, where in requests.indexes}
    here = {int(where.rpartition(":")[2]) for where in told if where.startswith("requirements.txt:")}
    followed = {20}  # -r extra/train.txt
    taken = {3, 14}  # an index of a build, whose CUDA line 4 names too, and an extension
    assert here | followed | taken == lines(Path("requirements.txt"))


@pytest.mark.parametrize(
    "lines",
    [
        ("COPY requirements.txt /tmp/", "RUN pip install -r /tmp/requirements.txt"),
        ("COPY requirements.txt /tmp", "RUN pip install --no-cache-dir -r /tmp/requirements.txt"),
        ("COPY --chown=1:1 requirements.txt /opt/all.txt", "RUN pip install -r /opt/all.txt"),
        ('ADD ["requirements.txt", "/opt/"]', "RUN pip install -r/opt/requirements.txt"),
        ("COPY deep/more.txt requirements.txt /opt", "RUN pip install --requirement=/opt/requirements.txt"),
        ("COPY require*.txt /opt/", "RUN pip install -r /opt/requirements.txt"),
        ("COPY . /code", "RUN pip install -r /code/requirements.txt"),
        ("WORKDIR /code", "COPY requirements.txt .", "RUN pip install -r /code/requirements.txt"),
        ("WORKDIR /code", "WORKDIR sub", "COPY ./requirements.txt ../", "RUN pip install -r ../requirements.txt"),
        ("WORKDIR /code", "COPY requirements.txt all.txt", "FROM base", "RUN pip install -r all.txt"),
        ("RUN pip install -r requirements.txt",),  # brought by something that is not followed
    ],
)  # fmt: skip
def test_a_dockerfile_s_requirements_are_found_where_they_were_copied_from(
    lines: tuple[str, ...], tmp_path: Path
):
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/more.txt").write_text("wrong\n")
    file = tmp_path / "Dockerfile"
    file.write_text("\n".join(("FROM python:3.11", *lines)) + "\n")
    requests = Requests()
    read_source(file, requests)
    assert requests.packages["tqdm"].where == f"{tmp_path}/requirements.txt:1"
    assert list(requests.packages) == ["tqdm"]
    assert [finding.message for finding in requests.left if "pip" in finding.message or "-r" in finding.message] == []  # fmt: skip


@pytest.mark.parametrize(
    ("copy", "why"),
    [
        ("RUN true", "no `COPY` or `ADD` brings that file from the Dockerfile's folder"),
        ("COPY --from=other x.txt HERE/", "no `COPY` or `ADD` brings that file from the Dockerfile's folder"),
        ("COPY 'x.txt HERE/", "no `COPY` or `ADD` brings that file from the Dockerfile's folder"),
        ("COPY --link a** HERE/", "no `COPY` or `ADD` brings that file from the Dockerfile's folder"),
        ("COPY --link HERE/", "no `COPY` or `ADD` brings that file from the Dockerfile's folder"),
        ("COPY x.txt HERE/", "there is no file `HERE/project/x.txt`"),
    ],
)
def test_no_file_of_this_machine_is_taken_for_one_of_a_dockerfile_s_image(
    copy: str, why: str, tmp_path: Path
):
    (tmp_path / "x.txt").write_text("tqdm\n")
    file = tmp_path / "project/Dockerfile"
    file.parent.mkdir()
    lines = ("FROM python:3.11", copy, "RUN pip install -r HERE/x.txt", "")
    file.write_text("\n".join(lines).replace("HERE", str(tmp_path)))
    requests = Requests()
    read_source(file, requests)
    assert requests.packages == {}
    assert requests.left[-1].message.endswith(f": {why.replace('HERE', str(tmp_path))}")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("numpy", "numpy"),
        ("NumPy == 1.21.*", "NumPy==1.21.*"),
        ("tqdm>=4 ; python_version>'3'", 'tqdm>=4; python_version > "3"'),
        ("torchvision==0.11.2+cu113", "torchvision==0.11.2"),
        ("rich[jupyter]", "rich[jupyter]"),
        ("git+https://git.example.org/a/b.git", None),
        ("b @ git+https://git.example.org/a/b.git@v1", None),
        ("https://files.example.org/a.whl", None),
        ("./a", None),
        ("a b c", None),
        ("nvidia-cudnn-cu12==8.9.2.26", None),
    ],
)
def test_one_requirement(line: str, kept: str | None):
    requests = Requests()
    read_requirement(line, "x:1", requests)
    assert [wanted.text for wanted in requests.packages.values()] == ([kept] if kept else [])
    assert bool(requests.left) == (kept is None or "+" in line)


@pytest.mark.parametrize("line", ["torch-scatter", "mamba_ssm==2.2.5", "flash-attn>=2.3", "mmcv-full==1.7.2"])
def test_a_package_with_cuda_code_is_left_to_lock_which_takes_a_wheel_or_compiles(line: str):
    requests = Requests()
    read_requirement(line, "x:1", requests)
    assert [wanted.text for wanted in requests.packages.values()] == [line]
    assert not requests.extensions
    assert not requests.left


@pytest.mark.parametrize(
    ("line", "when", "entry"),
    [
        ("nerfacc==0.5.2", "when it is first imported", "extensions: [{name: nerfacc, sdist: nerfacc==0.5.2}]"),
        ("MinkowskiEngine", "for the CPU alone", 'options: ["--force_cuda", "--blas=openblas"]}] and apt: [libopenblas-dev]'),
        ("deepspeed", "op by op", "in its place, extensions: [{name: deepspeed, sdist: deepspeed==0.19.8, env: {DS_ACCELERATOR: cuda"),
        ("warp-lang", "module by module, when a program first runs a kernel of it, into ~/.cache/warp (WARP_CACHE_PATH)", ""),
        ("flashinfer-python==0.6.18", "kernel by kernel", "packages: [flashinfer-cubin==0.6.18, flashinfer-jit-cache==0.6.18] with indexes:"),
        ("transformer_engine[pytorch]>=2", "by its part for PyTorch", "and packages: [transformer-engine-cu12==2.20.2]"),
    ],
)  # fmt: skip
def test_a_package_that_compiles_later_is_said_with_the_entry_that_compiles_it_now(line, when, entry):
    requests = Requests()
    read_requirement(line, "x:1", requests)
    (said,) = requests.left
    assert when in said.message
    assert entry in said.hint
    assert [one.text for one in requests.packages.values()], "it is there all the same"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('-v --config-settings "--build-option=--cpp_ext"', """its entry in `extensions` takes `options: ["--cpp_ext"]`"""),
        ("--global-option=--cuda_ext", """its entry in `extensions` takes `options: ["--cuda_ext"]`"""),
        ("--config-settings editable_mode=strict", ""),
    ],
)  # fmt: skip
def test_an_option_of_a_build_is_left_out_with_the_key_that_has_it(line: str, hint: str):
    requests = Requests()
    read_line(line, "x:1", requests, locate=Path)
    assert [left.hint for left in requests.left if "an option of pip" in left.message] == [hint]


def test_every_entry_that_compiles_a_package_now_is_one_of_a_recipe(tmp_path: Path):
    for row in (row for row in load_late().rows if row.entry):
        recipe = make(row.package, tmp_path, wishes(), ())[0].path
        text = recipe.read_text()
        entry = row.advice("").removeprefix("in its place, ").partition("] and ")[0].removesuffix("]")
        recipe.write_text(f"{text}\n{entry}]\n")
        assert len(load(recipe).extensions) == 1


@pytest.mark.parametrize(
    ("gpus", "values"), [(("A100", "H100"), (("NATTEN_CUDA_ARCH", "8.0;9.0"),)), ((), ())]
)
def test_a_variable_that_names_gpus_gets_those_of_the_recipe(tmp_path: Path, gpus, values):
    requests = Requests(gpus=gpus)
    env = (("NATTEN_CUDA_ARCH", "{dots}"),)
    requests.extension(Extension(name="natten", sdist="natten==0.21.0", env=env), "x:1")
    (extension,) = make("mine", tmp_path, requests, ())[0].extensions
    assert extension.env == values


def test_the_cuda_of_a_torch_that_gives_way_does_not_choose_for_the_other_one(tmp_path: Path):
    requests = Requests(gpus=("A100",))
    read_requirement("torch==1.6.0+cu101", "x:1", requests)
    requests.pin("pytorch", "==2.6.0", "`--pytorch`")
    assert made(tmp_path, requests).cuda == "12.4"
    assert "cuda `==10.1` gives way with it" in [one.message for one in requests.left]


def test_a_torchvision_of_another_torch_becomes_the_one_that_fits(tmp_path: Path):
    requests = wishes(pytorch="==2.0.0")
    requests.package("torchvision", "torchvision==0.15.0", "x:1")  # conda's number for 0.15.1
    recipe = made(tmp_path, requests)
    assert recipe.packages == ("torchvision==0.15.1",)
    (said,) = (one.message for one in requests.left)
    assert said.startswith("`torchvision==0.15.1` stands for `torchvision==0.15.0`")


def test_a_setuptools_too_old_for_torch_becomes_the_bound_that_fits(tmp_path: Path):
    requests = wishes(pytorch="==2.13.0")
    read_requirement("setuptools==66.1.1", "freeze.txt:1", requests)
    assert made(tmp_path, requests).packages == ("setuptools>=77.0.3",)
    assert any("stands for `setuptools==66.1.1`" in left.message for left in requests.left)


def test_an_image_of_pytorch_may_name_two_numbers(tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM pytorch/pytorch:1.13-cuda11.6-cudnn8-devel\n")
    requests = Requests()
    read_source(tmp_path / "Dockerfile", requests)
    assert requests.pins["pytorch"].text == "==1.13"


@pytest.mark.programs
def test_a_submodule_that_is_not_checked_out_is_taken_from_its_commit(tmp_path: Path):
    """Its project was cloned without `--recursive`, and its requirements install the submodule's folder."""
    sha = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "submodules/simple-knn").mkdir(parents=True)
    (tmp_path / ".gitmodules").write_text(
        '[submodule "knn"]\n\tpath = submodules/simple-knn\n\turl = https://git.example.org/a/knn.git\n'
        '[submodule "glm"]\n\tpath = glm\n\turl = ../glm.git\n'
    )
    (tmp_path / "requirements.txt").write_text("./submodules/simple-knn\n")
    commit(tmp_path)
    runner, requests = ProcessRunner(os.environ), Requests()
    add = ("update-index", "--add", "--cacheinfo", f"160000,{sha},submodules/simple-knn")
    runner.run(Command(argv=("git", "-C", str(tmp_path), *add), why="add a submodule"))
    read_git(tmp_path, runner, requests)
    read_source(tmp_path, requests)
    assert [(one.name, one.git, one.commit) for one in requests.extensions.values()] == [
        ("simple_knn", "https://git.example.org/a/knn.git", sha)
    ]
    (said,) = (one.message for one in requests.left if "submodule" in one.message)
    assert said == "not checked out, so what it has is not read: submodule `glm`"


@pytest.mark.programs
def test_a_file_of_a_project_says_the_submodules_that_its_build_lacks(tmp_path: Path):
    (tmp_path / "ops/third_party").mkdir(parents=True)
    (tmp_path / "ops/.gitmodules").write_text('[submodule "c"]\n\tpath = third_party/cutlass\n\turl = ../c\n')
    (tmp_path / "ops/setup.py").write_text(
        "from torch.utils.cpp_extension import CUDAExtension\nfrom setuptools import setup\n"
        "setup(ext_modules=[CUDAExtension('ops', ['a.cu'])])\n"
    )
    commit(tmp_path)
    sources = RecipeSources(
        projects=(str(tmp_path / "ops/setup.py"),), machine=False, gpus=("A100",), versions={}
    )
    _, findings = write_recipe(
        "mine", tmp_path, sources, {}, ProcessRunner(os.environ), ask=None, report=print, typed=()
    )
    (said,) = (one.message for one in findings if "submodule" in one.message)
    assert said == "not checked out, so the build of `ops` lacks it: submodule `third_party/cutlass`"


def test_torch_of_a_file_is_a_pin_and_its_build_is_cuda():
    requests = Requests()
    read_requirement("torch==1.10.1+cu113", "x:1", requests)
    assert {key: asked.text for key, asked in requests.pins.items()} == {
        "pytorch": "==1.10.1",
        "cuda": "==11.3",
    }
    read_requirement("torch==2.1.0+cpu", "x:2", requests)
    assert (requests.pins["pytorch"].text, requests.gpus) == ("==2.1.0", ())


def test_a_wheel_of_torch_at_an_address_names_its_version():
    requests = Requests()
    for name in ("torch-2.1.0%2Bcu118-cp310-cp310", "torch_scatter-2.1.2-cp310-cp310"):
        read_requirement(f"https://wheels.example.org/cu118/{name}-linux_x86_64.whl", "x:1", requests)
    assert {key: asked.text for key, asked in requests.pins.items()} == {
        "pytorch": "==2.1.0",
        "cuda": "==11.8",
    }
    assert [one.text for one in requests.packages.values()] == ["torch_scatter==2.1.2"]
    assert requests.left[0].message.startswith("`torch==2.1.0+cu118` stands for the file")


def test_lines_of_pip_in_an_environment_of_conda_are_read_as_lines_of_a_file(tmp_path: Path):
    (tmp_path / "environment.yml").write_text(
        "dependencies: [python=3.10, {pip: ['torch-cluster==1.6.3 -f https://pyg.example.org/', 'einops  # all']}]\n"
    )
    requests = Requests()
    read_source(tmp_path / "environment.yml", requests)
    assert [asked.text for asked in requests.packages.values()] == ["torch-cluster==1.6.3", "einops"]


def test_a_variable_of_the_shell_may_hold_the_beginning_of_a_command(tmp_path: Path):
    install = 'PIP_INSTALL="python3 -m pip --no-cache-dir install" && $PIP_INSTALL numpy'
    (tmp_path / "Dockerfile").write_text(
        f"FROM python:3.11\nRUN {install} && ${{PIP_INSTALL}} einops && $OTHER tqdm\nRUN pip install -r https://host.example.org/r.txt\n"
    )
    requests = Requests()
    read_source(tmp_path / "Dockerfile", requests)
    assert list(requests.packages) == ["numpy", "einops"]
    assert [one.message.partition('": ')[2] for one in requests.left] == [
        "a recipe runs no commands of its own",
        "a file at an address",
    ]


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ("numpy=1.21.2=py38h20f2e39_0", "numpy==1.21.2.*"),
        ("opencv=4.5.3=py39hcbf5309_5", "opencv-python-headless==4.5.3.*"),  # an index has 4.5.3.56
        ("pytz=2023.3.post1=pyhd8ed1ab_0", "pytz==2023.3.post1"),
        ("pywin32=305=py39h99910a6_0", None),
        ("numpy=1.21", "numpy==1.21.*"),
        ("conda-forge::einops", "einops"),
        ("scipy >=1.5,<1.9", "scipy<1.9,>=1.5"),
        ("py-opencv=4.5", "opencv-python-headless==4.5.*"),
        ("openssl=1.1.1l=h7f8727e_0", None),
        ("pandas=1.3|1.4", None),
        ("libgcc-ng", None),
        ("pip=21.0", None),
        ("pyg>=2.3, <=2.5", "torch-geometric<=2.5,>=2.3"),
        ("pyg::pyg=2.4=py310_torch_2.1", "torch-geometric==2.4.*"),
        ("jupyter_client=8.6", "jupyter-client==8.6.*"),
        ("kalign2=2.04", None),
        ("librosa=0.9", "librosa==0.9.*"),  # not every name that begins so is a C library's
    ],
)  # fmt: skip
def test_one_spec_of_conda(spec: str, kept: str | None):
    requests = Requests()
    read_spec(spec, "x:1", requests)
    assert [wanted.text for wanted in requests.packages.values()] == ([kept] if kept else [])
    assert bool(requests.left or requests.system) == (kept is None)


def test_programs_of_conda_are_debians_and_unknown_names_are_said_together(tmp_path: Path):
    names = ("eigen", "aria2>=1.35", "numpy", "fastfold", "Bio_Tool=1.2", "boost-cpp")
    (tmp_path / "environment.yml").write_text("dependencies:\n" + "".join(f"  - {name}\n" for name in names))
    requests = Requests()
    read_source(tmp_path / "environment.yml", requests)
    assert list(requests.apt) == ["libeigen3-dev", "aria2", "libboost-all-dev"]
    assert [request.text for request in requests.packages.values()] == [
        "numpy",
        "fastfold",
        "bio_tool==1.2.*",
    ]
    guessed, moved = requests.left
    assert guessed.message.endswith("the Python index: `fastfold`, `bio_tool`")
    assert moved.message.endswith("in its versions, stand for conda's aria2>=1.35")


def made(folder: Path, requests: Requests, name: str = "mine") -> Recipe:
    recipe, _ = make(name, folder, requests, ())
    return recipe


def wishes(gpus: tuple[str, ...] = ("A100",), **pins: str) -> Requests:
    requests = Requests(gpus=gpus)
    for key, specifier in pins.items():
        requests.pin(key, specifier, f"`{key}`")
    return requests


def test_what_is_offered_is_taken_as_it_is(tmp_path: Path):
    requests = wishes(pytorch="==2.6.0", python="==3.11.*", cuda="==12.4", gcc="==12")
    recipe = made(tmp_path, requests)
    assert (recipe.pytorch, recipe.python, recipe.cuda, recipe.gcc, recipe.base) == ("2.6.0", "3.11", "12.4", "12", "debian/bookworm")  # fmt: skip
    assert requests.left == []


@pytest.mark.parametrize(
    ("line", "day", "torch", "said"),
    [
        ("tqdm", date(2023, 3, 20), "2.0.0", "torch 2.0.0 is the newest that fits the other pins: no file names its version, and the project last changed on 2023"),
        ("torch>=1.8", date(2022, 12, 31), "1.13.1", "torch 1.13.1 is the newest"),
        ("tqdm", date(2019, 1, 1), "1.11.0", "torch 1.11.0 is the oldest that fits the other pins"),
        ("torch==2.6.0", date(2022, 12, 31), "2.6.0", ""),
        ("torchvision==0.15.2", date(2026, 1, 1), "2.0.1", "torch 2.0.1 is the newest that `torchvision==0.15.2` belongs to, and the project"),
    ],
)  # fmt: skip
def test_a_torch_without_a_version_is_as_old_as_the_project(
    line: str, day: date, torch: str, said: str, tmp_path: Path
):
    requests = wishes()
    requests.day = day
    read_requirement(line, "x:1", requests)
    assert made(tmp_path, requests).pytorch == torch
    messages = [finding.message for finding in requests.left if finding.message.startswith("torch ")]
    assert len(messages) == bool(said)
    assert "".join(messages).startswith(said)


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ("vllm==0.8.5\n", "`--pytorch` names another one; `lock` names the torch that a package requires"),
        ("torch>=2\n", "`--pytorch` names another one"),
    ],
)
def test_a_torch_without_a_version_names_who_knows_a_better_one(lines: str, hint: str, tmp_path: Path):
    (tmp_path / "requirements.txt").write_text(lines)
    requests = wishes()
    read_source(tmp_path / "requirements.txt", requests)
    made(tmp_path, requests)
    assert [left.hint for left in requests.left if left.message.startswith("torch ")] == [hint]


@pytest.mark.parametrize("source", ["requirements.txt", ".", None])
def test_a_recipe_says_that_files_were_read_once(
    source: str | None, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("tqdm\n")
    options = ("--from", source) if source else ()
    assert call(capsys, "init", "mine", *options, "--gpu", "none", "--pytorch", "2.6.0")[0] == 0
    line = "# Files are read once: later edits of them do not reach this recipe."
    assert (line in Path("recipes/mine.yaml").read_text().splitlines()) is bool(source)


def commit(folder: Path, *options: str) -> str:
    """Commit what a folder holds, as of a day of 2021."""
    env = (("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_COMMITTER_DATE", "2021-06-07T12:00:00Z"))
    who = ("-c", "user.name=x", "-c", "user.email=x")
    for words in (
        ("init", "--quiet"),
        ("add", "."),
        (*who, "commit", "-q", "-m", "x", *options),
        ("rev-parse", "HEAD"),
    ):
        command = Command(argv=("git", "-C", str(folder), *words), why="make a repository", env=env)
        found = ProcessRunner(os.environ).run(command)
    return found.strip()


@pytest.mark.parametrize(
    ("image", "packages", "base", "apt"),
    [
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", "libopencv-core4.5d python3.10", "ubuntu/jammy", ("libopencv-core4.5d",)),
        ("ubuntu:24.04", "libgl1", "ubuntu/noble", ("libgl1",)),
        ("nvidia/cuda:12.4.1-devel-ubuntu22.04", "python3.10", "debian/bookworm", ()),
        ("debian:bullseye", "libgl1", "debian/bullseye", ("libgl1",)),
    ],
)  # fmt: skip
def test_packages_of_an_image_come_from_its_suite(
    image: str, packages: str, base: str, apt: tuple[str, ...], tmp_path: Path
):
    requests = wishes()
    text = f"FROM {image}\nRUN apt-get install -y {packages}\n"
    (tmp_path / "Dockerfile").write_text(text)
    read_source(tmp_path / "Dockerfile", requests)
    recipe = made(tmp_path, requests)
    assert (recipe.base, recipe.apt) == (base, apt)


def test_nvidia_s_packages_become_the_toolkit_or_are_said_to_be_left_out(tmp_path: Path):
    names = "cuda-nvcc-12-4 libcublas-dev-12-4 libcudnn9-dev-cuda-12 libnccl-dev=2.21.5-1+cuda12.4 libnpp-12-4 libcurl4"
    (tmp_path / "Dockerfile").write_text(f"FROM ubuntu:22.04\nRUN apt-get install {names}\n")
    requests = wishes()
    read_source(tmp_path / "Dockerfile", requests)
    recipe = made(tmp_path, requests)
    assert (recipe.cuda, recipe.apt) == ("12.4", ("libcurl4",))
    messages = [finding.message for finding in requests.left]
    assert (
        f"left out {names.rpartition(' ')[0].replace(' ', ', ')}: Debian, torch or the CUDA toolkit"
        in " ".join(messages)
    )


@pytest.mark.programs
def test_git_knows_when_a_project_last_changed(tmp_path: Path):
    requests = Requests()
    commit(tmp_path, "--allow-empty")
    read_git(tmp_path, ProcessRunner(os.environ), requests)
    assert requests.day is None  # nothing changed in the folder itself
    (tmp_path / "a.py").touch()
    commit(tmp_path)
    read_git(tmp_path, ProcessRunner(os.environ), requests)
    assert requests.day == date(2021, 6, 7)


@pytest.mark.programs
def test_a_repository_is_read_at_its_commit(project: Path, capsys):
    theirs = project / "theirs"
    (theirs / "ops/csrc").mkdir(parents=True)
    (theirs / "requirements.txt").write_text("tqdm\n-f https://x.example.org\n")
    (theirs / "ops/setup.py").write_text(
        "from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension as E\nsetup(name='ops', ext_modules=[E('ops', [])])\n"
    )
    (theirs / "net.py").write_text("from torch.utils.cpp_extension import load\nload('x', [])\n")
    (theirs / "csrc").mkdir()
    digits, url = commit(theirs), theirs.as_uri()
    code, out, err = call(capsys, "init", "mine", "--from", url, "--gpu", "A100")
    assert (code, out.splitlines()[0]) == (0, "recipes/mine.yaml")
    recipe = load(project / "recipes/mine.yaml")
    assert [(one.name, one.git, one.commit, one.path, one.capture) for one in recipe.extensions] == [
        ("ops", url, digits, "ops", ()),
        ("net", url, digits, "", ("import net",)),
    ]
    assert f"{url}/requirements.txt:2: left out" in err
    assert "last changed on 2021-06-07" in err
    assert "/tmp" not in err.replace(str(project), "")


def test_a_python_that_no_suite_has_is_taken_as_a_standalone_build(tmp_path: Path):
    requests = wishes(pytorch="==2.6.0", python="==3.10.*", cuda="==12.4")
    recipe = made(tmp_path, requests)
    assert (recipe.pytorch, recipe.python, recipe.cuda) == ("2.6.0", "3.10", "12.4")
    assert requests.left == []


def test_a_bound_takes_the_newest_that_keeps_it(tmp_path: Path):
    requests = wishes(pytorch=">=1.9,<2.6", cuda="==12.4")
    assert made(tmp_path, requests).pytorch == "2.5.1"
    assert [finding.message for finding in requests.left] == [
        "torch 2.5.1 is the newest that fits the other pins: no file names its version"
    ]


RELEASES = [row.version for row in TABLES.torches.rows]


def chosen(requests: Requests) -> str:
    return choose(requests, TABLES, name="mine", path=Path("mine.yaml")).pytorch


@pytest.fixture(scope="module")
def buildable() -> list[str]:
    """The releases of torch that init chooses when they are asked for, from old to new."""
    return [version for version in RELEASES if chosen(wishes(pytorch=f"=={version}")) == version]


@pytest.mark.parametrize("version", RELEASES[::4])
def test_a_bound_of_torch_takes_the_newest_that_keeps_it(version: str, buildable: list[str]):
    short = version.rpartition(".")[0]
    exact = [
        f"{operator}{text}" for operator in ("<", "<=", "!=", ">", ">=", "~=") for text in (version, short)
    ]
    for bound in (
        *exact,
        f"=={short}.*",
        f"!={short}.*",
        f">={short},!={RELEASES[-1]}",
        f"<{RELEASES[-1]},!={version}",
    ):
        allowed = [release for release in buildable if SpecifierSet(bound).contains(release)]
        requests = wishes(pytorch=bound)
        torch = chosen(requests)
        if allowed:
            assert torch == allowed[-1], bound
        is_said = any(
            f"nearest to `{requests.pins['pytorch'].text}`" in finding.message for finding in requests.left
        )
        assert is_said != bool(allowed), bound


@pytest.mark.parametrize("name", ["torchvision", "torchaudio"])
@pytest.mark.parametrize(
    "bound", ["<0.20", "==0.19.1", ">=0.16,<0.18", "!=0.29.0", "<2.5", "<=2.3.0", ">0.20"]
)
def test_torchs_companions_bound_it(name: str, bound: str, buildable: list[str]):
    requests = wishes()
    read_requirement(f"{name}{bound}", "x:1", requests)
    releases = {
        version: dict(TABLES.torches.by_name[version].companions).get(name, "9999") for version in buildable
    }
    allowed = [version for version, release in releases.items() if SpecifierSet(bound).contains(release)]
    assert chosen(requests) == (allowed or buildable)[-1]


def test_a_pin_that_no_environment_can_have_is_told_with_the_nearest(tmp_path: Path):
    requests = wishes(pytorch="==1.10.1", python="==3.7.*", cuda="==11.3")
    recipe = made(tmp_path, requests)
    assert [finding.message for finding in requests.left] == [
        f"torch {recipe.pytorch} is the nearest to `==1.10.1` that works with the other pins",
        "Python 3.8 is the nearest to `==3.7.*` that works with the other pins",
        "CUDA 11.5 instead of `==11.3`: CUDA 11.3 is in NVIDIA's apt repositories alone, and the recipe has no `apt_sources`",
    ]


def test_the_nearest_torch_is_the_first_that_has_code_for_the_gpu(tmp_path: Path):
    requests = wishes(("H200",), pytorch="==1.13.1")
    recipe = made(tmp_path, requests)
    assert (recipe.pytorch, recipe.cuda) == ("2.0.1", "11.8")


@pytest.mark.parametrize("torch", ["1.8.0", "2.6.0", "2.13.0"])
def test_the_nearest_python_is_the_nearest_that_passes(torch: str):
    taken = {}
    for asked in TABLES.standalones.by_name:
        requests = wishes((), pytorch=f"=={torch}", python=f"=={asked}")
        taken[asked] = choose(requests, TABLES, name="a", path=Path("a")).python
    passing = [asked for asked, python in taken.items() if asked == python]
    nearest = {asked: min(passing, key=lambda version: distance(version, asked)) for asked in taken}
    assert (taken, len(passing) < len(taken)) == (nearest, True)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--python", "3.15"), "Python 3.15 does not work with the other pins: torch 2.13.0 has no wheel", "`--python 3.14`"),
        (("--python", "3.8"), "Python 3.8 does not work with the other pins: torch 2.13.0 has no wheel", "`--python 3.10`"),
        (("--gpu", "H200", "--pytorch", "1.13"), "torch 1.13.1 does not work with the other pins: torch 1.13.1+cu117 has no code",
         "`--pytorch 2.0.1`"),
        (("--gpu", "H200", "--pytorch", "1.13.1", "--python", "3.15"), "torch 1.13.1 does not work", "`--pytorch 2.0.1 --python 3.11`"),
    ],
)  # fmt: skip
def test_a_version_that_is_typed_is_never_changed(
    options: tuple[str, ...], message: str, hint: str, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("torch==2.13.0\nnumpy\n")
    gpu = () if "--gpu" in options else ("--gpu", "none")
    code, out, err = call(capsys, "init", "mine", "--from", "requirements.txt", *gpu, *options)
    assert (code, out, Path("recipes/mine.yaml").exists()) == (3, "", False)
    assert err.startswith(f"error: {message}")
    assert err.endswith(f"hint: the nearest that does: {hint}\n")
    taken = shlex.split(hint.strip("`"))
    gpu = options[:2] if "--gpu" in options else gpu
    assert call(capsys, "init", "mine", "--from", "requirements.txt", *gpu, *taken)[0] == 0


@pytest.mark.parametrize(
    ("line", "cuda", "said"),
    [
        ("pytorch-cuda=11.8", "11.8", ["`pytorch-cuda=11.8` is the key `cuda`, which brings the whole toolkit"]),
        ("cudatoolkit=11.8.0", "11.8", ["`cudatoolkit=11.8.0` is the key `cuda`, which brings the whole toolkit"]),
        ("pytorch-cuda>=12.1,<12.5", "12.4", ["`pytorch-cuda>=12.1,<12.5` is the key `cuda`, which brings the whole toolkit"]),
        ("cuda=11.8", "11.8", []),
    ],
)  # fmt: skip
def test_what_becomes_of_conda_s_names_of_cuda_is_said(line: str, cuda: str, said: list[str], tmp_path: Path):
    requests = wishes(pytorch="==2.5.1" if cuda == "12.4" else "==2.2.2")
    read_spec(line, "x:1", requests)
    recipe = made(tmp_path, requests)
    assert (recipe.cuda, [finding.message for finding in requests.left]) == (cuda, said)


@pytest.mark.parametrize(
    "lines", [("pytorch-cuda=12.1", "cudatoolkit=11.8"), ("cudatoolkit=11.8", "pytorch-cuda=12.1")]
)
def test_of_two_versions_of_cuda_that_of_torch_s_build_is_taken(lines: tuple[str, str], tmp_path: Path):
    file = tmp_path / "environment.yml"
    file.write_text(f"dependencies: [{', '.join(lines)}]\n")
    requests = wishes(pytorch="==2.1.0")
    read_environment(file, requests)
    assert made(tmp_path, requests).cuda == "12.1"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cuda-toolkit=11.3", "11.4 instead of `==11.3.*`: CUDA 11.3 is in NVIDIA's apt repositories alone"),
        ("cudatoolkit=11.3.1", "11.4 instead of `==11.3.1`: CUDA 11.3 is in NVIDIA's apt repositories alone"),
        ("pytorch-cuda=11.9", "11.8 instead of `==11.9.*`: there is no CUDA 11.9; "),
        ("cudatoolkit==11", "11.2 is the nearest to `==11` that works with the other pins"),
    ],
)
def test_a_cuda_that_is_not_offered_is_told_in_the_words_of_check(line: str, why: str, tmp_path: Path):
    requests = wishes()
    read_spec(line, "x:1", requests)
    made(tmp_path, requests)
    *_, finding = requests.left  # before it, what becomes of conda's names
    assert finding.message.startswith(f"CUDA {why}")


def test_without_a_gpu_there_is_no_cuda(tmp_path: Path):
    requests = wishes((), cuda="==11.3")
    recipe = made(tmp_path, requests)
    assert (recipe.cuda, recipe.gpus) == ("", ())
    assert "no CUDA" in requests.left[0].message


def test_an_old_driver_is_no_ground_for_a_new_cuda(tmp_path: Path):
    new, old = wishes(), wishes()
    old.driver = "450.80.02"
    assert made(tmp_path, new, "new").cuda > made(tmp_path, old, "old").cuda


def test_pins_for_gpus_beside_arm_are_those_of_torchs_wheels_for_arm(tmp_path: Path):
    recipe = made(tmp_path, wishes(("GH200",), pytorch="==2.6.0"))
    assert (recipe.pytorch, recipe.cuda) == ("2.11.0", "13.0")
    with pytest.raises(IncompatibleError, match="Orin") as caught:
        made(tmp_path, wishes(("Orin",)), "other")
    assert "Orin is refused: NVIDIA's CUDA" in caught.value.hint


def test_gpus_that_no_pins_serve_together_are_refused_with_the_reason(tmp_path: Path):
    requests = wishes(("V100", "B200"))
    requests.driver = "390.48"
    with pytest.raises(IncompatibleError) as caught:
        made(tmp_path, requests)
    assert "V100, B200" in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "mine.yaml").exists()


def test_a_package_that_the_pins_rule_out_is_left_with_the_rule(tmp_path: Path):
    requests = wishes(pytorch="==1.13.1")
    requests.package("numpy", "numpy==2.1.0", "r.txt:3")
    assert made(tmp_path, requests).packages == ()
    (finding,) = [finding for finding in requests.left if finding.where == "r.txt:3"]
    assert 'left out "numpy==2.1.0"' in finding.message


DEBIAN = "Bootstrap: debootstrap\nOSVersion: bookworm\n%post\n  apt-get install -y ffmpeg\n"
STAGES = """\
Bootstrap: docker
From: golang:1.22
Stage: build
%post
  apt-get install -y git

Bootstrap: docker
From: nvidia/cuda:12.4.1-devel-ubuntu22.04
Stage: final
%files from build
  /go/bin/tool /usr/bin/tool
%post
  if true; then
  pip install \\
    einops \\
    # a remark
    tqdm
  fi
"""


@pytest.mark.parametrize(
    ("text", "apt", "packages", "cuda", "left"),
    [
        (DEBIAN, ["ffmpeg"], [], None, []),
        (DEBIAN.replace("debootstrap", "localimage"), ["ffmpeg"], [], None, [1]),
        (STAGES, ["git"], ["einops", "tqdm"], "==12.4", [2, 13, 13, 18]),
        ("bootstrap: docker\nFROM: python:3.11-slim # ours\n%\n%environment\nA=1\nexport B='2 3'\n%setup\n  cp x y\n", [], [], None, [7]),
    ],
)  # fmt: skip
def test_a_definition_file_is_read_stage_by_stage(text, apt, packages, cuda, left, tmp_path: Path):
    (tmp_path / "x.def").write_text(text)
    requests = Requests()
    read_source(tmp_path / "x.def", requests)
    pin = requests.pins.get("cuda")
    assert (list(requests.apt), list(requests.packages), pin and pin.text) == (apt, packages, cuda)
    here = [int(one.where.rpartition(":")[2]) for one in requests.left if one.code == "EB140"]
    assert sorted(here) == left
    if "environment" in text:
        assert requests.env == {"A": "1", "B": "2 3"}
        assert requests.pins["python"].where.endswith("x.def:2")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(lines=["-r\x08"], gpu=())  # a path that the comments of a recipe cannot hold as it is
@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from(["numpy<2", "torch", "torch>=1.7", "torch==9.9.9", "torch===x", "-f", "-r", "--hash", "-e .", "\\", "'", "a @ b"]),
            st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=12),
            st.from_regex(r"[a-z]{1,6}(==|>=|<)[0-9]\.[0-9a-z.*+]{0,4}", fullmatch=True),
        ),
        max_size=5,
    ),
    gpu=st.sampled_from([(), ("A100",), ("H100", "T4")]),
)  # fmt: skip
def test_whatever_stands_in_a_file_the_recipe_is_sound(
    lines: list[str], gpu: tuple[str, ...], tmp_path: Path
):
    folder = tmp_path / "any"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "r.txt").write_text("\n".join(lines), encoding="utf-8")
    definition = "\n".join(("Bootstrap: docker", "%post", *lines, "%environment", *lines, *lines))
    (folder / "x.def").write_text(definition, encoding="utf-8")
    requests = Requests(gpus=gpu)
    read_source(folder / "x.def", requests)
    read_source(folder / "r.txt", requests)
    recipe = made(folder, requests)  # which loads and checks what it wrote
    assert load(folder / "mine.yaml").digest == recipe.digest


def test_nothing_is_ever_overwritten(project: Path, capsys):
    mine = project / "recipes/mine.yaml"
    mine.parent.mkdir()
    mine.write_text("mine\n")
    (mine.parent / "schema.json").write_text("own\n")
    assert call(capsys, "init", "mine", "--gpu", "none", "--pytorch", "2.6.0")[0] == 2
    assert mine.read_text() == "mine\n"
    assert call(capsys, "init", "other", "--gpu", "none", "--pytorch", "2.6.0")[0] == 0
    assert (mine.parent / "schema.json").read_text() == "own\n"


@pytest.mark.parametrize("name", ["Upper", "a b", "../x", ""])
def test_a_name_that_no_recipe_can_have_is_refused(name: str, tmp_path: Path):
    with pytest.raises(UsageError):
        new_path(name, tmp_path)


def test_without_a_terminal_the_missing_flag_is_named(project: Path, capsys):
    code, _, err = call(capsys, "init", "mine")
    assert code == 2
    assert "requires `--gpu MODEL`, such as A100, or `--gpu none`" in err
    assert "envbuilder init mine --gpu MODEL\n" in err
    typed = ("init", "mine", "--from", "requirements.txt", "--python", "3.11")
    assert f"envbuilder {' '.join(typed)} --gpu MODEL\n" in call(capsys, *typed)[2]
    assert not (project / "recipes").exists()


def test_without_a_terminal_the_newest_torch_is_taken_and_said(project: Path, capsys):
    code, out, _ = call(capsys, "init", "mine", "--gpu", "A100")
    newest = TABLES.torches.rows[-1].version
    assert code == 0
    assert out.startswith(f"recipes/mine.yaml\nPyTorch {newest} with CUDA ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "nothing.txt"), "there is no file"),
        (("--from", "notes.md"), "its name does not say its kind"),
        (("--from", "empty", "--gpu", "A100"), "nothing that a recipe can hold was found in `empty`"),
        (("--from-env", "empty", "--gpu", "A100"), "`empty` is no environment and no Python of one"),
        (("--with", "dev", "--gpu", "A100"), "no file has a group, an extra or an environment `dev`"),
        (("--gpu", "B20"), "did you mean `B200`"),
        (("--gpu", "A100", "--pytorch", "99.1"), "no pytorch 99.1 is offered"),
        (("--gpu", "A100", "--python", "3.7"), "offered: 3.8, 3.9, 3.10, 3.11"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_way_on(
    arguments: tuple[str, ...], words: str, project: Path, capsys
):
    (project / "notes.md").touch()
    (project / "empty").mkdir()
    code, _, err = call(capsys, "init", "mine", *arguments)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("name", "text"),
    [("e.yml", "name: x\n"), ("e.yml", "a: [\n"), ("Dockerfile", "RUN x\n"), ("x.def", "%post\n  true\n")],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(name: str, text: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError):
        read_source(tmp_path / name, Requests())


def test_the_json_answer_holds_the_recipe_and_the_findings(project: Path, capsys):
    envelope = json.loads(
        call(capsys, "init", "mine", "--from", "requirements.txt", "--gpu", "A100", "--json")[1]
    )
    assert (envelope["data"]["file"], envelope["data"]["gpus"]) == ("recipes/mine.yaml", ["A100"])
    assert {finding["code"] for finding in envelope["findings"]} >= {"EB140", "EB141"}


@pytest.mark.programs
def test_a_try_goes_on_as_far_as_it_can(project: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    gone = (project / "gone").as_uri()
    for name in ("DEBIAN_MIRROR", "DEBIAN_SECURITY", "UBUNTU_MIRROR", "INDEX"):
        monkeypatch.setenv(f"ENVBUILDER_{name}", gone)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(project / "cache"))
    given = ("init", "mine", "--gpu", "none", "--pytorch", "2.6.0", "--try", "--json")
    code, out, _ = call(capsys, *given)
    envelope = json.loads(out)
    assert code == envelope["exit_code"] != 0
    assert envelope["data"]["reached"] == "checked"
    assert envelope["findings"][-1]["where"] == "recipes/mine.yaml"
    assert (project / "recipes/mine.yaml").exists()  # to be edited and locked


def test_three_questions_are_asked_until_each_has_an_answer():
    answers = iter(["A1000", "a100, NVIDIA H100 PCIe", "2.6", "3.7", "3.11"])
    asked: list[str] = []
    told: list[str] = []

    def ask(question: str, default: str) -> str:
        asked.append(question.partition(" ")[0])
        return next(answers)

    requests = Requests()
    ask_missing(requests, TABLES, ask, told.append)
    assert asked == ["GPU", "GPU", "PyTorch", "Python", "Python"]
    assert [re.sub(":.*", "", line) for line in told] == [
        "no GPU `A1000` is known",
        "no python 3.7 is offered with the other pins",
    ]
    assert requests.gpus == ("A100", "H100")
    assert {key: one.text for key, one in requests.pins.items()} == {"pytorch": "==2.6.*", "python": "==3.11"}


def test_enter_alone_three_times_makes_a_sound_recipe(tmp_path: Path):
    requests = Requests()
    ask_missing(requests, TABLES, lambda _, default: default, pytest.fail)
    assert made(tmp_path, requests).gpus == ()


@pytest.mark.parametrize(
    ("version", "gpus"), [*((version, ()) for version in TABLES.standalones.by_name), ("3.14", ("H100",))]
)
def test_the_python_question_offers_what_can_be_chosen(version: str, gpus: tuple[str, ...]):
    requests = wishes(gpus, pytorch="==2.6.0")
    answers, asked, told = iter([version, "whatever fits best"]), [], []

    def ask(question: str, _: str) -> str:
        asked.append(question)
        return next(answers)

    ask_missing(requests, TABLES, ask, told.append)
    assert set(asked) == {"Python version (3.9, 3.10, 3.11, 3.12, 3.13)"}
    assert choose(wishes(gpus, pytorch="==2.6.0"), TABLES, name="a", path=Path("a")).python in asked[0]
    if version in asked[0]:
        assert choose(requests, TABLES, name="a", path=Path("a")).python == version
    else:
        assert told[0].endswith("offered: 3.9, 3.10, 3.11, 3.12, 3.13")
        assert told[0].startswith(f"no python {version} is offered with the other pins: ")


def test_the_torch_question_offers_no_release_without_code_for_the_gpu():
    requests, told = wishes(("H200",)), []
    answers = iter(["1.13.1", "2.0", "3.8"])
    ask_missing(requests, TABLES, lambda *_: next(answers), told.append)
    assert len(told) == 1
    assert ("offered: 2.0.0, 2.0.1," in told[0], f", {RELEASES[-1]}" in told[0]) == (True, True)
    assert (chosen(requests), requests.left) == ("2.0.1", [])


def test_no_question_is_asked_where_no_pins_work_together():
    requests = wishes(("H200", "B200"), python="==3.8")
    requests.typed.append("python")
    ask_missing(requests, TABLES, lambda *_: pytest.fail("asked"), pytest.fail)
    with pytest.raises(IncompatibleError, match=r"^Python 3\.8 does not work with the other pins: torch"):
        chosen(requests)


def test_the_machine_is_read_by_its_programs():
    runner = FakeRunner(
        {
            "nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131\n",
            "gcc": "12\n",
            "python3": "Python 3.11.2\ntorch 2.6.0+cu124\n",
        }
    )
    requests = Requests()
    read_machine({}, runner, requests)
    assert {key: one.text for key, one in requests.pins.items()} == {
        "cuda": "==12.4", "gcc": "==12", "python": "==3.11.*", "pytorch": "==2.6.0",
    }  # fmt: skip


def test_gpus_in_one_option_are_all_taken(project: Path, capsys: pytest.CaptureFixture[str]):
    assert call(capsys, "init", "mine", "--gpu", "A100,H100", "--pytorch", "2.6.0")[0] == 0
    assert "gpus: [A100, H100]" in (project / "recipes/mine.yaml").read_text()


def test_the_gpus_of_a_machine_get_the_names_of_recipes():
    requests = Requests()
    gpus = (Gpu(name="NVIDIA A100-SXM4-80GB"), Gpu(name="NVIDIA A100-SXM4-80GB"), Gpu(name="NVIDIA X1"))
    read_facts(Facts(gpus=gpus, driver="550.54.15"), requests)
    assert (requests.gpus, requests.driver) == (("A100",), "550.54.15")
    assert [finding.message.partition(":")[0] for finding in requests.left] == ['left out "NVIDIA X1"']


@pytest.mark.parametrize("folder", ["recipes", "my recipes"])
def test_what_it_says_to_do_next_finds_the_recipe(
    project: Path, capsys: pytest.CaptureFixture[str], folder: str
):
    code, out, _ = call(capsys, "init", "mine", "--recipes", folder, "--gpu", "A100", "--pytorch", "2.6.0")
    assert code == 0
    commands = [shlex.split(line) for line in out.splitlines() if line.startswith("$ ")]
    assert [words[:3] for words in commands] == [["$", "envbuilder", "lock"], ["$", "envbuilder", "build"]]
    for words in commands:
        assert call(capsys, "show", *words[3:])[0] == 0


@pytest.mark.parametrize("name", list_recipes(examples_folder()))
def test_an_example_comes_with_a_fresh_lock_and_all_its_sources(
    name: str, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "init", "--example", name)
    assert (code, out) == (0, f"recipes/{name}.yaml\n$ envbuilder build {name}\n")
    assert call(capsys, "check", name)[0] == 0
    ours, theirs = load(Path(f"recipes/{name}.yaml")), load(examples_folder() / f"{name}.yaml")
    assert load_fresh(ours, name) == load_fresh(theirs, name)


def test_a_second_example_shares_files_and_nothing_is_overwritten(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "init", "--example", "a100")[0] == 0
    Path("recipes/schema.json").write_text("{}")
    assert call(capsys, "init", "--example", "h100")[0] == 0
    assert Path("recipes/schema.json").read_text() == "{}"
    is_there = "recipes/a100.yaml: is there already, and nothing was copied\n$ envbuilder build a100\n"
    # As in a clone, which has all of it.
    assert call(capsys, "init", "--example", "a100")[:2] == (0, is_there)
    Path("recipes/a100.lock").unlink()
    assert call(capsys, "init", "--example", "a100")[1].startswith("recipes/a100.yaml\n")
    assert Path("recipes/a100.lock").exists()
    with Path("recipes/a100.yaml").open("a") as recipe:
        recipe.write("# mine\n")
    code, _, err = call(capsys, "init", "--example", "a100")
    assert (code, "nothing is overwritten" in err) == (2, True)
    Path("recipes/fused/fused_bias_act.cpp").write_text("// mine\n")
    code, _, err = call(capsys, "init", "--example", "cpu")
    assert (code, "`recipes/fused/fused_bias_act.cpp` is there with other content" in err) == (2, True)
    assert not Path("recipes/cpu.lock").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--example", "a10"), "did you mean `a100`?"),
        (("mine", "--example", "a100"), "neither a name nor pins"),
        ((), "which name"),
    ],
)
def test_an_example_is_asked_for_by_its_name_alone(words, told: str, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "init", *words)
    assert (code, told in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_has_the_examples_in_the_package(tmp_path: Path):
    package = tmp_path / "envbuilder"
    assert examples_folder(package) == tmp_path / "recipes"
    (package / "examples").mkdir(parents=True)
    assert examples_folder(package) == package / "examples"


PAGES = """\
--extra-index-url https://download.pytorch.org/whl/cu124
--find-links https://data.pyg.org/whl/torch-2.6.0+cu124.html
-f https://nvidia-kaolin.s3.us-east-2.amazonaws.com/torch-2.5.1_cu124.html
--extra-index-url https://pkgs.example.org/simple
torch==2.6.0
torch-scatter
pyg-lib
kaolin==0.17.0
apex
fast @ https://files.example.org/fast-2.0%2Bcu12-cp311-cp311-linux_x86_64.whl
"""


def test_pages_whose_packages_are_known_become_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "requirements.txt").write_text(PAGES)
    monkeypatch.chdir(tmp_path)
    requests = Requests(gpus=("A100",))
    read_source(Path("requirements.txt"), requests)
    recipe, _ = make("mine", Path("recipes"), requests, ())
    (index,) = recipe.indexes
    assert (index.name, index.place) == ("pyg", "https://data.pyg.org/whl/torch-2.6.0+cu124.html")
    assert index.packages == ("pyg-lib", "torch-scatter")
    assert recipe.extensions == ()
    wanted = {
        "pyg-lib",
        "torch-scatter",
        "fast @ https://files.example.org/fast-2.0%2Bcu12-cp311-cp311-linux_x86_64.whl",
    }
    assert wanted <= set(recipe.packages)
    left = {finding.where: finding for finding in requests.left if "left out" in finding.message}
    assert "its wheels of kaolin are for another torch or CUDA" in left["requirements.txt:3"].message
    assert (
        'indexes: [{name: example, url: "https://pkgs.example.org/simple"' in left["requirements.txt:4"].hint
    )
    assert "a placeholder without code, and not NVIDIAGameWorks/kaolin" in left["requirements.txt:8"].message
    assert "and not NVIDIA/apex" in left["requirements.txt:9"].message


def test_a_page_that_is_named_for_each_package_is_taken_once(tmp_path: Path):
    page = "https://data.pyg.org/whl/torch-2.6.0+cu124.html"
    lines = [f"{name} -f {page}" for name in ("torch-cluster", "torch-scatter", "torch-sparse")]
    given = ["python=3.11", "pytorch=2.6.0", "pytorch-cuda=12.4", {"pip": lines}]
    (tmp_path / "environment.yml").write_text(f"channels: [pytorch]\ndependencies: {json.dumps(given)}\n")
    requests = Requests(gpus=("A100",))
    read_source(tmp_path / "environment.yml", requests)
    recipe, _ = make("mine", tmp_path / "recipes", requests, ())
    (index,) = recipe.indexes
    assert (index.place, index.packages) == (page, ("torch-cluster", "torch-scatter", "torch-sparse"))
    assert not [finding.message for finding in requests.left if page in finding.message]


def test_a_package_that_is_named_for_another_cuda_is_named(tmp_path: Path):
    names = ["spconv-cu102", "spconv-cu120", "cupy-cuda11x", "cupy-cuda12x", "einops"]
    given = ["python=3.11", "pytorch=2.6.0", "pytorch-cuda=12.4", {"pip": names}]
    (tmp_path / "environment.yml").write_text(f"channels: [pytorch]\ndependencies: {json.dumps(given)}\n")
    requests = Requests(gpus=("A100",))
    read_source(tmp_path / "environment.yml", requests)
    make("mine", tmp_path / "recipes", requests, ())
    said = [finding.message for finding in requests.left if "is for CUDA" in finding.message]
    assert said == [
        "`spconv-cu102` is for CUDA 10, and the recipe has 12.4", "`cupy-cuda11x` is for CUDA 11, and the recipe has 12.4"
    ]  # fmt: skip


def test_a_dockerfile_in_a_folder_copies_from_the_projects_folder_too(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "docker").mkdir()
    (tmp_path / "needs").mkdir()
    (tmp_path / "needs/first.txt").write_text("einops\n")
    (tmp_path / "second.txt").write_text("tqdm\n")
    lines = ["FROM python:3.11", "COPY needs/*.txt /opt/", "COPY . /code"]
    lines += ["RUN pip install -r /opt/first.txt", "RUN pip install -r /code/second.txt"]
    (tmp_path / "docker/Dockerfile").write_text("\n".join(lines))
    requests = Requests()
    read_source(tmp_path, requests)
    assert {"einops", "tqdm"} <= requests.packages.keys()
    assert not [finding.message for finding in requests.left if "there is no file" in finding.message]


def test_a_page_for_another_torch_leaves_a_package_to_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "requirements.txt").write_text(
        PAGES.replace("torch-2.6.0+cu124.html", "torch-2.5.0+cu124.html")
    )
    monkeypatch.chdir(tmp_path)
    requests = Requests(gpus=("A100",))
    read_source(Path("requirements.txt"), requests)
    recipe, _ = make("mine", Path("recipes"), requests, ())
    assert "torch-scatter" in recipe.packages
    assert recipe.indexes == ()
    assert any(
        "of pyg-lib, torch-scatter are for another torch" in finding.message for finding in requests.left
    )
