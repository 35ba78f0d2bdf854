"""Find the wheels of a lock that may hold code compiled with torch, by their names and what the cache knows of them.

`envbuilder/verify/wheels.py` judges them. `check` asks here whether there is something to judge, because reading ELF files is slow.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.tables.cuda import load_cuda_packages
from envbuilder.core.cache import Store, read_proved, save_proved, sha256_text
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.findings import Finding, Severity
from envbuilder.lock.model import Artifact, Lock
from envbuilder.recipe.model import Recipe

TORCH: Final = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCandidate:
    wheel: Artifact
    is_torchs: bool  # by its name or the table of CUDA packages: judged whatever it requires
    is_named: bool  # in the recipe
    is_here: bool  # in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What does not fit among the wheels and kernels of a lock, and the names of those that nothing was read of."""

    findings: tuple[Finding, ...] = ()
    absent: tuple[str, ...] = ()  # not in the cache
    in_part: tuple[str, ...] = ()  # not compared with torch, which is not in the cache

    def need_fitting(self, lock: Lock, before: tuple[Finding, ...] = ()) -> None:
        """Raise IncompatibleError with all findings, after those `before`, if there is an error among them."""
        wrong = [finding for finding in self.findings if finding.severity is Severity.ERROR]
        if wrong:
            count = "1 module" if len(wrong) == 1 else f"{len(wrong)} modules"
            kinds = "wheels and kernels" if lock.kernels else "wheels"
            message = f"{count} of the chosen {kinds} cannot be loaded in this environment"
            raise IncompatibleError(message, findings=(*before, *self.findings))


def torch_wheel(lock: Lock) -> Artifact | None:
    """Return the wheel of torch, None without torch or with that of the base image."""
    return next((wheel for wheel in lock.wheels if wheel.name == TORCH and wheel.kind == "wheel"), None)


def find_candidates(recipe: Recipe, lock: Lock, store: Store) -> Iterator[LinkCandidate]:
    """Yield the wheels that may link torch, and the NCCL that a recipe names."""
    named = {canonicalize_name(requirement.name) for requirement in parse_all(recipe.packages)}
    known, chosen = load_cuda_packages().by_name, chosen_names(lock)
    for wheel in lock.wheels if torch_wheel(lock) else ():
        if wheel.kind != "wheel" or wheel.name == TORCH or wheel.filename.endswith("-any.whl"):
            continue
        is_nccl = bool(recipe.nccl_version) and wheel.name.startswith("nvidia-nccl-")
        if _plain(wheel, store).exists() and not is_nccl and wheel.name not in chosen:
            continue
        candidate = LinkCandidate(
            wheel=wheel, is_named=wheel.name in named, is_here=store.artifact(wheel.sha256).is_file(),
            is_torchs=is_nccl or TORCH in wheel.name or wheel.name in chosen or wheel.name in known,
        )  # fmt: skip
        requires = known_requirements(wheel, store)
        may_link = requires is None or any(canonicalize_name(each.name) == TORCH for each in requires)
        is_named_here = candidate.is_named and candidate.is_here
        if candidate.is_torchs or is_named_here or (may_link and (candidate.is_named or candidate.is_here)):
            yield candidate


def chosen_names(lock: Lock) -> frozenset[str]:
    """Return the names of the wheels that `lock` chose in place of builds."""
    return frozenset(choice.name for choice in lock.chosen if choice.wheel)


# ---- what the cache knows of a wheel


def known_requirements(wheel: Artifact, store: Store) -> tuple[Requirement, ...] | None:
    """Return what a wheel requires, None if nobody has read it yet."""
    with contextlib.suppress(OSError, ValueError):
        return tuple(parse_all(json.loads(read_proved(_requires(wheel, store)))))
    return None


def keep_requirements(wheel: Artifact, store: Store, texts: Iterable[str]) -> None:
    save_proved(_requires(wheel, store), json.dumps(tuple(texts)))


def keep_plain(wheel: Artifact, store: Store) -> None:
    """Note that a wheel neither links torch nor requires it."""
    save_proved(_plain(wheel, store), "")


def _requires(wheel: Artifact, store: Store) -> Path:
    return store.proof(sha256_text(f"what the wheel {wheel.sha256} requires"))


def _plain(wheel: Artifact, store: Store) -> Path:
    return store.proof(sha256_text(f"the wheel {wheel.sha256} does not link torch"))


def parse_all(texts: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements. Those of old packages that no standard knows are left out."""
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:
            continue
