"""The processors that an environment can be for, each with its name in every system that has its own.

Code asks a `Processor` for a name and never spells one itself; `tests/project/test_processor.py` holds that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envbuilder.core.system import machine_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor, under Linux with glibc."""

    title: str  # in messages: x86-64
    debian: str  # of Debian, Ubuntu, OCI images and Go: amd64
    machine: str  # of `uname -m`, wheels, GNU tools and Python's builds: x86_64
    cuda: str  # of NVIDIA's archive and apt repositories: x86_64, and `sbsa` of Arm servers
    conda: str  # of conda's channels: linux-64
    sif: str  # of the header of SIFs: 02
    elf: int  # e_machine of its programs
    loader: str  # of its programs, below /: lib64/ld-linux-x86-64.so.2
    page: int  # the largest size of a memory page of its kernels, bytes
    oldest_glibc: int  # the minor version of glibc 2 that the first `manylinux` of it stands for
    manylinux: tuple[tuple[int, str], ...]  # minor version of glibc 2 → the older name of that tag
    # Those that exist beside it alone, without the refused: names in `compat/tables/gpus.yaml`.
    gpus: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """Return the platform of its images: linux/amd64."""
        return f"linux/{self.debian}"

    @property
    def gnu(self) -> str:
        """Return the GNU triplet, which Debian also names folders and compilers by: x86_64-linux-gnu."""
        return f"{self.machine}-linux-gnu"

    @property
    def cuda_target(self) -> str:
        """Return the folder of a CUDA toolkit's `targets`: x86_64-linux."""
        return f"{self.cuda}-linux"

    @property
    def redist(self) -> str:
        """Return the key of the manifests of NVIDIA's archive: linux-x86_64."""
        return f"linux-{self.cuda}"

    def uv_platform(self, minor: int) -> str:
        """Return what `uv --python-platform` calls it with this minor version of glibc 2."""
        return f"{self.machine}-manylinux_2_{minor}"

    def markers(self, python: str, release: str = "") -> dict[str, str]:
        """Return the environment for markers of requirements, with this Python (3.11), if known as a `release` (3.11.2)."""
        return {
            "python_version": python, "python_full_version": release or f"{python}.0", "sys_platform": "linux",
            "platform_system": "Linux", "platform_machine": self.machine, "os_name": "posix",
            "implementation_name": "cpython", "extra": "",
        }  # fmt: skip


NEWEST_MANYLINUX: Final = 40  # the last minor version of glibc 2 that `uv --python-platform` takes
X86_64: Final = Processor(
    title="x86-64", debian="amd64", machine="x86_64", cuda="x86_64", conda="linux-64", sif="02", elf=62,
    loader="lib64/ld-linux-x86-64.so.2", page=4096, oldest_glibc=5,
    manylinux=((5, "manylinux1"), (12, "manylinux2010"), (17, "manylinux2014")),
)  # fmt: skip
AARCH64: Final = Processor(
    title="64-bit Arm", debian="arm64", machine="aarch64", cuda="sbsa", conda="linux-aarch64", sif="04", elf=183,
    loader="lib/ld-linux-aarch64.so.1", page=65536, oldest_glibc=17, manylinux=((17, "manylinux2014"),),
    gpus=("GH200", "GB200", "GB300", "Thor", "GB10"),
)  # fmt: skip
PROCESSORS: Final = (X86_64, AARCH64)


def processor_of(platform: str) -> Processor | None:
    """Return the processor of a platform such as linux/arm64 or linux/arm64/v8, None if no environment is for it."""
    return next((known for known in PROCESSORS if f"{platform}/".startswith(f"{known.platform}/")), None)


def processor_for(platform: str, gpus: Iterable[str]) -> Processor:
    """Return the processor of a recipe: the named one, otherwise that of its GPUs."""
    return processor_of(platform) or (X86_64 if set(AARCH64.gpus).isdisjoint(gpus) else AARCH64)


def own_processor() -> Processor | None:
    """Return the processor of this machine, None if no environment is for it."""
    machine = machine_name()
    return next((known for known in PROCESSORS if machine in (known.machine, known.debian)), None)


def own_title() -> str:
    """Return what messages call the processor of this machine: its title, or its own name if no environment is for it."""
    own = own_processor()
    return own.title if own else machine_name()
