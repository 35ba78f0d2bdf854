"""Read `requirements.txt` and the arguments of `pip install`."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic_core import PydanticCustomError

from envbuilder.compat.gates import Gate, find_gates, variable_reads
from envbuilder.compat.python_code import CODE, PythonCode, project_files, read_code
from envbuilder.compat.tables.cuda import load_cuda_packages, load_late
from envbuilder.core.places import Mistakes, load_text, shown
from envbuilder.core.plain import GIVE_BY, pasted
from envbuilder.core.text.redact import has_credentials
from envbuilder.init.build_tools import TORCH, BuildTool, build_tool, load_toml, required, requirement_name
from envbuilder.init.requests import LONGEST, Request, Requests, read_text
from envbuilder.recipe.extension import BUILD_SOURCE, BUILDS, Extension
from envbuilder.recipe.other_locks import BROUGHT, PYPI
from envbuilder.recipe.packages import TORCH_BUILD
from envbuilder.recipe.requirement_file import (
    INDEXES,
    NO_MATTER,
    Direct,
    logical_lines,
    parse_direct,
    parse_place,
    split_arguments,
    split_line,
)
from envbuilder.recipe.wheel_sources import place_wheel, read_wheel

# What a setup.py or a captured file imports, by the name on an index. torch, setuptools, wheel and ninja are there anyway.
_IMPORTED: Final = {
    "Cython": "cython", "cmake": "cmake", "nanobind": "nanobind", "einops": "einops", "numpy": "numpy", "packaging": "packaging", "psutil": "psutil",
    "pybind11": "pybind11", "requests": "requests", "skbuild": "scikit-build", "torchvision": "torchvision", "tqdm": "tqdm",
}  # fmt: skip
# Headers in folders that every compiler searches, by the beginning of their names, and the packages of Debian that have them.
_HEADERS: Final = {
    "google/dense_hash": "libsparsehash-dev", "google/sparse_hash": "libsparsehash-dev", "sparsehash/": "libsparsehash-dev",
    "boost/": "libboost-dev", "tbb/": "libtbb-dev", "cblas.h": "libopenblas-dev", "GL/gl": "libgl-dev", "EGL/": "libegl-dev",
    "GLES3/": "libgles-dev", "GLFW/": "libglfw3-dev", "glog/": "libgoogle-glog-dev", "gflags/": "libgflags-dev",
    "png.h": "libpng-dev", "jpeglib.h": "libjpeg-dev", "turbojpeg.h": "libturbojpeg0-dev", "tiffio.h": "libtiff-dev",
    "sndfile.h": "libsndfile1-dev", "fftw3.h": "libfftw3-dev", "gmp.h": "libgmp-dev", "nlohmann/": "nlohmann-json3-dev",
    "libaio.h": "libaio-dev", "zlib.h": "zlib1g-dev", "lmdb.h": "liblmdb-dev", "sox.h": "libsox-dev", "numa.h": "libnuma-dev",
    "hwloc.h": "libhwloc-dev",
}  # fmt: skip
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_HEADER: Final = (".h", ".hh", ".hpp", ".hxx", ".cuh")
_OWN_CODE: Final = frozenset(
    ("core", "csrc", "cuda", "extensions", "include", "kernels", "lib", "ops", "src", "utils")
)
# A variable for the folder of something that a build needs. Those of CUDA and of the build itself are set, or nobody's.
_FOLDER: Final = re.compile(
    r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*?)_((?:INCLUDE_)?(?:PATH|DIR|HOME|ROOT)|INCLUDE(?:_DIRS)?)"
)
_KNOWN_FOLDERS: Final = re.compile(
    r"(CUDA|CUDNN|NCCL|ROCM|HIP|CONDA|PYTHON|TORCH|BUILD|CACHE|DATA|OUTPUT|SOURCE|INSTALL|(LD_)?LIBRARY|TORCH_EXTENSIONS)_(?!INCLUDE).*"
)
_OTHER_GPUS: Final = re.compile(r".*/whl/(?:nightly/|test/)?(?:rocm|xpu)")
_BUILD_OPTION: Final = re.compile(r"--(?:build|global|install)-option[= ](--[A-Za-z][A-Za-z0-9_=-]*)")
_BUILDERS: Final = ("torch", "setuptools", "wheel", "ninja")  # an environment with extensions has them

Locate = Callable[[str], Path | None]  # a file's name as it is written → the file, where there can be one


def read_requirements(path: Path, requests: Requests) -> None:
    """Read every line of a file, and of the files that it names; raises UsageError for an unreadable file."""
    if path.resolve() in requests.read:
        return
    requests.read.add(path.resolve())
    for number, line in logical_lines(read_text(path)):
        read_line(line, f"{path}:{number}", requests, locate=path.parent.joinpath)


def read_line(line: str, where: str, requests: Requests, *, locate: Locate) -> None:
    """Read one line of a requirements file."""
    try:
        words = split_line(line)
    except ValueError:
        requests.leave(where, line, "a quotation that does not end")
    else:
        read_arguments(words, where, requests, locate=locate)


def read_arguments(words: Sequence[str], where: str, requests: Requests, *, locate: Locate) -> None:
    """Read the arguments of `pip install`, or one line of a file. `locate` finds the files that it names."""
    arguments = list(split_arguments(words))
    if words[1:] and any(option in INDEXES and _OTHER_GPUS.match(value) for option, value in arguments):
        requests.leave(where, " ".join(words), "builds of torch for GPUs that are not NVIDIA's")
        return
    for option, value in arguments:
        if len(value) > LONGEST:
            requests.leave(where, value, f"it has more than {LONGEST} characters")
        elif option:
            _read_option(option, value, where, requests, locate=locate)
        elif project := parse_direct(value):
            _read_project(project, where, requests, locate)
        else:
            read_requirement(value, where, requests)


def _read_option(option: str, value: str, where: str, requests: Requests, *, locate: Locate) -> None:
    text = f"{option} {value}".strip()
    if option == "--requirement":
        _read_file(value, text, where, requests, locate(value))
    elif option in INDEXES and (build := TORCH_BUILD.fullmatch(text)):
        _read_build(build[1], where, requests)
    elif option in INDEXES:
        requests.indexes.append((option, value, where))
    elif option == "--editable":
        _read_project(parse_place(value), where, requests, locate)
    elif option == "--constraint":
        hint = "add the bounds that matter to `packages`"
        requests.leave(where, text, "the lock fixes every version", hint=hint)
    elif option == "--hash":
        why = "a recipe lists packages without them; `packages: [{requirements: FILE}]` compares them"
        requests.leave_all(where.rpartition(":")[0], "the hashes", why)
    elif option not in NO_MATTER:
        build = _BUILD_OPTION.search(text)
        hint = f'its entry in `extensions` takes `options: ["{build[1]}"]`' if build else ""
        requests.leave(where, text, "an option of pip that recipes do not have", hint=hint)


def _read_file(name: str, text: str, where: str, requests: Requests, path: Path | None) -> None:
    if "://" in name:
        requests.leave(where, text, "a file at an address", hint="save it, and give it by `--from` too")
    elif path is None:
        requests.leave(where, text, "no `COPY` or `ADD` brings that file from the Dockerfile's folder")
    elif not requests.holds(path):
        hint = f"`--from {name}` reads it"
        requests.leave(where, text, "it is outside the project's folder", hint=hint)
    elif path.is_file():
        read_requirements(path, requests)
    else:
        requests.leave(where, text, f"there is no file `{path}`")


def read_extras(extras: Mapping[str, Sequence[str]], where: str, requests: Requests) -> None:
    """Read the wanted extras of a project, and report the others."""
    requests.offered |= extras.keys()
    for text in (text.strip() for name in requests.wanted for text in extras.get(name, ())):
        if text:
            read_requirement(text, where, requests)
    if others := [name for name in extras if name not in requests.wanted]:
        hint = f"`--with {others[0]}` takes it"
        requests.leave(
            where, f"extras: {', '.join(others)}", "who installs a project chooses extras", hint=hint
        )


def read_requirement(text: str, where: str, requests: Requests) -> None:
    """Read one requirement. torch becomes a pin. The place of a download is left out."""
    if len(text) > LONGEST:  # of a setup.py or a pyproject.toml
        requests.leave(where, text, f"it has more than {LONGEST} characters")
        return
    if direct := parse_direct(text):
        _read_project(direct, where, requests, lambda _: None)
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requests.leave(where, text, "not a requirement that pip's standard (PEP 508) knows")
        return
    name = canonicalize_name(requirement.name)
    local = re.search(r"\+(?P<build>[a-z0-9.]+)", str(requirement.specifier))
    specifier = re.sub(r"\+[a-z0-9.]+", "", str(requirement.specifier))
    if name == "torch":
        requests.pin("pytorch", specifier, where)
        if local:
            _read_build(local["build"], where, requests)
        return
    row = load_cuda_packages().by_name.get(name)
    if late := load_late().by_name.get(name):
        exact = re.fullmatch(r"===?([^,*+]+)", specifier)
        way = "; the environment can have it compiled" if late.entry or late.also else ""
        message = f"`{name}` is compiled {late.words}{way}"
        requests.note(where, message, hint=late.advice(exact[1] if exact else ""))
    if row and row.wrong:
        requests.misnamed[name] = Request(text=str(requirement), where=where)
        return
    if BROUGHT.match(name):
        requests.leave(where, text, "torch brings the one that it was built with")
        return
    if local:
        requests.note(where, f"`{name}{specifier}` stands for `{text}`: which build fits is for the lock")
    requests.package(name, str(requirement).replace(str(requirement.specifier), specifier), where)


def read_index(name: str, url: str, where: str, requests: Requests) -> None:
    """Request that a package comes from the index that a file names for it, and from no other."""
    if _OTHER_GPUS.match(url):
        requests.leave(where, f"{url} of {name}", "builds of torch for GPUs that are not NVIDIA's")
    elif build := TORCH_BUILD.fullmatch(url):
        _read_build(build[1], where, requests)
    elif not PYPI.match(url):
        requests.homes[canonicalize_name(name)] = url, where


def _read_build(build: str, where: str, requests: Requests) -> None:
    """cu113 → CUDA 11.3; cpu → no GPU."""
    if cuda := re.fullmatch(r"cu(\d+)(\d)", build):
        requests.pin("cuda", f"=={cuda[1]}.{cuda[2]}", where)
    elif build == "cpu" and requests.gpus is None:
        requests.gpus = ()
    elif build != "cpu":
        requests.leave(where, f"+{build}", "a build of torch that envbuilder does not offer")


def _read_project(project: Direct, where: str, requests: Requests, locate: Locate) -> None:
    """Request an extension for a project that pip would build: a folder that is here, or a commit."""
    if has_credentials(project.text):
        requests.note(where, f"{shown(project.text)} is taken without its password or token", hint=GIVE_BY)
    folder = locate(project.path) if project.path and not (project.is_file or project.git) else None
    folder = folder if folder and requests.holds(folder) else None
    is_top = folder is None or requests.top is None or folder.resolve() == requests.top.resolve()
    is_whole = project.path == "." and not project.git and is_top
    if folder and (submodule := requests.submodules.get(folder.resolve())):
        git, commit = submodule
        requests.extension(Extension(name=project.name, git=git, commit=commit), where)
        return
    tool = build_tool(folder) if folder else None
    if folder and any((folder / name).is_file() for name in BUILDS) and (tool or not is_whole):
        request_build(folder, tool, requests)
        return
    if project.commit or project.sha256:
        extension = Extension(
            name=project.name, git=project.git, commit=project.commit, path=project.path,
            url=project.url, sha256=project.sha256,
        )  # fmt: skip
        requests.extension(extension, where)
        return
    wheel = re.search(r"(?:^|/)(torch[a-z_]*)-([0-9][^-/]*)-[^/]*\.whl", unquote(project.text))
    if wheel:
        requests.note(where, f"`{wheel[1]}=={wheel[2]}` stands for the file {shown(project.text)}")
        read_requirement(f"{wheel[1]}=={wheel[2]}", where, requests)
        return
    direct = read_wheel(project.text, Path(), Path()) if "://" in project.text else None
    if direct and not has_credentials(project.text):
        with contextlib.suppress(PydanticCustomError):
            placed = place_wheel(direct, None)
            requests.package(placed.name, str(placed), where)
            return
    hint = f"if it has C++ or CUDA sources: extensions: [{project.entry()}]"
    if project.is_file:
        why = "a file of one machine" if project.path else "a file at one address"
        hint = "a wheel in the recipe's folder is `NAME @ file:PATH` in `packages`; `ENVBUILDER_FOLDERS` names a folder of wheels"
    elif project.url:
        why = "an archive without its sha256, whose content can change"
    elif is_whole:
        why = "the environment holds what a project needs, and not the project itself"
        hint = "set `env: {PYTHONPATH: …}`"
    elif project.git:
        why = "a repository without a commit, and a branch or tag can move"
        hint = f"`git ls-remote {pasted(project.git, project.revision or 'HEAD')}` says the commit: extensions: [{project.entry()}]"
    else:
        why = "a folder that is not here, or has neither setup.py nor pyproject.toml"
    requests.leave(where, project.text, why, hint=hint)


def request_build(folder: Path, tool: BuildTool | None, requests: Requests) -> None:
    """Request a project that is built as a whole, with what its build tool would fetch, and say which tool it is."""
    request_project(folder, requests)
    for name in tool.packages if tool else ():
        requests.add_package(name, str(folder))
    for name in tool.apt if tool else ():
        requests.debian(name, str(folder))
    if tool not in (None, TORCH):
        added = ", ".join(f"`{name}`" for name in (*tool.packages, *tool.apt))
        message = f"`{folder.resolve().name}` is built by {tool.label}{f': added {added}' if added else ''}"
        requests.note(str(folder), message, hint=tool.hint)


def request_project(folder: Path, requests: Requests) -> None:
    """Request an extension for a folder with a build of its own, and what that build imports."""
    setup, pyproject = folder / "setup.py", folder / "pyproject.toml"
    code, name = read_code(setup) if requests.holds(setup) else None, ""
    gates: tuple[Gate, ...] = ()
    if code:
        given = (
            code.text(code.keyword(call, "name") or next(iter(call.node.args), None))
            for call in code.extensions
        )
        name = next(filter(None, given), "") or code.text(code.keyword(code.setup(), "name"))
        gates = find_gates(code)
    tables = load_toml(pyproject) if pyproject.is_file() and requests.holds(pyproject) else {}
    name = name or str(tables.get("project", {}).get("name", ""))
    module = module_name(name.partition(".")[0] or folder.resolve().name)
    env = tuple((gate.name, gate.value) for gate in gates if gate.value)
    env += tuple(_folders(code, folder, requests)) if code else ()
    options = tuple(gate.name for gate in gates if not gate.value)
    extension = Extension(name=module, path=folder.as_posix(), env=env, options=options)
    requests.extension(extension, str(folder))
    requests.gates += [(f"{setup}:{gate.line}", gate) for gate in gates]
    if code:
        request_imported(code, requests)
    _request_headers(folder, module, requests)
    for text in required(tables.get("build-system", {})):
        name = requirement_name(text)
        is_bound = name == "torch" and name != text.strip()
        if is_bound or name not in _BUILDERS:
            read_requirement(text, str(pyproject), requests)


def _folders(code: PythonCode, folder: Path, requests: Requests) -> Iterator[tuple[str, str]]:
    """Yield the variables in which a setup.py looks for a folder that the project has, as a submodule, with the folder."""
    inside = [path for depth in ("*", "*/*", "*/*/*") for path in sorted(folder.glob(depth)) if path.is_dir()]
    folders = {
        path.name.lower().replace("-", "_"): path for path in reversed(inside) if _may_have_headers(path)
    }
    reads = (read for read in variable_reads(code) if not read.default)
    by_name = {read.name: read for read in sorted(reads, key=lambda read: (read.is_needed, -read.line))}
    for _, read in sorted(by_name.items()):
        shape = _FOLDER.fullmatch(read.name)
        if not shape or _KNOWN_FOLDERS.fullmatch(read.name):
            continue
        words, where = shape[1].lower().split("_"), f"{code.path}:{read.line}"
        path = next(
            (folders[name] for at in range(len(words)) if (name := "_".join(words[at:])) in folders), None
        )
        if path and requests.holds(path):
            path = path / "include" if "INCLUDE" in shape[2] and (path / "include").is_dir() else path
            requests.note(
                where, f"`{read.name}` is set to the project's own `{path.relative_to(folder).as_posix()}`"
            )
            yield read.name, path.resolve().as_posix()
        elif read.is_needed:
            hint = f"`env: {{{read.name}: {BUILD_SOURCE}/FOLDER}}` of the extension names one of the recipe's folder"
            requests.note(
                where,
                f"the build ends without `{read.name}`, and the project has no folder of that name",
                hint=hint,
            )


def _may_have_headers(folder: Path) -> bool:
    """Return whether a folder has headers, or is the empty one of a submodule. Folders of a project's own code do not count."""
    headers = (
        path
        for depth in ("", "*/", "*/*/")
        for path in folder.glob(f"{depth}*.[hc]*")
        if path.suffix in _HEADER
    )
    return folder.name not in _OWN_CODE and (any(headers) or not any(folder.iterdir()))


def request_imported(code: PythonCode, requests: Requests) -> None:
    """Request the packages that a setup.py or a captured file imports."""
    imported = {module.partition(".")[0] for module in code.imported}
    for module in sorted(imported & _IMPORTED.keys(), key=str.lower):
        requests.add_package(_IMPORTED[module], str(code.path))


def _request_headers(folder: Path, name: str, requests: Requests) -> None:
    """Request the packages of Debian that have the headers which a project includes and does not bring."""
    files = [path for path in project_files(folder) if path.suffix in CODE]
    brought = "\n".join(f"/{path.relative_to(folder).as_posix()}" for path in files)
    included = {header for path in files for header in _INCLUDE.findall(load_text(path, Mistakes()) or "")}
    packages: dict[str, str] = {}  # with the first header of each
    for header in sorted(included):
        package = next((name for start, name in _HEADERS.items() if header.startswith(start)), "")
        if package and f"/{header}" not in brought:
            packages.setdefault(package, header)
            requests.debian(package, str(folder))
    if packages:
        names, headers = (" and ".join(map("`{}`".format, texts)) for texts in (packages, packages.values()))
        verb = "is" if len(packages) == 1 else "are"
        requests.note(str(folder), f"{names} {verb} added: `{name}` includes {headers}")


def module_name(text: str) -> str:
    """Return a name that Python can import."""
    name = re.sub(r"\W", "_", text)
    return name if name.isidentifier() else f"_{name}"
