"""Read .deb packages without dpkg, as the program that unpacks them does. Raises BuildError for damage, with the package's name.

`python-debian` is under the GPL, which the single file of a release with all its packages cannot hold, and unpacks without a bound.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from envbuilder.steps.distribution import Tar


@contextlib.contextmanager
def open_tar(deb: Path, part: str) -> Iterator[IO[bytes]]:
    """Yield a package's tar, `control` or `data`, as a stream."""
    with _reader(deb) as reader, reader.open_part(deb, part) as stream:
        yield stream


@contextlib.contextmanager
def open_members(deb: Path) -> "Iterator[Tar]":
    """Yield the members of a package. `Tar.read` reads the content of the last one."""
    with _reader(deb) as reader, reader.open_members(deb, "data") as tar:
        yield tar


def read_about(deb: Path) -> str:
    """Return the fields of a package: its name, version and dependencies."""
    with _reader(deb) as reader:
        content: bytes = reader.read_control(deb)["control"][0]
        return content.decode()


@contextlib.contextmanager
def _reader(deb: Path) -> Iterator[ModuleType]:
    """Yield the program that unpacks packages, and name the package that it finds damaged."""
    from envbuilder.steps import distribution  # noqa: PLC0415 - 6 ms, and most commands read no package

    try:
        yield distribution
    except distribution.DAMAGE as error:
        raise BuildError(
            f"the package `{deb}` cannot be read: {error}", hint="remove it, and run the same command again"
        ) from error
