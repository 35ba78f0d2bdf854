"""Make a recipe and a matching lock whose artifacts no source has."""

from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner, Runner
from envbuilder.lock.model import Artifact, Lock, recipe_inputs
from envbuilder.lock.resolve import make_target, resolve
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target, Task
from envbuilder.lock.resolve.debs import os_packages
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources

DAY = date(2026, 11, 21)
EPOCH = 1795219200  # 2026-11-21 00:00 UTC


def make_recipe(folder: Path, **changes: object) -> Recipe:
    values: dict[str, object] = {
        "name": "test",
        "path": folder / "test.yaml",
        "summary": "",
        "gpus": (),
        "base": "debian/bookworm",
        "python": "3.11",
        "cuda": "",
        "gcc": "12",
        "libxcrypt": "4.4",
        "pytorch": "2.13.0",
        "packages": ("numpy>=2",),
        "apt": (),
        "extensions": (),
        "env": (),
        "tests": (),
        "places": (),
    }
    return Recipe(**(values | changes))  # type: ignore[arg-type]


def make_artifact(name: str, version: str = "1.0", *, kind: str = "wheel") -> Artifact:
    source, path = {
        "wheel": ("pypi", f"{name}/{name}-{version}-py3-none-any.whl"),
        "deb": ("debian", f"pool/{name}_{version}.deb"),
        "archive": ("cuda", f"{name}/linux-x86_64/{name}-linux-x86_64-{version}-archive.tar.xz"),
    }[kind]
    return Artifact(
        kind=kind,
        name=name,
        version=version,
        sha256=sha256_text(name + version),
        size=1,
        source=source,
        path=path,
    )


def make_parts(cuda: str, source: str = "", *, headers: bool = False) -> tuple[Artifact, ...]:
    """Make the packages of a toolkit, as the table's row of a source has them: Debian's, if it has this CUDA."""
    rows = [row for row in load_toolkits().rows if row.may_have(cuda)]
    row = next(row for row in rows if row.source in ((source,) if source else ("debs", "apt")))
    parts = (
        make_artifact(part.name, part.version or "1.0", kind=part.kind)
        for part in (*row.parts_of(cuda), *(row.parts_of(cuda, headers=True) if headers else ()))
    )
    return tuple(sorted(parts, key=lambda one: one.name))


def make_lock(recipe: Recipe) -> Lock:
    toolkit = make_parts(recipe.cuda) if recipe.cuda else ()
    debs = [
        make_artifact(name, kind="deb")
        for name in (*os_packages(recipe), "libgomp1")
        if not name.startswith("?")
    ]
    return Lock(
        recipe=recipe.digest,
        epoch=EPOCH,
        platform="linux/amd64",
        inputs=recipe_inputs(recipe),
        debs=tuple(sorted(debs, key=lambda one: one.name)),
        toolkit=toolkit,
        wheels=(
            make_artifact("numpy", "2.2.0"),
            *((make_artifact("nvidia-ml-py", "13.1"),) if recipe.cuda else ()),
            make_artifact("torch", "2.13.0+cpu"),
        ),
        extensions=(),
    )


def no_client() -> NoReturn:
    raise AssertionError("no registry is asked for a suite")


def lock_as_of(
    recipe: Recipe, context: ResolveContext, *, target: Target | None = None, old: Lock | None = None,
    options: LockOptions | None = None, today: date = DAY, **more: Any,
) -> Lock:  # fmt: skip
    """Lock a recipe on a day of the test's."""
    options = options or LockOptions(today=today, **more)
    return resolve(make_task(recipe, context, options, target), old)


def make_task(
    recipe: Recipe, context: ResolveContext, options: LockOptions | None = None, target: Target | None = None
) -> Task:
    options = options or LockOptions(today=DAY)
    return Task(recipe=recipe, target=target or make_target(recipe), options=options, context=context)


def make_means(tmp_path: Path, sources: Sources, runner: Runner | None = None) -> ResolveContext:
    """Make the context of resolving from these sources, with programs that run."""
    store = Store(tmp_path / "cache")
    programs = ProcessRunner({"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    return ResolveContext(
        store=store,
        runner=runner or programs,
        sources=lambda: sources,
        client=no_client,
        fetcher=Fetcher(store, lambda: sources),
        transfer=Console(quiet=True).step,
    )
