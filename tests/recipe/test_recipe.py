"""Recipes as people write them: what is read, what is refused, and where each value came from."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import RecipeError, UsageError
from envbuilder.recipe.load import find_recipe, list_recipes, load, load_all
from envbuilder.recipe.model import Extension, Recipe

WHOLE = """\
summary: a recipe
gpus: [A100]
base: debian/bookworm
python: "3.11"
cuda: "12.4"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.6.0"
packages: [numpy >= 1.26]
apt: [git]
extensions:
  - {name: fused, sources: [src/a.cpp, src/a.cu], include: [src], cflags: [-O3], cuda_cflags: [-lineinfo]}
env: {OMP_NUM_THREADS: "8"}
tests: [python -c "import fused"]
"""
LEAST = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.6.0"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for name in ("a.cpp", "a.cu", "b.cpp"):
        (tmp_path / "src" / name).write_text("")
    return tmp_path


def written(folder: Path, text: str, name: str = "x") -> Recipe:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load(path)


def refusals(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """Code, line:column and message of each finding."""
    with pytest.raises(RecipeError) as caught:
        written(folder, text)
    return [
        (finding.code, finding.where.removeprefix(f"{folder}/"), finding.message)
        for finding in caught.value.findings
    ]


def refusal(folder: Path, text: str) -> tuple[str, str, str]:
    (found,) = refusals(folder, text)
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, with the recipe that `init` writes beside its sources."""
    here = tmp_path / "project"
    here.mkdir()
    (here / "polar.yaml").write_text(LEAST)
    (here / "compose.yaml").write_text("services:\n  web:\n    extends: {file: other.yaml}\n")
    monkeypatch.chdir(here)
    return here


@pytest.mark.usefixtures("project")
def test_a_recipe_of_this_folder_is_listed_and_suggested():
    recipes, mistakes = load_all(Path("recipes"))
    assert [recipe.name for recipe in recipes] == ["polar"]
    assert not mistakes
    with pytest.raises(UsageError) as caught:
        find_recipe("polr", Path("recipes"))
    assert caught.value.hint.startswith("did you mean `polar`? recipes: polar; ")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("other", "other.yml"),
        ("./other", "./other.yml"),
        ("old", "recipes/old.yml"),
        ("./polar", "./polar.yaml"),
    ],
)
def test_a_recipe_whose_ending_was_left_out_is_suggested(name: str, meant: str):
    Path("other.yml").write_text(LEAST)
    Path("recipes").mkdir()
    Path("recipes/old.yml").write_text(LEAST)
    with pytest.raises(UsageError) as caught:
        find_recipe(name, Path("recipes"))
    assert caught.value.hint.startswith(f"did you mean `{meant}`? ")


def test_the_recipe_of_a_sif_is_named_by_its_path(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project.parent)
    with pytest.raises(UsageError) as caught:
        find_recipe("project/build/polar.sif", Path())
    assert caught.value.hint.endswith("`project/polar.yaml`")


def test_a_whole_recipe_is_read(folder):
    recipe = written(folder, WHOLE)
    assert dataclasses.replace(recipe, places=()) == Recipe(
        name="x",
        path=folder / "x.yaml",
        summary="a recipe",
        gpus=("A100",),
        base="debian/bookworm",
        python="3.11",
        cuda="12.4",
        gcc="12",
        libxcrypt="4.4",
        pytorch="2.6.0",
        packages=("numpy>=1.26",),
        apt=("git",),
        extensions=(
            Extension(
                name="fused",
                sources=("src/a.cpp", "src/a.cu"),
                include=("src",),
                cflags=("-O3",),
                cuda_cflags=("-lineinfo",),
            ),
        ),
        env=(("OMP_NUM_THREADS", "8"),),
        tests=('python -c "import fused"',),
        files=(folder / "x.yaml",),
        places=(),
    )


def test_what_is_not_asked_is_empty(folder):
    recipe = written(folder, LEAST)
    assert (recipe.cuda, recipe.libxcrypt, recipe.gpus, recipe.packages, recipe.env) == ("", "", (), (), ())


def test_each_value_knows_where_it_was_written(folder):
    recipe = written(folder, WHOLE)
    assert recipe.place("$.cuda") == f"{folder}/x.yaml:5:7"
    assert recipe.place("$.packages[0]") == f"{folder}/x.yaml:9:12"
    assert recipe.place("$.extensions[0].sources[1]") == f"{folder}/x.yaml:12:40"
    assert recipe.place("$.env.OMP_NUM_THREADS") == f"{folder}/x.yaml:13:24"


def test_what_was_not_written_has_the_place_of_what_would_hold_it(folder):
    recipe = written(folder, LEAST)
    assert recipe.place("$.packages[3]") == f"{folder}/x.yaml:1:1"
    assert dataclasses.replace(recipe, places=()).place("$.cuda") == f"{folder}/x.yaml"


def test_a_platform_is_one_of_the_two_and_the_usual_one_changes_no_digest(folder):
    plain = written(folder, LEAST)
    assert written(folder, LEAST + "platform: linux/amd64\n").digest == plain.digest
    arm = written(folder, LEAST + "platform: linux/arm64\n")
    assert arm.platform == "linux/arm64"
    assert json.loads(arm.canonical()) == json.loads(plain.canonical()) | {"platform": "linux/arm64"}
    assert "linux/amd64 or linux/arm64" in refusal(folder, LEAST + "platform: linux/riscv64\n")[2]


def test_every_mistake_is_reported_at_once_in_the_order_of_the_lines(folder):
    text = 'bases: x\npython: 3.10\ngcc: "12.2"\npytorch: "2.6"\npackages: numpy\n'
    assert refusals(folder, text) == [
        ("EB105", "x.yaml:1:1", "$.bases: unknown key `bases`"),
        ("EB109", "x.yaml:1:8", '$.base: expected distribution/suite, or {image: REFERENCE}, found "x"'),
        ("EB108", "x.yaml:2:9", "$.python: expected text, found a number (3.10)"),
        ("EB109", "x.yaml:3:6", '$.gcc: expected a major version such as "12", found "12.2"'),
        (
            "EB109",
            "x.yaml:4:10",
            '$.pytorch: expected a full version such as "2.6.0", none, or image, found "2.6"',
        ),
        ("EB107", "x.yaml:5:11", "$.packages: expected a list, found text"),
    ]


@pytest.mark.parametrize(
    ("pins", "hints"),
    [
        (
            'python: "12"\ngcc: "3.11"\npytorch: 2.6.0\n',
            {
                'are `python` and `gcc` swapped? write `python: "3.11"` and `gcc: "12"`',
                'are `gcc` and `python` swapped? write `gcc: "12"` and `python: "3.11"`',
            },
        ),
        (
            'python: "3.11"\ngcc: "12"\npytorch: "12.4"\ncuda: 2.6.0\ngpus: [A100]\n',
            {'are `pytorch` and `cuda` swapped? write `pytorch: "2.6.0"` and `cuda: "12.4"`'},
        ),
        (
            'python: "3.11"\ngcc: "12"\npytorch: "2.6"\ncuda: 12.4.1\ngpus: [A100]\n',
            {"three numbers; `cuda:` chooses the build, so no `+cu124` here"},
        ),
    ],
)
def test_two_keys_with_each_others_value_are_told(folder, pins, hints):
    with pytest.raises(RecipeError) as caught:
        written(folder, f"base: debian/bookworm\n{pins}")
    assert {one.hint for one in caught.value.findings} == hints


def test_the_error_counts_the_mistakes(folder):
    with pytest.raises(RecipeError, match="has 2 mistakes"):
        written(folder, 'python: "3.11"\ngcc: "12"\n')
    with pytest.raises(RecipeError, match=r"has 1 mistake\b"):
        written(folder, LEAST + "nonsense: x\n")


def test_keys_of_later_versions_are_unknown_and_the_hint_lists_the_known(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + "mpi: openmpi\n")
    assert "known keys: base, python, gcc, pytorch, summary" in caught.value.findings[0].hint


def test_what_nccl_is_told_is_left_to_the_node_or_off_or_a_profile(folder):
    (folder / "site.json").write_text("{}")
    assert [written(folder, LEAST + text).nccl for text in ("", "nccl: auto\n", "nccl: off\n", "nccl: {profile: site.json}\n")] == [
        "auto", "auto", "off", "site.json",
    ]  # fmt: skip
    plain, off = written(folder, LEAST), written(folder, LEAST + "nccl: off\n")
    assert written(folder, LEAST + "nccl: auto\n").digest == plain.digest != off.digest


def test_nccl_has_a_version_beside_its_profile(folder):
    (folder / "site.json").write_text("{}")
    cuda = LEAST + 'cuda: "12.4"\ngpus: [A100]\n'
    texts = ('{version: "2.27.5"}', '{version: "2.27.5", profile: site.json}', "{profile: site.json}")
    recipes = [written(folder, f"{cuda}nccl: {text}\n") for text in texts]
    assert [(recipe.nccl, recipe.nccl_version) for recipe in recipes] == [
        ("auto", "2.27.5"), ("site.json", "2.27.5"), ("site.json", ""),
    ]  # fmt: skip
    assert len({recipe.digest for recipe in recipes}) == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("never", "EB109"),
        ("{}", "EB109"),
        ('{version: "2.27"}', "EB109"),
        ('{version: "2.27.5"}', "EB126"),
        ("{profile: none.json}", "EB122"),
        ("{file: x}", "EB105"),
        ("[auto]", "EB107"),
        ("{profile: ../x}", "EB122"),
    ],
)
def test_other_words_for_nccl_are_refused(folder, text, code):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + f"nccl: {text}\n")
    assert code in [one.code for one in caught.value.findings]


DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    "reference", ["debian", "a/b/c:1.2_3", f"x.example:5000/site/cuda:12@{DIGEST}", f"localhost:1/a@{DIGEST}"]
)
def test_a_base_may_be_an_image(folder, reference):
    recipe = written(folder, LEAST.replace("debian/bookworm", f"{{image: {json.dumps(reference)}}}"))
    assert (recipe.base, recipe.image) == ("", reference)
    assert json.loads(recipe.canonical())["base"] == {"image": reference}
    assert recipe.place("$.base.image").startswith(f"{folder}/x.yaml:")


def test_another_image_is_another_recipe(folder):
    images = [f"{{image: {name}}}" for name in ("a", "b", "a:1")]
    recipes = [written(folder, LEAST.replace("debian/bookworm", image)) for image in images]
    assert len({recipe.digest for recipe in recipes}) == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{image: Upper/case}", "EB109"),
        ("{image: x.example/Upper}", "EB109"),
        ("{image: a:b:c}", "EB109"),
        ("{image: 'a@sha256:12'}", "EB109"),
        ("{image: 3}", "EB108"),
        ("{image: [a]}", "EB107"),
        ("{}", "EB106"),
        ("{image: a, tag: b}", "EB105"),
        ("[debian/bookworm]", "EB107"),
    ],
)
def test_a_base_that_is_neither_a_suite_nor_an_image_is_one_mistake(folder, text, code):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST.replace("debian/bookworm", text))
    assert [one.code for one in caught.value.findings] == [code]


def test_the_hint_of_a_base_shows_both_forms(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST.replace("debian/bookworm", "debian"))
    (finding,) = caught.value.findings
    assert finding.hint == "`base: debian/bookworm`, or `base: {image: registry/repository:tag@sha256:…}`"


@pytest.mark.parametrize("text", ["", "[a, b]", "text"])
def test_a_file_that_is_no_map_is_refused(folder, text):
    assert refusal(folder, text)[0] == "EB107"


def test_a_file_that_is_not_there_is_refused(folder):
    with pytest.raises(RecipeError) as caught:
        load(folder / "none.yaml")
    assert caught.value.findings[0].code == "EB101"


@pytest.mark.parametrize("name", ["Upper", "a b", "-a", "a__-b", "ü"])
def test_a_name_that_no_image_can_have_is_refused(folder, name):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST, name)
    assert [finding.code for finding in caught.value.findings] == ["EB125"]


def test_cuda_without_gpus_and_gpus_without_cuda_are_refused(folder):
    assert refusal(folder, LEAST + 'cuda: "12.4"\n')[::2] == ("EB126", "$.cuda: `cuda` needs `gpus`")
    assert refusal(folder, LEAST + 'cuda: "12.4"\ngpus: []\n')[::2] == (
        "EB126",
        "$.cuda: `cuda` needs `gpus`",
    )
    assert refusal(folder, LEAST + "gpus: [A100]\n")[::2] == ("EB126", "$.gpus: `gpus` needs `cuda`")


def test_a_recipe_beside_the_sources_of_its_extensions_is_found_by_its_name(folder, monkeypatch):
    (folder / "setup.py").touch()
    written(folder, LEAST + "extensions: [{name: select, path: .}]\n")  # the name of no module
    monkeypatch.chdir(folder)
    assert find_recipe("x", Path("recipes")) == Path("x.yaml")
    assert load(Path("x.yaml")).extensions[0].path == "."


# packages


def test_requirements_get_their_normal_spelling_and_come_once(folder):
    recipe = written(
        folder,
        LEAST + 'packages: ["numpy <2,>= 1.21", "numpy<2,>=1.21", "einops[x] ; python_version<\'4\'"]\n',
    )
    assert recipe.packages == ("numpy<2,>=1.21", 'einops[x]; python_version < "4"')
    assert recipe.place("$.packages[1]") == f"{folder}/x.yaml:5:50"


@pytest.mark.parametrize(
    "text",
    [
        "-r other.txt",
        "--index-url x",
        "numpy @ https://host/numpy.whl",
        "numpy @ file:///numpy.whl",
        "./numpy",
        "https://host/numpy.whl",
        "numpy ==",
        "numpy \\",
        "torch==2.6.0",
        "Torch",
    ],
)
def test_a_package_that_is_no_requirement_is_refused(folder, text):
    code, where, message = refusal(folder, f"{LEAST}packages: ['{text}']\n")
    assert (code, where) == ("EB121", "x.yaml:5:12")
    assert message.startswith("$.packages[0]: ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("einops=0.8", "did you mean `einops==0.8`, or `einops==0.8.*` as conda means it?"),
        ("einops = 0.8.*", "did you mean `einops==0.8.*`?"),
        ("rich[all]=1.2=py38_0", "did you mean `rich[all]==1.2`, or `rich[all]==1.2.*` as conda means it?"),
        ("einops=0.8; nonsense", "write a name with versions, such as `numpy>=2,<3`"),
        *(
            (f"einops{sign}2", f"did you mean `einops{meant}`?")
            for sign, meant in {
                "=>": ">=2",
                "=<": "<=2",
                "==>": ">=2",
                "==<": "<=2",
                ">==": ">=2",
                "<==": "<=2",
                "> =": ">=2",
                " => ": ">=2",
                " = > ": ">=2",
                "~>": "~=2.0",
                "=~": "~=2.0",
                "=!": "!=2",
                "<>": "!=2",
                "^": "<3,>=2",
                " ": "==2",
            }.items()
        ),
        ("rich[all]=>1.2,<3", "did you mean `rich[all]<3,>=1.2`?"),
        ("rich>=1.2 <3", "did you mean `rich<3,>=1.2`?"),
        ('rich=>1.2; python_version=>"3.9"', 'did you mean `rich>=1.2; python_version >= "3.9"`?'),
        ("rich=>", "write a name with versions, such as `numpy>=2,<3`"),
        ("rich^", "write a name with versions, such as `numpy>=2,<3`"),
        ("rich^x.2", "write a name with versions, such as `numpy>=2,<3`"),
        ("einops >= 0.8 0.9", "write a name with versions, such as `numpy>=2,<3`"),
    ],
)
def test_a_comparison_in_another_spelling_is_told_as_pep_508_writes_it(folder, text, hint):
    with pytest.raises(RecipeError) as caught:
        written(folder, f"{LEAST}packages: ['{text}']\n")
    assert [finding.hint for finding in caught.value.findings] == [hint]


@pytest.mark.parametrize("text", ["git+https://host/a/b.git", "b @ git+https://host/a/b.git", "./b"])
def test_a_repository_among_packages_is_answered_with_extensions(folder, text):
    """A project without compiled code is one of `extensions`, too."""
    with pytest.raises(RecipeError) as caught:
        written(folder, f"{LEAST}packages: ['{text}']\n")
    (finding,) = caught.value.findings
    assert "an entry of `extensions`, also without compiled code: " in finding.hint
    assert "`{name: NAME, git: URL, commit: COMMIT}`" in finding.hint


@pytest.mark.parametrize("text", ["numpy\\n--index-url x", "numpy\\0", "", " ", "\\r"])
def test_a_package_of_more_than_one_line_is_refused(folder, text):
    assert refusal(folder, f'{LEAST}packages: ["{text}"]\n')[0] == "EB109"


def test_a_requirements_file_is_folded_in_with_its_own_places(folder):
    (folder / "wants.txt").write_text("# wants\n\nnumpy<2  # old code\neinops\n")
    recipe = written(folder, LEAST + "packages: [{requirements: wants.txt}, rich]\n")
    assert recipe.packages == ("numpy<2", "einops", "rich")
    assert recipe.place("$.packages[1]") == f"{folder}/wants.txt:4:1"


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("{requirements: none.txt}", "EB122"),
        ("{requirements: ../wants.txt}", "EB122"),
        ("{requirements: 3}", "EB108"),
        ("{}", "EB106"),
        ("{requirement: wants.txt}", "EB105"),
        ("[numpy]", "EB107"),
    ],
)
def test_a_requirements_item_with_a_mistake_is_refused(folder, item, code):
    assert code in [found[0] for found in refusals(folder, f"{LEAST}packages: [{item}]\n")]


def test_a_requirements_file_that_is_no_text_is_refused(folder):
    (folder / "wants.txt").write_bytes(b"\xff")
    assert refusal(folder, LEAST + "packages: [{requirements: wants.txt}]\n")[0] == "EB101"


# apt and env


@pytest.mark.parametrize("name", ["Git", "a", "git=1.0", "g/it", "-y", "git curl"])
def test_what_is_no_debian_package_is_refused(folder, name):
    assert refusal(folder, f"{LEAST}apt: ['{name}']\n")[:2] == ("EB109", "x.yaml:5:7")


def test_variables_are_sorted_and_may_be_empty(folder):
    assert written(folder, LEAST + 'env: {B: "", A: x}\n').env == (("A", "x"), ("B", ""))


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("A-B: x", "EB124"),
        ("1A: x", "EB124"),
        ("A: 8", "EB108"),
        ('A: "x\\ny"', "EB109"),
        ('A: "x\\0"', "EB109"),
    ],
)
def test_a_variable_with_a_mistake_is_refused(folder, entry, code):
    assert refusal(folder, f"{LEAST}env: {{{entry}}}\n")[0] == code


# extensions


@pytest.mark.parametrize(
    ("extension", "code"),
    [
        ("{name: a-b, sources: [src/a.cpp]}", "EB123"),
        ("{name: class, sources: [src/a.cpp]}", "EB123"),
        ("{name: select, sources: [src/a.cpp]}", "EB123"),
        ("{name: a, sources: []}", "EB123"),
        ("{name: a, sources: [src/a.cpp, src/a.cpp]}", "EB123"),
        ("{name: a, sources: [/etc/passwd]}", "EB122"),
        ("{name: a, sources: [../a.cpp]}", "EB122"),
        ("{name: a, sources: [src/../src/a.cpp]}", "EB122"),
        ("{name: a, sources: [./src/a.cpp]}", "EB122"),
        ("{name: a, sources: ['src\\a.cpp']}", "EB122"),
        ("{name: a, sources: [src/c.cpp]}", "EB122"),
        ("{name: a, sources: [none/c.cpp]}", "EB122"),
        ("{name: a, sources: [src]}", "EB122"),
        ("{name: a, sources: [x.yaml]}", "EB122"),
        ("{name: a, sources: [src/a.cpp], include: [src/a.cpp]}", "EB122"),
        ("{name: a, sources: [src/a.cpp], include: [.]}", "EB122"),
        ("{name: a, sources: src/a.cpp}", "EB107"),
        ("{name: a}", "EB123"),
        ("{sources: [src/a.cpp]}", "EB106"),
        ("{name: a, path: src, sources: [src/a.cpp]}", "EB123"),
        ("{name: a, path: src, sdist: a==1, git: 'https://h/a'}", "EB123"),
        ("{name: a, path: none}", "EB122"),
        ("{name: a, path: src}", "EB123"),
        ("{name: a, path: ../src}", "EB122"),
        ("{name: a, sdist: a==1, path: ../x}", "EB109"),
        ("{name: a, git: 'https://h/a'}", "EB123"),
        ("{name: a, commit: a123456789012345678901234567890123456789, path: src}", "EB123"),
        ("{name: a, git: 'https://h/a', commit: main}", "EB109"),
        ("{name: a, git: '--upload-pack=x', commit: a123456789012345678901234567890123456789}", "EB109"),
        ("{name: a, sdist: a}", "EB109"),
        ("{name: a, url: 'https://h/a.tar.gz'}", "EB123"),
        ("{name: a, url: 'https://h/a.tar.gz', sha256: x}", "EB109"),
        ("{name: a, url: 'https://u:p@h/a.tar.gz', sha256: %s}" % ("1a" * 32), "EB109"),
        ("{name: a, path: src, sha256: %s}" % ("1a" * 32), "EB123"),
        ("{name: a, path: src, cflags: [-O3]}", "EB123"),
        ("{name: a, sources: [src/a.cpp], capture: [import a]}", "EB123"),
        ("{name: a, capture: [import a], patch: src/a.cpp}", "EB123"),
        ("{name: a, capture: [import a], cflags: [-O3]}", "EB123"),
        ("{name: a, deepspeed: [fused_adam], path: src}", "EB123"),
        ("{name: a, deepspeed: [fused_adam], capture: [import a]}", "EB123"),
        ("{name: a, deepspeed: []}", "EB123"),
        ("{name: a, deepspeed: [FusedAdam]}", "EB109"),
        ("{name: a, deepspeed: [fused_adam]}", "EB123"),
        ("{name: a, sources: [src/a.cpp], options: [--cuda_ext]}", "EB123"),
        ("{name: a, path: src, capture: [import a], options: [--cuda_ext]}", "EB123"),
        ("{name: a, path: src, options: [cuda_ext]}", "EB109"),
        ("{name: a, path: src, env: {1A: x}}", "EB124"),
        ("{name: a, path: src, env: {A: 1}}", "EB108"),
        ("{name: a, path: src, other: x}", "EB105"),
        ("fused", "EB107"),
    ],
)
def test_an_extension_with_a_mistake_is_refused(folder, extension, code):
    assert code in [found[0] for found in refusals(folder, f"{LEAST}extensions: [{extension}]\n")]


@pytest.mark.parametrize(
    ("extension", "form"),
    [
        ("{name: a, sources: [src/a.cpp]}", "load"),
        ("{name: a, path: old}", "project"),
        ("{name: a, path: new}", "project"),
        (
            "{name: a, git: 'https://h/a', commit: a123456789012345678901234567890123456789, path: deep/er}",
            "project",
        ),
        ("{name: a, sdist: a==1.0}", "project"),
        ("{name: a, path: old, options: [--cpp_ext, --cuda_ext]}", "project"),
        ("{name: a, url: 'https://h/a/v1.0.tar.gz', sha256: %s, path: ops}" % ("1a" * 32), "project"),
        ("{name: a, path: src, capture: [import a], env: {B: '1', A: ''}}", "capture"),
    ],
)
def test_each_form_of_an_extension_is_read(folder, extension, form):
    for project, build in (("old", "setup.py"), ("new", "pyproject.toml")):
        (folder / project).mkdir()
        (folder / project / build).write_text("")
    (read,) = written(folder, f"{LEAST}extensions: [{extension}]\n").extensions
    assert read.form == form


def test_a_folder_that_nothing_builds_is_refused_with_what_it_could_be(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + "extensions: [{name: a, path: src}]\n")
    (finding,) = caught.value.findings
    assert "`src` has neither pyproject.toml nor setup.py" in finding.message
    assert "`sources`" in finding.hint
    assert "`capture`" in finding.hint


def test_a_form_that_came_later_leaves_older_recipes_their_digest(folder):
    (read,) = written(folder, f"{LEAST}extensions: [{{name: a, sources: [src/a.cpp]}}]\n").extensions
    assert sorted(read.canonical()) == ["cflags", "cuda_cflags", "include", "name", "sources"]


def test_a_missing_source_suggests_the_nearest(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + "extensions: [{name: a, sources: [src/aa.cpp]}]\n")
    assert caught.value.findings[0].hint == "did you mean `src/a.cpp`?"


def test_a_source_in_another_folder_is_suggested_with_its_folder(folder):
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src/kernel.cu").touch()
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + "extensions: [{name: a, sources: [kernel.cu]}]\n")
    assert caught.value.findings[0].hint == "did you mean `src/kernel.cu`?"


def test_the_list_of_keys_comes_once_and_a_misspelt_key_has_no_further_mistakes(folder):
    """`cuda` has its `gpus` under another name."""
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + 'gpu: [A100]\ncuda: "12.4"\npyhton: x\nnonsense: y\n')
    assert [one.code for one in caught.value.findings] == ["EB105"] * 3
    hints = [one.hint for one in caught.value.findings]
    assert [hint.partition("?")[0] for hint in hints[:2]] == ["did you mean `gpus`", "did you mean `python`"]
    assert sum("known keys: " in hint for hint in hints) == 1


@pytest.mark.parametrize(
    ("path", "home", "instead"),
    [
        ("../ops", "PROJECT", "ops"),
        ("ops", "PROJECT", "ops"),  # as seen from the project's folder
        ("..", "ABOVE", "project"),
        ("../.", "ABOVE", "project"),
        ("PROJECT/ops", "PROJECT", "ops"),
        ("link", "PROJECT", "ops"),
        ("./mine", "", "mine"),
    ],
)
def test_a_path_out_of_the_folder_says_where_the_recipe_would_have_to_be(tmp_path, path, home, instead):
    project = tmp_path / "project"
    recipes = project / "recipes"
    for folder in (project, project / "ops", recipes / "mine"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "setup.py").write_text("")
    (recipes / "link").symlink_to("../ops")

    def real(text: str) -> str:
        return text.replace("PROJECT", str(project)).replace("ABOVE", str(tmp_path))

    text = LEAST + f"extensions: [{{name: a, path: {real(path)}}}]\n"
    (recipes / "x.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load(recipes / "x.yaml")
    (finding,) = caught.value.findings
    move = f"move the recipe to `{real(home)}` and " if home else ""
    assert finding.code == "EB122"
    assert finding.hint.startswith(f"paths start at the recipe's folder, `{recipes}`; for `")
    assert finding.hint.endswith(f"` {move}write `{instead}`")
    (Path(real(home) if home else recipes) / "x.yaml").write_text(text.replace(real(path), instead))
    assert load(Path(real(home) if home else recipes) / "x.yaml").extensions[0].path == instead


def test_a_path_that_leads_nowhere_says_where_paths_start(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, LEAST + "extensions: [{name: a, path: ../none}]\n")
    assert f"paths start at the recipe's folder, `{folder.resolve()}`" in caught.value.findings[0].hint


def test_two_extensions_of_one_name_are_refused(folder):
    text = LEAST + "extensions: [{name: a, sources: [src/a.cpp]}, {name: a, sources: [src/b.cpp]}]\n"
    assert refusal(folder, text)[::2] == ("EB123", "$.extensions[1].name: a second extension named `a`")


def test_two_sources_that_torch_would_compile_to_one_object_are_refused(folder):
    (folder / "a.cc").write_text("")
    text = LEAST + "extensions: [{name: a, sources: [src/a.cpp, a.cc]}]\n"
    assert "a second source that compiles to `a.o`" in refusal(folder, text)[2]


def test_a_source_that_links_outside_the_folder_is_refused(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "a.cpp"
    outside.write_text("")
    (folder / "link.cpp").symlink_to(outside)
    assert refusal(folder, LEAST + "extensions: [{name: a, sources: [link.cpp]}]\n")[0] == "EB122"


# extends


def test_maps_merge_lists_append_and_the_rest_is_replaced(folder):
    (folder / "base-x.yaml").write_text(
        LEAST + 'summary: the base\npackages: [numpy]\napt: [git]\nenv: {A: "1", B: "1"}\n'
    )
    recipe = written(folder, 'extends: base-x\ngcc: "11"\npackages: [rich]\nenv: {B: "2", C: "2"}\n')
    assert (recipe.gcc, recipe.python, recipe.summary) == ("11", "3.11", "the base")
    assert recipe.packages == ("numpy", "rich")
    assert recipe.env == (("A", "1"), ("B", "2"), ("C", "2"))
    assert recipe.place("$.python") == f"{folder}/base-x.yaml:2:9"
    assert recipe.place("$.gcc") == f"{folder}/x.yaml:2:6"
    assert recipe.place("$.env.A") == f"{folder}/base-x.yaml:8:10"
    assert recipe.place("$.packages[1]") == f"{folder}/x.yaml:3:12"


def test_a_base_may_be_incomplete_and_extend_another(folder):
    (folder / "a.yaml").write_text('base: debian/bookworm\npython: "3.11"\n')
    (folder / "b.yaml").write_text('extends: a\ngcc: "12"\n')
    assert written(folder, 'extends: b\npytorch: "2.6.0"\n').python == "3.11"


def test_recipes_that_extend_each_other_in_a_circle_are_refused(folder):
    (folder / "a.yaml").write_text("extends: x\n")
    assert refusal(folder, LEAST + "extends: a\n") == (
        "EB120",
        "a.yaml:1:10",
        "$.extends: recipes that extend each other in a circle: x → a → x",
    )


def test_an_unknown_base_recipe_is_refused_with_the_nearest_and_no_false_follow_ups(folder):
    (folder / "base-a.yaml").write_text(LEAST)
    with pytest.raises(RecipeError) as caught:
        written(folder, 'extends: base-b\ncuda: "12.4"\n')
    (finding,) = caught.value.findings
    assert (finding.code, finding.hint) == ("EB120", "did you mean `base-a`? recipes: base-a")


@pytest.mark.parametrize("name", ["../x", "3", "[a]"])
def test_a_base_recipe_is_given_by_its_name(folder, name):
    assert refusals(folder, f"{LEAST}extends: {name}\n")[0][0] in {"EB109", "EB108", "EB107", "EB120"}


def test_mistakes_in_the_base_are_reported_in_its_own_file(folder):
    (folder / "a.yaml").write_text(LEAST + "nonsense: x\n")
    assert refusal(folder, "extends: a\n")[:2] == ("EB105", "a.yaml:5:1")
    (folder / "a.yaml").write_text("a: [")
    assert refusal(folder, "extends: a\n")[0] == "EB102"


# digest


def test_the_digest_is_of_what_decides_a_build(folder):
    recipe = written(folder, WHOLE)
    same = dataclasses.replace(recipe, summary="other", tests=(), places=(), name="y", path=Path("y.yaml"))
    assert same.digest == recipe.digest
    for change in (
        {"gpus": ("T4",)},
        {"python": "3.12"},
        {"packages": ()},
        {"env": ()},
        {"extensions": ()},
        {"apt": ("curl",)},
    ):
        assert dataclasses.replace(recipe, **change).digest != recipe.digest


def test_the_canonical_text_stays_as_it_is(folder):
    assert written(folder, LEAST).digest == "4e44e0348d5e0ddf4f45eea84e55577f87e0f4f94916af1a6c661ca353f74dac"


@given(gpus=st.permutations(["A100", "H100", "T4"]), apt=st.permutations(["git", "curl", "git"]))
def test_the_order_of_gpus_and_debian_packages_decides_nothing(gpus, apt):
    recipe = Recipe(
        name="x", path=Path("x.yaml"), summary="", gpus=tuple(gpus), base="", python="", cuda="", gcc="",
        libxcrypt="", pytorch="", packages=(), apt=tuple(apt), extensions=(), env=(), tests=(), places=(),
    )  # fmt: skip
    other = dataclasses.replace(recipe, gpus=("A100", "H100", "T4"), apt=("git", "curl"))
    assert recipe.digest == other.digest


# names


def test_a_recipe_is_found_by_its_name_or_its_path(folder):
    (folder / "a100.yaml").write_text(LEAST)
    (folder / "notes.txt").write_text("")
    assert list_recipes(folder) == ("a100",)
    assert find_recipe("a100", folder) == folder / "a100.yaml"
    assert find_recipe(os.fspath(folder / "a100.yaml"), Path("elsewhere")) == folder / "a100.yaml"


def test_an_unknown_name_is_refused_with_the_nearest_and_all_that_exist(folder):
    for name in ("a100", "h100"):
        (folder / f"{name}.yaml").write_text(LEAST)
    with pytest.raises(UsageError) as caught:
        find_recipe("A10", folder)
    assert caught.value.hint.startswith("did you mean `a100`? recipes: a100, h100")
    with pytest.raises(UsageError) as caught:
        find_recipe("mine", folder / "src")
    assert "holds no recipes" in caught.value.hint
    with pytest.raises(UsageError, match="no recipe file"):
        find_recipe("none.yaml", folder)
    with pytest.raises(UsageError, match="is a SIF, and a recipe is expected here") as raised:
        find_recipe("build/a100.sif", folder)
    assert raised.value.hint == "type the recipe that it was made from: `a100`"


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name", list_recipes(RECIPES))
def test_each_recipe_of_ours_is_read(name):
    recipe = load(find_recipe(name, RECIPES))
    without = name.startswith("envbuilder-base") or name in ("geometry", "language", "vision")
    assert bool(recipe.extensions) != without


@pytest.mark.parametrize("key", ['cuda: "12.4"\ngpus: [A100]', "extensions: [{name: x, path: .}]"])
def test_a_recipe_without_torch_has_nothing_that_is_for_torch(folder, key):
    (folder / "setup.py").write_text("")
    least = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\npytorch: none\n'
    assert written(folder, f"{least}run: tool --quiet\n").pytorch == ""
    with pytest.raises(RecipeError) as refused:
        written(folder, least + key)
    assert [(one.code, one.message.partition(": ")[2]) for one in refused.value.findings] == [
        ("EB126", f"`{key.partition(':')[0]}` needs `pytorch`")
    ]


def test_ops_of_deepspeed_are_the_lines_that_load_them(folder):
    text = f"{LEAST}packages: [DeepSpeed==0.19.8]\nextensions: [{{name: ops, deepspeed: [cpu_adam, async_io]}}]\n"
    (extension,) = written(folder, text).extensions
    assert (extension.form, extension.path, extension.deepspeed) == ("capture", "", ())
    assert extension.capture == tuple(
        f"from deepspeed.ops.op_builder.all_ops import ALL_OPS; ALL_OPS['{op}'].load()" for op in ("cpu_adam", "async_io")
    )  # fmt: skip
    assert "deepspeed" not in extension.canonical()


def test_ops_of_a_deepspeed_that_nothing_brings_are_refused_with_what_to_add(folder):
    with pytest.raises(RecipeError) as caught:
        written(folder, f"{LEAST}extensions: [{{name: ops, deepspeed: [cpu_adam]}}]\n")
    (finding,) = caught.value.findings
    assert finding.hint == "add `deepspeed` to `packages`"


CUDA = f'{LEAST}cuda: "12.4"\ngpus: [A100]\n'


@pytest.mark.parametrize(
    ("key", "commands", "files"),
    [
        ("python src/a.cpp", ("python src/a.cpp",), ("src/a.cpp",)),
        ("[python src/a.cpp, python -m src]", ("python src/a.cpp", "python -m src"), ("src/a.cpp",)),
        ("{run: python -m src, files: [src]}", ("python -m src",), ("src",)),
        ("{run: [python -m src], files: [src, src/a.cu]}", ("python -m src",), ("src", "src/a.cu")),
    ],
)
def test_warm_is_a_command_or_several_with_their_files(folder, key, commands, files):
    recipe = written(folder, f"{CUDA}warm: {key}\n")
    assert recipe.warm.commands == commands
    assert recipe.warm.named(folder) == files
    assert recipe.digest != written(folder, CUDA).digest


@pytest.mark.parametrize(
    ("key", "code", "message"),
    [
        ("python none.py", "EB122", "there is no file `none.py`"),
        ("python ../none.py", "EB122", "expected the plain relative path"),
        ("{run: python -V, files: [none]}", "EB122", "there is no file `none`"),
        ("{run: python -V, files: [/tmp]}", "EB122", "expected the plain relative path"),
        ("[]", "EB109", "expected one command or more"),
        ("{files: [src]}", "EB109", "expected one command or more"),
        ("{run: [], caches: [src]}", "EB109", "expected one command or more"),
        ("{caches: [none]}", "EB122", "there is no folder `none`"),
        ("{caches: [src/a.cpp]}", "EB122", "there is no folder `src/a.cpp`"),
        ("{caches: [../src]}", "EB122", "expected the plain relative path of a folder"),
        (
            "{caches: [src]}",
            "EB122",
            "nothing that a job compiled is in `src/inductor`, `src/numba`, `src/triton`",
        ),
        ("python 'x", "EB109", "no command"),
    ],
)
def test_a_warm_with_a_mistake_is_refused(folder, key, code, message):
    assert any(found[0] == code and message in found[2] for found in refusals(folder, f"{CUDA}warm: {key}\n"))


def test_what_a_job_compiled_needs_neither_a_command_nor_a_gpu(folder):
    (folder / "kept/numba").mkdir(parents=True)
    (folder / "kept/numba/f.nbi").touch()
    recipe = written(folder, f"{LEAST}warm: {{caches: [kept]}}\n")
    assert (recipe.warm.commands, recipe.warm.caches) == ((), ("kept",))
    assert recipe.digest != written(folder, LEAST).digest


def test_kernels_of_the_hub_are_named_by_commit(folder):
    kernel = f"team/relu@{'1a' * 20}"
    recipe = written(folder, f"{LEAST}kernels: [{kernel}]\n")
    assert recipe.kernels == (kernel,)
    assert recipe.digest != written(folder, LEAST).digest
    assert [found[0] for found in refusals(folder, f"{LEAST}kernels: [team/relu@main]\n")] == ["EB109"]


def test_kernels_are_compiled_for_gpus_alone(folder):
    assert [found[0] for found in refusals(folder, f"{LEAST}warm: python src/a.cpp\n")] == ["EB126"]


def test_an_example_that_is_not_copied_yet_is_offered_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        find_recipe("cpu", Path("recipes"))
    assert caught.value.hint == "`envbuilder init --example cpu` writes the example of this name"
    with pytest.raises(UsageError) as caught:
        find_recipe("mine", Path("recipes"))
    assert "init --example cpu" in caught.value.hint
