"""Where wheels come from besides the indexes of the machine that locks: addresses in `packages`, and the key `indexes`.

A package that an index of the recipe lists comes from there and from nowhere else. So no index can take over another's name.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envbuilder.core.cache import sha256_file, sha256_text
from envbuilder.core.models import FieldRule, Mistake, Shape
from envbuilder.core.places import shown
from envbuilder.recipe.fields import BELOW, RecipeCode, check_path
from envbuilder.sources.names import INDEX, LINKS, RECIPE, URL

WHEEL: Final = ".whl"
TORCHES: Final = ("torch", "torchvision", "torchaudio")  # their build follows from `pytorch` and `cuda`
ADDRESS: Final = r"https://[^\s/@\[\]?#]+(?:/[^\s@\[\]?#]*)?|http://(?:localhost|127(?:\.[0-9]+){3}|\[::1\])(?::[0-9]+)?(?:/[^\s@\[\]?#]*)?"
_NAMED: Final = re.compile(r"([A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?)\s*@\s*(?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWheel:
    """A requirement on the wheel at an address, or in the recipe's folder."""

    requirement: Requirement
    address: str  # without a fragment; `file:` and a path for a file in the recipe's folder
    sha256: str  # "" if it is not stated; a file in the recipe's folder has it
    source: str  # in a lock
    path: str  # below the source
    filename: str

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.filename)[1])


def wheel_of(text: str) -> PlacedWheel | None:
    """Return the wheel of a recipe's requirement, None for a requirement without an address."""
    requirement = Requirement(text) if "@" in text else None
    if requirement is None or not requirement.url:
        return None
    address, _, digest = requirement.url.partition("#sha256=")
    is_own = address.startswith("file:")
    path = address.removeprefix("file:") if is_own else unquote(address.rpartition("/")[2])
    return PlacedWheel(
        requirement=requirement, address=address, sha256=digest, path=path, filename=path.rpartition("/")[2],
        source=RECIPE if is_own else f"{URL}{sha256_text(address)[:12]}",
    )  # fmt: skip


def pin_of(text: str) -> str:
    """Return a recipe's requirement, with the version of its wheel in place of an address."""
    wheel = wheel_of(text)
    if wheel is None:
        return text
    wheel.requirement.url, wheel.requirement.specifier = None, SpecifierSet(f"=={wheel.version}")
    return str(wheel.requirement)


def place_wheel(requirement: Requirement, folder: Path | None) -> Requirement:
    """Return a requirement on a wheel in its normal spelling, with the sha256 of a file in the recipe's folder.

    Raises PydanticCustomError for an address that is no wheel's, or another package's. Without a folder, files are not read.
    """
    address, _, fragment = (requirement.url or "").partition("#")
    for mistake in _mistakes(requirement.name, address, fragment):
        raise mistake.error()
    digest = fragment.lower().removeprefix("sha256=")
    if "://" not in address:
        path = re.sub(r"^(\./+)+", "", address.removeprefix("file:"))
        address = f"file:{path}"
        for mistake in check_path(path, folder) if folder else ():
            raise mistake.error()
        real = sha256_file(folder / path) if folder else digest
        if digest not in ("", real):
            message = f"`{path}` has the sha256 {real}, and the requirement says {digest}"
            hint = "find out why the file is another one before you write its sha256"
            raise Mistake(message=message, code=RecipeCode.HASH, hint=hint).error()
        digest = real
    requirement.url = f"{address}#sha256={digest}" if digest else address
    return requirement


def _mistakes(package: str, address: str, fragment: str) -> Iterator[Mistake]:
    code = RecipeCode.REQUIREMENT
    if address.startswith("file://"):
        hint = "copy it into the recipe's folder and write `NAME @ file:PATH`; `ENVBUILDER_FOLDERS` names a folder of wheels"
        yield Mistake(message=f"{shown(address)} is a file of one machine", code=code, hint=hint)
    elif "://" in address and not re.fullmatch(ADDRESS, address):
        is_clear = re.fullmatch(ADDRESS, address.replace("http:", "https:"))
        why = "has no encryption" if is_clear else "is not `https://HOST/PATH`"
        hint = "write https://HOST/PATH without more; a login belongs in `~/.netrc` (mode 0600)"
        yield Mistake(message=f"{shown(address)} is the address of a wheel, and {why}", code=code, hint=hint)
    if fragment and not re.fullmatch(r"sha256=[0-9a-f]{64}", fragment.lower()):
        message = f"expected `#sha256=` and 64 hexadecimal digits at its end, found {shown('#' + fragment)}"
        hint = "`sha256sum FILE` prints it; without a fragment, `lock` writes the sha256 of what it downloads"
        yield Mistake(message=message, code=RecipeCode.HASH, hint=hint)
    filename = unquote(address.rpartition("/")[2]).removeprefix("file:")
    try:
        name = parse_wheel_filename(filename)[0]
    except InvalidWheelFilename:
        hint = "keep the name that its makers gave it: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
        yield Mistake(message=f"`{filename}` is not the name of a wheel", code=code, hint=hint)
    else:
        if name != canonicalize_name(package):
            message = f"`{filename}` is a wheel of `{name}`, and the requirement is on `{package}`"
            hint = f"write `{name} @ …`, or the address of a wheel of `{package}`"
            yield Mistake(message=message, code=code, hint=hint)


def read_wheel(text: str, beside: Path, folder: Path) -> Requirement | None:
    """Return the requirement on a wheel that a line of a requirements file names, with or without the package's name.

    A path starts at the folder of the file, `beside`, or at the recipe's. Returns None for another line.
    """
    place, _, marker = re.sub(r"\s+;|;\s", "\n", text, count=1).partition("\n")
    named = _NAMED.match(place)
    address, mark, fragment = place[named.end() if named else 0 :].strip().partition("#")
    if not address.endswith(WHEEL):
        return None
    try:
        name = named[1] if named else parse_wheel_filename(unquote(address.rpartition("/")[2]))[0]
        if "://" not in address:
            path, home = address.removeprefix("file:"), folder.resolve()
            starts = (start for start in (beside, folder) if (start / path).is_file())
            there = (next(starts, folder) / path).resolve()
            address = f"file:{there.relative_to(home) if there.is_relative_to(home) else path}"
        return Requirement(f"{name} @ {address}{mark}{fragment}" + (f" ; {marker}" if marker else ""))
    except (InvalidRequirement, InvalidWheelFilename):
        return None


# ---- the key `indexes`


_NAME: Final = Shape(
    pattern=r"[a-z][a-z0-9-]*",
    expected="a name of small letters, digits and `-`",
    hint="the lock names the source of each package by it",
)
_INDEX: Final = Shape(
    pattern=ADDRESS,
    expected="the address of a package index by https, without user and password",
    hint="a simple index (PEP 503), as in pip's `--extra-index-url`; a login belongs in `~/.netrc`",
)
_PAGE: Final = Shape(
    pattern=rf"(?:{ADDRESS})|{BELOW.pattern}",
    expected="the address of a page by https, or a folder below the recipe's",
    hint="as in pip's `--find-links`; a login belongs in `~/.netrc`",
)
_PACKAGE: Final = Shape(
    pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[A-Za-z0-9][A-Za-z0-9._-]*\*",
    expected="the name of a package, or the beginning of names such as `nvidia-*`",
    hint="all others come from the indexes of the machine that locks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelIndex:
    """An entry of `indexes` in a recipe. The text below each key is its description in the schema."""

    name: Annotated[str, _NAME]
    """The source of its packages in the lock."""
    url: Annotated[str, _INDEX] = ""
    """The address of a simple index, as pip's `--extra-index-url` has it."""
    find_links: Annotated[str, _PAGE] = ""
    """Instead of `url`: the address of a page with links to wheels, as pip's `--find-links` has it, or a folder below the recipe's own."""
    packages: tuple[Annotated[str, _PACKAGE], ...]
    """The packages that come from it and from nowhere else: names, or the beginning of names such as `nvidia-*`."""

    @property
    def place(self) -> str:
        """Return the address, of an index with a final slash; otherwise the folder below the recipe's."""
        return f"{self.url.rstrip('/')}/" if self.url else self.find_links

    @property
    def source(self) -> str:
        """Return the source of its packages in a lock: `recipe` for a folder."""
        kind = INDEX if self.url else LINKS
        return f"{kind}{self.name}" if "://" in self.place else RECIPE

    def address(self, recipes: Path) -> str:
        """Return its address, for a recipe in this folder."""
        return self.place if "://" in self.place else (recipes / self.place).resolve().as_uri()

    def path(self, package: str, filename: str) -> str:
        """Return the path of a file below its source."""
        above = package if self.url else "" if "://" in self.place else self.find_links
        return f"{above}/{filename}".lstrip("/")


def _check_entry(entry: WheelIndex) -> Iterator[Mistake]:
    if bool(entry.url) == bool(entry.find_links):
        message = f"expected `url` or `find_links`, found {'both' if entry.url else 'neither'}"
        yield Mistake(
            message=message, code=RecipeCode.PAIR, hint="`url` is an index, `find_links` a page or a folder"
        )
    if not entry.packages:
        hint = "name each package that comes from it, so that it can take no other name"
        yield Mistake(
            message="expected one package or more", code=RecipeCode.PAIR, hint=hint, at=("packages",)
        )
    for at, pattern in enumerate(entry.packages):
        if any(_is_like(pattern, name) for name in TORCHES):
            hint = "`pytorch` and `cuda` choose torch and its companions; ENVBUILDER_PYTORCH_INDEX names a mirror of them"
            yield Mistake(
                message=f"`{pattern}` would take torch from another index", hint=hint, at=("packages", at)
            )


def _check_all(entries: tuple[WheelIndex, ...]) -> Iterator[Mistake]:
    taken: list[tuple[str, str]] = []  # pattern and index
    for at, entry in enumerate(entries):
        if entry.name in [other.name for other in entries[:at]]:
            yield Mistake(message=f"a second index `{entry.name}`", hint="rename one", at=(at, "name"))
        for number, pattern in enumerate(entry.packages):
            if same := next((index for other, index in taken if _meet(pattern, other)), ""):
                message = f"the index `{same}` has `{pattern}` already, and a package comes from one index"
                yield Mistake(message=message, hint="leave one of them out", at=(at, "packages", number))
            taken.append((pattern, entry.name))


Indexes = Annotated[tuple[Annotated[WheelIndex, FieldRule(_check_entry)], ...], FieldRule(_check_all)]


def name_after(url: str) -> str:
    """Return a name for an index, from its host."""
    host = re.match(r"[^/]*//(?:[^/@]*@)?([^/:?#]*)", url)
    labels = host[1].split(".") if host else []
    return next((label for label in reversed(labels[:-1]) if re.fullmatch(_NAME.pattern, label)), "other")


def index_entry(url: str, *, is_page: bool, packages: Iterable[str] = (), name: str = "") -> str:
    """Return the text of an entry of `indexes`."""
    names, key = ", ".join(packages) or "NAME", "find_links" if is_page else "url"
    return f'{{name: {name or name_after(url)}, {key}: "{url}", packages: [{names}]}}'


def index_of(name: str, indexes: Iterable[WheelIndex]) -> WheelIndex | None:
    """Return the index that a package comes from, None for those of the machine that locks."""
    return next((index for index in indexes if any(_is_like(one, name) for one in index.packages)), None)


def _normal(pattern: str) -> str:
    return re.sub(r"[-_.]+", "-", pattern).lower()


def _is_like(pattern: str, name: str) -> bool:
    pattern, name = _normal(pattern), _normal(name)
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _meet(pattern: str, other: str) -> bool:
    """Whether one name fits both."""
    return _is_like(pattern, other.removesuffix("*")) or _is_like(other, pattern.removesuffix("*"))
