"""The key `packages`: requirements, and files of requirements as projects have them.

The recipe decides what such a file cannot: torch is the key `pytorch`, a project is an entry of `extensions`, and an
index is a setting of the machine that locks. Each line that the recipe decides otherwise is a note.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Discriminator, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import LINE, Mistake, ReadAs, raise_mistakes
from envbuilder.core.places import Mistakes, load_text, shown
from envbuilder.core.processor import Processor
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

NO_TORCH: Final = "none"  # the key `pytorch` of an environment without it
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
        return self.name == name and Requirement(self.requirement).specifier.contains(
            version, prereleases=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a requirements file asks for; each text with its place."""

    packages: tuple[tuple[str, str], ...]
    constraints: tuple[tuple[str, str], ...]
    torch: tuple[tuple[Requirement, str], ...]
    indexes: tuple[tuple[str, str], ...]  # option and address
    projects: tuple[tuple[Direct, str], ...]  # each needs an extension
    own: tuple[tuple[str, str], ...]  # the project of the recipe's own folder
    hashes: tuple[Hashed, ...]
    notes: tuple[Finding, ...]
    files: tuple[Path, ...]


def parse_requirement(text: str) -> str:
    """Return a requirement in its normal spelling."""
    requirement = _parse(text)
    if requirement.url:
        message = f"{shown(text)} names a place to download from"
        raise _refused(message, f"name the version instead, for a configured index; {_AS_EXTENSION}")
    if _is_torch(requirement):
        raise _refused("torch is pinned by the key `pytorch`, not here", "leave it out of the packages")
    return str(requirement)


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
    asked = re.sub(r"(?<=[\w.*\]]) *+,? *+(?=[=<>!~^])", ",", asked).replace(
        ",", "", 1
    )  # none after the name
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
    sign = next((one for one in "<>" if one in signs), "=")
    return f"{sign}{'=' if '=' in signs else ''}{version}"


@dataclass(slots=True)
class _Reader:
    """Reads a file and those that it names; collects every mistake."""

    folder: Path  # the recipe's
    packages: list[tuple[str, str]] = field(default_factory=list)
    constraints: list[tuple[str, str]] = field(default_factory=list)
    torch: list[tuple[Requirement, str]] = field(default_factory=list)
    indexes: list[tuple[str, str]] = field(default_factory=list)
    projects: list[tuple[Direct, str]] = field(default_factory=list)
    own: list[tuple[str, str]] = field(default_factory=list)
    hashes: list[Hashed] = field(default_factory=list)
    bare: list[tuple[str, str]] = field(
        default_factory=list
    )  # requirements without a hash, or that name no version
    needs_hashes: bool = False
    notes: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

    def read(self, path: Path, *, binds: bool = False) -> None:
        """Read every line. Those of a file that only `binds` are constraints."""
        if path in self.files:
            return  # pip reads each once as well
        self.files.append(path)
        unreadable = Mistakes()
        text = load_text(path, unreadable) or ""
        self.mistakes += (
            Mistake(message=one.message, code=one.code, hint=one.hint, where=one.where)
            for one in unreadable.findings
        )
        for number, line in logical_lines(text):
            where = f"{path}:{number}:1"
            try:
                arguments = list(split_arguments(split_line(line)))
                hashes = tuple(value for option, value in arguments if option == "--hash")
                self.needs_hashes |= bool(hashes)
                for option, value in arguments:
                    if option:
                        self._read_option(option, value, path, where, binds=binds)
                    else:
                        self._read_requirement(value, path, where, hashes, binds=binds)
            except PydanticCustomError as error:
                self.mistakes.append(Mistake(**{**(error.context or {}), "where": where}))
            except ValueError as error:  # an open quotation
                self._refuse(f"{shown(line)}: {str(error).lower()}", where)

    def _read_option(self, option: str, value: str, path: Path, where: str, *, binds: bool) -> None:
        text = f"{option} {value}".strip()
        if option in ("--requirement", "--constraint"):
            named = path.parent / value
            below = named.resolve()
            if "://" in value:
                self._refuse(
                    f"`{text}` is a file at an address", where, "save it beside this one, and name the copy"
                )
            elif not below.is_relative_to(self.folder.resolve()):
                wrong = check_path(value, self.folder)
                self._refuse(
                    f"`{text}` is outside the recipe's folder", where, next((one.hint for one in wrong), "")
                )
            elif not below.is_file():
                self._refuse(f"`{text}`: there is no file `{named}`", where, "name it as seen from this file")
            else:
                relative = self.folder / below.relative_to(self.folder.resolve())
                self.read(relative, binds=binds or option == "--constraint")
        elif option == "--editable":
            self._need_project(value, path, where)
        elif option in INDEXES:
            self.indexes.append((text, where))
        elif option == "--pre":
            hint = "name the version of a pre-release that you want: `NAME==1.0rc1`"
            self._note(
                f"`{text}` is not followed: a lock takes pre-releases only where pip does without it",
                where,
                hint,
            )
        elif option == "--require-hashes":
            self.needs_hashes = True
        elif option not in (*NO_MATTER, "--hash"):
            self._note(f"`{text}` is an option of pip that a lock does not follow", where)

    def _read_requirement(
        self, text: str, path: Path, where: str, hashes: tuple[str, ...], *, binds: bool
    ) -> None:
        digests = tuple(found[1] for one in hashes if (found := _SHA256.fullmatch(one)))
        if hashes and not digests:
            message = f"expected `--hash=sha256:` and 64 hexadecimal digits, found {shown(hashes[0])}"
            raise _refused(message, "a lock has the sha256 of each file", RecipeCode.HASH)
        if parse_direct(text):
            named = re.match(r"torch\s*(\[.*?\])?\s*@", text)
            if not named:
                self._need_project(text, path, where, digests)
                return
            text, digests = "torch", ()
        requirement = _parse(text)
        if digests:
            self.hashes.append(Hashed(requirement=str(requirement), sha256=digests, where=where))
        if _is_torch(requirement):
            self.torch.append((requirement, where))
            return
        (self.constraints if binds else self.packages).append((str(requirement), where))
        if not binds and not (digests and re.fullmatch(r"===?[^,*]+", str(requirement.specifier))):
            self.bare.append((str(requirement), where))

    def compare_hashes(self) -> None:
        """Refuse a requirement without a hash if another has one, as pip does. The recipe decides torch's."""
        for text, where in self.bare if self.needs_hashes else ():
            lacks = "version by `==`" if any(one.where == where for one in self.hashes) else "hash"
            message = f"`{text}` has no {lacks}; in a file with hashes, all packages need one, as with pip"
            hint = "`uv pip compile --generate-hashes` or `pip-compile --generate-hashes` writes them for all packages"
            self._refuse(message, where, hint, RecipeCode.HASH)

    def _need_project(self, text: str, path: Path, where: str, digests: tuple[str, ...] = ()) -> None:
        """Note a project that an extension must bring; refuse a file, for which no extension stands."""
        found = parse_place(text)
        if found.url and digests and not found.sha256:
            found = replace(found, sha256=digests[0])
        if found.is_file:
            hint = "name the package and its version; `ENVBUILDER_FOLDERS` names a folder with wheels"
            self._refuse(
                f"{shown(text)} names one file, and a lock names files by version and sha256", where, hint
            )
            return
        if found.git or found.url:
            self.projects.append((found, where))
            return
        if not found.path:
            self._refuse(f"{shown(text)} is a repository that is not git's", where, _AS_EXTENSION)
            return
        # pip starts at the working folder, which is the file's or the recipe's.
        places = [start / found.path for start in (path.parent, self.folder)]
        place = next((one.resolve() for one in places if one.is_dir()), None)
        home = self.folder.resolve()
        if place is None:
            self._refuse(f"there is no folder `{found.path}` beside `{path}`", where, "name one there")
        elif home.is_relative_to(place):
            self.own.append((text, where))
        elif not place.is_relative_to(home):
            wrong = check_path(found.path, self.folder, is_folder=True)
            self._refuse(
                f"`{text}` is outside the recipe's folder", where, next((one.hint for one in wrong), "")
            )
        elif not any((place / name).is_file() for name in BUILDS):
            self._refuse(f"the folder `{found.path}` has neither {' nor '.join(BUILDS)}", where)
        else:
            self.projects.append((replace(found, path=place.relative_to(home).as_posix()), where))

    def _refuse(
        self, message: str, where: str, hint: str = "", code: RecipeCode = RecipeCode.REQUIREMENT
    ) -> None:
        self.mistakes.append(Mistake(message=message, code=code, hint=hint, where=where))

    def _note(self, message: str, where: str, hint: str = "") -> None:
        self.notes.append(make_note(message, where, hint))


def make_note(message: str, where: str, hint: str = "") -> Finding:
    return Finding(
        code=RecipeCode.DECIDED, severity=Severity.WARNING, where=where, message=message, hint=hint
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    requirements: OwnFile


def _read_file(file: _File, info: ValidationInfo) -> Requirements:
    assert isinstance(info.context, Path)
    reader = _Reader(info.context)
    reader.read(info.context / file.requirements)
    reader.compare_hashes()
    raise_mistakes(reader.mistakes)
    return Requirements(
        packages=tuple(reader.packages),
        constraints=tuple(reader.constraints),
        torch=tuple(reader.torch),
        indexes=tuple(reader.indexes),
        projects=tuple(reader.projects),
        own=tuple(reader.own),
        hashes=tuple(reader.hashes),
        notes=tuple(reader.notes),
        files=tuple(reader.files),
    )


Packages = tuple[
    Annotated[
        Annotated[
            str,
            replace(LINE, hint="a PEP 508 text, or {requirements: FILE}"),
            AfterValidator(parse_requirement),
            Tag("a requirement"),
        ]
        | Annotated[
            Requirements,
            ReadAs(Annotated[_File, AfterValidator(_read_file)]),
            Tag("a file"),
        ],
        Discriminator(lambda item: "a file" if isinstance(item, dict) else "a requirement"),
    ],
    ...,
]


def missing_projects(
    projects: tuple[tuple[Direct, str], ...], extensions: tuple[Extension, ...]
) -> Iterator[tuple[Direct, str]]:
    """Yield the projects of requirements files that no extension brings, each with its place."""
    for one, where in projects:
        if not any(_brings(extension, one) for extension in extensions):
            yield one, where


def _brings(extension: Extension, project: Direct) -> bool:
    if project.url:
        return extension.url == project.url and project.sha256 in ("", extension.sha256)
    if not project.git:
        return not extension.is_remote and extension.path == project.path
    same = extension.git.removesuffix(".git") == project.git.removesuffix(".git")
    return same and project.commit in ("", extension.commit) and extension.path == project.path


def own_notes(own: tuple[tuple[str, str], ...], extensions: tuple[Extension, ...]) -> Iterator[Finding]:
    """Note each line that installs the project of the recipe's folder, unless an extension brings it."""
    if any(one.path == HERE for one in extensions):
        return
    for text, where in own:
        yield make_note(
            f"`{text}` is not installed: the environment holds what a project needs, and not itself",
            where,
            "set `env: {PYTHONPATH: …}`, or if it has C++ or CUDA sources, write `extensions: [{name: NAME, path: .}]`",
        )


def torch_notes(
    wanted: tuple[tuple[Requirement, str], ...],
    *,
    pytorch: str,
    cuda: str,
    python: str,
    processor: Processor,
    place: str,
) -> Iterator[Finding]:
    """Note each line on torch that the recipe's own pins contradict."""
    target = processor.markers(python)
    for one, where in wanted:
        if one.marker and not one.marker.evaluate(target):
            continue
        plain = re.sub(r"\+[\w.]+", "", str(one.specifier))
        build = re.search(r"\+(cu\d+|cpu)", str(one.specifier))
        if pytorch == NO_TORCH or not SpecifierSet(plain).contains(pytorch, prereleases=True):
            message = f"the recipe's `pytorch: {pytorch}` at {place} decides, and not `{one}`"
            yield make_note(message, where, "change one of the two")
        elif build and build[1] != build_of(cuda):
            yield make_note(f"the recipe's {_cuda_words(cuda)} decides, and not the build of `{one}`", where)


def index_notes(indexes: tuple[tuple[str, str], ...], cuda: str) -> Iterator[Finding]:
    """Note each index of a requirements file, except the part of PyTorch's own that the recipe's CUDA chooses."""
    for text, where in indexes:
        build = TORCH_BUILD.fullmatch(text)
        if build and build[1] == build_of(cuda):
            continue
        if build:
            message = f"`{text}` has torch's build {build[1]}, and the recipe's {_cuda_words(cuda)} chooses the build"
            yield make_note(message, where)
        else:
            message = f"`{text}` is not asked: packages come from the indexes of the machine that locks"
            setting = "ENVBUILDER_FOLDERS" if text.startswith("--find-links") else "ENVBUILDER_INDEX"
            yield make_note(message, where, f"`{setting}` names others")


def build_of(cuda: str) -> str:
    """Return the name of torch's build for a CUDA: cu124 of 12.4, `cpu` of ""."""
    return "cu" + "".join(cuda.split(".")[:2]) if cuda else "cpu"


def _cuda_words(cuda: str) -> str:
    return f"`cuda: {cuda}`" if cuda else "want of `cuda`"
