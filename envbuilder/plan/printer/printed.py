r"""What both texts print: the programs of a plan in their order, values as data, and the shell lines that fetch inputs.

A recipe's value is one line, because its reader rejects control characters. A file may hold anything. Its lines are marked, so none of
them ends the here-document. Docker changes nothing in a quoted here-document.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from envbuilder import steps
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.plain import one_line
from envbuilder.core.processor import X86_64
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.model import Plan
from envbuilder.plan.program import INPUTS, PROGRAMS, SPEC, Program
from envbuilder.sources import names as sources

WRITE: Final = """\
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}"""
"""The shell function that writes a marked text: a `|` stands before each line."""
WRITE_MARKED: Final = WRITE.replace("s/^|//", r"s/^|//; s/{\^/{/g")
"""The same function for a text in which `marked` hid the braces."""
_BRACES: Final = re.compile(r"\{(?=\{)")
_BRACES_OR_MARK: Final = re.compile(r"\{(?=[{^])")
END: Final = "END"  # no marked line is this one


def in_shell(value: str) -> str:
    """Return one word of the shell. `{{` is split, because Apptainer would replace it."""
    return _BRACES.sub("{''", shlex.quote(one_line(value)))


def in_dockerfile(value: str) -> str:
    """Return the value of an ARG, ENV or LABEL."""
    text = one_line(value)
    for sign in ("\\", '"', "$"):
        text = text.replace(sign, f"\\{sign}")
    return f'"{text}"'


def in_comment(text: str) -> str:
    """Return a recipe's text as part of a comment line."""
    plain = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in text)
    return _BRACES.sub("{ ", " ".join(plain.split()))


def file_lines(path: str, text: str) -> list[str]:
    """Return shell lines that write a file byte for byte, with the function `WRITE`. `path` is a word of the shell."""
    body = text.removesuffix("\n").split("\n") if text else []
    lines = [f"file 644 {path} <<'{END}'", *(f"|{line}" for line in body), END]
    if text and not text.endswith("\n"):  # sed adds a line end that this file lacks
        lines.append(f"truncate --size=-1 {path}")
    return lines


def marked(lines: Sequence[str]) -> list[str]:
    """Return the lines with a `^` between two braces of a file's text."""
    return [_BRACES_OR_MARK.sub("{^", line) if line.startswith("|") else line for line in lines]


BUILD_DOCUMENTS: Final = ("opt/envbuilder/lock.json", "opt/envbuilder/plan.txt", "opt/envbuilder/recipe.yaml")
"""Files about a build by envbuilder, which no other build may claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The data of one text."""

    plan: Plan
    summary: str
    uv: str  # the version of uv that programs start
    pytorch_index: str
    labels: tuple[tuple[str, str], ...]  # of the image
    repositories: Mapping[str, str]  # source of files → the address below which they lie
    commits: Mapping[str, tuple[str, str]]  # sha256 of a packed commit → address of its repository, commit

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return the program of each layer, the lowest first. Documents about a build by envbuilder are left out."""
        files = tuple(file for file in self.plan.runtime.files if file[0] not in BUILD_DOCUMENTS)
        return (*self.plan.programs, runtime_program(replace(self.plan.runtime, files=files), {}))

    @property
    def every(self) -> tuple[Program, ...]:
        """Return the programs and their parts, each after what it needs."""
        return tuple(run for program in self.programs for run in with_parts(program))

    @property
    def machine(self) -> str:
        """Return a line of the comment that says which machine builds it, unless that is x86-64."""
        title = self.plan.processor.title
        is_usual = self.plan.processor is X86_64
        return "" if is_usual else f"\n# It is for {title} and builds on such a machine, without an emulator."

    @property
    def workshop(self) -> str:
        """Return the image that fetches: the distribution's own, or Debian's."""
        suites = {row.suite: row.name for row in load_distributions().rows}
        return suites.get(self.plan.os.suite, "debian/bookworm").replace("/", ":")


def with_parts(program: Program) -> Iterator[Program]:
    """Yield the parts of a program, then itself."""
    for part in program.parts:
        yield from with_parts(part)
    yield program


CERTIFICATES: Final = [
    "for ca in /run/secrets/ca /artifacts/certificates.pem; do",
    '  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca" GIT_SSL_CAINFO="$ca"; fi',
    "done",
]
FETCH_TOOLS: Final = "ca-certificates curl python3-pip"  # of the workshop; the image does not have them
_PIP: Final = "PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-deps --find-links /artifacts"
_APT: Final = "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | {})"  # those that the workshop knows
# For each source whose paths are below a mirror: the argument with the mirror, and the mirror without that argument.
_MIRRORS: Final = {
    sources.DEBIAN: ("DEBIAN_MIRROR", _APT.format("sed -n 1p")),
    sources.DEBIAN_SECURITY: ("DEBIAN_SECURITY", _APT.format("sed -n /security/p | sed -n 1p")),
    sources.UBUNTU: ("UBUNTU_MIRROR", _APT.format("sed -n 1p")),
    sources.CUDA: ("CUDA_REDIST", sources.CUDA_REDIST),
    sources.STANDALONE: ("PYTHON_MIRROR", sources.STANDALONE_RELEASES[-1]),
}
ARGUMENTS: Final = (*(variable for variable, _ in _MIRRORS.values()), "INDEX", "PYTORCH_INDEX")
_COMMIT: Final = "fetch_commit.py"
_PACKAGE: Final = "fetch_package.py"
_LIST: Final = f"{PROGRAMS}/list"
_ROWS: Final = 120  # of a list of files
_TAKE_BLOB: Final = f'if [ -e "/artifacts/{sources.BLOBS}/${{sum%% *}}" ]; then cp "/artifacts/{sources.BLOBS}/${{sum%% *}}" "$file"'
_TAKE: Final = 'if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"'


def install_tools(printed: Printed, *needed: str) -> list[str]:
    """Install the tools of the workshop, `needed` among them, and write the programs and uv into /steps."""
    names = sorted({name for program in printed.every for name in program.files})
    names += [_PACKAGE, *([_COMMIT] if printed.commits else [])]
    needed = (*needed, *(("git",) if printed.commits else ()))
    wanted = " && ".join(f"command -v {name} >/dev/null" for name in ("curl", *needed))
    lines = [
        *CERTIFICATES,
        "export DEBIAN_FRONTEND=noninteractive",
        f"if ! {{ {wanted} && python3 -m pip --version >/dev/null 2>&1; }}; then",
        f"  apt-get update && apt-get install --yes --no-install-recommends {' '.join((FETCH_TOOLS, *needed))}",
        "fi",
        "offline=",
        'for file in /artifacts/uv-*.whl; do [ ! -e "$file" ] || offline=--no-index; done',
        f"mkdir {PROGRAMS}",
        f"{_PIP} $offline --dest /uv uv=={in_shell(printed.uv)}",
        "python3 -m zipfile --extract /uv/uv-*.whl /uv",
        f"mv /uv/uv-*.data/scripts/uv {PROGRAMS}/uv && chmod 755 {PROGRAMS}/uv && rm -r /uv",
    ]
    for name in names:
        lines += ["", *file_lines(f"{PROGRAMS}/{name}", steps.text(name))]
    return lines


def fetch(program: Program, printed: Printed, *, below: str = "") -> list[str]:
    """Write SPEC and fetch INPUTS, below the folder `below`."""
    inputs = f"{below}{INPUTS}"
    folders = sorted({str(PurePosixPath(inputs, path).parent) for path, _ in program.inputs} | {inputs})
    lines = [*CERTIFICATES, f"mkdir -p {' '.join(map(in_shell, folders))}"]
    lines += [f"mkdir {in_shell(f'{inputs}/{part.name}')}" for part in program.parts]
    lines += file_lines(f"{below}{SPEC}", program.spec)
    for path, text in program.texts:
        lines += ["", *file_lines(in_shell(f"{inputs}/{path}"), text)]
    files = [(f"{inputs}/{path}", file) for path, file in program.inputs]
    artifacts = [(target, file) for target, file in files if isinstance(file, Artifact)]
    ours = [
        f"{file.sha256}  {target}\t{file.path}" for target, file in files if not isinstance(file, Artifact)
    ]
    lines += _loop(ours, ['cp "/context/$path" "$file"'])
    for source, mirror, otherwise in _ways(printed):
        rows = [
            f"{file.sha256}  {target}\t{file.path}" for target, file in artifacts if file.source == source
        ]
        if rows:
            lines += [
                *mirror,
                *_loop(rows, [_TAKE_BLOB if source == sources.HUB else _TAKE, f"else {otherwise}; fi"]),
            ]
    for target, artifact in artifacts:
        if artifact.kind == "git":
            lines += _commit(target, artifact, *printed.commits[artifact.sha256])
    return lines


def _ways(printed: Printed) -> Iterator[tuple[str, list[str], str]]:
    """Yield each source of files, the lines that choose its mirror, and what fetches a file that is not in /artifacts.

    The package index and PyTorch's have wheels and source distributions by their file names, the others by their paths.
    """
    curl = 'curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"'
    listed = (sources.INDEX, sources.LINKS, sources.RECIPE)
    mirrors = {source: url for source, url in printed.repositories.items() if not source.startswith(listed)}
    repositories = {source: ("", in_shell(url)) for source, url in mirrors.items()}
    for source, (variable, otherwise) in (_MIRRORS | repositories).items():
        comment = "# shellcheck disable=SC2016  # it is apt that knows what this stands for"
        yield (
            source,
            [comment, f"mirror=${{{variable}:-{otherwise}}}" if variable else f"mirror={otherwise}"],
            curl,
        )
    indexes = {"pypi": '"$INDEX"', "pytorch": '"${PYTORCH_INDEX%/}/${path%%/*}"'}
    indexes |= {
        source: in_shell(url) for source, url in printed.repositories.items() if source not in mirrors
    }
    for source, index in indexes.items():
        fetching = f'python3 {PROGRAMS}/{_PACKAGE} {index} "$project" "${{path##*/}}" "$file"'
        if source == sources.RECIPE:
            fetching = 'cp "/context/$path" "$file"'
        elif source.startswith(sources.LINKS):
            fetching = f'python3 {PROGRAMS}/{_PACKAGE} {index} "" "$path" "$file"'
        else:
            fetching = f"project=${{path%/*}}; project=${{project##*/}}; {fetching}"
        yield source, [], fetching


def _loop(rows: Sequence[str], body: Sequence[str]) -> list[str]:
    """Run `body` for each row `SHA256  FILE<tab>PATH` and compare the file with its sha256.

    Long lists are several: Apptainer limits the sections of a definition file, which end at empty lines.
    """
    lines: list[str] = []
    for at in range(0, len(rows), _ROWS):
        lines += [
            *(("",) if at else ()),
            *file_lines(_LIST, "".join(f"{row}\n" for row in rows[at : at + _ROWS])),
            "while IFS='\t' read -r sum path; do",
            "  file=${sum#*  }",
            *(f"  {line}" for line in body),
            '  echo "$sum" | sha256sum --check --quiet',
            f"done <{_LIST}",
            f"rm {_LIST}",
        ]
    return lines


def _commit(target: str, artifact: Artifact, url: str, commit: str) -> list[str]:
    packed = f"/artifacts/{artifact.filename}"
    return [
        f"if [ -e {packed} ]; then cp {packed} {in_shell(target)}",
        f"else python3 {PROGRAMS}/{_COMMIT} {in_shell(url)} {commit} {in_shell(target)}; fi",
        f"echo {artifact.sha256}'  '{in_shell(target)} | sha256sum --check --quiet",
    ]
