"""Read what a torch of a package index defines, and name the release near a locked one that defines the symbols which it lacks."""

import contextlib
import json
import logging
import math
import posixpath
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuilder.compat.tables.torch import CPU, load_torches
from envbuilder.core.cache import Store, read_proved, save_proved, sha256_text
from envbuilder.core.errors import FetchError, SpaceError
from envbuilder.core.models import adapter
from envbuilder.lock.candidates import TORCH
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.sdists import open_index
from envbuilder.lock.resolve.uv_files import target_tags
from envbuilder.sources.http import RequestLimits
from envbuilder.verify.audit.audited_image import read_symbols
from envbuilder.verify.audit.linked import OF_TORCH, TORCH_LIBRARY, TorchSymbols, abi_of, torch_of
from envbuilder.verify.member_ends import open_ends

if TYPE_CHECKING:
    from envbuilder.sources.fetch.source_client import Listed

log = logging.getLogger(__name__)
_LOOKED: Final = 8  # releases that are looked at: 25 MB each
_LIMITS: Final = RequestLimits(window=10.0, answer=30.0, wait=5.0)  # the verdict stands without an answer


def known_symbols(digest: str, store: Store) -> TorchSymbols | None:
    """Return what the wheel of torch with this sha256 defines, None if nobody has read it yet."""
    with contextlib.suppress(OSError, ValueError):
        text = read_proved(_proof(digest, store))
        symbols: TorchSymbols = adapter(TorchSymbols).validate_json(text)
        return symbols
    return None


def keep_symbols(digest: str, symbols: TorchSymbols, store: Store) -> None:
    save_proved(_proof(digest, store), adapter(TorchSymbols).dump_json(symbols).decode())


def _proof(digest: str, store: Store) -> Path:
    return store.proof(sha256_text(json.dumps(["torch symbols", 2, digest])))  # 2 is the form of what is kept


def remote_symbols(opened: AbstractContextManager[ZipFile], title: str, task: Task) -> TorchSymbols:
    """Read what a wheel of torch in an index defines. Raises FetchError, also for one that cannot be read in parts."""
    libraries = {}
    try:
        with task.context.transfer(f"read what {title} defines", None), opened as wheel:
            for info in wheel.infolist():
                folder, name = posixpath.split(info.filename)
                if folder == "torch/lib" and TORCH_LIBRARY.fullmatch(name):
                    libraries[name] = read_symbols(open_ends(wheel, info))
    except ValueError as error:
        raise FetchError(f"{title} of the index cannot be read in parts: {error}") from error
    if not libraries:
        raise FetchError(f"{title} of the index has no library of torch")
    return torch_of(title, libraries)


@dataclass(slots=True)
class OtherTorches:
    """The releases of torch in the package index that a wheel allows, beside the locked one."""

    task: Task
    torch: Artifact  # the locked one
    pins: Sequence[Requirement]  # on torch
    may_ask: bool
    has_failed: bool = False  # the index does not answer, or gives no parts of files
    _read: dict[str, TorchSymbols] = field(default_factory=dict)  # by sha256

    def which(self, names: Sequence[str]) -> str:
        """Say which release defines these symbols of torch and what was looked at, "" if that is not known.

        Of newer and older releases, the next is of the side where more were defined, or of the symbols' C++ ABI, or nearer.
        """
        looked, them = list[str](), "them" if names[1:] else "it"
        abis = {row.version: row.cxx11_abi for row in load_torches().rows}
        try:
            sides = self._sides() if self.may_ask and all(map(OF_TORCH.match, names)) else []
            counts, numbers, abi = [math.inf] * len(sides), [0] * len(sides), abi_of(names)

            def order(at: int) -> tuple[float, bool, int]:
                is_other = abi not in (None, abis.get(sides[at][-1][0].public))
                return -counts[at], is_other, numbers[at]

            while any(sides) and len(looked) < _LOOKED:
                at = min((at for at, side in enumerate(sides) if side), key=order)
                version, wheel = sides[at].pop()
                counts[at] = count = self._count(version, wheel, names)
                numbers[at] += 1
                looked.append(str(version))
                if count == len(names):
                    return f"; torch {version} defines {them} (looked at {', '.join(looked)})"
        except (FetchError, SpaceError, OSError) as error:
            log.info("it is not known which torch defines what %s lacks: %s", self.torch.filename, error)
            self.has_failed = True
        return f"; of torch {', '.join(looked)} none defines {them}" if looked else ""

    def _sides(self) -> "list[list[tuple[Version, Listed]]]":
        """Return the newer releases and the older ones, of each minor version the newest, the nearest last."""
        target, here, fitting = self.task.target, Version(self.torch.version), dict[Version, "Listed"]()
        tags = set(target_tags(self.task.recipe.python, target.distribution.glibc, target.processor))
        for listed in open_index(self.task.context, _LIMITS).files(TORCH):
            with contextlib.suppress(InvalidWheelFilename):
                version, _, its = parse_wheel_filename(listed.filename)[1:]
                is_like = (version.local == CPU) == (here.local == CPU) and version.public != here.public
                is_allowed = all(pin.specifier.contains(version) for pin in self.pins) and not listed.yanked
                if is_like and is_allowed and its & tags and not version.is_prerelease:
                    fitting[version] = listed
        newest = {version.release[:2]: (version, fitting[version]) for version in sorted(fitting)}.values()
        newer = [pair for pair in newest if pair[0] > here]
        return [newer[::-1], [pair for pair in newest if pair[0] < here]]

    def _count(self, version: Version, wheel: "Listed", names: Sequence[str]) -> int:
        """Return how many of the symbols a release defines. The number is kept, since all of a torch's symbols have 18 MB."""
        store, digest = self.task.context.store, wheel.sha256 or sha256_text(wheel.url)
        proof = store.proof(sha256_text(json.dumps(["of these symbols, torch defines", digest, names])))
        with contextlib.suppress(OSError, ValueError):
            return int(read_proved(proof))
        if digest not in self._read:
            title, opened = f"torch {version}", open_index(self.task.context, _LIMITS).open(wheel)
            self._read[digest] = known_symbols(digest, store) or remote_symbols(opened, title, self.task)
        count = len(self._read[digest].given.intersection(names))
        save_proved(proof, str(count))
        return count
