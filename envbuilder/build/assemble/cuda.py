"""The cuda layer: a CUDA toolkit installed from packages, as NVIDIA lays it out: `/usr/local/cuda-X.Y` and `/usr/local/cuda`.

A row of `compat/tables/toolkits.yaml` says what to take. What torch's wheels carry is not copied: headers and libraries of the Python
environment are linked. The links are relative, so they hold in the image and in a tree on the host. Archives are not trusted: a
member that leaves the tree, a device, or a link that a rule takes is an error.
"""

import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from envbuilder.build.engine import Job
from envbuilder.compat.tables.toolkit import SITE, Part, Take, Toolkit, WheelPart
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command, Runner
from envbuilder.plan.model import CudaStep

CHUNK: Final = 1 << 20
NOT_HEADERS: Final = frozenset({"__init__.py", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPython:
    """The Python environment whose CUDA wheels are linked: its path in the image, and on this machine."""

    site: PurePosixPath  # absolute, inside the image: /opt/env/lib/python3.11/site-packages
    folder: Path  # the same folder on this machine


def write_tree(step: CudaStep, job: Job, python: Path, work: Path) -> None:
    """Install the toolkit into `work/tree`. `python` is the tree of the Python environment."""
    site = PurePosixPath(job.plan.python.site_packages)
    installed = InstalledPython(site=site, folder=python / site.relative_to("/"))
    parts = {one.name: job.store.artifact(one.sha256) for one in step.artifacts}
    with job.console.step(f"install CUDA {step.toolkit.cuda}"):
        install_toolkit(step.toolkit, parts=parts, python=installed, root=work / "tree", runner=job.runner)


def install_toolkit(
    toolkit: Toolkit, *, parts: Mapping[str, Path], python: InstalledPython, root: Path, runner: Runner
) -> None:
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
        text, row = io.BytesIO(file.text.encode()), f"the table's row {toolkit.cuda}"
        tree.add(file.path, text, runnable=False, origin=row)
    _link_headers(toolkit, python, tree)
    _link_row(toolkit, python, tree)
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    (home.parent / "cuda").symlink_to(toolkit.folder.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One file or link of a package."""

    path: PurePosixPath
    content: IO[bytes] | None  # None: a link
    runnable: bool


class _Tree:
    """The toolkit folder as it grows. It remembers where each path comes from, so that two parts cannot disagree unseen."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._origins: dict[PurePosixPath, str] = {}

    def __contains__(self, path: PurePosixPath) -> bool:
        return path in self._origins or (self.home / path).is_dir()

    def add(self, path: PurePosixPath, content: IO[bytes], *, runnable: bool, origin: str) -> None:
        """Write a file. A second part may bring the same bytes."""
        file = self.home / path
        if path in self._origins:
            self._need_same(path, origin, same=not file.is_symlink() and _is_same(content, file))
            return
        self._make_room(path, origin)
        with file.open("xb") as out:
            shutil.copyfileobj(content, out, CHUNK)
        file.chmod(0o755 if runnable else 0o644)

    def add_link(self, path: PurePosixPath, target: str, *, origin: str) -> None:
        link = self.home / path
        if path in self._origins:
            self._need_same(path, origin, same=link.is_symlink() and link.readlink() == Path(target))
            return
        self._make_room(path, origin)
        link.symlink_to(target)

    def _make_room(self, path: PurePosixPath, origin: str) -> None:
        for place in (path, *path.parents):
            if other := self._origins.get(place):
                raise BuildError(f"{origin} installs `{path}`, but `{place}` is already there from {other}")
        if (self.home / path).is_dir():
            raise BuildError(f"{origin} installs `{path}` as a file, but it is a folder already")
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        self._origins[path] = origin

    def _need_same(self, path: PurePosixPath, origin: str, *, same: bool) -> None:
        if not same:
            first = self._origins[path]
            raise BuildError(f"{first} and {origin} both install `{path}`, with different content")


def _is_same(content: IO[bytes], file: Path) -> bool:
    with file.open("rb") as other:
        while chunk := content.read(CHUNK):
            if other.read(len(chunk)) != chunk:
                return False
        return not other.read(1)


def _install_part(part: Part, package: Path, *, tree: _Tree, runner: Runner) -> None:
    rules = [(take, _pattern(take.source), [_pattern(each) for each in take.exclude]) for take in part.take]
    used: set[Take] = set()
    from_wheel = isinstance(part, WheelPart)
    found = _wheel_members(part.name, package) if from_wheel else _deb_members(part.name, package, runner)
    with closing(found) as members:
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
                place = _place(take, member.path)
                tree.add(place, member.content, runnable=member.runnable, origin=f"`{part.name}`")
                break
    for take in part.take:
        if take not in used:
            raise BuildError(
                f"`{part.name}`: the rule `{take.source}` matches nothing in the package",
                hint="the package changed its layout: adapt `envbuilder/compat/tables/toolkits.yaml`",
            )


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
                with archive.open(info) as content:
                    data = None if stat.S_ISLNK(mode) else content
                    yield _Member(path=path, content=data, runnable=bool(mode & 0o111))
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
                target = _relative(toolkit, path, python.site / below / name)
                tree.add_link(path, target, origin=f"the wheel of `{below}`")


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
        inside = PurePosixPath(os.path.normpath(link.path.parent / link.target))
        is_inside = not inside.is_absolute() and ".." not in inside.parts and inside in tree
        if not link.target.startswith(SITE) and not is_inside:
            raise BuildError(f"the link `{link.path}` to `{link.target}` points at nothing in the toolkit")


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
