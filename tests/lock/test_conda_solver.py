"""Packages of conda channels are solved for the target, and the lock names each by its channel and sha256, never by a host."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import zstandard

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError, ToolError
from envbuilder.lock.changes import check_fresh, diff_locks, locked_packages
from envbuilder.lock.file import load_lock, lock_text, parse_lock
from envbuilder.lock.model import Artifact, lock_artifacts, recipe_inputs
from envbuilder.lock.resolve.conda_solver import resolve_conda, say_shared
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.recipe.channels import Conda
from envbuilder.recipe.load import load
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources, probe_sources
from tests.support.conda_channel import NAME, SOURCE, CondaPackage, write_channel
from tests.support.locks import make_lock, make_recipe, make_task, no_client
from tests.support.runner import FakeRunner
from tests.support.serving import ask_directly, served

PACKAGES = (
    CondaPackage(name="tool", version="1.0", depends=("words >=1",)),
    CondaPackage(name="tool", version="2.0", depends=("words >=2",), index={"timestamp": 1_790_000_000_000}),
    CondaPackage(name="words", version="1.0", old=True),
    CondaPackage(name="words", version="2.0", noarch="generic"),
    CondaPackage(name="fresh", depends=("__glibc >=2.36",)),
    CondaPackage(name="fresh", version="2.0", depends=("__glibc >=2.37",)),
    CondaPackage(name="gpu", build="cuda_0", depends=("__cuda >=12.4",)),
    CondaPackage(name="gpu", build="cpu_0"),
    CondaPackage(name="tuned", version="3.0", depends=("__archspec 1 x86_64_v3",)),
    CondaPackage(name="tuned", version="1.0", depends=("__archspec 1 x86_64",)),
    CondaPackage(name="python", version="3.12.1"),
    CondaPackage(name="module", noarch="python", depends=("python >=3.9", "words")),
    CondaPackage(name="pytorch", version="2.6.0"),
    CondaPackage(name="mesh", depends=("python", "pytorch >=2.6,<2.7")),
    CondaPackage(name="everywhere", depends=("__unix", "__linux >=4.18")),
)


@contextmanager
def world(
    folder: Path, *, packed: bool = True, sources: Sources | None = None
) -> Iterator[tuple[str, ResolveContext]]:
    """Serve the channel. Gives its address, and what `lock` asks with."""
    write_channel(folder / "web", PACKAGES, packed=packed)
    store, asked = Store(folder / "cache"), sources or Sources(debian=())
    with served(folder / "web") as url:
        yield f"{url}{NAME}", ResolveContext(
            store=store, runner=FakeRunner(), sources=lambda: asked, client=no_client,
            fetcher=Fetcher(store, lambda: asked), transfer=Console(quiet=True).step,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def directly(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


def solve(
    folder: Path,
    *specs: str,
    options: LockOptions | None = None,
    old: tuple[Artifact, ...] = (),
    **changes: Any,
):
    """Return name → version and build of what the channel gives for these packages."""
    with world(folder) as (url, context):
        conda = Conda(channels=(url,), packages=specs)
        recipe = make_recipe(folder, conda=conda, **changes)
        task = make_task(recipe, context) if options is None else make_task(recipe, context, options)
        return resolve_conda(task, old)


def versions(packages: tuple[Artifact, ...]) -> dict[str, str]:
    return {package.name: package.version for package in packages}


def test_a_package_is_named_by_channel_path_and_sha256(tmp_path: Path):
    tool, words = solve(tmp_path, "tool=2")
    file = tmp_path / "web" / NAME / "linux-64/tool-2.0-h0_0.conda"
    assert (tool.kind, tool.name, tool.version, tool.source) == ("conda", "tool", "2.0", SOURCE)
    assert tool.path == "linux-64/tool-2.0-h0_0.conda"
    assert tool.size == file.stat().st_size
    assert words.path == "noarch/words-2.0-h0_0.conda"


def test_a_version_is_chosen_as_conda_writes_it(tmp_path: Path):
    assert versions(solve(tmp_path, "tool<2")) == {"tool": "1.0", "words": "2.0"}
    assert versions(solve(tmp_path, "tool<2", "words=1")) == {"tool": "1.0", "words": "1.0"}


def test_what_only_the_python_of_conda_imports_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    solve(tmp_path, "python=3.12", "module", "tool", env=(("PATH", "/opt/conda-env/bin:$PATH"),))
    solve(tmp_path, "tool")
    assert "imports" not in caplog.text
    solve(tmp_path, "python=3.12", "module", "tool")
    assert "`/opt/conda-env/bin/python`, imports module, python: write `env: {PATH: " in caplog.text


AHEAD = (("PATH", "/opt/conda-env/bin:$PATH"),)


def test_the_python_of_conda_sees_packages_for_its_version_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "envbuilder")  # whatever level a command of an earlier test has set
    solve(tmp_path, "python=3.12", env=AHEAD, pytorch="2.6.0")
    assert (
        "`python` is the Python 3.12.1 of conda, which does not import the packages for 3.11" in caplog.text
    )
    caplog.clear()
    packages = solve(tmp_path, "python=3.12", env=AHEAD, pytorch="2.6.0", python="3.12")
    assert caplog.text == ""
    wheels = tuple(replace(package, kind="wheel", version="3.13") for package in packages)
    recipe = make_recipe(tmp_path, env=AHEAD, python="3.12")
    say_shared(replace(recipe, env=()), packages, wheels)
    assert caplog.text == ""
    say_shared(recipe, packages, wheels)
    assert "`python` imports python 3.13 of `packages`, and not conda's 3.12.1" in caplog.text


def test_a_torch_of_conda_beside_the_recipes_is_refused_in_one_python(tmp_path: Path):
    words = r"yaml: mesh of conda would come with a torch beside the recipe's, in one Python"
    with pytest.raises(IncompatibleError, match=words):
        solve(tmp_path, "python=3.12", "mesh", env=AHEAD, pytorch="2.6.0", python="3.12")
    for changes in (
        {"pytorch": "2.6.0"},
        {"env": AHEAD, "pytorch": ""},
    ):  # a Python of its own; no torch of the recipe
        assert "pytorch" in versions(solve(tmp_path, "python=3.12", "mesh", python="3.12", **changes))


@pytest.mark.parametrize("packed", [True, False])
def test_a_list_may_be_packed(tmp_path: Path, *, packed: bool):
    with world(tmp_path, packed=packed) as (url, context):
        recipe = make_recipe(tmp_path, conda=Conda(channels=(f"{url}/",), packages=("words",)))
        assert versions(resolve_conda(make_task(recipe, context))) == {"words": "2.0"}


def test_the_target_decides_and_not_this_machine(tmp_path: Path):
    """Debian 12 has glibc 2.36; no machine is assumed to have more than the first x86-64; `__cuda` is the recipe's."""
    assert versions(solve(tmp_path, "fresh", "tuned", "everywhere")) == {
        "fresh": "1.0",
        "tuned": "1.0",
        "everywhere": "1.0",
    }
    assert solve(tmp_path, "gpu")[0].path == "linux-64/gpu-1.0-cpu_0.conda"
    cuda = {"cuda": "12.4", "gpus": ("A100",), "pytorch": "2.6.0"}
    assert solve(tmp_path, "gpu=*=cuda_0", **cuda)[0].path == "linux-64/gpu-1.0-cuda_0.conda"
    with pytest.raises(IncompatibleError, match="__cuda"):
        solve(tmp_path, "gpu=*=cuda_0")


def test_an_old_version_stays_where_it_fits(tmp_path: Path):
    before = solve(tmp_path, "tool=1", "words=1")
    assert versions(solve(tmp_path, "tool", old=before)) == {"tool": "1.0", "words": "1.0"}
    moving = LockOptions(today=date(2026, 11, 21), upgrade_only=("words",))
    assert versions(solve(tmp_path, "tool", old=before, options=moving)) == {"tool": "1.0", "words": "2.0"}
    anew = LockOptions(today=date(2026, 11, 21), upgrade=True)
    assert versions(solve(tmp_path, "tool", old=before, options=anew)) == {"tool": "2.0", "words": "2.0"}


def test_before_a_day_the_channel_is_as_it_was(tmp_path: Path):
    options = LockOptions(today=date(2026, 11, 21), before=date(2025, 1, 1))
    assert versions(solve(tmp_path, "tool", options=options))["tool"] == "1.0"


@pytest.mark.parametrize(
    ("spec", "words"),
    [("nothing", "No candidates were found for nothing"), ("tool=3", "tool"), ("tool >>3", "version spec")],
)
def test_what_no_channel_has_is_refused_at_its_place(spec: str, words: str, tmp_path: Path):
    with pytest.raises(IncompatibleError, match=words):
        solve(tmp_path, spec)


def test_a_script_of_a_package_that_is_not_there_cannot_be_allowed(tmp_path: Path):
    with world(tmp_path) as (url, context):
        recipe = make_recipe(
            tmp_path, conda=Conda(channels=(url,), packages=("words",), allow_scripts=("tool",))
        )
        with pytest.raises(IncompatibleError, match="no package `tool` is installed by conda"):
            resolve_conda(make_task(recipe, context))


def test_a_mirror_of_the_site_is_asked_first(tmp_path: Path):
    (tmp_path / "mirror").mkdir()
    write_channel(tmp_path / "mirror", [CondaPackage(name="words", version="9.0")])
    setting = {"ENVBUILDER_CONDA_MIRRORS": f"some-conda-test={(tmp_path / 'mirror' / NAME).as_uri()}"}
    sources = probe_sources(setting | {"ENVBUILDER_DEBIAN_MIRROR": "http://127.0.0.1:9/"}, FakeRunner())
    with world(tmp_path, sources=sources) as (url, context):
        recipe = make_recipe(tmp_path, conda=Conda(channels=(url,), packages=("words",)))
        (words,) = resolve_conda(make_task(recipe, context))
        assert words.version == "9.0"
        context.fetcher.fetch([words])  # from the mirror, too: the channel does not have it


def test_a_locked_package_is_fetched_from_its_channel(tmp_path: Path):
    with world(tmp_path) as (url, context):
        recipe = make_recipe(tmp_path, conda=Conda(channels=(url,), packages=("tool",)))
        packages = resolve_conda(make_task(recipe, context))
        context.fetcher.know(addresses(recipe, None))
        context.fetcher.fetch(packages)
        assert all(map(context.store.has_artifact, (package.sha256 for package in packages)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"<html>", "it is no list of a channel"),
        (b"[]", "it is no list of a channel"),
        (json.dumps({"packages": {"words-1-0.tar.bz2": {"name": 3}}}).encode(), "no set of packages"),
        (json.dumps({"info": {"base_url": "http://127.0.0.1:9/x/"}, "packages": {"words-1-0.tar.bz2": {"name": "words", "version": "1", "build": "0", "build_number": 0, "depends": [], "sha256": "0" * 64, "size": 1}}}).encode(), "does not give an address below the channel's own"),
        (json.dumps({"packages": {"words-1-0.tar.bz2": {"name": "words", "version": "1", "build": "0", "build_number": 0, "depends": []}}}).encode(), "does not give its sha256"),
    ],
)  # fmt: skip
def test_a_list_that_serves_nobody_is_refused(text: bytes, words: str, tmp_path: Path):
    with world(tmp_path) as (url, context):
        for subdir in ("linux-64", "noarch"):
            (tmp_path / "web" / NAME / subdir / "repodata.json.zst").write_bytes(zstandard.compress(text))
        recipe = make_recipe(tmp_path, conda=Conda(channels=(url,), packages=("words",)))
        with pytest.raises((FetchError, IncompatibleError), match=words):
            resolve_conda(make_task(recipe, context))


def test_an_address_without_a_channel_is_named(tmp_path: Path):
    with world(tmp_path) as (url, context):
        recipe = make_recipe(tmp_path, conda=Conda(channels=(f"{url}/other",), packages=("words",)))
        with pytest.raises(FetchError, match="channel-some-conda-test-other") as error:
            resolve_conda(make_task(recipe, context))
    assert "ENVBUILDER_CONDA_MIRRORS=some-conda-test-other=ADDRESS" in error.value.hint


def test_without_the_solver_the_key_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rattler", None)
    with pytest.raises(ToolError, match="py-rattler") as error:
        solve(tmp_path, "words")
    assert "pip install 'py-rattler>=0.28'" in error.value.hint


def test_a_lock_holds_the_packages_and_notices_the_key(tmp_path: Path):
    recipe = make_recipe(
        tmp_path, conda=Conda(channels=("https://host.example/some/conda-test",), packages=("tool",))
    )
    plain = make_lock(make_recipe(tmp_path))
    assert "conda" not in lock_text(plain)
    tool = Artifact(kind="conda", name="_tool", version="1!2.0", sha256=plain.debs[0].sha256, size=1, source=SOURCE, path="linux-64/_tool-1!2.0-h0_0.conda")  # fmt: skip
    lock = replace(plain, recipe=recipe.digest, inputs=recipe_inputs(recipe), conda=(tool,))
    text = lock_text(lock)
    assert parse_lock(text, "x.lock") == lock
    assert "host.example" not in text
    assert tool in lock_artifacts(lock)
    assert str(diff_locks(plain, lock)[-1]) == "+ _tool 1!2.0"
    assert locked_packages(lock)["conda _tool"].startswith("1!2.0 (conda ")
    changed = replace(recipe, conda=replace(recipe.conda, packages=("tool=2",)))
    (reason,) = check_fresh(changed, lock, {})
    assert reason == "the recipe changed in `conda`, `base` or `cuda`, which decide the packages of conda"


LEAST = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\npytorch: none\n'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{packages: [ffmpeg]}", "`packages` needs `channels`"),
        ("{channels: ['https://host.example/x']}", "`channels` needs `packages`"),
        ("{channels: [conda-forge], packages: [x]}", "expected the address of a channel"),
        ("{channels: ['http://host.example/x'], packages: [x]}", "expected the address of a channel"),
        (
            "{channels: ['https://a.example/x', 'https://b.example/x/'], packages: [x]}",
            "a second channel with the path",
        ),
        (
            "{channels: ['https://host.example/x'], packages: ['conda-forge::x']}",
            "expected a package of conda",
        ),
        ("{allow_scripts: [x]}", "`allow_scripts` needs `packages`"),
    ],
)
def test_a_wrong_key_is_refused(value: str, words: str, tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text(f"{LEAST}conda: {value}\n")
    with pytest.raises(RecipeError) as error:
        load(path)
    assert words in error.value.findings[0].message


def test_lists_of_a_recipe_that_is_extended_are_appended(tmp_path: Path):
    (tmp_path / "below.yaml").write_text(
        f"{LEAST}conda: {{channels: ['https://host.example/a'], packages: [x]}}\n"
    )
    (tmp_path / "over.yaml").write_text(
        "extends: below\nconda: {channels: ['https://host.example/b'], packages: [y]}\n"
    )
    conda = load(tmp_path / "over.yaml").conda
    assert conda.packages == ("x", "y")
    assert list(conda.sources) == ["channel-a", "channel-b"]


def test_a_lock_of_this_repository_needs_no_conda():
    lock = load_lock(Path(__file__).parents[2] / "recipes/cpu.lock")
    assert lock.conda == ()
    assert lock.inputs.conda == ""
