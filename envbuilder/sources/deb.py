"""Read .deb packages without dpkg, as the program that unpacks them does. Raises BuildError for damage, with the package's name.

`python-debian` is under the GPL, which the zipapp with all its packages cannot hold, and unpacks without a bound.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from envbuilder.core.errors import BuildError
from envbuilder.steps import distribution
from envbuilder.steps.distribution import Tar


@contextlib.contextmanager
def open_tar(deb: Path, part: str) -> Iterator[IO[bytes]]:
    """Yield a package's tar, `control` or `data`, as a stream."""
    with _damage_named(deb), distribution.open_part(deb, part) as stream:
        yield stream


@contextlib.contextmanager
def open_members(deb: Path) -> Iterator[Tar]:
    """Yield the members of a package. `Tar.read` reads the content of the last one."""
    with _damage_named(deb), distribution.open_members(deb, "data") as tar:
        yield tar


def read_about(deb: Path) -> str:
    """Return the fields of a package: its name, version and dependencies."""
    with _damage_named(deb):
        content: bytes = distribution.read_control(deb)["control"][0]  # type: ignore[no-untyped-call]
        return content.decode()


@contextlib.contextmanager
def _damage_named(deb: Path) -> Iterator[None]:
    try:
        yield
    except distribution.DAMAGE as error:
        raise BuildError(
            f"the package `{deb}` cannot be read: {error}", hint="remove it, and run the same command again"
        ) from error
