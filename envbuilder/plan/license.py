"""The license that a package declares, as an SPDX expression.

Two kinds of packages declare it in a machine-readable form: wheels in their metadata, Debian packages in copyright files of the format
DEP-5. Nothing is guessed from a license's text: an unclear declaration is quoted, and its expression stays empty.
"""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from packaging.metadata import parse_email

if TYPE_CHECKING:
    from license_expression import Licensing

_OWN: Final = "LicenseRef-"
_MOST_SHOWN: Final = 200  # characters of a quoted declaration
# Debian's short names with another SPDX name. `_debian_name` has the rule for GNU licenses.
_DEBIAN: Final = {
    "apache-2": "Apache-2.0", "artistic": "Artistic-1.0-Perl", "bsd-2": "BSD-2-Clause", "bsd-3": "BSD-3-Clause",
    "bsl": "BSL-1.0", "cc0": "CC0-1.0", "expat": "MIT", "mit/x11": "MIT", "python": "PSF-2.0",
}  # fmt: skip
_GNU: Final = re.compile(r"(A|L)?GPL-(\d)(?:\.(\d))?(\+?)")
# Declarations in wheels that are clear but not SPDX names.
_WHEEL: Final = {
    "apache 2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0", "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0", "isc license (iscl)": "ISC", "mit license": "MIT", "psf": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "python software foundation license": "PSF-2.0",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class License:
    """`expression` is an SPDX expression, "" if unclear. `stated` is the package's own text."""

    expression: str = ""
    stated: str = ""


UNKNOWN: Final = License()


def wheel_license(metadata: bytes) -> License:
    """Read the METADATA of a wheel: `License-Expression`, otherwise `License` or its classifiers."""
    fields, _ = parse_email(metadata)
    stated = fields.get("license_expression", "")
    if expression := _normal(stated):
        return License(expression=expression, stated=stated)
    classifiers = (one for one in fields.get("classifiers", ()) if one.startswith("License :: "))
    texts = [fields.get("license", ""), *(one.rpartition(" :: ")[2] for one in classifiers)]
    found = [one for one in texts if one and one != "OSI Approved"]
    known = sorted({one for text in found if (one := _WHEEL.get(text.strip().lower(), "") or _normal(text))})
    first = next((line.strip() for text in found for line in text.splitlines() if line.strip()), "")
    return License(expression=known[0] if len(known) == 1 else "", stated=(stated or first)[:_MOST_SHOWN])


def debian_license(copyright_text: str) -> License:
    """Read a copyright file of Debian: the licenses of all its files. A file that is not DEP-5 gives UNKNOWN."""
    if not re.match(r"\s*Format(-Specification)?:", copyright_text):
        return UNKNOWN
    stanzas = re.split(r"\n\s*\n", copyright_text)
    files = [text for text in stanzas if re.search(r"^Files:", text, re.MULTILINE)]
    found = (re.search(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE) for text in files)
    stated = {match[1].strip() for match in found if match}
    parts = sorted({_debian_expression(one) for one in stated})
    joined = " AND ".join(f"({one})" if " OR " in one and len(parts) > 1 else one for one in parts)
    return License(expression=joined, stated="; ".join(sorted(stated))[:_MOST_SHOWN])


def own_references(expression: str) -> tuple[str, ...]:
    """Return the names in an expression that are not in SPDX's list."""
    return tuple(sorted(set(re.findall(rf"{_OWN}[A-Za-z0-9.-]+", expression))))


def _debian_expression(stated: str) -> str:
    names = re.split(r",?\s+(and|or)\s+", stated)  # every second one is `and` or `or`
    return " ".join(_debian_name(one) if at % 2 == 0 else one.upper() for at, one in enumerate(names))


def _debian_name(name: str) -> str:
    if gnu := _GNU.fullmatch(name):
        kind, major, minor, later = gnu.groups()
        name = f"{kind or ''}GPL-{major}.{minor or 0}-{'or-later' if later else 'only'}"
    known = _DEBIAN.get(name.lower()) or _names().get(name.lower())
    return known or _OWN + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _normal(text: str) -> str:
    """Return the text as an SPDX expression, "" if it has a name that is not in SPDX's list."""
    if not text or len(text) > _MOST_SHOWN or "\n" in text:
        return ""
    licensing, invalid = _licensing()
    try:
        parsed = licensing.parse(text, validate=True)
    except invalid:
        return ""
    if any(str(key).lower() not in _names() for key in licensing.license_keys(parsed)):
        return ""
    return str(parsed.render())


@functools.cache
def _licensing() -> "tuple[Licensing, type[Exception]]":
    """Return the parser of SPDX expressions, and the error that it raises."""
    from license_expression import ExpressionError, get_spdx_licensing  # noqa: PLC0415 - it takes 0.1 s, for an SBOM alone

    return get_spdx_licensing(), ExpressionError


@functools.cache
def _names() -> dict[str, str]:
    """Return lower case → name of SPDX's list."""
    return {key.lower(): key for key in _licensing()[0].known_symbols if not key.startswith(_OWN)}
