"""Wheels from an address, the recipe's folder, an index or a page of the recipe: locked with their source, and from nowhere else."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from envbuilder import steps
from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.plan.printer.printed import WRITE, Printed, fetch
from envbuilder.plan.program import Program
from envbuilder.recipe.load import load
from envbuilder.sources.names import Sources
from tests.support.locks import make_means, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.plans import make_plan
from tests.support.sdists import own_backend, write_sdist
from tests.support.serving import served

pytestmark = pytest.mark.programs
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: none
"""
BUILT = "2.1.2+pt26cu124"
TAG = "cp311-cp311-linux_x86_64"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A package index, in which strangers have taken names; an index and a page of a project; and released files."""
    web = tmp_path_factory.mktemp("web")
    strangers = [write_wheel(web / "main", name, "9.0") for name in ("scatter", "knn", "core_ops", "fast")]
    common = [
        write_wheel(web / "main", "einops", "0.8"),
        write_wheel(web / "main", "setuptools", "80.0.0"),
        write_wheel(web / "main", "geometry", "2.0", requires=("scatter",)),
    ]
    built = write_sdist(web / "main", "built", "1.0", own_backend("built", "1.0", needs='"core-ops"'))
    write_index(web / "simple", *strangers, *common, built)
    linked = [
        write_wheel(web / "files", "scatter", BUILT, tag=TAG, requires=("einops",)),
        write_wheel(web / "files", "scatter", BUILT, tag="cp310-cp310-linux_x86_64"),
        write_wheel(web / "files", "knn", "1.0+pt26cu124", tag=TAG),
    ]
    links = "".join(f'<a href="files/{quote(file.name)}">wheel</a><br>' for file in linked)
    (web / "torch-2.6.0.html").write_text(f"<html><body>{links}</body></html>")
    ours = [
        write_wheel(web / "ours", "core_ops", "1.0"),
        write_wheel(web / "ours", "core_app", "1.0", requires=("core-ops", "core-base")),
        write_wheel(web / "ours", "core_base", "1.0"),
    ]
    write_index(web / "own", *ours)
    write_wheel(web / "release/v2", "fast", "2.0+cu12", tag=TAG, requires=("einops", "scatter"))
    write_wheel(web / "release/v2", "fast", "2.0", tag="cp311-cp311-manylinux_2_39_x86_64")
    write_wheel(web / "release/v2", "fast", "2.0", tag="cp39-cp39-linux_x86_64")
    with served(web) as url:
        yield url, web


def means(tmp_path: Path, url: str) -> ResolveContext:
    return make_means(tmp_path, Sources(debian=(), indexes=(f"{url}simple/",)))


def lock(tmp_path: Path, url: str, text: str, prefer: tuple[Artifact, ...] = ()) -> dict[str, Artifact]:
    (tmp_path / "x.yaml").write_text(RECIPE + text.replace("URL/", url))
    recipe = load(tmp_path / "x.yaml")
    context = means(tmp_path, url)
    context.fetcher.know(addresses(recipe, None))
    packages = resolve_wheels(make_task(recipe, context), prefer=prefer).artifacts
    # Each can be fetched from its source alone, as a build on another machine does.
    other = means(tmp_path / "other", url)
    other.fetcher.know(addresses(recipe, None))
    other.fetcher.fetch(packages)
    return {package.name: package for package in packages}


def test_a_wheel_at_an_address_is_locked_with_what_it_requires(
    tmp_path: Path, web: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    url, folder = web
    packages = lock(tmp_path, url, f"packages: [fast @ URL/release/v2/fast-2.0%2Bcu12-{TAG}.whl]\n")
    file = folder / f"release/v2/fast-2.0+cu12-{TAG}.whl"
    fast = packages["fast"]
    assert (fast.version, fast.filename, fast.sha256) == ("2.0+cu12", file.name, sha256_file(file))
    assert fast.source.startswith("url-")
    assert fast.size == file.stat().st_size
    assert {name: package.source for name, package in packages.items() if name != "fast"} == {
        "einops": "pypi", "scatter": "pypi", "setuptools": "pypi",
    }  # fmt: skip
    assert "fast 2.0+cu12 comes from its address in `packages`" in caplog.text


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (f"fast-2.0%2Bcu12-{TAG}.whl#sha256={'1' * 64}", "no source has the file of this sha256"),
        (f"fast-3.0-{TAG}.whl", "404"),
    ],
)
def test_another_file_than_the_stated_one_is_refused_with_its_place(
    tmp_path: Path, web: tuple[str, Path], file: str, named: str
) -> None:
    with pytest.raises(FetchError, match=rf"(?s)x\.yaml:5:12: .*{named}") as caught:
        lock(tmp_path, web[0], f"packages: ['fast @ URL/release/v2/{file}']\n")
    assert caught.value.hint.startswith("check the address, its sha256")


@pytest.mark.parametrize(
    ("tag", "named"),
    [
        ("cp39-cp39-linux_x86_64", "`cp39-cp39`"),
        ("cp311-cp311-manylinux_2_39_x86_64", "`manylinux_2_39_x86_64`"),
    ],
)
def test_a_wheel_for_another_environment_is_refused_by_its_tag(
    tmp_path: Path, web: tuple[str, Path], tag: str, named: str
) -> None:
    with pytest.raises(IncompatibleError) as caught:
        lock(tmp_path, web[0], f"packages: [fast @ URL/release/v2/fast-2.0-{tag}.whl]\n")
    message = f"{tmp_path}/x.yaml:5:12: `fast-2.0-{tag}.whl` is for {named}, and the recipe for Python 3.11"
    assert caught.value.message.startswith(message)


def test_a_wheel_whose_metadata_is_of_another_package_is_refused(
    tmp_path: Path, web: tuple[str, Path]
) -> None:
    url, folder = web
    (tmp_path / "slow-1.0-py3-none-any.whl").write_bytes(
        (folder / "main/fast-9.0-py3-none-any.whl").read_bytes()
    )
    with pytest.raises(IncompatibleError, match=r"holds fast 9\.0, which its name does not say"):
        lock(tmp_path, url, "packages: ['slow @ file:slow-1.0-py3-none-any.whl']\n")


def test_a_changed_wheel_of_the_recipes_folder_makes_the_lock_stale(
    tmp_path: Path, web: tuple[str, Path]
) -> None:
    wheel = write_wheel(tmp_path / "wheels", "mine", "1.0", requires=("einops",))
    text = "packages: ['mine @ file:wheels/mine-1.0-py3-none-any.whl']\n"
    mine = lock(tmp_path, web[0], text)["mine"]
    assert (mine.source, mine.path, mine.sha256) == ("recipe", f"wheels/{wheel.name}", sha256_file(wheel))
    before = load(tmp_path / "x.yaml").digest
    write_wheel(tmp_path / "wheels", "mine", "1.0")
    assert load(tmp_path / "x.yaml").digest != before


def test_a_listed_package_comes_from_its_page_and_no_other_does(
    tmp_path: Path, web: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    text = "packages: [scatter, knn]\nindexes: [{name: pyg, find_links: URL/torch-2.6.0.html, packages: [scatter]}]\n"
    packages = lock(tmp_path, web[0], text)
    scatter = packages["scatter"]
    assert (scatter.source, scatter.path) == ("links-pyg", f"scatter-{BUILT}-{TAG}.whl")
    assert scatter.sha256 == sha256_file(web[1] / f"files/scatter-{BUILT}-{TAG}.whl")
    assert (packages["knn"].source, packages["knn"].version) == ("pypi", "9.0")
    assert re.search(r"scatter \S+ comes from `pyg`: http://127.0.0.1:\d+/torch-2.6.0.html", caplog.text)


def test_a_listed_package_that_another_one_requires_comes_from_its_page(
    tmp_path: Path, web: tuple[str, Path]
) -> None:
    text = "packages: [geometry]\nindexes: [{name: pyg, find_links: URL/torch-2.6.0.html, packages: [Scatter]}]\n"
    assert lock(tmp_path, web[0], text)["scatter"].source == "links-pyg"


def test_names_by_their_beginning_come_from_the_index(tmp_path: Path, web: tuple[str, Path]) -> None:
    text = "packages: [core-app, fast]\nindexes: [{name: corp, url: URL/own, packages: [core-*]}]\n"
    packages = lock(tmp_path, web[0], text)
    assert {name: package.version for name, package in packages.items() if package.source == "index-corp"} == {
        "core-app": "1.0", "core-base": "1.0", "core-ops": "1.0",
    }  # fmt: skip
    assert packages["core-ops"].path == "core-ops/core_ops-1.0-py3-none-any.whl"
    assert packages["fast"].version == "9.0"


def test_a_package_is_not_built_with_a_strangers_package_of_a_listed_name(
    tmp_path: Path, web: tuple[str, Path]
) -> None:
    text = "packages: [core-app, built]\nindexes: [{name: corp, url: URL/own, packages: [core-*]}]\n"
    with pytest.raises(
        IncompatibleError, match="it is built with `core-ops`, which an index of the recipe has"
    ):
        lock(tmp_path, web[0], text)


def test_a_folder_of_wheels_below_the_recipes(tmp_path: Path, web: tuple[str, Path]) -> None:
    write_wheel(tmp_path / "wheels", "scatter", "3.0")
    text = "packages: [scatter]\nindexes: [{name: here, find_links: wheels, packages: [scatter]}]\n"
    scatter = lock(tmp_path, web[0], text)["scatter"]
    assert (scatter.source, scatter.path) == ("recipe", "wheels/scatter-3.0-py3-none-any.whl")


@pytest.mark.parametrize("place", ["url: URL/own", "find_links: URL/torch-2.6.0.html"])
def test_a_package_that_its_index_lacks_comes_from_no_other(
    tmp_path: Path, web: tuple[str, Path], place: str
) -> None:
    text = f"packages: [einops]\nindexes: [{{name: corp, {place}, packages: [einops]}}]\n"
    with pytest.raises(
        IncompatibleError, match=r"x\.yaml:6:11: the index `corp` \(http.*\) has no wheel of `einops`"
    ):
        lock(tmp_path, web[0], text)


def test_an_index_that_cannot_be_read_is_named_with_its_place(tmp_path: Path, web: tuple[str, Path]) -> None:
    text = "packages: [knn]\nindexes: [{name: corp, find_links: URL/none.html, packages: [knn]}]\n"
    with pytest.raises(
        FetchError, match=r"(?s)x\.yaml:6:11: the index `corp` cannot be read.*none\.html.*404"
    ):
        lock(tmp_path, web[0], text)


def test_a_listed_package_that_nothing_requires_is_a_mistake(tmp_path: Path, web: tuple[str, Path]) -> None:
    text = "packages: [scatter]\nindexes: [{name: corp, url: URL/own, packages: [core-*, scater]}]\n"
    with pytest.raises(RecipeError) as caught:
        lock(tmp_path, web[0], text)
    (finding,) = caught.value.findings
    place = (tmp_path / "x.yaml").read_text().splitlines()[5].index("scater") + 1
    assert finding.where == f"{tmp_path}/x.yaml:6:{place}"
    assert finding.hint.startswith("did you mean `scatter`?")


def test_a_version_of_the_lock_so_far_is_kept_without_a_request(
    tmp_path: Path, web: tuple[str, Path]
) -> None:
    text = f"packages: [fast @ URL/release/v2/fast-2.0%2Bcu12-{TAG}.whl]\n"
    before = lock(tmp_path, web[0], text)
    assert lock(tmp_path, web[0], text, prefer=tuple(before.values())) == before


def test_a_printed_text_fetches_each_from_its_source(tmp_path: Path, web: tuple[str, Path]) -> None:
    write_wheel(tmp_path / "wheels", "mine", "1.0")
    text = f"""\
packages: [scatter, core-app, 'mine @ file:wheels/mine-1.0-py3-none-any.whl', fast @ URL/release/v2/fast-2.0%2Bcu12-{TAG}.whl]
indexes:
  - {{name: pyg, find_links: URL/torch-2.6.0.html, packages: [scatter]}}
  - {{name: corp, url: URL/own, packages: [core-*]}}
"""
    wheels = [file for file in lock(tmp_path, web[0], text).values() if file.source != "pypi"]
    assert {file.source.partition("-")[0] for file in wheels} == {"index", "links", "recipe", "url"}
    inputs = tuple((file.filename, file) for file in wheels)
    program = Program(name="x", files=(), interpreter="", root=(), spec="{}\n", inputs=inputs)
    printed = Printed(
        plan=make_plan(), summary="", uv="1", pytorch_index="", labels=(), commits={},
        repositories=addresses(load(tmp_path / "x.yaml"), None),
    )  # fmt: skip
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/fetch_package.py").write_text(steps.text("fetch_package.py"))
    script = "\n".join(["set -eu", WRITE, *fetch(program, printed, below=str(tmp_path))])
    script = script.replace("/steps/", f"{tmp_path}/steps/").replace("/steps/list", f"{tmp_path}/list")
    script = script.replace("/context/", f"{tmp_path}/").replace(f"{tmp_path}{tmp_path}", f"{tmp_path}")
    assert f'cp "{tmp_path}/$path"' in script
    subprocess.run(["bash", "-c", script], check=True, env={"PATH": "/usr/bin:/bin", "no_proxy": "127.0.0.1"})
    for file in wheels:
        assert sha256_file(tmp_path / f"step/inputs/{file.filename}") == file.sha256
