"""Each package of `cuda_packages.yaml` by its name alone: `lock` takes a wheel of its project, compiles its sources, or says why not.

The pages, indexes and releases lie on loopback, at the addresses that the table names.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from envbuilder.compat.check import examine, load_tables
from envbuilder.compat.repositories import addresses
from envbuilder.compat.tables.cuda import CudaPackage, load_cuda_packages
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import EnvbuilderError, IncompatibleError
from envbuilder.lock.changes import check_fresh
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.model import Lock
from envbuilder.lock.resolve import lock_best
from envbuilder.lock.resolve.chosen import PackageChoices
from envbuilder.lock.resolve.context import Task
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.wheel_sources import wheel_of
from envbuilder.sources.http import session as wire
from envbuilder.sources.names import Sources
from tests.support.locks import RECIPE, make_means, make_recipe, make_task
from tests.support.package_sources import world, write_index, write_wheel
from tests.support.sdists import setup_only, write_sdist
from tests.support.serving import served

__all__ = ["world"]
ROWS = load_cuda_packages().by_name
TORCH, BUILD, TAG = "2.6.0", "cu124", "cp311-cp311-linux_x86_64"
CLOSED = "http://127.0.0.1:1/"
LOCALS = {  # of the wheels whose names say for which torch they are
    "causal-conv1d": "cu12torch2.6cxx11abiFALSE", "flash-attn": "cu12torch2.6cxx11abiFALSE",
    "mamba-ssm": "cu12torch2.6cxx11abiFALSE", "natten": "torch260cu124",
}  # fmt: skip
OTHERS = {name: local.replace("2.6", "2.5").replace("260", "250") for name, local in LOCALS.items()}
CHOSEN = sorted(name for name, row in ROWS.items() if row.is_chosen)
# What becomes of the others.
RESOLVED = {"bitsandbytes", "fbgemm-gpu", "sgl-kernel", "spconv", "transformer-engine", "xformers"}
REFUSED = {
    "apex", "diff-gaussian-rasterization", "nvdiffrast", "pytorch3d", "simple-knn", "tiny-cuda-nn", "tinycudann", "torchsparse",
}  # fmt: skip
# The projects of these have wheels, and no source distribution is theirs.
UNBUILT = {"detectron2", "dgl", "flashinfer-jit-cache", "kaolin", "pyg-lib"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again without a pause."""
    monkeypatch.setattr(wire, "PAUSES", (0.0,))


def moved(row: CudaPackage, web: str) -> CudaPackage:
    """Return the row with the addresses of loopback."""

    def move(address: str) -> str:
        return address.replace("https://", web)

    places = {"pages": tuple(map(move, row.pages)), "urls": tuple(map(move, row.urls))}
    return replace(row, **places, releases=move(row.releases))


def publish(web: Path, row: CudaPackage, url: str, *, local: str = "") -> Path | None:
    """Write the wheels where the row names them: one that fits, and others beside it. Returns the one that fits."""
    name, own = row.package.replace("-", "_"), local or LOCALS.get(row.package, "")
    version = "2.0" + (f"+{own}" if own else "")
    files, other = web / "files", OTHERS.get(row.package, "")
    fits = write_wheel(files, name, version, tag=TAG)
    every = [fits, write_wheel(files, name, version, tag="cp310-cp310-linux_x86_64")]
    every += [write_wheel(files, name, f"3.0+{other}", tag=TAG)] if other else []
    every += [write_wheel(files, name, "3.0", tag=TAG.replace("linux", "win"))]
    for address, is_page in row.addresses(TORCH, BUILD):
        place = web / address.removeprefix("https://").strip("/")
        if is_page:
            file = place if place.suffix == ".html" else place / "index.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as page:  # several projects share one
                page.write("".join(f'<a href="{url}files/{quote(wheel.name)}">x</a>' for wheel in every))
        else:
            write_index(place, *every)
    if row.releases:
        file = web / row.releases.format(version="2.0").removeprefix("https://")
        file.parent.mkdir(parents=True, exist_ok=True)
        assets = [
            {"name": wheel.name, "browser_download_url": f"{url}files/{quote(wheel.name)}", "digest": f"sha256:{sha256_file(wheel)}"}
            for wheel in every
        ]  # fmt: skip
        file.write_text(json.dumps({"assets": [*assets, {"name": "notes.txt", "browser_download_url": url}]}))
    return fits if row.pages or row.urls or row.releases else None


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The web: a package index with the sources of each package that can be compiled, and what projects publish beside it."""
    folder = tmp_path_factory.mktemp("web")
    with served(folder) as url:
        for row in ROWS.values():
            if row.build:
                sdist = write_sdist(folder / "sdists", row.package.replace("-", "_"), "2.0", {"setup.py": ""})
                write_index(folder / "simple", sdist)
            publish(folder, row, url)
        yield url, folder


def open_task(tmp_path: Path, url: str, package: str, **change: object) -> Task:
    recipe = replace(RECIPE, path=tmp_path / "x.yaml", packages=(package,), **change)
    return make_task(recipe, make_means(tmp_path, Sources(debian=(), indexes=(f"{url}simple/",))))


def choose(task: Task, url: str, old: Lock | None = None) -> PackageChoices:
    return PackageChoices(task, old, {name: moved(row, url) for name, row in ROWS.items()})


def test_the_table_is_whole() -> None:
    assert {*CHOSEN, *RESOLVED, *REFUSED} == set(ROWS)
    assert {name for name in CHOSEN if not ROWS[name].build} == UNBUILT


@pytest.mark.parametrize("name", CHOSEN)
def test_a_wheel_that_its_project_publishes_is_taken(
    name: str, tmp_path: Path, web: tuple[str, Path]
) -> None:
    url, folder = web
    choices = choose(open_task(tmp_path, url, name), url)
    chosen = choices.locked()
    if not (ROWS[name].pages or ROWS[name].urls or ROWS[name].releases):
        assert [entry.extension for entry in chosen] == [name.replace("-", "_")]
        return
    ((entry, wheel),) = [(entry, wheel_of(entry.wheel)) for entry in chosen]
    assert wheel is not None
    assert (wheel.version.partition("+")[0], wheel.filename.endswith(f"{TAG}.whl")) == ("2.0", True)
    assert (folder / "files" / wheel.filename).is_file()
    assert f"1 of {4 if name in OTHERS else 3} wheels for torch 2.6.0, cu124 and Python 3.11" in entry.why
    assert choices.settled().requirements == (entry.wheel,)
    assert addresses(choices.settled(), None)[wheel.source] == f"{url}files/"


@pytest.mark.parametrize("name", sorted(set(CHOSEN) - UNBUILT))
def test_without_a_wheel_that_fits_its_sources_are_compiled(
    name: str, tmp_path: Path, web: tuple[str, Path]
) -> None:
    url, _ = web
    task = open_task(tmp_path, url, f"{name}>=1", python="3.12")
    choices = choose(task, url)
    (entry,) = choices.locked()
    build = ROWS[name].build
    assert build is not None
    (extension,) = choices.settled().implied
    assert extension.sdist == f"{name.replace('-', '_')}==2.0"
    assert dict(extension.env).keys() == build.env.keys()
    assert not any("{" in value for _, value in extension.env)
    assert choices.settled().requirements == (f"{name}>=1", *build.needs)
    assert "compiled from its sources, 2.0" in entry.why
    assert not ROWS[name].pages or "none of 3 wheels" in entry.why or "none of 4 wheels" in entry.why


@pytest.mark.parametrize("name", sorted(UNBUILT))
def test_a_package_that_cannot_be_compiled_is_refused_or_left_to_the_index(
    name: str, tmp_path: Path, web: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    url, row = web[0], ROWS[name]
    task = open_task(tmp_path, url, name, python="3.12")
    if not row.wrong:
        choices = choose(task, url)
        choices.say()
        assert choices.locked() == ()
        assert (
            "dgl is what the package index has: the wheel of the package index is for the CPU ("
            in caplog.text
        )
        return
    with pytest.raises(IncompatibleError) as caught:
        choose(task, url)
    (finding,) = caught.value.findings
    assert (finding.code, finding.message.startswith(row.wrong)) == ("EB356", True)
    assert "none of 3 wheels" in finding.message
    assert "https://github.com/" in finding.hint
    assert not any(address in finding.hint for address, _ in row.addresses(TORCH, BUILD)), "it was looked at"


def test_the_folder_of_a_repository_that_is_built_is_in_the_advice() -> None:
    assert "cuda-nn, commit: COMMIT, path: bindings/torch}]` compiles it" in ROWS["tinycudann"].advice()
    assert "path:" not in ROWS["nvdiffrast"].advice()


@pytest.mark.parametrize("name", sorted(REFUSED | RESOLVED))
def test_a_package_that_nothing_is_chosen_for_is_refused_or_resolved_as_any(
    name: str, tmp_path: Path
) -> None:
    task = open_task(tmp_path, CLOSED, name)
    assert choose(task, CLOSED).locked() == ()
    codes = {finding.code for finding in examine(task.recipe, load_tables()).findings}
    assert ("EB356" in codes) == (name in REFUSED)


def test_where_no_page_answers_its_sources_are_compiled_and_the_reason_said(
    tmp_path: Path, web: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    task = open_task(tmp_path, web[0], "flash-attn")
    choices = choose(task, CLOSED)
    choices.say()
    assert [entry.extension for entry in choices.locked()] == ["flash_attn"]
    assert "flash-attn is compiled from its sources, 2.0 (http://127.0.0.1:1/api.github.com/" in caplog.text
    assert "the connection was refused" in caplog.text


def test_an_address_that_holds_no_release_is_named(tmp_path: Path, web: tuple[str, Path]) -> None:
    url, folder = web
    task = open_task(tmp_path, url, "mamba-ssm==7")
    file = folder / ROWS["mamba-ssm"].releases.format(version="7").removeprefix("https://")
    file.write_text("[]")
    (entry,) = choose(task, url).locked()
    assert "v7: what it sends is no release of GitHub's API" in entry.why
    file.unlink()
    (entry,) = choose(task, url).locked()
    assert "not found (404)" in entry.why


def test_a_folder_of_wheels_is_looked_at_first(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "flash_attn", "2.0+cu12torch2.6cxx11abiTRUE", tag=TAG)
    write_wheel(tmp_path / "wheels", "flash_attn", "2.0+cu12torch2.6cxx11abiFALSE", tag=TAG)
    task = open_task(tmp_path, CLOSED, "flash-attn<3 ; python_version > '3'")
    sources = replace(task.context.sources(), folders=(tmp_path / "wheels",))
    choices = choose(replace(task, context=replace(task.context, sources=lambda: sources)), CLOSED)
    (entry,) = choices.locked()
    pin, _, marker = entry.wheel.partition(";")
    assert pin.strip() == "flash-attn==2.0+cu12torch2.6cxx11abifalse", "torch's own C++ ABI first"
    assert marker.strip() == 'python_version > "3"'


def test_what_a_capture_imports_is_no_extension_itself(tmp_path: Path) -> None:
    """Extensions are compiled before any of them is in the environment."""
    ops = Extension(name="ds_ops", deepspeed=("cpu_adam",)).as_capture
    for extensions, count in (((), 1), ((ops,), 0)):
        task = open_task(tmp_path, CLOSED, "deepspeed==0.19.8", extensions=extensions)
        assert len(choose(task, CLOSED).locked()) == count


def test_nothing_asks_for_cuda_where_there_are_no_gpus() -> None:
    build = ROWS["deepspeed"].build
    assert build
    assert dict(build.extension("deepspeed", "0.19.8", ("8.0",)).env)["DS_ACCELERATOR"] == "cuda"
    assert build.extension("deepspeed", "0.19.8", ()).env == ()


# ---- the whole lock


def scatter(
    tmp_path: Path, world: Sources, url: str, **change: object
) -> tuple[Task, dict[str, CudaPackage]]:
    recipe = make_recipe(tmp_path, packages=("torch-scatter",), **change)
    context = make_means(tmp_path, replace(world, indexes=(*world.indexes, f"{url}simple/")))
    return make_task(recipe, context), {"torch-scatter": moved(ROWS["torch-scatter"], url)}


@pytest.fixture
def pyg(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "pyg"
    files = setup_only("torch-scatter", "2.0")
    write_index(folder / "simple", write_sdist(folder / "sdists", "torch_scatter", "2.0", files))
    with served(folder) as url:
        yield url, folder


def write_page(folder: Path, url: str, *wheels: Path) -> None:
    page = folder / "data.pyg.org/whl/torch-2.13.0+cpu.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("".join(f'<a href="{url}files/{quote(wheel.name)}">x</a>' for wheel in wheels))


@pytest.mark.programs
def test_a_wheel_that_is_refused_gives_way_to_the_next_and_then_to_a_build(
    tmp_path: Path, world: Sources, pyg: tuple[str, Path]
) -> None:
    url, folder = pyg
    wrong = write_wheel(folder / "files", "torch_scatter", "2.2+pt213cpu", tag=TAG, requires=("torch==2.12",))
    right = write_wheel(folder / "files", "torch_scatter", "2.1+pt213cpu", tag=TAG)
    write_page(folder, url, wrong, right)
    task, rows = scatter(tmp_path, world, url)
    refused: list[str] = []

    def judge(_: Task, lock: Lock) -> None:
        if refused and any(wheel.filename == right.name for wheel in lock.wheels):
            raise IncompatibleError(f"{right.name} cannot be loaded")

    lock = lock_best(task, None, judge, rows)
    (entry,) = lock.chosen
    assert entry.wheel.endswith(f"{url}files/{quote(right.name)}")
    assert f"`{wrong.name}` does not fit: no set of packages" in entry.why
    assert "torch==2.12" in entry.why, "what excludes it is said"
    assert {"torch-scatter", "torch"} <= {wheel.name for wheel in lock.wheels}
    assert parse_lock(lock_text(lock), "x.lock") == lock
    refused.append("from now on")
    built = lock_best(task, None, judge, rows)
    assert [entry.extension for entry in built.chosen] == ["torch_scatter"]
    (extension,) = built.extensions
    assert (extension.sdist, extension.env) == ("torch_scatter==2.0", ()), "there is no CUDA in it"
    assert "torch-scatter" not in {wheel.name for wheel in built.wheels}
    # Nothing is asked for again while nothing changed, and the lock fits its recipe.
    assert check_fresh(task.recipe, built, {}) == ()
    write_page(folder, url, right)
    refused.clear()
    assert lock_best(task, built, judge, rows) == built
    more = replace(task, recipe=replace(task.recipe, packages=("torch-scatter", "numpy")))
    assert lock_best(more, built, judge, rows).chosen == built.chosen
    anew = replace(task, options=replace(task.options, upgrade=True))
    assert [entry.extension for entry in lock_best(anew, built, judge, rows).chosen] == [""]
    only = replace(task, options=replace(task.options, upgrade_only=("torch-scatter",)))
    upgraded = lock_best(only, built, judge, rows)
    assert [entry.extension for entry in upgraded.chosen] == [""]
    assert "torch-scatter" in {wheel.name for wheel in upgraded.wheels}


def test_an_error_of_another_package_is_not_taken_for_a_wheels(tmp_path: Path, web: tuple[str, Path]) -> None:
    choices = choose(open_task(tmp_path, web[0], "flash-attn"), web[0])
    before = choices.locked()
    assert not choices.refuse(EnvbuilderError("numpy 3 is not there"))
    assert choices.locked() == before
