"""Input by somebody who means harm: every recipe value is data, and nothing is followed through a link."""

import shlex
import tarfile
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.errors import RecipeError
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.contents import runtime_files
from envbuilder.plan.model import RuntimeStep
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from tests.support.step_programs import load_program

RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
"""
EVIL = (
    "$(touch /tmp/x)", "`id`", "a; rm -rf /", "a\nb", "a\rb", "a\0b", "a' b", 'a" b', "${HOME}", "a\\", "--option", "-rf",
    "../../etc/passwd", "/etc/passwd", "%post", "{{ x }}", "# syntax=x", "<<EOF", "a && b", "x" * 5000 + "!", "\u202e", "🦊", "a|b",
)  # fmt: skip
FIELDS = ("base", "python", "gcc", "libxcrypt", "pytorch", "cuda")
LISTS = ("gpus", "apt", "packages")
ENVIRONMENT = ".singularity.d/env/10-docker2singularity.sh"


def attempt(folder: Path, text: str | bytes) -> Recipe | None:
    """The recipe, or None when it is refused; any other error is a failure."""
    path = folder / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        return load(path)
    except RecipeError as error:
        return None if error.findings else pytest.fail("refused without a reason")


def quoted(value: str) -> str:
    """Any text as a scalar of YAML."""
    escaped = "".join(
        f"\\U{ord(one):08x}" if not one.isascii() or not one.isprintable() or one in '"\\' else one for one in value
    )  # fmt: skip
    return f'"{escaped}"'


@pytest.mark.parametrize("value", EVIL, ids=range(len(EVIL)))
@pytest.mark.parametrize("field", [*FIELDS, *LISTS])
def test_no_field_that_reaches_a_command_takes_a_hostile_value(tmp_path, field, value):
    lines = [line for line in RECIPE.splitlines() if not line.startswith(f"{field}:")]
    written = f"[{quoted(value)}]" if field in LISTS else quoted(value)
    assert attempt(tmp_path, "\n".join([*lines, f"{field}: {written}", ""])) is None


@pytest.mark.parametrize("value", EVIL, ids=range(len(EVIL)))
def test_extensions_have_names_and_paths_that_stay_where_they_are(tmp_path, value):
    (tmp_path / "a.cpp").write_text("")
    for fields in (f"name: {quoted(value)}, sources: [a.cpp]", f"name: x, sources: [{quoted(value)}]"):
        assert attempt(tmp_path, f"{RECIPE}extensions:\n  - {{{fields}}}\n") is None


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(max_size=60))
def test_a_variable_is_the_same_text_for_the_shell_that_reads_it_or_is_refused(tmp_path, value):
    recipe = attempt(tmp_path, f"{RECIPE}env: {{X: {quoted(value)}}}\n")
    if recipe is None:
        assert any(ord(one) < 0x20 or ord(one) == 0x7F or 0xD800 <= ord(one) < 0xE000 for one in value)
        return
    text = runtime_files(RuntimeStep(env=recipe.env, labels=(), files=()))[ENVIRONMENT]
    assert shlex.split(text, comments=True) == ["export", f"X={value}"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=300)
    | st.text(alphabet="{}[]:,&*!|>-?#%@`'\" \n\tab1", max_size=200).map(str.encode)
)
def test_whatever_stands_in_a_recipe_is_read_or_refused(tmp_path, content):
    attempt(tmp_path, content)
    attempt(tmp_path, RECIPE.encode() + content)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]\n",
        "a: &a {b: *a}\n",
        "[" * 5000,
        "{a: " * 5000,
        "!!python/object/apply:os.system ['true']\n",
        "summary: " + "x" * (10 << 20),
        "- " * 100_000,
        "? " * 10_000,
        "a: |\n" + " x\n" * 200_000,
    ],
    ids=["bomb", "circle", "lists", "maps", "tag", "10 MB", "dashes", "questions", "long block"],
)
def test_a_recipe_that_would_take_all_memory_is_refused_at_once(tmp_path, text):
    began = time.monotonic()
    assert attempt(tmp_path, text) is None
    assert time.monotonic() - began < 5


# ------------------------------------------------------------------------------------ archives and compile folders


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def sdist(store: Store, *members: tuple[tarfile.TarInfo, bytes], folder: Path) -> LockedExtension:
    path = folder / "x-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    digest = sha256_file(path)
    store.add_artifact(digest, path)
    archive = Artifact(
        kind="sdist", name="x", version="1", sha256=digest, size=1, source="pypi", path=f"x/{path.name}"
    )
    return LockedExtension(
        name="x", sources=(), include=(), cflags=(), cuda_cflags=(), files=(), sdist="x==1", archive=archive
    )  # fmt: skip


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


@pytest.fixture
def outside(tmp_path):
    """A folder that nothing may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["precious"]
    assert (folder / "precious").read_text() == "kept"


def stage(extension: LockedExtension, store: Store, folder: Path) -> None:
    """Write the sources of an sdist into a build directory by the program of extensions."""
    assert extension.archive
    program = load_program("extension")
    inputs, program.NEW = folder.with_name("inputs"), str(folder.with_name("new"))
    inputs.mkdir()
    (inputs / "archive").symlink_to(
        store.artifact(extension.archive.sha256).rename(folder.with_name("archive"))
    )
    program.stage({"files": {}, "patch": "", "archive": True, "strip": True}, str(inputs))
    program.place(program.NEW, str(folder))


@pytest.mark.parametrize("name", ["x-1/../../outside/precious", "/outside/precious", "../outside/precious"])
def test_an_sdist_that_would_write_elsewhere_is_refused(store, tmp_path, outside, name):
    extension = sdist(store, (member(name), b"evil"), folder=tmp_path)
    with pytest.raises(SystemExit, match="outside its folder"):
        stage(extension, store, tmp_path / "src")


def test_links_devices_and_set_id_bits_of_an_sdist_do_not_come_to_disk(store, tmp_path, outside):
    extension = sdist(
        store,
        (member("x-1/setup.py", mode=0o4777), b"pass"),
        (member("x-1/out", tarfile.SYMTYPE, str(outside)), b""),
        (member("x-1/hard", tarfile.LNKTYPE, str(outside / "precious")), b""),
        (member("x-1/null", tarfile.CHRTYPE), b""),
        (member("x-1/pipe", tarfile.FIFOTYPE), b""),
        folder=tmp_path,
    )
    folder = tmp_path / "src"
    stage(extension, store, folder)
    (only,) = folder.iterdir()
    assert (only.name, only.stat().st_mode & 0o7000, only.is_symlink()) == ("setup.py", 0, False)


@pytest.mark.parametrize("place", ["", "sub", "build/temp.linux"])
def test_what_a_build_left_as_a_link_is_not_followed_by_the_next(store, tmp_path, outside, place):
    """A project's own code ran in this folder and may have put links where the next build writes or tidies up."""
    folder = tmp_path / "src"
    names = [f"x-1/{place}/precious" if place else "x-1/precious", "x-1/setup.py"]
    extension = sdist(store, *((member(name), b"evil") for name in names), folder=tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).rmdir() if (folder / place).is_dir() else None
    (folder / place).symlink_to(outside)
    stage(extension, store, folder)
    assert not folder.is_symlink()
    assert (folder / place / "precious").read_text() == "evil"


def test_a_changed_copy_of_a_step_is_another_step():
    """What a person writes into a recipe is in the key of the layer that it goes into."""
    step = RuntimeStep(env=(("X", "a"),), labels=(), files=())
    assert replace(step, env=(("X", "b"),)).lines() != step.lines()
