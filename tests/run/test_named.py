"""What is started is what was named: each kind of a wrong SIF or image, with each command that takes a recipe's name."""

import functools
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from envbuilder.artifacts import history
from envbuilder.artifacts.docker_engine import DockerEngine
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.artifacts.sif import opened_sif, read_sif
from envbuilder.core.cache import save_text, sha256_file
from envbuilder.core.errors import EnvbuilderError, ForeignError, OtherRecipeError, StaleError
from envbuilder.core.plain import pasted
from envbuilder.core.private import is_in_place
from envbuilder.core.process import Completed
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.recipe.load import load
from envbuilder.run import kernel
from envbuilder.run.named import need_image, need_sif
from tests.support import command_line
from tests.support.command_line import Call
from tests.support.locks import make_artifact, make_lock
from tests.support.toys import write_named, write_recipe_sif

ROOT = Path(__file__).parents[2]
RECIPES = Path("recipes")
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
env: {WHICH: "1"}
"""
pytestmark = [pytest.mark.usefixtures("clean_environment"), pytest.mark.programs]
call = command_line.call


def relock(recipe: Path) -> None:
    """Write the lock that fits the recipe."""
    read = load(recipe)
    save_text(recipe.with_suffix(".lock"), lock_text(make_lock(read)))


@dataclass(frozen=True)
class Project:
    """A folder with a locked recipe and its artifacts."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipes/mine.yaml"

    @property
    def lock(self) -> Path:
        return self.recipe.with_suffix(".lock")

    @property
    def outputs(self) -> Outputs:
        return Outputs(folder=self.folder / "build", name="mine")

    @property
    def sif(self) -> Path:
        return self.outputs.sif


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project to copy: the artifacts of `mine`, and those of `other`."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("mine", "other"):
        save_text(folder / f"recipes/{name}.yaml", RECIPE.replace('"1"', f'"{name}"'))
        relock(folder / f"recipes/{name}.yaml")
        write_named(folder / f"recipes/{name}.yaml", folder / "build")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    shutil.copytree(made, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    return Project(tmp_path / "project")


# ---- the kinds


def another_recipes(project: Project) -> None:
    for name in ("mine.sif", "mine.oci"):
        of_other = project.folder / "build" / name.replace("mine", "other")
        (project.folder / "build" / name).rename(project.folder / "build/before")
        of_other.rename(project.folder / "build" / name)
        (project.folder / "build/before").rename(of_other)


def an_older_locks(project: Project) -> None:
    lock = load_lock(project.lock)
    save_text(project.lock, lock_text(replace(lock, wheels=(*lock.wheels, make_artifact("einops")))))


def of_an_edited_recipe(project: Project) -> None:
    project.recipe.write_text(project.recipe.read_text().replace('"mine"', '"edited"'))


def of_an_edited_and_locked_recipe(project: Project) -> None:
    of_an_edited_recipe(project)
    relock(project.recipe)


def of_another_user(project: Project) -> None:
    project.sif.parent.chmod(0o1777)
    os.chown(project.sif, 4711, 4711)


def cut(project: Project) -> None:
    os.truncate(project.sif, project.sif.stat().st_size - 4096)


def half_written(project: Project) -> None:
    """As long as it should be, with zeros where nothing has arrived yet."""
    size, start = project.sif.stat().st_size, read_sif(project.sif).system.offset
    os.truncate(project.sif, start + 96)
    os.truncate(project.sif, size)


def of_docker(project: Project) -> None:
    with tarfile.open(project.sif, "w") as archive:
        archive.add(project.recipe, "manifest.json")


def of_somebody_else(project: Project) -> None:
    write_recipe_sif(project.folder / "theirs/x.sif", "no recipe").replace(project.sif)


def replaced(make: Callable[[Path], object], project: Project) -> None:
    project.sif.unlink()
    make(project.sif)


def text(content: bytes) -> Callable[[Project], None]:
    return functools.partial(replaced, lambda path: path.write_bytes(content))


# kind → how it comes about, error's code, exit code, words. The first ones are found in the image's layout too.
STALE = {
    "another recipe's": (another_recipes, "EB731", 7, 'is the environment "other", not `mine`'),
    "an older lock's": (an_older_locks, "EB401", 4, "its lock is not `recipes/mine.lock` as it is now"),
    "recipe edited": (of_an_edited_recipe, "EB401", 4, "its recipe is not `recipes/mine.yaml` as it is now"),
    "recipe edited and locked": (of_an_edited_and_locked_recipe, "EB401", 4, "its recipe is not `recipes/mine.yaml`"),
}  # fmt: skip
KINDS = STALE | {
    "another user's": (of_another_user, "EB732", 7, "belongs to user 4711"),
    "cut": (cut, "EB734", 7, r"is cut off: object \d ends at byte"),
    "empty": (text(b""), "EB734", 7, "is empty, expected a header"),
    "half-written": (half_written, "EB734", 7, "the file system in .* is damaged"),
    "somebody else's": (of_somebody_else, "EB733", 7, "was not made by envbuilder"),
    "a page of a proxy": (text(b"\n<!DOCTYPE html><html>"), "EB733", 7, "it is a page of a web server or a proxy"),
    "a pointer of Git LFS": (text(b"version https://git-lfs.github.com/spec/v1\n"), "EB733", 7, "a pointer of Git LFS"),
    "an archive of Docker": (of_docker, "EB733", 7, "it is a tar archive"),
    "words": (text(b"words" * 99), "EB733", 7, "it begins with b'wordswordsw'"),
    "a folder": (functools.partial(replaced, Path.mkdir), "EB200", 2, "is a folder; a SIF or a recipe is expected"),
    "a pipe": (functools.partial(replaced, os.mkfifo), "EB733", 7, "is a device or a pipe, not a SIF"),
    "a link to nowhere": (
        functools.partial(replaced, lambda path: path.symlink_to("/gone/x.sif")), "EB200", 2, "is a link to `/gone/x.sif`, which is not",
    ),
    "a link to itself": (functools.partial(replaced, lambda path: path.symlink_to(path)), "EB200", 2, "is a link to"),
}  # fmt: skip
COMMANDS = (
    "exec mine -- python -V",
    "exec recipes/mine.yaml --print -- python -V",
    "exec mine",
    f"launch slurm mine --profile {pasted(ROOT / 'sites/slurm-generic.yaml')} --write job.sbatch -- train.py",
    "launch ssh mine --hosts a,b --dry-run -- train.py",
    "launch local mine --smoke",
    "module mine",
    "kernel mine",
    "devcontainer mine --srun=--gpus=1",
    "detect --recipe mine --measure",
    "push mine registry.example.org/x",
    "sign mine --key none.pem",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_sif_is_refused_by_every_command_before_anything_starts(
    project: Project, call: Call, kind: str
):
    make, code, exit_code, words = KINDS[kind]
    if make is of_another_user and os.geteuid():
        pytest.skip("root alone gives files away")
    make(project)
    before = sorted(project.folder.rglob("*"))
    for command in COMMANDS:
        answer = call(*shlex.split(command))
        assert answer.code == exit_code, (command, answer.err)
        assert re.search(words, answer.err), (command, answer.err)
        assert "mine" in answer.err
        assert "hint: " in answer.err
    assert f'"{code}"' in call("module", "mine", "--json").out
    assert sorted(project.folder.rglob("*")) == before


@pytest.mark.parametrize("kind", STALE)
def test_the_hint_names_lock_only_where_the_lock_no_longer_fits(project: Project, kind: str):
    make, *_ = STALE[kind]
    make(project)
    with pytest.raises(EnvbuilderError) as caught:
        need_sif("mine", project.folder / "build", RECIPES)
    before = "`envbuilder lock mine`, then " if make is of_an_edited_recipe else ""
    assert caught.value.hint.startswith(f"{before}`envbuilder build mine` makes it; `")


@pytest.mark.parametrize("kind", STALE)
def test_a_wrong_image_is_refused(project: Project, call: Call, kind: str):
    make, code, exit_code, _ = STALE[kind]
    make(project)
    engine = holding(dict(read_layout(project.outputs.image).config.image.labels))
    with pytest.raises(EnvbuilderError, match="the Docker engine's `envbuilder/mine:latest` is") as caught:
        need_image(engine, "mine", project.outputs, RECIPES)
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    assert "envbuilder build mine" in caught.value.hint
    answer = call("push", "mine", "registry.example.org/x", "--only", "image")
    assert (answer.code, "build/mine.oci` is " in answer.err) == (exit_code, True)


def holding(labels: dict[str, str]) -> DockerEngine:
    """An engine with one image."""
    image = SimpleNamespace(
        id="sha256:" + "a" * 64, labels=labels, attrs={"RootFS": {"Layers": ["sha256:1"]}}
    )
    return DockerEngine(SimpleNamespace(images=SimpleNamespace(get=lambda _: image)))  # type: ignore[arg-type]


def test_a_kernel_in_the_image_needs_no_sif(
    project: Project, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    engine = holding(dict(read_layout(project.outputs.image).config.image.labels))
    sbom = Completed(code=0, output='{"packages": [{"name": "ipykernel"}]}')
    monkeypatch.setattr(kernel, "need_engine", lambda *_: engine)
    monkeypatch.setattr(kernel, "run_in_image", lambda *_: sbom)
    project.sif.unlink()
    answer = call("kernel", "mine", "--in", "image", "--write", str(tmp_path / "kernels"))
    assert (answer.code, answer.err) == (0, "")
    sbom = Completed(code=0, output='{"packages": []}')
    answer = call("kernel", "mine", "--in", "image", "--write", str(tmp_path / "kernels"))
    assert (answer.code, "has no `ipykernel`" in answer.err) == (2, True)


def test_an_image_of_somebody_else_is_refused(project: Project):
    with pytest.raises(ForeignError, match="was not made by envbuilder"):
        need_image(holding({"maintainer": "x"}), "mine", project.outputs, RECIPES)


def test_what_is_of_the_recipe_and_its_lock_starts_without_a_word(
    project: Project, call: Call, caplog: pytest.LogCaptureFixture
):
    for name in ("mine", "recipes/mine.yaml"):
        assert call("exec", name, "--print", "--", "true").code == 0
    assert need_image(
        holding(dict(read_layout(project.outputs.image).config.image.labels)),
        "mine",
        project.outputs,
        RECIPES,
    )
    assert caplog.messages == []


def test_the_text_of_a_lock_may_be_written_in_another_way(project: Project):
    project.lock.write_text(project.lock.read_text().replace("\n", "\r\n"))
    need_sif("mine", project.folder / "build", RECIPES)


def test_what_does_not_decide_the_bytes_makes_nothing_stale(project: Project):
    project.recipe.write_text(
        f"# a comment\nsummary: words\ntests: [python -V]\n{project.recipe.read_text()}"
    )
    need_sif("mine", project.folder / "build", RECIPES)


def test_a_renamed_recipe_keeps_its_sif(project: Project):
    for path in (project.recipe, project.lock, project.sif):
        path.rename(path.with_stem("renamed"))
    need_sif("renamed", project.folder / "build", RECIPES)


@pytest.mark.parametrize("kind", [*STALE, "another user's", "somebody else's"])
def test_a_path_starts_the_file_as_it_is(project: Project, call: Call, kind: str):
    make = KINDS[kind][0]
    if make is of_another_user and os.geteuid():
        pytest.skip("root alone gives files away")
    make(project)
    answer = call("exec", "build/mine.sif", "--print", "--", "true")
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize("kind", [*STALE, "another user's", "somebody else's"])
def test_where_no_such_recipe_is_here_the_sif_alone_counts(project: Project, kind: str):
    make = KINDS[kind][0]
    if make is of_another_user and os.geteuid():
        pytest.skip("root alone gives files away")
    make(project)
    shutil.rmtree(project.folder / "recipes")
    need_sif("mine", project.folder / "build", RECIPES)


@pytest.mark.parametrize("kind", ["cut", "empty", "half-written", "words", "a folder", "a link to nowhere"])
def test_a_damaged_file_is_refused_without_a_recipe_too(project: Project, call: Call, kind: str):
    make, _, exit_code, words = KINDS[kind]
    make(project)
    shutil.rmtree(project.folder / "recipes")
    for name in ("mine", "build/mine.sif"):
        answer = call("exec", name, "--", "true")
        assert answer.code == exit_code
        assert re.search(words, answer.err)


def test_a_version_that_was_chosen_starts_with_a_word(project: Project, caplog: pytest.LogCaptureFixture):
    history.adopt(project.sif)
    of_an_edited_and_locked_recipe(project)
    newer = write_named(project.recipe, project.folder / "newer").sif
    os.utime(newer, (project.sif.stat().st_mtime + 9,) * 2)
    history.install(newer, project.sif, sha256_file(newer), 2)
    need_sif("mine", project.folder / "build", RECIPES)
    assert caplog.messages == []
    history.switch(project.sif, history.versions(project.sif)[1])
    need_sif("mine", project.folder / "build", RECIPES)
    assert [one.partition(":")[0] for one in caplog.messages] == [
        f"`{project.sif}` is an earlier version, as chosen"
    ]
    an_older_locks(project)
    history.switch(project.sif, history.versions(project.sif)[0])
    with pytest.raises(StaleError):
        need_sif("mine", project.folder / "build", RECIPES)


def test_a_version_of_another_recipe_is_no_choice(project: Project):
    other = project.sif.with_stem("other")
    os.utime(other, (0, 0))
    other.rename(project.sif.with_name(".mine.0123456789abcdef.sif"))
    history.adopt(project.sif)
    history.switch(project.sif, history.versions(project.sif)[1])
    with pytest.raises(OtherRecipeError):
        need_sif("mine", project.folder / "build", RECIPES)


def test_artifacts_of_an_older_envbuilder_start_with_a_warning(
    project: Project, caplog: pytest.LogCaptureFixture
):
    labels = dict(read_layout(project.outputs.image).config.image.labels)
    older = {name: value for name, value in labels.items() if not name.endswith((".recipe", ".lock"))}
    need_image(holding(older), "mine", project.outputs, RECIPES)
    (warning,) = caplog.messages
    assert (
        "an older envbuilder made it, so it does not say of which recipe and lock; `envbuilder build mine`"
        in warning
    )
    with pytest.raises(OtherRecipeError):
        need_image(
            holding(older | {"org.opencontainers.image.title": "a100"}), "mine", project.outputs, RECIPES
        )


def test_a_sif_is_looked_at_in_its_tables_alone(project: Project, monkeypatch: pytest.MonkeyPatch):
    """Its size does not count: of 6 GB, a few kB are read."""
    read = 0
    pread = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    need_sif("mine", project.folder / "build", RECIPES)
    with opened_sif(project.sif):
        assert read < 64_000


def test_a_recipe_with_a_mistake_is_not_compared_and_says_so(project: Project, call: Call):
    project.recipe.write_text(project.recipe.read_text().replace("python", "pyton"))
    answer = call("exec", "mine", "--print", "--", "true")
    assert answer.code == 0
    assert "the recipe `recipes/mine.yaml` has 1 mistake, so nothing is compared with it" in answer.err


def test_another_yaml_file_of_the_name_is_no_recipe(project: Project, caplog: pytest.LogCaptureFixture):
    shutil.rmtree("recipes")
    Path("mine.yaml").write_text("lr: 0.1\nepochs: 3\n")
    need_sif("mine", project.folder / "build", RECIPES)
    assert caplog.messages == []
    Path("mine.yaml").write_text(RECIPE.replace('"1"', '"another"'))
    with pytest.raises(StaleError):
        need_sif("mine", project.folder / "build", RECIPES)


def test_without_the_recipes_sources_its_lock_alone_is_compared(
    project: Project, caplog: pytest.LogCaptureFixture
):
    project.recipe.write_text(f"{project.recipe.read_text()}extensions: [{{name: x, sources: [x/x.cpp]}}]\n")
    need_sif("mine", project.folder / "build", RECIPES)
    assert caplog.messages == []
    an_older_locks(project)
    with pytest.raises(StaleError, match="its lock is not"):
        need_sif("mine", project.folder / "build", RECIPES)


def test_the_recipe_of_the_build_record_is_compared(project: Project):
    """`build --recipes team` made the SIF, and `recipes` has another recipe of the name."""
    (team := project.folder / "team").mkdir()
    for path in (project.recipe, project.lock):
        shutil.copy(path, team)
    of_an_edited_and_locked_recipe(project)
    digest, size = sha256_file(project.sif), project.sif.stat().st_size
    record = Record(key="k", manifest=digest, sif=digest, sif_size=size, content_size=1)
    replace(record.of_files(project.outputs), path=str(team / "mine.yaml")).save(project.outputs.record)
    need_sif("mine", project.folder / "build", RECIPES)
    with pytest.raises(StaleError):
        need_sif("recipes/mine.yaml", project.folder / "build", RECIPES)
    os.utime(project.sif)  # the record may be of another SIF
    with pytest.raises(StaleError):
        need_sif("mine", project.folder / "build", RECIPES)


@pytest.mark.parametrize(
    ("owner", "mode", "is_taken"),
    [(0, 0o2775, True), (0, 0o755, True), (0, 0o1777, False), (1, 0o2775, True), (1, 0o2777, False), (1, 0o775, False)],
)  # fmt: skip
def test_in_a_shared_folder_the_sif_of_a_colleague_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, is_taken: bool
):
    if os.geteuid():
        pytest.skip("root alone gives files away")
    sif = tmp_path / "x.sif"
    sif.touch()
    os.chown(sif, 4711, 4711)
    os.chown(tmp_path, owner, 4711)
    tmp_path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    assert is_in_place(str(sif)) is is_taken


def test_a_lock_with_marks_of_a_merge_is_named(project: Project, call: Call):
    project.lock.write_text("<<<<<<< HEAD\n" + project.lock.read_text())
    answer = call("exec", "mine", "--", "true")
    assert (answer.code, "recipes/mine.lock" in answer.err) == (4, True)


def test_without_a_lock_the_recipe_alone_is_compared(project: Project):
    project.lock.unlink()
    need_sif("mine", project.folder / "build", RECIPES)
    of_an_edited_recipe(project)
    with pytest.raises(StaleError):
        need_sif("mine", project.folder / "build", RECIPES)


def test_a_linked_sif_of_others_in_an_own_folder_was_chosen(project: Project, tmp_path: Path):
    """The shared SIF of a group, to which a user makes a link."""
    if os.geteuid():
        pytest.skip("root alone gives files away")
    shared = project.sif.rename(tmp_path / "shared.sif")
    os.chown(shared, 4711, 4711)
    project.sif.symlink_to(shared)
    need_sif("mine", project.folder / "build", RECIPES)
    os.chown(shared.rename(tmp_path / "project/build/mine.sif"), 4711, 4711)
    os.chown(project.folder / "build", 4711, 4711)  # all of a folder that a colleague shares
    need_sif("mine", project.folder / "build", RECIPES)
