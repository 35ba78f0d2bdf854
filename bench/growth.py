"""Rows that do the same job with some numbers of synthetic packages, extensions or recipes."""

import base64
import contextlib
import dataclasses
import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from jobs import OURS, Way
from measure import ENVBUILDER
from place import CACHE, NO_ENGINE, RECIPE, Place

from envbuilder.core.cache import Sha256, Store, save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, LockedExtension, recipe_inputs
from envbuilder.lock.source_files import own_files
from envbuilder.recipe.load import load
from tests.support.tiny import make_tiny  # of the end-to-end tests

AMOUNTS: Final = (1, 4, 16)
PACKAGES: Final = (1, 20, 200)
FILES: Final = 40  # of one package
# The source includes nothing of torch, so only envbuilder's part and the start of torch's `load()` grow.
SOURCE: Final = """\
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME"};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
"""


def _ways(
    place: Place,
    cache: Path,
    names: Callable[[int], list[str]],
    recipes: Path,
    numbers: Sequence[int] = AMOUNTS,
) -> list[Way]:
    """Make a way for each amount: a build in a copy of `cache`."""
    out, fresh = place.work / "grown", place.work / "grown-cache"

    def before() -> None:
        shutil.rmtree(out, ignore_errors=True)
        place.cache_of(cache, fresh.name)

    command = (ENVBUILDER, "build", "--offline", "--recipes", recipes, "--output", out)
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(fresh)}
    return [
        Way(tool=f"{OURS}, n = {amount}", commands=((*command, *names(amount)),), before=before, env=env, result=out)
        for amount in numbers
    ]  # fmt: skip


def _cache_with(place: Place, *needed: Artifact) -> Path:
    """Make a cache of the benchmark with these artifacts."""
    folder = place.work / "growth-cache"
    if not folder.exists():
        folder.mkdir(mode=0o700)
    store = Store(folder)
    for one in needed:
        if not store.artifact(one.sha256).exists():
            store.add_artifact(one.sha256, Store(CACHE).artifact(one.sha256))
    return folder


def _build(place: Place, cache: Path, recipes: Path, name: str) -> None:
    """Build once, so that the cache has the layers that do not grow."""
    place.prepare(
        ENVBUILDER, "build", name, "--offline", "--recipes", recipes, "--output", place.folder("grown"),
        env=NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)},
    )  # fmt: skip


@contextlib.contextmanager
def packages(place: Place) -> Iterator[list[Way]]:
    folder = place.folder("growth/packages")
    path, lock = make_tiny(folder, "with-0", ("filelock",))
    cache = _cache_with(place, *lock.debs, *lock.wheels)
    _build(place, cache, folder, path.stem)
    store = Store(cache)
    for amount in PACKAGES:
        made = tuple(_package(f"grown-{number:03}", store) for number in range(amount))
        path, lock = make_tiny(folder, f"with-{amount}", ("filelock",))
        wheels = tuple(sorted((*lock.wheels, *made), key=lambda one: one.name))
        save_text(path.with_suffix(".lock"), lock_text(dataclasses.replace(lock, wheels=wheels)))
    yield _ways(place, cache, lambda amount: [f"with-{amount}"], folder, PACKAGES)
    shutil.rmtree(cache)


def _package(name: str, store: Store) -> Artifact:
    """Put a pure Python wheel into the store."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {f"{module}/part{number}.py": _code(number) for number in range(FILES)}
    files |= {
        f"{module}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},{_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    content = packed.getvalue()
    digest = Sha256(hashlib.sha256(content).hexdigest())
    target = store.artifact(digest)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.write_bytes(content)
    return Artifact(
        kind="wheel", name=name, version="1.0", sha256=digest, size=len(content), source="pypi",
        path=f"{name}/{module}-1.0-py3-none-any.whl",
    )  # fmt: skip


def _code(number: int) -> str:
    return "".join(
        f"def function_{number}_{line}(value):\n    return value + {line}\n\n\n" for line in range(60)
    )


def _digest(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@contextlib.contextmanager
def extensions(place: Place) -> Iterator[list[Way]]:
    folder = place.folder("growth/extensions")
    for amount in AMOUNTS:
        write_extensions(place, folder, amount)
    _ = place.built  # the layers below the extensions are in the user's cache
    yield _ways(place, CACHE, lambda amount: [f"with-{amount}"], folder)


def write_extensions(place: Place, folder: Path, amount: int) -> Path:
    """Write a recipe and its lock: `cpu` with so many synthetic extensions."""
    cpu = (place.recipes / f"{RECIPE}.yaml").read_text()
    head = cpu[: cpu.index("\nextensions:")]
    names = [f"grown{number:02}" for number in range(amount)]
    text = "".join(f"  - {{name: {name}, sources: [{name}.cpp]}}\n" for name in names)
    for name in names:
        (folder / f"{name}.cpp").write_text(SOURCE.replace("NAME", name))
    path = folder / f"with-{amount}.yaml"
    path.write_text(f"{head}\nextensions:\n{text}")
    recipe = load(path)
    locked = tuple(
        LockedExtension(
            name=name, sources=(f"{name}.cpp",), include=(), cflags=(), cuda_cflags=(), files=files
        )
        for name, files in own_files(recipe).items()
    )
    lock = load_lock(place.recipes / f"{RECIPE}.lock")
    new = dataclasses.replace(lock, recipe=recipe.digest, inputs=recipe_inputs(recipe), extensions=locked)
    save_text(path.with_suffix(".lock"), lock_text(new))
    return path


@contextlib.contextmanager
def recipes(place: Place) -> Iterator[list[Way]]:
    folder = place.folder("growth/recipes")
    _, lock = make_tiny(folder, "tiny-00")
    cache = _cache_with(place, *lock.debs, *lock.wheels)
    for number in range(max(AMOUNTS)):
        make_tiny(folder, f"recipe-{number:02}")
    _build(place, cache, folder, "tiny-00")
    yield _ways(place, cache, lambda amount: [f"recipe-{number:02}" for number in range(amount)], folder)
    shutil.rmtree(cache)
