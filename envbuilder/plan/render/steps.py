"""The steps of a rendered text as shell lines.

`/kit` holds the programs, `/debs` and `/parts` the fetched packages, `/context` the recipe's folder, and `/artifacts` files that the
user already has.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from envbuilder.core.errors import BuildError
from envbuilder.core.processor import X86_64
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import ADD_USER, DROP, is_repeatable, runtime_files, seeded_package, word_lists
from envbuilder.plan.model import ENV_PREFIX, STANDALONE_PREFIX, CudaStep
from envbuilder.plan.program import Program
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import file_lines, in_shell
from envbuilder.sources import names as sources
from envbuilder.steps import ENVIRONMENT

CERTIFICATES: Final = [
    "for ca in /run/secrets/ca /artifacts/certificates.pem; do",
    '  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi',
    "done",
]
# Documents about a build by envbuilder, which no other build may claim.
BUILD_DOCUMENTS: Final = ("opt/envbuilder/lock.json", "opt/envbuilder/plan.txt", "opt/envbuilder/recipe.yaml")
FETCH_TOOLS: Final = "ca-certificates curl python3-pip"  # of the first stage; the image does not have them
_PIP: Final = "PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-deps --find-links /artifacts"

_APT: Final = "$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | {})"  # those that the first stage knows
# For each source whose paths are below a mirror: the argument with the mirror, and the mirror without that argument.
_MIRRORS: Final = {
    sources.DEBIAN: ("DEBIAN_MIRROR", _APT.format("sed -n 1p")),
    sources.DEBIAN_SECURITY: ("DEBIAN_SECURITY", _APT.format("sed -n /security/p | sed -n 1p")),
    sources.UBUNTU: ("UBUNTU_MIRROR", _APT.format("sed -n 1p")),
    sources.CUDA: ("CUDA_REDIST", sources.CUDA_REDIST),
    sources.STANDALONE: ("PYTHON_MIRROR", sources.STANDALONE_RELEASES[-1]),
}
MIRRORS: Final = tuple(variable for variable, _ in _MIRRORS.values())


def tools(kit: Kit, *programs: str) -> list[str]:
    """Install the tools of the first stage, `programs` and uv, which goes into /kit."""
    wanted = " && ".join(f"command -v {name} >/dev/null" for name in ("curl", *programs))
    return [
        *CERTIFICATES,
        "export DEBIAN_FRONTEND=noninteractive",
        f"if ! {{ {wanted} && python3 -m pip --version >/dev/null 2>&1; }}; then",
        f"  apt-get update && apt-get install --yes --no-install-recommends {' '.join((FETCH_TOOLS, *programs))}",
        "fi",
        "offline=",
        'for file in /artifacts/uv-*.whl; do [ ! -e "$file" ] || offline=--no-index; done',
        "mkdir /kit",
        f"{_PIP} $offline --dest /kit/wheel uv=={in_shell(kit.uv)}",
        "python3 -m zipfile --extract /kit/wheel/uv-*.whl /kit/wheel",
        "mv /kit/wheel/uv-*.data/scripts/uv /kit/uv && chmod 755 /kit/uv && rm -r /kit/wheel",
    ]


def programs(kit: Kit) -> list[str]:
    """Write the programs that later steps run, and their arguments."""
    # Programs of a step, and those that one of them starts.
    own = ["install_python.py", "compile_all.py"] if kit.plan.interpreter else []
    wanted = list(dict.fromkeys(["configure_os.sh", *own, *_byte_code(kit)]))
    if kit.plan.cuda:
        wanted.append("install_toolkit.py")
    parts = kit.extensions.parts if kit.extensions else ()
    if kit.extensions:
        wanted += [*kit.extensions.files, *dict.fromkeys(file for part in parts for file in part.files)]
    elif kit.plan.processor is not X86_64 and kit.wheel_env:
        wanted.append("no_comment.ld")
    lines: list[str] = []
    for name in wanted:
        lines += ["", *file_lines(f"/kit/{name}", kit.programs[name])]
    if kit.wheel_env:
        lines += ["", *file_lines("/kit/customize/sitecustomize.py", kit.programs["sitecustomize.py"])]
    for program in (kit.extensions, *parts) if kit.extensions else ():
        lines += ["", *file_lines(f"/kit/{program.name}/spec.json", program.spec)]
    if kit.plan.cuda:
        lines += ["", *file_lines("/kit/cuda.json", rules(kit.plan.cuda))]
    return lines


def fetch_files(kit: Kit, artifacts: Sequence[Artifact], folder: str) -> list[str]:
    """Fetch the files of each source in `_MIRRORS`, and of the recipe's repositories, by their sha256."""
    lines = [*CERTIFICATES, f"mkdir {folder}"]
    own = {source: ("", in_shell(url)) for source, url in kit.repositories.items()}
    for source, (variable, otherwise) in (_MIRRORS | own).items():
        listed = "".join(f"{one.sha256}  {one.path}\n" for one in artifacts if one.source == source)
        if not listed:
            continue
        lines += [
            *file_lines(f"{folder}/list", listed),
            "# shellcheck disable=SC2016  # it is apt that knows what this stands for",
            f"mirror=${{{variable}:-{otherwise}}}" if variable else f"mirror={otherwise}",
            "while read -r sha256 path; do",
            f"  file={folder}/${{path##*/}}",
            '  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"',
            '  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi',
            '  echo "$sha256  $file" | sha256sum --check --quiet',
            f"done <{folder}/list",
            f"rm {folder}/list",
        ]
    return lines


def unpack(root: str) -> list[str]:
    """Unpack every package into an empty root, after the links of the merged /usr."""
    return [
        f"mkdir {root} {root}/usr && cd {root}",
        "for name in bin sbin lib lib32 lib64 libx32; do mkdir usr/$name; ln -s usr/$name $name; done",
        'for deb in /debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink; done',
        "for name in hostname hosts machine-id resolv.conf; do : >etc/$name; done  # a runtime's, and empty in an image",
    ]


def configure(kit: Kit) -> list[str]:
    """Install the unpacked packages with their own dpkg."""
    lists = {name: in_shell(words) for name, words in word_lists(DROP, kit.plan.processor).items()}
    # The library of this Python is byte-compiled again.
    repeat = seeded_package(one.name for one in kit.plan.os.artifacts)
    return [
        f"export EXCLUDE={lists['EXCLUDE']} KEEP={lists['KEEP']}",
        f"export DROP={lists['DROP']}",
        f"export NAMES={lists['NAMES']}",
        f"sh /kit/configure_os.sh /debs {in_shell(kit.plan.os.gcc)} {in_shell(repeat)}",
        "set -- ''",
        ADD_USER,
    ]


def install_interpreter(kit: Kit) -> list[str]:
    """Install the standalone Python at its place."""
    step = kit.plan.interpreter
    assert step is not None, "the stage has no scripts otherwise"
    return [
        "tar --extract --gzip --touch --no-same-owner --no-same-permissions --file /standalone/*.tar.gz --directory /opt",
        f"{step.program} -B /kit/install_python.py {STANDALONE_PREFIX}",
    ]


def python(kit: Kit) -> list[str]:
    """Install the environment at /opt/env, from PyTorch's index and the package index."""
    step = kit.plan.python
    version = step.python
    home = step.program.rpartition("/")[0]
    requirements = "/tmp/requirements.txt"  # noqa: S108 - of the root that is made
    lines = [
        *CERTIFICATES,
        f"mkdir -p {ENV_PREFIX}/bin {step.site_packages} && cd {ENV_PREFIX}",
        f"ln -s lib lib64 && ln -s {step.program} bin/python",
        f"ln -s python bin/python3 && ln -s python bin/python{version}",
        f"printf 'home = {home}\\ninclude-system-site-packages = false\\nversion = {version}\\n' >pyvenv.cfg",
        "export UV_NO_INSTALLER_METADATA=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=/tmp/uv",
        "export PYTHONHASHSEED=0 PYTHONWARNINGS=ignore PYC_INVALIDATION_MODE=UNCHECKED_HASH",
        'if [ -n "${INDEX-}" ]; then export UV_DEFAULT_INDEX="$INDEX"; fi',
    ]
    compiled = " --compile-bytecode" if is_repeatable(version) else ""
    install = f"/kit/uv pip install --no-config --no-deps --require-hashes --requirement {requirements}"
    install += f" --python {ENV_PREFIX}/bin/python --link-mode copy --find-links /artifacts $offline"
    every = [one for one in (step, kit.plan.added) if one]
    for place, wheels in _by_index(
        [wheel for one in every for wheel in one.artifacts if wheel.kind == "wheel"]
    ):
        index = f' --default-index "${{PYTORCH_INDEX}}/{place}"' if place else ""
        lines += [*_wanted(wheels, requirements), f"{install}{index}{compiled}"]
    tools = "/tmp/tools.txt"  # noqa: S108 - the same
    env = " ".join(f"{name}={in_shell(value)}" for name, value in kit.wheel_env)
    for sdist, needs in [(sdist, one.tools(sdist)) for one in every for sdist in one.sdists]:
        lines += [*_wanted((sdist,), requirements), *_pins(needs, tools), _look_for_files(tools)]
        lines.append(f"{env} {install} --build-constraints {tools}{compiled}")
    for program in _byte_code(kit):
        lines.append(f"{step.program} /kit/{program} {step.site_packages}")
    written = " ".join([requirements, tools] if kit.wheel_env else [requirements])
    return [*lines, f"rm -rf /tmp/uv {written} && chmod 644 {ENV_PREFIX}/.lock"]


def extensions(program: Program, out: str) -> list[str]:
    """Make each extension from the recipe's folder, and join them."""
    env = " ".join(f"{name}={in_shell(value)}" for name, value in ENVIRONMENT.items())
    lines = ["mkdir -p /tmp/inputs /tmp/parts && ln -s /context /tmp/inputs/files"]
    for part in program.parts:
        lines.append(f"mkdir /tmp/parts/{part.name}")
        lines.append(
            f"env -i {env} {part.interpreter} -B /kit/{part.files[0]} /kit/{part.name}/spec.json /tmp/inputs /tmp/parts/{part.name}"
        )
    join = f"/kit/{program.files[0]} /kit/{program.name}/spec.json /tmp/parts {in_shell(out or '/')}"
    return [
        *lines,
        f"env -i {env} {program.interpreter} {join}",
        "rm -rf /tmp/inputs /tmp/parts /tmp/extension /space",
    ]


def _byte_code(kit: Kit) -> tuple[str, ...]:
    """Return the programs that compile or check byte code after the wheels are installed."""
    checking = ("check_byte_code.py",)
    return checking if is_repeatable(kit.plan.python.python) else ("compile_all.py", *checking)


def _pins(files: Sequence[Artifact], path: str) -> list[str]:
    """Write the files as requirements, each below its name."""
    pins = (f"# {one.filename}\n{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in files)
    return file_lines(path, "".join(pins))


def _wanted(wheels: Sequence[Artifact], path: str) -> list[str]:
    """Write the requirements. If /artifacts has all of their files, no index is asked."""
    return [*_pins(wheels, path), "offline=--no-index", _look_for_files(path)]


def _look_for_files(path: str) -> str:
    return f'while read -r sign name; do [ "$sign" != \'#\' ] || [ -e "/artifacts/$name" ] || offline=; done <{path}'


def fetch_parts(kit: Kit) -> list[str]:
    """Fetch the toolkit's packages."""
    artifacts = kit.plan.cuda.artifacts if kit.plan.cuda else ()
    lines = fetch_files(kit, artifacts, "/parts")
    for place, wheels in _by_index([one for one in artifacts if one.kind == "wheel"]):
        index = f' --index-url "${{PYTORCH_INDEX}}/{place}"' if place else ""
        lines += _wanted(wheels, "/parts/requirements.txt")
        lines.append(
            f"{_PIP} --require-hashes --requirement /parts/requirements.txt $offline --dest /parts{index}"
        )
    return lines


def install_toolkit(kit: Kit) -> list[str]:
    """Install the CUDA toolkit from its packages."""
    python = kit.plan.python
    return [f"{python.program} /kit/install_toolkit.py /kit/cuda.json /parts {python.site_packages}"]


def start_files(kit: Kit, *, out: str) -> list[str]:
    """Write the modules that each Python of the environment runs first, below the folder `out`."""
    lines: list[str] = []
    for path, text in kit.plan.start.files:
        lines += _file(f"{out}/{path}", text, "755" if text.startswith("#!") else "644")
    return lines


def start_code(kit: Kit) -> list[str]:
    """Byte-compile only the modules of `start_files`."""
    modules = [in_shell(f"/{path}") for path, _ in kit.plan.start.files if path.endswith(".py")]
    python = f"PYTHONHASHSEED=0 PYTHONWARNINGS=ignore {kit.plan.python.program}"
    command = [f"{python} -m compileall -q --invalidation-mode unchecked-hash", *modules]
    return " \\\n  ".join(command).split("\n")


def runtime(kit: Kit, *, out: str) -> list[str]:
    """Write the files of the runtime layer below the folder `out`."""
    lines: list[str] = []
    for path, (text, mode) in runtime_files(kit.plan.runtime).items():
        if path not in BUILD_DOCUMENTS:
            lines += _file(f"{out}/{path}", text, f"{mode:o}")
    return [
        *lines,
        "",
        f"mkdir -p {out}/.singularity.d/libs",
        f"ln -s .singularity.d/runscript {out}/singularity",
        f"ln -s .singularity.d/env/90-environment.sh {out}/environment",
    ]


def _file(path: str, text: str, mode: str) -> list[str]:
    return ["", *file_lines(in_shell(path), text, mode=mode)]


def _by_index(wheels: Sequence[Artifact]) -> list[tuple[str, list[Artifact]]]:
    """Return index → its wheels: `cpu`, `cu126`, … of PyTorch's indexes, "" for the package index."""
    places: dict[str, list[Artifact]] = {}
    for one in wheels:
        places.setdefault(one.path.split("/")[0] if one.source == "pytorch" else "", []).append(one)
    return sorted(places.items())


def rules(step: CudaStep) -> str:
    """Return the argument of `install_toolkit.py` as JSON: the files to take from each package, and the links.

    Raises BuildError if the lock lacks a package.
    """
    files = {one.name: one.filename for one in step.artifacts}
    for part in step.toolkit.parts:
        if part.name not in files:
            cuda = step.toolkit.cuda
            raise BuildError(f"CUDA {cuda} needs the package `{part.name}`, which the lock lacks")
    value = {
        "cuda": step.toolkit.cuda,
        "parts": [
            {"name": part.name, "file": files[part.name], "take": [asdict(take) for take in part.take]}
            for part in step.toolkit.parts
        ],
        "header_wheels": step.toolkit.header_wheels,
        "links": [(str(link.path), link.target) for link in step.toolkit.links],
        "files": [(str(file.path), file.text) for file in step.toolkit.files],
    }
    return json.dumps(value, indent=1) + "\n"
