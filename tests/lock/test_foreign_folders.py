"""A recipe's folder that a stranger made: no link, FIFO or sparse file in it brings the user's files into the lock or hangs it."""

import os
from pathlib import Path

import pytest

from envbuilder.core.errors import EnvbuilderError, LockError, RecipeError
from envbuilder.lock.resolve.extensions import lock_extensions, store_sources
from envbuilder.lock.resolve.project_metadata import read_distributions
from envbuilder.lock.source_files import own_files
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.load import list_recipes, load, load_all
from tests.support.projects import SECRET, deadline
from tests.support.source_files import make_means, make_recipe, write

FORMS = {
    "sources": Extension(name="ops", sources=("net/op.cpp",), include=("net",)),
    "project": Extension(name="ops", path="net"),
    "capture": Extension(name="ops", path="net", capture=("import ops",)),
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A cloned folder of a recipe, beside the user's own files."""
    write(tmp_path, "clone/net/op.cpp", "clone/net/setup.py", "clone/common/shared.h")
    for place in ("key", "clone/.git/config", "clone/.env"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(SECRET)
    return tmp_path / "clone"


def locked(clone: Path, form: str) -> dict[str, str]:
    """Lock the extension. Returns the content of each locked file in the store."""
    recipe, means = make_recipe(clone, FORMS[form]), make_means(clone.parent)
    with deadline(20):
        extensions = lock_extensions(recipe, means, old=None)
        store_sources(recipe, extensions, means)
    files = (file for one in extensions for file in one.files)
    return {file.path: means.store.artifact(file.sha256).read_text() for file in files}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "target", ["../../key", "KEY", "../.git/config", "../.env", "../common/../../key", "through/key"]
)
def test_a_link_to_the_users_files_is_refused_and_named(clone: Path, form: str, target: str) -> None:
    (clone / "common/out").symlink_to("../..")
    target = target.replace("KEY", str(clone.parent / "key")).replace("through", "../common/out")
    (clone / "net/leak.h").symlink_to(target)
    with pytest.raises(RecipeError, match=r"`net/leak\.h` is a link") as caught:
        locked(clone, form)
    assert "replace the link" in caught.value.hint
    assert not any(
        SECRET in path.read_text() for path in (clone.parent / "cache").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_link_to_another_file_of_the_recipes_folder_stands_for_it(clone: Path, form: str) -> None:
    (clone / "net/shared.h").symlink_to("../common/shared.h")
    assert locked(clone, form)["net/shared.h"] == "// clone/common/shared.h\n"


@pytest.mark.parametrize("form", FORMS)
def test_a_linked_folder_is_not_entered_and_a_fifo_does_not_hang(clone: Path, form: str) -> None:
    (clone / "net/home").symlink_to(clone.parent)
    (clone / "net/circle.h").symlink_to("circle.h")
    os.mkfifo(clone / "net/fifo.h")
    (clone / "net/linked.h").symlink_to("fifo.h")
    assert set(locked(clone, form)) <= {"net/op.cpp", "net/setup.py"}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_a_terabyte_is_refused_before_it_is_read(clone: Path, form: str) -> None:
    with (clone / "net/huge.h").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(RecipeError, match=r"`net/huge\.h` is larger than 8 GiB"):
        locked(clone, form)


def test_a_file_that_changes_between_lock_and_store_is_refused(clone: Path) -> None:
    recipe, means = make_recipe(clone, FORMS["project"]), make_means(clone.parent)
    extensions = lock_extensions(recipe, means, old=None)
    (clone / "net/op.cpp").write_text("// other\n")
    with pytest.raises(LockError, match=r"`net/op\.cpp` changed"):
        store_sources(recipe, extensions, means)
    (clone / "net/op.cpp").unlink()
    (clone / "net/op.cpp").symlink_to("../../key")
    with pytest.raises(RecipeError, match="is a link"):
        store_sources(recipe, extensions, means)


def test_the_metadata_of_a_project_is_read_through_no_link(clone: Path) -> None:
    recipe, means = make_recipe(clone, FORMS["project"]), make_means(clone.parent)
    extensions = lock_extensions(recipe, means, old=None)
    (clone / "net/setup.cfg").symlink_to("../../key")
    with pytest.raises(RecipeError, match=r"`net/setup\.cfg` is a link"):
        read_distributions(recipe, extensions, means)


RECIPE = """
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.6.0"
"""


@pytest.mark.parametrize("entry", [
    "{name: ops, sources: [net/leak.cpp]}",
    "{name: ops, sources: [net/op.cpp], include: [net/leak]}",
    "{name: ops, path: net/leak}",
    "{name: ops, path: net, patch: net/leak.cpp}",
])  # fmt: skip
@pytest.mark.parametrize("target", ["../../outside", "../.hidden"])
def test_a_path_of_the_recipe_may_not_be_such_a_link(clone: Path, entry: str, target: str) -> None:
    place = Path(os.path.normpath(clone / "net" / target))
    write(place, "setup.py")
    (clone / "net/leak").symlink_to(target)
    (clone / "net/leak.cpp").symlink_to(f"{target}/setup.py")
    (clone / "own.yaml").write_text(f"{RECIPE}extensions:\n  - {entry}\n")
    with pytest.raises(RecipeError) as caught:
        load(clone / "own.yaml")
    assert any("is a link to a place outside" in one.message for one in caught.value.findings)


def test_a_fifo_among_the_recipes_does_not_hang(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(clone / "fifo.yaml")
    monkeypatch.chdir(clone)
    with deadline(20):
        assert list_recipes(clone) == ()
        with pytest.raises(EnvbuilderError):
            load_all(clone / "recipes")


def test_own_files_of_a_linked_recipes_folder_are_read(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(clone)
    recipe = make_recipe(tmp_path / "linked", FORMS["project"])
    assert [file.path for file in own_files(recipe)["ops"]] == ["net/op.cpp", "net/setup.py"]
