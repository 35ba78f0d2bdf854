"""The hashes of requirements files: the file that has one is locked, and everything else is an error with its place."""

import re
from pathlib import Path

import pytest

from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import RecipeError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.load import load
from envbuilder.sources.names import Sources
from tests.support.locks import make_means, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.sdists import own_backend, write_sdist

pytestmark = pytest.mark.programs
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.13.0"
gpus: []
packages: [tqdm, {requirements: r.txt}]
"""
NONE = "0" * 64


def lock(tmp_path: Path, text: str) -> dict[str, Artifact]:
    """Lock a file whose hashes are written as {WHEEL}, for that of a file of the index."""
    files = tmp_path / "files"
    there = [
        write_wheel(files, "plain", "1.0"),
        write_wheel(files, "plain", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64"),
        write_sdist(files, "plain", "1.0", own_backend("plain", "1.0")),
        write_wheel(files, "needy", "2.0", requires=("plain",)),
        write_wheel(files, "tqdm", "4.0", requires=("filelock",)),
        write_wheel(files, "filelock", "3.0"),
        write_wheel(files, "setuptools", "80.0.0"),
    ]
    torch = write_wheel(
        tmp_path / "base",
        "torch",
        "2.13.0+cpu",
        tag="cp311-cp311-manylinux_2_28_x86_64",
        requires=("filelock",),
    )
    write_index(tmp_path / "simple", *there)
    known = {one.name: sha256_file(one) for one in (*there, torch)}
    (tmp_path / "x.yaml").write_text(RECIPE)
    (tmp_path / "r.txt").write_text(
        re.sub(r"\{(.*?)\}", lambda found: f"--hash=sha256:{known.get(found[1], NONE)}", text)
    )
    sources = Sources(
        debian=(), indexes=(f"{(tmp_path / 'simple').as_uri()}/",), folders=(tmp_path / "base",)
    )
    recipe = load(tmp_path / "x.yaml")
    found = resolve_wheels(make_task(recipe, make_means(tmp_path, sources)))  # fmt: skip
    return {one.name: one for one in found.artifacts}


@pytest.mark.parametrize(
    ("hashes", "filename"),
    [
        ("{plain-1.0-py3-none-any.whl}", "plain-1.0-py3-none-any.whl"),
        ("{plain-1.0.tar.gz}", "plain-1.0.tar.gz"),
        (
            "{plain-1.0.tar.gz} {plain-1.0-cp311-cp311-manylinux_2_17_x86_64.whl} {other}",
            "plain-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        ),
    ],
)
def test_the_best_file_with_a_hash_is_locked(tmp_path: Path, hashes: str, filename: str) -> None:
    text = f"torch==2.13.0 {{of another build}}\nplain==1.0 {hashes}\n"
    assert lock(tmp_path, text)["plain"].filename == filename


def test_a_file_with_another_hash_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="1 package does not have the hashes") as caught:
        lock(tmp_path, "torch==2.13.0\nplain==1.0 \\\n   {other}\n")
    (finding,) = caught.value.findings
    locked = tmp_path / "files/plain-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    assert finding.where == f"{tmp_path}/r.txt:2:1"
    assert finding.message == (
        f"`{locked.name}` has sha256 {sha256_file(locked)}, and for plain the file expects {NONE}"
    )


def test_a_package_that_a_hashed_one_requires_needs_a_hash(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        lock(tmp_path, "needy==2.0 {needy-2.0-py3-none-any.whl}\n")
    (finding,) = caught.value.findings
    assert finding.message == "needy requires plain 1.0, and the file has no hash of it"
