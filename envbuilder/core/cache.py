"""The cache on disk: the only module that knows its folders.

    artifacts/<2>/<sha256>     downloaded files and sources, named by what they hold
    partial/<sha256>           interrupted downloads, which the next one resumes
    layers/<key>/              finished layers: tar, manifest, facts; a pulled one has its blob's digest for a key
    tools/<key>/               envbuilder's own programs, and those that build for another processor
    extensions/<key>/          compiled extensions, and captured calls of projects
    build-directories/<key>/   those of extensions, kept for the next compile
    proofs/<key>               what `verify` found in which bytes
    pushed.json                the blobs that each repository of a registry has
    apt/, uv/                  the indexes of the resolvers
    bases/<key>                facts about base images
    inventories/<kind>/<key>   what an entry holds, which is compared before it is used
    work/                      temporary folders; those of killed processes are removed
    locks/                     flock files

A file gets its final name by a rename, so a killed run or a full disk leaves no partial file under it. It is on the
disk before the rename, so a power cut leaves none either. An entry without an inventory counts as absent.
"""

import contextlib
import errno
import glob
import hashlib
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NewType

from envbuilder.core.errors import FULL, UsageError, full_error
from envbuilder.core.inventory import Inventory, parse_inventory
from envbuilder.core.plain import pasted
from envbuilder.core.private import lasting_path, open_folder, open_to_all, refused
from envbuilder.core.system import NO_LINKS, boot_identity, is_ours, lock_file, sync_file_system

log = logging.getLogger(__name__)

Sha256 = NewType("Sha256", str)  # 64 lower-case hexadecimal digits


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the cache: ENVBUILDER_CACHE, otherwise `envbuilder` among the user's caches."""
    caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(environment.get("ENVBUILDER_CACHE") or Path(caches, "envbuilder"))


def cache_limit(environment: Mapping[str, str], available: float) -> float:
    """Return how many of `available` bytes the cache may keep; raises UsageError. `available` is what it has or is free.

    Unless ENVBUILDER_CACHE_LIMIT says it, it is a quarter, at most 50 GB: a disk that others fill gets its space back.
    """
    text = environment.get(LIMIT, "")
    if not text:
        return min(available / 4, _MOST)
    if text == "none":
        return math.inf
    if match := re.fullmatch(r"(\d+(?:\.\d+)?) ?([MGT])B?", text):
        return float(match[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[match[2]]
    raise UsageError(f"{LIMIT} is `{text}`", hint="write a size, `20GB`, or `none`")


def parse_sha256(text: str) -> Sha256:
    """Return the digest; raises ValueError unless it is 64 lower-case hexadecimal digits."""
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"expected 64 hexadecimal digits, found {text!r}")
    return Sha256(text)


def sha256_bytes(content: bytes) -> Sha256:
    return Sha256(hashlib.sha256(content).hexdigest())


def sha256_text(text: str) -> Sha256:
    return sha256_bytes(text.encode())


def sha256_file(path: Path) -> Sha256:
    with path.open("rb") as stream:
        return Sha256(hashlib.file_digest(stream, "sha256").hexdigest())


# The folders with an entry for each key, and all that are kept between runs.
KEYED: Final = ("artifacts", "partial", "layers", "tools", "extensions", "build-directories")
KINDS: Final = (*KEYED, "apt", "uv", "bases", "proofs")
KEPT: Final = ("layers", "extensions")  # kept by `cache --gc` unless named: slow to make, and small
# What goes by itself, in this order: made again from sources, and by a download.
REMADE: Final = ("build-directories", "partial")
INVENTORIES: Final = "inventories"
WORK: Final = "work"  # temporary folders of running and killed commands
LIMIT: Final = "ENVBUILDER_CACHE_LIMIT"
_MOST: Final = 50 * 10**9  # bytes, if nothing else is said
_DEEP: Final = 64  # folders in each other, above which `remove_tree` moves them up
_FEW: Final = 64  # paths of a folder that are synced one by one
_TRIES: Final = 3  # to make a folder that another process removes or exchanges at once


class Store:
    """A cache folder of one user, created with mode 0700. A folder that others can write is rejected."""

    def __init__(self, root: Path, *, create: bool = True) -> None:
        """`create=False` is for commands that only read."""
        self.root = root
        self._may_write = create
        self._named: set[str] = set()  # damaged entries that a message has named
        self._whole: dict[Sha256, int] = {}  # artifacts that were hashed, and their times of change
        if not create:
            return
        with space_errors(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)  # whatever the umask; parents follow it
        status = root.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(
                f"the cache folder `{root}` is a link",
                hint=f"name the folder: ENVBUILDER_CACHE={pasted(root.resolve())}",
            )
        if not is_ours(status):
            raise UsageError(
                f"the cache folder `{root}` must be a folder of yours that nobody else can write",
                hint="point ENVBUILDER_CACHE at a folder of yours, or `chmod go-w` this one if it is yours",
            )
        for name in (*KINDS, INVENTORIES, WORK, "locks"):
            with space_errors(root):
                (root / name).mkdir(mode=0o700, exist_ok=True)

    def artifact(self, digest: Sha256) -> Path:
        return self.root / "artifacts" / digest[:2] / digest

    def partial(self, digest: Sha256) -> Path:
        """Return the path of a partial download. Hold the lock `fetch` while writing it."""
        return self.root / "partial" / digest

    def layer(self, key: Sha256) -> Path:
        return self.root / "layers" / key

    def layers(self) -> tuple[Path, ...]:
        """Return the folders of all layers, also unfinished or damaged ones."""
        return tuple((self.root / "layers").glob("*"))

    def tools(self, key: Sha256) -> Path:
        return self.root / "tools" / key

    def extension(self, key: Sha256) -> Path:
        return self.root / "extensions" / key

    def resolver(self, name: str) -> Path:
        """Return the folder of a resolver's indexes: `apt` or `uv`."""
        return self.root / name

    def pushed(self) -> Path:
        """Return the file that records which repository has which blob."""
        return self.root / "pushed.json"

    def base(self, key: Sha256) -> Path:
        return self.root / "bases" / key

    def proof(self, key: Sha256) -> Path:
        return self.root / "proofs" / key

    @contextlib.contextmanager
    def build_directory(
        self, key: Sha256, mend: Callable[[Path, float], bool] = lambda _path, _began: True
    ) -> Iterator[Path]:
        """Yield the build directory of an extension, which later builds use too. Hold its lock while using it.

        It is emptied unless it is as the last build left it. A killed build leaves no inventory: what it compiled is
        used until the machine starts anew, because only a power cut loses what programs have written. After a build that was
        killed, stopped or failed, `mend` gets the time at which that build began, removes what it may have left unfinished, and
        returns whether the rest is of use.
        """
        path = self.root / "build-directories" / key
        inventory = self._inventory(path)
        running = inventory.with_name(f"{key}.running")
        was_killed = running.exists() and running.read_text(encoding="ascii") == boot_identity()
        is_useful = path.exists() and (
            mend(path, running.stat().st_mtime) if was_killed else self.holds(path, whole=True)
        )
        if path.exists() and not is_useful:
            remove_tree(path)
        path.mkdir(mode=0o700, exist_ok=True)
        os.utime(path)  # for `clear`
        save_text(running, boot_identity())
        inventory.unlink(missing_ok=True)
        try:
            yield path
        finally:
            # A project may leave what cannot be read, and is then built anew.
            with contextlib.suppress(OSError):
                self.note(path)
        running.unlink(missing_ok=True)

    def has_artifact(self, digest: Sha256) -> bool:
        """Return whether the file with this digest is there. One with another content is named and removed."""
        path = self.artifact(digest)
        try:
            changed = path.stat().st_ctime_ns
            if self._whole.get(digest) == changed:
                return True
            if sha256_file(path) == digest:
                self._whole[digest] = changed
                return True
        except FileNotFoundError:
            return False
        self.report(path, "its sha256 is another")
        if self._may_write:
            path.unlink(missing_ok=True)
        return False

    def add_artifact(self, digest: Sha256, path: Path) -> Path:
        """Copy a file into the store, in place of a damaged one. The caller has verified its digest."""
        final = self.artifact(digest)
        if self.has_artifact(digest):
            return final
        final.parent.mkdir(mode=0o700, exist_ok=True)
        with self.workspace() as work:
            copy = work / digest
            shutil.copyfile(path, copy)
            open_to_all(str(copy))  # a sandbox of root's has another id
            commit_path(copy, final)
        return final

    def add_content(self, content: bytes) -> Sha256:
        """Put bytes into the store. Returns their sha256."""
        digest = sha256_bytes(content)
        with self.workspace() as work:
            (work / "content").write_bytes(content)
            self.add_artifact(digest, work / "content")
        return digest

    def commit(self, folder: Path, final: Path, contents: Mapping[str, str] | None = None) -> None:
        """Make a finished folder the entry `final`: the one way of a folder into the cache. Replaces an earlier entry.

        `contents` are the digests of files that are known, by path below the folder; None hashes every file. The
        folder is on the disk and has its inventory before it gets its name.
        """
        save_bytes(self._inventory(final), Inventory.take(folder, contents).to_bytes())
        if final.is_symlink() or final.exists():  # `commit_path` would keep it
            remove_tree(final)
        commit_path(folder, final)

    def note(self, entry: Path, *, leave_out: Collection[str] = ()) -> None:
        """Note what an entry holds that programs write in its place, once they have ended. See `holds`.

        It need not be on the disk: what a power cut takes from it has another digest.
        """
        save_bytes(self._inventory(entry), Inventory.take(entry, leave_out=leave_out).to_bytes())

    def holds(self, entry: Path, *, whole: bool = False, leave_out: Collection[str] = ()) -> bool:
        """Return whether an entry is there as it was committed. A damaged one is named in a warning.

        Files are hashed where a program may have written to them since; `whole` hashes every file, which also finds
        what the disk changed by itself. `leave_out` are names in the entry that are not compared.
        """
        inventory = self._load_inventory(entry)
        if inventory is None or entry.is_symlink():
            return False
        try:
            now = inventory.compare(entry, whole=whole, leave_out=leave_out)
        except FileNotFoundError:
            if not entry.exists():
                return False
            now = "it changes while it is read"
        except OSError as error:
            now = f"`{error.filename}` cannot be read: {error.strerror}"
        if isinstance(now, str):
            self.report(entry, now)
            return False
        if now != inventory and self._may_write:
            save_bytes(self._inventory(entry), now.to_bytes())
        return True

    def _inventory(self, entry: Path) -> Path:
        return self.root / INVENTORIES / entry.relative_to(self.root)

    def _load_inventory(self, entry: Path) -> Inventory | None:
        try:
            return parse_inventory(self._inventory(entry).read_bytes())
        except FileNotFoundError:  # of an envbuilder that wrote none
            return None
        except (OSError, ValueError):
            self.report(entry, "its inventory cannot be read")
            return None

    def report(self, entry: Path, why: str) -> None:
        """Say once which entry is damaged. The caller makes it again."""
        name = entry.relative_to(self.root).as_posix()
        if name not in self._named:
            self._named.add(name)
            log.warning("cache: %s is damaged: %s; made again", name, why)

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """Yield a private temporary folder in the store. It is removed at the end, or by `sweep` after a kill."""
        with space_errors(self.root), contextlib.ExitStack() as stack:
            with self.lock("work"):  # no sweep sees it before it is locked
                path = Path(tempfile.mkdtemp(prefix="work-", dir=self.root / WORK))
                stack.enter_context(_locked(self._holder(path)))
            try:
                with space_errors(self.root):  # once more: what is removed below counts as used
                    yield path
            finally:
                remove_tree(path)
                self._holder(path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def renewed(self, folder: Path, contents: Mapping[str, str] | None = None) -> Iterator[Path]:
        """Yield a new folder in a workspace. At the end, it replaces `folder`, by `commit` with these digests."""
        with self.workspace() as work:
            out = work / "entry"
            out.mkdir()
            yield out
            self.commit(out, folder, contents)

    def _holder(self, work: Path) -> Path:
        """Return the lock file of a temporary folder. On NFS, a lock on the folder itself holds on one machine only."""
        return self.root / "locks" / work.name

    def sweep(self) -> None:
        """Remove temporary folders that no living process holds."""
        with self.lock("work"):
            for path in (self.root / WORK).iterdir():
                with contextlib.suppress(BlockingIOError), _locked(self._holder(path), wait=False):
                    with contextlib.suppress(FileNotFoundError):  # its owner has just removed it
                        remove_tree(path)
                    self._holder(path).unlink(missing_ok=True)

    def leftovers(self) -> tuple[Path, ...]:
        """Return the temporary folders that no living process holds. Writes nothing."""
        return tuple(path for path in sorted((self.root / WORK).iterdir()) if not self._is_held(path))

    def _is_held(self, work: Path) -> bool:
        try:
            with self._holder(work).open("rb+") as stream:
                lock_file(stream, wait=False)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return not work.exists()  # its owner has just removed both
        return False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Block `clear` while a command uses the store. Several commands may use it at once."""
        with _locked(self.root / "locks" / "use", shared=True):
            yield

    def _keeper(self, entry: Path) -> Path:
        """Return the lock file that whoever uses this entry of `REMADE` holds."""
        kind = entry.parent.name
        return self.root / "locks" / ("fetch" if kind == "partial" else f"{kind}-{entry.name}")

    def removable(self) -> Iterator[tuple[Path, int]]:
        """Yield each entry that may go by itself and that nobody uses, and its bytes on disk, the longest unused first.

        It is locked until the next is asked for.
        """
        for kind in REMADE:
            for entry in sorted((self.root / kind).glob("*"), key=_last_use):
                with contextlib.suppress(BlockingIOError), _locked(self._keeper(entry), wait=False):
                    if entry.exists():  # a download may have ended
                        yield entry, _disk_usage(entry, set())

    def collect(self, excess: Callable[[], float]) -> dict[str, int]:
        """Remove entries of `removable` until so many bytes are gone. Returns the removed bytes by kind.

        `excess` is called while no other process removes any, so two do not remove for the same bytes.
        """
        removed: dict[str, int] = {}
        with self.lock("collect"):
            left, entries = excess(), self.removable()
            while left > 0 and (entry_and_size := next(entries, None)):
                entry, size = entry_and_size
                self._remove(entry)
                removed[entry.parent.name] = removed.get(entry.parent.name, 0) + size
                left -= size
        return removed

    def _remove(self, entry: Path) -> None:
        """Remove an entry. Its inventory goes first, so that a kill leaves none that counts as there."""
        for name in (entry.name, f"{entry.name}.running"):
            self._inventory(entry).with_name(name).unlink(missing_ok=True)
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:  # uv has files beside its folders
            entry.unlink()

    def sizes(self) -> dict[str, int]:
        """Return the bytes on disk by kind, and those that a sweep frees. A hard-linked file counts once."""
        seen: set[int] = set()
        sizes = {name: _disk_usage(self.root / name, seen) for name in KINDS}
        return sizes | {WORK: sum(_disk_usage(path, seen) for path in self.leftovers())}

    def clear(self, kinds: Collection[str], *, before: float = math.inf, keep: Collection[str] = ()) -> None:
        """Empty the folders of these kinds; raises UsageError while another process uses the store.

        Entries that were used since `before` (seconds since 1970) stay, and those whose names are in `keep`.
        """
        with (self.root / "locks" / "use").open("w") as stream:
            try:
                lock_file(stream, wait=False)
            except BlockingIOError as error:
                raise UsageError(
                    f"the cache `{self.root}` is in use", hint="try again when no build or lock is running"
                ) from error
            for kind in kinds:
                pattern = "*/*" if keep and kind == "artifacts" else "*"
                for path in (self.root / kind).glob(pattern):
                    if path.name in keep or path.lstat().st_mtime >= before:
                        continue
                    self._remove(path)

    @contextlib.contextmanager
    def lock(self, name: str, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock of that name. `waiting` is called once if another process holds it."""
        with (self.root / "locks" / name).open("w") as stream:
            try:
                lock_file(stream, wait=False)
            except BlockingIOError:
                if waiting:
                    waiting()
                lock_file(stream)
            yield


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold a lock on a file. NFS needs it open for reading and writing, for shared and exclusive locks."""
    with path.open("ab+") as stream:
        lock_file(stream, wait=wait, shared=shared)
        yield


def _last_use(entry: Path) -> float:
    """Return the time of the last use of an entry, 0 if it is gone."""
    try:
        return entry.lstat().st_mtime
    except FileNotFoundError:
        return 0


def _disk_usage(path: Path, seen: set[int]) -> int:
    """Return the bytes of a file, or of all files in a folder. What another process removes meanwhile counts nothing."""
    total = 0
    # Many thousands; a Path of each takes longer than to ask.
    below = (f"{parent}/{name}" for parent, _, names in os.walk(path) for name in names)
    for file in below if path.is_dir() else (path,):
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(file)
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total


def commit_path(temporary: Path, final: Path) -> None:
    """Rename a finished file or folder to its final name. An existing folder stays: it has the same key and bytes."""
    final.parent.mkdir(parents=True, exist_ok=True)
    if temporary.is_file():
        sync_file(temporary)
    else:
        sync_folder(temporary)
    try:
        temporary.replace(final)
    except OSError as error:  # no check before: NFS may show a folder of another machine late
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def sync_file(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder is on the disk: its files one by one if they are few, otherwise their whole file system.

    40,000 calls of fsync(2) take a minute, and one of syncfs(2) writes the same bytes.
    """
    paths = [folder]
    for parent, folders, names in os.walk(folder):
        paths += (Path(parent, name) for name in (*folders, *names))
        if len(paths) > _FEW:
            break
    if len(paths) > _FEW:
        sync_file_system(folder)
        return
    for path in paths:
        if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            descriptor = os.open(path, os.O_RDONLY | NO_LINKS)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def save_proved(path: Path, text: str) -> None:
    """Write a text below its sha256, for `read_proved`, which sees what a power cut damages: nothing waits for the disk."""
    save_bytes(path, f"{sha256_text(text)}\n{text}".encode(), sync=False)


def read_proved(path: Path) -> str:
    """Return the text that `save_proved` wrote. Raises OSError, or ValueError for any other file."""
    digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    if sha256_text(text) != digest:
        raise ValueError(f"`{path}` is damaged")
    return text


def save_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    save_bytes(path, text.encode(), mode=mode)


def save_bytes(path: Path, content: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file under a temporary name in the same folder, then rename it, by default once it is on the disk.

    A link under the name is replaced.
    """
    with space_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                os.fchmod(stream.fileno(), mode)
            if sync:
                commit_path(temporary, path)
            else:
                temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def need_same(path: Path, text: str, *, force: bool, hint: str = "`--force` replaces it") -> None:
    """Raise UsageError if a file has other content than the text that is to be written, unless `force`."""
    try:
        present = text if not path.exists() else path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        present = ""
    if present != text and not force:
        raise UsageError(f"`{path}` exists with other content", hint=hint)


def remove_tree(path: Path) -> None:
    """Remove a folder, whatever modes its folders have and however many lie in each other. Never follows links."""
    if path.is_symlink():
        path.unlink()
        return
    _open_up(path)
    waiting = [(path, 0)]
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as items:
            folders = [Path(item.path) for item in items if item.is_dir(follow_symlinks=False)]
        for below in folders:
            _open_up(below)
            if depth < _DEEP:
                waiting.append((below, depth + 1))
            else:  # Python recurses in `rmtree`, and a path has at most 4096 bytes
                waiting.append((below.rename(path / f".{uuid.uuid4().hex}"), 1))
    shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    """Let this user read and change a folder. Does nothing for a link."""
    try:
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | NO_LINKS)  # O_PATH opens what may not be read
    except OSError:
        return
    try:
        if os.fstat(opened).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{opened}", 0o700)  # noqa: PTH101 - the open folder itself
    finally:
        os.close(opened)


@contextlib.contextmanager
def space_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # `shutil.copytree` goes on after an error, and raises the texts of all.
        texts = str(error) if isinstance(error, shutil.Error) else ""
        number = next((code for code in FULL if code == error.errno or os.strerror(code) in texts), None)
        if number:
            named = error.filename2 or error.filename  # of a copy, the target
            where = _lasting(Path(named).absolute()) if isinstance(named, str) else place
            is_here = where == place.parent or where.is_relative_to(place)
            raise full_error(_lasting(place) if is_here else where, number=number) from error
        raise


def _lasting(place: Path) -> Path:
    """Return the path to show in messages. For a temporary folder, that is the folder that holds it."""
    place = place.resolve() if place.is_relative_to("/proc") else place  # of `lasting_path`
    temporary = [path for path in place.parents if path.name.startswith(".") and path.suffix == ".part"]
    return temporary[-1].parent if temporary else place


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file to a second name, or copy it where the file system has no links."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        shutil.copy(source, target)


@contextlib.contextmanager
def beside(final: Path) -> Iterator[Path]:
    """Yield a private temporary folder beside `final`, for a rename to that name.

    It is removed at the end. The next run removes the folder of a killed one.
    """
    prefix = f".{final.name}."
    with space_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(f"{glob.escape(prefix)}*.part"):
            with contextlib.suppress(OSError), held(left) as opened:
                if is_ours(os.fstat(opened)):  # another user may have made it
                    remove_tree(left)
        with _new_folder(prefix, final.parent) as (path, opened):
            try:
                with space_errors(final):  # before the folder is removed
                    yield Path(lasting_path(str(path), opened))
            finally:
                try:
                    if _is_at(path, opened):
                        remove_tree(path)
                except OSError:
                    if _is_at(path, opened):
                        raise


def _is_at(path: Path, opened: int) -> bool:
    """Whether an open folder still has this path. Another user may have moved it, and put a link there."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(opened))
    return False


@contextlib.contextmanager
def _new_folder(prefix: str, parent: Path) -> Iterator[tuple[Path, int]]:
    """Make a folder and hold its lock; yield its path and descriptor.

    Before it is locked, another run may take it for a killed one's and remove it. Then another is made. Raises
    PermissionError if that goes on: another user exchanges what is made here.
    """
    path = Path()
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=parent))
        with contextlib.ExitStack() as stack:
            try:
                opened = stack.enter_context(held(path))
            except (FileNotFoundError, BlockingIOError):
                continue
            if _is_at(path, opened):
                yield path, opened
                return
    raise refused(str(path))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold a folder's lock and yield its descriptor; raises BlockingIOError when another process holds it."""
    descriptor = open_folder(str(folder))
    try:
        lock_file(descriptor, wait=False)
        yield descriptor
    finally:
        os.close(descriptor)
