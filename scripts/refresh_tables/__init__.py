"""Read released artifacts and update the tables of torch, CUDA, toolkits and Pythons.

Pages about releases disagree with the releases, so no page is read: wheel names, metadata, headers and the programs
themselves are (a few MB of each wheel, by range requests). Rows stay sorted, a second run changes nothing, no row is ever
dropped, and `overrides.yaml` is a person's.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final, TypeVar

from envbuilder.compat.tables.cuda import load_cudas
from envbuilder.compat.tables.distribution import load_standalones
from envbuilder.compat.tables.table import OVERRIDES, TABLES, version_key
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.compat.tables.torch import COMPANIONS, load_torches
from envbuilder.core.cache import save_text
from envbuilder.core.errors import FetchError
from envbuilder.core.places import Mistakes, load
from envbuilder.core.process import Runner
from envbuilder.core.processor import AARCH64
from envbuilder.sources.fetch.source_client import Index
from scripts.refresh_tables import cuda, standalone, toolkits, torch
from scripts.refresh_tables.rows import Changes, Row, update

TORCH: Final = "torch.yaml"
CUDA: Final = "cuda.yaml"
STANDALONE: Final = "standalone.yaml"
TOOLKITS: Final = "toolkits.yaml"
NEWEST: Final = 5  # releases of torch, and minor versions of CUDA; older rows do not change any more

Found = TypeVar("Found")


def refresh(
    index: Index,
    runner: Runner,
    *,
    today: date,
    releases: int = NEWEST,
    compilers: int = NEWEST,
    folder: Path = TABLES,
    save: bool = True,
) -> Changes:
    """Read the newest releases of torch, compilers and Python, and write the tables in `folder`.

    Writes nothing if it raises FetchError.
    """
    torches, torch_changes = _renew_torch(index, folder / TORCH, releases, today)
    cudas, cuda_changes = _renew_cuda(index, runner, folder / CUDA, compilers, today)
    pythons, python_changes = _renew_standalone(index, folder / STANDALONE, today)
    kits, kit_changes = _renew_toolkits(index, folder / TOOLKITS, compilers, today)
    texts = {TORCH: torches, CUDA: cudas, STANDALONE: pythons, TOOLKITS: kits}
    _check(texts, folder)
    for name, text in texts.items():
        if save and text != (folder / name).read_text(encoding="utf-8"):
            save_text(folder / name, text)
    return torch_changes + cuda_changes + python_changes + kit_changes


def _renew_torch(index: Index, path: Path, count: int, today: date) -> tuple[str, Changes]:
    files = index.files("torch")
    releases, arm = torch.torch_wheels(files), torch.torch_wheels(files, AARCH64)
    rows: list[Row] = []
    with _reading(" and ".join(COMPANIONS)):
        companions = torch.read_companions(index, count)
    for version, wheels in _last(releases, count):
        with _reading(f"torch {version}"):
            fits: Row = {"companions": companions[version]} if version in companions else {}
            more: Row = {AARCH64.machine: torch.read_arm(arm[version], index)} if version in arm else {}
            rows.append({**torch.read_torch(version, wheels, index), **fits, **more})
    file, changes = update(path, "version", rows, sources=torch.SOURCES, today=today)
    return file.text(torch.ORDER), changes + _gone("torch", file.values("version") - releases.keys())


def _renew_cuda(index: Index, runner: Runner, path: Path, count: int, today: date) -> tuple[str, Changes]:
    compilers = cuda.linux_wheels(index.files(cuda.COMPILER))
    headers = cuda.linux_wheels(index.files(cuda.HEADERS))
    toolkits = cuda.linux_wheels(index.files(cuda.TOOLKIT))
    clashes = _clashes(path.with_name(OVERRIDES))
    rows = []
    for minor, version in _last(cuda.by_minor(compilers.keys() & headers.keys()), count):
        wheels = cuda.Wheels(compiler=compilers[version], headers=headers[version], toolkits=toolkits)
        with _reading(f"CUDA {minor}"):
            rows.append(cuda.read_cuda(minor, wheels, index, runner, clashes=clashes))
    file, changes = update(path, "cuda", rows, sources=cuda.SOURCES, today=today)
    known = {str(version) for version in compilers}
    return file.text(cuda.ORDER), changes + _gone("nvcc", file.values("compiler") - known)


def _renew_standalone(index: Index, path: Path, today: date) -> tuple[str, Changes]:
    with _reading("uv"):
        sdist = standalone.newest_sdist(index.files(standalone.PROJECT))
        rows = standalone.read_standalones(index.read(sdist))
    file, changes = update(path, "python", rows, sources=standalone.SOURCES, today=today)
    return file.text(standalone.ORDER), changes


def _renew_toolkits(index: Index, path: Path, count: int, today: date) -> tuple[str, Changes]:
    minors = [
        minor for minor, _ in _last(cuda.by_minor(cuda.linux_wheels(index.files(cuda.COMPILER))), count)
    ]
    return toolkits.renew(path, index, cuda.linux_wheels(index.files(cuda.TOOLKIT)), minors, today)


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Raise FetchError for an artifact that cannot be understood."""
    try:
        yield
    except (ValueError, RecursionError, AssertionError, LookupError, TypeError, SyntaxError) as error:
        hint = "the artifact has a new form: `scripts/refresh_tables` must learn it"
        raise FetchError(f"could not understand {what}: {error}", hint=hint) from error


def _gone(name: str, versions: Iterable[str]) -> Changes:
    return Changes(
        notes=tuple(
            f"{name} {version} is no longer in the index; its row stays"
            for version in sorted(versions, key=version_key)
        )
    )


def _clashes(path: Path) -> tuple[str, ...]:
    """Return the glibc releases that clash with compilers' headers, as `overrides.yaml` lists them."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    found = root.get("glibc_clashes") if root else None
    return tuple(found.value) if found else ()


def _check(texts: Mapping[str, str], folder: Path) -> None:
    """Raise FetchError if the new tables, with the overrides, break their own rules."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        shutil.copy(folder / OVERRIDES, work)
        for name, text in texts.items():
            (work / name).write_text(text, encoding="utf-8")
        try:
            load_torches(work / TORCH)
            load_cudas(work / CUDA)
            load_standalones(work / STANDALONE)
            load_toolkits(work / TOOLKITS)
        except ValueError as error:
            raise FetchError(
                f"the new rows break the tables' rules; nothing was written:\n{error}",
                hint=f"`{OVERRIDES}` corrects what artifacts say wrongly",
            ) from error


def _last(versions: Mapping[str, Found], count: int) -> list[tuple[str, Found]]:
    return list(versions.items())[-count:] if count else []
