"""The stages of the texts that build an environment without the assemble engine.

The Dockerfile and the definition file of `render` download their inputs: each `Stage` describes one in both. `Dockerfile.base`, which
`build` runs with BuildKit, has the same stages in the same order, and reads its inputs from a folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envbuilder.plan.model import ENV_PREFIX, OWN, STANDALONE_PREFIX, Plan
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import in_comment, in_shell

EPOCH: Final = "ARG SOURCE_DATE_EPOCH"
OUT: Final = "/root/out"  # the root of new files in a stage of a rendered Dockerfile
OFF: Final = "--network=none"
KIT: Final = "--mount=type=bind,from=kit,source=/kit,target=/kit"
FETCH: Final = (
    "--mount=type=secret,id=ca,target=/run/secrets/ca",
    "--mount=type=bind,from=artifacts,target=/artifacts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Shell lines that run a step, or a part of it, with downloaded inputs."""

    name: str
    lines: list[str]
    comment: str = ""  # "": the stage's


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A stage of a rendered Dockerfile that fetches the inputs of another stage."""

    name: str
    comment: str
    arguments: tuple[str, ...]
    fetch: Callable[[Kit], list[str]]
    unpack: Callable[[str], list[str]] | None = None  # into a given folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step as text. It has no scripts if the plan lacks the step."""

    name: str  # of the step
    comment: str
    parents: tuple[str, ...]  # it starts from the first of these that the plan has
    head: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # of its RUN
    copies: tuple[str, ...]  # of the last stage
    download: Download | None = None
    # Lines that write files, given the root of the environment and the root of new files.
    files: Callable[[Kit, str, str], list[str]] = lambda _kit, _root, _out: []
    # Scripts that run inside the environment's root, given the root of new files.
    scripts: Callable[[Kit, str], list[Script]]

    def is_in(self, kit: Kit) -> bool:
        """Return whether the plan has this step."""
        return bool(self.scripts(kit, ""))


def _mount(source: str) -> str:
    """Return the mount of another stage's folder."""
    return f"--mount=type=bind,from={source},source=/{source},target=/{source}"


OS: Final = Stage(
    name="os",
    comment="The distribution: a root of exactly those packages, installed by their own dpkg.",
    parents=("scratch",),
    head=(EPOCH, "COPY --from=debs /root/target /"),
    options=(OFF, KIT, _mount("debs")),
    copies=("COPY --from=os / /",),
    download=Download(
        name="debs",
        comment="The distribution's packages, unpacked.",
        arguments=steps.MIRRORS,
        fetch=lambda kit: steps.fetch_files(kit, kit.plan.os.artifacts, "/debs"),
        unpack=steps.unpack,
    ),
    scripts=lambda kit, _: [
        Script(
            name="configure",
            comment="A root of exactly those packages, installed by their own dpkg.",
            lines=steps.configure(kit),
        )
    ],
)

INTERPRETER: Final = Stage(
    name="interpreter",
    comment="The standalone Python.",
    parents=("os",),
    options=(OFF, KIT, _mount("standalone")),
    copies=(f"COPY --link --from=interpreter {STANDALONE_PREFIX} {STANDALONE_PREFIX}",),
    download=Download(
        name="standalone",
        comment="The standalone Python.",
        arguments=steps.MIRRORS,
        fetch=lambda kit: steps.fetch_files(
            kit, kit.plan.interpreter.artifacts if kit.plan.interpreter else (), "/standalone"
        ),
    ),
    scripts=lambda kit, _: (
        [Script(name="interpreter", lines=steps.install_interpreter(kit))] if kit.plan.interpreter else []
    ),
)

PYTHON: Final = Stage(
    name="python",
    comment="The Python environment.",
    parents=("interpreter", "os"),
    head=(EPOCH, "ARG PYTORCH_INDEX", "ARG INDEX"),
    options=(KIT, *FETCH),
    copies=(f"COPY --link --from=python {ENV_PREFIX} {ENV_PREFIX}",),
    scripts=lambda kit, _: [Script(name="python", lines=steps.python(kit))],
)

CUDA: Final = Stage(
    name="cuda",
    comment="The CUDA toolkit; what the wheels have is linked.",
    parents=("python",),
    options=(OFF, KIT, _mount("parts")),
    copies=("COPY --link --from=cuda /usr/local/ /usr/local/",),
    download=Download(
        name="parts",
        comment="The CUDA toolkit's packages.",
        arguments=(*steps.MIRRORS, "PYTORCH_INDEX"),
        fetch=steps.fetch_parts,
    ),
    scripts=lambda kit, _: [Script(name="cuda", lines=steps.install_toolkit(kit))] if kit.plan.cuda else [],
)

EXTENSIONS: Final = Stage(
    name="extensions",
    comment="The extensions, from the recipe's own sources; no GPU is needed.",
    parents=("cuda", "python"),
    head=(EPOCH,),
    options=(OFF, KIT, "--mount=type=bind,target=/context"),
    copies=(f"COPY --link --from=extensions {OUT} /",),
    scripts=lambda kit, out: [
        Script(
            name=f"extension-{number}",
            comment=f"The extension {in_comment(one.name)}, from the recipe's own sources; no GPU is needed.",
            lines=[f"sh /kit/compile_one.sh /kit/{number} /context {in_shell(out)}"],
        )
        for number, one in enumerate(kit.compiles)
    ],
)

START: Final = Stage(
    name="start",
    comment="What runs first in each Python, and what a runtime reads.",
    parents=("interpreter", "os"),
    options=(OFF,),
    copies=(
        f"COPY --link --from=start {ENV_PREFIX} {ENV_PREFIX}",
        f"COPY --link --from=start {OWN} {OWN}",
        f"COPY --link --from=start {OUT} /",
    ),
    files=lambda kit, root, out: [*steps.start_files(kit, out=root), *steps.runtime(kit, out=out)],
    scripts=lambda kit, _: [Script(name="start", lines=steps.start_code(kit))],
)

STAGES: Final = (OS, INTERPRETER, PYTHON, CUDA, EXTENSIONS, START)  # in the order of their layers
ADDED: Final = (
    "added"  # a stage of `Dockerfile.base` alone: a rendered text installs added packages with all others
)
# The stages of `Dockerfile.base` that BuildKit exports, each with its layers in order.
EXPORTED: Final = {
    "layers": (*(stage.name for stage in STAGES), ADDED),
    "edited": (EXTENSIONS.name,),
    "more": (ADDED,),
}


def arguments(plan: Plan) -> dict[str, str]:
    """Return the arguments of `Dockerfile.base` for a plan."""
    given = {"BASE": "image" if plan.os.base else "suite"}
    if plan.interpreter:
        given["INTERPRETER"] = "standalone"
    if plan.cuda:
        given["CUDA"] = "toolkit"
    if plan.extensions:
        given["EXTENSIONS"] = "compiled"
    if plan.added:
        given["ADDED"] = "additions"
    return given | {"SOURCE_DATE_EPOCH": str(plan.epoch)}
