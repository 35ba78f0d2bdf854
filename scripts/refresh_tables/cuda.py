"""Read a CUDA compiler from its wheels: the checks in its headers, and the help of its programs."""

import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuilder.compat.tables.cuda import architecture_key
from envbuilder.core.process import Command, Runner
from envbuilder.core.processor import X86_64
from envbuilder.sources.fetch.source_client import Index, Listed
from scripts.refresh_tables.rows import Row, Value
from scripts.refresh_tables.torch import capability, final_wheels, one_match, read_metadata

ORDER: Final = (
    "cuda", "read", "source", "compiler", "gcc_max", "std_max", "architectures", "glibc_below", "unpinned",
)  # fmt: skip
COMPILER: Final = "nvidia-cuda-nvcc"
HEADERS: Final = "nvidia-cuda-crt"
TOOLKIT: Final = "cuda-toolkit"
SOURCES: Final = ("host_config", "ptxas", "math_functions", "nvcc", "toolkit_metadata")
_X86: Final = re.compile(rf"(any|.*linux.*_{X86_64.machine})")


def linux_wheels(files: Iterable[Listed]) -> Mapping[Version, Listed]:
    """Return the final releases for Linux x86-64, oldest first."""
    found = {
        version: listed
        for listed, version, _, tags in final_wheels(files)
        if any(_X86.fullmatch(tag.platform) for tag in tags)
    }
    return {version: found[version] for version in sorted(found)}


def by_minor(versions: Iterable[Version]) -> Mapping[str, Version]:
    """Return the newest release of each minor version, oldest first: 13.2 → 13.2.86."""
    return {f"{version.major}.{version.minor}": version for version in sorted(versions) if version.major}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The wheels that are read for one compiler."""

    compiler: Listed
    headers: Listed
    toolkits: Mapping[Version, Listed]  # every release of the package that names compilers and their parts


def read_cuda(cuda: str, wheels: Wheels, index: Index, runner: Runner, *, clashes: Sequence[str]) -> Row:
    """Return the row of a compiler. Raises FetchError, or ValueError for a wheel of an unknown form.

    `clashes` are the releases of glibc that declare what these headers declare too.
    """
    with index.open(wheels.headers) as wheel:
        config = _member(wheel, "/crt/host_config.h").decode()
        functions = _member(wheel, "/crt/math_functions.h").decode()
    with index.open(wheels.compiler) as wheel, tempfile.TemporaryDirectory() as folder:
        # Parts that are in other wheels, and whose version this one leaves open.
        loose = tuple(
            canonicalize_name(part.name)
            for part in read_metadata(wheel)
            if not (part.specifier or part.marker)
        )
        ptxas = _help(wheel, "ptxas", Path(folder), runner)
        nvcc = _help(wheel, "nvcc", Path(folder), runner)
    facts: dict[str, Value] = {
        "cuda": cuda,
        "source": list(SOURCES),
        "compiler": str(parse_wheel_filename(wheels.compiler.filename)[1]),
        "gcc_max": one_match(r"gcc versions later than (\d+) are not supported", config, "the newest gcc"),
        "std_max": max(
            int(found) for found in re.findall(r"c\+\+(\d+)", _option(nvcc, "--std")) if found != "03"
        ),
        "architectures": _architectures(_option(ptxas, "--gpu-name")),
    }
    guarded = {
        f"{major}.{minor}" for major, minor in re.findall(r"__\w+_PREREQ\s*\((\d+),\s*(\d+)\)", functions)
    }
    below = [glibc for glibc in clashes if glibc not in guarded]
    if below:
        facts["glibc_below"] = below[0]
    if unpinned := _unpinned(cuda, loose, wheels.toolkits, index):
        facts["unpinned"] = unpinned
    return facts


def _unpinned(cuda: str, loose: Sequence[str], toolkits: Mapping[Version, Listed], index: Index) -> list[str]:
    """Return the `cuda-toolkit` releases that require this compiler without these parts of it."""
    here = {
        "extra": "nvcc",
        "sys_platform": "linux",
        "platform_machine": X86_64.machine,
        "platform_system": "Linux",
    }
    found = []
    for version, listed in toolkits.items():
        if f"{version.major}.{version.minor}" != cuda:
            continue
        with index.open(listed) as wheel:
            requirements = read_metadata(wheel)
        named = {
            canonicalize_name(one.name)
            for one in requirements
            if one.marker is None or one.marker.evaluate(here)
        }
        if not named.issuperset(loose):
            found.append(".".join(str(version).split(".")[:3]))
    return found


def _help(wheel: zipfile.ZipFile, program: str, folder: Path, runner: Runner) -> str:
    """Return the output of the real program, which runs without a GPU."""
    path = folder / program
    path.write_bytes(_member(wheel, f"/bin/{program}"))
    path.chmod(0o755)
    return runner.run(Command(argv=(str(path), "--help"), why=f"ask `{program}` what it takes"))


def _member(wheel: zipfile.ZipFile, end: str) -> bytes:
    found = [name for name in wheel.namelist() if name.endswith(end)]
    if len(found) != 1:
        raise ValueError(f"expected one `*{end}` in {wheel.filename}, found {len(found)}")
    return wheel.read(found[0])


def _option(text: str, name: str) -> str:
    """Return the part of a help text about one option."""
    _, _, rest = text.partition(f"\n{name} ")
    return rest.split("\n\n")[0]


def _architectures(text: str) -> str:
    names = {capability(code) for code in re.findall(r"'sm_(\w+)'", text)}
    if not names:
        raise ValueError("`ptxas --help` lists no architectures")
    return " ".join(sorted(names, key=architecture_key))
