"""Lock kernels of the Hugging Face hub: the build variant that fits the locked torch, and each of its files by sha256.

A repository has its variants as folders of `build`, whose names say what each is for. The package `kernels` of a job chooses by the
same rules: torch's stable ABI, then torch's own release with the highest CUDA, then code without a library.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from envbuilder.core.budget import parse_json
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact, Lock, LockedKernel
from envbuilder.lock.resolve.context import Task
from envbuilder.sources.http import SourceError
from envbuilder.sources.names import HUB

# What an address begins with, in the hub's API and below the hub: kernels have a kind of their own, and older ones are models.
_KINDS: Final = (("kernels/", "kernels/"), ("models/", ""))
_LIBRARIES: Final = re.compile(
    r"torch(?:-stable-abi(\d)(\d+)|(\d)(\d+)(?:-(cxx11|cxx98))?)-(?:cu(\d+)(\d)|cpu)-(\w+)-linux"
)
_NOT_TAKEN: Final = re.compile(r"(?:.*/)?__pycache__/.*|.*\.pyc")
_LARGEST: Final = 64 << 20  # bytes of a file that the hub gives no sha256 of: git itself keeps it


def lock_kernels(task: Task, old: Lock | None) -> tuple[LockedKernel, ...]:
    """Lock the recipe's kernels; those of the old lock that still fit without a request. Raises IncompatibleError, FetchError."""
    known = {f"{kernel.name}@{kernel.revision}": kernel for kernel in old.kernels} if old else {}
    kept = {text: kernel for text, kernel in known.items() if _rank(kernel.variant, task) is not None}
    kernels = (kept.get(text) or _lock_kernel(text, task) for text in task.recipe.kernels)
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _lock_kernel(text: str, task: Task) -> LockedKernel:
    recipe, (name, _, revision) = task.recipe, text.partition("@")
    place = recipe.place(f"$.kernels[{recipe.kernels.index(text)}]")
    refusals: list[SourceError] = []
    for kind, below in _KINDS:
        tree, files = f"api/{kind}{name}/tree/{revision}/build", f"{below}{name}/resolve/{revision}/"
        try:
            folders = [entry["path"].removeprefix("build/") for entry in _entries(tree, task)]
        except SourceError as refusal:
            refusals.append(refusal)
            continue
        fitting = [(rank, variant) for variant in folders if (rank := _rank(variant, task)) is not None]
        if not fitting:
            cuda = f"CUDA {recipe.cuda_minor}" if recipe.cuda else "the CPU"
            raise IncompatibleError(
                f"{place}: `{name}` has no build for torch {recipe.pytorch}, {cuda} and {task.target.processor.machine}; "
                f"it has {', '.join(sorted(folders)) or 'none at all'}",
                hint="take another revision of it, or a release of torch that it has a build for",
            )
        variant = min(fitting)[1]
        artifacts = sorted(_artifacts(tree, variant, files, task), key=lambda file: file.path)
        return LockedKernel(name=name, revision=revision, variant=variant, files=tuple(artifacts))
    raise FetchError(
        f"{place}: the files of `{name}` at {revision} cannot be listed\n  {refusals[-1]}",
        hint=f"`{task.context.sources().hub}{name}` shows whether it is there, with its commits",
    )


def _entries(path: str, task: Task) -> list[dict[str, Any]]:
    """Return the entries of a folder by the hub's API. Raises SourceError, and FetchError for an answer of another form."""
    try:
        answer = parse_json(task.context.fetcher.page(f"{task.context.sources().hub}{path}"))
    except ValueError as error:
        raise FetchError(f"the hub's answer to `{path}` cannot be read: {error}") from error
    if not (
        isinstance(answer, list)
        and all(isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in answer)
    ):
        raise FetchError(f"the hub's answer to `{path}` is no list of files")
    return answer


def _artifacts(tree: str, variant: str, files: str, task: Task) -> Iterator[Artifact]:
    """Yield the files of a variant. `files` is the path below the hub at which it has those of the repository."""
    for entry in _entries(f"{tree}/{variant}?recursive=true", task):
        path, size, large = entry["path"], entry.get("size"), entry.get("lfs")
        if entry.get("type") != "file" or _NOT_TAKEN.fullmatch(path):
            continue
        if (
            not path.startswith(f"build/{variant}/")
            or {"", ".", ".."} & {*path.split("/")}
            or not isinstance(size, int)
        ):
            raise FetchError(f"the hub lists `{path}`, which is no file of `build/{variant}`")
        digest = (
            Sha256(str(large.get("oid"))) if isinstance(large, dict) else _fetched(f"{files}{path}", task)
        )
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise FetchError(f"the hub gives no sha256 of `{files}{path}`")
        name, _, revision = files.removesuffix("/").removeprefix("kernels/").partition("/resolve/")
        yield Artifact(
            kind="kernel", name=name.replace("/", "."), version=revision, sha256=digest, size=size, source=HUB, path=f"{files}{path}"
        )  # fmt: skip


def _fetched(path: str, task: Task) -> Sha256:
    """Fetch a small file into the store. Returns its sha256."""
    try:
        content = task.context.fetcher.page(f"{task.context.sources().hub}{path}", most=_LARGEST)
    except SourceError as error:
        raise FetchError(f"a file of a kernel cannot be had: {error}") from error
    return task.context.store.add_content(content)


def _rank(variant: str, task: Task) -> tuple[int, ...] | None:
    """Return the place of a variant among those that fit, the best first; None for one that does not fit."""
    torch = tuple(map(int, task.recipe.pytorch.split(".")[:2]))
    cuda = tuple(map(int, task.recipe.cuda_minor.split("."))) if task.recipe.cuda else ()
    if variant in (f"torch-{'cuda' if cuda else 'cpu'}", "torch-universal"):
        return (2, variant == "torch-universal")
    match = _LIBRARIES.fullmatch(variant)
    if match is None or match[8] != task.target.processor.machine:
        return None
    built = (int(match[6]), int(match[7])) if match[6] else ()
    if bool(built) is not bool(cuda) or built[:1] != cuda[:1] or built[1:] > cuda[1:]:
        return None
    newest = -built[1] if built else 0
    if match[1]:
        stable = (int(match[1]), int(match[2]))
        return None if stable > torch else (0, -stable[0], -stable[1], newest)
    is_cxx11 = task.target.torch.cxx11_abi if task.target.torch else True
    if (int(match[3]), int(match[4])) != torch or (match[5] and (match[5] == "cxx11") is not is_cxx11):
        return None
    return (1, bool(match[5]), newest)
