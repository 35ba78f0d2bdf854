"""The plan as a Dockerfile that downloads its inputs, and `Dockerfile.base`, which reads them from a folder."""

import json
from collections.abc import Sequence
from typing import Final

from envbuilder.plan.contents import START, entry_point
from envbuilder.plan.printer.quote import WRITE, in_comment, in_dockerfile
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.stages import ARGUMENTS, FETCH, LAYER, OFF, OUT, STAGES, Download, Stage

_HEAD: Final = """\
# The environment `{name}` without envbuilder: {summary}{machine}
#
#   docker buildx build --file THIS_FILE --tag {name} --build-arg SOURCE_DATE_EPOCH={epoch} FOLDER_OF_THE_RECIPE
#
# Every package is fetched by its sha256. Where the network is behind a proxy that looks into TLS, add
# `--secret id=ca,src=FILE_OF_CERTIFICATES`. What lies in a folder already is taken from there with
# `--build-context artifacts=FOLDER`. The same time for each file: `--output type=oci,dest=FILE,rewrite-timestamp=true`.
#
# hadolint global ignore=DL3003,DL3008,DL3009,DL3067,DL4006,SC3040
# Why those: each step is one script of bash that sets pipefail itself and goes where it works; the workshop's own packages
# come into no image, so none is pinned or tidied away; the last stage takes the whole of the root that was made for it.

# The workshop: any image with apt and dpkg. Nothing of it comes into the image.
ARG BASE={base}
# PyTorch's own indexes, for builds that the package index does not have.
ARG PYTORCH_INDEX={pytorch}
# Addresses of mirrors and of a package index; empty: those that the workshop's apt and uv know by themselves.
{mirrors}
ARG INDEX=
"""
_STRICT: Final = ("#!/bin/bash", "set -euo pipefail")
_BASE_HEAD: Final = """\
# The layers of an environment, out of a folder with everything that they are made of: nothing is fetched.
#
#   envbuilder build NAME --engine docker --prepare FOLDER      fills the folder, and prints the command that builds it
#   docker buildx build --build-arg … FOLDER                    builds it
#
# Each stage reads its own part of the folder, mounted and not copied, and has no network; those that do not stand on one
# another run side by side. Each COPY of the stages `layers`, `edited` and `more` is one layer. docs/how-to/docker.md says what is in the folder.
#
# Written by `.venv/bin/pytest --update-golden tests/plan/test_render.py`, from envbuilder/plan/render/stages.py.
#
# hadolint global ignore=DL3002,DL3006,DL3067
# Why those: `base` is no image of a hub but a build context, the image that the recipe stands on; packages are added to it as root;
# and of a root that was made here all is wanted.
"""
_BASE_NOTHING: Final = f"""\
# The layer of what an environment does not have.
FROM scratch AS nothing
WORKDIR {LAYER}
"""
_BASE_EDITED: Final = f"""\
# What an edit of a source changes, alone: nobody waits for the export of layers that are there.
FROM scratch AS edited
COPY --link --from=extensions {LAYER} /

# What a recipe adds to another one, alone.
FROM scratch AS more
COPY --link --from=added {LAYER} /
"""
_BASE_LAST: Final = """\
# For those who build by hand. `envbuilder build` takes the layers, and writes recipe, lock, SBOM and provenance beside them.
FROM layers
COPY --link runtime /
ENV PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


def render_dockerfile(kit: Kit) -> str:
    """Return the whole text. `docs/how-to/render.md` compares its image with envbuilder's."""
    plan = kit.plan
    head = _HEAD.format(
        name=plan.name,
        summary=in_comment(kit.summary) or "see its recipe",
        machine=kit.machine,
        epoch=plan.epoch,
        base=kit.base,
        mirrors="\n".join(f"ARG {name}=" for name in steps.MIRRORS),
        pytorch=in_dockerfile(kit.pytorch_index.rstrip("/")),
    )
    stages = [stage for stage in STAGES if stage.is_in(kit)]
    downloads = [stage.download for stage in stages if stage.download]
    texts = [
        _block("Files that need not be fetched: `--build-context artifacts=FOLDER` takes the place of this empty stage.",
               ["FROM scratch AS artifacts"]),
        _block("The workshop's tools.", ["FROM ${BASE} AS workshop"], _run(steps.tools(kit), *FETCH)),
        _block("The programs that the stages below run.", ["FROM workshop AS kit"], _run(steps.programs(kit), OFF)),
        *(_download(one, kit) for one in downloads),
        *(_stage(stage, kit, [one.name for one in stages]) for stage in stages),
    ]  # fmt: skip
    return "\n".join([head, *texts, _last(kit, stages)])


def _download(download: Download, kit: Kit) -> str:
    head = [f"FROM workshop AS {download.name}", *(f"ARG {name}" for name in download.arguments)]
    runs = [_run(download.fetch(kit), *FETCH)]
    if download.unpack:
        runs.append(_run(download.unpack("/root/target"), OFF))
    return _block(download.comment, head, *runs)


def _stage(stage: Stage, kit: Kit, there: Sequence[str]) -> str:
    parent = next(name for name in stage.parents if name in there or name == "scratch")
    files = stage.files(kit, "", OUT)
    runs = [
        _run([*files, *([""] if files else []), *script.lines], *stage.options)
        for script in stage.scripts(kit, OUT)
    ]
    return _block(stage.comment, [f"FROM {parent} AS {stage.name}", *stage.head], *runs)


def _last(kit: Kit, stages: Sequence[Stage]) -> str:
    lines = ["# The image.", "FROM scratch", *(line for stage in stages for line in stage.copies)]
    lines += [f"ENV {name}={in_dockerfile(value)}" for name, value in kit.plan.runtime.env]
    lines += [f"LABEL {name}={in_dockerfile(value)}" for name, value in kit.labels]
    first, default = entry_point(kit.plan.runtime)
    return "\n".join(lines) + "\n" + _commands(first, default)


def _commands(first: Sequence[str], default: Sequence[str]) -> str:
    """Return the lines of `contents.entry_point`."""
    return f"ENTRYPOINT {json.dumps(first)}\n" + (f"CMD {json.dumps(default)}\n" if default else "")


def _block(comment: str, head: Sequence[str], *runs: str) -> str:
    return "\n".join([f"# {comment}", *head, *runs]).rstrip("\n") + "\n"


def _run(lines: Sequence[str], *options: str) -> str:
    """Return a RUN with the script as a quoted here-document. Docker changes nothing in it, and no line ends it early.

    Its first line names the shell, so Docker runs it as a file: an argument of `sh -c` is limited to 128 KiB.
    """
    writes = [WRITE] if any(line.startswith("file ") for line in lines) else []
    return "\n".join([" ".join(["RUN", *options, "<<'SCRIPT'"]), *_STRICT, *writes, *lines, "SCRIPT", ""])


# ---- Dockerfile.base


def render_base() -> str:
    """Return `Dockerfile.base`, which is the same for every plan."""
    copies = [f"COPY --link --from={stage.name} {' '.join(stage.layer)}\n" for stage in STAGES[1:]]
    layers = "".join([f"FROM {STAGES[0].name} AS layers\n", *copies])
    stages = [stage.base for stage in STAGES]
    return "\n".join(
        [
            _BASE_HEAD,
            ARGUMENTS,
            _BASE_NOTHING,
            *stages,
            layers,
            _BASE_EDITED,
            _BASE_LAST + _commands((START,), ("/bin/bash",)),
        ]
    )
