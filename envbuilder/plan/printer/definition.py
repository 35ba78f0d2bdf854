"""The plan as a definition file. Its first stage makes the root in a folder, program by program; the second one copies that.

During `%post`, Apptainer mounts the host's /tmp, /var/tmp and maybe a home over those of the stage. To protect the host's files, the
text writes only below folders that it creates and that must not exist before. Commands that may remove files run inside the new root,
which lacks those mounts. `rmdir` removes mount points, because it removes only empty folders.
"""

from collections.abc import Sequence
from typing import Final

from envbuilder.plan.contents import run_lines
from envbuilder.plan.printer.dockerfile import command_line
from envbuilder.plan.printer.printed import (
    ARGUMENTS,
    WRITE_MARKED,
    Printed,
    fetch,
    in_comment,
    in_shell,
    install_tools,
    marked,
    with_parts,
)
from envbuilder.plan.program import BASE, INPUTS, OUT, PROGRAMS, SPEC, Program

_TARGET: Final = "/target"
_SECTION: Final = 50_000  # bytes; Apptainer's limit is 64 KiB
_MERGED: Final = "bin sbin lib lib32 lib64 libx32"
# Debian's folders below /. The others are links, or folders that Apptainer makes and mounts.
_TOP: Final = ("boot", "etc", "home", "media", "mnt", "opt", "root", "run", "srv", "tmp", "usr", "var")
_HEAD: Final = """\
# The environment `{name}` without envbuilder: {summary}{machine}
#
#   apptainer build --fakeroot --bind FOLDER_OF_THE_RECIPE:/context:ro {name}.sif THIS_FILE
#
# Every file is fetched by its sha256. What lies in a folder already is taken from there with `--bind FOLDER:/artifacts:ro`;
# certificates for a proxy that looks into TLS are the file `certificates.pem` in it. Where Docker Hub is not reached:
# `--build-arg BOOTSTRAP=docker-archive --build-arg BASE=FILE`, an image with apt; nothing of it comes into the SIF.
{image}
Bootstrap: {{{{ BOOTSTRAP }}}}
From: {{{{ BASE }}}}
Stage: workshop

%arguments
    BOOTSTRAP=docker
    BASE={base}
{mirrors}
    PYTORCH_INDEX={pytorch}

%setup
    # Where `--bind` puts what it brings.
    mkdir "${{APPTAINER_ROOTFS:?}}/artifacts" "${{APPTAINER_ROOTFS:?}}/context"
{files}
"""
_IMAGE: Final = """
Bootstrap: docker
From: {image}
Stage: base

%setup
    # Apptainer copies no pipes and sockets, and a layer has none.
    find "${{APPTAINER_ROOTFS:?}}" -xdev \\( -type p -o -type s \\) -delete
"""
_FROM_IMAGE: Final = f"""
%files from base
    / {_TARGET}
"""
# Mounts end with their namespace, so no later step sees them.
_ENTER: Final = f"""\
# Runs a program inside the new root: enter STEP COMMAND…
enter() {{
  mkdir -p {_TARGET}{OUT} {_TARGET}/step {_TARGET}{PROGRAMS}
  unshare --mount /bin/bash -euc '
    for name in dev proc steps; do mkdir -p "{_TARGET}/$name" && mount --rbind "/$name" "{_TARGET}/$name"; done
    mount --bind "/made/$0/step" {_TARGET}/step
    exec chroot {_TARGET} "$@"' "$@"
}}
# Puts what the program of a step made in its place: keep STEP
keep() {{
  mv "/made/$1{OUT}" {_TARGET}{OUT}
  chroot {_TARGET} /bin/sh -euc 'cp -a {OUT}/. / && rm -r {OUT}'
}}"""
_LAST: Final = """\
Bootstrap: scratch
Stage: final

%setup
    # `%files`, which ran before, follows a link below /, and leaves a folder that is there as it is.
    for name in {merged}; do
      [ -d "${{APPTAINER_ROOTFS:?}}/usr/$name" ] && [ ! -e "${{APPTAINER_ROOTFS:?}}/$name" ] || continue
      ln -s "usr/$name" "${{APPTAINER_ROOTFS:?}}/$name"
      touch --no-dereference --date=@{epoch} "${{APPTAINER_ROOTFS:?}}/$name"
    done
    for name in tmp root; do mkdir -p "${{APPTAINER_ROOTFS:?}}/$name"; done
    chmod 1777 "${{APPTAINER_ROOTFS:?}}/tmp"
    chmod 700 "${{APPTAINER_ROOTFS:?}}/root"
{modes}
%files from workshop
{files}

%runscript
{run}

%labels
{labels}
"""


_MODES: Final = ".singularity.d/modes"
_GIVE_MODES: Final = f"""\
    while read -r mode name; do
      [ -L "${{APPTAINER_ROOTFS:?}}/$name" ] || chmod "$mode" "${{APPTAINER_ROOTFS:?}}/$name"
    done <"${{APPTAINER_ROOTFS:?}}/{_MODES}"
    rm "${{APPTAINER_ROOTFS:?}}/{_MODES}"
"""
# An image may have other folders below / than Debian. Those that Apptainer makes go, and the links, which `%files` would follow.
_LEAVE_IMAGE: Final = (
    "rm -r --one-file-system dev proc sys",
    f'for name in {_MERGED}; do [ ! -L "$name" ] || rm "$name"; done',
    f"stat --format='%a %n' * >{_MODES}",  # `%files` gives a folder below / the usual mode
)


def print_definition(printed: Printed) -> str:
    """Return the whole text. `docs/how-to/render.md` compares its SIF with envbuilder's."""
    plan = printed.plan
    head = _HEAD.format(
        name=plan.name, summary=in_comment(printed.summary) or "see its recipe", machine=printed.machine, base=printed.workshop,
        mirrors="\n".join(f"    {name}=" for name in ARGUMENTS if name != "PYTORCH_INDEX"),
        pytorch=printed.pytorch_index.rstrip("/"), image=_IMAGE.format(image=plan.os.image) if plan.os.image else "",
        files=_FROM_IMAGE if plan.os.image else "",
    )  # fmt: skip
    exports = ".singularity.d/env/10-docker2singularity.sh"
    top, more = (("*",), (exports, _MODES)) if plan.os.image else (_TOP, (exports,))
    files = [f"    {_TARGET}/{name} /" for name in top] + [f"    {_TARGET}/{name} /{name}" for name in more]
    last = _LAST.format(
        merged=_MERGED, epoch=plan.epoch, modes=_GIVE_MODES if plan.os.image else "", files="\n".join(files),
        run="\n".join(f"    {line}" for line in run_lines(plan.runtime)),
        labels="\n".join(f"    {name} {value}" for name, value in plan.runtime.labels),
    )  # fmt: skip
    return head + _sections(marked(_post(printed))) + last


def _sections(lines: Sequence[str]) -> str:
    """Split one script into sections, because Apptainer limits their length. Apptainer runs them as one.

    Sections end at an empty line that is not part of a file.
    """
    sections = [""]
    for block in filter(None, "\n".join(lines).split("\n\n")):
        if len(sections[-1].encode()) + len(block.encode()) > _SECTION:
            sections.append("")
        sections[-1] += f"{block}\n\n"
    return "".join(
        f"%post{'' if number else ' -c /bin/bash'}\n{text}" for number, text in enumerate(sections)
    )


def _post(printed: Printed) -> list[str]:
    epoch = printed.plan.epoch
    lines = [
        "set -euo pipefail",
        "umask 022",
        f"export SOURCE_DATE_EPOCH={epoch}",
        " ".join(f'{name}="{{{{ {name} }}}}"' for name in ARGUMENTS),
        f"export {' '.join(ARGUMENTS)}",
        WRITE_MARKED,
        _ENTER,
        "",
        "# The workshop's tools, and the programs that the steps below run.",
        *install_tools(printed, "mount"),
        "mkdir /made",
    ]
    # A program runs in the root of its lower steps alone, so what it does not stand on is put in its place after it has run.
    waiting = {program.name for program in printed.programs if not program.changes}
    for program in sorted(printed.programs, key=lambda program: (program.is_outside, len(_roots(program)))):
        lines += [f"keep {name}" for name in _roots(program) if name in waiting]
        waiting -= set(_roots(program))
        for run in with_parts(program):
            lines += ["", f"# {in_comment(run.why[:1].upper() + run.why[1:])}.", *_step(run, printed)]
    lines += ["", "# What no other program stood on."]
    return [
        *lines,
        *(f"keep {program.name}" for program in printed.programs if program.name in waiting),
        "",
        "# The folders that things were mounted on, which are empty now; and no time after the epoch.",
        f"cd {_TARGET} && rmdir step steps",
        *(_LEAVE_IMAGE if printed.plan.os.image else ()),
        f"find {_TARGET} -xdev -newermt @{epoch} -exec touch --no-dereference --date=@{epoch} {{}} +",
    ]


def _roots(program: Program) -> tuple[str, ...]:
    """Return the names of the steps that a program or a part of it runs on, bottom first."""
    return max((run.root for run in with_parts(program)), key=len)


def _step(program: Program, printed: Printed) -> list[str]:
    """Return the lines that run one program, whose OUT is a folder beside its inputs then."""
    made = f"/made/{program.name}"
    lines = fetch(program, printed, below=made)
    lines += [f"mv /made/{part.name}{OUT}/* {made}{INPUTS}/{part.name}/" for part in program.parts]
    if program.is_outside:
        folders = (f"{made}{SPEC}", f"{made}{INPUTS}", f"{made}{OUT}")
        words = (program.interpreter, f"{PROGRAMS}/{program.files[0]}", *folders)
        return [*lines, f"mkdir {made}{OUT}", " ".join(map(in_shell, words))]
    if program.changes and program.changes != BASE:
        lines.append(f"mv {made}{INPUTS}/{program.changes} {_TARGET}")
    lines.append(f"enter {in_shell(program.name)} {command_line(program, printed.plan.epoch)}")
    return lines if program.changes else [*lines, f"mv {_TARGET}{OUT} {made}{OUT}"]
