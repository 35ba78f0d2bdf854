"""Read a release of torch from its wheel: about 10 MB, most of it libtorch_python.so."""

import ast
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from typing import Final

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envbuilder.compat.tables.cuda import architecture_key
from envbuilder.compat.tables.torch import COMPANIONS, CPU, build_of
from envbuilder.core.processor import AARCH64, X86_64, Processor
from envbuilder.sources.fetch.source_client import Index, Listed
from scripts.refresh_tables.rows import Row, Value

ORDER: Final = (
    "version", "released", "read", "source", "pythons", "pypi", "architectures", "nccl", "cudnn", "cuda_toolkit",
    "glibc", "cxx11_abi", "std", "std_min", "gcc_min", "gcc_bounds", "arch_names", "setuptools", "companions",
    AARCH64.machine,
)  # fmt: skip
SOURCES: Final = ("index", "wheels")
_LEGACY: Final = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}  # PEP 600
_CUDA: Final = r"^cuda\b.*= '([0-9.]+)'$"
_CUDA_OR_NONE: Final = r"^cuda\b.*= (?:'([0-9.]+)'|None)$"
_LINUX: Final = r"(manylinux\d+|manylinux_(\d+)_(\d+))_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWheel:
    """One wheel for Linux on one processor."""

    listed: Listed
    python: str  # 3.13t
    glibc: tuple[int, int]
    build: BuildTag  # an upload that replaces another has a higher one


def final_wheels(files: Iterable[Listed]) -> Iterator[tuple[Listed, Version, BuildTag, frozenset[Tag]]]:
    """Yield the wheels of final releases, each with its version, its build number and its tags."""
    for listed in files:
        try:
            _, version, build, tags = parse_wheel_filename(listed.filename)
        except InvalidWheelFilename:
            continue
        if not (listed.yanked or version.is_prerelease):
            yield listed, version, build, tags


def torch_wheels(
    files: Iterable[Listed], processor: Processor = X86_64
) -> Mapping[str, tuple[TorchWheel, ...]]:
    """Return the final releases, oldest first, with their wheels for a processor, oldest Python first."""
    found: dict[Version, list[TorchWheel]] = defaultdict(list)
    for listed, version, build, tags in final_wheels(files):
        if not version.local:
            found[version] += [
                TorchWheel(listed=listed, python=python, glibc=glibc, build=build)
                for python, glibc in _targets(tags, processor)
            ]
    return {
        str(version): tuple(sorted(found[version], key=_wheel_order))
        for version in sorted(found)
        if found[version]
    }


def read_companions(index: Index, count: int) -> Mapping[str, dict[str, str]]:
    """Return the newest companions that require exactly a release of torch, by that release; of the `count` newest of each."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in COMPANIONS:
        for version, wheels in list(torch_wheels(index.files(name)).items())[-count:]:
            with index.open(wheels[-1].listed) as wheel:
                for requirement in read_metadata(wheel):
                    exact = re.fullmatch(r"==([0-9.]+)", str(requirement.specifier))
                    if requirement.name == "torch" and exact:
                        found[exact[1]][name] = version
    return found


def read_torch(version: str, wheels: Sequence[TorchWheel], index: Index) -> Row:
    """Return the row of a release. Raises FetchError, or ValueError for a wheel of an unknown form."""
    chosen = _newest(wheels)
    with index.open(chosen.listed) as wheel:
        extension = wheel.read("torch/utils/cpp_extension.py").decode()
        facts: dict[str, Value] = {
            "version": version,
            "released": chosen.listed.uploaded or _made_on(wheel),
            "source": list(SOURCES),
            **_read_build(wheel, wheels, _CUDA),
            "cxx11_abi": b"_GLIBCXX_USE_CXX11_ABI=0"
            not in wheel.read("torch/share/cmake/Torch/TorchConfig.cmake"),
            **_read_requirements(wheel),
            **_read_extension(extension),
            **_read_headers(wheel),
        }
    return facts


def read_arm(wheels: Sequence[TorchWheel], index: Index) -> dict[str, str | list[str]]:
    """Return what differs in the wheels for 64-bit Arm: `cpu` and no architectures if they are for the CPU alone.

    Raises FetchError, or ValueError for a wheel of an unknown form.
    """
    with index.open(_newest(wheels).listed) as wheel:
        return _read_build(wheel, wheels, _CUDA_OR_NONE)


def _newest(wheels: Sequence[TorchWheel]) -> TorchWheel:
    """Return the wheel for the newest Python; free-threaded ones come last."""
    return ([wheel for wheel in wheels if not wheel.python.endswith("t")] or list(wheels))[-1]


def _read_build(
    wheel: zipfile.ZipFile, wheels: Sequence[TorchWheel], pattern: str
) -> dict[str, str | list[str]]:
    cuda = one_match(pattern, wheel.read("torch/version.py").decode(), "its CUDA")
    targets = {"architectures": _architectures(wheel.read("torch/lib/libtorch_python.so"))} if cuda else {}
    return {
        "pythons": list(dict.fromkeys(one.python for one in wheels)),
        "pypi": build_of(cuda) if cuda else CPU,
        **targets,
        "glibc": "{}.{}".format(*_newest(wheels).glibc),
    }


def _targets(tags: frozenset[Tag], processor: Processor) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the Python and the oldest glibc of each Linux tag of a wheel."""
    floors: dict[str, tuple[int, int]] = {}
    for tag in tags:
        system = re.fullmatch(_LINUX + processor.machine, tag.platform)
        cpython = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
        if system and cpython:
            python = f"{cpython[1]}.{cpython[2]}{'t' if tag.abi.endswith('t') else ''}"
            glibc = (int(system[2]), int(system[3])) if system[2] else _LEGACY[system[1]]
            floors[python] = min(glibc, floors.get(python, glibc))
    yield from floors.items()


def _wheel_order(wheel: TorchWheel) -> tuple[int, bool, BuildTag]:
    return int(wheel.python.rstrip("t").partition(".")[2]), wheel.python.endswith("t"), wheel.build


def _made_on(wheel: zipfile.ZipFile) -> str:
    """Return the day of the newest member, for an index without upload times."""
    year, month, day, *_ = max(member.date_time for member in wheel.infolist())
    return f"{year:04}-{month:02}-{day:02}"


def _architectures(library: bytes) -> str:
    """Return the result of `torch.cuda.get_arch_list()`: `sm_90` is machine code, `compute_90` is PTX."""
    lists = {tuple(found.split()) for found in re.findall(rb"(?:(?:sm|compute)_\d+[a-z]* ?){3,}", library)}
    if len(lists) != 1:
        raise ValueError(f"expected one list of architectures in libtorch_python.so, found {len(lists)}")
    names = [name.decode() for name in lists.pop()]
    ptx = {name.removeprefix("compute_") for name in names if name.startswith("compute_")}
    codes = [name.removeprefix("sm_") for name in names if name.startswith("sm_")]
    by_name = {capability(code): code in ptx for code in codes}
    return " ".join(name + "+PTX" * by_name[name] for name in sorted(by_name, key=architecture_key))


def capability(code: str) -> str:
    """100a → 10.0a"""
    found = re.fullmatch(r"(\d+)(\d)([a-z]*)", code)
    if found is None:
        raise ValueError(f"expected an architecture such as 100a, found {code!r}")
    return f"{found[1]}.{found[2]}{found[3]}"


def _read_requirements(wheel: zipfile.ZipFile) -> dict[str, Value]:
    facts: dict[str, Value] = {}
    for requirement in read_metadata(wheel):
        name = canonicalize_name(requirement.name)
        if requirement.marker and "extra" in str(requirement.marker):
            continue
        pinned = str(requirement.specifier).removeprefix("==")
        if re.fullmatch(r"nvidia-(nccl|cudnn)-cu\d+", name):
            facts[name.split("-")[1]] = pinned
        elif name == "cuda-toolkit":
            facts["cuda_toolkit"] = pinned
        elif name in ("setuptools", "numpy") and requirement.specifier:
            facts[name] = str(requirement.specifier)
    return facts


def read_metadata(wheel: zipfile.ZipFile) -> tuple[Requirement, ...]:
    """Return the requirements of a wheel."""
    (name,) = (name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    metadata = Parser().parsestr(wheel.read(name).decode())
    return tuple(Requirement(str(text)) for text in metadata.get_all("Requires-Dist", []))


def _read_extension(source: str) -> dict[str, Value]:
    """Return the standard of `cpp_extension`, and the compilers and architectures that it accepts."""
    values = _assigned(ast.parse(source))
    if "supported_arches" not in values:
        raise ValueError("`supported_arches` is not in cpp_extension.py")
    names: list[str] = ast.literal_eval(values["supported_arches"])
    facts: dict[str, Value] = {
        "std": int(one_match(r"cpp_flag_prefix \+ 'c\+\+(\d+)'", source, "the standard of extensions")),
        "arch_names": " ".join(sorted(names, key=architecture_key)),
    }
    # An upper bound was the last release allowed until 1.13 and is the first one refused since 2.0.
    last = "<" if "max_excl" in source else "<="
    table = values.get("CUDA_GCC_VERSIONS")
    if isinstance(table, ast.Dict):
        bounds = {}
        for key, value in zip(table.keys, table.values, strict=True):
            assert isinstance(key, ast.Constant)
            assert isinstance(value, ast.Tuple)
            low, high = (_version(one, values) for one in value.elts)
            bounds[str(key.value)] = f">={low},{last}{high}"
        facts["gcc_bounds"] = bounds
    return facts


def _read_headers(wheel: zipfile.ZipFile) -> dict[str, Value]:
    """Return the oldest standard and gcc that the headers accept."""
    everything = wheel.read("torch/include/torch/csrc/api/include/torch/all.h").decode()
    standard = one_match(r"#error C\+\+(\d+) or later", everything, "the standard of its headers")
    facts: dict[str, Value] = {"std_min": int(standard)}
    check = "torch/include/c10/util/C++17.h"
    if check in wheel.namelist():
        gcc = re.search(r"We need GCC (\d+) or later", wheel.read(check).decode())
        if gcc:
            facts["gcc_min"] = gcc[1]
    return facts


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """Return every plain assignment in the file; the first of several to one name."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            found.setdefault(target.id, value)
    return found


def _version(node: ast.expr, values: Mapping[str, ast.expr]) -> str:
    """(10, 2, 1) → 10.2.1, (10, 0) → 10"""
    numbers = ast.literal_eval(values[node.id] if isinstance(node, ast.Name) else node)
    return re.sub(r"(\.0)+$", "", ".".join(map(str, numbers)))


def one_match(pattern: str, text: str, what: str) -> str:
    """Return the one value that the pattern finds; raises ValueError otherwise."""
    found = set(re.findall(pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise ValueError(f"{what} is written in another way than before: {sorted(found)}")
    return str(found.pop())
