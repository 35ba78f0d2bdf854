"""The plan: one text from a recipe and its lock, and a key for each layer that knows exactly what it stands on."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.core.cache import sha256_text
from envbuilder.core.errors import LockError
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, Lock, LockedBuild, LockedWarm
from envbuilder.plan.contents import entry_point, runtime_files
from envbuilder.plan.documents import make_provenance
from envbuilder.plan.make import need_buildable
from envbuilder.plan.model import (
    ENV_PREFIX,
    HEAVY,
    MOST_HEAVY,
    Plan,
    PythonStep,
    StartStep,
)
from envbuilder.plan.sbom import make_sbom
from tests.support import bases
from tests.support.bases import locked
from tests.support.plans import (
    CUDA,
    EXTENSION,
    EXTENSIONS,
    INTERPRETER,
    INTERPRETER_ARCHIVE,
    KINDS,
    LOCK,
    OS,
    PACKAGES,
    PYTHON,
    RECIPE,
    RUNTIME,
    START,
    START_FILES,
    TOOLKIT,
    WARM,
    digest,
    keys,
    locked_files,
    make_plan,
    said_to_runtimes,
    sdist,
    wheel,
)

ALL = {OS, PYTHON, CUDA, EXTENSIONS, START, RUNTIME}


def without_digests(text: str) -> str:
    """Return a plan's text without what an edit of any program changes."""
    return re.sub(r"(  program \S+ sha256:)[0-9a-f]{64}", r"\1…", text)


def changed(before: Plan, after: Plan) -> set[str]:
    """The layers whose keys differ."""
    old, new = keys(before), keys(after)
    return {name for name in old | new if old.get(name) != new.get(name)}


def with_deb(**change: object) -> Lock:
    return dataclasses.replace(LOCK, debs=(dataclasses.replace(LOCK.debs[0], **change), *LOCK.debs[1:]))


def with_wheel(**change: object) -> Lock:
    return dataclasses.replace(LOCK, wheels=(dataclasses.replace(LOCK.wheels[0], **change), *LOCK.wheels[1:]))


def with_part(**change: object) -> Lock:
    return dataclasses.replace(LOCK, toolkit=(dataclasses.replace(LOCK.toolkit[0], **change),))


def with_extension(**change: object) -> Lock:
    return dataclasses.replace(LOCK, extensions=(dataclasses.replace(EXTENSION, **change),))


def test_the_canonical_text_of_a_plan_with_cuda(golden):
    golden("plan.txt", without_digests(make_plan().canonical()))


def test_the_canonical_text_of_a_plan_without_cuda(golden):
    recipe = dataclasses.replace(RECIPE, cuda="", gpus=())
    lock = dataclasses.replace(
        with_extension(
            sources=("csrc/fused.cpp",), include=(), cflags=(), cuda_cflags=(), files=EXTENSION.files[:1]
        ),
        toolkit=(),
    )
    golden(
        "plan-cpu.txt", without_digests(make_plan(recipe, lock, toolkit=None, architectures=()).canonical())
    )


def test_a_plan_for_arm_without_tools_says_how_to_lock_them():
    need_buildable(make_plan())
    with pytest.raises(LockError, match="for linux/arm64 does not name the tools that build it") as refused:
        need_buildable(make_plan(lock=dataclasses.replace(LOCK, platform="linux/arm64")))
    assert refused.value.hint.startswith("`envbuilder lock ")


def test_the_same_recipe_and_lock_give_the_same_text():
    assert make_plan().canonical() == make_plan().canonical()


def test_a_lock_that_went_through_its_file_gives_the_same_text(tmp_path):
    path = tmp_path / "x.lock"
    path.write_text(lock_text(LOCK), encoding="utf-8")
    assert make_plan(lock=load_lock(path)).canonical() == make_plan().canonical()


@pytest.mark.programs
def test_another_process_with_other_hash_seeds_gives_the_same_keys():
    code = "from tests.support.plans import keys, make_plan; print(make_plan().key, sorted(keys(make_plan()).values()))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{make_plan().key} {sorted(keys(make_plan()).values())}\n"}


def test_the_build_key_is_the_digest_of_the_text():
    assert make_plan().key == sha256_text(make_plan().canonical())


def test_the_plan_knows_nothing_of_where_the_recipe_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = dataclasses.replace(RECIPE, path=tmp_path / "x.yaml", places=(("$", f"{tmp_path}/x.yaml:1:1"),))
    assert make_plan(moved).canonical() == make_plan().canonical()


def test_the_steps_come_in_the_order_of_their_layers():
    assert [KINDS[type(step)] for step in make_plan().steps] == [
        OS, PYTHON, CUDA, EXTENSIONS, START, RUNTIME,
    ]  # fmt: skip


WARM_FILES = locked_files({"warm.py": "import triton\n"})
WARMED = dataclasses.replace(LOCK, warm=LockedWarm(run=("python warm.py",), files=WARM_FILES))


def test_compiled_kernels_are_a_layer_that_its_program_packages_and_gpus_decide():
    plan = make_plan(lock=WARMED)
    assert [KINDS[type(step)] for step in plan.steps][-3:] == [WARM, START, RUNTIME]
    assert changed(make_plan(), plan) == {WARM, RUNTIME}
    assert WARMED.warm
    edited = dataclasses.replace(WARMED.warm, files=locked_files({"warm.py": "import torch\n"}))
    assert changed(plan, make_plan(lock=dataclasses.replace(WARMED, warm=edited))) == {WARM, RUNTIME}
    assert changed(plan, make_plan(lock=WARMED, architectures=("9.0",))) == {EXTENSIONS, WARM, RUNTIME}
    newer = dataclasses.replace(WARMED, wheels=(*LOCK.wheels[:1], wheel("torch", "2.7.0")))
    assert WARM in changed(plan, make_plan(lock=newer))
    assert plan.warm == WARMED.warm


STANDALONE = dataclasses.replace(LOCK, interpreter=INTERPRETER_ARCHIVE)


def test_a_standalone_python_is_a_layer_of_its_own_below_the_environment():
    plan = make_plan(lock=STANDALONE)
    assert [KINDS[type(step)] for step in plan.steps][:3] == [OS, INTERPRETER, PYTHON]
    assert plan.python.program == "/opt/python/bin/python3.11"
    assert plan.interpreter is not None
    assert plan.interpreter.artifacts == (INTERPRETER_ARCHIVE,)
    assert plan.shared_folders(plan.interpreter) == ("opt",)
    assert make_plan().python.program == "/usr/bin/python3.11"
    # The environment names it, and the layers that are compiled may read it.
    assert changed(make_plan(), plan) == ALL - {OS, START} | {INTERPRETER}


GPU_WHEELS = (
    dataclasses.replace(wheel("torch", "2.6.0"), size=HEAVY),
    dataclasses.replace(wheel("nvidia-cudnn-cu12", "9.1"), size=2 * HEAVY),
    wheel("nvidia-nvtx-cu12", "12.4"),
    wheel("nvidia-curand-cu12", "10.3"),
)


def with_heavy(*more: Artifact) -> Plan:
    return make_plan(lock=dataclasses.replace(LOCK, wheels=(*GPU_WHEELS, wheel("numpy", "2.2.0"), *more)))


def test_each_heavy_wheel_is_a_layer_below_those_that_change_more():
    names = [step.name for step in with_heavy().steps]
    heavy = ["package-torch", "package-nvidia-cudnn-cu12"]
    torchs = [OS, *heavy, "packages-nvidia", PYTHON, CUDA]
    assert names == [*torchs, EXTENSIONS, START, RUNTIME]
    opencv = dataclasses.replace(wheel("opencv-python", "4.11"), size=HEAVY)
    names = [step.name for step in with_heavy(wheel("einops", "0.8.1"), opencv).steps]
    assert names == [*torchs, PACKAGES, "package-opencv-python", EXTENSIONS, START, RUNTIME]


def test_one_small_package_more_makes_neither_heavy_wheels_nor_the_toolkit_again():
    old, new = with_heavy(wheel("tqdm", "4.67")), with_heavy(wheel("tqdm", "4.67"), wheel("einops", "0.8.1"))
    pairs = zip(old.steps, new.steps, strict=True)
    changed_names = {
        before.name for before, after in pairs if old.step_key(before, "") != new.step_key(after, "")
    }
    assert changed_names == {PACKAGES, RUNTIME}


@pytest.mark.parametrize(
    "what",
    [
        {"sources": (), "path": "."},
        {"capture": ("import einops",)},
        {"sources": (), "files": (), "capture": ("import einops",)},
        {"cflags": (f"-I{ENV_PREFIX}/x",)},
    ],
)
def test_the_extensions_depend_on_packages_that_one_of_them_may_read(what: dict[str, object]):
    extensions = (EXTENSION, dataclasses.replace(EXTENSION, name="second", **what))

    def plan(version: str) -> Plan:
        wheels = (*LOCK.wheels, wheel("einops", version))
        return make_plan(lock=dataclasses.replace(LOCK, wheels=wheels, extensions=extensions))

    assert EXTENSIONS in changed(plan("1"), plan("2"))


def test_the_layer_of_a_heavy_wheel_does_not_depend_on_the_other_packages():
    def key(plan: Plan) -> str:
        return next(plan.step_key(step, "") for step in plan.steps if step.name == "package-torch")

    fewer = make_plan(lock=dataclasses.replace(LOCK, wheels=(GPU_WHEELS[0],)))
    newer = dataclasses.replace(GPU_WHEELS[0], sha256=digest("newer"))
    assert key(with_heavy()) == key(fewer)
    assert key(make_plan(lock=dataclasses.replace(LOCK, wheels=(newer,)))) != key(fewer)


def test_only_so_many_wheels_are_layers_of_their_own():
    many = [dataclasses.replace(wheel(f"p{at}", "1"), size=HEAVY + at) for at in range(MOST_HEAVY + 3)]
    plan = make_plan(lock=dataclasses.replace(LOCK, wheels=tuple(many)))
    assert sum(step.name.startswith("package-") for step in plan.steps) == MOST_HEAVY
    assert [package.name for package in plan.python.artifacts] == ["p0", "p1", "p2"]  # the smallest


def with_sdist(tool: str) -> Lock:
    build = LockedBuild(name="zlang", wheels=(wheel("setuptools", tool),))
    return dataclasses.replace(LOCK, wheels=(*LOCK.wheels, sdist("zlang", "1.0")), builds=(build,))


def test_a_source_distribution_makes_the_environment_stand_on_the_compiler():
    plan = make_plan(lock=with_sdist("80.0.0"))
    (step,) = (step for step in plan.environment if step.sdists)
    assert step.inputs == (*step.artifacts, wheel("setuptools", "80.0.0"))
    assert wheel("setuptools", "80.0.0") in plan.artifacts
    tool = changed(plan, make_plan(lock=with_sdist("81.0.0")))
    assert tool == {PACKAGES, RUNTIME}
    compiler = dataclasses.replace(with_sdist("80.0.0"), debs=with_deb(version="1").debs)
    assert changed(plan, make_plan(lock=compiler)) == {OS, PACKAGES, EXTENSIONS, RUNTIME}
    assert PYTHON not in changed(make_plan(), make_plan(lock=with_deb(version="1")))


def test_what_builds_a_source_distribution_is_in_no_layer():
    plan = make_plan(lock=with_sdist("80.0.0"))
    assert "setuptools" not in make_sbom(plan, {})
    assert "setuptools-80.0.0" in make_provenance(plan, (), ())


def test_another_build_of_the_same_python_keeps_the_environment():
    other = dataclasses.replace(INTERPRETER_ARCHIVE, version="3.11.10+20270101", sha256=digest("newer"))
    after = make_plan(lock=dataclasses.replace(LOCK, interpreter=other))
    assert changed(make_plan(lock=STANDALONE), after) == {INTERPRETER, EXTENSIONS, RUNTIME}


def test_without_cuda_there_is_no_cuda_step():
    assert set(keys(make_plan(toolkit=None))) == ALL - {CUDA}


def test_without_extensions_there_is_no_extensions_step():
    assert set(keys(make_plan(lock=dataclasses.replace(LOCK, extensions=())))) == ALL - {EXTENSIONS}


def test_each_step_brings_the_artifacts_that_its_part_of_the_lock_names():
    brought = {KINDS[type(step)]: step.artifacts for step in make_plan().steps}
    assert brought == {
        OS: LOCK.debs, PYTHON: LOCK.wheels, CUDA: LOCK.toolkit, EXTENSIONS: (), START: (), RUNTIME: (),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lock", "layers"),
    [
        pytest.param(with_deb(name="gcc-13"), {OS, EXTENSIONS, RUNTIME}, id="deb name"),
        pytest.param(with_deb(version="12.2.0-15"), {OS, EXTENSIONS, RUNTIME}, id="deb version"),
        pytest.param(with_deb(sha256=digest("other")), {OS, EXTENSIONS, RUNTIME}, id="deb digest"),
        pytest.param(with_deb(path="pool/elsewhere.deb"), {RUNTIME}, id="deb path"),
        pytest.param(with_deb(source="snapshot"), {RUNTIME}, id="deb source"),
        pytest.param(with_deb(size=11), {RUNTIME}, id="deb size"),
        pytest.param(
            dataclasses.replace(LOCK, debs=LOCK.debs[1:]), {OS, EXTENSIONS, RUNTIME}, id="one deb less"
        ),
        pytest.param(with_wheel(name="sympy"), ALL - {OS, START}, id="wheel name"),
        pytest.param(with_wheel(version="2.2.1"), ALL - {OS, START}, id="wheel version"),
        pytest.param(with_wheel(sha256=digest("other")), ALL - {OS, START}, id="wheel digest"),
        pytest.param(with_wheel(path=f"elsewhere/{LOCK.wheels[0].filename}"), {RUNTIME}, id="wheel path"),
        pytest.param(with_part(kind="wheel"), {RUNTIME}, id="part kind"),
        pytest.param(with_part(version="12.4.2"), {RUNTIME}, id="part version"),
        pytest.param(with_part(sha256=digest("other")), {CUDA, EXTENSIONS, RUNTIME}, id="part digest"),
        pytest.param(with_extension(name="melted"), {EXTENSIONS, RUNTIME}, id="extension name"),
        pytest.param(
            with_extension(sources=EXTENSION.sources[::-1]), {EXTENSIONS, RUNTIME}, id="order of sources"
        ),
        pytest.param(with_extension(include=()), {EXTENSIONS, RUNTIME}, id="include"),
        pytest.param(with_extension(cflags=("-O2",)), {EXTENSIONS, RUNTIME}, id="cflags"),
        pytest.param(
            with_extension(cflags=("-O3", "-DNAME=two", "words")), {EXTENSIONS, RUNTIME}, id="where a flag ends"
        ),
        pytest.param(with_extension(cuda_cflags=()), {EXTENSIONS, RUNTIME}, id="cuda_cflags"),
        pytest.param(
            with_extension(cflags=EXTENSION.cuda_cflags, cuda_cflags=EXTENSION.cflags),
            {EXTENSIONS, RUNTIME},
            id="flags of the other compiler",
        ),
        pytest.param(
            with_extension(
                files=(dataclasses.replace(EXTENSION.files[0], sha256=digest("x")), *EXTENSION.files[1:])
            ),
            {EXTENSIONS, RUNTIME},
            id="bytes of a source",
        ),
        pytest.param(with_extension(files=EXTENSION.files[:2]), {EXTENSIONS, RUNTIME}, id="one header less"),
        pytest.param(dataclasses.replace(LOCK, epoch=LOCK.epoch + 1), ALL, id="epoch"),
        pytest.param(dataclasses.replace(LOCK, platform="linux/arm64"), ALL, id="platform"),
        pytest.param(dataclasses.replace(LOCK, recipe=digest("other")), {RUNTIME}, id="digest of the recipe"),
    ],
)  # fmt: skip
def test_a_change_of_the_lock_changes_the_layers_that_stand_on_it_and_no_other(lock, layers):
    assert changed(make_plan(), make_plan(lock=lock)) == layers


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"name": "y"}, {RUNTIME}),
        ({"summary": "words"}, set()),
        ({"tests": ()}, set()),
        ({"places": ()}, set()),
        ({"base": "debian/trixie"}, {OS, EXTENSIONS, RUNTIME}),
        ({"gcc": "11"}, {OS, EXTENSIONS, RUNTIME}),
        ({"python": "3.12"}, ALL - {OS}),
        ({"env": (("OMP_NUM_THREADS", "9"),)}, {RUNTIME}),
        ({"env": ()}, {RUNTIME}),
        ({"pytorch": "2.6.1"}, {RUNTIME}),
        ({"libxcrypt": ""}, {RUNTIME}),
        ({"packages": ()}, {RUNTIME}),
        ({"apt": ()}, {RUNTIME}),
        ({"gpus": ("H100",)}, {RUNTIME}),
    ],
    ids=str,
)
def test_a_change_of_the_recipe_changes_the_layers_that_stand_on_it_and_no_other(change, layers):
    assert changed(make_plan(), make_plan(dataclasses.replace(RECIPE, **change))) == layers


@pytest.mark.parametrize(
    "change",
    [
        {"cuda": "12.6"},
        {"parts": ()},
        {"header_wheels": ()},
        {"links": ()},
        {"files": ()},
    ],
    ids=str,
)
def test_a_change_of_the_toolkit_table_changes_what_is_compiled_with_it(change):
    toolkit = dataclasses.replace(TOOLKIT, **change)
    assert changed(make_plan(), make_plan(toolkit=toolkit)) == {CUDA, EXTENSIONS, RUNTIME}


def test_other_gpus_change_the_extensions_but_not_what_they_are_compiled_with():
    assert changed(make_plan(), make_plan(architectures=("8.0", "9.0"))) == {EXTENSIONS, RUNTIME}


@pytest.mark.parametrize(
    "start",
    [
        START_FILES[:1],
        ((START_FILES[0][0], "import other\n"), START_FILES[1]),
    ],
)
def test_what_each_python_starts_with_is_a_layer_of_its_own(start):
    assert changed(make_plan(), make_plan(start=start)) == {START, RUNTIME}


def test_other_tools_change_every_layer_but_not_the_build_key():
    plan = make_plan()
    before, after = keys(plan, "zstd 1"), keys(plan, "zstd 2")
    assert {name for name in before if before[name] != after[name]} == ALL


def test_a_step_of_another_plan_has_no_key():
    other = dataclasses.replace(make_plan().python, python="3.12")
    with pytest.raises(ValueError, match="not in tuple"):
        make_plan().step_key(other, "tools")


def test_every_layer_has_a_key_of_its_own():
    assert len(set(keys(make_plan()).values())) == len(ALL)


def test_every_change_of_a_layer_changes_the_build_key():
    assert (
        len({make_plan(lock=lock).key for lock in (LOCK, with_deb(version="1"), with_wheel(version="1"))})
        == 3
    )


def test_recipes_with_the_same_wheels_share_the_python_layer_across_suites():
    other = dataclasses.replace(RECIPE, base="debian/trixie", gcc="14", apt=(), env=())
    assert keys(make_plan())[PYTHON] == keys(make_plan(other, with_deb(version="1"), toolkit=None))[PYTHON]


def test_the_python_step_says_where_its_packages_are():
    step = PythonStep(python="3.9", artifacts=())
    assert step.site_packages == "/opt/env/lib/python3.9/site-packages"


def test_the_environment_begins_with_what_must_hold_and_ends_with_the_recipes_own():
    recipe = dataclasses.replace(RECIPE, env=(("A", "1"), ("B", "two words")))
    search = "/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert make_plan(recipe).runtime.env == (
        ("PATH", search),
        ("PYTORCH_VERSION", "2.6.0"),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
        ("A", "1"),
        ("B", "two words"),
    )


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("PATH", "/opt/tool/bin:$PATH", "/opt/tool/bin:/opt/env/bin:/usr/local/cuda/bin:/usr/local/bin:/bin"),
        (
            "PATH",
            "${PATH}:/opt/tool/bin",
            "/opt/env/bin:/usr/local/cuda/bin:/usr/local/bin:/bin:/opt/tool/bin",
        ),
        ("LD_LIBRARY_PATH", "/opt/lib:$LD_LIBRARY_PATH", "/opt/lib:/of/image"),
        ("LD_LIBRARY_PATH", "/opt/lib", "/opt/lib"),
        ("MANPATH", "/opt/man:$MANPATH:/opt/more", "/opt/man:/opt/more"),
        ("CFLAGS", "-O2 $CFLAGS2 $CFLAGS", r"-O2 $CFLAGS2 -D\1"),
        ("OTHER", "$PATH", "$PATH"),
    ],
)
def test_the_own_name_stands_for_what_a_variable_would_be_without_the_recipe(name, value, meant):
    below = ["PATH=/bin", "LD_LIBRARY_PATH=/of/image", r"CFLAGS=-D\1"]
    lock = dataclasses.replace(LOCK, base=locked(dataclasses.replace(bases.devel(), env=below)))
    recipe = dataclasses.replace(RECIPE, env=((name, value),))
    assert dict(make_plan(recipe, lock=lock).runtime.env)[name] == meant


def test_with_cuda_image_and_sif_say_what_the_table_of_runtimes_says():
    step, said = make_plan().runtime, said_to_runtimes()
    assert {pair for pair in step.env if pair[0].startswith("NVIDIA_")} == set().union(*said.values())
    of_sif = [asked for runtime, asked in said.items() if runtime.startswith("Apptainer")]
    assert of_sif == [set(), set()]
    exports = runtime_files(step)[".singularity.d/env/10-docker2singularity.sh"]
    assert "NVIDIA_" not in exports


def test_without_cuda_the_environment_does_not_speak_of_it():
    names = [
        name
        for name, value in make_plan(toolkit=None).runtime.env
        if re.search("cuda|nvidia", f"{name}{value}", re.IGNORECASE)
    ]
    assert names == []


def test_the_recipes_own_value_beats_ours():
    own = {"CUDA_HOME": "/elsewhere", "NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    recipe = dataclasses.replace(RECIPE, env=tuple(own.items()))
    env = dict(make_plan(recipe).runtime.env)
    assert {name: env[name] for name in own} == own


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, "compute,utility"),
        ("", "compute,utility"),
        ("utility", "utility,compute"),
        ("utility,compute,video", "utility,compute,video"),
        ("graphics,all", "all"),
    ],
)
def test_an_image_as_base_hides_neither_gpus_nor_the_drivers_libraries(said, meant):
    own = [] if said is None else [f"NVIDIA_DRIVER_CAPABILITIES={said}"]
    image = dataclasses.replace(bases.devel(), env=["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void", *own])
    env = dict(make_plan(lock=dataclasses.replace(LOCK, base=locked(image))).runtime.env)
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", meant)


def test_an_environment_with_the_torch_of_its_image_sees_the_images_packages():
    site = "usr/local/lib/python3.11/dist-packages"
    image = bases.over(bases.debian(), {f"{site}/torch-2.6.0a0+x.nv25.1.dist-info/METADATA": ""})
    recipe = dataclasses.replace(RECIPE, pytorch="", cuda="", gpus=(), extensions=(), keeps_torch=True)
    lock = dataclasses.replace(LOCK, base=locked(image), extensions=())
    before = make_plan(dataclasses.replace(recipe, keeps_torch=False), lock, toolkit=None)
    plan = make_plan(recipe, lock, toolkit=None)
    now, then = (
        {file for step in made.steps if isinstance(step, StartStep) for file in step.files}
        for made in (plan, before)
    )
    assert dict(now - then) == {
        "opt/env/lib/python3.11/site-packages/image.pth": f"/{site}\n",
        "opt/env/bin/torchrun": "#!/opt/env/bin/python\nfrom torch.distributed.run import main\nmain()\n",
    }
    assert json.loads(recipe.canonical())["pytorch"] == "image"


@pytest.mark.parametrize(
    ("path", "version", "is_seen"),
    [
        ("/opt/conda-env/bin:$PATH", "3.11.9", True),
        ("/mine:/opt/conda-env/bin:${PATH}", "3.11.0", True),
        ("/opt/conda-env/bin:$PATH", "3.12.1", False),
        ("$PATH:/opt/conda-env/bin", "3.11.9", False),
        ("/opt/env/bin:/opt/conda-env/bin:/usr/bin", "3.11.9", False),
        ("/opt/conda-env/bin:/usr/bin", "3.11.9", True),
    ],
)
def test_the_python_of_conda_sees_the_environment_where_it_is_started(
    path: str, version: str, *, is_seen: bool
):
    python = dataclasses.replace(LOCK.wheels[0], kind="conda", name="python", version=version)
    recipe, lock = (
        dataclasses.replace(RECIPE, env=(("PATH", path),)),
        dataclasses.replace(LOCK, conda=(python,)),
    )
    steps = make_plan(recipe, lock).steps
    files = {name for step in steps if isinstance(step, StartStep) for name, _ in step.files}
    assert ("opt/conda-env/lib/python3.11/site-packages/environment.pth" in files) is is_seen


@pytest.mark.programs
def test_the_packages_of_the_environment_come_before_those_of_conda(tmp_path: Path):
    python = dataclasses.replace(LOCK.wheels[0], kind="conda", name="python", version="3.11.9")
    recipe = dataclasses.replace(RECIPE, env=(("PATH", "/opt/conda-env/bin:$PATH"),))
    steps = make_plan(recipe, dataclasses.replace(LOCK, conda=(python,))).steps
    (text,) = (
        text
        for step in steps
        if isinstance(step, StartStep)
        for name, text in step.files
        if "conda-env" in name
    )
    ours, theirs = (tmp_path / name / "lib/python3.11/site-packages" for name in ("env", "conda-env"))
    for folder, modules in ((ours, "ab"), (theirs, "bc")):
        folder.mkdir(parents=True)
        for module in modules:
            (folder / f"{module}.py").write_text(f"where = {folder.parts[-4]!r}\n")
    (ours / "more.pth").write_text("import a; a.where += '!'\n")
    (theirs / "environment.pth").write_text(text.replace("/opt/", f"{tmp_path}/"))
    program = (
        f"import site; site.addsitedir({str(theirs)!r}); import a, b, c; print(a.where, b.where, c.where)"
    )
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("env! env conda-env\n", "")


def test_the_image_holds_the_lock_the_recipe_and_the_plan_up_to_these_files():
    plan = make_plan()
    before = dataclasses.replace(plan, steps=plan.steps[:-1])
    assert dict(plan.runtime.files) == {
        "opt/envbuilder/lock.json": lock_text(LOCK),
        "opt/envbuilder/plan.txt": before.canonical(),
        "opt/envbuilder/recipe.yaml": RECIPE.canonical(),
    }


def test_the_labels_name_the_recipe_the_lock_and_the_plan_up_to_the_runtime_step():
    plan = make_plan()
    before = dataclasses.replace(plan, steps=plan.steps[:-1])
    lock = dict(plan.runtime.files)["opt/envbuilder/lock.json"]
    assert plan.runtime.labels == (
        ("io.envbuilder.lock", f"sha256:{sha256_text(lock)}"),
        ("io.envbuilder.plan", f"sha256:{before.key}"),
        ("io.envbuilder.recipe", f"sha256:{RECIPE.digest}"),
        ("org.opencontainers.image.title", "x"),
    )


def test_a_command_of_the_recipe_begins_every_command_line():
    plan = make_plan(dataclasses.replace(RECIPE, run="tool --name 'two words'"))
    assert changed(make_plan(RECIPE), plan) == {RUNTIME}
    assert entry_point(plan.runtime) == (("/opt/envbuilder/start", "tool", "--name", "two words"), ())
    text = runtime_files(plan.runtime)[".singularity.d/runscript"]
    assert text == "#!/bin/sh\nexec /opt/envbuilder/start tool --name 'two words' \"$@\"\n"
