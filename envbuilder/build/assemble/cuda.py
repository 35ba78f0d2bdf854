"""The cuda layer: a CUDA toolkit installed from packages, as NVIDIA lays it out: `/usr/local/cuda-X.Y` and `/usr/local/cuda`.

A row of `compat/tables/toolkits.yaml` says what to take. What torch's wheels carry is not copied: headers and libraries of the Python
environment are linked. The links are relative, so they hold in the image and in a tree on the host. Archives are not trusted: a
member that leaves the tree, a device, or a link that a rule takes is an error.
"""

import hashlib
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, assert_never

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.assemble.step import Job, OtherSteps, link_files, write_settings, write_text
from envbuilder.compat.tables.toolkit import SITE, DebPart, Part, Take, Toolkit, WheelPart
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command, Runner
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import CudaStep, PythonStep
from envbuilder.plan.render import rules

CHUNK: Final = 1 << 20
NOT_HEADERS: Final = frozenset({"__init__.py", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPython:
    """The Python environment whose CUDA wheels are linked: its path in the image, and on this machine."""

    site: PurePosixPath  # absolute, inside the image: /opt/env/lib/python3.11/site-packages
    folder: Path  # the same folder on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledToolkit:
    """The size of an installed toolkit."""

    files: int
    links: int
    size: int  # bytes of the files


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaMaker:
    """Make the cuda step."""

    step: CudaStep
    job: Job

    def inputs(self) -> tuple[Artifact, ...]:
        return self.step.artefacts

    def commands(self, work: Path, root: Root) -> tuple[Command, ...]:  # noqa: ARG002 - as every step's
        return ()  # files are installed without a program

    def write_layer(self, out: Path, work: Path, others: OtherSteps) -> None:  # noqa: ARG002 - as every step's
        tree = others.tree(CudaStep)
        with self.job.console.step("write the cuda layer"):
            self.job.pack(self.step, tree, out)

    def write_tree(self, work: Path, others: OtherSteps) -> None:
        site = PurePosixPath(self.job.plan.python.site_packages)
        python = InstalledPython(site=site, folder=others.tree(PythonStep) / site.relative_to("/"))
        parts = {one.name: self.job.store.artefact(one.sha256) for one in self.step.artefacts}
        with self.job.console.step(f"install CUDA {self.step.toolkit.cuda}"):
            install_toolkit(
                self.step.toolkit, parts=parts, python=python, root=work / "tree", runner=self.job.runner
            )

    def write_inputs(self, folder: Path) -> None:
        python, own = self.job.plan.python, folder / "cuda"
        settings = {
            "INTERPRETER": python.program, "SITE": python.site_packages, "CUDA": self.step.toolkit.cuda
        }  # fmt: skip
        write_settings(own / "settings", settings)
        write_text(own / "rules.json", rules(self.step))
        link_files(
            own / "parts", ((part.filename, part.sha256) for part in self.step.artefacts), self.job.store
        )


def install_toolkit(
    toolkit: Toolkit, *, parts: Mapping[str, Path], python: InstalledPython, root: Path, runner: Runner
) -> InstalledToolkit:
    """Install `usr/local/cuda-X.Y` and the link `usr/local/cuda` below `root`. `parts` maps each part to its package.

    Files get mode 0755 or 0644, whatever the package says. Raises BuildError if a package is missing or broken, a rule takes nothing,
    two parts disagree about a path, or the target of a link is missing.
    """
    home = root / toolkit.folder
    home.mkdir(parents=True, exist_ok=True)
    tree = _Tree(home)
    for part in toolkit.parts:
        if part.name not in parts:
            raise BuildError(f"CUDA {toolkit.cuda} needs the package `{part.name}`, and it was not fetched")
        _install_part(part, parts[part.name], tree=tree, runner=runner)
    for file in toolkit.files:
        tree.add_text(file.path, file.text, origin=f"the table's row {toolkit.cuda}")
    _link_headers(toolkit, python, tree)
    _link_row(toolkit, python, tree)
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    (home.parent / "cuda").symlink_to(toolkit.folder.name)
    return tree.installed()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One file or link of a package."""

    path: PurePosixPath
    content: IO[bytes] | None  # None: a link
    runnable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One path of the tree: where it comes from, and its digest or link target."""

    origin: str
    content: str
    size: int = 0
    link: bool = False


class _Tree:
    """The toolkit folder as it grows. It remembers where each path comes from, so that two parts cannot disagree unseen."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._entries: dict[PurePosixPath, _Entry] = {}

    def __contains__(self, path: PurePosixPath) -> bool:
        return path in self._entries or (self.home / path).is_dir()

    def add(self, path: PurePosixPath, content: IO[bytes], *, runnable: bool, origin: str) -> None:
        """Write a file. A second part may bring the same bytes."""
        if path in self._entries:
            digest, size = _copy(content, None)
            self._refuse_unless_same(path, _Entry(origin=origin, content=digest, size=size))
            return
        self._make_room(path, origin)
        with (self.home / path).open("xb") as out:
            digest, size = _copy(content, out)
        (self.home / path).chmod(0o755 if runnable else 0o644)
        self._entries[path] = _Entry(origin=origin, content=digest, size=size)

    def add_text(self, path: PurePosixPath, text: str, *, origin: str) -> None:
        self._make_room(path, origin)
        data = text.encode()
        (self.home / path).write_bytes(data)
        (self.home / path).chmod(0o644)
        self._entries[path] = _Entry(origin=origin, content=hashlib.sha256(data).hexdigest(), size=len(data))

    def add_link(self, path: PurePosixPath, target: str, *, origin: str) -> None:
        entry = _Entry(origin=origin, content=target, link=True)
        if path in self._entries:
            self._refuse_unless_same(path, entry)
            return
        self._make_room(path, origin)
        (self.home / path).symlink_to(target)
        self._entries[path] = entry

    def installed(self) -> InstalledToolkit:
        entries = self._entries.values()
        links = sum(entry.link for entry in entries)
        return InstalledToolkit(
            files=len(entries) - links, links=links, size=sum(entry.size for entry in entries)
        )

    def _make_room(self, path: PurePosixPath, origin: str) -> None:
        for place in (path, *path.parents):
            if place in self._entries:
                other = self._entries[place].origin
                raise BuildError(f"{origin} lays out `{path}`, but `{place}` is already there from {other}")
        if (self.home / path).is_dir():
            raise BuildError(f"{origin} lays out `{path}` as a file, but it is a folder already")
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)

    def _refuse_unless_same(self, path: PurePosixPath, entry: _Entry) -> None:
        first = self._entries[path]
        if (first.content, first.link) != (entry.content, entry.link):
            raise BuildError(
                f"{first.origin} and {entry.origin} both install `{path}`, with different content"
            )


def _install_part(part: Part, package: Path, *, tree: _Tree, runner: Runner) -> None:
    rules = [(take, _pattern(take.source), [_pattern(each) for each in take.exclude]) for take in part.take]
    used: set[Take] = set()
    with closing(_members(part, package, runner)) as members:
        for member in members:
            name = str(member.path)
            for take, wanted, unwanted in rules:
                if not wanted.fullmatch(name) or any(each.fullmatch(name) for each in unwanted):
                    continue
                used.add(take)
                if member.content is None:
                    raise BuildError(
                        f"`{part.name}`: the rule `{take.source}` takes the link `{name}`: take what it points to"
                    )
                origin = f"`{part.name}`"
                tree.add(_place(take, member.path), member.content, runnable=member.runnable, origin=origin)
                break
    for take in part.take:
        if take not in used:
            raise BuildError(
                f"`{part.name}`: the rule `{take.source}` matches nothing in the package",
                hint="the package changed its layout: adapt `envbuilder/compat/tables/toolkits.yaml`",
            )


def _members(part: Part, package: Path, runner: Runner) -> Generator[_Member]:
    match part:
        case DebPart():
            return _deb_members(part.name, package, runner)
        case WheelPart():
            return _wheel_members(part.name, package)
        case _:
            assert_never(part)


def _deb_members(name: str, package: Path, runner: Runner) -> Generator[_Member]:
    argv = ("dpkg-deb", "--fsys-tarfile", str(package))
    broken: tarfile.TarError | None = None
    with runner.read(Command(argv=argv, why=f"read the package `{name}`")) as stream:
        try:
            # "r|": one pass over the pipe, so that the unpacked package (GBs) is never on the disk.
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for info in archive:
                    path = _safe(info.name, name)
                    if info.isdir():
                        continue
                    if not (info.isreg() or info.issym() or info.islnk()):
                        raise BuildError(
                            f"`{name}` holds the device or pipe `{path}`, which no toolkit needs"
                        )
                    content = archive.extractfile(info) if info.isreg() else None
                    yield _Member(path=path, content=content, runnable=bool(info.mode & 0o111))
        except tarfile.TarError as error:
            broken = error  # dpkg-deb's own words, raised as the pipe ends, say more
    if broken:
        raise BuildError(f"`{name}` is not a readable package: {broken}")


def _wheel_members(name: str, package: Path) -> Generator[_Member]:
    try:
        with zipfile.ZipFile(package) as archive:
            for info in archive.infolist():
                path = _safe(info.filename, name)
                if info.is_dir():
                    continue
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
                    raise BuildError(f"`{name}` holds the device or pipe `{path}`, which no toolkit needs")
                if stat.S_ISLNK(mode):
                    yield _Member(path=path, content=None, runnable=False)
                    continue
                with archive.open(info) as content:
                    yield _Member(path=path, content=content, runnable=bool(mode & 0o111))
    except zipfile.BadZipFile as error:
        raise BuildError(f"`{name}` is not a readable wheel: {error}") from error


def _safe(name: str, package: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        raise BuildError(
            f"`{package}` holds `{name}`, which would leave its folder", hint="do not use this package"
        )
    return path


def _link_headers(toolkit: Toolkit, python: InstalledPython, tree: _Tree) -> None:
    for wheel in toolkit.header_wheels:
        below = PurePosixPath("nvidia") / wheel / "include"
        headers = python.folder / below
        if not headers.is_dir():
            raise BuildError(
                f"CUDA {toolkit.cuda} links the headers in `{below}`, and the Python environment has none",
                hint="is this the torch that the toolkit belongs to?",
            )
        for name in sorted(entry.name for entry in headers.iterdir() if entry.name not in NOT_HEADERS):
            path = PurePosixPath("include") / name
            if path not in tree:  # what a part lays out wins
                tree.add_link(
                    path,
                    _relative(toolkit, path, python.site / below / name),
                    origin=f"the wheel of `{below}`",
                )


def _link_row(toolkit: Toolkit, python: InstalledPython, tree: _Tree) -> None:
    for link in toolkit.links:
        target = link.target
        if target.startswith(SITE):
            below = PurePosixPath(target.removeprefix(SITE).lstrip("/"))
            if not (python.folder / below).exists():
                raise BuildError(
                    f"CUDA {toolkit.cuda} links `{link.path}` to `{below}`, and the Python environment has no such file",
                    hint="is this the torch that the toolkit belongs to?",
                )
            target = _relative(toolkit, link.path, python.site / below)
        tree.add_link(link.path, target, origin=f"the table's row {toolkit.cuda}")
    for link in toolkit.links:
        if not link.target.startswith(SITE):
            _refuse_outside(link.path, link.target, tree)


def _refuse_outside(path: PurePosixPath, target: str, tree: _Tree) -> None:
    inside = PurePosixPath(os.path.normpath(path.parent / target))
    if inside.is_absolute() or ".." in inside.parts or inside not in tree:
        raise BuildError(f"the link `{path}` to `{target}` points at nothing in the toolkit")


def _relative(toolkit: Toolkit, path: PurePosixPath, target: PurePosixPath) -> str:
    return os.path.relpath(target, "/" / toolkit.folder / path.parent)


def _place(take: Take, member: PurePosixPath) -> PurePosixPath:
    """Return where a member goes. Below a target folder `to/` it keeps its path from the first wildcard on."""
    if not take.target.endswith("/"):
        return PurePosixPath(take.target)
    fixed = re.split(r"[*?]", take.source, maxsplit=1)[0].rpartition("/")[0]
    return PurePosixPath(take.target) / member.relative_to(fixed)


def _pattern(glob: str) -> re.Pattern[str]:
    """Return the pattern of a glob. `*` and `?` stay inside one folder; a final `**` is everything below."""
    if glob.endswith("/**"):
        return re.compile(_pattern(glob.removesuffix("/**")).pattern + "/.+", re.DOTALL)
    return re.compile(
        "".join({"*": "[^/]*", "?": "[^/]"}.get(sign) or re.escape(sign) for sign in glob), re.DOTALL
    )


def _copy(content: IO[bytes], out: IO[bytes] | None) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while chunk := content.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if out:
            out.write(chunk)
    return digest.hexdigest(), size
