"""The GPUs, the CUDA toolkits with their compilers and drivers, and the variables that make projects compile for a GPU.

What envbuilder lays out of a toolkit is another table, `toolkits.yaml`: a toolkit can be known here and not be built.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from envbuilder.compat.tables.table import Sources, Span, in_span, reader, version_key
from envbuilder.core.models import Date, FieldRule, Flag, Line, MajorMinor, Mistake, ReadAs, Shape, Whole
from envbuilder.core.processor import AARCH64
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.wheel_sources import index_entry

Major = Annotated[str, Shape(pattern=r"\d+", expected='a major version such as "12"')]
Version = Annotated[str, Shape(pattern=r"\d+(\.\d+)+", expected='a version such as "12.4.131"')]
_TARGETS: Final = Shape(
    pattern=r"\d+\.\d[af]?(\+PTX)?( \d+\.\d[af]?(\+PTX)?)*",
    expected='compute capabilities such as "8.0 9.0a 12.0+PTX"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGcc:
    """Releases of gcc within the accepted range with which nvcc fails."""

    first: Annotated[Version, Field(alias="from")]  # 10.3
    below: Version  # 10.4
    certain: Flag
    why: Line

    def holds(self, gcc: str) -> bool:
        return version_key(self.first) <= version_key(gcc) < version_key(self.below)


def _check_broken(broken: BrokenGcc) -> Iterator[Mistake]:
    if not version_key(broken.first) < version_key(broken.below):
        yield Mistake(message="`from` is not below `below`")


def architecture_key(name: str) -> tuple[int, int, str]:
    """Return the sort key of an architecture: 9.0 before 9.0a before 10.0."""
    match = re.fullmatch(r"(\d+)\.(\d+)([a-z]*)", name)
    if match is None:
        raise ValueError(f"expected an architecture such as 9.0a, found {name!r}")
    return int(match[1]), int(match[2]), match[3]


def _check_order(text: str) -> Iterator[Mistake]:
    order = [architecture_key(name) for name in architectures(text)]
    if order != sorted(set(order)):
        yield Mistake(message=f"expected ascending architectures, each once, found {text}")


Targets = Annotated[str, _TARGETS, FieldRule(_check_order)]


def architectures(targets: str) -> tuple[str, ...]:
    """Return those with machine code: "8.0 9.0+PTX" → 8.0, 9.0."""
    return tuple(name.removesuffix("+PTX") for name in targets.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """One toolkit for Linux x86-64."""

    cuda: MajorMinor  # 12.4
    compiler: Version = ""  # the nvcc that was read, 12.4.131; "" for none
    gcc_min: Major  # documented, not enforced
    gcc_max: Major  # enforced by its header
    broken_gccs: tuple[Annotated[BrokenGcc, FieldRule(_check_broken)], ...] = ()
    std_max: Whole  # the newest C++ standard that nvcc takes: 17
    # Ascending: 8.0, 9.0, 9.0a, 10.0f.
    architectures: Annotated[tuple[str, ...], ReadAs(Targets, architectures)]
    glibc_below: MajorMinor = ""  # its headers clash with this glibc and newer ones
    driver: Version = ""  # what it was released with: everything works from there; "" where not known
    minor_driver: Version = ""  # minor-version compatibility begins here; "" where there is none
    forward_branches: tuple[Major, ...] | None = None  # older drivers for cuda-compat; None: unknown
    unpinned: tuple[Version, ...] = ()  # cuda-toolkit releases with loose compiler parts
    # Read from the release itself, from other sources, or from contradicting ones.
    confidence: Literal["verified", "secondary", "uncertain"]
    note: Line = ""
    source: Sources
    read: Date

    @property
    def driver_floor(self) -> str:
        """The oldest driver that runs it, without forward compatibility; "" if unknown."""
        return self.minor_driver or self.driver

    def can_target(self, capability: str) -> bool:
        return capability in self.architectures


def _check(row: Cuda) -> Iterator[Mistake]:
    for low, high, rule in (
        (row.gcc_min, row.gcc_max, "`gcc_min` is not above `gcc_max`"),
        (row.minor_driver, row.driver, "`minor_driver` is not above `driver`"),
    ):
        # A toolkit can be older than the driver branch that the minor-version promise of its major begins with.
        if low and high and version_key(low) > version_key(high) and row.cuda.partition(".")[2] != "0":
            yield Mistake(message=f"{rule}, found {low} and {high}")
    if row.compiler and not f"{row.compiler}.".startswith(f"{row.cuda}."):
        yield Mistake(message=f"the compiler {row.compiler} is not one of {row.cuda}")


load_cudas = reader("cuda.yaml", Cuda, key="cuda", check=_check, overridden="cuda")  # oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    name: Line
    capability: MajorMinor  # 8.0, as TORCH_CUDA_ARCH_LIST says it
    market: Literal["data-center", "workstation", "consumer", "embedded"]
    interconnect: Line  # how GPUs of this kind reach each other, for people
    refused: Line = ""  # why no environment can be made for it
    note: Line = ""
    source: Sources

    @property
    def target(self) -> str:
        """As the compiler says it: sm_80."""
        return target(self.capability)

    @property
    def arm_host(self) -> bool:
        """Whether it exists only beside a 64-bit Arm processor."""
        return self.name in AARCH64.gpus

    @property
    def has_forward_compatibility(self) -> bool:
        """NVIDIA promises that of the driver for data centers only."""
        return self.market == "data-center"


def target(capability: str) -> str:
    """8.0 → sm_80"""
    return f"sm_{capability.replace('.', '')}"


def capabilities(names: Iterable[str], known: Iterable[GpuModel]) -> tuple[str, ...]:
    """Return the compute capabilities of these GPUs, ascending and unique. Raises KeyError for an unknown name."""
    by_name = {gpu.name: gpu.capability for gpu in known}
    return tuple(sorted({by_name[name] for name in names}, key=version_key))


load_gpus = reader(
    "gpus.yaml", GpuModel, key="name", order=lambda row: (*version_key(row.capability), row.name)
)


_VARIABLE: Final = Shape(pattern=r"[A-Z][A-Z0-9_]*", expected="the name of a variable")


def for_gpus(text: str, architectures: Iterable[str]) -> str:
    """Return a variable's value for these GPUs."""
    dots = tuple(architectures)
    numbers = [number.replace(".", "") for number in dots]
    return text.format(
        digits=";".join(numbers),
        dots=";".join(dots),
        gencode=" ".join(f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    variable: Annotated[str, _VARIABLE]
    effect: Literal["cuda", "architectures", "compile"]
    value: Line
    projects: tuple[Line, ...]
    needed: Flag = False  # nothing is compiled for GPUs without it
    source: Sources

    def setting(self, architectures: tuple[str, ...]) -> str:
        """Return the line for the extension's `env` in a recipe, for these GPUs."""
        return f'{self.variable}: "{for_gpus(self.value, architectures)}"'


load_switches = reader("switches.yaml", Switch, key="variable", order=lambda row: (row.variable,))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePackage:
    """A package whose CUDA code is compiled too late, and the entry or packages by which an environment has it compiled."""

    package: Line
    newest: Line = ""
    when: Line
    entry: Line = ""
    also: Line = ""
    ready: Line = ""
    cache: Line = ""
    source: Sources

    @property
    def words(self) -> str:
        """Say when it is compiled, and where what is compiled stays."""
        return f"{self.when}, into {self.cache}" if self.cache else self.when

    def advice(self, version: str) -> str:
        """Return what to write into a recipe."""
        entry = f"in its place, extensions: [{self.entry}]" if self.entry else ""
        return " and ".join(filter(None, (entry, self.also))).replace("VERSION", version or self.newest)


def late_packages(names: Iterable[str], compiled: Iterable[str]) -> Iterator[LatePackage]:
    """Yield those of these packages that a job compiles, without those that one of the texts `compiled` names."""
    known, texts, unique = load_late().by_name, tuple(compiled), dict.fromkeys(names)
    for row in (known[name] for name in unique if name in known):
        if not (row.ready in unique or any(row.package.partition("-")[0] in text.lower() for text in texts)):
            yield row


load_late = reader("late.yaml", LatePackage, key="package", order=lambda row: (row.package,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistBuild:
    """How a package's source distribution is compiled for the environment's torch, as an extension."""

    env: dict[str, Line] = field(default_factory=dict)
    needs: tuple[Line, ...] = ()  # what its setup.py imports
    memory: Whole = 0  # GB of one compiler process; 0 for the usual 3

    def extension(self, package: str, version: str, architectures: Iterable[str]) -> Extension:
        """Return the extension that compiles a version for these GPUs."""
        gpus, module = tuple(architectures), package.replace("-", "_")
        # Without GPUs, nothing may make the build ask for CUDA.
        env = {name: for_gpus(value, gpus) for name, value in self.env.items()} if gpus else {}
        return Extension(
            name=module,
            sdist=f"{module}=={version}",
            env=tuple(sorted((name, env[name]) for name in env if env[name])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFault:
    fault: Line
    releases: Span
    says: Line
    platform: Line = ""
    capability: Line = ""
    fixed: Line = ""
    source: Sources

    def holds(self, version: str, platform: str, capabilities: Iterable[str]) -> bool:
        """Return whether a release has it on this processor with one of these GPUs."""
        is_fit = self.platform in ("", platform) and (
            not self.capability or any(version_key(each) >= version_key(self.capability) for each in capabilities)
        )  # fmt: skip
        return is_fit and in_span(version_key(version.partition(".post")[0]), self.releases)


load_nccl_faults = reader("nccl_faults.yaml", NcclFault, key="fault", order=lambda row: (row.fault,))


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPackage:
    """A package with CUDA code: what the package index has under its name, and where its project publishes wheels."""

    package: Line
    project: Line  # owner/name on GitHub, or the address of a repository
    index: Literal["wheels", "undeclared", "cpu", "own", "nothing", "other"]
    there: Line = ""
    folder: Line = ""
    imports: Line = ""
    pages: tuple[Line, ...] = ()
    urls: tuple[Line, ...] = ()
    releases: Line = ""
    local: Line = ""
    build: SdistBuild | None = None
    says: Line = ""
    source: Sources

    @property
    def repository(self) -> str:
        return self.project if "://" in self.project else f"https://github.com/{self.project}"

    @property
    def module(self) -> str:
        """Return what Python imports, which is the name of an extension for it."""
        return self.imports or self.package.replace("-", "_")

    @property
    def wrong(self) -> str:
        """Return why the package index is the wrong place for it, "" where the index has the project's own files."""
        if self.index == "nothing":
            return f"the package index has no `{self.package}` for Linux: {self.project} publishes none there"
        other = f"`{self.package}` on the package index is {self.there}, and not {self.project}"
        return other if self.index == "other" else ""

    @property
    def alone(self) -> str:
        """Return what is wrong with what its name alone brings for GPUs, "" where nothing is known to be."""
        if self.index == "cpu":
            return f"`{self.package}` on the package index has code for the CPU alone"
        newest = f"`{self.package}` without a version is the newest release, whichever torch that is for: none declares its torch"
        return newest if self.index == "undeclared" else ""

    @property
    def is_chosen(self) -> bool:
        """Return whether `lock` chooses one of its project's wheels, or a build, beside the one torch of an environment."""
        has_wheels = bool(self.pages or self.urls or self.releases)
        return self.index in ("own", "nothing", "other") and (has_wheels or self.build is not None)

    def addresses(self, torch: str, build: str) -> tuple[tuple[str, bool], ...]:
        """Return the addresses of its wheels for a release and a build of torch, each with whether it is a page."""
        words = _words(torch, build)
        every = (*((page, True) for page in self.pages), *((url, False) for url in self.urls))
        return tuple((address.format(**words), is_page) for address, is_page in every)

    def is_for(self, local: str, torch: str, build: str) -> bool:
        """Return whether a wheel with this local version is for a release and a build of torch, as far as its name says."""
        words = {name: re.escape(text) for name, text in _words(torch, build).items()}
        pattern = re.sub(r"\{(\w+)\}", lambda match: words[match[1]], self.local)
        return not self.local or bool(re.fullmatch(pattern, local, re.IGNORECASE))

    def is_at(self, address: str) -> bool:
        """Return whether its project publishes wheels below an address, for whichever torch."""
        return any(address.startswith(place.partition("{")[0]) for place in (*self.pages, *self.urls))

    def advice(self, torch: str = "TORCH", build: str = "BUILD", *, is_seen: bool = False) -> str:
        """Return what to write into a recipe with this torch and build of it; `is_seen` leaves out its pages, where nothing fits."""
        ways = [
            f"`indexes: [{index_entry(address, is_page=is_page, packages=[self.package])}]` takes it from its project"
            for address, is_page in self.addresses(torch, build)[: not is_seen]
        ]
        if self.releases:
            ways.append(f"`{self.package} @ ADDRESS` takes a wheel of {self.repository}/releases")
        if self.wrong:
            path = f", path: {self.folder}" if self.folder else ""
            ways.append(
                f"`extensions: [{{name: {self.module}, git: {self.repository}, commit: COMMIT{path}}}]` compiles it; "
                "an index of your own that has it belongs into `indexes`"
            )
        return "; ".join((*([self.says] if self.says else []), *ways))


def _words(torch: str, build: str) -> dict[str, str]:
    minor = ".".join(torch.split(".")[:2])
    return {
        "torch": torch, "minor": minor, "digits": torch.replace(".", ""), "build": build,
        "pair": f"pt{minor.replace('.', '')}{build}", "major": build.removeprefix("cu")[:-1],
    }  # fmt: skip


load_cuda_packages = reader(
    "cuda_packages.yaml", CudaPackage, key="package", order=lambda row: (row.package,)
)
