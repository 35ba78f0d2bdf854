"""The plan as a definition file. The first stage makes the root in a separate folder, and the second stage copies it.

During `%post`, Apptainer mounts the host's /tmp, /var/tmp and maybe a home over those of the stage. To protect the host's files, the
text writes only below folders that it creates and that must not exist before. Commands that may remove files run inside the new root,
which lacks those mounts. `rmdir` removes mount points, because it removes only empty folders.
"""

from collections.abc import Sequence
from typing import Final

from envbuilder.plan.contents import run_lines
from envbuilder.plan.printer.quote import WRITE, WRITE_MARKED, file_lines, in_comment, marked
from envbuilder.plan.render import steps
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.stages import STAGES

_TARGET: Final = "/target"
_GIVEN: Final = ("artifacts", "context")  # folders that the user may bind
_OWN: Final = ("kit", *(stage.download.name for stage in STAGES if stage.download))
_SECTION: Final = 50_000  # bytes; Apptainer's limit is 64 KiB
_MERGED: Final = "bin sbin lib lib32 lib64 libx32"
# Debian's folders below /. The others are links, or folders that Apptainer makes and mounts.
_TOP: Final = ("boot", "etc", "home", "media", "mnt", "opt", "root", "run", "srv", "tmp", "usr", "var")
_HEAD: Final = """\
# The environment `{name}` without envbuilder: {summary}{machine}
#
#   apptainer build --fakeroot --bind FOLDER_OF_THE_RECIPE:/context:ro {name}.sif THIS_FILE
#
# Every package is fetched by its sha256. What lies in a folder already is taken from there with `--bind FOLDER:/artifacts:ro`;
# certificates for a proxy that looks into TLS are the file `certificates.pem` in it. Where Docker Hub is not reached:
# `--build-arg BOOTSTRAP=docker-archive --build-arg BASE=FILE`, an image with apt; nothing of it comes into the SIF.

Bootstrap: {{{{ BOOTSTRAP }}}}
From: {{{{ BASE }}}}
Stage: workshop

%arguments
    BOOTSTRAP=docker
    BASE={base}
{mirrors}
    INDEX=
    PYTORCH_INDEX={pytorch}

%setup
    # Where `--bind` puts what it brings.
    mkdir "${{APPTAINER_ROOTFS:?}}/artifacts" "${{APPTAINER_ROOTFS:?}}/context"

"""
# Mounts end with their namespace, so no later step sees them.
_ENTER: Final = f"""\
# Runs a script of /kit inside the new root, with what it reads mounted there.
enter() {{
  unshare --mount /bin/bash -euc '
    for name in dev proc {" ".join((*_GIVEN, *_OWN))}; do
      if [ -d "/$name" ]; then mkdir -p "{_TARGET}/$name" && mount --rbind "/$name" "{_TARGET}/$name"; fi
    done
    for name in hosts resolv.conf; do mount --bind "/etc/$name" "{_TARGET}/etc/$name"; done
    exec env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" \\
      INDEX="$INDEX" PYTORCH_INDEX="$PYTORCH_INDEX" chroot {_TARGET} /bin/bash "/kit/$0"' "$1"
}}"""
_LAST: Final = """\
Bootstrap: scratch
Stage: final

%setup
    # `%files`, which ran before, follows a link below /, and leaves a folder that is there as it is.
    for name in {merged}; do
      [ -d "${{APPTAINER_ROOTFS:?}}/usr/$name" ] || continue
      ln -s "usr/$name" "${{APPTAINER_ROOTFS:?}}/$name"
      touch --no-dereference --date=@{epoch} "${{APPTAINER_ROOTFS:?}}/$name"
    done
    for name in tmp root; do mkdir -p "${{APPTAINER_ROOTFS:?}}/$name"; done
    chmod 1777 "${{APPTAINER_ROOTFS:?}}/tmp"
    chmod 700 "${{APPTAINER_ROOTFS:?}}/root"

%files from workshop
{files}

%runscript
{run}

%labels
{labels}
"""


def render_definition(kit: Kit) -> str:
    """Return the whole text. `docs/how-to/render.md` compares its SIF with envbuilder's."""
    head = _HEAD.format(
        name=kit.plan.name,
        summary=in_comment(kit.summary) or "see its recipe",
        machine=kit.machine,
        base=kit.base,
        mirrors="\n".join(f"    {name}=" for name in steps.MIRRORS),
        pytorch=kit.pytorch_index.rstrip("/"),
    )
    exports = ".singularity.d/env/10-docker2singularity.sh"
    files = [f"    {_TARGET}/{name} /" for name in _TOP] + [f"    {_TARGET}/{exports} /{exports}"]
    last = _LAST.format(
        merged=_MERGED,
        epoch=kit.plan.epoch,
        files="\n".join(files),
        run="\n".join(f"    {line}" for line in run_lines(kit.plan.runtime)),
        labels="\n".join(f"    {name} {value}" for name, value in kit.plan.runtime.labels),
    )
    return head + _sections(marked(_post(kit))) + last


def _sections(lines: Sequence[str]) -> str:
    """Split one script into sections, because Apptainer limits their length. Apptainer runs them as one.

    Sections end at an empty line that is not part of a file.
    """
    blocks = [block for block in "\n".join(lines).split("\n\n") if block]
    sections = [""]
    for block in blocks:
        if len(sections[-1].encode()) + len(block.encode()) > _SECTION:
            sections.append("")
        sections[-1] += f"{block}\n\n"
    return "".join(
        f"%post{'' if number else ' -c /bin/bash'}\n{text}" for number, text in enumerate(sections)
    )


def _post(kit: Kit) -> list[str]:
    given = (*steps.MIRRORS, "INDEX", "PYTORCH_INDEX")
    lines = [
        "set -euo pipefail",
        "umask 022",
        f"export SOURCE_DATE_EPOCH={kit.plan.epoch}",
        " ".join(f'{name}="{{{{ {name} }}}}"' for name in given),
        f"export {' '.join(given)}",
        WRITE_MARKED,
        _ENTER,
        "",
        "# The workshop's tools, and the programs that the steps below run.",
        *steps.tools(kit, "mount"),
        *steps.programs(kit),
    ]
    stages = [stage for stage in STAGES if stage.is_in(kit)]
    for stage in stages:
        if stage.download:
            lines += ["", f"# {stage.download.comment}", *stage.download.fetch(kit)]
            lines += stage.download.unpack(_TARGET) if stage.download.unpack else []
        files = stage.files(kit, _TARGET, _TARGET)
        lines += ["", f"# {stage.comment}", *files] if files else []
        for script in stage.scripts(kit, ""):
            lines += _inside(script.comment or ("" if files else stage.comment), script.name, script.lines)
    downloads = [stage.download.name for stage in stages if stage.download]
    return [
        *lines,
        "",
        "# The folders that things were mounted on, which are empty now; and no time after the epoch.",
        f"cd {_TARGET} && rmdir {' '.join((*_GIVEN, 'kit', *downloads))}",
        f"find {_TARGET} -xdev -newermt @{kit.plan.epoch} -exec touch --no-dereference --date=@{kit.plan.epoch} {{}} +",
    ]


def _inside(comment: str, name: str, lines: Sequence[str]) -> list[str]:
    """Write the step as a script, and run it in the new root."""
    writes = [WRITE] if any(line.startswith("file ") for line in lines) else []
    script = "\n".join(["set -euo pipefail", "umask 022", *writes, *lines]) + "\n"
    return [
        "",
        *([f"# {comment}"] if comment else []),
        *file_lines(f"/kit/{name}.sh", script),
        f"enter {name}.sh",
    ]
