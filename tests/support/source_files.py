"""A recipe with extensions of its own folder, and what locks it, without a network."""

from pathlib import Path

from envbuilder.core.process import Runner
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import Sources
from tests.support import locks
from tests.support.runner import FakeRunner


def make_recipe(folder: Path, *extensions: Extension) -> Recipe:
    return locks.make_recipe(
        folder, name="x", path=folder / "x.yaml", libxcrypt="", packages=(), extensions=extensions
    )


def make_means(tmp_path: Path, *folders: Path, runner: Runner | None = None) -> ResolveContext:
    sources = Sources(debian=(), indexes=(), folders=folders)
    return locks.make_means(tmp_path, sources, runner or FakeRunner())


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {name}\n")
