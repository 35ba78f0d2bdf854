"""Explain uv's errors in terms of the recipe: an unknown name, a version without a wheel, conflicting bounds."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.core.fetch import NETWORK_HINT

_LOOSEN: Final = "loosen a bound in `packages`, or choose a version that has a wheel for this Python"


def is_unsolvable(error: CommandError) -> bool:
    return "ended with exit code 1\n" in error.message


def refusal(
    error: CommandError, requirements: Sequence[str], *, python: str, glibc: str
) -> IncompatibleError | FetchError:
    """Return the error to raise, with uv's message below the reason."""
    said = error.message.partition("\n")[2]
    if not is_unsolvable(error):
        return FetchError(f"could not read the package index\n{said}", hint=NETWORK_HINT)
    asked = [Requirement(text) for text in requirements]
    if unknown := list(dict.fromkeys(_unknown(asked, said))):
        names = ", ".join(f"`{name}`" for name in unknown)
        return IncompatibleError(
            f"no package index knows {names}\n{said}",
            hint="`packages` takes the name that pip installs, which may be another than that of the import or of conda's package",
        )
    ways = [_LOOSEN, *(f"or build it as an extension: {one}" for one in _extensions(asked, said))]
    return IncompatibleError(
        f"no set of wheels for Python {python} and glibc {glibc} fits the recipe's packages\n{said}",
        hint="; ".join(ways),
    )


def _unknown(asked: Sequence[Requirement], said: str) -> Iterator[str]:
    """Return the requirements of the recipe itself, which everything depends on."""
    missing = re.findall(r"([\w.-]+) was not found in the package registry", said)
    return (one.name for one in asked if canonicalize_name(one.name) in missing)


def _extensions(asked: Sequence[Requirement], said: str) -> Iterator[str]:
    """Return a hint for each pinned package without a wheel: how to build it from its sdist."""
    for one in asked:
        name = canonicalize_name(one.name)
        pin = re.fullmatch(r"==([^,*]+)", str(one.specifier))
        if pin and re.search(
            rf"(?<![\w.-]){re.escape(name)}=={re.escape(pin[1])} has no (usable )?wheels", said
        ):
            yield f"`extensions: [{{name: {name.replace('-', '_')}, sdist: {one.name}=={pin[1]}}}]`"
