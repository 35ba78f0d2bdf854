"""Read which distributions the projects among a recipe's extensions are: name, version and what they require.

Nothing of a project runs: its build needs the environment that is being locked. What only running it would tell is said.
"""

import ast
import configparser
import contextlib
import email
import logging
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Final

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuilder.compat.gates import Gate, find_gates
from envbuilder.compat.python_code import PythonCode, parse_code
from envbuilder.compat.tables.cuda import capabilities, load_gpus
from envbuilder.core.archive import DAMAGED_TAR, DAMAGED_ZIP, BoundedTar, BoundedZip
from envbuilder.core.beneath import TEXT_LIMIT
from envbuilder.core.budget import ARCHIVE_SPARE, MEMBER, most_unpacked, need_within, read_within, read_xz
from envbuilder.core.errors import BuildError, IncompatibleError, blaming_content
from envbuilder.core.places import shown
from envbuilder.core.processor import Processor
from envbuilder.lock.candidates import TORCH, parse_all
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.held import applies, is_met
from envbuilder.lock.source_files import open_source
from envbuilder.recipe.extension import Form
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.other_locks import table_of, tables_of
from envbuilder.recipe.wheel_sources import pin_of

log = logging.getLogger(__name__)
_COMPRESSED: Final = (b"\xfd7zXZ\0", b"\x5d\0\0")  # how files of xz and lzma begin
_FILES: Final = ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py")
_WORKSPACE: Final = "workspace"  # among a project's files: the pyproject.toml of the workspace around it
_LOCAL: Final = "envbuilder"  # marks the version for uv, so that no index has the same one
_STATIC: Final = Version("2.2")  # since then metadata says which of its fields a build may change


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectMetadata:
    """What an extension is to other packages. `version` is "" and `requires` None where only a build knows it."""

    extension: str
    name: str = ""
    version: str = ""
    requires: tuple[str, ...] | None = None
    lacking: tuple[str, ...] = ()  # sources that its setup.py compiles and its archive does not hold
    elsewhere: frozenset[str] = frozenset()  # required names that its `tool.uv.sources` take from no index
    unset: tuple[Gate, ...] = ()  # what its setup.py compiles by, and the recipe does not set

    @property
    def pin(self) -> str:
        return f"{self.name}=={self._marked}"

    @property
    def _marked(self) -> str:
        return self.version if "+" in self.version else f"{self.version}+{_LOCAL}"

    def write_wheel(self, folder: Path) -> None:
        """Write a wheel of metadata alone, by which uv knows the extension."""
        top = f"{self.name.replace('-', '_')}-{self._marked}"
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self._marked}"]
        lines += [f"Requires-Dist: {text}" for text in self.requires or ()]
        wheel = "Wheel-Version: 1.0\nGenerator: envbuilder\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(folder / f"{top}-py3-none-any.whl", "w") as file:
            file.writestr(f"{top}.dist-info/METADATA", "\n".join(lines) + "\n")
            file.writestr(f"{top}.dist-info/WHEEL", wheel)
            file.writestr(f"{top}.dist-info/RECORD", "")


def read_distributions(
    recipe: Recipe, extensions: tuple[LockedExtension, ...], context: ResolveContext
) -> tuple[ProjectMetadata, ...]:
    """Return the distributions of the projects whose files are on this machine."""
    projects = (extension for extension in extensions if extension.form is Form.PROJECT)
    archives = ((project, project.archive) for project in projects)
    has = context.store.has_artifact
    there = (project for project, archive in archives if archive is None or has(archive.sha256))
    return tuple(_read(recipe, project, context) for project in there)


def _read(recipe: Recipe, extension: LockedExtension, context: ResolveContext) -> ProjectMetadata:
    archive, folder, top = extension.archive, recipe.path.parent, PurePosixPath(extension.path)
    files: dict[str, bytes] = {}  # of an archive every name; the content of those that are read
    above = [parent / "pyproject.toml" for parent in top.parents]
    if archive is None:
        for name in (name for name in _FILES if (folder / top / name).is_file()):
            with open_source(folder, f"{extension.path}/{name}") as stream:
                files[name] = stream.read(TEXT_LIMIT)
        for file in (file for file in above if (folder / file).is_file()):
            with open_source(folder, str(file)) as stream:
                _keep_root(files, stream.read(TEXT_LIMIT))
    else:
        stored = context.store.artifact(archive.sha256)
        for path, content in archived_files(stored, strip=archive.kind == "sdist"):
            if PurePosixPath(path).is_relative_to(top):
                name = str(PurePosixPath(path).relative_to(top))
                files[name] = content if name in _FILES else b""
            elif PurePosixPath(path) in above:
                _keep_root(files, content)
    code = _setup(files)
    named = code.sources() if archive and code and not extension.patch else ()
    # flash-attn's makes .cu of .cpp for AMD's GPUs.
    renamed = {f"{name.removesuffix('.cpp')}.cu" for name in files.keys() - {*named} if name.endswith(".cpp")}
    lacking = tuple(name for name in named if name not in files and name not in renamed)
    distribution = read_distribution(extension.name, files)
    if archive and archive.kind == "sdist":  # what its index has beside it is the project's too
        distribution = replace(distribution, elsewhere=frozenset())
    return replace(distribution, lacking=lacking, unset=_unset(recipe, extension, code))


def _keep_root(files: dict[str, bytes], content: bytes) -> None:
    """Add the pyproject.toml of a folder above if it is the root of a workspace of uv."""
    with contextlib.suppress(ValueError, RecursionError):  # its own tool says what is wrong with it
        if "workspace" in table_of(table_of(tomllib.loads(content.decode()), "tool"), "uv"):
            files.setdefault(_WORKSPACE, content)


def _setup(files: Mapping[str, bytes]) -> PythonCode | None:
    return parse_code(files.get("setup.py", b"").decode(errors="replace"), Path("setup.py"))


def _unset(recipe: Recipe, extension: LockedExtension, code: PythonCode | None) -> tuple[Gate, ...]:
    """Return what the recipe does not set. Of a folder, which `init` has read, it is only what makes the build fail."""
    gates = find_gates(code, capabilities(recipe.gpus, load_gpus().rows)) if code else ()
    given = {*dict(extension.env), *extension.options}
    effects = {"compile"}
    if extension.archive:
        effects |= {"code", "cuda", "architectures"} if recipe.gpus else {"code"}
    return tuple(gate for gate in gates if gate.effect in effects and gate.name not in given)


def read_distribution(extension: str, files: Mapping[str, bytes]) -> ProjectMetadata:
    """Return what the files of a project say, the built metadata first.

    Raises UsageError for files that are not of their form, and for a requirement that no standard knows: uv would take an
    option of pip for one.
    """
    whole = ProjectMetadata(extension=extension)
    with blaming_content(f"what the project of the extension `{extension}` says of itself"):
        for part in _said(files):
            for text in part.requires or ():
                if text.lstrip().startswith("-") or len(text.splitlines()) > 1:
                    raise ValueError(f"{shown(text)} is no requirement")
            requires = part.requires if whole.requires is None else whole.requires
            name, version = whole.name or _name(part.name), whole.version or _version(part.version)
            elsewhere = whole.elsewhere | part.elsewhere
            whole = replace(whole, name=name, version=version, requires=requires, elsewhere=elsewhere)
    return whole


def _said(files: Mapping[str, bytes]) -> Iterator[ProjectMetadata]:
    """Yield what each file says. Once one leaves what is required to the build, no later one tells it."""
    texts = {name: content.decode(errors="replace") for name, content in files.items()}
    if text := texts.get("PKG-INFO"):
        yield _read_metadata(text)
    project, is_open = _read_project(texts.get("pyproject.toml", ""), texts.get(_WORKSPACE, ""))
    yield project
    config = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error):
        config.read_string(texts.get("setup.cfg", ""))
    required = config.get("options", "install_requires", fallback=None)
    is_open |= required is not None and required.startswith("file:")
    name, version = (config.get("metadata", key, fallback="") for key in ("name", "version"))
    lines = tuple(filter(None, map(str.strip, (required or "").splitlines())))
    requires = lines if required and not is_open else None
    yield ProjectMetadata(extension="", name=name, version=version, requires=requires)
    code = _setup(files) if "setup.py" in files else None
    if code:
        setup = _read_setup(code)
        yield replace(setup, requires=None) if is_open else setup
    elif config.has_section("options") and required is None and not is_open:
        yield ProjectMetadata(extension="", requires=())


def _read_metadata(text: str) -> ProjectMetadata:
    fields = email.message_from_string(text)
    requires = tuple(fields.get_all("Requires-Dist", []))
    dynamic = {name.lower() for name in fields.get_all("Dynamic", [])}
    form = _version(fields.get("Metadata-Version", ""))
    is_static = bool(form) and Version(form) >= _STATIC and "requires-dist" not in dynamic
    name, version = fields.get("Name", ""), fields.get("Version", "")
    known = requires if requires or is_static else None
    return ProjectMetadata(extension="", name=name, version=version, requires=known)


def _read_project(text: str, above: str) -> tuple[ProjectMetadata, bool]:
    """Return what a pyproject.toml says, with the one of its workspace, and whether it leaves what is required to the build."""
    try:
        whole, workspace = tomllib.loads(text), tomllib.loads(above)
    except tomllib.TOMLDecodeError:
        return ProjectMetadata(extension=""), True
    project = whole.get("project")
    if not isinstance(project, dict):
        return ProjectMetadata(extension=""), "poetry" in whole.get("tool", {})
    left = project.get("dynamic", [])
    requires = tuple(map(str, project.get("dependencies", []))) if "dependencies" not in left else None
    name, version = (str(project.get(key, "")) for key in ("name", "version"))
    dynamic = whole.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    uv = (table_of(table_of(tables, "tool"), "uv") for tables in (workspace, whole))
    sources = dict(item for tables in uv for item in table_of(tables, "sources").items())
    places = {name: (table_of(sources, name), *tables_of(sources, name)) for name in sources}
    elsewhere = {name for name, rows in places.items() if any(row and "index" not in row for row in rows)}
    required = {canonicalize_name(each.name) for each in parse_all(requires or ())}
    known = ProjectMetadata(
        extension="", name=name, version=version, requires=requires,
        elsewhere=frozenset(map(canonicalize_name, elsewhere)) & required,
    )  # fmt: skip
    return known, "dependencies" in dynamic


def _read_setup(code: PythonCode) -> ProjectMetadata:
    setup = code.setup()
    if setup is None:
        return ProjectMetadata(extension="")
    needed = code.keyword(setup, "install_requires")
    texts = tuple(line for text in code.texts(needed) for line in text.splitlines())
    needed = code.written(needed)
    is_whole = len(texts) == len(needed.elts) if isinstance(needed, ast.List | ast.Tuple) else bool(texts)
    if needed is None:
        is_whole = all(keyword.arg for keyword in setup.node.keywords)  # no **more
    name, version = (code.text(code.keyword(setup, key)) for key in ("name", "version"))
    return ProjectMetadata(extension="", name=name, version=version, requires=texts if is_whole else None)


def _name(text: str) -> str:
    """Return the normal name, "" for one that no standard allows: it becomes the name of a file."""
    try:
        return canonicalize_name(text, validate=True)
    except InvalidName:
        return ""


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return ""


def say_gaps(distributions: Sequence[ProjectMetadata], known: Collection[str] = ()) -> None:
    """Say which extensions compute what they require, lack sources, or leave code out unless the recipe says otherwise.

    The table of CUDA packages has what the `known` ones compute.
    """
    for project in distributions:
        for gate in project.unset:
            message = "setup.py:%d of the extension `%s` asks for `%s`: %s"
            log.warning(message, gate.line, project.extension, gate.setting, gate.reason)
        if project.lacking:
            message = "the archive of the extension `%s` lacks `%s`, which its setup.py compiles: take another version, or name `git` and `commit`"
            log.warning(message, project.extension, "`, `".join(project.lacking))
        if project.requires is None and project.extension not in known:
            message = "the extension `%s` says only at its build what it requires: name that in `packages`"
            log.warning(message, project.extension)


def need_places(recipe: Recipe, distributions: Sequence[ProjectMetadata]) -> None:
    """Raise IncompatibleError for what a project requires from a place of its own, and the recipe says nothing of.

    A package of that name in an index may be a stranger's. uv's page "Managing dependencies" defines the places.
    """
    listed = (each.name for each in parse_all(map(pin_of, recipe.requirements)))
    projects = (name for item in distributions for name in (item.name, item.extension) if name)
    given = set(map(canonicalize_name, (TORCH, *listed, *projects)))
    for project in distributions:
        for name in sorted(project.elsewhere - given):
            raise IncompatibleError(
                f"the extension `{project.extension}` requires `{name}`, which its `tool.uv.sources` take from another place than "
                "an index; a package of that name in an index may be a stranger's",
                hint=f"make `{name}` an extension too, or write it into `packages`: by address, or by name if the index has the right one",
            )


def are_met(
    distributions: Sequence[ProjectMetadata], packages: Sequence[Artifact], python: str, processor: Processor
) -> bool:
    """Return whether packages and extensions meet what the extensions require, and no package is an extension too."""
    there = {item.name: item.version for item in packages}
    provided = {item.name: item.version for item in distributions if item.version}
    wanted = [item for given in distributions for item in parse_all(given.requires or ())]
    is_twice = bool(provided.keys() & there.keys())
    applying = (item for item in wanted if applies(item, python, processor))
    return not is_twice and all(is_met(item, there | provided) for item in applying)


def archived_files(archive: Path, *, strip: bool) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file. A link yields its target's content, or nothing if that is outside.

    Raises BuildError for an archive that is damaged, or unpacks to more than a source archive of its size does.
    """
    try:
        left = most_unpacked(archive.stat().st_size, ARCHIVE_SPARE)
        for member, stream in _tar_files(archive) if tarfile.is_tarfile(archive) else _zip_files(archive):
            name = PurePosixPath(member)
            if name.is_absolute() or ".." in name.parts:
                raise BuildError(f"`{archive}` holds `{member}`, which would be written outside its folder")
            content = read_within(stream, min(left, MEMBER), f"bytes of `{member}`")
            left -= len(content)
            if strip:
                name = PurePosixPath(*name.parts[1:])
            if name.parts:
                yield str(name), content
    except (*DAMAGED_TAR, *DAMAGED_ZIP) as error:
        raise BuildError(
            f"`{archive}` cannot be read: {error}",
            hint="it is damaged, or made to fill memory or disk: take the package from another source",
        ) from error


def _tar_files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with _without_xz(archive) as stream, BoundedTar.open(fileobj=stream) as tar:
        for member in tar:
            with contextlib.suppress(KeyError, RecursionError):  # a dangling link, or a circle of them
                if not member.isdir() and (content := tar.extractfile(member)):
                    yield member.name, content


@contextlib.contextmanager
def _without_xz(archive: Path) -> Iterator[IO[bytes]]:
    """Yield the archive, one of xz or lzma unpacked to a temporary file."""
    with archive.open("rb") as stream, tempfile.TemporaryFile() as plain:
        is_xz = stream.read(len(_COMPRESSED[0])).startswith(_COMPRESSED)
        stream.seek(0)
        if is_xz:
            most = most_unpacked(archive.stat().st_size, ARCHIVE_SPARE)
            for piece in read_xz(stream, 1 << 20):
                plain.write(piece)
                need_within("bytes that it unpacks to", plain.tell(), most)
            plain.seek(0)
        yield plain if is_xz else stream


def _zip_files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with BoundedZip(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                with members.open(member) as stream:
                    yield member.filename, stream
