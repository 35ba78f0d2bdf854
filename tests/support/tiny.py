"""An environment that builds in seconds: a distribution with Python alone and a few small wheels.

Its lock is a part of the lock of `cpu`, so that nothing is fetched for it: the packages that Debian calls essential,
Python, what those need, and wheels without needs. There is no torch in it.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, Lock, recipe_inputs
from envbuilder.recipe.load import load
from tests.support.workbench import CACHE, ROOT, run

RECIPE: Final = """\
base: debian/bookworm
python: "%s"
gcc: "12"
libxcrypt: "4.4"
pytorch: "%s"
env: {WHICH: %s}
"""
ARM: Final = "platform: linux/arm64\n"
WHEELS: Final = ("filelock", "markupsafe", "numpy", "typing-extensions")
ROOTS: Final = ("python3.11", "libcrypt1", "libstdc++6", "usr-is-merged")


def make_tiny(
    folder: Path,
    name: str = "tiny",
    wheels: tuple[str, ...] = WHEELS,
    *,
    python: str = "3.11",
    pytorch: str = "2.13.0",
    roots: tuple[str, ...] = ROOTS,
    interpreter: Artifact | None = None,
    of: str = "cpu",
    more: str = "",
) -> tuple[Path, Lock]:
    """Write the recipe and its lock, a part of that of the recipe `of`, into `folder`; returns the recipe's file and the lock.

    `interpreter` is a stand-in of a standalone Python, for which `roots` has no Python. `more` are keys of the recipe.
    """
    path = folder / f"{name}.yaml"
    arm = load_lock(ROOT / f"recipes/{of}.lock").tools is not None
    save_text(path, RECIPE % (python, pytorch, name) + (ARM if arm else "") + more)
    return path, make_lock(path, wheels, roots=roots, interpreter=interpreter, of=of)


def make_lock(
    path: Path,
    wheels: tuple[str, ...] = WHEELS,
    *,
    roots: tuple[str, ...] = ROOTS,
    interpreter: Artifact | None = None,
    of: str = "cpu",
) -> Lock:
    """Write the lock of a recipe, a part of that of the recipe `of`. The toolkit stays if the recipe has CUDA."""
    whole, recipe = load_lock(ROOT / f"recipes/{of}.lock"), load(path)
    toolkit = whole.toolkit if recipe.cuda else ()
    lock = replace(
        whole, recipe=recipe.digest, inputs=recipe_inputs(recipe), debs=_closure(whole.debs, roots),
        interpreter=interpreter,
        wheels=tuple(wheel for wheel in whole.wheels if wheel.name.lower().replace("_", "-") in wheels),
        extensions=(), toolkit=toolkit,
        tools=replace(whole.tools, toolkit=whole.tools.toolkit if toolkit else ()) if whole.tools else None,
    )  # fmt: skip
    save_text(path.with_suffix(".lock"), lock_text(lock))
    return lock


def edit_tiny(recipe: Path, old: str, new: str) -> None:
    """Replace a text in the recipe. Its lock follows."""
    recipe.write_text(recipe.read_text().replace(old, new))
    edited, path = load(recipe), recipe.with_suffix(".lock")
    lock = replace(load_lock(path), recipe=edited.digest, inputs=recipe_inputs(edited))
    save_text(path, lock_text(lock))


def _closure(debs: tuple[Artifact, ...], roots: tuple[str, ...]) -> tuple[Artifact, ...]:
    """The essential packages and `roots`, with all that they depend on among `debs`."""
    facts = {deb.name: _control(deb) for deb in debs}
    providers = {
        provided: name for name, fields in facts.items() for provided in _names(fields.get("Provides", ""))
    }
    providers |= {name: name for name in facts}
    todo = [name for name, fields in facts.items() if fields.get("Essential") == "yes" or name in roots]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            needs = [
                alternatives
                for field in ("Depends", "Pre-Depends")
                for alternatives in facts[name].get(field, "").split(",")
            ]
            for need in needs:  # the first alternative that exists
                there = [providers[name] for name in _names(need.replace("|", ",")) if name in providers]
                todo += there[:1]
    return tuple(deb for deb in debs if deb.name in seen)


def _control(deb: Artifact) -> dict[str, str]:
    path = CACHE / "artifacts" / deb.sha256[:2] / deb.sha256
    text = run("dpkg-deb", "-f", path, "Essential", "Depends", "Pre-Depends", "Provides")
    return dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))


def _names(listing: str) -> list[str]:
    return [one.split()[0].partition(":")[0] for one in listing.split(",") if one.strip()]
