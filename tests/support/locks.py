"""Recipes with a matching lock whose artifacts no source has, artifacts to download, and what uv itself would lock."""

import dataclasses
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.check import load_tables
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.cache import Store, sha256_bytes, sha256_text
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
CONTENT = bytes(range(256)) * 4096  # 1 MiB
# What the rules of `check` judge.
TABLES = dataclasses.replace(load_tables(), releases=("11.2.2", "12.4.1", "12.6.3", "13.2.2"))
RECIPE = Recipe(
    name="x", path=Path("x.yaml"), summary="", gpus=("A100",), base="debian/bookworm", python="3.11", cuda="12.4",
    gcc="12", libxcrypt="4.4", pytorch="2.6.0", packages=(), apt=(), extensions=(), env=(), tests=(),
    places=(("$", "x.yaml:1:1"), ("$.cuda", "x.yaml:5:7"), ("$.gpus[0]", "x.yaml:2:8")),
)  # fmt: skip


def make_recipe(folder: Path, **changes: object) -> Recipe:
    values: dict[str, object] = {
        "name": "test", "path": folder / "test.yaml", "summary": "", "gpus": (), "base": "debian/bookworm",
        "python": "3.11", "cuda": "", "gcc": "12", "libxcrypt": "4.4", "pytorch": "2.13.0",
        "packages": ("numpy>=2",), "apt": (), "extensions": (), "env": (), "tests": (), "places": (),
    }  # fmt: skip
    return Recipe(**(values | changes))  # type: ignore[arg-type]


def make_artifact(name: str, version: str = "1.0", *, kind: str = "wheel") -> Artifact:
    source, path = {
        "wheel": ("pypi", f"{name}/{name}-{version}-py3-none-any.whl"),
        "deb": ("debian", f"pool/{name}_{version}.deb"),
        "archive": ("cuda", f"{name}/linux-x86_64/{name}-linux-x86_64-{version}-archive.tar.xz"),
    }[kind]
    return Artifact(
        kind=kind, name=name, version=version, sha256=sha256_text(name + version), size=1, source=source,
        path=path,
    )  # fmt: skip


def make_parts(cuda: str, source: str = "", *, headers: bool = False) -> tuple[Artifact, ...]:
    """Make the packages of a toolkit, as the table's row of a source has them: Debian's, if it has this CUDA."""
    rows = [row for row in load_toolkits().rows if row.may_have(cuda)]
    row = next(row for row in rows if row.source in ((source,) if source else ("debs", "apt")))
    parts = (
        make_artifact(part.name, part.version or "1.0", kind=part.kind)
        for part in (*row.parts_of(cuda), *(row.parts_of(cuda, headers=True) if headers else ()))
    )
    return tuple(sorted(parts, key=lambda part: part.name))


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
        debs=tuple(sorted(debs, key=lambda deb: deb.name)),
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
        store=store, runner=runner or programs, sources=lambda: sources, client=no_client,
        fetcher=Fetcher(store, lambda: sources), transfer=Console(quiet=True).step,
    )  # fmt: skip


def compiled(
    requirements: Sequence[str], sources: Sources, folder: Path, *, constraints: Sequence[str] = (), finals: Sequence[str] = (),
    build: str = "", python: str = "3.11", glibc: str = "2.36",
) -> dict[str, str]:  # fmt: skip
    """Return the versions that one plain `uv pip compile` takes, by name; nothing if no set of packages fits."""
    (folder / "plain.in").write_text("".join(f"{line}\n" for line in requirements))
    (folder / "plain-constraints.in").write_text("".join(f"{line}\n" for line in constraints))
    main, *more = [*sources.indexes, *([f"{sources.pytorch}{build}/"] if build else [])]
    argv = [
        uv.find_uv_bin(), "pip", "compile", "plain.in", "--constraints", "plain-constraints.in", "--no-config",
        "--cache-dir", "plain-cache", "--python-version", python, "--index-strategy", "unsafe-best-match",
        "--python-platform", f"x86_64-manylinux_{glibc.replace('.', '_')}", "--default-index", main,
        *(f"--index={url}" for url in more), *(f"--find-links={url}" for url in sources.folders),
        *(f"--prerelease-package={name}=disallow" for name in finals), "--no-header", "--no-annotate", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "No solution found" in done.stderr, done.stderr
    pins = [Requirement(line) for line in done.stdout.splitlines()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def make_deb(content: bytes = CONTENT, *, name: str = "tool", size: int | None = None) -> Artifact:
    return Artifact(
        kind="deb", name=name, version="1.0", sha256=sha256_bytes(content), size=len(content) if size is None else size,
        source="debian", path=f"pool/{name}_1.0_amd64.deb",
    )  # fmt: skip


def make_wheel(
    content: bytes = CONTENT, *, source: str = "pypi", path: str = "tool/tool-1.0-py3-none-any.whl"
) -> Artifact:
    return Artifact(
        kind="wheel", name="tool", version="1.0", sha256=sha256_bytes(content), size=len(content), source=source, path=path
    )  # fmt: skip
