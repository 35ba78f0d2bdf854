"""Unpack packages into a new root as dpkg would, several at once, and write dpkg's database.

What is left is to run their `preinst` scripts and `dpkg --configure`, which the root's own dpkg does. Packages that share a path need
dpkg's rules of `Replaces` and of diversions: the root's dpkg unpacks the later one (`left`).
"""

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from tarfile import TarInfo
from typing import TYPE_CHECKING, Final

from envbuilder.core.deb import members, read_control, read_tar
from envbuilder.core.errors import BuildError
from envbuilder.layers.tar import is_normal
from envbuilder.plan.contents import EXCLUDE, KEEP

if TYPE_CHECKING:
    from email.message import Message

# The links of the merged /usr. They exist before the first package is unpacked, as the package `usr-is-merged` requires.
MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EXCLUDED: Final = re.compile("|".join(map(fnmatch.translate, EXCLUDE)))
_KEPT: Final = re.compile(fnmatch.translate(KEEP))
_ABOVE_KEPT: Final = KEEP.partition("/*")[0]  # dpkg keeps the folders and links below: a kept file may follow
_DATABASE: Final = "var/lib/dpkg"


class _SharedError(Exception):
    """A path that another package has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that is unpacked. Paths are below the root."""

    name: str
    deb: Path
    control: Mapping[str, tuple[bytes, TarInfo]]
    listed: list[str] = field(default_factory=list)  # all paths of the package, as dpkg lists them
    folders: dict[str, TarInfo] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)  # those that are written
    owned: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # uid and gid of the files of others than root

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

    def work(name: str) -> Package | None:
        done = _unpack(name, debs[name], root)
        advance(sizes[name])
        return done

    with ThreadPoolExecutor(
        threads
    ) as pool:  # decompression, most of the work, runs outside the interpreter's lock
        found = dict(zip(largest, pool.map(work, largest), strict=True))
    # dpkg gives a folder the mode that the first package says.
    first = "base-files"
    packages = [one for name in sorted(found, key=lambda one: (one != first, one)) if (one := found[name])]
    folders: dict[str, TarInfo] = {}
    for package in packages:
        for path, info in package.folders.items():
            if path not in folders:
                folders[path] = info
                if info.uid or info.gid:
                    package.owned[path] = info.uid, info.gid
    for path, info in folders.items():
        if not (root / path).is_symlink():
            _need_folder(root, path)
            (root / path).chmod(info.mode & 0o7777)
    return Unpacked(
        packages=tuple(packages), left=tuple(debs[name] for name in sorted(debs) if not found[name])
    )


def _unpack(name: str, deb: Path, root: Path) -> Package | None:
    """Unpack one package; return None, and leave nothing of it, if it has a path of another one."""
    package = Package(name=name, deb=deb, control=read_control(deb))
    tar = read_tar(deb, "data")
    try:
        for info in members(tar, deb):
            _add(package, info, tar, root)
    except _SharedError:
        for path in package.files:
            (root / path).unlink()
        return None
    return package


def _add(package: Package, info: TarInfo, tar: memoryview, root: Path) -> None:
    listed = info.name.removeprefix(".").rstrip("/") or "/."
    package.listed.append(listed)
    path = merged(info.name)
    if _is_left_out(info, listed):
        return
    if info.isdir():
        if path:
            package.folders[path] = info
        return
    if info.issym() and listed[1:] in MERGED:  # base-files of newer suites brings them
        os.utime(root / listed[1:], (info.mtime, info.mtime), follow_symlinks=False)
        return
    if not is_normal(path) or not (info.isreg() or info.issym() or info.islnk()):
        raise BuildError(
            f"the package `{package.deb}` has `{info.name}`, which is no file, folder or link below the root"
        )
    _need_folder(root, path.rpartition("/")[0])
    full = root / path
    try:
        if info.issym():
            full.symlink_to(info.linkname)
            os.utime(full, (info.mtime, info.mtime), follow_symlinks=False)
        elif info.islnk():
            target = merged(info.linkname)
            if target not in package.files:
                raise _SharedError
            full.hardlink_to(root / target)
        else:
            _write(full, tar[info.offset_data :][: info.size], info)
    except FileExistsError:
        raise _SharedError from None
    package.files.append(path)
    if info.uid or info.gid:
        package.owned[path] = info.uid, info.gid


def _is_left_out(info: TarInfo, listed: str) -> bool:
    if not _EXCLUDED.match(listed) or _KEPT.match(listed):
        return False
    return not ((info.isdir() or info.issym()) and listed.startswith(_ABOVE_KEPT))


def _write(path: Path, content: memoryview, info: TarInfo) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fchmod(descriptor, info.mode & 0o7777)
        os.utime(descriptor, (info.mtime, info.mtime))


def _need_folder(root: Path, path: str) -> None:
    """Make a folder below the root. A link of another package on the way is a shared path: it may lead out of the root."""
    full = root
    for part in path.split("/"):
        full /= part
        try:
            full.mkdir()
            full.chmod(0o755)
        except FileExistsError:
            if full.is_symlink() or not full.is_dir():
                raise _SharedError from None


def merged(name: str) -> str:
    """Return a path below a root with a merged /usr."""
    path = name.removeprefix("./").removeprefix("/").rstrip("/")
    path = "" if path == "." else path
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path


# ------------------------------------------------------------------------------------------------------- dpkg's database


def write_database(packages: Sequence[Package], root: Path) -> None:
    """Write dpkg's database: all packages unpacked, none configured."""
    folder = root / _DATABASE
    for name in ("info", "updates", "triggers", "alternatives", "parts"):
        _need_folder(root, f"{_DATABASE}/{name}")
    stanzas: list[str] = []
    files: list[str] = []
    named: dict[str, list[str]] = {}
    for package in sorted(packages, key=lambda one: one.name):
        _save(folder / f"info/{package.stem}.list", "".join(f"{path}\n" for path in package.listed))
        for name, (content, info) in package.control.items():
            if name != "control":
                path = folder / f"info/{package.stem}.{name}"
                path.write_bytes(content)
                path.chmod(info.mode & 0o7777)
                os.utime(path, (info.mtime, info.mtime))
        stanzas.append(_stanza(package, root))
        for words in _lines(package, "triggers"):
            if words[0].startswith("interest"):
                one = f"{package.name}{'/noawait' if words[0].endswith('noawait') else ''}"
                if words[1].startswith("/"):
                    files.append(f"{words[1]} {one}\n")
                else:
                    named.setdefault(words[1], []).append(f"{one}\n")
    # dpkg has no empty `File`.
    for name, lines in (named | ({"File": files} if files else {}) | {"Unincorp": []}).items():
        _save(folder / f"triggers/{name}", "".join(lines))
    _save(folder / "status", "\n".join(stanzas))
    _save(folder / "arch", "amd64\n")
    _save(folder / "info/format", "1\n")


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
    if conffiles := [_conffile(words, root) for words in _lines(package, "conffiles")]:
        lines += ["Conffiles:", *conffiles]
    return "".join(f"{line}\n" for line in lines)


def _conffile(words: Sequence[str], root: Path) -> str:
    *flags, path = words
    if flags:  # `remove-on-upgrade`: the package does not bring it
        return f" {path} newconffile {flags[0]}"
    digest = hashlib.md5((root / merged(path)).read_bytes(), usedforsecurity=False).hexdigest()
    return f" {path} {digest}"


def _lines(package: Package, name: str) -> Iterator[list[str]]:
    content, _ = package.control.get(name, (b"", None))
    for line in content.decode().splitlines():
        if words := line.partition("#")[0].split():
            yield words


def _save(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
