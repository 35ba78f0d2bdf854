"""What `lock` asks uv, and what it keeps of the answers: each costs as much as a whole `uv pip compile`."""

import functools
import os
from pathlib import Path

import pytest

from envbuilder.core.cache import Store, sha256_file
from envbuilder.lock.resolve.uv_files import kept_python, make_question
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.sources.names import Sources
from tests.support.locks import make_means, make_recipe, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.serving import Folder, serving

TAG = "cp311-cp311-manylinux_2_28_x86_64"
RELEASES = {
    "setuptools": {"80.0": ()},
    "numpy": {"2.4": ()},
    "tool": {"1.0": ("base<2; extra == 'old'",)},
    "base": {"1.0": (), "2.0": ()},
}


class Index(Folder):
    """Serves a folder with one header `Cache-Control`, and notes the pages that are asked for."""

    asked: list[str]
    keeps: str

    def end_headers(self) -> None:
        self.send_header("Cache-Control", self.keeps)
        super().end_headers()

    def do_GET(self) -> None:
        if self.path.startswith("/simple/"):
            self.asked.append(self.path)
        super().do_GET()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    releases = [
        write_wheel(tmp_path / "files", name, version, requires=requires, headers=("Provides-Extra: old",))
        for name, versions in RELEASES.items()
        for version, requires in versions.items()
    ]
    write_index(tmp_path / "simple", *releases)
    write_wheel(tmp_path / "torch", "torch", "2.13.0+cpu", tag=TAG)
    return tmp_path


@pytest.mark.programs
@pytest.mark.parametrize(("keeps", "times"), [("no-cache", 1), ("no-store", 2)])
def test_who_requires_a_package_is_asked_of_what_uv_keeps_or_else_again(
    files: Path, keeps: str, times: int
) -> None:
    Index.keeps, Index.asked = keeps, []
    with serving(functools.partial(Index, directory=str(files))) as address:
        sources = Sources(debian=(), indexes=(f"http://{address}/simple/",))
        task = make_task(make_recipe(files), make_means(files, sources))
        uv, question = Uv(task), make_question(task, ("tool[old]", "base"))
        choice = uv.make_choice((), uv.ask(question), question)
    assert (choice.parents, choice.extras) == (
        {"base": ["tool"], "tool": []},
        {"base": set(), "tool": {"old"}},
    )
    assert [Index.asked.count(f"/simple/{name}/") for name in ("tool", "base")] == [times, times]


@pytest.mark.programs
def test_a_wheel_that_changes_in_its_place_is_hashed_anew(files: Path) -> None:
    sources = Sources(debian=(), indexes=((files / "simple").as_uri() + "/",), folders=(files / "torch",))
    task = make_task(make_recipe(files), make_means(files, sources))
    for content in ("one", "two"):
        wheel = write_wheel(files / "torch", "torch", "2.13.0+cpu", tag=TAG, files={"torch.py": content})
        os.utime(wheel, (1, 1))
        torch = next(package for package in resolve_wheels(task).artifacts if package.name == "torch")
        assert torch.sha256 == sha256_file(wheel)


def test_the_python_of_uv_is_kept_and_made_again_when_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    python = kept_python(store)
    (guard,) = python.glob("lib/python*/site-packages/no_build.pth")
    made, text = guard.stat().st_ino, guard.read_text()
    assert kept_python(store) == python
    assert (guard.stat().st_ino, text.count("_exit")) == (made, 1)
    guard.write_text("")  # as a power cut leaves it: uv could run a project's code
    assert kept_python(Store(tmp_path / "cache")) == python
    assert guard.read_text() == text
