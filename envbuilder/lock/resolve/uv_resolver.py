"""Ask uv which packages meet requirements on the target, and name one file for each."""

import contextlib
import functools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.context import PinChange, load_tables, make_context
from envbuilder.compat.suggest import find_repairs
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.lock.candidates import TORCH, parse_all
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import Choice, read_requirements
from envbuilder.lock.resolve.sdists import SdistFacts, find_sdist, read_sdist
from envbuilder.lock.resolve.uv_files import (
    ANNOTATED,
    LOCK,
    NAME,
    PLACED,
    Facts,
    Question,
    UvAnswer,
    kept_folder,
    make_command,
    show_folders,
    show_placed,
    uv_settings,
    write_question,
)
from envbuilder.recipe.wheel_sources import WheelIndex
from envbuilder.sources.fetch import NETWORK_HINT, deadline
from envbuilder.sources.http.reachable import silent
from envbuilder.sources.names import Sources

log = logging.getLogger(__name__)
_LOOSEN: Final = "loosen a bound in `packages`, or choose a version that has a wheel for this Python"
_NOT_FOUND: Final = re.compile(r"([\w.-]+) was not found in the package registry|no version of ([\w.-]+)")
# Of an index, and of a page.
_MISSING: Final = re.compile(
    r"([\w.-]+) was not found in the package registry|there are no versions of ([\w.-]+) and"
)
_NO_VERSION: Final = re.compile(r"there is no version of ([\w.-]+)==\S+ and you require")
_TORCH: Final = re.compile(r"([A-Za-z][\w.-]*)\S* depends? on torch==([\w.]+)")
_NAMES: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]")
_UNBUILT: Final = re.compile(r"Failed to (?:download and )?build `([\w.-]+)==([^`\s]+)`")


class Uv:
    """Asks uv. What only the own code of source distributions knows is read once, and kept in `facts`."""

    def __init__(self, task: Task) -> None:
        self.task, self.context = task, task.context
        self.facts: Facts = {}
        # Packages of the recipe's indexes that another package requires: uv takes one from there when it is asked for itself.
        self.others: set[str] = set()

    def ask(self, question: Question) -> Artifacts:
        """Return the packages of uv's answer, with every preferred version if one exists.

        The first attempt pins the preferred versions. Without pins, uv drops a preferred version if the first
        index that has it has no wheel for the target: another package turned numpy 1.26.4 into 1.26.3.
        A pre-release is taken only where pip would take it, and another one is said.
        """
        while early := self._unfair(packages := self.ask_once(question), question):
            for package in early:
                log.warning(
                    "%s %s is not taken: it is a pre-release, and releases meet what is required; "
                    "`%s>=%s` in `packages` takes it",
                    *(package.name, package.version) * 2,
                )
            question = replace(question, finals=(*question.finals, *(package.name for package in early)))
        return packages

    def ask_once(self, question: Question) -> Artifacts:
        """Return the packages of uv's answer, with each pre-release that uv takes."""
        try:
            with self._answered(question, LOCK) as (work, local):
                text = (work / LOCK).read_text(encoding="utf-8")
                packages = UvAnswer(question=question, context=self.context, local=local).read(text)
        except IncompatibleError as error:
            if self._learn(question, _NAMES.findall(error.message)):
                return self.ask_once(question)
            raise
        is_other = self._learn(question, [package.name for package in packages])
        return self.ask_once(question) if is_other else packages

    def _learn(self, question: Question, names: Iterable[str]) -> bool:
        """Return whether one of these packages is of an index of the recipe, and uv has not been asked for it itself."""
        asked = {canonicalize_name(requirement.name) for requirement in parse_all(question.requirements)}
        more = {name for name in map(canonicalize_name, names) if question.listed(name)} - asked - self.others
        self.others |= more
        return bool(more)

    def ask_alone(self, question: Question, *requirements: str, finals: tuple[str, ...] = ()) -> Artifacts:
        """Return the newest of these packages, without what they require."""
        alone = replace(
            question, requirements=requirements, constraints=(), prefer=(), extensions=(), dependencies=False,
            finals=(*question.finals, *finals),
        )  # fmt: skip
        return Uv(self.task).ask_once(alone)

    def make_choice(self, written: Sequence[str], packages: Artifacts, question: Question) -> Choice:
        """Return what decided the answer, `written` being the requirements of the recipe itself."""

        def requires(package: Artifact) -> tuple[Requirement, ...]:
            known = self.facts.get((package.name, package.version))
            if known is None and package.kind == "wheel":
                return read_requirements(package, self.context)
            return tuple(parse_all(known.requires)) if known else ()

        given = [("the recipe", requirement) for requirement in parse_all(written)]
        for project in question.extensions:
            who = f"the extension {project.extension}"
            given += [(who, requirement) for requirement in parse_all(project.requires or ())]
        bounds = (text for text in question.constraints if text not in written)
        given += [(TORCH, bound) for bound in parse_all(bounds)]
        parents, extras = self._parents(packages, question)
        return Choice(
            python=question.python, processor=question.processor, packages={package.name: package for package in packages},
            extensions={project.name: project.version for project in question.provided}, parents=parents, extras=extras,
            asked=tuple(given), fixed=tuple(parse_all(text for text in question.requirements if text not in written)),
            requires=functools.cache(requires),
        )  # fmt: skip

    def _parents(
        self, packages: Artifacts, question: Question
    ) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
        """Ask uv which packages require each package, and with which extras."""
        with self._answered(question.pinned(packages), ANNOTATED) as (work, _):
            lines = (work / ANNOTATED).read_text(encoding="utf-8").splitlines()
        known = {package.name for package in packages}
        cells = (line.partition("# via ") for line in lines)
        rows = [(Requirement(pin), via.split(", ")) for pin, _, via in cells]
        parents = {pin.name: [name for name in via if name in known] for pin, via in rows}
        return parents, {pin.name: pin.extras for pin, _ in rows}

    def _unfair(self, packages: Artifacts, question: Question) -> list[Artifact]:
        """Return the pre-releases that pip would not take: none is asked for, and a release meets what is required.

        uv takes one whenever no release can be installed, for whatever reason.
        """
        new = (package for package in packages if not question.prefers(package))
        early = [package for package in new if Version(package.version).is_prerelease]
        if not early:
            return []
        try:
            choice = self.make_choice(question.requirements, packages, question)
            return [package for package in early if self._has_release(package.name, choice, question)]
        except FetchError as error:
            log.info("whether pip would take the pre-releases that uv takes is not known: %s", error.message)
            return []

    def _has_release(self, name: str, choice: Choice, question: Question) -> bool:
        bounds = [requirement.specifier for _, requirement in choice.on(name)]
        if any(bound.prereleases for bound in bounds):
            return False
        try:
            return bool(self.ask_alone(question, *(f"{name}{bound}" for bound in bounds), finals=(name,)))
        except IncompatibleError:
            return False

    @contextlib.contextmanager
    def _answered(self, question: Question, output: str) -> Iterator[tuple[Path, dict[Path, Path]]]:
        """Yield the folder with uv's answer in the file `output`, and the local packages as `show_folders` returns them.

        uv never runs a project's own code. What only that knows is read in a sandbox, and uv is asked again.
        """
        context, sources = self.context, self.context.sources()
        question = replace(question, others=tuple(sorted(self.others)))
        with context.store.workspace() as work:
            local = show_folders(sources.folders, work / "links", kept_folder(context.store))
            for project in question.provided:
                project.write_wheel(work / "links")
            show_placed(question, context.store, work / PLACED)
            attempts = [*([question.pinned(question.prefer)] if question.prefer else []), question]
            if output == ANNOTATED:  # uv has read all of it, to choose these packages
                attempts.insert(0, replace(question, offline=True))
            while attempts:
                write_question(attempts[0], sources, work, self.facts)
                command = make_command(attempts[0], sources, work=work, store=context.store, output=output)
                try:
                    with (
                        context.waiting(lambda: silent(_asked(question, sources), sources.certificates)),
                        deadline(context.runner, "reading the package indexes", context.patience) as runner,
                    ):
                        runner.run(command)
                    break
                except CommandError as error:
                    if not attempts[0].offline and self._read_unbuilt(error, question):
                        continue
                    attempt = attempts.pop(0)
                    if attempt is question or not (attempt.offline or _is_unsolvable(error)):
                        self._need_access(question, sources, error)
                        raise self._refused(question, error) from error
            yield work, local

    def _read_unbuilt(self, error: CommandError, question: Question) -> bool:
        """Return whether uv lacks the facts of a source distribution, which are known now."""
        match = _UNBUILT.search(error.message)
        if match is None:
            return False
        name, version = str(canonicalize_name(match[1])), match[2]
        if (name, version) in self.facts or question.listed(name):
            raise error
        if question.dependencies:
            sdist = find_sdist(name, version, self.context)
            settings = uv_settings(question, self.context.sources())
            self.facts[name, version] = read_sdist(sdist, self.context, settings, question.listed)
        else:
            self.facts[name, version] = SdistFacts(builds_with=(), requires=(), extras=(), python="")
        return True

    def _places(self, question: Question) -> list[tuple[WheelIndex, str]]:
        """Return the recipe's indexes, each with its line."""
        place = self.task.recipe.place
        return [(index, place(f"$.indexes[{at}]")) for at, index in enumerate(question.indexes)]

    def _need_readable(self, question: Question, output: str) -> None:
        """Raise FetchError if what a program or a request says is about an index of the recipe."""
        for index, where in self._places(question):
            if index.place in output:
                hint = "check its address and the network; a login belongs in `~/.netrc` (mode 0600)"
                raise FetchError(f"{where}: the index `{index.name}` cannot be read\n{output}", hint=hint)

    def _need_access(self, question: Question, sources: Sources, error: CommandError) -> None:
        """Raise FetchError if uv found no package because an index refused access; uv does not report that."""
        places = _asked(question, sources)
        names = dict.fromkeys(name or other for name, other in _NOT_FOUND.findall(error.message))
        try:
            self.context.fetcher.need_access([f"{place}{name}/" for name in names for place in places])
        except FetchError as failure:
            self._need_readable(question, failure.message)
            output = error.message.partition("\n")[2]
            raise FetchError(f"{failure.message}\n{output}", hint=failure.hint) from error

    def _refused(self, question: Question, error: CommandError) -> IncompatibleError | FetchError:
        """Return the error to raise, in terms of the recipe, with uv's message below the reason."""
        output = error.message.partition("\n")[2].replace(f"{NAME} depends on", "you require")
        places = self._places(question)
        if not _is_unsolvable(error):
            self._need_readable(question, output)
            return FetchError(f"could not read the package index\n{output}", hint=NETWORK_HINT)
        asked = [Requirement(text) for text in question.requirements]
        missing = [name for match in _MISSING.finditer(output) for name in filter(None, match.groups())]
        # Only requirements of the recipe itself: everything depends on them.
        unknown = dict.fromkeys(
            f"`{wanted.name}`{self._place(wanted.name)}"
            for wanted in asked
            if canonicalize_name(wanted.name) in missing
        )
        for index, where in places:
            if names := ", ".join(
                dict.fromkeys(f"`{name}`" for name in missing if question.listed(name) == index)
            ):
                return IncompatibleError(
                    f"{where}: the index `{index.name}` ({index.place}) has no wheel of {names}, and nothing else is asked\n{output}",
                    hint="compare it with the name at that address, or leave it out of the `packages` of this index",
                )
        if unknown:
            return IncompatibleError(
                f"no package index knows {', '.join(unknown)}\n{output}",
                hint="look at the spelling; it is the name that pip installs, which may differ from that of the import or of "
                "conda's package",
            )
        pins = _pin_hints(asked, output, question)
        ways = [*self._with_torch(output), *self._newest(question, output), _LOOSEN, *pins]
        return IncompatibleError(
            f"no set of packages for Python {question.python} and glibc {question.glibc} fits what the recipe requires\n{output}",
            hint="; ".join(ways),
        )

    def _place(self, name: str) -> str:
        """Return where the recipe names a package, in brackets; "" for one that it does not name."""
        recipe = self.task.recipe
        named = [canonicalize_name(Requirement(text).name) for text in recipe.packages]
        known = canonicalize_name(name)
        return f" ({recipe.place(f'$.packages[{named.index(known)}]')})" if known in named else ""

    def _with_torch(self, output: str) -> Iterator[str]:
        """Yield the nearest recipe with the torch that packages need, where all of them need the same one."""
        needs = _TORCH.findall(output)
        if len({torch for _, torch in needs}) != 1:
            return
        packages, torch = [*dict.fromkeys(package for package, _ in needs)], needs[0][1]
        context = make_context(self.task.recipe, load_tables(), base=self.task.target.inside)
        repairs = find_repairs(context, (PinChange("pytorch", torch),))
        way = f": write {repairs[0].words()}" if repairs else ", which does not go with the other pins"
        yield f"{' and '.join(packages)} need{'s' * (len(packages) == 1)} torch {torch}{way}"

    def _newest(self, question: Question, output: str) -> Iterator[str]:
        """Yield the newest release of a package whose required version no index has."""
        if missing := _NO_VERSION.search(output):
            with contextlib.suppress(FetchError, IncompatibleError):
                (newest,) = self.ask_alone(question, missing[1])
                yield f"the newest {newest.name} for Python {question.python} is {newest.version.partition('+')[0]}"


def _asked(question: Question, sources: Sources) -> tuple[str, ...]:
    own = (index.place for index in question.indexes if index.url)
    return (*sources.indexes, *own, *([f"{sources.pytorch}{question.build}/"] if question.build else []))


def _is_unsolvable(error: CommandError) -> bool:
    return (
        "ended with exit code 1\n" in error.message and "Failed to read `--find-links`" not in error.message
    )


def _pin_hints(asked: Sequence[Requirement], output: str, question: Question) -> Iterator[str]:
    """Yield what to do about each pinned package without a wheel: build its source distribution, or choose another Python.

    Nobody builds torch for want of a Python.
    """
    rows = load_tables().torches_on(question.processor).rows
    for wanted in asked:
        name, pin = canonicalize_name(wanted.name), re.fullmatch(r"==([^,*]+)", str(wanted.specifier))
        if not pin or not re.search(
            rf"(?<![\w.-]){re.escape(name)}=={re.escape(pin[1])} has no (usable )?wheels", output
        ):
            continue
        version = pin[1].partition("+")[0]
        torches = (row for row in rows if (name, version) in (("torch", row.version), *row.companions))
        if torch := next(torches, None):
            others = (
                python for python in torch.pythons if python != question.python and not python.endswith("t")
            )
            yield f"or take a Python for which {name} {version} has wheels: {', '.join(others)}"
        elif name != "torch":
            sdist = f"{{name: {name.replace('-', '_')}, sdist: {wanted.name}=={pin[1]}}}"
            yield f"or build it as an extension: `extensions: [{sdist}]`"
