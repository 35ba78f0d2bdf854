"""Resolve the packages of conda channels, by the solver of rattler over the lists (`repodata.json`) of the recipe's channels.

The solver is asked for the target: the virtual packages say its C library, its CUDA and its oldest processor, not this machine's.
"""

import logging
from dataclasses import asdict
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final, cast

from packaging.utils import canonicalize_name

from envbuilder.core.cache import Sha256
from envbuilder.core.errors import FetchError, IncompatibleError, ToolError
from envbuilder.core.models import adapter
from envbuilder.core.plain import pasted
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.resolve.context import Task
from envbuilder.recipe.channels import CONDA_BIN
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import ACCESS_HINT, NETWORK_HINT
from envbuilder.sources.http import SourceError
from envbuilder.sources.names import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rattler import GenericVirtualPackage, MatchSpec, RepoDataRecord, SparseRepoData

log = logging.getLogger(__name__)

_LIST: Final = "repodata.json"
_PACKED: Final = f"{_LIST}.zst"
_MOST: Final = 512 << 20  # bytes of a list as it comes; that of conda-forge has 60 MB, and 400 MB unpacked
_MOST_UNPACKED: Final = 4 << 30
_CHUNK: Final = 1 << 20
_NOARCH: Final = "noarch"
_TORCHES: Final = {"pytorch", "libtorch", "pytorch-cpu", "pytorch-gpu"}
_KERNEL: Final = "4.18"  # of EL 8, the oldest system of clusters


def resolve_conda(task: Task, old: Artifacts = ()) -> Artifacts:
    """Return the packages, sorted by name. Those of `old` keep their versions where they fit.

    Raises IncompatibleError if the channels have no set that fits, FetchError, or ToolError without the solver.
    """
    recipe, channels = task.recipe, task.recipe.conda.sources
    if not channels:
        return ()
    import asyncio  # noqa: PLC0415 - 20 ms, for recipes with the key `conda` alone

    try:
        import rattler.exceptions  # noqa: PLC0415 - 60 MB that only recipes with the key `conda` need
        from rattler import BuildString  # noqa: F401, PLC0415 - of the versions that this module knows
    except ImportError as error:
        raise ToolError(
            "the key `conda` of a recipe is solved by the Python package `py-rattler` from 0.28 on, which is not here",
            hint="`pip install 'py-rattler>=0.28'` beside envbuilder; builds from a lock do not need it",
        ) from error
    try:
        specs = [rattler.MatchSpec(spec) for spec in recipe.conda.packages]
    except rattler.exceptions.InvalidMatchSpecError as error:
        place = recipe.place("$.conda.packages")
        raise IncompatibleError(f"{place}: {error}", hint="such as `ffmpeg=6` or `ffmpeg>=6,<8`") from error
    options = task.options
    keep = (
        {}
        if options.is_anew
        else {file.name: file.sha256 for file in old if canonicalize_name(file.name) not in options.moving}
    )
    # Up to the last moment before that day.
    before = (
        datetime.combine(options.before, time(), UTC) - timedelta(milliseconds=1) if options.before else None
    )
    with task.context.transfer("solve the packages of conda", 0), task.context.store.workspace() as work:
        lists = [
            opened
            for number, (source, url) in enumerate(channels.items())
            for opened in _open_lists(task, source, url, work / str(number))
        ]
        locked = [record for name in keep for opened in lists for record in opened.load_records(name)]
        solving = rattler.solve_with_sparse_repodata(
            specs, lists, exclude_newer=before,
            locked_packages=[record for record in locked if record.sha256 and record.sha256.hex() in keep.values()],
            virtual_packages=list(_virtual_packages(task)), timeout=timedelta(seconds=task.context.patience),
        )  # fmt: skip
        try:
            records = asyncio.run(solving)
        except (rattler.exceptions.SolverError, ValueError, OSError) as error:
            # A thread of rattler's still lets go of what it answered. Python aborts if that happens at its end.
            sleep(0.2)
            raise IncompatibleError(
                f"{recipe.place('$.conda.packages')}: no set of packages of the channels fits\n{str(error).rstrip()}",
                hint="loosen a version, or add a channel that has the package; each comes from the first that has its name",
            ) from error
        _say_python(recipe, specs, records)
        packages = tuple(sorted((_artifact(record, task) for record in records), key=lambda file: file.name))
    unknown = sorted(set(recipe.conda.allow_scripts) - {package.name for package in packages})
    if unknown:
        raise IncompatibleError(
            f"{recipe.place('$.conda.allow_scripts')}: no package `{unknown[0]}` is installed by conda",
            hint="leave it out, or write the name of the package whose script may run",
        )
    return packages


def _say_python(recipe: Recipe, specs: "Sequence[MatchSpec]", records: "Sequence[RepoDataRecord]") -> None:
    """Say which Python imports what, as far as a recipe has two. Raises IncompatibleError where one would see two torches."""
    needs = {record.name.normalized: {text.split()[0] for text in record.depends} for record in records}
    python = next((str(record.version) for record in records if record.name.normalized == "python"), "")
    asked = {spec.name.normalized for spec in specs}
    users = sorted(name for name, needed in needs.items() if name in asked and "python" in (name, *needed))
    if recipe.is_seen_by(python):
        torches = needs.keys() & _TORCHES if recipe.pytorch or recipe.keeps_torch else ()
        if torches:
            names = sorted(name for name, needed in needs.items() if needed.intersection(torches)) or sorted(
                torches
            )
            raise IncompatibleError(
                f"{recipe.place('$.conda.packages')}: {', '.join(names)} of conda would come with a torch beside the recipe's, "
                "in one Python",
                hint="what is compiled for one torch does not load with another: compile it as an entry of `extensions`, "
                "or write `pytorch: none` and take torch from conda too",
            )
    elif python and recipe.starts_conda and (recipe.pytorch or recipe.packages):
        log.warning(
            "`python` is the Python %s of conda, which does not import the packages for %s: write `python=%s` under `conda`, and it does",
            python, recipe.python, recipe.python,
        )  # fmt: skip
    elif users and not recipe.starts_conda:
        log.warning(
            "only the Python of conda, `%s/python`, imports %s: write `env: {PATH: \"%s:$PATH\"}` to make it the environment's `python`",
            CONDA_BIN, ", ".join(users), CONDA_BIN,
        )  # fmt: skip


def say_shared(recipe: Recipe, conda: Artifacts, wheels: Artifacts) -> None:
    """Say which packages of conda give way to those of `packages`, where one Python sees both."""
    versions = {canonicalize_name(wheel.name): wheel.version.partition("+")[0] for wheel in wheels}
    is_seen = any(package.name == "python" and recipe.is_seen_by(package.version) for package in conda)
    for package in conda if is_seen else ():
        version = versions.get(canonicalize_name(package.name), package.version)
        if version != package.version:
            log.warning(
                "`python` imports %s %s of `packages`, and not conda's %s",
                package.name,
                version,
                package.version,
            )


def _open_lists(task: Task, source: str, url: str, folder: Path) -> "Iterator[SparseRepoData]":
    """Fetch the lists of a channel for the target's processor and for every one, from the first mirror that has one."""
    from rattler import Channel, SparseRepoData  # noqa: PLC0415 - as above

    absent: list[SourceError] = []
    subdirs = (task.target.processor.conda, _NOARCH)
    for subdir in subdirs:
        refusals: list[SourceError] = []
        for base in (*task.context.sources().mirrors(source), url):
            file = folder / subdir / _LIST
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                _fetch_list(task, f"{base}{subdir}/", file)
                yield SparseRepoData(Channel(url), subdir, file)
                break
            except SourceError as refusal:
                refusals.append(refusal)
            except (OSError, ValueError) as error:
                why = f"it is no list of a channel: {error}"
                refusals.append(SourceError(f"{base}{subdir}/{_LIST}", why, kind="unusable"))
        else:
            absent += refusals
            kinds = {refusal.kind for refusal in refusals}
            # A channel may lack the folder of a processor.
            if kinds != {"gone"} or len(absent) == len(subdirs) * len(refusals):
                mirror = f"`ENVBUILDER_CONDA_MIRRORS={pasted(source.removeprefix(CHANNEL))}=ADDRESS` names a mirror"
                raise FetchError(
                    "\n  ".join([f"could not read the list of packages of `{source}`", *map(str, absent)]),
                    hint=ACCESS_HINT if "refused" in kinds else f"{mirror}; {NETWORK_HINT}",
                )


def _fetch_list(task: Task, base: str, file: Path) -> None:
    """Write a channel's list of one processor, which most channels have packed too."""
    fetcher = task.context.fetcher
    try:
        packed = fetcher.page(base + _PACKED, most=_MOST)
    except SourceError as refusal:
        if refusal.kind != "gone":
            raise
        file.write_bytes(fetcher.page(base + _LIST, most=_MOST))
        return
    import zstandard  # noqa: PLC0415 - for recipes with `conda` alone

    left = _MOST_UNPACKED
    try:
        with (
            file.open("wb") as out,
            zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream,
        ):
            while chunk := stream.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise ValueError(f"it unpacks to more than {_MOST_UNPACKED} bytes")
                out.write(chunk)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _virtual_packages(task: Task) -> "Iterator[GenericVirtualPackage]":
    """Yield what the target has beside its packages, as conda names it."""
    from rattler import BuildString, GenericVirtualPackage, PackageName  # noqa: PLC0415 - as above
    from rattler import Version as CondaVersion  # noqa: PLC0415

    processor = task.target.processor
    values = {
        "__unix": ("0", "0"), "__linux": (_KERNEL, "0"), "__glibc": (task.target.distribution.glibc, "0"),
        "__archspec": ("1", processor.machine), "__cuda": (task.recipe.cuda_minor, "0"),
    }  # fmt: skip
    for name, (version, build) in values.items():
        if version:
            yield GenericVirtualPackage(PackageName(name), CondaVersion(version), BuildString(build))


def _artifact(record: "RepoDataRecord", task: Task) -> Artifact:
    """Return a solved package as an entry of the lock. Raises FetchError where its list leaves out what a lock needs."""
    channels = task.recipe.conda.sources.items()
    source, url = next(((source, url) for source, url in channels if record.url.startswith(url)), ("", ""))
    if not source or not record.sha256:
        what = "its sha256" if source else "an address below the channel's own"
        raise FetchError(
            f"the list of the channel does not give {what} for `{record.file_name}`",
            hint="take another version of it, or another channel",
        )
    artifact = Artifact(
        kind="conda", name=record.name.normalized, version=str(record.version), sha256=Sha256(record.sha256.hex()),
        size=record.size or task.context.fetcher.measure([record.url])[0], source=source, path=record.url.removeprefix(url),
    )  # fmt: skip
    try:
        return cast("Artifact", adapter(Artifact).validate_python(asdict(artifact)))
    except ValueError as error:
        raise FetchError(
            f"the list of the channel gives a name that no lock can hold: {artifact.path[:100]!r}"
        ) from error
