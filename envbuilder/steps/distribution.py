"""Unpack Debian packages into a new root as dpkg would, several at once: `distribution.py SPEC INPUTS OUT`.

INPUTS has `debs`, a folder of packages called NAME_VERSION.deb. This program needs no rights, and writes into OUT:

- `root`: a root with a merged /usr, the files of the packages, and dpkg's database, which says that they are unpacked
- `left`: packages whose paths meet. They need dpkg's rules of `Replaces` and of diversions, so the root's own dpkg unpacks them.
- `preinst`: shell lines that run the packages' `preinst` scripts
- `settings`: shell variables for `configure_distribution.sh`, which runs in the root and does the rest
- `owners.json`: `files` and `folders`, lists of [path, uid, gid, set-id bits] of what is not root's without these bits

SPEC has `architecture` and `triplet`, names of the processor, and `gcc`, the version that gets the compilers' plain names. With
`tools`, the folder of an image's compilers, all packages are left to the dpkg of that image: no root is made, and `owners.json` lists
every path.

A package is foreign: sizes and counts in it are compared with limits, and no link of it is followed. Paths below are those of the root.
"""

import fnmatch
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.parser import HeaderParser

# The links of the merged /usr. They exist before the first package is unpacked, as the package `usr-is-merged` requires.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Documentation that nobody reads in a container. Copyright files stay.
EXCLUDE = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/doc/*", "/usr/share/locale/*")
KEEP = "/usr/share/doc/*/copyright"
FOLDERS = ("opt", "usr/local", "usr/local/bin", "opt/envbuilder", ".singularity.d")  # later layers fill them
# What a runtime mounts its own files on.
EMPTY = ("etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf")
# dash before 0.5.11, of Ubuntu 20.04, fails unless this folder exists. EXCLUDE leaves it out everywhere.
MANUALS = ("usr/share", "usr/share/man", "usr/share/man/man1")
SECRET = ("etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-")
SHADOW = 42  # the group `shadow` of Debian and Ubuntu
USER = ("home/vscode", 65000)  # of `configure_distribution.sh`
# The plain names of the pinned compiler, and its tools. Debian's Python compiles extensions with those that begin with the triplet.
COMPILERS = {
    "gcc": "gcc", "cc": "gcc", "{}-gcc": "gcc", "g++": "g++", "c++": "g++", "{}-g++": "g++", "cpp": "cpp",
    "gcc-ar": "gcc-ar", "gcc-nm": "gcc-nm", "gcc-ranlib": "gcc-ranlib", "gcov": "gcov",
}  # fmt: skip
# Python before 3.11 writes byte code that depends on the hash seed (python/cpython#81777), which its packages do not set.
SEEDED = re.compile(r"python(3\.(?:\d|10))-minimal")

CHUNK = 1 << 20
BLOCK = 512  # bytes of a tar's headers
# A part unpacks to at most so many times the package's size, and so many bytes more.
TIMES, SPARE = 100, 64 << 20
ENTRIES, NAMES, PATH, DEPTH = 1_000_000, 512 << 20, 4096, 256  # paths, bytes of all, and of each; folders
XZ = 256 << 20  # bytes of memory that a stream may ask for. `xz -9` needs 65 MiB.
SET_IDS = 0o6000

EXCLUDED = re.compile("|".join(map(fnmatch.translate, EXCLUDE)))
KEPT = re.compile(fnmatch.translate(KEEP))
ABOVE_KEPT = KEEP.partition("/*")[0]  # dpkg keeps the folders and links below: a kept file may follow
DATABASE = "var/lib/dpkg"
DAMAGE = (
    ValueError, EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, LookupError, OverflowError,
)  # fmt: skip


class PackageError(Exception):
    """A package is damaged, or wants what no root may have."""


# ------------------------------------------------------------------------------------------------------- .deb files (deb(5))


class Member(io.RawIOBase):
    """The next bytes of a file."""

    def __init__(self, file, size):
        self.file, self.left = file, size

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self.file.read(min(len(buffer), self.left))
        buffer[: len(piece)] = piece
        self.left -= len(piece)
        return len(piece)


class Xz(io.RawIOBase):
    """What an xz or lzma stream unpacks to. `lzma.open` allocates whatever the stream asks for, up to 4 GiB."""

    def __init__(self, packed):
        self.packed, self.decompressor = packed, lzma.LZMADecompressor(memlimit=XZ)

    def readable(self):
        return True

    def readinto(self, buffer):
        rest = b""
        while True:
            if self.decompressor.eof:  # another stream may follow, and zeros between them
                rest = (self.decompressor.unused_data or self.packed.read(CHUNK)).lstrip(b"\0")
                if not rest:
                    return 0
                self.decompressor = lzma.LZMADecompressor(memlimit=XZ)
            elif self.decompressor.needs_input and not rest:
                rest = self.packed.read(CHUNK)
                if not rest:
                    raise EOFError("it is cut off")
            piece, rest = self.decompressor.decompress(rest, len(buffer)), b""
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)


@contextmanager
def open_part(deb, part):
    """Yield a stream of a package's tar, `control` or `data`. Raises one of DAMAGE."""
    with open(deb, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("it is not an ar archive")
        while True:
            header = file.read(60)
            if len(header) < 60:
                raise ValueError(f"it has no {part}.tar")
            name, length = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            need_within(f"bytes of `{name}`", length, os.stat(deb).st_size)
            if name.startswith(f"{part}.tar"):
                break
            file.seek(length + length % 2, os.SEEK_CUR)
        packed, kind = io.BufferedReader(Member(file, length), CHUNK), name.rpartition(".")[2]
        if kind == "tar":
            yield packed
        elif kind == "gz":
            yield io.BufferedReader(gzip.GzipFile(fileobj=packed), CHUNK)
        elif kind in ("xz", "lzma"):
            yield io.BufferedReader(Xz(packed), CHUNK)
        elif kind != "zst":
            raise ValueError(f"its member `{name}` is compressed by `{kind}`, which is not known")
        elif find_zstandard():
            yield Zstandard(packed)
        else:
            option = "--ctrl-tarfile" if part == "control" else "--fsys-tarfile"
            with subprocess.Popen(("dpkg-deb", option, str(deb)), stdout=subprocess.PIPE) as program:
                yield program.stdout


def find_zstandard():
    """Return a module that reads zstd, None where there is none: `dpkg-deb` is there then."""
    for name in ("zstandard", "compression.zstd"):
        with suppress(ImportError):
            return importlib.import_module(name)
    return None


class Zstandard:
    """A stream of zstd whose damage is one of DAMAGE."""

    def __init__(self, packed):
        self.module = find_zstandard()
        self.stream = self.module.open(packed)

    def read(self, size=-1):
        try:
            return self.stream.read(size)
        except self.module.ZstdError as error:
            raise ValueError(str(error)) from error


class Tar:
    """The members of a package's tar, of the kinds that dpkg reads, in order. `read` reads the content of the last one."""

    def __init__(self, stream, most):
        self.stream, self.at, self.most = stream, 0, most
        self.rest = 0  # bytes of content that are not read yet

    def take(self, size):
        """Return exactly so many bytes."""
        pieces = b""
        while len(pieces) < size:
            piece = self.stream.read(size - len(pieces))
            if not piece:
                raise EOFError("it is cut off")
            pieces = pieces + piece if pieces else piece
        self.at += size
        if self.at > self.most:
            raise ValueError(f"it unpacks to more than {self.most} bytes")
        return pieces

    def read(self, size=CHUNK):
        """Return the next bytes, none at the end."""
        piece = self.take(min(self.rest, size))
        self.rest -= len(piece)
        return piece

    def skip(self):
        while self.rest:
            self.read()
        self.take(-self.at % BLOCK)

    def __iter__(self):
        count = length = 0
        longer = {}
        while True:
            self.skip()
            try:
                info = tarfile.TarInfo.frombuf(self.take(BLOCK), "utf-8", "surrogateescape")
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                return
            if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                self.rest = need_within("bytes of a path", info.size, PATH + 1)
                longer[info.type] = self.read().rstrip(b"\0").decode("utf-8", "surrogateescape")
                continue
            if info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE):
                raise ValueError(f"{info.name[:100]!r} is of a kind that dpkg does not read")
            info.name = longer.pop(tarfile.GNUTYPE_LONGNAME, info.name)
            info.linkname = longer.pop(tarfile.GNUTYPE_LONGLINK, info.linkname)
            count, length = count + 1, length + len(info.name) + len(info.linkname)
            need_within("paths in it", count, ENTRIES)
            need_within("bytes of paths", length, NAMES)
            need_within(f"bytes of the path {info.name[:100]!r}", len(info.name), PATH)
            need_within(f"folders in the path {info.name[:100]!r}", info.name.count("/"), DEPTH)
            if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:
                self.rest = need_within(f"bytes of {info.name[:100]!r}", info.size, self.most)
            yield info


def need_within(what, number, limit):
    if not 0 <= number <= limit:
        raise ValueError(f"{what}: {number}, expected at most {limit}")
    return number


@contextmanager
def open_members(deb, part):
    """Yield the members of a package's tar."""
    most = SPARE + (TIMES * os.stat(deb).st_size if part == "data" else 0)
    with open_part(deb, part) as stream:
        yield Tar(stream, most)


def read_control(deb):
    """Return the files of a package's control part: name → content and header."""
    with open_members(deb, "control") as tar:
        return {bare(info.name): (b"".join(iter(tar.read, b"")), info) for info in tar if info.isreg()}


# ----------------------------------------------------------------------------------------------------------------- packages


class Package:
    """A package, and what of it is in the root."""

    def __init__(self, deb):
        self.deb, self.name = deb, os.path.basename(deb)[: -len(".deb")].partition("_")[0]
        self.control = read_control(deb)
        self.about = HeaderParser().parsestr(self.control["control"][0].decode())
        self.listed = []  # all paths, as dpkg lists them
        self.folders = {}  # path → header
        self.files = {}  # and links
        self.written = set()  # those of them that no other package had before
        self.has_apart = False  # a hard link to a file of others

    @property
    def stem(self):
        """The name of its files in dpkg's database."""
        is_multiple = self.about.get("Multi-Arch") == "same"
        return f"{self.name}:{self.about['Architecture']}" if is_multiple else self.name


def bare(name):
    """Return a path without what stands for the root."""
    path = name[2:] if name.startswith("./") else name[1:] if name.startswith("/") else name
    return "" if path == "." else path.rstrip("/")


def merged(name):
    """Return a path below a root with a merged /usr."""
    path = bare(name)
    return f"usr/{path}" if path.partition("/")[0] in MERGED else path


def is_left_out(info, listed):
    if not EXCLUDED.match(listed) or KEPT.match(listed):
        return False
    return not ((info.isdir() or info.issym()) and listed.startswith(ABOVE_KEPT))


def is_plain(path):
    parts = path.split("/")
    return not any(part in ("", ".", "..") or part.startswith(".wh.") or "\0" in part for part in parts)


class Root:
    """A root that packages are unpacked into, by several threads at once. None follows a link of it, which may lead out."""

    def __init__(self, top):
        self.top, self.made = top, {""}
        for name in ("", "usr", *(f"usr/{name}" for name in MERGED)):
            self.make_folder(name)
        for name in MERGED:
            os.symlink(f"usr/{name}", self.place(name))

    def place(self, path):
        return os.path.join(self.top, path)

    def make_folder(self, path):
        os.mkdir(self.place(path))
        os.chmod(self.place(path), 0o755)

    def need_folder(self, path):
        """Make a folder, and those above it. Raises FileExistsError for a file or a link on the way."""
        if path in self.made:
            return
        self.need_folder(path.rpartition("/")[0])
        try:
            self.make_folder(path)
        except FileExistsError:
            if os.path.islink(self.place(path)) or not os.path.isdir(self.place(path)):
                raise
        self.made.add(path)  # nothing replaces it later

    def write_new(self, path, pieces, mode, mtime=None):
        """Write a file that is not there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(self.place(path), flags, 0o600), "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if mtime is not None:
                os.utime(stream.fileno(), (mtime, mtime))

    def add(self, package, info, tar):
        """Write a file or a link. Raises FileExistsError if another package has it, or a link or a file above it."""
        path = merged(info.name)
        self.need_folder(path.rpartition("/")[0])
        if info.issym():
            os.symlink(info.linkname, self.place(path))
            os.utime(self.place(path), (info.mtime, info.mtime), follow_symlinks=False)
        elif info.islnk():
            target = merged(info.linkname)
            if target not in package.written:
                package.has_apart = True
                raise FileExistsError
            os.link(self.place(target), self.place(path))
        else:
            self.write_new(path, iter(tar.read, b""), info.mode & 0o7777, info.mtime)
        package.written.add(path)

    def set_modes(self, packages):
        """Give each folder the mode of its first package, as dpkg does."""
        seen = set()
        for package in packages:
            for path, info in package.folders.items():
                if path not in seen and not os.path.islink(self.place(path)):
                    seen.add(path)
                    self.need_folder(path)
                    os.chmod(self.place(path), info.mode & 0o7777)


def unpack(deb, root=None):
    """Read a package, and write its files into a root if there is one."""
    try:
        return add_members(Package(deb), root)
    except DAMAGE as error:
        if getattr(error, "errno", None):  # of this machine's disk
            raise
        raise PackageError(f"the package `{deb}` cannot be read: {error}") from error


def add_members(package, root):
    with open_members(package.deb, "data") as tar:
        for info in tar:
            listed = info.name[1:] if info.name.startswith(".") else info.name
            listed = listed.rstrip("/") or "/."
            package.listed.append(listed)
            path = merged(info.name)
            if is_left_out(info, listed):
                continue
            is_known = info.isdir() or info.isreg() or info.issym() or info.islnk()
            if (path and not is_plain(path)) or not is_known:
                raise PackageError(
                    f"the package `{package.deb}` has `{info.name}`, which is no file, folder or link below the root"
                )
            if info.isdir():
                if path:
                    package.folders[path] = info
            elif root and info.issym() and listed[1:] in MERGED:  # base-files of newer suites brings them
                os.utime(root.place(listed[1:]), (info.mtime, info.mtime), follow_symlinks=False)
            else:
                package.files[path] = info
                if root:
                    with suppress(FileExistsError):  # of another package; `sharing` says which
                        root.add(package, info, tar)
    return package


def unpack_all(debs, root=None):
    """Return the packages: those whose files are in the root, and those that are left."""
    largest = sorted(debs, key=lambda deb: -os.stat(deb).st_size)
    done, guard = [], threading.Lock()

    def work(deb):
        package = unpack(deb, root)
        with guard:
            done.append(package)
            print(f"{len(done)}/{len(debs)} unpack {package.name}", flush=True)
        return package

    # Decompression, most of the work, runs outside the interpreter's lock.
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 16)) as pool:
        packages = list(pool.map(work, largest))
    # dpkg gives a folder the mode that the first package says.
    packages.sort(key=lambda package: (package.name != "base-files", package.name))
    if root is None:
        return [], packages
    names = sharing(packages)
    left = [package for package in packages if package.name in names]
    for package in left:  # nothing of it stays
        for path in package.written:
            os.unlink(root.place(path))
    return [package for package in packages if package.name not in names], left


def sharing(packages):
    """Return the names of the packages whose paths meet: the same file, or something below a link or a file."""
    owners = {}  # type: dict[str, set[str]]
    for package in packages:
        for path in package.files:
            owners.setdefault(path, set()).add(package.name)
    names = {package.name for package in packages if package.has_apart}
    for sharers in owners.values():
        if len(sharers) > 1:
            names |= sharers
    for package in packages:
        for path in (*package.files, *package.folders):
            while "/" in path:
                path = path.rpartition("/")[0]  # noqa: PLW2901 - the folders above it
                if path in owners:
                    names |= {package.name} | owners[path]
    return names


def owner_rows(packages, *, is_image):
    """Return `files` and `folders` of `owners.json`. An image may have them unmerged, and of other owners."""
    files, folders = {}, {}  # type: dict[str, list[int]], dict[str, list[int]]
    for package in packages:
        for path, info in package.folders.items():
            folders.setdefault(path, [info.uid, info.gid, 0])
        for path, info in package.files.items():
            special = info.mode & SET_IDS if info.isreg() or info.islnk() else 0
            files[path] = [info.uid, info.gid, special]
            if is_image and info.name != path:
                files[bare(info.name)] = files[path]
    if not is_image:
        files.update({name: [0, SHADOW, 0] for name in SECRET})
        folders[USER[0]] = [USER[1], USER[1], 0]
    return {
        kind: [[path, *row] for path, row in sorted(rows.items()) if is_image or any(row)]
        for kind, rows in (("files", files), ("folders", folders))
    }


# --------------------------------------------------------------------------------------------------------- dpkg's database


def write_database(packages, root, architecture):
    """Write dpkg's database: all packages unpacked, none configured. Raises PackageError if a package has a file of it."""
    try:
        for name in ("info", "updates", "triggers", "alternatives", "parts"):
            root.need_folder(f"{DATABASE}/{name}")
        status = "\n".join(stanza(package, root) for package in packages)
        texts = {"status": status, "arch": f"{architecture}\n", "info/format": "1\n"}
        for package in packages:
            need_names(package, package.stem, *package.control)
            texts[f"info/{package.stem}.list"] = "".join(f"{path}\n" for path in package.listed)
            for name, (content, info) in package.control.items():
                if name != "control":
                    path = f"{DATABASE}/info/{package.stem}.{name}"
                    root.write_new(path, (content,), info.mode & 0o7777, info.mtime)
        texts.update(trigger_texts(packages))
        for name, text in texts.items():
            root.write_new(f"{DATABASE}/{name}", (text.encode("utf-8", "surrogateescape"),), 0o644)
    except FileExistsError as error:
        raise PackageError(f"a package has `{error.filename}`, which belongs to dpkg's database") from error


def trigger_texts(packages):
    """Return the files of dpkg's triggers."""
    files, named = [], {}  # type: list[str], dict[str, list[str]]
    for package in packages:
        for kind, *names in control_words(package, "triggers"):
            if kind.startswith("interest") and names:
                waiting = f"{package.name}{'/noawait' if kind.endswith('noawait') else ''}"
                if names[0].startswith("/"):
                    files.append(f"{names[0]} {waiting}\n")
                else:
                    need_names(package, names[0])
                    named.setdefault(names[0], []).append(f"{waiting}\n")
    if files:  # dpkg has no empty `File`
        named["File"] = files
    return {f"triggers/{name}": "".join(lines) for name, lines in {**named, "Unincorp": []}.items()}


def need_names(package, *names):
    """Raise PackageError for a name in a package's control part that is no file name: `..` in it may lead out of the root."""
    for name in names:
        if "/" in name:
            raise PackageError(
                f"the package `{package.deb}` has `{name}` in its control part, where a name has no `/`"
            )


def stanza(package, root):
    first, *rest = package.control["control"][0].decode().strip("\n").split("\n")
    lines = [first, "Status: install ok unpacked", *rest]
    conffiles = [conffile(words, package, root) for words in control_words(package, "conffiles")]
    if conffiles:
        lines += ["Conffiles:", *conffiles]
    return "".join(f"{line}\n" for line in lines)


def conffile(words, package, root):
    *flags, path = words
    place = root.place(merged(path))
    # `remove-on-upgrade`: the package does not bring it.
    if flags or merged(path) not in package.written or os.path.islink(place):
        return " ".join((f" {path} newconffile", *flags))
    with open(place, "rb") as stream:
        return f" {path} {hashlib.md5(stream.read()).hexdigest()}"  # noqa: S324 - dpkg's


def control_words(package, name):
    """Yield the words of each line of a file in a package's control part."""
    content, _ = package.control.get(name, (b"", None))
    for line in content.decode().splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words


def preinst_lines(packages):
    """Yield the shell lines that run the `preinst` of each package as dpkg does. base-passwd is first: it brings the users."""
    running = next((package.about["Version"] for package in packages if package.name == "dpkg"), "")
    for package in sorted(packages, key=lambda package: (package.name != "base-passwd", package.name)):
        if "preinst" in package.control:
            yield (
                f"DPKG_MAINTSCRIPT_PACKAGE={package.name} DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 DPKG_MAINTSCRIPT_NAME=preinst "
                f"DPKG_MAINTSCRIPT_ARCH={package.about['Architecture']} DPKG_RUNNING_VERSION={running} DPKG_ROOT= "
                f"DPKG_ADMINDIR=/{DATABASE} DPKG_MAINTSCRIPT_DEBUG=0 /{DATABASE}/info/{package.stem}.preinst install\n"
            )


# ---------------------------------------------------------------------------------------------------------------- the program


def make_root(folder, compilers, gcc, *, needs_manuals):
    """Make a root with the paths that no package has: the compilers' plain names, and empty folders."""
    root = Root(folder)
    for name in (*FOLDERS, *(MANUALS if needs_manuals else ())):
        root.make_folder(name)
    for name, tool in compilers.items():
        os.symlink(f"../../bin/{tool}-{gcc}", root.place(f"usr/local/bin/{name}"))
    return root


def main():
    spec_file, inputs, out = sys.argv[1:]
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    folder = os.path.join(inputs, "debs")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
    debs = [os.path.join(folder, name) for name in names]
    named = {os.path.basename(deb).partition("_")[0] for deb in debs}
    tools = spec.get("tools", "")
    needs_manuals = not tools and any(os.path.basename(deb).startswith("dash_0.5.10") for deb in debs)
    compilers = {name.format(spec["triplet"]): tool for name, tool in COMPILERS.items()}
    root = (
        None
        if tools
        else make_root(os.path.join(out, "root"), compilers, spec["gcc"], needs_manuals=needs_manuals)
    )
    packages, left = unpack_all(debs, root)
    if root:
        root.need_folder("etc")
        for path in EMPTY:
            if not os.path.lexists(root.place(path)):
                root.write_new(path, (), 0o644)
        root.set_modes(packages)
        write_database(sorted(packages, key=lambda package: package.name), root, spec["architecture"])
    os.mkdir(os.path.join(out, "left"))
    for package in left:
        shutil.copyfile(package.deb, os.path.join(out, "left", os.path.basename(package.deb)))
    settings = {
        "COUNT": str(len(debs)), "COMPILE": " ".join(match[1] for match in map(SEEDED.fullmatch, sorted(named)) if match),
        "GCC": spec["gcc"], "TOOLS": tools, "NAMES": " ".join(f"{name}={tool}" for name, tool in compilers.items()),
        "EXCLUDE": " ".join(EXCLUDE), "KEEP": KEEP, "MANUALS": MANUALS[-1] if needs_manuals else "",
    }  # fmt: skip
    owners = owner_rows((*packages, *left), is_image=bool(tools))
    texts = {
        "settings": "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items()),
        "preinst": "".join(preinst_lines(packages)),
        "owners.json": json.dumps(owners),
        "owners": "".join(
            f"{uid}:{gid} {path}\n" for rows in owners.values() for path, uid, gid, _ in rows if uid or gid
        ),
    }
    for name, text in texts.items():
        with open(os.path.join(out, name), "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)


if __name__ == "__main__":
    try:
        main()
    except (PackageError, *DAMAGE) as error:
        sys.exit(f"distribution.py: {error}")
