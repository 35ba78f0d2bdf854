"""One stage for each step that has one: the single description of every text that builds an environment without the assemble engine.

The Dockerfile that BuildKit runs for `build` reads its inputs from a folder. The Dockerfile and the definition file that `render`
prints download them. All three have the same stages in the same order. What differs stands side by side here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envbuilder.plan.model import ENV_PREFIX, Plan
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import in_comment

EPOCH: Final = "ARG SOURCE_DATE_EPOCH"
OUT: Final = "/root/out"  # in a stage of a rendered Dockerfile: the root of what is new
LAYER: Final = "/layer"  # the same in a stage of `Dockerfile.base`
OFF: Final = "--network=none"
KIT: Final = "--mount=type=bind,from=kit,source=/kit,target=/kit"
FETCH: Final = (
    "--mount=type=secret,id=ca,target=/run/secrets/ca",
    "--mount=type=bind,from=artefacts,target=/artefacts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to make a stage of `Dockerfile.base`, whose inputs are files of a folder."""

    name: str
    parent: str  # the stage that it is made in
    comment: str = ""  # if it is not the stage's own
    head: tuple[str, ...] = ()
    mounts: tuple[str, ...]  # of the folder, `source:target` where the target has another name
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An argument of `Dockerfile.base` that says which variant of a stage is made."""

    argument: str
    default: str
    comment: str
    of_plan: Callable[[Plan], str]
    lines: tuple[str, ...]  # that make the stage out of the variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Shell lines that make a step, or a part of it, with inputs that the text has downloaded."""

    name: str
    lines: list[str]
    comment: str = ""  # if it is not the stage's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A stage of a rendered Dockerfile that fetches the inputs of another one."""

    name: str
    comment: str
    arguments: tuple[str, ...]
    fetch: Callable[[Kit], list[str]]
    unpack: Callable[[str], list[str]] | None = None  # into the folder that is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step as text. A stage that a plan does not have has no scripts."""

    name: str  # of the step
    comment: str
    # In `Dockerfile.base`.
    variants: tuple[Variant, ...]
    choice: Choice | None = None
    layer: tuple[str, str] = (LAYER, "/")  # what of the stage goes where in the image
    # In a rendered text.
    parents: tuple[str, ...]  # the stage is made in the first one that the plan has
    head: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # of its RUN
    copies: tuple[str, ...]  # of the last stage
    download: Download | None = None
    # Lines that write files, given the root of the environment and the root of what is new.
    files: Callable[[Kit, str, str], list[str]] = lambda _kit, _root, _out: []
    # What runs inside the environment's root, given the root of what is new.
    scripts: Callable[[Kit, str], list[Script]]

    def is_in(self, kit: Kit) -> bool:
        """Return whether the plan has this step."""
        return bool(self.scripts(kit, ""))


def _mount(source: str) -> str:
    return f"--mount=type=bind,from={source},source=/{source},target=/{source}"


OS: Final = Stage(
    name="os",
    comment="The distribution: a root of exactly those packages, installed by their own dpkg.",
    variants=(
        Variant(
            name="suite",
            comment="A root of exactly the locked packages. They are unpacked, so that their own dpkg can run and install them.",
            parent="scratch",
            head=("ADD os/root.tar /", EPOCH),
            mounts=("os", "kit"),
            command='set -a && . /os/settings && sh /kit/configure_os.sh /os/debs "$GCC" "$REPEAT" && sh /os/finish.sh ""',
        ),
        Variant(
            name="image",
            comment="An image, with the locked packages that it lacks.",
            parent="base",
            head=("USER 0", EPOCH),
            mounts=("os", "kit"),
            command='["/bin/sh", "/kit/add_packages.sh", "/os"]',
        ),
    ),
    choice=Choice(
        argument="BASE",
        default="suite",
        comment="Where the root comes from: `suite`, the distribution's packages alone; `image`, an image with the packages that it lacks.",
        of_plan=lambda plan: "image" if plan.os.base else "suite",
        lines=(
            "FROM ${BASE} AS root",
            "",
            "# Either of them without its settings: what an image sets for its own programs is not for a build.",
            "FROM scratch AS os",
            "COPY --link --from=root / /",
        ),
    ),
    layer=("/", "/"),
    parents=("scratch",),
    head=(EPOCH, "COPY --from=debs /root/target /"),
    options=(OFF, KIT, _mount("debs")),
    copies=("COPY --from=os / /",),
    download=Download(
        name="debs",
        comment="The distribution's packages, unpacked.",
        arguments=("DEBIAN_MIRROR",),
        fetch=lambda kit: steps.fetch_debs(kit.plan.os.artefacts, "/debs"),
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

PYTHON: Final = Stage(
    name="python",
    comment="The Python environment.",
    variants=(
        Variant(
            name="python",
            parent="os",
            head=(EPOCH,),
            mounts=("python", "kit"),
            command='["/bin/sh", "/kit/install_wheels.sh", "/python"]',
        ),
    ),
    layer=(ENV_PREFIX, ENV_PREFIX),
    parents=("os",),
    head=(EPOCH, "ARG PYTORCH_INDEX", "ARG INDEX"),
    options=(KIT, *FETCH),
    copies=(f"COPY --link --from=python {ENV_PREFIX} {ENV_PREFIX}",),
    scripts=lambda kit, _: [Script(name="python", lines=steps.python(kit))],
)

CUDA: Final = Stage(
    name="cuda",
    comment="The CUDA toolkit; what the wheels have is linked.",
    variants=(
        Variant(
            name="toolkit",
            parent="python",
            mounts=("cuda", "kit"),
            command='. /cuda/settings && "$INTERPRETER" /kit/install_toolkit.py /cuda/rules.json /cuda/parts "$SITE" \\\n'
            f'    && mkdir -p {LAYER}/usr/local && mv /usr/local/cuda "/usr/local/cuda-$CUDA" {LAYER}/usr/local',
        ),
    ),
    choice=Choice(
        argument="CUDA",
        default="nothing",
        comment="The CUDA toolkit: `toolkit`, or `nothing`.",
        of_plan=lambda plan: "toolkit" if plan.cuda else "nothing",
        lines=("FROM ${CUDA} AS cuda",),
    ),
    parents=("python",),
    options=(OFF, KIT, _mount("parts")),
    copies=("COPY --link --from=cuda /usr/local/ /usr/local/",),
    download=Download(
        name="parts",
        comment="The CUDA toolkit's packages.",
        arguments=("DEBIAN_MIRROR", "PYTORCH_INDEX"),
        fetch=lambda kit: steps.fetch_parts(kit.plan.cuda.artefacts if kit.plan.cuda else ()),
    ),
    scripts=lambda kit, _: [Script(name="cuda", lines=steps.install_toolkit(kit))] if kit.plan.cuda else [],
)

EXTENSIONS: Final = Stage(
    name="extensions",
    comment="The extensions, from the recipe's own sources; no GPU is needed.",
    variants=(
        Variant(
            name="compiled",
            comment="The extensions, from the recipe's own sources or by a project's own build; no GPU is needed.",
            parent="python",
            head=(f"COPY --link --from=cuda {LAYER} /", EPOCH),
            mounts=("extensions", "kit", "python/uv:uv", "kit/customize:customize"),
            command=f'for one in /extensions/[0-9]*; do sh /kit/compile_one.sh "$one" /extensions/sources {LAYER} || exit 1; done',
        ),
    ),
    choice=Choice(
        argument="EXTENSIONS",
        default="nothing",
        comment="The recipe's extensions: `compiled`, or `nothing`.",
        of_plan=lambda plan: "compiled" if plan.extensions else "nothing",
        lines=("FROM ${EXTENSIONS} AS extensions",),
    ),
    parents=("cuda", "python"),
    head=(EPOCH,),
    options=(OFF, KIT, "--mount=type=bind,target=/context"),
    copies=(f"COPY --link --from=extensions {OUT} /",),
    scripts=lambda kit, out: [
        Script(
            name=f"extension-{number}",
            comment=f"The extension {in_comment(one.name)}, from the recipe's own sources; no GPU is needed.",
            lines=steps.compile_one(number, out=out),
        )
        for number, one in enumerate(kit.compiles)
    ],
)

START: Final = Stage(
    name="start",
    comment="What runs first in each Python, and what a runtime reads.",
    variants=(
        Variant(
            name="start",
            comment="What each Python of the environment runs first.",
            parent="os",
            head=(f"COPY --link start {LAYER}",),
            mounts=("python/settings:settings", "kit"),
            command=f'. /settings && sh /kit/write_start.sh "$INTERPRETER" {LAYER}',
        ),
    ),
    parents=("os",),
    options=(OFF,),
    copies=("COPY --link --from=start /opt /opt", f"COPY --link --from=start {OUT} /"),
    files=lambda kit, root, out: [*steps.start_files(kit, out=root), *steps.runtime(kit, out=out)],
    scripts=lambda kit, _: [Script(name="start", lines=steps.start_code(kit))],
)

STAGES: Final = (OS, PYTHON, CUDA, EXTENSIONS, START)  # in the order of their layers
# The stages of `Dockerfile.base` that are exported, each with its layers in their order.
EXPORTED: Final = {"layers": tuple(stage.name for stage in STAGES), "edited": (EXTENSIONS.name,)}


def arguments(plan: Plan) -> dict[str, str]:
    """Return what `Dockerfile.base` is told of the plan, by the names of its ARGs. A stage that makes nothing is not named."""
    choices = [stage.choice for stage in STAGES if stage.choice]
    given = {one.argument: one.of_plan(plan) for one in choices if one.of_plan(plan) != "nothing"}
    return given | {"SOURCE_DATE_EPOCH": str(plan.epoch)}
