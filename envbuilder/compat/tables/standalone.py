"""Standalone builds of Python, for bases whose own Python is another version.

They are those of python-build-standalone, which uv installs too: relocatable, for any Linux with glibc 2.17.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from envbuilder.compat.tables.table import Sources, reader
from envbuilder.core.models import Date, Line, MajorMinor, Shape
from envbuilder.core.processor import Processor

_VERSION: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "3.10.21"')
_RELEASE: Final = Shape(pattern=r"\d{8}", expected='a day such as "20260814"')
_DIGEST: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """The newest build of one minor version."""

    python: MajorMinor  # 3.10
    read: Date
    source: Sources
    version: Annotated[str, _VERSION]  # 3.10.21
    release: Annotated[str, _RELEASE]  # of python-build-standalone: the day of the build
    x86_64: Annotated[str, _DIGEST]  # sha256 of the archive
    aarch64: Annotated[str, _DIGEST]
    note: Line = ""

    def digest(self, processor: Processor) -> str:
        """Return the sha256 of the archive for a processor."""
        return str(getattr(self, processor.machine))

    def path(self, processor: Processor) -> str:
        """Return the place of the archive below the releases of python-build-standalone, or below a mirror of them."""
        return f"{self.release}/{archive_name(self.version, self.release, processor.machine)}"


def archive_name(version: str, release: str, machine: str) -> str:
    """Return the file name of a build without debug symbols and tests."""
    return f"cpython-{version}+{release}-{machine}-unknown-linux-gnu-install_only_stripped.tar.gz"


load_standalones = reader("standalone.yaml", Standalone, key="python")
