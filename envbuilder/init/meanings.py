"""Decide what a name means that the package index gives another meaning: its project, the package of the index, or neither.

`cuda_packages.yaml` knows these names. Without an answer, `take_indexes` leaves the name out.
"""

from collections.abc import Callable, Sequence
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.tables.cuda import CudaPackage, load_cuda_packages
from envbuilder.core.errors import FetchError, ToolError, UsageError
from envbuilder.core.process import Runner
from envbuilder.core.spelling import nearest
from envbuilder.init.requests import Requests
from envbuilder.recipe.extension import Extension
from envbuilder.sources.git import find_commit
from envbuilder.sources.names import default_index

_OUT: Final = "none"


def settle_meanings(
    requests: Requests,
    answers: Sequence[str],
    runner: Runner,
    *,
    ask: Callable[[str, str], str] | None,
    report: Callable[[str], None],
) -> None:
    """Apply answers (apex=source) and, with `ask`, ask for each name that has none. Raises UsageError for an answer that does not fit.

    Raises FetchError and ToolError where the repository of a project cannot be asked for its commit.
    """
    given = {canonicalize_name(answer.partition("=")[0]): answer.partition("=")[2] for answer in answers}
    names = list(requests.misnamed)
    for name, meaning in given.items():
        if name not in names:
            hint = f"they name {', '.join(names)}" if names else "they name none"
            message = f"no file names a `{name}` that is another project's on the package index"
            raise UsageError(message, hint=f"{nearest(name, names)}{hint}")
        _take(name, meaning, requests, runner)
    if not ask:
        return
    rows, addresses = load_cuda_packages().rows, [address for _, address, _ in requests.indexes]
    placed = {row.package for row in rows if any(map(row.is_at, addresses))}
    compiled = set(map(canonicalize_name, requests.extensions))
    for key in names:
        if key not in {*given, *requests.homes, *placed, *compiled}:
            _ask(key, requests, runner, ask, report)


def _ask(
    name: str,
    requests: Requests,
    runner: Runner,
    ask: Callable[[str, str], str],
    report: Callable[[str], None],
) -> None:
    row, choices = load_cuda_packages().by_name[name], choices_of(name, requests)
    effects = "; ".join(f"`{choice}` {effect}" for choice, effect in choices.items())
    report(f"{requests.misnamed[name].where}: {row.wrong}: {effects}")
    while True:
        try:
            return _take(name, ask(f"{name} ({', '.join(choices)})", _OUT).strip(), requests, runner)
        except (FetchError, ToolError, UsageError) as error:
            report(f"{error.message}: {error.hint}")


def choices_of(name: str, requests: Requests) -> dict[str, str]:
    """Return the meanings that a name can have, each with what it does."""
    row = load_cuda_packages().by_name[name]
    choices = {"source": f"compiles {row.project}"}
    if row.is_chosen and not (requests.base and requests.base.keeps_torch):
        choices["wheel"] = "lets `lock` look for a wheel of that project"
    if row.index == "other":
        choices["pypi"] = "takes the package of the index"
    return choices | {_OUT: "leaves it out"}


def _take(name: str, meaning: str, requests: Requests, runner: Runner) -> None:
    row, choices = load_cuda_packages().by_name[name], choices_of(name, requests)
    request = requests.misnamed[name]
    if meaning not in choices:
        hint = f"{nearest(meaning, choices)}its meanings: {', '.join(choices)}"
        raise UsageError(f"`{name}` cannot mean `{meaning}`", hint=hint)
    if meaning == "source":
        commit, revision = _commit(row, Requirement(request.text), runner)
        extension = Extension(name=row.module, git=row.repository, commit=commit, path=row.folder)
        requests.extension(extension, request.where)
        message = f"`{request.text}` is {revision} of {row.project}, compiled as an extension"
        requests.note(request.where, message)
        del requests.misnamed[name]
    elif meaning == "wheel":
        requests.by_lock.add(name)
    elif meaning == "pypi":
        requests.homes[name] = default_index(), request.where


def _commit(row: CudaPackage, requirement: Requirement, runner: Runner) -> tuple[str, str]:
    """Return the commit of the required version, if a tag says it, otherwise the newest, and what it was found by."""
    versions = (bound.version for bound in requirement.specifier if bound.operator == "==")
    exact = [version for version in versions if "*" not in version]
    for tag in (f"{start}{version}" for version in exact for start in ("v", "")):
        try:
            return find_commit(row.repository, tag, runner), f"the tag `{tag}`"
        except UsageError:
            continue
    return find_commit(row.repository, "HEAD", runner), "the newest commit"
