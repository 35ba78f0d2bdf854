"""A recipe with extensions of its own folder, and what locks it, without a network."""

from pathlib import Path

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support.locks import no_client
from tests.support.runner import FakeRunner


def make_recipe(folder: Path, *extensions: Extension) -> Recipe:
    return Recipe(
        name="x", path=folder / "x.yaml", summary="", gpus=(), base="debian/bookworm", python="3.11", cuda="", gcc="12",
        libxcrypt="", pytorch="2.13.0", packages=(), apt=(), extensions=extensions, env=(), tests=(), places=(),
    )  # fmt: skip


def make_means(tmp_path: Path, *folders: Path, runner: object = None) -> ResolveContext:
    store = Store(tmp_path / "cache")
    sources = Sources(debian=(), indexes=(), folders=folders)
    return ResolveContext(
        store=store,
        runner=runner or FakeRunner(),
        sources=lambda: sources,
        client=no_client,
        fetcher=Fetcher(store, lambda: sources),
        transfer=Console(quiet=True).step,
    )


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {name}\n")
