"""Choose where a package with CUDA code comes from that `packages` names alone: a wheel that fits, otherwise a build of its sources.

The table `cuda_packages.yaml` knows where each project publishes wheels, and what the build of its sources needs. A wheel whose name
fits is a candidate. `lock_recipe` locks with the best of them, and asks for the next one where it is refused: by its tags, by what it
requires, or by the judge of what is compiled. Each choice says what was looked at.
"""

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuilder.compat.context import CheckCode, load_tables, make_context
from envbuilder.compat.tables.cuda import CudaPackage, capabilities
from envbuilder.core.budget import parse_json
from envbuilder.core.errors import EnvbuilderError, FetchError, IncompatibleError
from envbuilder.core.findings import Finding
from envbuilder.lock.candidates import TORCH
from envbuilder.lock.model import Chosen, Lock, recipe_inputs
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import applies
from envbuilder.lock.resolve.sdists import SUFFIXES, open_index, sdist_version
from envbuilder.lock.resolve.uv_files import target_tags
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.packages import build_of
from envbuilder.recipe.wheel_sources import ADDRESS, index_of, wheel_of
from envbuilder.sources.http import RequestLimits, SourceError
from envbuilder.sources.names import shown

if TYPE_CHECKING:
    from envbuilder.sources.fetch.source_client import Index, Listed

log = logging.getLogger(__name__)
# Another place, or a build, serves as well.
_LIMITS: Final = RequestLimits(window=10.0, answer=30.0, wait=5.0)
# Of a project, the newest first, that are looked at: GitHub answers an address 60 times an hour.
_RELEASES: Final = 6
_WHEELS: Final = 3  # that are tried
_IMPORTED: Final = re.compile(r"\b(?:from|import) (\w+)")
# What excludes a package, in uv's words.
_BECAUSE: Final = re.compile(r"cause: Because (.+?), we can conclude")
_Rank = tuple[Version, bool, int]  # of a wheel: the greatest is the best
_File = tuple[str, str, str]  # name, address, sha256; without an address, an index or a folder has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to have a package: a wheel, a build, or, with neither, what the resolver finds."""

    title: str
    wheel: str = ""  # the requirement
    filename: str = ""
    extension: Extension | None = None
    needs: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class PackageChoice:
    """The candidates for one package, the best first, and what was looked at for them."""

    row: CudaPackage
    requirement: Requirement
    where: str  # its place in the recipe
    candidates: list[Candidate] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    kept: Chosen | None = None  # of the old lock, while it is the first candidate

    @property
    def name(self) -> str:
        return self.row.package

    @property
    def why(self) -> str:
        best = self.candidates[0]
        return f"{self.name} is {best.title} ({'; '.join(self.looked) or 'its project publishes no wheels'})"

    def locked(self) -> Chosen | None:
        """Return what the lock says of it, None where the resolver chooses."""
        best = self.candidates[0]
        if self.kept or not (best.wheel or best.extension):
            return self.kept
        extension = best.extension.name if best.extension else ""
        return Chosen(name=self.name, wheel=best.wheel, extension=extension, needs=best.needs, why=self.why)


class PackageChoices:
    """The choices of one run of `lock`. `rows` are those of the table, by package."""

    def __init__(self, task: Task, old: Lock | None, rows: Mapping[str, CudaPackage]) -> None:
        self._task, self._old = task, old
        recipe = task.recipe
        taken = {canonicalize_name(extension.name) for extension in recipe.extensions}
        # What a capture imports must be in the environment before any extension is.
        lines = (line for extension in recipe.extensions for line in extension.capture)
        taken |= {canonicalize_name(name) for line in lines for name in _IMPORTED.findall(line)}
        self._choices: list[PackageChoice] = []
        for at, text in enumerate(recipe.packages):
            requirement = Requirement(text)
            row = rows.get(canonicalize_name(requirement.name))
            is_ours = row and row.is_chosen and not requirement.url and row.package not in taken
            is_free = recipe.pytorch and applies(requirement, recipe.python, task.target.processor)
            if row and is_ours and is_free and index_of(row.package, recipe.indexes) is None:
                where = recipe.place(f"$.packages[{at}]")
                self._choices.append(PackageChoice(row=row, requirement=requirement, where=where))
        for choice in self._choices:
            if not self._keep(choice):
                self._look(choice)

    def settled(self) -> Recipe:
        """Return the recipe with the best candidates."""
        best = [choice.candidates[0] for choice in self._choices]
        texts = tuple(text for each in best for text in (each.wheel, *each.needs) if text)
        builds = tuple(each.extension for each in best if each.extension)
        return replace(self._task.recipe, chosen=texts, implied=builds)

    def locked(self) -> tuple[Chosen, ...]:
        entries = filter(None, (choice.locked() for choice in self._choices))
        return tuple(sorted(entries, key=lambda entry: entry.name))

    def say(self) -> None:
        """Say, in a line each, what was chosen now and why."""
        for choice in self._choices:
            if choice.kept is None:
                log.warning("%s", choice.why)

    def refuse(self, error: EnvbuilderError) -> bool:
        """Return whether there is a next candidate in place of the one that an error names."""
        text = "\n".join(
            [error.message, *(f"{finding.where} {finding.message}" for finding in error.findings)]
        )
        for choice in self._choices:
            best = choice.candidates[0]
            if not any(name and name in text for name in (best.filename, choice.name)):
                continue
            if choice.kept:
                choice.kept = None
                self._look(choice)
                return True
            if len(choice.candidates) > 1:
                del choice.candidates[0]
                reason = (error.findings[0].message if error.findings else error.message).partition("\n")[0]
                if because := _BECAUSE.search(error.message):
                    reason += f": {because[1]}".replace("+envbuilder", "")
                name = f"`{best.filename}`" if best.filename else best.title
                choice.looked.append(f"{name} does not fit: {reason}")
                return True
        return False

    # ---- the candidates

    def _keep(self, choice: PackageChoice) -> bool:
        """Keep what the old lock has, where the same torch and the requirement still want it."""
        old, options = self._old, self._task.options
        kept = next((each for each in old.chosen if each.name == choice.name), None) if old else None
        if old is None or kept is None or options.is_anew or choice.name in options.moving:
            return False
        torches = {wheel.version.partition("+")[0] for wheel in old.wheels if wheel.name == TORCH}
        builds = {each.name: each for each in old.settle(self._task.recipe).implied}
        extension = builds.get(kept.extension)
        wheel = wheel_of(kept.wheel)
        pins = extension.sdist if extension else kept.wheel
        version = wheel.version if wheel else pins.partition(";")[0].partition("==")[2].strip()
        is_same = old.inputs.wheels == recipe_inputs(self._task.recipe).wheels or torches == {
            self._task.recipe.pytorch
        }
        if not (version and is_same and _allows(choice.requirement.specifier, Version(version))):
            return False
        filename = wheel.filename if wheel else ""
        if filename and self._rank(filename, choice) is None:
            return False
        choice.kept = kept
        choice.candidates = [
            Candidate(
                title=kept.why, wheel=kept.wheel, filename=filename, extension=extension, needs=kept.needs
            )
        ]
        return True

    def _look(self, choice: PackageChoice) -> None:
        """Find the candidates. Raises IncompatibleError where there is none and the index has another project under the name."""
        row, choice.candidates = choice.row, []
        wheels = list(self._in_folders(choice))
        if not wheels and self._task.options.before is None:
            wheels = [*self._on_pages(choice), *self._in_releases(choice)]
        elif not wheels:
            choice.looked.append(
                "no page and no release says since when it has a wheel: `--before` looks at none"
            )
        wheels = wheels or list(self._in_index(choice))
        choice.candidates = [
            candidate for _, candidate in sorted(wheels, key=lambda pair: pair[0], reverse=True)
        ][:_WHEELS]
        if build := row.build:
            choice.candidates += (
                Candidate(
                    title=f"compiled from its sources, {version}", needs=build.needs,
                    extension=build.extension(row.package, version, self._capabilities()),
                )
                for version in self._buildable(choice)
            )  # fmt: skip
        if choice.candidates:
            return
        looked = "; ".join(choice.looked)
        if row.wrong:
            message = f"{row.wrong}, and no wheel of its project fits: {looked}"
            hint = row.advice(is_seen=True)
            finding = Finding(code=CheckCode.OTHER_PROJECT, where=choice.where, message=message, hint=hint)
            raise IncompatibleError(
                f"no package fits `{choice.requirement}` of the recipe", hint=hint, findings=(finding,)
            )
        choice.candidates.append(
            Candidate(title=f"what the package index has{f': {row.says}' if row.says else ''}")
        )

    def _capabilities(self) -> tuple[str, ...]:
        return capabilities(self._task.recipe.gpus, load_tables().gpus.rows)

    @cached_property
    def _build(self) -> str:
        """The build of torch that is locked: cu124."""
        target = self._task.target
        build = make_context(self._task.recipe, load_tables(), base=target.inside).build
        return build.name if build else build_of(self._task.recipe.cuda)

    @cached_property
    def _index(self) -> "Index":
        return open_index(self._task.context, _LIMITS)

    def _listing(self, choice: PackageChoice) -> "tuple[Listed, ...]":
        """Return the files of the package index, as far as `--before` takes them."""
        before = self._task.options.before
        try:
            files = self._index.files(choice.name)
        except FetchError as error:
            if not any("package index" in line for line in choice.looked):
                choice.looked.append(f"the package index: {error.message}")
            return ()
        days = (f"{before}",) if before else ()
        return tuple(file for file in files if not file.yanked and all(file.uploaded < day for day in days))

    def _versions(self, choice: PackageChoice) -> list[Version]:
        """Return the versions of the source distributions that may be taken, the newest first."""
        names = [file.filename for file in self._listing(choice)]
        for folder in self._task.context.sources().folders:
            names += [path.name for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")]
        bounds = choice.requirement.specifier
        every = filter(None, (sdist_version(name, choice.name) for name in names))
        versions = {version for version in every if _allows(bounds, version)}
        exact = [bound.version for bound in bounds if bound.operator in ("==", "===")]
        versions |= {Version(text) for text in exact if not text.endswith("*")}
        return sorted(versions, reverse=True)

    def _buildable(self, choice: PackageChoice) -> list[str]:
        """Return the versions to compile: that of the old lock if it may stay, then the newest."""
        versions = [str(version) for version in self._versions(choice)]
        if not versions:
            choice.looked.append("no source distribution of it was seen")
        old = {extension.sdist for extension in self._old.extensions} if self._old else set()
        if self._task.options.is_anew or choice.name in self._task.options.moving:
            old = set()
        stem = choice.name.replace("-", "_")
        return sorted(versions, key=lambda text: f"{stem}=={text}" not in old)[:_RELEASES]

    def _rank(self, filename: str, choice: PackageChoice) -> _Rank | None:
        """Return the order of a wheel among those that fit by their names, the best first; None for another one."""
        recipe, target = self._task.recipe, self._task.target
        try:
            name, version, _, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        order = [tag for tag in self._tags if tag in tags]
        is_pure = all(tag.platform == "any" for tag in tags)  # without compiled code
        if name != choice.name or not order or is_pure or not _allows(choice.requirement.specifier, version):
            return None
        if not choice.row.is_for(version.local or "", recipe.pytorch, self._build):
            return None
        abi = f"cxx11abi{target.torch.cxx11_abi}".lower() if target.torch else ""
        return Version(version.public), abi in (version.local or ""), -self._tags.index(order[0])

    @cached_property
    def _tags(self) -> tuple[Tag, ...]:
        target = self._task.target
        return target_tags(self._task.recipe.python, target.distribution.glibc, target.processor)

    def _fitting(
        self, files: Iterable[_File], choice: PackageChoice, where: str
    ) -> Iterator[tuple[_Rank, Candidate]]:
        """Yield the files (name, address, sha256) that fit by their names, and note what was looked at."""
        count = fits = 0
        for filename, url, digest in files:
            count += (
                filename.endswith(".whl") and canonicalize_name(filename.partition("-")[0]) == choice.name
            )
            if (rank := self._rank(filename, choice)) is None or (url and not re.fullmatch(ADDRESS, url)):
                continue
            fits += 1
            requirement = _requirement(choice.requirement, filename, url, digest)
            title = f"the wheel `{filename}` of {where}"
            yield rank, Candidate(title=title, wheel=requirement, filename=filename)
        what = f"torch {self._task.recipe.pytorch}, {self._build} and Python {self._task.recipe.python}"
        choice.looked.append(f"{where}: {fits or 'none'} of {count} wheels for {what}")

    def _in_folders(self, choice: PackageChoice) -> Iterator[tuple[_Rank, Candidate]]:
        for folder in self._task.context.sources().folders:
            files = [(path.name, "", "") for path in sorted(folder.glob("*.whl"))]
            if any(self._rank(name, choice) for name, _, _ in files):
                yield from self._fitting(files, choice, f"`{folder}`")

    def _in_index(self, choice: PackageChoice) -> Iterator[tuple[_Rank, Candidate]]:
        if not choice.row.wrong:
            files = [(file.filename, "", "") for file in self._listing(choice)]
            if any(self._rank(name, choice) for name, _, _ in files):
                says = f" ({choice.row.says})" if choice.row.says and not choice.row.build else ""
                yield from self._fitting(files, choice, f"the package index{says}")

    def _on_pages(self, choice: PackageChoice) -> Iterator[tuple[_Rank, Candidate]]:
        for place, is_page in choice.row.addresses(self._task.recipe.pytorch, self._build):
            try:
                index = place if is_page else f"{place.rstrip('/')}/"
                files = self._index.client.listed(index, "" if is_page else choice.name)
            except SourceError as error:
                choice.looked.append(str(error))
                continue
            yield from self._fitting(
                [(file.filename, file.url, file.sha256) for file in files], choice, shown(place)
            )

    def _in_releases(self, choice: PackageChoice) -> Iterator[tuple[_Rank, Candidate]]:
        """Yield the wheels of the newest release that has one which fits."""
        for version in self._versions(choice)[:_RELEASES] if choice.row.releases else ():
            url = choice.row.releases.format(version=version)
            try:
                files = list(_assets(self._index.client.page(url, threading.Event())))
            except (SourceError, ValueError) as error:
                choice.looked.append(str(error) if isinstance(error, SourceError) else f"{url}: {error}")
                if isinstance(error, SourceError) and error.kind != "gone":
                    return
                continue
            if fitting := list(self._fitting(files, choice, f"release {version} of {choice.row.project}")):
                yield from fitting
                return


def _assets(content: bytes) -> Iterator[_File]:
    """Yield the files of a release, as GitHub's API lists them. Raises ValueError for another answer."""
    answer: Any = parse_json(content)
    try:
        for asset in answer["assets"]:
            digest = re.fullmatch(r"sha256:([0-9a-f]{64})", asset.get("digest") or "")
            yield str(asset["name"]), str(asset["browser_download_url"]), digest[1] if digest else ""
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("what it sends is no release of GitHub's API") from error


def _requirement(wanted: Requirement, filename: str, url: str, digest: str) -> str:
    """Return the requirement on one wheel, with the extras and the marker of that of the recipe."""
    chosen = Requirement(str(wanted))
    version = parse_wheel_filename(filename)[1]
    chosen.specifier = SpecifierSet("" if url else f"=={version}")
    address = url.partition("#")[0]
    chosen.url = (f"{address}#sha256={digest}" if digest else address) or None
    return str(chosen)


def _allows(bounds: SpecifierSet, version: Version) -> bool:
    """Return whether a requirement takes a version; a pre-release where it names one."""
    return bounds.contains(version, prereleases=bool(bounds.prereleases))
