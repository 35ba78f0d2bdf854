"""The requests that `init` has collected, and a finding for each line that it leaves out."""

import itertools
import os
import re
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envbuilder.compat.tables.distribution import Distribution
from envbuilder.core.beneath import leads_out
from envbuilder.core.errors import UsageError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.places import Mistakes, load_text, shown
from envbuilder.core.plain import GIVE_BY
from envbuilder.core.text.redact import is_secret, plain, without_credentials
from envbuilder.recipe.extension import Extension, Form
from envbuilder.recipe.fields import VARIABLE
from envbuilder.recipe.model import SHAPES

LONGEST: Final = 1000  # characters of a requirement: Python takes no number of more than 4300 digits
CONFIGURED: Final = "packages come from the indexes of the machine that locks"


def read_text(path: Path) -> str:
    """Read a file of a project; raises UsageError with the reason where it cannot be read."""
    mistakes = Mistakes()
    text = load_text(path, mistakes)
    if text is None:
        raise UsageError(f"`{path}` cannot be read", findings=mistakes.findings)
    return text


def _is_specifier(text: str) -> bool:
    try:
        return len(text) <= LONGEST and SpecifierSet(text) is not None
    except InvalidSpecifier:
        return False


class InitCode(CodeEnum):
    LEFT = "EB140", "a line that no key of a recipe can say"
    NEAREST = "EB141", "a pin that is not offered, and the nearest that is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line's request: a PEP 440 specifier for a pin (==3.8.*), or a PEP 508 requirement for a package."""

    text: str
    where: str

    @property
    def specifier(self) -> SpecifierSet:
        return SpecifierSet(self.text)

    @property
    def is_exact(self) -> bool:
        return self.text.startswith("==")

    def allows(self, other: "Request") -> bool:
        """Return whether the version of an exact request fits this one."""
        return self.text == other.text or self.specifier.contains(other.version, prereleases=True)

    @property
    def version(self) -> str:
        """The first version in it, from which the distance is measured; "" for exclusions alone."""
        found = re.search(r"(?:^|,)\s*(?:===?|~=|>=|<=|>|<)\s*(\d+(?:\.\d+)*)", self.text)
        return found[1] if found else ""


@dataclass(slots=True, kw_only=True)
class Requests:
    """Requests, collected line by line; a later line wins. Paths of extensions are absolute until the recipe has its place."""

    pins: dict[str, Request] = field(default_factory=dict)  # pytorch, cuda, python, gcc
    packages: dict[str, Request] = field(default_factory=dict)  # by their normal name
    apt: dict[str, str] = field(default_factory=dict)  # name → where
    env: dict[str, str] = field(default_factory=dict)
    extensions: dict[str, Extension] = field(default_factory=dict)
    gpus: tuple[str, ...] | None = None  # None: not requested; (): no GPU
    driver: str = ""
    system: list[tuple[str, str]] = field(default_factory=list)  # packages of conda that are not Python's
    day: date | None = None  # when the project last changed
    submodules: dict[Path, tuple[str, str]] = field(
        default_factory=dict
    )  # absent folder → repository, commit
    suite: Distribution | None = None  # of the image that is read
    image: tuple[str, str] = ("", "")  # the last one whose Python its name does not say, and where
    read: set[Path] = field(default_factory=set)  # requirements files, each read once
    left: list[Finding] = field(default_factory=list)
    said: set[Finding] = field(default_factory=set)  # those of `left`
    top: Path | None = (
        None  # the project's folder: a stranger's files must not name others, whose lines `left` would show
    )

    def holds(self, path: Path) -> bool:
        """Return whether the project may name a file or folder: it lies in the project's folder, links followed."""
        return self.top is None or not leads_out(self.top, path)

    def leave(self, where: str, text: str, why: str, *, hint: str = "") -> None:
        """Report a line that the recipe leaves out."""
        self._say(InitCode.LEFT, where, f"left out {shown(text)}: {why}", hint)

    def leave_all(self, where: str, texts: str, why: str) -> None:
        """Report texts that the recipe leaves out for one reason, however many."""
        self._say(InitCode.LEFT, where, f"left out {texts}: {why}", "")

    def note(self, where: str, message: str, *, hint: str = "") -> None:
        """Report a line that the recipe takes in another form."""
        self._say(InitCode.NEAREST, where, message, hint)

    def pin(self, key: str, specifier: str, where: str) -> None:
        """Request a version for a key; an unreadable specifier is left out."""
        if not _is_specifier(specifier):
            self.leave(where, f"{key} {specifier}", "not a version that can be read")
            return
        if key == "python":  # 3.9.18 is some 3.9
            specifier = re.sub(r"^==(\d+\.\d+)\.\d+$", r"==\1.*", specifier)
        old, new = self.pins.get(key), Request(text=specifier, where=where)
        if old is None or not old.text or (new.is_exact and old.allows(new)):
            self.pins[key] = new
        elif not new.text or (old.is_exact and new.allows(old)):
            pass
        elif not (old.is_exact or new.is_exact):
            self.pins[key] = Request(text=f"{old.text},{new.text}", where=where)
        else:
            self.note(old.where, f"{key} `{old.text}` gives way to `{new.text}` of {where}")
            self.pins[key] = new

    def package(self, name: str, text: str, where: str) -> None:
        self.packages[canonicalize_name(name)] = Request(text=text, where=where)

    def add_package(self, name: str, where: str) -> None:
        """Request a package that the project's build imports, unless a file names it."""
        if canonicalize_name(name) not in self.packages:
            self.package(name, name, where)

    def extension(self, found: Extension, where: str) -> None:
        """Request an extension. Captures in one folder are one extension, and one folder is built once."""
        if (git := without_credentials(found.git)) != found.git:
            self.note(where, f"`{found.name}` has the address without its password or token", hint=GIVE_BY)
            found = replace(found, git=git)
        if not found.is_remote:
            path = Path(found.path).resolve().as_posix() if found.path else ""
            sources, include = (
                [Path(one).resolve().as_posix() for one in some] for some in (found.sources, found.include)
            )
            found = replace(found, path=path, sources=tuple(sources), include=tuple(include))
        for name, one in self.extensions.items():
            same = (one.path, one.git, one.sources) == (found.path, found.git, found.sources)
            if same and not found.sdist and bool(one.capture) == bool(found.capture):
                lines = tuple(dict.fromkeys((*one.capture, *found.capture)))
                self.extensions[name] = replace(one, capture=lines)
                return
        name, first = found.name, self.extensions.get(found.name)
        if first and first.form is found.form is Form.PROJECT:
            text, other = (
                one.sdist or one.url or one.git or os.path.relpath(one.path) for one in (found, first)
            )
            hint = "if it is another module, write it with a name of its own"
            self.leave(where, text, f"`{name}` comes from {other} already", hint=hint)
            return
        if first:
            numbered = (f"{found.name}_{number}" for number in itertools.count(2))
            name = next(one for one in numbered if one not in self.extensions)
            self.note(where, f"`{name}` is another extension of the name `{found.name}`")
        self.extensions[name] = replace(found, name=name)

    def move(self, tree: Path, url: str, commit: str) -> None:
        """Take what was found in a commit that was checked out for reading: its extensions by the commit, its places by the address."""
        for name, one in tuple(self.extensions.items()):
            if one.sources and Path(one.sources[0]).is_relative_to(tree):
                del self.extensions[name]
                hint = "clone the repository and give its folder, so that the recipe can name them"
                self.leave(
                    url,
                    f"{name}: {len(one.sources)} sources",
                    "sources of a repository have no build of their own",
                    hint=hint,
                )
            elif one.path and Path(one.path).is_relative_to(tree):
                path = Path(one.path).relative_to(tree).as_posix()
                self.extensions[name] = replace(one, path="" if path == "." else path, git=url, commit=commit)

        def place(where: str) -> str:
            return where.replace(str(tree), url)

        self.pins = {key: replace(one, where=place(one.where)) for key, one in self.pins.items()}
        self.packages = {key: replace(one, where=place(one.where)) for key, one in self.packages.items()}
        self.apt = {name: place(where) for name, where in self.apt.items()}
        self.image = (self.image[0], place(self.image[1]))
        self.left = [
            replace(one, where=place(one.where), message=place(one.message), hint=place(one.hint))
            for one in self.left
        ]

    def debian(self, name: str, where: str) -> None:
        if re.fullmatch(SHAPES["apt"].pattern, name):
            self.apt.setdefault(name, where)
        else:
            self.leave(where, name, "not the name of a Debian package")

    def variable(self, name: str, value: str, where: str) -> None:
        if not re.fullmatch(VARIABLE.pattern, name) or not value.isprintable():
            self.leave(where, f"{name}={value}", "not a variable that a recipe can hold")
        elif is_secret(name, value):
            why = "everybody who gets the recipe or the image would have it"
            self.leave(where, f"the value of `{name}`", why, hint=GIVE_BY)
        else:
            self.env[name] = value

    def _say(self, code: str, where: str, message: str, hint: str) -> None:
        where, message, hint = map(plain, (where, message, hint))
        found = Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=hint)
        if found not in self.said:  # two files may name the same third one
            self.said.add(found)
            self.left.append(found)
