"""Locks: the same lock is the same text, what is read is checked, and differences are told in words."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import LockError
from envbuilder.lock.changes import changes, check_fresh, diff_locks, locked_packages
from envbuilder.lock.file import REVISION, load_fresh, load_lock, lock_text, parse_lock, seal
from envbuilder.lock.model import (
    Artifact,
    Lock,
    LockedBuild,
    LockedExtension,
    SourceFile,
    lock_artifacts,
    recipe_inputs,
)
from envbuilder.recipe.load import find_recipe, list_recipes, load
from envbuilder.recipe.model import Extension, Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
A, B, C = (Sha256(letter * 64) for letter in "abc")
NUMPY = Artifact(
    kind="wheel",
    name="numpy",
    version="1.26.4",
    sha256=A,
    size=18,
    source="pypi",
    path="numpy/numpy-1.26.4.whl",
)
GIT = Artifact(
    kind="deb",
    name="git",
    version="1:2.39.5-0+deb12u2",
    sha256=B,
    size=7,
    source="debian",
    path="pool/main/g/git.deb",
)
FUSED = LockedExtension(
    name="fused",
    sources=("src/a.cpp",),
    include=("src",),
    cflags=("-O3",),
    cuda_cflags=(),
    files=(SourceFile(path="src/a.cpp", sha256=A, size=3), SourceFile(path="src/a.h", sha256=B, size=4)),
)
RECIPE = Recipe(
    name="x", path=Path("x.yaml"), summary="", gpus=("A100",), base="debian/bookworm", python="3.11", cuda="12.4",
    gcc="12", libxcrypt="4.4", pytorch="2.6.0", packages=("numpy",), apt=("git",),
    extensions=(Extension(name="fused", sources=("src/a.cpp",), include=("src",), cflags=("-O3",)),),
    env=(), tests=(), places=(),
)  # fmt: skip
LOCK = Lock(
    recipe=RECIPE.digest,
    epoch=1_700_000_000,
    platform="linux/amd64",
    inputs=recipe_inputs(RECIPE),
    debs=(GIT,),
    toolkit=(),
    wheels=(NUMPY,),
    extensions=(FUSED,),
)
FILES = {"src/a.cpp": A, "src/a.h": B}


def resealed(value: object) -> str:
    """The text of a lock that only its own rules can refuse."""
    assert isinstance(value, dict)
    return json.dumps(seal(value))


def refusals(value: object) -> list[str]:
    with pytest.raises(LockError) as caught:
        parse_lock(resealed(value), "x.lock")
    return [finding.message for finding in caught.value.findings]


def changed(path: str, value: object) -> dict[str, object]:
    """The lock as JSON with one value replaced, or removed by `...`."""
    whole = json.loads(lock_text(LOCK))
    *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = whole
    for part in parts:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return whole


def test_the_text_begins_with_what_it_is_and_ends_with_a_line_end():
    text = lock_text(LOCK)
    assert text.startswith('{\n "_": "made by `envbuilder lock NAME`; do not edit",\n "debs": [')
    assert text.endswith("}\n")
    assert json.loads(text)["version"] == 1


def test_what_is_dumped_is_read_back():
    assert parse_lock(lock_text(LOCK), "x.lock") == LOCK


ARCHIVE = Artifact(
    kind="git", name="dw", version="a" * 40, sha256=C, size=9, source="git", path=f"{'a' * 40}.tar"
)
PLAIN = {"sources": (), "include": (), "cflags": (), "cuda_cflags": (), "files": ()}
FORMS = [
    LockedExtension(
        name="dw", path="third/dw", env=(("FORCE_CUDA", "1"),), **(PLAIN | {"files": FUSED.files})
    ),
    LockedExtension(name="dw", git="https://h/dw", commit="a" * 40, path="ops", archive=ARCHIVE, **PLAIN),
    LockedExtension(
        name="dw",
        sdist="dw==1",
        archive=dataclasses.replace(ARCHIVE, kind="sdist", path="dw/dw-1.tar.gz"),
        **PLAIN,
    ),
    LockedExtension(
        name="dw",
        url="https://h/dw.zip",
        sha256=C,
        archive=dataclasses.replace(ARCHIVE, kind="sdist", source="url-cc"),
        **PLAIN,
    ),
    LockedExtension(name="dw", path=".", **(PLAIN | {"files": FUSED.files})),
    LockedExtension(name="ops", path="net", capture=("import ops", "ops.get()"), **PLAIN),
]


@pytest.mark.parametrize("extension", FORMS, ids=["path", "git", "sdist", "url", "here", "capture"])
def test_each_form_of_an_extension_is_read_back(extension):
    lock = dataclasses.replace(LOCK, extensions=(extension,))
    assert parse_lock(lock_text(lock), "x.lock") == lock


def test_a_source_distribution_is_read_back_with_what_it_is_built_with():
    (one, *others) = LOCK.wheels
    build = LockedBuild(name=one.name, wheels=(dataclasses.replace(one, name="setuptools"),))
    lock = dataclasses.replace(
        LOCK, wheels=(dataclasses.replace(one, kind="sdist"), *others), builds=(build,)
    )
    assert parse_lock(lock_text(lock), "x.lock") == lock
    assert build.wheels[0] in lock_artifacts(lock)
    assert "builds" not in json.loads(lock_text(LOCK))
    tool = f"{one.name} is built with setuptools"
    assert list(map(str, diff_locks(dataclasses.replace(lock, builds=()), lock))) == [
        f"+ {tool} {one.version}"
    ]


def test_an_extension_of_sources_has_no_keys_that_came_later():
    (extension,) = json.loads(lock_text(LOCK))["extensions"]
    assert sorted(extension) == ["cflags", "cuda_cflags", "files", "include", "name", "sources"]


def test_an_extension_with_an_archive_of_another_kind_is_refused():
    whole = json.loads(lock_text(dataclasses.replace(LOCK, extensions=(FORMS[1],))))
    whole["extensions"][0]["archive"]["kind"] = "wheel"
    assert "expected git or sdist" in refusals(whole)[0]


NAMES = st.from_regex(r"[a-z0-9][a-z0-9.+-]{0,20}", fullmatch=True)
ARTIFACTS = st.builds(
    Artifact,
    kind=st.just("wheel"),
    name=NAMES,
    version=NAMES,
    sha256=st.sampled_from([A, B, C]),
    size=st.integers(0, 10**12),
    source=st.just("pypi"),
    path=NAMES.map(lambda name: f"x/{name}x"),
)


@given(st.lists(ARTIFACTS, unique_by=lambda artifact: artifact.name), st.randoms())
def test_the_same_lock_in_any_order_is_the_same_text(wheels, random):
    shuffled = random.sample(wheels, len(wheels))
    text = lock_text(dataclasses.replace(LOCK, wheels=tuple(wheels)))
    assert lock_text(dataclasses.replace(LOCK, wheels=tuple(shuffled))) == text
    assert lock_text(parse_lock(text, "x.lock")) == text


def test_a_lock_is_read_from_its_file(tmp_path):
    path = tmp_path / "x.lock"
    path.write_text(lock_text(LOCK))
    assert load_lock(path) == LOCK


def test_a_lock_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(LockError, match="there is no lock") as caught:
        load_lock(tmp_path / "x.lock", recipe="x")
    assert caught.value.hint == "`envbuilder lock x` makes it"
    with pytest.raises(LockError) as caught:
        load_lock(tmp_path / "x.lock")
    assert caught.value.hint == f"`envbuilder lock {tmp_path}/x.yaml` makes it"


@pytest.mark.parametrize("data", [b"\xff", b"", b"{", b"<<<<<<< HEAD\n"])
def test_a_file_that_is_no_json_is_refused(tmp_path, data):
    path = tmp_path / "x.lock"
    path.write_bytes(data)
    with pytest.raises(LockError) as caught:
        load_lock(path)
    assert [finding.where.partition(":")[0] for finding in caught.value.findings] == [str(path)]


def test_another_version_is_refused_with_what_to_do():
    with pytest.raises(LockError, match="has version 2; this envbuilder reads version 1") as caught:
        parse_lock(json.dumps(changed("version", 2)), "x.lock")
    assert "makes it anew" in caught.value.hint


def test_unknown_keys_are_refused_unless_the_revision_is_newer():
    whole = changed("wheels.0.yanked", "no")
    assert refusals(whole) == ["$.wheels[0].yanked: unknown key `yanked`"]
    assert parse_lock(json.dumps(seal(whole | {"revision": REVISION + 1})), "x.lock") == LOCK


def test_every_mistake_is_reported_at_once():
    whole = changed("recipe", "abc") | {"epoch": "now", "inputs": ...}
    del whole["inputs"]
    assert refusals(whole) == [
        "$: the key `inputs` is missing",
        "$.epoch: expected a whole number, found text",
        '$.recipe: expected 64 hexadecimal digits, found "abc"',
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", ...),
        ("version", "1"),
        ("platform", "amd64"),
        ("epoch", -1),
        ("epoch", 1.5),
        ("inputs.debs", A.upper()),
        ("inputs", []),
        ("debs", {}),
        ("debs.0.kind", "wheel"),
        ("wheels.0.kind", "archive"),
        ("wheels.0.sha256", A[:-1]),
        ("wheels.0.size", None),
        ("wheels.0.size", True),
        ("wheels.0.name", "-rf"),
        ("wheels.0.version", ""),
        ("wheels.0.source", "https://host"),
        *(
            ("wheels.0.path", path)
            for path in (
                "/etc/passwd",
                "../x",
                "a/../x",
                "a/..",
                "a//b",
                "a/",
                "./a",
                ".",
                "",
                "a\\b",
                "a\nb",
                "a/./b",
            )
        ),
        ("wheels.0", "numpy"),
        ("extensions.0.name", ...),
        ("extensions.0.files.0.path", "../a.cpp"),
        ("extensions.0.files.0.size", ...),
        ("extensions.0.sources", ["src/b.cpp"]),
        ("extensions.0.cflags", ["a\nb"]),
    ],
)
def test_a_value_that_cannot_be_is_refused(path, value):
    assert refusals(changed(path, value))


@pytest.mark.parametrize("name", ["..x", "x..y", ".hidden", "...", "a b", "ü"])
def test_odd_but_harmless_paths_are_taken(name):
    assert parse_lock(resealed(changed("wheels.0.path", f"{name}/{name}")), "x.lock")


def test_doubled_and_unsorted_artifacts_are_refused():
    whole = json.loads(lock_text(LOCK))
    whole["wheels"] = [NUMPY, NUMPY, dataclasses.replace(NUMPY, name="attrs")]
    whole["wheels"] = [dataclasses.asdict(item) for item in whole["wheels"]]
    whole["extensions"][0]["files"].reverse()
    assert refusals(whole) == [
        "$.extensions[0].files[1]: `src/a.cpp` follows `src/a.h`: expected each once, sorted",
        "$.wheels[1]: `numpy` follows `numpy`: expected each once, sorted",
        "$.wheels[2]: `attrs` follows `numpy`: expected each once, sorted",
    ]


# diff


def with_wheel(**change: object) -> Lock:
    return dataclasses.replace(LOCK, wheels=(dataclasses.replace(NUMPY, **change),))


def with_extension(**change: object) -> Lock:
    return dataclasses.replace(LOCK, extensions=(dataclasses.replace(FUSED, **change),))


@pytest.mark.parametrize(
    ("new", "lines"),
    [
        (LOCK, ()),
        (with_wheel(version="2.0.1", sha256=B), ("~ numpy 1.26.4 → 2.0.1",)),
        (with_wheel(sha256=B), ("~ numpy 1.26.4: same version, other file aaaaaaaaaaaa → bbbbbbbbbbbb",)),
        (
            with_wheel(source="pytorch", path="cu124/numpy.whl"),
            (
                "~ numpy 1.26.4: same file, found elsewhere pypi:numpy/numpy-1.26.4.whl → pytorch:cu124/numpy.whl",
            ),
        ),
        (dataclasses.replace(LOCK, wheels=()), ("- numpy 1.26.4",)),
        (dataclasses.replace(LOCK, toolkit=(NUMPY,)), ("+ numpy 1.26.4",)),
        (
            dataclasses.replace(LOCK, epoch=5, platform="linux/arm64", recipe=A),
            (
                "~ epoch 1700000000 → 5",
                "~ platform linux/amd64 → linux/arm64",
                f"~ recipe {RECIPE.digest[:12]} → aaaaaaaaaaaa",
            ),
        ),
        (dataclasses.replace(LOCK, extensions=()), ("- extension fused",)),
        (
            with_extension(env=(("A", "1"),), path="p", capture=("import x",)),
            (
                "~ extension fused: capture none → 'import x'",
                "~ extension fused: env none → A=1",
                "~ extension fused: path none → p",
            ),
        ),
        (
            dataclasses.replace(LOCK, extensions=(FUSED, dataclasses.replace(FUSED, name="other"))),
            ("+ extension other",),
        ),
        (with_extension(cflags=()), ("~ extension fused: cflags -O3 → none",)),
        (
            with_extension(
                files=(
                    SourceFile(path="src/a.cpp", sha256=C, size=3),
                    SourceFile(path="src/b.h", sha256=B, size=4),
                )
            ),
            (
                "~ extension fused: src/a.cpp aaaaaaaaaaaa → cccccccccccc",
                "- extension fused: src/a.h bbbbbbbbbbbb",
                "+ extension fused: src/b.h bbbbbbbbbbbb",
            ),
        ),
    ],
)
def test_a_difference_is_one_readable_line(new, lines):
    assert tuple(map(str, diff_locks(LOCK, new))) == lines


# freshness


def test_a_lock_fits_the_recipe_it_was_made_from():
    assert check_fresh(RECIPE, LOCK, FILES) == ()
    assert check_fresh(dataclasses.replace(RECIPE, summary="new", tests=("true",)), LOCK, FILES) == ()


@pytest.mark.parametrize("name", list_recipes(RECIPES))
def test_each_recipe_of_ours_has_a_lock_that_fits_it(name):
    assert load_fresh(load(find_recipe(name, RECIPES)), name).wheels


DEBS = "the recipe changed in `base`, `python`, `gcc`, `libxcrypt`, `apt`, `apt_sources` or `security`, which decide the Debian packages"
TOOLKIT = "the recipe changed in `base`, `cuda`, `apt_sources` or `indexes`, which decide the CUDA toolkit"
WHEELS = "the recipe changed in `base`, `python`, `cuda`, `pytorch`, `packages`, `indexes` or `nccl.version`, which decide the Python packages"
REST = "the recipe changed in `gpus`, `platform`, `env`, `nccl`, `run`, `warm`, `kernels` or the order of its extensions"


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"apt": ()}, (DEBS,)),
        ({"cuda": "12.6"}, (TOOLKIT, WHEELS)),
        ({"packages": ("numpy<2",)}, (WHEELS,)),
        ({"base": "debian/trixie"}, (DEBS, TOOLKIT, WHEELS)),
        ({"gpus": ("T4",)}, (REST,)),
        ({"gpus": ("GH200",)}, ("it is for linux/amd64, and the recipe for linux/arm64",)),
        ({"platform": "linux/arm64"}, ("it is for linux/amd64, and the recipe for linux/arm64",)),
        ({"env": (("A", "1"),)}, (REST,)),
        ({"extensions": ()}, ("the recipe no longer has the extension `fused`",)),
        (
            {"extensions": (*RECIPE.extensions, Extension(name="other", sources=("b.cpp",)))},
            ("the recipe has a new extension `other`",),
        ),
        (
            {"extensions": (dataclasses.replace(RECIPE.extensions[0], sources=("src/a.cpp", "b b.cpp")),)},
            ("the recipe changed the extension `fused`: sources src/a.cpp → src/a.cpp 'b b.cpp'",),
        ),
    ],
)
def test_a_changed_recipe_names_what_changed(change, reasons):
    assert check_fresh(dataclasses.replace(RECIPE, **change), LOCK, FILES) == reasons


def test_changed_new_and_missing_sources_make_a_lock_stale():
    assert check_fresh(RECIPE, LOCK, {"src/a.cpp": C, "src/b.h": B}) == (
        "`src/a.cpp` changed",
        "`src/a.h` is gone",
        "`src/b.h` is new",
    )


def test_a_stale_lock_says_why_each_source_counts():
    why = {"src/a.cpp": "the recipe names it", "src/a.h": "no file of the build names it"}
    assert check_fresh(RECIPE, LOCK, {"src/a.cpp": C}, lambda: why) == (
        "`src/a.cpp` changed: the recipe names it",
        "`src/a.h` no longer counts: no file of the build names it",
    )


def test_the_contents_of_a_lock_name_each_source_with_its_digest():
    before = locked_packages(LOCK)
    (fused,) = LOCK.extensions
    edited = dataclasses.replace(
        fused, files=(dataclasses.replace(fused.files[0], sha256=C), *fused.files[2:])
    )
    after = locked_packages(dataclasses.replace(LOCK, extensions=(edited,)))
    assert [change.row()[:2] for change in changes(before, after)] == [
        ("~", "extension fused"),
        ("~", "extension fused: src/a.cpp"),
        ("-", "extension fused: src/a.h"),
    ]


def test_the_name_of_an_artifacts_file_is_the_end_of_its_path():
    assert NUMPY.filename == "numpy-1.26.4.whl"


def test_a_lock_may_name_thousands_of_files(tmp_path: Path):
    (extension,) = LOCK.extensions
    more = (
        SourceFile(path=f"src/header_{number:04}.h", sha256=Sha256("0" * 64), size=1)
        for number in range(9000)
    )
    files = (*extension.files, *more)
    lock = dataclasses.replace(LOCK, extensions=(dataclasses.replace(extension, files=files),))
    (tmp_path / "x.lock").write_text(lock_text(lock))
    assert (tmp_path / "x.lock").stat().st_size > 1 << 20
    assert load_lock(tmp_path / "x.lock").extensions[0].files == files
