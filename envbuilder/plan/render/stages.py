"""The stages of the three texts that build an environment without the assemble engine.

`Dockerfile.base`, which `build` runs with BuildKit, reads its inputs from a folder. The Dockerfile and the definition file of `render`
download them. All three have the same stages in the same order. Each `Stage` describes one in all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envbuilder.plan.contents import OF_PYTHON_LAYER
from envbuilder.plan.model import ENV_PREFIX, OWN, STANDALONE_PREFIX, Plan
from envbuilder.plan.program import INPUTS, SPEC
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import in_comment, in_shell

EPOCH: Final = "ARG SOURCE_DATE_EPOCH"
OUT: Final = "/root/out"  # the root of new files in a stage of a rendered Dockerfile
ARCHIVE: Final = "python.tar.gz"  # the standalone Python, in the folder that `Dockerfile.base` reads
LAYER: Final = "/layer"  # the same in a stage of `Dockerfile.base`
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
    # In `Dockerfile.base`.
    base: str  # its text, which reads inputs from a folder
    layer: tuple[str, str] = (LAYER, "/")  # a folder of the stage, and its path in the image
    # In the texts of `render`.
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


def _input(source: str, target: str = "") -> str:
    """Return the mount of an input of `Dockerfile.base`."""
    return f"--mount=type=bind,source={source},target=/{target or source}"


_BUILT: Final = f"--mount=type=bind,from=wheels,source={LAYER},target=/wheels"

OS: Final = Stage(
    name="os",
    comment="The distribution: a root of exactly those packages, installed by their own dpkg.",
    base=f"""\
# A root of exactly the locked packages. They are unpacked, so that their own dpkg can run and install them.
FROM scratch AS suite
ADD os/root.tar /
{EPOCH}
RUN {OFF} {_input("os")} {_input("kit")} \\
    set -a && . /os/settings && sh /kit/configure_os.sh /os/debs "$GCC" "$REPEAT" && sh /os/finish.sh ""

# An image, with the locked packages that it lacks.
FROM base AS image
USER 0
{EPOCH}
RUN {OFF} {_input("os")} {_input("kit")} \\
    ["/bin/sh", "/kit/add_packages.sh", "/os"]

FROM ${{BASE}} AS root

# Either of them without its settings: what an image sets for its own programs is not for a build.
FROM scratch AS os
COPY --link --from=root / /
""",
    layer=("/", "/"),
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
    base=f"""\
# The standalone Python, of a recipe whose suite or image has another one.
FROM os AS standalone
ADD interpreter/{ARCHIVE} /opt/
RUN {OFF} {_input("interpreter")} {_input("kit")} \\
    . /interpreter/settings && "$INTERPRETER" -B /kit/install_python.py {STANDALONE_PREFIX} \\
    && mkdir -p {LAYER}/opt && mv {STANDALONE_PREFIX} {LAYER}/opt

FROM ${{INTERPRETER}} AS interpreter
""",
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
    base=f"""\
# The wheels of packages that have none for this Python, built from their source distributions.
FROM os AS built
COPY --link --from=interpreter {LAYER} /
RUN {OFF} {_input("sdists")} {_input("kit")} {_input("python/settings", "settings")} \\
    {_input("python/uv", "uv")} {_input("kit/customize", "customize")} \\
    . /settings && for one in /sdists/*; do sh /kit/build_wheel.sh "$one" "$INTERPRETER" "{LAYER}/${{one##*/}}" || exit 1; done

FROM ${{WHEELS}} AS wheels

# The Python environment.
FROM os AS python
COPY --link --from=interpreter {LAYER} /
{EPOCH}
RUN {OFF} {_input("python")} {_input("kit")} {_BUILT} \\
    ["/bin/sh", "/kit/install_wheels.sh", "/python", "/wheels"]
""",
    layer=(ENV_PREFIX, ENV_PREFIX),
    parents=("interpreter", "os"),
    head=(EPOCH, "ARG PYTORCH_INDEX", "ARG INDEX"),
    options=(KIT, *FETCH),
    copies=(f"COPY --link --from=python {ENV_PREFIX} {ENV_PREFIX}",),
    scripts=lambda kit, _: [Script(name="python", lines=steps.python(kit))],
)

CUDA: Final = Stage(
    name="cuda",
    comment="The CUDA toolkit; what the wheels have is linked.",
    base=f"""\
# The CUDA toolkit; what the wheels have is linked.
FROM python AS toolkit
RUN {OFF} {_input("cuda")} {_input("kit")} \\
    . /cuda/settings && "$INTERPRETER" /kit/install_toolkit.py /cuda/rules.json /cuda/parts "$SITE" \\
    && mkdir -p {LAYER}/usr/local && mv /usr/local/cuda "/usr/local/cuda-$CUDA" {LAYER}/usr/local

FROM ${{CUDA}} AS cuda
""",
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
    base=f"""\
# The extensions, from the recipe's own sources or by a project's own build; no GPU is needed.
FROM python AS compiled
COPY --link --from=cuda {LAYER} /
{EPOCH}
RUN {OFF} {_input("extensions")} {_input("kit")} \\
    {_input("python/uv", "uv")} {_input("kit/customize", "customize")} \\
    for one in /extensions/[0-9]*; do sh /kit/compile_one.sh "$one" /extensions/sources {LAYER} || exit 1; done

FROM ${{EXTENSIONS}} AS extensions
""",
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
    base=f"""\
# What each Python of the environment runs first.
FROM os AS start
COPY --link --from=interpreter {LAYER} /
WORKDIR {LAYER}
RUN {OFF} {_input("python/settings", "settings")} {_input("steps")} {_input("start", "step")} \\
    . /settings && PYTHONHASHSEED=0 PYTHONWARNINGS=ignore "$INTERPRETER" /steps/start.py {SPEC} {INPUTS} {LAYER}
""",
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

ADDED: Final = Stage(
    name="added",
    comment="The packages that a recipe adds to another one.",
    base=f"""\
# The packages that a recipe adds to another one, without the environment that they were installed into.
FROM os AS additions
COPY --link --from=interpreter {LAYER} /
{EPOCH}
RUN {OFF} {_input("added")} {_input("kit")} {_BUILT} \\
    sh /kit/install_wheels.sh /added /wheels && . /added/settings && mkdir -p {LAYER}/opt && mv {ENV_PREFIX} {LAYER}/opt \\
    && for name in {" ".join(OF_PYTHON_LAYER).format("$VERSION")}; do rm "{LAYER}{ENV_PREFIX}/$name" || exit 1; done

FROM ${{ADDED}} AS added
""",
    parents=(),
    copies=(),
    scripts=lambda _kit, _out: [],  # a rendered text installs them with all others
)

STAGES: Final = (OS, INTERPRETER, PYTHON, CUDA, EXTENSIONS, START, ADDED)  # in the order of their layers
# The stages of `Dockerfile.base` that BuildKit exports, each with its layers in order.
EXPORTED: Final = {
    "layers": tuple(stage.name for stage in STAGES),
    "edited": (EXTENSIONS.name,),
    "more": (ADDED.name,),
}


ARGUMENTS: Final = """\
# Where the root comes from: `suite`, the distribution's packages alone; `image`, an image with the packages that it lacks.
ARG BASE=suite
# The standalone Python: `standalone`, or `nothing`.
ARG INTERPRETER=nothing
# The wheels that are built: `built`, or `nothing`.
ARG WHEELS=nothing
# The CUDA toolkit: `toolkit`, or `nothing`.
ARG CUDA=nothing
# The recipe's extensions: `compiled`, or `nothing`.
ARG EXTENSIONS=nothing
# What the recipe adds to another one: `additions`, or `nothing`.
ARG ADDED=nothing
"""


def arguments(plan: Plan) -> dict[str, str]:
    """Return the arguments of `Dockerfile.base` for a plan."""
    given = {"BASE": "image" if plan.os.base else "suite"}
    if plan.interpreter:
        given["INTERPRETER"] = "standalone"
    if plan.has_sdists:
        given["WHEELS"] = "built"
    if plan.cuda:
        given["CUDA"] = "toolkit"
    if plan.extensions:
        given["EXTENSIONS"] = "compiled"
    if plan.added:
        given["ADDED"] = "additions"
    return given | {"SOURCE_DATE_EPOCH": str(plan.epoch)}
