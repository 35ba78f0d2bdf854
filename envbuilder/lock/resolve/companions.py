"""Keep torchvision and torchaudio to the build of torch. Each is compiled against one build and does not load beside another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.suggest import find_on_package_index
from envbuilder.compat.tables.torch import COMPANIONS, CPU, cuda_of, index_build
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import ResolveContext, Target
from envbuilder.lock.resolve.uv_question import Question
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.recipe.model import Recipe
from envbuilder.sources.http.reachable import reach
from envbuilder.sources.names import shown

_MIRROR: Final = "ENVBUILDER_PYTORCH_INDEX names a mirror of it, and a folder of wheels serves as well"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The build of torch in one environment."""

    recipe: Recipe
    target: Target
    context: ResolveContext

    @property
    def own(self) -> str:
        """The build if PyTorch's own index alone has it, otherwise ""."""
        return index_build(self.target.torch, self.recipe.cuda_minor) if self.recipe.pytorch else ""

    @property
    def packaged(self) -> str:
        """The build in the package index."""
        return self.target.torch.pypi if self.target.torch else ""

    @property
    def page(self) -> str:
        return f"{self.context.sources().pytorch}{self.own}/"


def ask_for_one_build(torch: TorchBuild, question: Question, uv: Uv) -> tuple[tuple[Artifact, ...], Question]:
    """Return uv's answer with all companions of torch in torch's build, and the question that was asked for it.

    Where torch itself comes from a folder, PyTorch's own index is searched only if the folder lacks a companion.
    """
    try:
        packages = uv.ask(question)
    except (FetchError, IncompatibleError) as error:
        if question.build:
            _need_own_index(torch, "torch {}", error)
        raise
    others = of_other_builds(packages, torch)
    narrower = replace(question, build=torch.own, constraints=(*question.constraints, *_without(others)))
    if others and narrower != question:
        try:
            packages, question = uv.ask(narrower), narrower
        except (FetchError, IncompatibleError) as error:
            _need_own_index(torch, f"{others[0].name} for torch {{}}", error)
            raise
        others = of_other_builds(packages, torch)
    if others:
        raise _refused(others[0], torch)
    return packages, question


def of_other_builds(packages: Sequence[Artifact], torch: TorchBuild) -> list[Artifact]:
    """Return the companions that are compiled against another build than the environment's torch."""
    if not torch.recipe.pytorch:
        return []
    wanted = torch.own or torch.packaged
    return [wheel for wheel in packages if wheel.name in COMPANIONS and _build(wheel, torch) != wanted]


def _build(wheel: Artifact, torch: TorchBuild) -> str:
    return wheel.path.partition("/")[0] if wheel.source == "pytorch" else torch.packaged


def _without(others: Sequence[Artifact]) -> list[str]:
    """Return the constraints that exclude wheels whose version names their build."""
    return [f"{wheel.name}!={wheel.version}" for wheel in others if "+" in wheel.version]


def _refused(other: Artifact, torch: TorchBuild) -> IncompatibleError:
    """Return the error for a build that PyTorch's own index should have replaced."""
    build, name = _build(other, torch), f"{other.name} {other.version}"
    made = f"for CUDA {cuda_of(build)}" if build not in ("", CPU) else "for another build"
    where = " of the package index" if other.source == "pypi" else ""
    wanted = f"{other.name} {other.version.partition('+')[0]}+{torch.own}"
    return IncompatibleError(
        f"{name}{where} is compiled {made} and does not load beside torch {torch.recipe.pytorch}+{torch.own}; "
        f"{wanted} was expected, and {shown(torch.page)} does not have it",
        hint=_MIRROR,
    )


def _need_own_index(torch: TorchBuild, what: str, error: FetchError | IncompatibleError) -> None:
    """Raise FetchError if PyTorch's own index, which alone has this build, does not answer."""
    (reached,) = reach((torch.page,), torch.context.sources().certificates)
    if not reached.trouble:
        return
    inside = torch.target.base.inside if torch.target.base else None
    packaged = find_on_package_index(make_context(torch.recipe, load_tables(), base=inside))
    ways = [f"or write {packaged.words()}: that build is in the package index"] if packaged else []
    name = what.format(f"{torch.recipe.pytorch}+{torch.own}")
    raise FetchError(
        f"{name} is in PyTorch's own index alone, and {reached.url} does not answer: {reached.trouble}",
        hint="; ".join([_MIRROR, *ways]),
    ) from error
