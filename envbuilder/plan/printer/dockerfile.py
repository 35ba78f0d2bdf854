"""The plan as a Dockerfile: one stage for each program, and one layer for each step.

It is written in two forms. BuildKit reads the inputs of `build` from a folder; a printed text has a stage for each program that
fetches them. The stages of the programs are the same.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from envbuilder import steps
from envbuilder.plan.contents import entry_point
from envbuilder.plan.model import Plan
from envbuilder.plan.printer.printed import (
    ARGUMENTS,
    WRITE,
    Printed,
    fetch,
    in_comment,
    in_dockerfile,
    in_shell,
    install_tools,
    with_parts,
)
from envbuilder.plan.program import BASE, INPUTS, OUT, PROGRAMS, Program

LAYERS: Final = "layers"  # the stage that BuildKit exports
ROOT: Final = "root.tar"  # in the folder: the root that a program changes
_OFF: Final = "--network=none"
_FETCH: Final = (
    "--mount=type=secret,id=ca,target=/run/secrets/ca",
    "--mount=type=bind,from=artifacts,target=/artifacts",
    "--mount=type=bind,target=/context",
)
_FETCHED: Final = "-inputs"  # ends the name of the stage that fetches a program's inputs
_HEAD: Final = """\
# The environment `{name}` without envbuilder: {summary}{machine}
#
#   docker buildx build --file THIS_FILE --tag {name} --build-arg SOURCE_DATE_EPOCH={epoch} FOLDER_OF_THE_RECIPE
#
# Every file is fetched by its sha256. Where the network is behind a proxy that looks into TLS, add
# `--secret id=ca,src=FILE_OF_CERTIFICATES`. What lies in a folder already is taken from there with
# `--build-context artifacts=FOLDER`. The same time for each file: `--output type=oci,dest=FILE,rewrite-timestamp=true`.
#
{lint}
# The workshop: any image with apt and dpkg. Nothing of it comes into the image.
ARG BASE={base}
# PyTorch's own indexes, for builds that the package index does not have.
ARG PYTORCH_INDEX={pytorch}
# Addresses of mirrors and of a package index; empty: those that the workshop's apt and pip know by themselves.
{mirrors}
"""
_LINT: Final = """\
# hadolint global ignore=DL3002,DL3003,DL3006,DL3008,DL3009,DL3067,DL4006,SC3040
# Why those: each fetch is one script of bash that sets pipefail itself and goes where it works; the workshop's own packages
# come into no image, so none is pinned or tidied away; programs run as root of the root that they make.
"""
_FOLDER_HEAD: Final = """\
# The layers of `{name}`, out of this folder: nothing is fetched. Each stage reads its own part of the folder, mounted and not
# copied, and has no network; those that do not stand on one another run side by side.
#
{lint}"""
_STRICT: Final = ("#!/bin/bash", "set -euo pipefail")


def print_dockerfile(printed: Printed) -> str:
    """Return the text that fetches its inputs. `docs/how-to/render.md` compares its image with envbuilder's."""
    plan = printed.plan
    head = _HEAD.format(
        name=plan.name, summary=in_comment(printed.summary) or "see its recipe", machine=printed.machine, epoch=plan.epoch,
        lint=_LINT, base=printed.workshop, pytorch=in_dockerfile(printed.pytorch_index.rstrip("/")),
        mirrors="\n".join(f"ARG {name}=" for name in ARGUMENTS if name != "PYTORCH_INDEX"),
    )  # fmt: skip
    blocks = [
        _block("Files that need not be fetched: `--build-context artifacts=FOLDER` takes the place of this empty stage.",
               ["FROM scratch AS artifacts"]),
        _block("The workshop's tools, and the programs that the stages below run.",
               ["FROM ${BASE} AS workshop", *_run(install_tools(printed), *_FETCH)]),
    ]  # fmt: skip
    for program in printed.every:
        arguments = (f"ARG {name}" for name in ARGUMENTS)
        blocks.append(
            _block(f"What `{program.name}` is made of.",
                   [f"FROM workshop AS {program.name}{_FETCHED}", *arguments, *_run(fetch(program, printed), *_FETCH)])
        )  # fmt: skip
        blocks.append(_stage(program, plan.os.image, plan.epoch, from_folder=False))
    copies = [_copy(program) for program in printed.programs]
    env = [f"ENV {name}={in_dockerfile(value)}" for name, value in plan.runtime.env]
    labels = [f"LABEL {name}={in_dockerfile(value)}" for name, value in printed.labels]
    first, default = entry_point(plan.runtime)
    start = [f"ENTRYPOINT {json.dumps(first)}", *([f"CMD {json.dumps(default)}"] if default else [])]
    blocks.append(_block("The image.", ["FROM scratch", *copies, *env, *labels, *start]))
    return "\n".join([head, *blocks])


def folder_dockerfile(plan: Plan, wanted: Collection[str]) -> str:
    """Return the text for a folder that `builder/buildkit/runner.py` writes. Its last stage has the layers of the wanted steps."""
    head = _FOLDER_HEAD.format(name=in_comment(plan.name), lint=_LINT)
    every = (part for program in plan.programs for part in with_parts(program) if not part.is_outside)
    stages = [_stage(program, BASE, plan.epoch, from_folder=True) for program in every]
    copies = [_copy(program) for program in plan.programs if program.name in wanted]
    start = [f"ENV {name}={in_dockerfile(value)}" for name, value in plan.runtime.env if name == "PATH"]
    return "\n".join([head, *stages, _block("The layers.", [f"FROM scratch AS {LAYERS}", *copies, *start])])


def _stage(program: Program, image: str, epoch: int, *, from_folder: bool) -> str:
    """Return the stage that runs a program, and leaves its tree at `program.out`."""
    if from_folder:
        mounts = [f"source={PROGRAMS[1:]}/{name},target={PROGRAMS}/{name}" for name in (*program.files, "uv")]
        mounts.append(f"source={program.name},target=/step")
        parts = [part for part in program.parts if not part.is_outside]  # what ran outside lies in the folder
    else:
        mounts = [f"from=workshop,source={PROGRAMS},target={PROGRAMS}"]
        mounts.append(f"from={program.name}{_FETCHED},source=/step,target=/step")
        parts = list(program.parts)
    mounts += [f"from={part.name},source={part.out},target={INPUTS}/{part.name}" for part in parts]
    options = (f"    --mount=type=bind,{mount} \\" for mount in mounts)
    run = [f"RUN {_OFF} \\", *options, f"    {command_line(program, epoch)}"]
    return _block(
        f"{in_comment(program.why[:1].upper() + program.why[1:])}.",
        [*_root(program, image, from_folder=from_folder), *run],
    )


def command_line(program: Program, epoch: int) -> str:
    """Return the line of a shell that runs a program with its environment and no other variable."""
    epochs = [("SOURCE_DATE_EPOCH", str(epoch))] if program.changes else []  # packages' scripts read it
    environment = (f"{name}={value}" for name, value in (*steps.ENVIRONMENT.items(), *epochs))
    return " ".join(map(in_shell, ("env", "-i", *environment, *program.argv)))


def _root(program: Program, image: str, *, from_folder: bool) -> Iterator[str]:
    """Yield the instructions that make the root of a program, and its OUT."""
    if program.changes == BASE:
        yield from (f"FROM {image} AS {program.name}", "USER 0")
    elif program.changes:
        part, _, path = program.changes.partition("/")
        yield f"FROM scratch AS {program.name}"
        yield f"ADD {program.name}/{ROOT} /" if from_folder else f"COPY --from={part} {OUT}/{path} /"
    else:
        first, *others = program.root or ("workshop",)
        yield f"FROM {first} AS {program.name}"
        yield from (f"COPY --link --from={name} {OUT} /" for name in others)
        yield f"WORKDIR {OUT}"


def _copy(program: Program) -> str:
    return f"COPY --link --from={program.name} {program.out} /"


def _block(comment: str, lines: Sequence[str]) -> str:
    return "\n".join([f"# {comment}", *lines]) + "\n"


def _run(lines: Sequence[str], *options: str) -> list[str]:
    """Return a RUN with the script as a quoted here-document. Docker changes nothing in it, and no line ends it early.

    Its first line names the shell, so Docker runs it as a file: an argument of `sh -c` is limited to 128 KiB.
    """
    writes = [WRITE] if any(line.startswith("file ") for line in lines) else []
    return [" ".join(["RUN", *options, "<<'SCRIPT'"]), *_STRICT, *writes, *lines, "SCRIPT"]
