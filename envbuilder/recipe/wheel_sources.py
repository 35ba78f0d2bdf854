"""Where wheels come from besides the indexes of the machine that locks: addresses in `packages`, and the key `indexes`.

A package that an index of the recipe lists comes from there and from nowhere else. So no index can take over another's name.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pydantic_core import PydanticCustomError

from envbuilder.core.cache import sha256_file, sha256_text
from envbuilder.core.models import FieldRule, Mistake, Shape
from envbuilder.core.places import shown
from envbuilder.recipe.fields import BELOW, RecipeCode, check_path
from envbuilder.sources.names import INDEX, LINKS, RECIPE, URL, is_loopback

WHEEL: Final = ".whl"
TORCHES: Final = (
    "torch",
    "torchvision",
    "torchaudio",
)  # each comes in the build that the recipe's pins choose
_FRAGMENT: Final = re.compile(r"sha256=([0-9a-f]{64})")
_HASH_HINT: Final = (
    "`sha256sum FILE` prints it; without a fragment, `lock` writes the sha256 of what it downloads"
)
_ADDRESS: Final = (
    r"https://[^\s@\[\]?#]+|http://(?:localhost|127(?:\.[0-9]+){3}|\[::1\])(?::[0-9]+)?(?:/[^\s@\[\]?#]*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWheel:
    """A requirement on the wheel at an address, or in the recipe's folder."""

    requirement: Requirement

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def address(self) -> str:
        """Return the address without its fragment; of a file in the recipe's folder, `file:` and its path."""
        return (self.requirement.url or "").partition("#")[0]

    @property
    def sha256(self) -> str:
        """Return the sha256 of the fragment, "" without one. A file in the recipe's folder has one."""
        return (self.requirement.url or "").partition("#sha256=")[2]

    @property
    def filename(self) -> str:
        return unquote(self.address.rpartition("/")[2].removeprefix("file:"))

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.filename)[1])

    @property
    def pin(self) -> str:
        """Return the requirement on its version, without the address."""
        extras = f"[{','.join(sorted(self.requirement.extras))}]" if self.requirement.extras else ""
        marker = f"; {self.requirement.marker}" if self.requirement.marker else ""
        return f"{self.requirement.name}{extras}=={self.version}{marker}"

    @property
    def is_own(self) -> bool:
        """Whether the wheel is in the recipe's folder."""
        return self.address.startswith("file:")

    @property
    def source(self) -> str:
        """Return its source in a lock."""
        return RECIPE if self.is_own else f"{URL}{sha256_text(self.address)[:12]}"

    @property
    def path(self) -> str:
        """Return its path below the source."""
        return self.address.removeprefix("file:") if self.is_own else self.filename


def wheel_of(text: str) -> PlacedWheel | None:
    """Return the wheel of a recipe's requirement, None for a requirement without an address."""
    if "@" not in text:
        return None
    requirement = Requirement(text)
    return PlacedWheel(requirement=requirement) if requirement.url else None


def pin_of(text: str) -> str:
    """Return a recipe's requirement, with the version of its wheel in place of an address."""
    wheel = wheel_of(text)
    return wheel.pin if wheel else text


def place_wheel(requirement: Requirement, folder: Path | None) -> Requirement:
    """Return a requirement on a wheel in its normal spelling, with the sha256 of a file in the recipe's folder.

    Raises PydanticCustomError for an address that is no wheel's, or another package's. Without a folder, files are not read.
    """
    address, _, fragment = (requirement.url or "").partition("#")
    digest = _FRAGMENT.fullmatch(fragment.lower())
    if fragment and digest is None:
        message = (
            f"expected `#sha256=` and 64 hexadecimal digits after the address, found {shown('#' + fragment)}"
        )
        raise _refused(message, _HASH_HINT, RecipeCode.HASH)
    sha256 = digest[1] if digest else ""
    if "://" in address:
        _check_address(address)
    else:
        path = re.sub(r"^(\./+)+", "", address.removeprefix("file:"))
        address = f"file:{path}"
        if folder is not None:
            sha256 = _own_digest(path, folder, sha256)
    requirement.url = f"{address}#sha256={sha256}" if sha256 else address
    wheel = PlacedWheel(requirement=requirement)
    try:
        name = parse_wheel_filename(wheel.filename)[0]
    except InvalidWheelFilename as error:
        message = f"`{wheel.filename}` is not the name of a wheel"
        raise _refused(
            message, "keep the name that its makers gave it: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
        ) from error
    if name != wheel.name:
        message = f"`{wheel.filename}` is a wheel of `{name}`, and the requirement is on `{requirement.name}`"
        raise _refused(message, f"write `{name} @ …`, or the address of a wheel of `{requirement.name}`")
    return requirement


def _check_address(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme == "file":
        hint = "copy it into the recipe's folder and write `NAME @ file:PATH`; `ENVBUILDER_FOLDERS` names a folder of wheels"
        raise _refused(f"{shown(address)} is a file of one machine", hint)
    if not re.fullmatch(_ADDRESS, address):
        is_clear = parts.scheme == "http" and not is_loopback(parts.netloc)
        why = (
            "has no encryption"
            if is_clear
            else "has more than host and path"
            if parts.netloc
            else "is none of HTTP"
        )
        hint = "write https://HOST/PATH; a login belongs in `~/.netrc` (mode 0600)"
        raise _refused(f"{shown(address)} is the address of a wheel, and {why}", hint)


def _own_digest(path: str, folder: Path, expected: str) -> str:
    for mistake in check_path(path, folder):
        raise mistake.error()
    digest = sha256_file(folder / path)
    if expected not in ("", digest):
        message = f"`{path}` has the sha256 {digest}, and the requirement says {expected}"
        raise _refused(
            message, "find out why the file is another one before you write its sha256", RecipeCode.HASH
        )
    return digest


def read_wheel(text: str, beside: Path, folder: Path) -> Requirement | None:
    """Return the requirement on a wheel that a line of a requirements file names, with or without the package's name.

    A path starts at the folder of the file, `beside`, or at the recipe's. Returns None for another line.
    """
    place, _, marker = re.sub(r"\s+;|;\s", "\n", text, count=1).partition("\n")
    named, _, address = re.sub(
        r"^([A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?)\s*@\s*(?=\S)", r"\1\n", place
    ).rpartition("\n")
    address, mark, fragment = address.strip().partition("#")
    if not address.endswith(WHEEL):
        return None
    try:
        named = named or parse_wheel_filename(unquote(address.rpartition("/")[2]))[0]
        if "://" not in address:
            path = address.removeprefix("file:")
            there = next(
                (start / path for start in (beside, folder) if (start / path).is_file()), folder / path
            )
            home = folder.resolve()
            address = (
                f"file:{there.resolve().relative_to(home) if there.resolve().is_relative_to(home) else path}"
            )
        return Requirement(f"{named} @ {address}{mark}{fragment}" + (f" ; {marker}" if marker else ""))
    except (InvalidRequirement, InvalidWheelFilename):
        return None


# ---- the key `indexes`


_NAME: Final = Shape(
    pattern=r"[a-z][a-z0-9-]*",
    expected="a name of small letters, digits and `-`",
    hint="the lock names the source of each package by it",
)
_INDEX: Final = Shape(
    pattern=_ADDRESS,
    expected="the address of a package index by https, without user and password",
    hint="a simple index (PEP 503), as in pip's `--extra-index-url`; a login belongs in `~/.netrc`",
)
_PAGE: Final = Shape(
    pattern=rf"(?:{_ADDRESS})|{BELOW.pattern}",
    expected="the address of a page by https, or a folder below the recipe's",
    hint="as in pip's `--find-links`; a login belongs in `~/.netrc`",
)
_PACKAGE: Final = Shape(
    pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[A-Za-z0-9][A-Za-z0-9._-]*\*",
    expected="the name of a package, or the beginning of names such as `nvidia-*`",
    hint="all others come from the indexes of the machine that locks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """An entry of `indexes` in a recipe file. The text below each key is its description in the schema."""

    name: Annotated[str, _NAME]
    """The source of its packages in the lock."""
    url: Annotated[str, _INDEX] = ""
    """The address of a simple index, as pip's `--extra-index-url` has it."""
    find_links: Annotated[str, _PAGE] = ""
    """Instead of `url`: the address of a page with links to wheels, as pip's `--find-links` has it, or a folder below the recipe's own."""
    packages: tuple[Annotated[str, _PACKAGE], ...]
    """The packages that come from it and from nowhere else: names, or the beginning of names such as `nvidia-*`."""


def _check_entry(entry: IndexFile) -> Iterator[Mistake]:
    if bool(entry.url) == bool(entry.find_links):
        message = "expected `url` or `find_links`, " + ("found both" if entry.url else "found neither")
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


def _check_all(entries: tuple[IndexFile, ...]) -> Iterator[Mistake]:
    taken: list[tuple[str, str]] = []  # pattern and index
    for at, entry in enumerate(entries):
        if entry.name in [other.name for other in entries[:at]]:
            yield Mistake(message=f"a second index `{entry.name}`", hint="rename one", at=(at, "name"))
        for number, pattern in enumerate(entry.packages):
            same = next((index for other, index in taken if _meet(pattern, other)), "")
            taken.append((pattern, entry.name))
            if same:
                message = f"the index `{same}` has `{pattern}` already, and a package comes from one index"
                yield Mistake(message=message, hint="leave one of them out", at=(at, "packages", number))


Indexes = Annotated[tuple[Annotated[IndexFile, FieldRule(_check_entry)], ...], FieldRule(_check_all)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index of a recipe, or a page or folder of wheels."""

    name: str
    url: str = ""  # of a simple index, with a final slash
    page: str = ""  # otherwise: of a page with links
    folder: str = ""  # otherwise: below the recipe's
    packages: tuple[str, ...]

    @property
    def source(self) -> str:
        """Return the source of its packages in a lock."""
        return RECIPE if self.folder else f"{INDEX if self.url else LINKS}{self.name}"

    @property
    def place(self) -> str:
        """Return where it is, for people."""
        return self.url or self.page or self.folder

    def address(self, recipes: Path) -> str:
        """Return its address, for a recipe in this folder."""
        return self.url or self.page or (recipes / self.folder).resolve().as_uri()

    def path(self, package: str, filename: str) -> str:
        """Return the path of a file below its source."""
        above = self.folder or (package if self.url else "")
        return f"{above}/{filename}" if above else filename

    def canonical(self) -> dict[str, object]:
        """Return what decides a build."""
        return {key: value for key, value in asdict(self).items() if value}


def make_index(entry: IndexFile) -> Index:
    is_page = "://" in entry.find_links
    return Index(
        name=entry.name, url=f"{entry.url.rstrip('/')}/" if entry.url else "",
        page=entry.find_links if is_page else "", folder="" if is_page else entry.find_links,
        packages=tuple(map(_normal, entry.packages)),
    )  # fmt: skip


def is_address(text: str) -> bool:
    """Return whether a text is an address that `indexes` takes."""
    return re.fullmatch(_ADDRESS, text) is not None


def name_after(url: str) -> str:
    """Return a name for an index, from its host."""
    labels = (urlsplit(url).hostname or "").split(".")
    return next((label for label in reversed(labels[:-1]) if re.fullmatch(_NAME.pattern, label)), "other")


def index_entry(url: str, *, is_page: bool, packages: Iterable[str] = (), name: str = "") -> str:
    """Return the text of an entry of `indexes`."""
    names, key = ", ".join(packages) or "NAME", "find_links" if is_page else "url"
    return f'{{name: {name or name_after(url)}, {key}: "{url}", packages: [{names}]}}'


def index_of(name: str, indexes: Iterable[Index]) -> Index | None:
    """Return the index that a package comes from, None for those of the machine that locks."""
    return next(
        (index for index in indexes if any(_is_like(pattern, name) for pattern in index.packages)), None
    )


def _normal(pattern: str) -> str:
    return re.sub(r"[-_.]+", "-", pattern).lower()


def _is_like(pattern: str, name: str) -> bool:
    pattern, name = _normal(pattern), _normal(name)
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _meet(pattern: str, other: str) -> bool:
    """Whether one name fits both."""
    stems = (pattern.removesuffix("*"), other.removesuffix("*"))
    return _is_like(pattern, stems[1]) or _is_like(other, stems[0])


def _refused(message: str, hint: str, code: RecipeCode = RecipeCode.REQUIREMENT) -> PydanticCustomError:
    return Mistake(message=message, code=code, hint=hint).error()
