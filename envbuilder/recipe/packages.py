"""The key `packages`: requirements, and files of requirements as projects have them.

The recipe decides what such a file cannot: torch is the key `pytorch`, a project is an entry of `extensions`, and an
index is an entry of `indexes` or a setting of the machine that locks. Each line that the recipe decides otherwise is a note.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from envbuilder.core.cache import Sha256
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import LINE, Line, Mistake, ReadAs, raise_mistakes
from envbuilder.core.places import Mistakes, load_text, shown
from envbuilder.core.processor import Processor
from envbuilder.core.text.redact import without_credentials
from envbuilder.recipe.extension import BUILDS, HERE, Extension
from envbuilder.recipe.fields import OwnFile, RecipeCode, check_path
from envbuilder.recipe.requirement_file import (
    INDEXES,
    NO_MATTER,
    Direct,
    logical_lines,
    parse_direct,
    parse_place,
    split_arguments,
    split_line,
)
from envbuilder.recipe.wheel_sources import WHEEL, WheelIndex, index_entry, pin_of, place_wheel, read_wheel

NO_TORCH: Final = "none"  # the key `pytorch` of an environment without it
IMAGE_TORCH: Final = "image"  # that of an environment that takes the torch of its base image
_AS_EXTENSION: Final = (
    "a project of your own or of a repository is an entry of `extensions`, also without compiled code: "
    "`{name: NAME, path: FOLDER}` or `{name: NAME, git: URL, commit: COMMIT}`"
)
_SHA256: Final = re.compile(r"sha256:([0-9a-f]{64})")
_COMPARISON: Final = re.compile(r"([=<>!~^](?: *[=<>!~^])*) *([0-9]*[^\s,;]*)")
TORCH_BUILD: Final = re.compile(r".*/whl/(?:nightly/|test/)?(cu\d+|cpu)/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """A requirement with the sha256 of each file that may be taken for it."""

    requirement: str
    sha256: tuple[str, ...]
    where: str

    @property
    def name(self) -> str:
        return canonicalize_name(Requirement(self.requirement).name)

    def is_about(self, name: str, version: str) -> bool:
        specifier = Requirement(self.requirement).specifier
        return self.name == name and specifier.contains(version, prereleases=True)


def parse_requirement(text: str, folder: Path | None = None) -> str:
    """Return a requirement in its normal spelling. A wheel of the recipe's folder has its sha256 then."""
    requirement = _parse(text)
    if _is_torch(requirement):
        raise _refused("torch is pinned by the key `pytorch`, not here", "leave it out of the packages")
    if requirement.url and not requirement.url.partition("#")[0].endswith(WHEEL):
        message = f"{shown(text)} names a place to download from that is no wheel"
        raise _refused(message, f"name the version instead, for a configured index; {_AS_EXTENSION}")
    return str(place_wheel(requirement, folder) if requirement.url else requirement)


def _read_item(text: str, info: ValidationInfo) -> str:
    return parse_requirement(text, info.context if isinstance(info.context, Path) else None)


def _parse(text: str) -> Requirement:
    if text.startswith("-") or text.endswith("\\"):
        file = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", text)
        hint = "indexes and hashes are for the lock; list every package by its name"
        hint = f"write `{{requirements: {file[1]}}}`" if file else _AS_EXTENSION if text[:2] == "-e" else hint
        raise _refused(f"expected one requirement, found an option of pip: {shown(text)}", hint)
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0].rstrip(":")
        is_place = re.match(r"(git\+|https?://|\.{0,2}/)", text)
        hint = _AS_EXTENSION if is_place else _doubled(text) or _respelled(text)
        hint = hint or "write a name with versions, such as `numpy>=2,<3`"
        if " - " in text:
            hint = "all items of a list begin in the same column: a line that begins further right continues the one above"
        raise _refused(f"{shown(text)} is not a PEP 508 requirement: {reason}", hint) from error


def _refused(message: str, hint: str = "", code: RecipeCode = RecipeCode.REQUIREMENT) -> PydanticCustomError:
    return Mistake(message=message, code=code, hint=hint).error()


def _is_torch(requirement: Requirement) -> bool:
    return canonicalize_name(requirement.name) in ("torch", "pytorch")


def _doubled(text: str) -> str:
    """Return the hint for a single `=`, as conda writes it; "" if more is wrong."""
    written = re.fullmatch(r"([^\s=<>!~;]+) *= *([0-9][^\s=;]*)(?:=[^\s=;]+)?( *;.*)?", text)
    if written is None:
        return ""
    name, version, marker = written[1], written[2], written[3] or ""
    try:
        Requirement(f"{name}=={version}{marker}")
    except InvalidRequirement:
        return ""
    any_of_them = "" if version.endswith("*") else f", or `{name}=={version}.*{marker}` as conda means it"
    return f"did you mean `{name}=={version}{marker}`{any_of_them}?"


def _respelled(text: str) -> str:
    """Return the hint for comparisons as other tools or languages write them, "" if more is wrong."""
    asked, semicolon, marker = text.partition(";")
    asked = re.sub(r"^([^\s=<>!~^]+) +(?=[0-9])", r"\1==", asked)
    asked = re.sub(r"(?<=[\w.*\]]) *+,? *+(?=[=<>!~^])", ",", asked)
    asked = asked.replace(",", "", 1)  # none after the name
    try:
        spelled = _COMPARISON.sub(_compare, asked) + semicolon + _COMPARISON.sub(_compare, marker)
        return f"did you mean `{Requirement(spelled)}`?"
    except ValueError:  # InvalidRequirement is one, and `^` without a number
        return ""


def _compare(written: re.Match[str]) -> str:
    """Return the comparison of PEP 508 for another spelling: `>=` for `=>`, `~=2.0` for `~>2`."""
    signs, version = set(written[1]), written[2]
    if signs == {"^"}:
        return f">={version},<{int(version.partition('.')[0]) + 1}"
    if "~" in signs:
        return f"~={version}" if "." in version else f"~={version}.0"
    if "!" in signs or signs >= {"<", ">"}:
        return f"!={version}"
    sign = next((sign for sign in "<>" if sign in signs), "=")
    return f"{sign}{'=' if '=' in signs else ''}{version}"


_Placed = tuple[str, str]  # a text and its place


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPins:
    """The lock of another tool that a recipe names, with the versions that it has for the recipe's target."""

    path: str  # from the recipe's folder
    sha256: Sha256
    size: int
    versions: tuple[tuple[str, str], ...]  # name and version, sorted


@dataclass(slots=True, kw_only=True)
class Requirements:
    """What a requirements file and those that it names ask for; `read` collects it with every mistake."""

    folder: Path  # the recipe's
    packages: list[_Placed] = field(default_factory=list)
    constraints: list[_Placed] = field(default_factory=list)
    torch: list[tuple[Requirement, str]] = field(default_factory=list)
    indexes: list[_Placed] = field(default_factory=list)  # option and address
    projects: list[tuple[Direct, str]] = field(default_factory=list)  # each needs an extension
    itself: list[_Placed] = field(default_factory=list)  # the project of the recipe's own folder
    hashes: list[Hashed] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    needs_hashes: bool = False
    locks: list[OtherPins] = field(default_factory=list)  # the lock of another tool from which they are
    bare: list[_Placed] = field(default_factory=list)  # without a hash, or without a version

    def read(self, path: Path, *, binds: bool = False) -> None:
        """Read every line. Those of a file that only `binds` are constraints."""
        if path in self.files:
            return  # pip reads each once as well
        self.files.append(path)
        unreadable = Mistakes()
        text = load_text(path, unreadable) or ""
        self.mistakes += (
            Mistake(message=finding.message, code=finding.code, hint=finding.hint, where=finding.where)
            for finding in unreadable.findings
        )
        for number, line in logical_lines(text):
            where = f"{path}:{number}:1"
            try:
                words = split_line(line)
            except ValueError as error:  # an open quotation
                self._refuse(f"{shown(line)}: {str(error).lower()}", where)
            else:
                self.read_words(words, path, where, binds=binds)

    def read_words(self, words: Sequence[str], path: Path, where: str, *, binds: bool = False) -> None:
        """Read a line that was split into its requirement and the words of its options."""
        try:
            arguments = list(split_arguments(words))
            hashes = tuple(value for option, value in arguments if option == "--hash")
            self.needs_hashes |= bool(hashes)
            for option, value in arguments:
                if option:
                    self._read_option(option, value, path, where, binds=binds)
                else:
                    self._read_requirement(value, path, where, hashes, binds=binds)
        except PydanticCustomError as error:
            self.mistakes.append(Mistake(**{**(error.context or {}), "where": where}))

    def _read_option(self, option: str, value: str, path: Path, where: str, *, binds: bool) -> None:
        text = f"{option} {value}".strip()
        if option in ("--requirement", "--constraint"):
            named, home = path.parent / value, self.folder.resolve()
            if "://" in value:
                hint = "save it beside this one, and name the copy"
                self._refuse(f"`{text}` is a file at an address", where, hint)
            elif not named.resolve().is_relative_to(home):
                self._refuse_outside(text, value, where)
            elif not named.is_file():
                self._refuse(f"`{text}`: there is no file `{named}`", where, "name it as seen from this file")
            else:
                file = self.folder / named.resolve().relative_to(home)
                self.read(file, binds=binds or option == "--constraint")
        elif option == "--editable":
            self._need_project(value, path, where)
        elif option in INDEXES:
            self.indexes.append((text, where))
        elif option == "--pre":
            message = f"`{text}` is not followed: a lock takes pre-releases only where pip does without it"
            hint = "name the version of a pre-release that you want: `NAME==1.0rc1`"
            self.notes.append(note(message, where, hint))
        elif option == "--require-hashes":
            self.needs_hashes = True
        elif option not in (*NO_MATTER, "--hash"):
            self.notes.append(note(f"`{text}` is an option of pip that a lock does not follow", where))

    def _read_requirement(
        self, text: str, path: Path, where: str, hashes: tuple[str, ...], *, binds: bool
    ) -> None:
        digests = tuple(match[1] for match in map(_SHA256.fullmatch, hashes) if match)
        if hashes and not digests:
            message = f"expected `--hash=sha256:` and 64 hexadecimal digits, found {shown(hashes[0])}"
            raise _refused(message, "a lock has the sha256 of each file", RecipeCode.HASH)
        wheel = read_wheel(text, path.parent, self.folder)
        if re.match(r"torch\s*(\[.*?\])?\s*@", text) or (wheel and _is_torch(wheel)):
            text, wheel, digests = "torch", None, ()
        elif parse_direct(text) and not wheel:
            self._need_project(text, path, where, digests)
            return
        requirement = place_wheel(wheel, self.folder) if wheel else _parse(text)
        if digests:
            self.hashes.append(Hashed(requirement=str(requirement), sha256=digests, where=where))
        if _is_torch(requirement):
            self.torch.append((requirement, where))
            return
        if binds:
            self.constraints.append((pin_of(str(requirement)), where))
        else:
            self.packages.append((str(requirement), where))
        is_exact = requirement.url or re.fullmatch(r"===?[^,*]+", str(requirement.specifier))
        if not binds and not (is_exact and (digests or "#sha256=" in (requirement.url or ""))):
            self.bare.append((str(requirement), where))

    def compare_hashes(self) -> None:
        """Refuse a requirement without a hash if another has one, as pip does. The recipe decides torch's."""
        for text, where in self.bare if self.needs_hashes else ():
            lacks = "version by `==`" if any(hashed.where == where for hashed in self.hashes) else "hash"
            message = f"`{text}` has no {lacks}; in a file with hashes, all packages need one, as with pip"
            hint = "`uv pip compile --generate-hashes` or `pip-compile --generate-hashes` writes them for all packages"
            self._refuse(message, where, hint, RecipeCode.HASH)

    def _need_project(self, text: str, path: Path, where: str, digests: tuple[str, ...] = ()) -> None:
        """Note a project that an extension must bring; refuse a file, for which no extension stands."""
        project = parse_place(text)
        if project.url and digests and not project.sha256:
            project = replace(project, sha256=digests[0])
        if project.is_file:
            message = f"{shown(text)} names one file, and a lock names files by version and sha256"
            hint = "name the package and its version; `ENVBUILDER_FOLDERS` names a folder with wheels"
            self._refuse(message, where, hint)
            return
        if project.git or project.url:
            self.projects.append((project, where))
            return
        if not project.path:
            self._refuse(f"{shown(text)} is a repository that is not git's", where, _AS_EXTENSION)
            return
        # pip starts at the working folder, which is the file's or the recipe's.
        places = (start / project.path for start in (path.parent, self.folder))
        place = next((place.resolve() for place in places if place.is_dir()), None)
        home = self.folder.resolve()
        if place is None:
            self._refuse(f"there is no folder `{project.path}` beside `{path}`", where, "name one there")
        elif home.is_relative_to(place):
            self.itself.append((text, where))
        elif not place.is_relative_to(home):
            self._refuse_outside(text, project.path, where)
        elif not any((place / name).is_file() for name in BUILDS):
            self._refuse(f"the folder `{project.path}` has neither {' nor '.join(BUILDS)}", where)
        else:
            self.projects.append((replace(project, path=place.relative_to(home).as_posix()), where))

    def _refuse_outside(self, text: str, path: str, where: str) -> None:
        mistakes = check_path(path, self.folder, is_folder=(self.folder / path).is_dir())
        hint = next((mistake.hint for mistake in mistakes), "")
        self._refuse(f"`{text}` is outside the recipe's folder", where, hint)

    def _refuse(
        self, message: str, where: str, hint: str = "", code: RecipeCode = RecipeCode.REQUIREMENT
    ) -> None:
        self.mistakes.append(Mistake(message=message, code=code, hint=hint, where=where))


def note(message: str, where: str, hint: str = "") -> Finding:
    severity = Severity.WARNING
    return Finding(code=RecipeCode.DECIDED, severity=severity, where=where, message=message, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    requirements: OwnFile


def _read_file(file: _File, info: ValidationInfo) -> Requirements:
    assert isinstance(info.context, Path)
    requirements = Requirements(folder=info.context)
    requirements.read(info.context / file.requirements)
    requirements.compare_hashes()
    raise_mistakes(requirements.mistakes)
    return requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class LockItem:
    """The lock of another tool; `from_lock.py` reads it for the recipe's Python and processor."""

    file: Annotated[OwnFile, Field(alias="from")]
    wanted: Annotated[tuple[Line, ...], Field(alias="with")] = ()


def _kind_of(item: object) -> str:
    return "a requirement" if not isinstance(item, dict) else "a lock" if "from" in item else "a file"


Packages = tuple[
    Annotated[
        Annotated[
            str,
            replace(LINE, hint="a PEP 508 text, {requirements: FILE} or {from: LOCK}"),
            AfterValidator(_read_item),
            Tag("a requirement"),
        ]
        | Annotated[Requirements, ReadAs(Annotated[_File, AfterValidator(_read_file)]), Tag("a file")]
        | Annotated[LockItem, Tag("a lock")],
        Discriminator(_kind_of),
    ],
    ...,
]


def brings(extension: Extension, project: Direct) -> bool:
    """Return whether an extension of the recipe is the project of a requirements file."""
    if project.url:
        return extension.url == project.url and project.sha256 in ("", extension.sha256)
    if not project.git:
        return not extension.is_remote and extension.path == project.path
    same = extension.git.removesuffix(".git") == project.git.removesuffix(".git")
    return same and project.commit in ("", extension.commit) and extension.path == project.path


def notes_on(
    requirements: Requirements,
    extensions: tuple[Extension, ...],
    *,
    pytorch: str,
    cuda: str,
    python: str,
    processor: Processor,
    place: str,  # of the key `pytorch`
    indexes: tuple[WheelIndex, ...] = (),
) -> Iterator[Finding]:
    """Note each line of a requirements file that the recipe decides otherwise."""
    yield from requirements.notes
    for text, where in requirements.itself:
        if all(extension.path != HERE for extension in extensions):
            message = f"`{text}` is not installed: the environment holds what a project needs, and not itself"
            hint = "set `env: {PYTHONPATH: …}`, or if it has C++ or CUDA sources, write `extensions: [{name: NAME, path: .}]`"
            yield note(message, where, hint)
    cuda_words = f"`cuda: {cuda}`" if cuda else "want of `cuda`"
    for text, where in requirements.indexes:
        build, address = TORCH_BUILD.fullmatch(text), text.partition(" ")[2]
        if address.rstrip("/") in {index.place.rstrip("/") for index in indexes}:
            continue
        if build is None:
            message = f"`{text}` is not asked: packages come from the indexes of the machine that locks"
            is_page = text.startswith("--find-links")
            entry = index_entry(without_credentials(address), is_page=is_page)
            setting = "ENVBUILDER_FOLDERS" if is_page else "ENVBUILDER_INDEX"
            hint = f"`indexes: [{entry}]` takes packages from it; `{setting}` names others for all"
            yield note(message, where, hint)
        elif build[1] != build_of(cuda):
            choice = f"the recipe's {cuda_words} chooses the build"
            yield note(f"`{text}` has torch's build {build[1]}, and {choice}", where)
    for torch, where in requirements.torch:
        if torch.marker and not torch.marker.evaluate(processor.markers(python)):
            continue
        plain = re.sub(r"\+[\w.]+", "", str(torch.specifier))
        build = re.search(r"\+(cu\d+|cpu)", str(torch.specifier))
        if pytorch in (NO_TORCH, IMAGE_TORCH) or not SpecifierSet(plain).contains(pytorch, prereleases=True):
            message = f"the recipe's `pytorch: {pytorch}` at {place} decides, and not `{torch}`"
            yield note(message, where, "change one of the two")
        elif build and build[1] != build_of(cuda):
            yield note(f"the recipe's {cuda_words} decides, and not the build of `{torch}`", where)


def build_of(cuda: str) -> str:
    """Return the name of torch's build for a CUDA: cu124 of 12.4, `cpu` of ""."""
    return "cu" + "".join(cuda.split(".")[:2]) if cuda else "cpu"
