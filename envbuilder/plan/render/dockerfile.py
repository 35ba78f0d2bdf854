"""The plan as a Dockerfile: stages that run side by side, and a last one that takes from each what the image has."""

from collections.abc import Sequence
from typing import Final

from envbuilder.plan.model import ENV_PREFIX
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import WRITE, in_comment, in_dockerfile

_HEAD: Final = """\
# The environment `{name}` without envbuilder: {summary}
#
#   docker buildx build --file THIS_FILE --tag {name} --build-arg SOURCE_DATE_EPOCH={epoch} FOLDER_OF_THE_RECIPE
#
# Every package is fetched by its sha256. Where the network is behind a proxy that looks into TLS, add
# `--secret id=ca,src=FILE_OF_CERTIFICATES`. What lies in a folder already is taken from there with
# `--build-context artefacts=FOLDER`. The same time for each file: `--output type=oci,dest=FILE,rewrite-timestamp=true`.
#
# hadolint global ignore=DL3003,DL3008,DL3009,DL3067,DL4006,SC3040
# Why those: each step is one script of bash that sets pipefail itself and goes where it works; the workshop's own packages
# come into no image, so none is pinned or tidied away; the last stage takes the whole of the root that was made for it.

# The workshop: any image with apt and dpkg. Nothing of it comes into the image.
ARG BASE={base}
# PyTorch's own indexes, for builds that the package index does not have.
ARG PYTORCH_INDEX={pytorch}
# Addresses of a Debian mirror and of a package index; empty: those that the workshop's apt and uv know by themselves.
ARG DEBIAN_MIRROR=
ARG INDEX=
"""
_FETCH: Final = (
    "--mount=type=secret,id=ca,target=/run/secrets/ca",
    "--mount=type=bind,from=artefacts,target=/artefacts",
)
_KIT: Final = "--mount=type=bind,from=kit,source=/kit,target=/kit"
_OFF: Final = "--network=none"
_STRICT: Final = ("#!/bin/bash", "set -euo pipefail")
_OUT: Final = "/root/out"  # in a stage: the root of what is new


def render_dockerfile(kit: Kit) -> str:
    """The whole text; `docs/render.md` says what its image has that envbuilder's has not."""
    plan = kit.plan
    head = _HEAD.format(
        name=plan.name,
        summary=in_comment(kit.summary) or "see its recipe",
        epoch=plan.epoch,
        base=kit.base,
        pytorch=in_dockerfile(kit.pytorch_index.rstrip("/")),
    )
    return "\n".join([head, *_fetching(kit), *_making(kit), _last(kit)])


def _stage(comment: str, head: Sequence[str], *runs: str) -> str:
    return "\n".join([f"# {comment}", *head, *runs]).rstrip("\n") + "\n"


def _run(lines: Sequence[str], *options: str) -> str:
    """A RUN whose text is a quoted here-document: Docker changes nothing in it, and no line of it ends it early.

    With a first line of its own it is run as a file; as an argument of `sh -c` it could be no longer than 128 KiB.
    """
    writes = [WRITE] if any(line.startswith("file ") for line in lines) else []
    return "\n".join([" ".join(["RUN", *options, "<<'SCRIPT'"]), *_STRICT, *writes, *lines, "SCRIPT", ""])


def _fetching(kit: Kit) -> list[str]:
    found = [
        _stage("Files that need not be fetched: `--build-context artefacts=FOLDER` takes the place of this empty stage.",
               ["FROM scratch AS artefacts"]),
        _stage("The workshop's tools.", ["FROM ${BASE} AS workshop"], _run(steps.tools(kit), *_FETCH)),
        _stage("The programs that the stages below run.", ["FROM workshop AS kit"], _run(steps.programs(kit), _OFF)),
        _stage("The distribution's packages, unpacked.", ["FROM workshop AS debs", "ARG DEBIAN_MIRROR"],
               _run(steps.fetch_debs(kit.plan.os.artefacts, "/debs"), *_FETCH), _run(steps.unpack("/root/target"), _OFF)),
    ]  # fmt: skip
    if kit.plan.cuda:
        head = ["FROM workshop AS parts", "ARG DEBIAN_MIRROR", "ARG PYTORCH_INDEX"]
        found.append(
            _stage(
                "The CUDA toolkit's packages.",
                head,
                _run(steps.fetch_parts(kit.plan.cuda.artefacts), *_FETCH),
            )
        )
    return found


def _making(kit: Kit) -> list[str]:
    epoch = "ARG SOURCE_DATE_EPOCH"
    debs = "--mount=type=bind,from=debs,source=/debs,target=/debs"
    found = [
        _stage("The distribution: a root of exactly those packages, installed by their own dpkg.",
               ["FROM scratch AS os", epoch, "COPY --from=debs /root/target /"], _run(steps.configure(kit), _OFF, _KIT, debs)),
        _stage("The Python environment.", ["FROM os AS python", epoch, "ARG PYTORCH_INDEX", "ARG INDEX"],
               _run(steps.python(kit), _KIT, *_FETCH)),
    ]  # fmt: skip
    if kit.plan.cuda:
        run = _run(steps.lay_out(kit), _OFF, _KIT, "--mount=type=bind,from=parts,source=/parts,target=/parts")
        found.append(
            _stage("The CUDA toolkit; what the wheels have is linked.", ["FROM python AS cuda"], run)
        )
    if kit.compiles:
        runs = [
            _run(steps.compile_one(number, out=_OUT), _OFF, _KIT, "--mount=type=bind,target=/context")
            for number in range(len(kit.compiles))
        ]
        head = [f"FROM {'cuda' if kit.plan.cuda else 'python'} AS extensions", epoch]
        found.append(_stage("The extensions, from the recipe's own sources; no GPU is needed.", head, *runs))
    run = _run(
        [*steps.start_files(kit, out=""), "", *steps.start_code(kit), *steps.runtime(kit, out=_OUT)], _OFF
    )
    found.append(
        _stage("What runs first in each Python, and what a runtime reads.", ["FROM os AS start"], run)
    )
    return found


def _last(kit: Kit) -> str:
    lines = ["# The image.", "FROM scratch", "COPY --from=os / /"]
    lines.append(f"COPY --link --from=python {ENV_PREFIX} {ENV_PREFIX}")
    if kit.plan.cuda:
        lines.append("COPY --link --from=cuda /usr/local/ /usr/local/")
    if kit.compiles:
        lines.append(f"COPY --link --from=extensions {_OUT} /")
    lines += ["COPY --link --from=start /opt /opt", f"COPY --link --from=start {_OUT} /"]
    lines += [f"ENV {name}={in_dockerfile(value)}" for name, value in kit.plan.runtime.env]
    lines += [f"LABEL {name}={in_dockerfile(value)}" for name, value in kit.labels]
    lines += ['ENTRYPOINT ["/opt/envbuilder/start"]', 'CMD ["/bin/bash"]']
    return "\n".join(lines) + "\n"
