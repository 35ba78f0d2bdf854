"""Find compiled modules that link torch and need symbols of another torch: the loader refuses them.

Only undefined symbols that are not weak count. As the loader does, every library that is loaded with the module or with torch may
define them. A package may also load its libraries in an order of its own, so all of the environment's are asked for
symbols that are not torch's.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.findings import Finding, Severity
from envbuilder.verify.audit.audited_image import (
    AuditCode,
    AuditedImage,
    Elf,
    Symbols,
    read_symbols,
)
from envbuilder.verify.audit.needed import Loader, by_owner, is_of_environment, of_owner, owner_of

# As `torch/lib` names them; others of that folder, such as libshm, no extension links.
TORCH_LIBRARY: Final = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_OF_TORCH: Final = re.compile(r".*/(site|dist)-packages/torch/lib/[^/]+")
_METADATA: Final = re.compile(r".*/(site|dist)-packages/torch-([^/]+)\.dist-info/METADATA")
_INTERPRETER: Final = re.compile(r".*/bin/python3[\d.]*")
# The namespaces c10, at, torch and caffe2, mangled (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), and torch's C functions,
# some of which are mangled too.
OF_TORCH: Final = re.compile(
    r"_Z(T([VTISC]|[hv]\w*?_)|GV|GR)?N[rVKRO]*(3c10|2at|5torch|6caffe2)|(_Z\d+)?THP[A-Z]|(aoti_)?torch_"
)
_PYTHON: Final = re.compile(r"_?Py[A-Z_]")
_NEW_ABI: Final = re.compile(r"__cxx11|B5cxx11")
# `std::string` of the ABI before gcc 5, among parameters
_OLD_ABI: Final = re.compile(r"[0-9A-Z_]Ss")
_OF_NCCL: Final = re.compile(r"p?nccl[A-Z]\w*")
_LISTED: Final = 3  # symbols that one finding names


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSymbols:
    """The libraries of torch by name, all that they define, and what they need of NCCL."""

    title: str  # for messages: torch 2.8.0
    libraries: frozenset[str]
    given: frozenset[str]
    nccl: frozenset[str] = frozenset()

    @property
    def has_new_abi(self) -> bool:
        return bool(abi_of(self.given))


def check_linked(image: AuditedImage, machine: int | None) -> Iterator[Finding]:
    """Check every module that links torch against the image's own. `machine` is as for `check_needed`."""
    loader = Loader(image, machine)
    if not any(map(links_torch, loader.elves.values())):
        return
    try:
        torch = torch_in(image)
    except ValueError as error:
        where, why = "torch/lib", f"no symbol is compared with it: {error}"
        yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=where, message=why)
        return
    if torch is None:
        return
    linker = Linker(loader, torch, is_whole=True)
    for owner, files, is_error in by_owner(loader, linker.lacks):
        names = sorted({name for names in files.values() for name in names})
        hint = f"{'' if is_error else 'if you use that part, '}take a build of `{owner}` for {torch.title}"
        yield of_owner(AuditCode.UNDEFINED, owner, files, linker.describe(names), hint, is_error=is_error)
    yield from linker.unreadable()


def links_torch(elf: Elf) -> bool:
    """Return whether a file outside torch itself links one of torch's libraries."""
    return owner_of(elf.path) != "torch" and any(TORCH_LIBRARY.fullmatch(name) for name in elf.needed)


def torch_in(image: AuditedImage) -> TorchSymbols | None:
    """Return what the torch of an image defines, None without one. Raises ValueError for a damaged library."""
    elves = [elf for elf in image.elves if _OF_TORCH.fullmatch(elf.path)]
    if not any(TORCH_LIBRARY.fullmatch(elf.name) for elf in elves):
        return None
    libraries = dict[str, Symbols]()
    for elf in elves:
        with image.tree.open(elf.path) as stream:
            libraries[elf.name] = read_symbols(stream)
    title = next(
        (f"torch {match[2]}" for path in image.paths if (match := _METADATA.fullmatch(path))), "its torch"
    )
    return torch_of(title, libraries)


def torch_of(title: str, libraries: Mapping[str, Symbols]) -> TorchSymbols:
    """Return what torch's libraries define together."""
    given = frozenset(name for symbols in libraries.values() for name in symbols.given)
    needed = {name for symbols in libraries.values() for name in symbols.needed if _OF_NCCL.fullmatch(name)}
    return TorchSymbols(
        title=title, libraries=frozenset(libraries), given=given, nccl=frozenset(needed - given)
    )


def abi_of(names: Iterable[str]) -> bool | None:
    """Return whether names of torch's symbols are of the new C++ ABI, None if they are the same in both."""
    of_torch = [name for name in names if OF_TORCH.match(name)]
    is_new = any(map(_NEW_ABI.search, of_torch))
    return is_new if is_new or any(map(_OLD_ABI.search, of_torch)) else None


class Linker:
    """Links modules with torch. Only of a whole image it is known what nothing defines; otherwise torch's symbols are checked alone."""

    def __init__(self, loader: Loader, torch: TorchSymbols, *, is_whole: bool) -> None:
        self._loader, self._torch, self._is_whole = loader, torch, is_whole
        self.lacks = functools.cache(self._lacks)
        self._unreadable: dict[str, str] = {}
        self._given = functools.cache(lambda elf: self._read(elf).given)

    def _read(self, elf: Elf) -> Symbols:
        try:
            with self._loader.image.tree.open(elf.path) as stream:
                return read_symbols(stream)
        except ValueError as error:
            self._unreadable[elf.path] = str(error)
            return Symbols()

    def unreadable(self) -> Iterator[Finding]:
        """Yield a warning for each file whose symbols could not be read."""
        for path, why in self._unreadable.items():
            yield Finding(code=AuditCode.UNREADABLE, severity=Severity.WARNING, where=f"/{path}", message=why)

    def _lacks(self, elf: Elf) -> tuple[str, ...]:
        """Return the first that the loader misses: libraries of torch, otherwise symbols."""
        loader, torch = self._loader, self._torch
        if not links_torch(elf) or (self._is_whole and loader.missing(elf)):
            return ()  # `check_needed` says which library is missing
        linked = [name for name in elf.needed if TORCH_LIBRARY.fullmatch(name)]
        if absent := [name for name in linked if name not in torch.libraries and not loader.taken(elf, name)]:
            return tuple(absent)
        undefined = {name for name in self._read(elf).needed - torch.given if not _PYTHON.match(name)}
        for library in self._beside(elf):
            if undefined:
                undefined -= self._given(library)
        of_torch = {name for name in undefined if OF_TORCH.match(name)}
        others = undefined - of_torch
        if others and not (self._is_whole and self._is_closed(elf)):
            others.clear()
        for library in (other for other in loader.elves.values() if others and is_of_environment(other.path)):
            others -= self._given(library)
        return tuple(sorted(of_torch | others))

    def _beside(self, elf: Elf) -> Iterator[Elf]:
        """Yield what is loaded with a module or with torch, the interpreter, and the other libraries of the module's package."""
        loader = self._loader
        torch = (other for other in loader.elves.values() if _OF_TORCH.fullmatch(other.path))
        todo = loader.below(elf, *torch)
        for path in (queue := list(todo)):
            yield todo[path]
            paths = (
                loader.image.real(loader.system[name]) for name in todo[path].needed if name in loader.system
            )
            new = {real: loader.elves[real] for real in paths if real in loader.elves and real not in todo}
            todo |= new
            queue += new
        for other in loader.elves.values():
            if _INTERPRETER.fullmatch(other.path) or owner_of(other.path) == owner_of(elf.path):
                yield other

    def _is_closed(self, elf: Elf) -> bool:
        """Return whether every library below a module is in the image. The driver's are not."""
        loader = self._loader
        names = {name for user in loader.below(elf).values() for name in user.needed}
        return all(name in loader.system or name in loader.environment for name in names)

    def describe(self, lacking: Sequence[str]) -> str:
        """Say what is missing, and the reason if the names show it."""
        torch, abi, why = self._torch, abi_of(lacking), ""
        if libraries := [name for name in lacking if TORCH_LIBRARY.fullmatch(name)]:
            return f"it needs {listed(libraries)}, and {torch.title} does not have it"
        if abi not in (None, torch.has_new_abi):
            versions = [row.version for row in load_torches().rows if row.cxx11_abi == abi]
            nearest = (
                f"the first such torch is {versions[0]}" if abi else f"the last such torch is {versions[-1]}"
            )
            why = f"; it is compiled with _GLIBCXX_USE_CXX11_ABI={abi:d}, and torch with {torch.has_new_abi:d} ({nearest})"
        return f"{torch.title} does not define {listed(lacking)}{why}"


def listed(names: Sequence[str]) -> str:
    """Name the first few, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"`{name}`" for name in names[:_LISTED]) + more
