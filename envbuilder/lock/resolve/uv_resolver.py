"""Ask uv which packages meet requirements on the target, and name one file for each."""

import contextlib
import functools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.context import load_tables
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.core.processor import Processor
from envbuilder.lock.deadline import deadline
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.held import TORCH, Choice, parse_all, read_requirements
from envbuilder.lock.resolve.sdists import SdistFacts, find_sdist, read_sdist
from envbuilder.lock.resolve.uv_answer import read_answer
from envbuilder.lock.resolve.uv_question import (
    ANNOTATED,
    LOCK,
    Facts,
    Question,
    make_command,
    show_folders,
    uv_settings,
    write_python,
    write_question,
)
from envbuilder.sources.fetch import NETWORK_HINT
from envbuilder.sources.http.reachable import silent
from envbuilder.sources.names import Sources

log = logging.getLogger(__name__)
_LOOSEN: Final = "loosen a bound in `packages`, or choose a version that has a wheel for this Python"
_NOT_FOUND: Final = re.compile(r"([\w.-]+) was not found in the package registry|no version of ([\w.-]+)")
_NO_VERSION: Final = re.compile(r"there is no version of ([\w.-]+)==\S+ and you require")
_UNBUILT: Final = re.compile(r"Failed to (?:download and )?build `([\w.-]+)==([^`\s]+)`")


def make_choice(
    own: Sequence[str], found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> Choice:
    def requires(package: Artifact) -> tuple[Requirement, ...]:
        known = facts.get((package.name, package.version))
        if known is None and package.kind == "wheel":
            return read_requirements(package, context)
        return tuple(parse_all(known.requires)) if known else ()

    given = [("the recipe", one) for one in parse_all(own)]
    for one in question.extensions:
        given += [(f"the extension {one.extension}", wanted) for wanted in parse_all(one.requires or ())]
    given += [(TORCH, one) for one in parse_all(one for one in question.constraints if one not in own)]
    parents, extras = _parents(found, question, context, facts)
    return Choice(
        python=question.python,
        processor=question.processor,
        packages={one.name: one for one in found},
        extensions={one.name: one.version for one in question.provided},
        parents=parents,
        extras=extras,
        own=tuple(given),
        fixed=tuple(parse_all(one for one in question.requirements if one not in own)),
        requires=functools.cache(requires),
    )


def _parents(
    found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Ask uv which packages require each package, and with which extras."""
    pins = tuple(f"{one.name}=={one.version}" for one in found)
    pinned = replace(question, constraints=(*question.constraints, *pins), prefer=())
    with _answered(pinned, context, facts, ANNOTATED) as (work, _):
        lines = (work / ANNOTATED).read_text(encoding="utf-8").splitlines()
    known = {one.name for one in found}
    rows = [(Requirement(pin), via.split(", ")) for pin, _, via in (one.partition("# via ") for one in lines)]
    parents = {pin.name: [name for name in via if name in known] for pin, via in rows}
    return parents, {pin.name: pin.extras for pin, _ in rows}


def ask_uv(question: Question, context: ResolveContext, facts: Facts | None = None) -> tuple[Artifact, ...]:
    """Return the packages of uv's answer, with every preferred version if one exists.

    The first attempt pins the preferred versions. Without pins, uv drops a preferred version if the first
    index that has it has no wheel for the target: another package turned numpy 1.26.4 into 1.26.3.
    A pre-release is taken only where pip would take it, and another one is said. What only a project's own
    code knows goes into `facts`.
    """
    facts = {} if facts is None else facts
    while early := _unfair(found := ask_once(question, context, facts), question, context, facts):
        for one in early:
            log.warning(
                "%s %s is not taken: it is a pre-release, and releases meet what is required; "
                "`%s>=%s` in `packages` takes it",
                *(one.name, one.version) * 2,
            )
        question = replace(question, finals=(*question.finals, *(one.name for one in early)))
    return found


def _unfair(
    found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> list[Artifact]:
    """Return the pre-releases that pip would not take: none is asked for, and a release meets what is required.

    uv takes one whenever no release can be installed, for whatever reason.
    """
    kept = {(one.name, one.version) for one in question.prefer}
    early = [
        one for one in found if Version(one.version).is_prerelease and (one.name, one.version) not in kept
    ]
    if not early:
        return []
    try:
        choice = make_choice(question.requirements, found, question, context, facts)
        return [one for one in early if _has_release(one.name, choice, question, context)]
    except FetchError as error:
        log.info("whether pip would take the pre-releases that uv takes is not known: %s", error.message)
        return []


def _has_release(name: str, choice: Choice, question: Question, context: ResolveContext) -> bool:
    required = [one.specifier for _, one in choice.on(name)]
    if any(one.prereleases for one in required):
        return False
    alone = _alone(question, *(f"{name}{one}" for one in required))
    try:
        return bool(ask_once(replace(alone, finals=(name,)), context, {}))
    except IncompatibleError:
        return False


def _alone(question: Question, *requirements: str) -> Question:
    """Return the question for these packages without what they require."""
    return replace(
        question, requirements=requirements, constraints=(), prefer=(), extensions=(), dependencies=False
    )


def ask_once(question: Question, context: ResolveContext, facts: Facts) -> tuple[Artifact, ...]:
    """Return the packages of uv's answer, with each pre-release that uv takes."""
    with _answered(question, context, facts, LOCK) as (work, local):
        text = (work / LOCK).read_text(encoding="utf-8")
        return read_answer(text, question, context, local)


@contextlib.contextmanager
def _answered(
    question: Question, context: ResolveContext, facts: Facts, output: str
) -> Iterator[tuple[Path, dict[Path, Path]]]:
    """Yield the folder with uv's answer in the file `output`, and the local packages as `show_folders` returns them.

    uv never runs a project's own code. What only that knows is read in a sandbox, and uv is asked again.
    """
    sources = context.sources()
    pins = tuple(f"{one.name}=={one.version}" for one in question.prefer)
    pinned = replace(question, constraints=(*question.constraints, *pins), prefer=())
    with context.store.workspace() as work:
        local = show_folders(sources.folders, work / "links")
        for one in question.provided:
            one.write_wheel(work / "links")
        write_python(work / "python")
        attempts = [pinned, question] if pins else [question]
        while attempts:
            write_question(attempts[0], sources, work, facts)
            command = make_command(
                question, sources, work=work, cache=context.store.resolver("uv"), output=output
            )
            try:
                with (
                    context.waiting(lambda: silent(_asked(question, sources), sources.certificates)),
                    deadline(context.runner, "reading the package indexes", context.patience) as runner,
                ):
                    runner.run(command)
                break
            except CommandError as error:
                if _read_unbuilt(error, question, context, facts):
                    continue
                attempt = attempts.pop(0)
                if attempt is question or not _is_unsolvable(error):
                    _need_access(question, sources, error, context)
                    raise _refused(question, error, context) from error
        yield work, local


def _read_unbuilt(error: CommandError, question: Question, context: ResolveContext, facts: Facts) -> bool:
    """Return whether uv lacks the facts of a source distribution, which are known now."""
    found = _UNBUILT.search(error.message)
    if found is None:
        return False
    name, version = str(canonicalize_name(found[1])), found[2]
    if (name, version) in facts:
        raise error
    if question.dependencies:
        sdist = find_sdist(name, version, context)
        facts[name, version] = read_sdist(sdist, context, uv_settings(question, context.sources()))
    else:
        facts[name, version] = SdistFacts(builds_with=(), requires=(), extras=(), python="")
    return True


def _need_access(question: Question, sources: Sources, error: CommandError, context: ResolveContext) -> None:
    """Raise FetchError if uv found no package because an index refused access; uv does not report that."""
    places = _asked(question, sources)
    names = dict.fromkeys(one or other for one, other in _NOT_FOUND.findall(error.message))
    try:
        context.fetcher.need_access([f"{place}{name}/" for name in names for place in places])
    except FetchError as failure:
        output = error.message.partition("\n")[2]
        raise FetchError(f"{failure.message}\n{output}", hint=failure.hint) from error


def _asked(question: Question, sources: Sources) -> tuple[str, ...]:
    """Return the addresses of the indexes that uv searches."""
    return (*sources.indexes, *([f"{sources.pytorch}{question.build}/"] if question.build else []))


def _is_unsolvable(error: CommandError) -> bool:
    return "ended with exit code 1\n" in error.message


def _refused(
    question: Question, error: CommandError, context: ResolveContext
) -> IncompatibleError | FetchError:
    """Return the error to raise, in terms of the recipe, with uv's message below the reason."""
    output = error.message.partition("\n")[2]
    if not _is_unsolvable(error):
        return FetchError(f"could not read the package index\n{output}", hint=NETWORK_HINT)
    asked = [Requirement(text) for text in question.requirements]
    missing = re.findall(r"([\w.-]+) was not found in the package registry", output)
    # Only requirements of the recipe itself: everything depends on them.
    unknown = dict.fromkeys(f"`{one.name}`" for one in asked if canonicalize_name(one.name) in missing)
    if unknown:
        return IncompatibleError(
            f"no package index knows {', '.join(unknown)}\n{output}",
            hint="write the name that pip installs; it may differ from the name of the import or of conda's package",
        )
    if question.parent:
        return IncompatibleError(
            f"`{question.parent}` keeps its torch and all other packages, and what is added does not fit them\n{output}",
            hint=f"add a version that fits; `extends: {question.parent}` with `packages` instead of `add` makes another environment",
        )
    ways = [*_newest(question, output, context), _LOOSEN, *_pin_hints(asked, output, question.processor)]
    return IncompatibleError(
        f"no set of packages for Python {question.python} and glibc {question.glibc} fits what the recipe requires\n{output}",
        hint="; ".join(ways),
    )


def _newest(question: Question, output: str, context: ResolveContext) -> Iterator[str]:
    """Yield the newest release of a package whose required version no index has."""
    missing = _NO_VERSION.search(output)
    if missing is None:
        return
    try:
        (newest,) = ask_once(_alone(question, missing[1]), context, {})
    except (FetchError, IncompatibleError):
        return
    yield f"the newest {newest.name} for Python {question.python} is {newest.version.partition('+')[0]}"


def _pin_hints(asked: Sequence[Requirement], output: str, processor: Processor) -> Iterator[str]:
    """Yield what to do about each pinned package without a wheel: build its source distribution, or choose a Python.

    Nobody builds torch for want of a Python.
    """
    rows = load_tables().torches_on(processor).rows
    for one in asked:
        name = canonicalize_name(one.name)
        pin = re.fullmatch(r"==([^,*]+)", str(one.specifier))
        if not pin or not re.search(
            rf"(?<![\w.-]){re.escape(name)}=={re.escape(pin[1])} has no (usable )?wheels", output
        ):
            continue
        version = pin[1].partition("+")[0]
        torch = next(
            (row for row in rows if (name, version) in (("torch", row.version), *row.companions)), None
        )
        if torch:
            pythons = ", ".join(one for one in torch.pythons if not one.endswith("t"))
            yield f"or take a Python for which {name} {version} has wheels: {pythons}"
        elif name != "torch":
            sdist = f"{{name: {name.replace('-', '_')}, sdist: {one.name}=={pin[1]}}}"
            yield f"or build it as an extension: `extensions: [{sdist}]`"
