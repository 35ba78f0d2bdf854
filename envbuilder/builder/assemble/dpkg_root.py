"""Unpack packages into a new root as dpkg would, several at once, and write dpkg's database.

What is left is to run their `preinst` scripts and `dpkg --configure`, which the root's own dpkg does. Packages whose paths meet need
dpkg's rules of `Replaces` and of diversions: the root's dpkg unpacks all of these (`left`).
"""

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import TYPE_CHECKING, Final

from envbuilder.core.errors import BuildError
from envbuilder.core.processor import X86_64, Processor
from envbuilder.layers.tar import is_normal
from envbuilder.plan.contents import EXCLUDE, KEEP
from envbuilder.sources.deb import members, read_control, read_tar

if TYPE_CHECKING:
    from email.message import Message

# The links of the merged /usr. They exist before the first package is unpacked, as the package `usr-is-merged` requires.
MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EXCLUDED: Final = re.compile("|".join(map(fnmatch.translate, EXCLUDE)))
_KEPT: Final = re.compile(fnmatch.translate(KEEP))
_ABOVE_KEPT: Final = KEEP.partition("/*")[0]  # dpkg keeps the folders and links below: a kept file may follow
_DATABASE: Final = "var/lib/dpkg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that is unpacked. Paths are below the root."""

    name: str
    deb: Path
    control: Mapping[str, tuple[bytes, TarInfo]]
    listed: list[str] = field(default_factory=list)  # all paths of the package, as dpkg lists them
    folders: dict[str, TarInfo] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)  # and links
    written: list[str] = field(default_factory=list)  # those of them that no other package had before
    apart: list[str] = field(default_factory=list)  # targets of hard links that are not its own
    # uid and gid of the files of others than root
    owned: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def about(self) -> "Message[str, str]":
        return HeaderParser().parsestr(self.control["control"][0].decode())

    @property
    def stem(self) -> str:
        """The name of its files in dpkg's database."""
        is_multiple = self.about.get("Multi-Arch") == "same"
        return f"{self.name}:{self.about['Architecture']}" if is_multiple else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The packages of a root: those whose files are there, and those that its dpkg has to unpack."""

    packages: tuple[Package, ...]
    left: tuple[Path, ...]

    def owners(self) -> Iterator[tuple[str, int, int]]:
        """Yield path, uid and gid of what root does not own."""
        for package in self.packages:
            yield from ((path, *owner) for path, owner in package.owned.items())


def make_merged_root(root: Path) -> None:
    """Make a root with nothing but the links of the merged /usr."""
    for name in ("", "usr", *(f"usr/{name}" for name in MERGED)):
        (root / name).mkdir()
        (root / name).chmod(0o755)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")


def unpack(
    debs: Mapping[str, Path], root: Path, *, threads: int, advance: Callable[[int], None] = lambda _: None
) -> Unpacked:
    """Unpack packages, by name, into a root with the links of the merged /usr. Raises BuildError for what no root may have."""
    sizes = {name: deb.stat().st_size for name, deb in debs.items()}
    largest = sorted(debs, key=lambda name: -sizes[name])

    def work(name: str) -> Package:
        done = _unpack(name, debs[name], root)
        advance(sizes[name])
        return done

    # Decompression, most of the work, runs outside the interpreter's lock.
    with ThreadPoolExecutor(threads) as pool:
        found = dict(zip(largest, pool.map(work, largest), strict=True))
    # dpkg gives a folder the mode that the first package says.
    every = sorted(found.values(), key=lambda one: (one.name != "base-files", one.name))
    left = _sharing(every)
    for package in every:
        if package.name in left:  # nothing of it stays
            for path in package.written:
                (root / path).unlink()
    packages = tuple(package for package in every if package.name not in left)
    folders: dict[str, TarInfo] = {}
    for package in packages:
        for path, info in package.folders.items():
            if path not in folders and not (root / path).is_symlink():
                folders[path] = info
                if info.uid or info.gid:
                    package.owned[path] = info.uid, info.gid
    for path, info in folders.items():
        _need_folder(root, path)
        (root / path).chmod(info.mode & 0o7777)
    return Unpacked(packages=packages, left=tuple(debs[name] for name in sorted(left)))


def _sharing(packages: Sequence[Package]) -> set[str]:
    """Return the names of the packages whose paths meet: the same file, or something below a link or a file."""
    owners: dict[str, set[str]] = {}
    for package in packages:
        for path in package.files:
            owners.setdefault(path, set()).add(package.name)
    left = {package.name for package in packages if package.apart}
    for names in owners.values():
        if len(names) > 1:
            left |= names
    for package in packages:
        for path in (*package.files, *package.folders):
            for above in PurePosixPath(path).parents:
                if str(above) in owners:
                    left |= {package.name} | owners[str(above)]
    return left


def _unpack(name: str, deb: Path, root: Path) -> Package:
    package = Package(name=name, deb=deb, control=read_control(deb))
    tar = read_tar(deb, "data")
    for info in members(tar, deb):
        _add(package, info, tar, root)
    return package


def _add(package: Package, info: TarInfo, tar: memoryview, root: Path) -> None:
    listed = info.name.removeprefix(".").rstrip("/") or "/."
    package.listed.append(listed)
    path = merged(info.name)
    if _is_left_out(info, listed):
        return
    if (path and not is_normal(path)) or not (info.isdir() or info.isreg() or info.issym() or info.islnk()):
        raise BuildError(
            f"the package `{package.deb}` has `{info.name}`, which is no file, folder or link below the root"
        )
    if info.isdir():
        if path:
            package.folders[path] = info
        return
    if info.issym() and listed[1:] in MERGED:  # base-files of newer suites brings them
        os.utime(root / listed[1:], (info.mtime, info.mtime), follow_symlinks=False)
        return
    package.files.append(path)
    try:
        _write(package, path, info, tar, root)
    except FileExistsError:  # of another package; `_sharing` says which
        return
    package.written.append(path)
    if info.uid or info.gid:
        package.owned[path] = info.uid, info.gid


def _write(package: Package, path: str, info: TarInfo, tar: memoryview, root: Path) -> None:
    """Write a file or a link. Raises FileExistsError if another package has it, or a link or a file above it."""
    _need_folder(root, path.rpartition("/")[0])
    full = root / path
    if info.issym():
        full.symlink_to(info.linkname)
        os.utime(full, (info.mtime, info.mtime), follow_symlinks=False)
    elif info.islnk():
        target = merged(info.linkname)
        if target not in package.written:
            package.apart.append(target)
            raise FileExistsError
        full.hardlink_to(root / target)
    else:
        write_new(full, tar[info.offset_data :][: info.size], info.mode & 0o7777, info.mtime)


def _is_left_out(info: TarInfo, listed: str) -> bool:
    if not _EXCLUDED.match(listed) or _KEPT.match(listed):
        return False
    return not ((info.isdir() or info.issym()) and listed.startswith(_ABOVE_KEPT))


def write_new(path: Path, content: bytes | memoryview, mode: int, mtime: float | None = None) -> None:
    """Write a file that is not there. No link is followed, which may lead out of the root."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fchmod(descriptor, mode)
        if mtime is not None:
            os.utime(descriptor, (mtime, mtime))


def _need_folder(root: Path, path: str) -> None:
    """Make a folder below the root. Raises FileExistsError for a file or a link on the way: it may lead out of the root."""
    full = root
    for part in path.split("/"):
        full /= part
        try:
            full.mkdir()
            full.chmod(0o755)
        except FileExistsError:
            if full.is_symlink() or not full.is_dir():
                raise


def merged(name: str) -> str:
    """Return a path below a root with a merged /usr."""
    path = name.removeprefix("./").removeprefix("/").rstrip("/")
    path = "" if path == "." else path
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path


# ------------------------------------------------------------------------------------------------------- dpkg's database


def write_database(packages: Sequence[Package], root: Path, processor: Processor = X86_64) -> None:
    """Write dpkg's database: all packages unpacked, none configured. Raises BuildError if a package has a file of it."""
    try:
        _write_database(packages, root, processor)
    except FileExistsError as error:
        raise BuildError(f"a package has `{error.filename}`, which belongs to dpkg's database") from error


def _write_database(packages: Sequence[Package], root: Path, processor: Processor) -> None:
    folder = root / _DATABASE
    for name in ("info", "updates", "triggers", "alternatives", "parts"):
        _need_folder(root, f"{_DATABASE}/{name}")
    stanzas: list[str] = []
    files: list[str] = []
    named: dict[str, list[str]] = {}
    for package in sorted(packages, key=lambda one: one.name):
        _need_plain(package, package.stem, *package.control)
        _save_text(folder / f"info/{package.stem}.list", "".join(f"{path}\n" for path in package.listed))
        for name, (content, info) in package.control.items():
            if name != "control":
                write_new(folder / f"info/{package.stem}.{name}", content, info.mode & 0o7777, info.mtime)
        stanzas.append(_stanza(package, root))
        for words in _lines(package, "triggers"):
            if words[0].startswith("interest") and len(words) > 1:
                one = f"{package.name}{'/noawait' if words[0].endswith('noawait') else ''}"
                if words[1].startswith("/"):
                    files.append(f"{words[1]} {one}\n")
                else:
                    _need_plain(package, words[1])
                    named.setdefault(words[1], []).append(f"{one}\n")
    # dpkg has no empty `File`.
    for name, lines in (named | ({"File": files} if files else {}) | {"Unincorp": []}).items():
        _save_text(folder / f"triggers/{name}", "".join(lines))
    _save_text(folder / "status", "\n".join(stanzas))
    _save_text(folder / "arch", f"{processor.debian}\n")
    _save_text(folder / "info/format", "1\n")


def _need_plain(package: Package, *names: str) -> None:
    """Raise BuildError for a name in a package's control part that is no file name: `..` in it may lead out of the root."""
    for name in names:
        if "/" in name:
            raise BuildError(
                f"the package `{package.deb}` has `{name}` in its control part, where a name has no `/`"
            )


def preinst_lines(packages: Sequence[Package]) -> Iterator[str]:
    """Yield the shell lines that run the `preinst` of each package as dpkg does. base-passwd is first: it brings the users."""
    running = next((one.about["Version"] for one in packages if one.name == "dpkg"), "")
    for package in sorted(packages, key=lambda one: (one.name != "base-passwd", one.name)):
        if "preinst" in package.control:
            yield (
                f"DPKG_MAINTSCRIPT_PACKAGE={package.name} DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 DPKG_MAINTSCRIPT_NAME=preinst "
                f"DPKG_MAINTSCRIPT_ARCH={package.about['Architecture']} DPKG_RUNNING_VERSION={running} DPKG_ROOT= "
                f"DPKG_ADMINDIR=/{_DATABASE} DPKG_MAINTSCRIPT_DEBUG=0 /{_DATABASE}/info/{package.stem}.preinst install"
            )


def _stanza(package: Package, root: Path) -> str:
    first, *rest = package.control["control"][0].decode().strip("\n").split("\n")
    lines = [first, "Status: install ok unpacked", *rest]
    if conffiles := [_conffile(words, package, root) for words in _lines(package, "conffiles")]:
        lines += ["Conffiles:", *conffiles]
    return "".join(f"{line}\n" for line in lines)


def _conffile(words: Sequence[str], package: Package, root: Path) -> str:
    *flags, path = words
    if flags or merged(path) not in package.written:  # `remove-on-upgrade`: the package does not bring it
        return " ".join((f" {path} newconffile", *flags))
    digest = hashlib.md5((root / merged(path)).read_bytes(), usedforsecurity=False).hexdigest()
    return f" {path} {digest}"


def _lines(package: Package, name: str) -> Iterator[list[str]]:
    content, _ = package.control.get(name, (b"", None))
    for line in content.decode().splitlines():
        if words := line.partition("#")[0].split():
            yield words


def _save_text(path: Path, text: str) -> None:
    write_new(path, text.encode(), 0o644)
