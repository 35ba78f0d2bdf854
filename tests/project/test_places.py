"""Tests that once failed in some places, in copies of this checkout at such places."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stranger import ROOT, reachable_folder
from tests.support.workbench import link_tree

USER = 7301  # no machine has this user
CHOSEN = (
    "tests/node/test_doctor.py::test_this_machine_as_an_ordinary_user",
    "tests/core/test_private.py::test_an_ordinary_user_is_told_who_owns_a_planted_log",
    "tests/core/test_private.py::test_a_work_folder_that_is_exchanged_during_the_work_leads_nowhere",
    "tests/core/test_cache.py::test_an_ordinary_user_removes_folders_that_cannot_be_entered",
    "tests/build/test_assemble.py::test_the_packages_are_configured_in_a_namespace",
    "tests/run/test_container.py::test_another_python_is_kept_out_and_the_projects_own_folders_stay",
    "tests/layers/test_layer.py::test_a_damaged_layer_is_not_found",
    "tests/project/test_pages.py::test_commands_print_what_the_page_says[docs/trouble/gcc.md]",
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a checkout lies: below a folder of this mode, and whose it is."""

    name: str = "x"
    mode: int = 0o755
    umask: int = 0o022
    user: int = 0


PLACES = {
    "an open folder": Place(),
    "a blank": Place(name="x y"),
    "a closed home of root": Place(mode=0o700),
    "a closed umask": Place(umask=0o077),
    "a closed home of a user": Place(mode=0o700, user=USER),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as made:
        yield made


def copy_checkout(target: Path) -> None:
    """Copy the checkout with its `.venv`, by hard links: only folders, and what a path is written into, are new."""
    target.mkdir()
    git = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for top in sorted({Path(name).parts[0] for name in names if name}):
        link_tree(ROOT / top, target / top)
    link_tree(ROOT / ".venv", target / ".venv")
    (path,) = target.glob(".venv/lib/python3*/site-packages/envbuilder.pth")
    path.unlink()
    path.write_text(f"{target}\n")


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to a user, and become one")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_tests_pass_wherever_the_checkout_lies(folder: Path, place: Place):
    home, temporary = folder / "home", folder / "tmp"
    for made in (home, temporary):
        made.mkdir()
        os.chown(made, place.user, place.user)
    checkout = home / place.name
    copy_checkout(checkout)
    if place.umask == 0o077:
        for path in (checkout, *checkout.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
    home.chmod(place.mode)
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN)
    command = (checkout / ".venv/bin/python", *pytest_words)
    setpriv = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
    argv = tuple(map(str, (*setpriv, *command) if place.user else command))
    env = {name: os.environ[name] for name in ("PATH", "CI") if name in os.environ}
    env |= {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "de_DE.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        argv, cwd=checkout, env=env, umask=place.umask, stdin=subprocess.DEVNULL, start_new_session=True,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
