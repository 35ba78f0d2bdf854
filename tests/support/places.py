"""Copies of this checkout at places where tests have failed: below a closed home, in a folder with a blank, another user's."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.stranger import ROOT, reachable_folder
from tests.support.workbench import link_tree

USER = 7301  # no machine has this user


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a checkout lies: below a folder of this mode, and whose it is."""

    name: str = "x"
    mode: int = 0o755
    umask: int = 0o022
    user: int = 0


PLACES = {
    "an open folder": Place(), "a blank": Place(name="x y"), "a closed home of root": Place(mode=0o700),
    "a closed umask": Place(umask=0o077), "a closed home of a user": Place(mode=0o700, user=USER),
}  # fmt: skip


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


def run_tests(place: Place, *words: str, history: bool = False) -> None:
    """Run pytest with these words in a copy of the checkout, without a terminal, in another language. Only root can.

    `history`: the copy has the commits as well.
    """
    with reachable_folder() as folder:
        _run_in(folder, place, words, history=history)


def _run_in(folder: Path, place: Place, words: tuple[str, ...], *, history: bool) -> None:
    home, temporary = folder / "home", folder / "tmp"
    for made in (home, temporary):
        made.mkdir()
        os.chown(made, place.user, place.user)
    checkout = home / place.name
    copy_checkout(checkout)
    if history:
        subprocess.run(["git", "clone", "--quiet", "--bare", ROOT, checkout / ".git"], check=True)
        for words_of_git in (("config", "core.bare", "false"), ("reset", "--quiet")):
            subprocess.run(["git", *words_of_git], cwd=checkout, check=True)
    if place.umask == 0o077:
        for path in (checkout, *checkout.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
    home.chmod(place.mode)
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    command = (checkout / ".venv/bin/python", *pytest_words)
    setpriv = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
    argv = tuple(map(str, (*setpriv, *command) if place.user else command))
    env = {name: os.environ[name] for name in ("PATH", "CI") if name in os.environ}
    env |= {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "de_DE.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        # The checkout is root's.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    ended = subprocess.run(
        argv, cwd=checkout, env=env, umask=place.umask, stdin=subprocess.DEVNULL, start_new_session=True,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
