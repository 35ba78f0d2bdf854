"""The shell lines that put SPEC and INPUTS of a program into `/step`, each file compared with its sha256.

`/artifacts` holds files that the user already has, `/context` the recipe's folder.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from envbuilder import steps
from envbuilder.lock.model import Artifact
from envbuilder.plan.printer.printed import Printed, file_lines, in_shell
from envbuilder.plan.program import INPUTS, PROGRAMS, SPEC, Program
from envbuilder.sources import names as sources

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
_TAKE: Final = 'if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"'


def tools(printed: Printed, *needed: str) -> list[str]:
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
            lines += [*mirror, *_loop(rows, [_TAKE, f"else {otherwise}; fi"])]
    for target, artifact in artifacts:
        if artifact.kind == "git":
            lines += _commit(target, artifact, *printed.commits[artifact.sha256])
    return lines


def _ways(printed: Printed) -> Iterator[tuple[str, list[str], str]]:
    """Yield each source of files, the lines that choose its mirror, and what fetches a file that is not in /artifacts.

    The package index and PyTorch's have wheels and source distributions by their file names, the others by their paths.
    """
    curl = 'curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"'
    repositories = {source: ("", in_shell(url)) for source, url in printed.repositories.items()}
    for source, (variable, otherwise) in (_MIRRORS | repositories).items():
        comment = "# shellcheck disable=SC2016  # it is apt that knows what this stands for"
        yield (
            source,
            [comment, f"mirror=${{{variable}:-{otherwise}}}" if variable else f"mirror={otherwise}"],
            curl,
        )
    for source, index in (("pypi", "$INDEX"), ("pytorch", "${PYTORCH_INDEX%/}/${path%%/*}")):
        fetching = f'python3 {PROGRAMS}/{_PACKAGE} "{index}" "$project" "${{path##*/}}" "$file"'
        yield source, [], f"project=${{path%/*}}; project=${{project##*/}}; {fetching}"


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
    """Fetch a commit with its submodules and pack it as the lock has it."""
    packed = f"/artifacts/{artifact.filename}"
    return [
        f"if [ -e {packed} ]; then cp {packed} {in_shell(target)}",
        f"else python3 {PROGRAMS}/{_COMMIT} {in_shell(url)} {commit} {in_shell(target)}; fi",
        f"echo {artifact.sha256}'  '{in_shell(target)} | sha256sum --check --quiet",
    ]
