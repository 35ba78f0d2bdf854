"""The requests that `init` has collected, and a finding for each line that it leaves out."""

import itertools
import os
import re
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from envbuilder.compat.gates import Gate
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
        version = re.search(r"(?:^|,)\s*(?:===?|~=|>=|<=|>|<)\s*(\d+(?:\.\d+)*)", self.text)
        return version[1] if version else ""


class ImageBase(NamedTuple):
    """An image that a recipe is built on."""

    reference: str  # with its digest
    where: str
    torch: str  # "" without one
    keeps_torch: bool  # whether no index has this torch


@dataclass(slots=True, kw_only=True)
class Requests:
    """Requests, collected line by line; a later line wins. Paths of extensions are absolute until the recipe has its place."""

    pins: dict[str, Request] = field(default_factory=dict)  # pytorch, cuda, python, gcc
    typed: list[str] = field(default_factory=list)  # pytorch, python: those that options or answers give
    packages: dict[str, Request] = field(default_factory=dict)  # by their normal name
    apt: dict[str, str] = field(default_factory=dict)  # name → where
    env: dict[str, str] = field(default_factory=dict)
    extensions: dict[str, Extension] = field(default_factory=dict)
    gpus: tuple[str, ...] | None = None  # None: not requested; (): no GPU
    driver: str = ""
    # Packages of conda or NVIDIA that need no key of a recipe.
    system: list[tuple[str, str]] = field(default_factory=list)
    # Names of conda that no table knows.
    guessed: list[tuple[str, str]] = field(default_factory=list)
    # Programs and libraries of conda: those that Debian's stand for, and those that only conda has, with their versions.
    moved: list[tuple[str, str]] = field(default_factory=list)
    conda: list[tuple[str, str]] = field(default_factory=list)
    # For the key `conda`: packages → where, and addresses of channels.
    from_conda: dict[str, str] = field(default_factory=dict)
    channels: list[str] = field(default_factory=list)
    # Groups and extras of projects and locks, and environments of pixi: those that the user wants, and those that were seen.
    wanted: tuple[str, ...] = ()
    offered: set[str] = field(default_factory=set)
    python: str = ""  # by an option: the one for whose markers locks are read
    day: date | None = None  # when the project last changed
    # absent folder → repository, commit
    submodules: dict[Path, tuple[str, str]] = field(default_factory=dict)
    # The line of a setup.py, and what it compiles by.
    gates: list[tuple[str, Gate]] = field(default_factory=list)
    suite: Distribution | None = None  # of the image that is read
    base: ImageBase | None = None
    untold: tuple[str, str] = ("", "")  # the last image of whose content its name says nothing, and where
    image: tuple[str, str] = ("", "")  # the last one whose Python its name does not say, and where
    read: set[Path] = field(default_factory=set)  # requirements files, each read once
    indexes: list[tuple[str, str, str]] = field(default_factory=list)  # option, address, where
    homes: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → the one index of it, where
    # Packages whose name on the package index is another project's.
    misnamed: dict[str, Request] = field(default_factory=dict)
    by_lock: set[str] = field(default_factory=set)  # those of which `lock` takes a wheel of their project
    left: list[Finding] = field(default_factory=list)
    said: set[Finding] = field(default_factory=set)  # those of `left`
    # The project's folder: a stranger's files must not name others, whose lines `left` would show.
    top: Path | None = None

    def holds(self, path: Path) -> bool:
        """Return whether the project may name a file or folder: it lies in the project's folder, links followed."""
        return self.top is None or not leads_out(self.top, path)

    def leave(self, where: str, text: str, why: str, *, hint: str = "") -> None:
        """Report a line that the recipe leaves out."""
        self._say(InitCode.LEFT, where, f"left out {shown(text)}: {why}", hint)

    def leave_all(self, where: str, texts: str, why: str, hint: str = "") -> None:
        """Report texts that the recipe leaves out for one reason, however many."""
        self._say(InitCode.LEFT, where, f"left out {texts}: {why}", hint)

    def say_together(self) -> None:
        """Report the names of `system`, `guessed`, `moved` and `conda`, each list in one line."""
        if self.system:
            where, names = self.system[0][0], ", ".join(text for _, text in self.system)
            self.leave_all(where, names, "Debian, torch or the CUDA toolkit brings what a recipe needs of it")
        guessed = [pair for pair in self.guessed if canonicalize_name(pair[1]) not in self.misnamed]
        if guessed:
            where, names = guessed[0][0], ", ".join(f"`{name}`" for _, name in guessed)
            message = f"taken for the packages of these names on the Python index: {names}"
            self.note(where, message, hint="conda's names may be another project's there; look at each")
        if self.moved:
            where, names = self.moved[0][0], ", ".join(text for _, text in self.moved)
            self.note(where, f"packages of Debian, in its versions, stand for conda's {names}")
        # conda has some packages by two names.
        others = [text for _, text in self.conda if canonicalize_name(text.split()[0]) not in self.packages]
        if others:
            where, names = self.conda[0][0], ", ".join(others)
            why = "only conda has them: programs, libraries, and packages of its less usual channels"
            self.leave_all(where, names, why, hint="the key `conda` of a recipe takes those that you need")
        for texts in (self.system, self.guessed, self.moved, self.conda):
            texts.clear()

    def say_gates(self) -> None:
        """Report what is set for a setup.py to compile, as far as the recipe has it."""
        for where, gate in self.gates:
            setting = gate.name if gate.effect == "architectures" else gate.setting
            if gate.effect not in ("cuda", "architectures") or self.gpus:
                self.note(where, f"`{setting}` is set: {gate.reason}")

    def note(self, where: str, message: str, *, hint: str = "") -> None:
        """Report a line that the recipe takes in another form."""
        self._say(InitCode.NEAREST, where, message, hint)

    def pin(self, key: str, specifier: str, where: str) -> None:
        """Request a version for a key; an unreadable specifier is left out."""
        try:
            SpecifierSet(specifier if len(specifier) <= LONGEST else "too long")
        except InvalidSpecifier:
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
            if key == "pytorch" and (cuda := self.pins.get("cuda")) and cuda.where == old.where:
                del self.pins["cuda"]  # the build of that torch
                self.note(cuda.where, f"cuda `{cuda.text}` gives way with it")

    def package(self, name: str, text: str, where: str) -> None:
        """Request a package. A later line wins, unless it is for another marker."""
        key, marker = str(canonicalize_name(name)), text.partition(";")[2].strip()
        first = self.packages.get(key)
        if marker and first and first.text.partition(";")[2].strip() not in ("", marker):
            key = f"{key}; {marker}"
        self.packages[key] = Request(text=text, where=where)

    def add_package(self, name: str, where: str) -> None:
        """Request a package that the project's build imports, unless a file names it."""
        if canonicalize_name(name) not in self.packages:
            self.package(name, name, where)

    def extension(self, extension: Extension, where: str) -> None:
        """Request an extension. Captures in one folder are one extension, and one folder is built once."""
        name = extension.name
        if (git := without_credentials(extension.git)) != extension.git:
            self.note(where, f"`{name}` has the address without its password or token", hint=GIVE_BY)
            extension = replace(extension, git=git)
        if not extension.is_remote:
            extension = replace(
                extension,
                path=_absolute(extension.path) if extension.path else "",
                sources=tuple(map(_absolute, extension.sources)),
                include=tuple(map(_absolute, extension.include)),
            )
        for known in self.extensions.values():
            is_same = _origin(known) == _origin(extension) and bool(known.capture) == bool(extension.capture)
            if is_same and not extension.sdist:
                lines = tuple(dict.fromkeys((*known.capture, *extension.capture)))
                self.extensions[known.name] = replace(known, capture=lines)
                return
        first = self.extensions.get(name)
        if first and first.form is extension.form is Form.PROJECT:
            text, other = (
                project.sdist or project.url or project.git or os.path.relpath(project.path)
                for project in (extension, first)
            )
            hint = "if it is another module, write it with a name of its own"
            self.leave(where, text, f"`{name}` comes from {other} already", hint=hint)
            return
        if first:
            numbered = (f"{name}_{number}" for number in itertools.count(2))
            free = next(number for number in numbered if number not in self.extensions)
            extension = replace(extension, name=free)
            self.note(where, f"`{extension.name}` is another extension of the name `{name}`")
        self.extensions[extension.name] = extension

    def move(self, tree: Path, url: str, commit: str) -> None:
        """Take what was found in a commit that was checked out for reading: its extensions by the commit, its places by the address."""
        for name, extension in tuple(self.extensions.items()):
            if any(Path(source).is_relative_to(tree) for source in extension.sources[:1]):
                del self.extensions[name]
                sources = f"{name}: {len(extension.sources)} sources"
                hint = "clone the repository and give its folder, so that the recipe can name them"
                self.leave(url, sources, "sources of a repository have no build of their own", hint=hint)
            elif extension.path and Path(extension.path).is_relative_to(tree):
                path = Path(extension.path).relative_to(tree).as_posix()
                path = "" if path == "." else path
                self.extensions[name] = replace(extension.at(tree), path=path, git=url, commit=commit)

        def place(where: str) -> str:
            return where.replace(str(tree), url)

        self.indexes = [(option, address, place(where)) for option, address, where in self.indexes]
        for requests in (self.pins, self.packages, self.misnamed):
            for key, request in requests.items():
                requests[key] = replace(request, where=place(request.where))
        self.apt = {name: place(where) for name, where in self.apt.items()}
        self.image = (self.image[0], place(self.image[1]))
        self.gates = [(place(where), gate) for where, gate in self.gates]
        self.left = [
            replace(left, where=place(left.where), message=place(left.message), hint=place(left.hint))
            for left in self.left
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
        finding = Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=hint)
        if finding not in self.said:  # two files may name the same third one
            self.said.add(finding)
            self.left.append(finding)


def _absolute(path: str) -> str:
    return Path(path).resolve().as_posix()


def _origin(extension: Extension) -> tuple[object, ...]:
    return extension.path, extension.git, extension.sources
