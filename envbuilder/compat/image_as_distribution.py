"""Make a row of the distributions' table from an image's facts, so that the same rules judge both."""

from collections.abc import Mapping
from dataclasses import replace

from envbuilder.compat.image_facts import Base, Fact, Name
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.table import version_key

PLATFORM = "amd64"


def other_machine(base: Base) -> Fact | None:
    """What says that the image is for another processor; libraries for 32 bits beside ours do not."""
    said = base.every(Name.ARCHITECTURE)
    config, programs = ([fact for fact in said if bool(fact.path) == inside] for inside in (False, True))
    for found in (config, programs):
        if found and all(fact.value != PLATFORM for fact in found):
            return found[0]
    return None


def is_foreign(base: Base) -> bool:
    """Programs of another processor, or another C library than PyTorch's wheels are for: nothing else of it counts."""
    return other_machine(base) is not None or base.first(Name.GLIBC) is None


def suite_of(base: Base, rows: Mapping[str, Distribution]) -> Distribution | None:
    """The suite whose packages can be added to the image, None where none can."""
    row = rows.get(base.distribution)
    return row if row and row.buildable and base.value(Name.MANAGER) == "dpkg" else None


def as_distribution(base: Base, python: str, rows: Mapping[str, Distribution]) -> Distribution | None:
    """What an environment with this Python finds there, with what the image's own suite can add; None for what is foreign.

    A row is unsure where an image is: an empty text or tuple stands for what it does not have.
    """
    if is_foreign(base):
        return None
    suite = suite_of(base, rows)
    pythons = [base.python(python), *base.pythons]
    named = next((fact.value for fact in pythons if fact), "")
    has_crypt_h = base.first(Name.CRYPT_H) is not None
    found = Distribution(
        name=f"the base image ({base.distribution or 'of an unknown distribution'})",
        release="",
        glibc=base.value(Name.GLIBC),
        python_version=named,
        default_gcc=base.value(Name.PLAIN_GCC),
        gcc_versions=_one_of_each(tuple(fact.value for fact in base.gccs)),
        libxcrypt=base.value(Name.LIBXCRYPT),
        has_crypt_h=has_crypt_h,
        components=(),
        buildable=True,
        note="",
        source=(),
    )
    if suite is None:
        return found
    has_python = base.python(python) is not None
    return replace(
        found,
        python_version=suite.python_version
        if not has_python and (python == suite.python or not named)
        else named,
        gcc_versions=_one_of_each((*found.gcc_versions, *suite.gcc_versions)),
        libxcrypt=found.libxcrypt or suite.libxcrypt,
        has_crypt_h=found.has_crypt_h or suite.has_crypt_h,
    )


def _one_of_each(versions: tuple[str, ...]) -> tuple[str, ...]:
    """The first that is given of each major version, ascending."""
    first = {version.partition(".")[0]: version for version in reversed(versions)}
    return tuple(sorted(first.values(), key=version_key))
