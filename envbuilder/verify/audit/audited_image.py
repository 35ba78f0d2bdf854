"""The image that the audits read: the paths of its tree, and what the loader reads of each program and library."""

import contextlib
import io
import posixpath
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, Protocol, TypeVar, cast

from elftools.common.exceptions import ELFError

from envbuilder.core.budget import need_within
from envbuilder.core.findings import CodeEnum
from envbuilder.layers.entry import Entry, Kind, follow
from envbuilder.plan.model import SEEN_BY_CONDA
from envbuilder.recipe.channels import CONDA_PREFIX

if TYPE_CHECKING:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection
    from elftools.elf.sections import Section

MAGIC: Final = b"\x7fELF"
NAMED: Final = 3  # files that one finding names
_MOST_TEXT: Final = 4 << 20  # bytes
_MOST_NAMES: Final = 256 << 20  # bytes of all names of symbols in one file; those of torch_xla have 86 MB
_MOST_NAME: Final = 1 << 20  # bytes of one
_WEAK: Final = 2  # the binding of a symbol, elf(5); 0 is local
_MOST: Final = 10_000  # entries of an ELF file's lists; a damaged file may claim 2**32

Item = TypeVar("Item")


class AuditCode(CodeEnum):
    """The findings of the audits."""

    NO_CODE = "EB711", "a library of torch or an extension holds no code that one of the recipe's GPUs runs"
    ONLY_PTX = "EB712", "such a GPU runs it only after compiling PTX at the first start"
    SYMBOLS = "EB713", "a library needs a symbol version that the image's libraries do not have"
    OLDEST_HOST = "EB714", "a file needs a newer glibc than the oldest host has"
    COPIES = "EB715", "two copies of a library of CUDA, cuDNN or NCCL"
    WRITABLE = "EB716", "everybody can write it"
    SET_ID = "EB717", "it runs with another user's rights"
    SECRET = "EB718", "a token, a password or a private key"
    AUTHORITY = "EB719", "a certificate authority that no package brought, as a proxy's"
    RUNPATH = "EB720", "a library is looked for in a folder outside"
    UNREADABLE = "EB721", "an ELF file that cannot be read"
    RDMA = "EB722", "NCCL is there, and what it needs for InfiniBand is not"
    FOREIGN = "EB723", "a program or library for another processor than the image's"
    PAGES = "EB724", "a kernel with large memory pages cannot load it"
    NEEDED = "EB725", "a program or library needs a library that nothing in the image brings"
    UNDEFINED = "EB726", "a library that links torch needs a symbol that nothing defines"
    OPENMP = "EB727", "one Python may load two OpenMP libraries that do not go together"


class AuditedTree(Protocol):
    """A root file system whose files can be read."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    def open(self, path: str) -> IO[bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """The processor of one ELF file, and its dynamic section."""

    entry: Entry
    machine: int  # e_machine
    alignment: int  # of its segments that are loaded, the smallest in bytes; 0 without one
    soname: str = ""
    needed: tuple[str, ...] = ()  # sonames
    runpaths: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()  # symbol versions, each with the soname that has it
    gives: tuple[str, ...] = ()  # symbol versions

    @property
    def path(self) -> str:
        return self.entry.path

    @property
    def name(self) -> str:
        """Return the name by which the loader finds it."""
        return self.soname or posixpath.basename(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The names in an ELF file's table for the loader, without their versions."""

    needed: frozenset[str] = frozenset()  # without weak ones, which may stay undefined
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTexts:
    """The texts of an image outside its tree."""

    environment: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()  # of its config, such as history and labels: place, text
    hidden: tuple[tuple[str, str], ...] = ()  # secrets in files that a later layer removed: path, what


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedImage:
    """A tree, its ELF files and the texts around it."""

    tree: AuditedTree
    paths: Mapping[str, Entry]
    elves: tuple[Elf, ...]
    unreadable: Mapping[str, str]  # path → why
    outside: ImageTexts

    def read(self, path: str) -> bytes:
        """Return the first 4 MiB of a file. Texts that people and packages write are not longer."""
        with self.tree.open(path) as stream:
            return stream.read(_MOST_TEXT)

    def real(self, path: str) -> str | None:
        return follow(self.paths, path)


def is_of_conda(path: str) -> bool:
    """Return whether a file is of conda's packages. Its libraries serve these packages alone, unless conda's Python sees others."""
    return path.startswith(f"{CONDA_PREFIX[1:]}/")


def seen_by_conda(image: AuditedImage) -> bool:
    """Return whether conda's Python sees the environment's packages, so that one process loads libraries of both."""
    return any(is_of_conda(path) and path.endswith(f"/{SEEN_BY_CONDA}") for path in image.paths)


def read_audited(
    tree: AuditedTree, *, outside: ImageTexts, is_read: Callable[[str], bool] = lambda _: True
) -> AuditedImage:
    """Read the ELF files among the paths that `is_read` chooses."""
    elves: list[Elf] = []
    unreadable: dict[str, str] = {}
    for entry in tree.entries:
        if _may_be_elf(entry) and is_read(entry.path):
            with tree.open(entry.path) as stream:
                if stream.read(len(MAGIC)) != MAGIC:
                    continue
                try:
                    elves.append(read_elf(entry, stream))
                except ValueError as error:
                    unreadable[entry.path] = str(error)
    return AuditedImage(
        tree=tree,
        paths={entry.path: entry for entry in tree.entries},
        elves=tuple(elves),
        unreadable=unreadable,
        outside=outside,
    )


def read_elf(entry: Entry, stream: IO[bytes]) -> Elf:
    """Read the dynamic section; raises ValueError when the file is damaged."""
    with _damaged():
        elf = open_elf(stream)
        if elf.num_sections() > _MOST:
            raise ValueError(f"it is damaged: {elf.num_sections()} sections")
        dynamic = cast("DynamicSection | None", _section(elf, ".dynamic", "SHT_DYNAMIC"))
        texts: dict[str, list[str]] = {"soname": [], "needed": [], "runpath": [], "rpath": []}
        for tag in _bounded(dynamic.iter_tags()) if dynamic else ():
            kind = str(tag.entry.d_tag).removeprefix("DT_").lower()
            if kind in texts:
                texts[kind].append(str(getattr(tag, kind)))
        folders = texts["runpath"] or texts["rpath"]  # as the loader chooses
        if elf.num_segments() > _MOST:
            raise ValueError(f"it is damaged: {elf.num_segments()} segments")
        headers = (segment.header for segment in elf.iter_segments())
        alignments = [int(header.p_align) for header in headers if header.p_type == "PT_LOAD"]
        return Elf(
            entry=entry,
            machine=machine_of(elf),
            alignment=min(alignments, default=0),
            soname=texts["soname"][0] if texts["soname"] else "",
            needed=tuple(texts["needed"]),
            runpaths=tuple(folders[0].split(":")) if folders else (),
            needs=tuple(dict.fromkeys(_bounded(_needs(elf)))),
            gives=tuple(dict.fromkeys(_bounded(_gives(elf)))),
        )


def read_symbols(stream: IO[bytes]) -> Symbols:
    """Read the symbols of an ELF file of 64 bits. Raises ValueError when it is damaged."""
    with _damaged():
        elf = open_elf(stream)
        section = _section(elf, ".dynsym", "SHT_DYNSYM")
        if section is None or elf.elfclass != 64:
            return Symbols()
        # pyelftools takes a minute for torch's 100,000 symbols.
        entry = struct.Struct(f"{'<' if elf.little_endian else '>'}IBxH16x")
        table, names = _content(stream, section), _content(stream, elf.get_section(section["sh_link"]))
        needed, given = set[str](), set[str]()
        left = _MOST_NAMES
        for place, info, index in entry.iter_unpack(table[: len(table) // entry.size * entry.size]):
            binding = info >> 4
            if place and binding and (index or binding != _WEAK):
                end = names.index(b"\0", place, place + _MOST_NAME)
                left -= end - place
                if left < 0:
                    raise ValueError("it is damaged: names of symbols without an end")
                (given if index else needed).add(names[place:end].decode("utf-8", "replace"))
        return Symbols(needed=frozenset(needed), given=frozenset(given))


def _content(stream: IO[bytes], section: "Section") -> bytes:
    """Return a table of symbols or their names, beside the limits of other tables."""
    need_within("bytes of its symbols", size := int(section["sh_size"]), _MOST_NAMES)
    stream.seek(int(section["sh_offset"]))
    return stream.read(size)


@contextlib.contextmanager
def _damaged() -> Iterator[None]:
    """Raise ValueError for what pyelftools and this module raise at a damaged file."""
    try:
        yield
    except (
        ELFError, OSError, UnicodeDecodeError, LookupError, AttributeError, TypeError, AssertionError, ArithmeticError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"it is damaged: {type(error).__name__} {error}") from error


def _section(elf: "ELFFile", name: str, kind: str) -> "Section | None":
    """Return the section of this name if it is of this kind, by which pyelftools chooses its class."""
    section = elf.get_section_by_name(name)
    return section if section is not None and section["sh_type"] == kind else None


def _needs(elf: "ELFFile") -> Iterator[tuple[str, str]]:
    if section := cast("GNUVerNeedSection | None", _section(elf, ".gnu.version_r", "SHT_GNU_verneed")):
        for library, versions in _bounded(section.iter_versions()):
            yield from ((str(library.name), str(version.name)) for version in _bounded(versions))


def _gives(elf: "ELFFile") -> Iterator[str]:
    if section := cast("GNUVerDefSection | None", _section(elf, ".gnu.version_d", "SHT_GNU_verdef")):
        for _, names in _bounded(section.iter_versions()):
            yield str(next(iter(names)).name)  # further names are the versions that it follows


def _bounded(items: Iterable[Item]) -> Iterator[Item]:
    for number, item in enumerate(items):
        if number >= _MOST:
            raise ValueError("it is damaged: a list without an end")
        yield item


def _may_be_elf(entry: Entry) -> bool:
    """Choose files by mode and name: opening each of 30 000 files would take longer than all audits."""
    return (
        entry.kind is Kind.FILE
        and entry.size > 64
        and (".so" in posixpath.basename(entry.path) or bool(entry.mode & 0o111))
    )


def some(paths: Sequence[str]) -> str:
    """Name the first few paths, and how many more there are."""
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(f"/{path}" for path in paths[:NAMED]) + more


def same_in(paths: Sequence[str]) -> str:
    """Name the further files of a finding, whose place is the first one."""
    others = paths[1:]
    if not others:
        return ""
    named = ", ".join(f"/{path}" for path in others[:NAMED])
    return f"; the same in {len(others)} more: {named}{', …' if len(others) > NAMED else ''}"


if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

# What the tables of one file may take. Those of torch's largest library have 2 MB and 60,000 reads.
_MOST_BYTES: Final = 64 << 20
_MOST_READS: Final = 1_000_000
_MACHINE: Final = 18  # where e_machine begins, elf(5)


def open_elf(stream: IO[bytes]) -> "ELFFile":
    """Return the file; raises ELFError (`elftools.common.exceptions`) for one that is damaged, or no ELF file.

    Reading its tables raises ValueError where a name has no end, or tables lead to each other without end.
    """
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - it takes 0.05 s, and `report --help` reads no library

    return ELFFile(cast("IO[bytes]", _Metered(stream)))


class _Metered(io.RawIOBase):
    """A file whose readers may read a bounded amount."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._bytes = self._reads = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > _MOST_BYTES:
            raise ValueError(f"a table of {size} bytes")
        data = self._stream.read(size)
        self._bytes += len(data)
        self._reads += 1
        if self._bytes > _MOST_BYTES or self._reads > _MOST_READS:
            need_within("bytes of its tables", self._bytes, _MOST_BYTES)
            need_within("reads of its tables", self._reads, _MOST_READS)
        return data


def machine_of(elf: "ELFFile") -> int:
    """Return the number of the file's processor, e_machine, also where pyelftools has a name for it."""
    elf.stream.seek(_MACHINE)
    return int.from_bytes(elf.stream.read(2), "little" if elf.little_endian else "big")
