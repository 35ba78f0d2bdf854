"""Install a CUDA toolkit as NVIDIA lays it out, `/usr/local/cuda-X.Y` and `/usr/local/cuda`: `toolkit.py SPEC INPUTS OUT`.

INPUTS has the packages: .debs, wheels, and components of NVIDIA's archive. SPEC says what to take out of which (`rules` below), and has
`site`, the site-packages whose libraries and headers are linked instead of copied, and `machine`, the e_machine of its programs.

`lib64/stubs` has the driver's libraries to link against. No program looks there when it runs.

Packages are not trusted: a member that leaves the tree or a device is an error, and so is a link that a rule takes, unless it is one of
NVIDIA's archive to a file beside it.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager
    from typing import IO, Any

    # Path, content or target of a link, runnable.
    Members = Generator[tuple[PurePosixPath, IO[bytes] | str, bool], None, None]
    ReadDeb = Callable[[str, str], AbstractContextManager[IO[bytes]]]

CHUNK = 1 << 20
# torch's own wheels may have a hash in the name.
LIBRARY = re.compile(r"(?P<name>.+?)(-[0-9a-f]{8})?\.so[.0-9]*")
NOT_HEADERS = ("__init__.py", "__pycache__")
# Folders of wheels whose headers are linked where a recipe has them: `nvidia-nvml-dev-cu12` has nvml.h, which torch does not need.
OPTIONAL = ("*", "nvml_dev")
# Of each library: its header, what stands before a function there, and the error of a stub, as the header numbers it.
DRIVER = {
    "libcuda.so": ("cuda.h", "CUDAAPI", 34),  # CUDA_ERROR_STUB_LIBRARY
    "libnvidia-ml.so": ("nvml.h", "DECLDIR", 12),  # NVML_ERROR_LIBRARY_NOT_FOUND
}
# By e_machine: the machine's code for `return error`.
RETURN = {
    62: lambda error: b"\xb8%b\xc3" % struct.pack("<I", error),  # mov eax, error; ret
    183: lambda error: struct.pack("<II", 0x52800000 | error << 5, 0xD65F03C0),  # mov w0, error; ret
}
PAGE = 1 << 16  # the largest of any of these processors
HEADER, SEGMENT, SECTION, SYMBOL = 64, 56, 64, 24  # bytes of an entry
TEXT = 4  # the number of the section with the code


class ToolkitError(Exception):
    """A package, or a row of the table, that makes no toolkit."""


@contextlib.contextmanager
def read_deb(name: str, package: str) -> Iterator[IO[bytes]]:
    """Give the tar inside a package of Debian."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
        while process.stdout.read(CHUNK):  # the reader stops before the end of the stream
            pass
    if process.returncode:
        raise ToolkitError(f"`{name}`: `dpkg-deb` ended with exit code {process.returncode}")


def install(rules: Any, packages: str, out: str, *, root: str = "") -> None:
    """Install the toolkit and the link to it below `out`, out of the packages in a folder. `root` has the lower layers.

    Files get mode 0755 or 0644, whatever the package says. Raises ToolkitError if a package is broken, a rule takes nothing, two parts
    disagree about a path, or the target of a link is missing.
    """
    site = rules["site"]
    home = f"/usr/local/cuda-{rules['cuda']}"
    row = f"the table's row {rules['cuda']}"
    tree = Tree(out, home)
    for number, part in enumerate(rules["parts"]):
        print(f"{number}/{len(rules['parts'])} {part['name']}", flush=True)
        install_part(part, os.path.join(packages, part["file"]), tree)
    for path, text in rules["files"]:
        tree.add(PurePosixPath(path), io.BytesIO(text.encode()), runnable=False, origin=row)
    for wheel in (*rules["header_wheels"], "nvml_dev"):
        below = f"nvidia/{wheel}/include"
        folders = matches(f"{site}/{below}", root)
        if not folders and wheel not in OPTIONAL:
            raise missing(rules, f"the headers in `{below}`", "none")
        for headers in folders:
            for name in sorted(set(os.listdir(root + headers)).difference(NOT_HEADERS)):
                path = PurePosixPath("include", name)
                tree.link_once(path, f"{headers}/{name}", origin=f"the wheel of `{below}`")
    for path, target in rules["links"]:
        full = target.replace("{site}", site)
        if path.endswith("/*"):
            link_libraries(tree, PurePosixPath(path).parent, matches(full, root), origin=row)
            continue
        if full != target and not os.path.exists(root + full):
            raise missing(rules, f"`{path}` to `{os.path.relpath(full, site)}`", "no such file")
        tree.link(PurePosixPath(path), full, origin=row)
    links_libraries = any(path.endswith("/*") for path, _ in rules["links"])
    for path, target in (*rules["links"], *tree.own_links):
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if "{site}" not in target and (inside.startswith("..") or not os.path.lexists(tree.home / inside)):
            raise ToolkitError(f"the link `{path}` to `{target}` points at nothing in the toolkit")
    if links_libraries and not os.path.lexists(tree.home / "lib64/libcudart.so"):
        raise missing(rules, "CUDA's runtime library (libcudart)", "none")
    write_stubs(tree, root, rules["machine"])
    for folder, _, _ in os.walk(tree.home):
        os.chmod(folder, 0o755)
    os.symlink(os.path.basename(home), f"{out}/usr/local/cuda")


def write_stubs(tree: Tree, root: str, machine: int) -> None:
    """Write the stubs of the driver's libraries that no part brings, with the functions of the headers that are there."""
    for library, (name, mark, error) in DRIVER.items():
        path, header = PurePosixPath("lib64/stubs", library), tree.home / "include" / name
        if os.path.lexists(tree.home / path):
            continue
        if header.is_symlink():  # to a wheel's, in a lower layer
            header = Path(root + os.path.normpath(f"{tree.inside}/include/{os.readlink(header)}"))
        text = header.read_text(encoding="utf-8", errors="replace") if header.is_file() else ""
        content = stub(f"{library}.1", functions(text, mark), machine, error)
        tree.add(path, io.BytesIO(content), runnable=False, origin="envbuilder")


def functions(header: str, mark: str) -> list[str]:
    """Return the functions that a header declares, and those that its macros put in place of a name."""
    declared = re.findall(rf"\b{mark}\s+(\w+)\s*\(", header)
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\w+)[ \t]*$", header, re.MULTILINE)
    return sorted({*declared, *(target for name, target in macros if re.match(rf"{name}_\w", target))})


def stub(soname: str, names: list[str], machine: int, error: int) -> bytes:
    """Return a shared library with these functions, to link against where there is no driver: each returns the error.

    NVIDIA's archive has such libraries, its wheels have the headers alone. ELF: https://refspecs.linuxfoundation.org/elf/gabi4+.
    """
    strings = b"\0" + b"\0".join(name.encode() for name in (soname, *names)) + b"\0"
    starts, at = [], 1
    for name in (soname, *names):
        starts.append(at)
        at += len(name) + 1
    code = RETURN[machine](error)
    count = len(names) + 1
    buckets, chain = [0], [0] * count
    for number in range(1, count):
        chain[number], buckets[0] = buckets[0], number  # one bucket: few ever look a name up here
    table = struct.pack(f"<II{1 + count}I", 1, count, *buckets, *chain)
    places, offset = [], HEADER + 4 * SEGMENT
    for size in (count * SYMBOL, len(strings), len(table), len(code)):
        places.append(offset)
        offset += -(-size // 16) * 16
    symbols, text = bytes(SYMBOL), places[3]
    for start in starts[1:]:
        symbols += struct.pack("<IBBHQQ", start, 0x12, 0, TEXT, text, len(code))  # a global function
    tags = ((14, 1), (4, places[2]), (5, places[1]), (6, places[0]), (10, len(strings)), (11, SYMBOL), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    titles = b"\0.dynsym\0.dynstr\0.hash\0.text\0.dynamic\0.shstrtab\0"
    end = offset + len(dynamic) + len(titles)
    end += -end % 8
    head = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 3, machine, 1, 0, HEADER, end, 0,
        HEADER, SEGMENT, 4, SECTION, 7, 6,
    )  # fmt: skip
    segments = (  # type, flags, offset, address, size, alignment
        (1, 5, 0, 0, offset, PAGE),
        (1, 6, offset, offset + PAGE, len(dynamic), PAGE),
        (2, 6, offset, offset + PAGE, len(dynamic), 8),
        (0x6474E551, 6, 0, 0, 0, 16),  # no stack that runs
    )
    for kind, flags, start, address, size, alignment in segments:
        head += struct.pack("<IIQQQQQQ", kind, flags, start, address, address, size, size, alignment)
    sections = (  # type, flags, address, offset, size, link, info, alignment, entry
        (0,) * 9,
        (11, 2, places[0], places[0], len(symbols), 2, 1, 8, SYMBOL),
        (3, 2, places[1], places[1], len(strings), 0, 0, 1, 0),
        (5, 2, places[2], places[2], len(table), 1, 0, 8, 4),
        (1, 6, text, text, len(code), 0, 0, 16, 0),
        (6, 3, offset + PAGE, offset, len(dynamic), 2, 0, 8, 16),
        (3, 0, 0, offset + len(dynamic), len(titles), 0, 0, 1, 0),
    )
    names_at = [0, *(titles.index(title) for title in titles[1:].split(b"\0")[:-1])]
    body = b"".join(part + bytes(-len(part) % 16) for part in (symbols, strings, table, code))
    content = (head + body + dynamic + titles).ljust(end, b"\0")
    for start, section in zip(names_at, sections):
        content += struct.pack("<IIQQQQIIQQ", start, *section)
    return content


def missing(rules: Any, what: str, has: str) -> ToolkitError:
    return ToolkitError(
        f"CUDA {rules['cuda']} links {what}, and the Python environment has {has}: is this the torch that the toolkit belongs to?"
    )


def matches(path: str, root: str) -> list[str]:
    """Return the paths below the root that match, sorted."""
    return sorted(full[len(root) :] for full in glob.glob(root + path))


def link_libraries(tree: Tree, folder: PurePosixPath, libraries: list[str], *, origin: str) -> None:
    """Link each library by its name, and by the name that a linker looks for: `libX.so.1` and `libX.so`."""
    for library in libraries:
        name = os.path.basename(library)
        plain = LIBRARY.fullmatch(name)
        for link in (name, f"{plain['name']}.so") if plain else (name,):
            tree.link_once(folder / link, library, origin=origin)


class Tree:
    """The toolkit folder as it grows. It remembers where each path comes from, so that two parts cannot disagree unseen."""

    def __init__(self, out: str, inside: str) -> None:
        self.home, self.inside = Path(out + inside), inside  # now, and in the image
        self.home.mkdir(parents=True, exist_ok=True)
        self.origins: dict[PurePosixPath, str] = {}
        self.own_links: list[tuple[str, str]] = []  # of parts: path, target

    def add(self, path: PurePosixPath, content: IO[bytes], *, runnable: bool, origin: str) -> None:
        """Write a file. A second part may bring the same bytes."""
        file = self.home / path
        if path in self.origins:
            if content.read() != file.read_bytes():
                first = self.origins[path]
                raise ToolkitError(f"{first} and {origin} both install `{path}`, with different content")
            return
        self.make_room(path, origin)
        with open(file, "xb") as out:
            shutil.copyfileobj(content, out, CHUNK)
        os.chmod(file, 0o755 if runnable else 0o644)

    def link(self, path: PurePosixPath, target: str, *, origin: str) -> None:
        """Write a link. One to a path outside the toolkit becomes relative."""
        self.make_room(path, origin)
        if target.startswith("/"):
            target = os.path.relpath(target, os.path.join(self.inside, path.parent))
        os.symlink(target, self.home / path)

    def link_once(self, path: PurePosixPath, target: str, *, origin: str) -> None:
        """Write a link, unless something is there already: what a part installs, or an earlier link."""
        if not os.path.lexists(self.home / path):
            self.link(path, target, origin=origin)

    def make_room(self, path: PurePosixPath, origin: str) -> None:
        for place in (path, *path.parents):
            if place in self.origins:
                other = self.origins[place]
                raise ToolkitError(f"{origin} installs `{path}`, but `{place}` is already there from {other}")
        if (self.home / path).is_dir():
            raise ToolkitError(f"{origin} installs `{path}` as a file, but it is a folder already")
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        self.origins[path] = origin


def install_part(part: Any, package: str, tree: Tree, deb: ReadDeb = read_deb) -> None:
    """Take what the rules say out of a package."""
    name, left = part["name"], list(part["take"])
    if part["file"].endswith(".deb"):
        members = deb_members(name, package, deb)
    elif part["file"].endswith(".whl"):
        members = wheel_members(name, package)
    else:
        members = archive_members(name, package)
    is_archive = not part["file"].endswith((".deb", ".whl"))
    with contextlib.closing(members):
        for path, content, runnable in members:
            take = next((take for take in part["take"] if is_taken(take, str(path))), None)
            if take is None:
                continue
            left = [rule for rule in left if rule is not take]
            into = target(take, path)
            if not isinstance(content, str):
                tree.add(into, content, runnable=runnable, origin=f"`{name}`")
            elif is_archive and "/" not in content:
                tree.link(into, content, origin=f"`{name}`")
                tree.own_links.append((str(into), content))
            else:
                rule = f"the rule `{take['source']}` takes the link `{path}`"
                raise ToolkitError(f"`{name}`: {rule}: take what it points to")
    if left:
        raise ToolkitError(
            f"`{name}`: the rule `{left[0]['source']}` matches nothing in the package, whose layout changed: adapt "
            "`envbuilder/compat/tables/toolkits.yaml`"
        )


def is_taken(take: Any, name: str) -> bool:
    words = (take["source"], *take["exclude"])
    is_wanted, *is_unwanted = (re.fullmatch(pattern(word), name, re.DOTALL) for word in words)
    return bool(is_wanted) and not any(is_unwanted)


def pattern(words: str) -> str:
    """Return the expression of a glob. `*` and `?` stay inside one folder; a final `**` is everything below."""
    if words.endswith("/**"):
        return pattern(words[:-3]) + "/.+"
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(sign) or re.escape(sign) for sign in words)


def target(take: Any, member: PurePosixPath) -> PurePosixPath:
    """Return where a member goes. Below a target folder `to/` it keeps its path from the first wildcard on."""
    if not take["target"].endswith("/"):
        return PurePosixPath(take["target"])
    fixed = re.split(r"[*?]", take["source"], maxsplit=1)[0].rpartition("/")[0]
    return PurePosixPath(take["target"]) / member.relative_to(fixed)


def deb_members(name: str, package: str, deb: ReadDeb) -> Members:
    broken = None
    with deb(name, package) as stream:
        try:
            # "r|": one pass over the pipe, so that the unpacked package (GBs) is never on the disk.
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                yield from tar_members(name, archive)
        except tarfile.TarError as error:
            broken = error  # dpkg-deb's own words, raised as the pipe ends, say more
    if broken:
        raise ToolkitError(f"`{name}` is not a readable package: {broken}")


def archive_members(name: str, package: str) -> Members:
    """Read a component of NVIDIA's archive: the content of the one folder that it holds."""
    import lzma  # noqa: PLC0415 - an image's own Python may lack it, and other packages do not need it

    top = None
    try:
        with tarfile.open(package, mode="r|xz") as archive:
            for path, content, runnable in tar_members(name, archive):
                top = top or path.parts[0]
                if path.parts[0] != top or len(path.parts) < 2:
                    raise ToolkitError(
                        f"`{name}` is not a component of NVIDIA's archive: `{path}` is not in `{top}`"
                    )
                yield PurePosixPath(*path.parts[1:]), content, runnable
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise ToolkitError(f"`{name}` is not a readable archive: {error}") from error


def tar_members(name: str, archive: tarfile.TarFile) -> Members:
    for info in archive:
        path = safe(info.name, name)
        if info.isdir():
            continue
        if not (info.isreg() or info.issym() or info.islnk()):
            raise device(name, path)
        content = archive.extractfile(info) if info.isreg() else None
        yield path, content or info.linkname, bool(info.mode & 0o111)


def wheel_members(name: str, package: str) -> Members:
    try:
        with zipfile.ZipFile(package) as archive:
            for info in archive.infolist():
                path = safe(info.filename, name)
                if info.is_dir():
                    continue
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
                    raise device(name, path)
                with archive.open(info) as content:
                    yield path, content.read().decode() if stat.S_ISLNK(mode) else content, bool(mode & 0o111)
    except zipfile.BadZipFile as error:
        raise ToolkitError(f"`{name}` is not a readable wheel: {error}") from error


def device(name: str, path: PurePosixPath) -> ToolkitError:
    return ToolkitError(f"`{name}` holds the device or pipe `{path}`, which no toolkit needs")


def safe(name: str, package: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        what = f"`{package}` holds `{name}`, which would leave its folder"
        raise ToolkitError(f"{what}: do not use this package")
    return path


if __name__ == "__main__":
    os.umask(0o022)
    with open(sys.argv[1], encoding="utf-8") as opened:
        given = json.load(opened)
    try:
        install(given, sys.argv[2], sys.argv[3])
    except ToolkitError as error:
        sys.exit(str(error))
