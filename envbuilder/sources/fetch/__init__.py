"""Fetch artifacts into the store, from every source that may have them.

Every byte is hashed on arrival and a file is renamed to its digest, so the store never holds a
partial or wrong file. Files in the store are hashed again before a build reads them (about 2 s for
3 GB). A damaged file is replaced and never becomes part of an image.
"""

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from envbuilder.core.cache import Sha256, Store, commit_path, sha256_file, space_errors
from envbuilder.core.errors import EnvbuilderError, FetchError
from envbuilder.core.findings import CodeEnum, Finding
from envbuilder.core.private import open_to_all
from envbuilder.core.process import Runner
from envbuilder.sources.http import (
    PAGE,
    PARALLEL,
    Progress,
    RequestLimits,
    SourceError,
    Waiting,
    wait_silently,
)
from envbuilder.sources.names import REGISTRY, Sources, Wanted, file_path

if TYPE_CHECKING:
    from envbuilder.sources.fetch.source_client import Listed, SourceClient

log = logging.getLogger(__name__)

JOIN: Final = 2.0  # seconds that a stopped download gets to end
PATIENCE: Final = 3600.0  # seconds for one call of a program that fetches
LISTED: Final = 8  # artifacts that one message names
NETWORK_HINT: Final = (
    "check the network and proxy settings; ENVBUILDER_INDEX, ENVBUILDER_DEBIAN_MIRROR, ENVBUILDER_CUDA_REDIST and "
    "UV_PYTHON_INSTALL_MIRROR name other sources, "
    "ENVBUILDER_FOLDERS names folders that hold the files"
)
ACCESS_HINT: Final = (
    "check user and password: they belong in `~/.netrc` (mode 0600), or in the source's address where ENVBUILDER_INDEX, "
    "ENVBUILDER_DEBIAN_MIRROR or the settings of pip, uv and apt name it"
)
GONE_HINT: Final = (
    "ENVBUILDER_FOLDERS and, for packages of Debian and Ubuntu, ENVBUILDER_DEBIAN_SNAPSHOT and ENVBUILDER_UBUNTU_FILES "
    "name places that may have kept it; "
    "`envbuilder lock NAME --upgrade` chooses from what the sources have now"
)
WRONG_HINT: Final = "the source holds another file than the one that was locked: find out which is right before you lock again"
NO_SOURCE_HINT: Final = (
    "ENVBUILDER_DEBIAN_MIRROR and ENVBUILDER_DEBIAN_SECURITY name mirrors of Debian, ENVBUILDER_CUDA_REDIST a copy of NVIDIA's "
    "archive, ENVBUILDER_APT_MIRRORS other apt repositories, ENVBUILDER_CONDA_MIRRORS conda channels, ENVBUILDER_FOLDERS folders that hold the files"
)

Item = TypeVar("Item")
# Downloads a blob into a file that an earlier attempt may have begun; raises SourceError or EnvbuilderError.
FetchBlob = Callable[[Wanted, Path, Progress, threading.Event], None]


class FetchCode(CodeEnum):
    LOST = "EB510", "one of several files that no source gives"


class Fetcher:
    """Fetches the artifacts of a lock. `sources` is called once, and only when something must be fetched.

    `registry` downloads blobs of images that no folder has.
    """

    def __init__(
        self, store: Store, sources: Callable[[], Sources], *, offline: bool = False, registry: FetchBlob | None = None,
        waiting: Waiting = wait_silently, limits: RequestLimits | None = None,
    ) -> None:  # fmt: skip
        self._limits = limits
        self._store = store
        self._ask = sources
        self._registry = None if offline else registry
        self._offline = offline
        self._waiting = waiting
        self._guard = threading.Lock()
        self._client: SourceClient | None = None
        self._repositories: dict[str, str] = {}

    def know(self, repositories: Mapping[str, str]) -> None:
        """Use these addresses of sources that no setting names: the apt repositories of a recipe."""
        self._repositories |= repositories

    def missing(self, artifacts: Iterable[Wanted]) -> tuple[Wanted, ...]:
        """Return those that the store does not hold at full size. No content is read and no source asked."""
        unique = {artifact.sha256: artifact for artifact in artifacts}
        return tuple(artifact for artifact in unique.values() if not self._is_there(artifact))

    def fetch(self, artifacts: Iterable[Wanted], progress: Progress | None = None) -> None:
        """Fetch and verify every artifact; raises FetchError and keeps no wrong file."""
        wanted = tuple(artifacts)
        here = {artifact.sha256: artifact for artifact in wanted if self._is_there(artifact)}
        each(tuple(here.values()), self._discard_if_wrong)
        if not self.missing(wanted):
            return
        missed: list[Finding] = []
        with self._store.lock("fetch"), space_errors(self._store.root):
            missing = self.missing(wanted)  # another process may have fetched some meanwhile
            if self._offline:
                self._refuse_offline(missing)
            report = progress or _Silent()
            each(missing, lambda artifact, stop: self._fetch_one(artifact, report, stop, missed))
        if missed:
            raise _failure(missed)

    def measure(self, urls: Sequence[str]) -> tuple[int, ...]:
        """Return the sizes of files in bytes, without fetching them; raises FetchError."""
        sizes: dict[str, int] = {}

        def ask(url: str, stop: threading.Event) -> None:
            try:
                sizes[url] = self._connect().measure(url, stop)
            except SourceError as refusal:
                why = f"could not ask for the size of a file\n  {refusal}"
                raise FetchError(why, hint=NETWORK_HINT) from refusal

        if self._offline and any(file_path(url) is None for url in urls):
            why = "could not ask for the sizes of files: this run is offline"
            raise FetchError(why, hint="run it without `--offline`")
        each(tuple(dict.fromkeys(urls)), ask)
        return tuple(sizes[url] for url in urls)

    def fetch_new(self, artifact: Wanted, url: str, progress: Progress) -> Sha256:
        """Fetch a file whose digest nobody has stated into the store; return its sha256. Raises FetchError."""

        def ask(url: str, stop: threading.Event) -> None:
            try:
                self._connect().download(url, artifact, file, progress, stop)
            except SourceError as refusal:
                raise _failure([_explain(artifact, [refusal])]) from refusal

        with space_errors(self._store.root), self._store.workspace() as work:
            file = work / "file"
            each((url,), ask)
            digest = sha256_file(file)
            self._store.add_artifact(digest, file)
        return digest

    def page(self, url: str, *, most: int = PAGE) -> bytes:
        """Return a file of up to `most` bytes that no lock names, such as a list of files. Raises SourceError."""
        return self._connect().page(url, threading.Event(), most=most)

    def files(self, project: str) -> tuple["Listed", ...]:
        """Return the files of a project in the package index. Raises FetchError."""
        try:
            return tuple(self._connect().files(project, threading.Event()).values())
        except SourceError as refusal:
            raise FetchError(
                f"could not list the files of `{project}`\n  {refusal}", hint=NETWORK_HINT
            ) from refusal

    def certificates(self) -> Path:
        """Return the file of the certificates that servers are checked with."""
        return self._connect().certificates

    def need_access(self, urls: Sequence[str]) -> None:
        """Raise FetchError when a URL denies access. Missing and unreachable ones are accepted."""

        def ask(url: str, stop: threading.Event) -> None:
            try:
                self._connect().touch(url, stop)
            except SourceError as refusal:
                if refusal.kind == "refused":
                    why = f"a source refused access to a package\n  {refusal}"
                    raise FetchError(why, hint=ACCESS_HINT) from refusal

        each(urls, ask)

    def _is_there(self, artifact: Wanted) -> bool:
        try:
            return self._store.artifact(artifact.sha256).stat().st_size == artifact.size
        except FileNotFoundError:
            return False

    def _discard_if_wrong(self, artifact: Wanted, _stop: threading.Event) -> None:
        if self._store.has_artifact(artifact.sha256):
            open_to_all(str(self._store.artifact(artifact.sha256)))  # a sandbox of root's has another id

    def _connect(self) -> "SourceClient":
        from envbuilder.sources.fetch.source_client import SourceClient  # noqa: PLC0415 - requests takes 0.15 s, and a fetch may need nothing

        with self._guard:
            if self._client is None:
                self._client = SourceClient(
                    self._ask(), local_only=self._offline, repositories=self._repositories,
                    waiting=self._waiting, limits=self._limits,
                )  # fmt: skip
            return self._client

    def _refuse_offline(self, missing: tuple[Wanted, ...]) -> None:
        web, stop = self._connect(), threading.Event()
        absent = [artifact for artifact in missing if not web.has_local(artifact, stop)]
        if not absent:
            return
        names = "".join(
            f"\n  {_label(artifact)} ({artifact.size / 1e6:.1f} MB)" for artifact in absent[:LISTED]
        )
        rest = f"\n  and {len(absent) - LISTED} more" if len(absent) > LISTED else ""
        raise FetchError(
            f"this run is offline, and {'1 file is' if len(absent) == 1 else f'{len(absent)} files are'} not in the cache "
            f"({sum(artifact.size for artifact in absent) / 1e6:.1f} MB):{names}{rest}",
            hint="run it once without `--offline`, or put the files into a folder that ENVBUILDER_FOLDERS names: "
            "`envbuilder cache vendor NAME DIR` writes one",
        )

    def _fetch_one(
        self, artifact: Wanted, progress: Progress, stop: threading.Event, missed: list[Finding]
    ) -> None:
        """Try each place in turn until one gives the right bytes.

        A file that no source has is added to `missed`. If no source answers, the error is raised at once.
        """
        web, partial = self._connect(), self._store.partial(artifact.sha256)
        refusals: list[SourceError] = []
        registries = (self._registry,) if self._registry and artifact.source == REGISTRY else ()
        for place in itertools.chain(web.places(artifact, stop), registries):
            try:
                if isinstance(place, SourceError):
                    raise place
                if isinstance(place, str):
                    web.download(place, artifact, partial, progress, stop)
                else:
                    place(artifact, partial, progress, stop)
            except SourceError as refusal:
                log.info("%s", refusal)
                refusals.append(refusal)
            else:
                open_to_all(str(partial))
                commit_path(partial, self._store.artifact(artifact.sha256))
                return
        finding = _explain(artifact, refusals)
        if refusals and {refusal.kind for refusal in refusals} <= {"unreachable", "refused", "unusable"}:
            raise _failure([finding])
        missed.append(finding)


def _explain(artifact: Wanted, refusals: Sequence[SourceError]) -> Finding:
    """Return why no source gives an artifact, with a line for the error of each source."""
    kinds = {refusal.kind for refusal in refusals}
    is_passing = not kinds.isdisjoint({"unreachable", "unusable"})
    hint = ACCESS_HINT if "refused" in kinds else NETWORK_HINT if is_passing else GONE_HINT
    if not refusals:
        why, hint = f"no source for `{artifact.source}` is known on this machine", NO_SOURCE_HINT
    elif "wrong" in kinds:
        why, hint = "no source has the file of this sha256", WRONG_HINT
    elif kinds == {"refused"}:
        why = "its source refused access" if len(refusals) == 1 else "every source refused access"
    elif kinds == {"unusable"}:
        why = "no source gives an answer that can be used"
    elif "gone" not in kinds:
        why = "no source could be reached"
    elif kinds != {"gone"}:
        why = "no source that could be reached has it"
    else:
        why = "it is gone from every source"
    name = f"`{_filename(artifact)}` ({artifact.name} {artifact.version})"
    lines = "".join(f"\n  {refusal}" for refusal in refusals)
    return Finding(code=FetchCode.LOST, message=f"{name}: {why}{lines}", hint=hint)


class _Silent:
    def advance(self, count: int, /) -> None:
        pass


def _failure(missed: Sequence[Finding]) -> FetchError:
    if len(missed) == 1:
        return FetchError(f"could not fetch {missed[0].message}", hint=missed[0].hint)
    ordered = sorted(missed, key=lambda finding: finding.message)
    return FetchError(
        f"could not fetch {len(missed)} of the files that the lock names",
        hint="\n".join(dict.fromkeys(finding.hint for finding in ordered)),
        findings=tuple(replace(finding, hint="") for finding in ordered),
    )


def each(items: Sequence[Item], work: Callable[[Item, threading.Event], None]) -> None:
    """Do the work for each item in a few threads. The first failure, or Ctrl-C, stops the others and is raised.

    The threads are daemons: a hanging read must not keep an interrupted program alive.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                work(item, stop)
                done.put(None)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                done.put(error)

    for item in items:
        todo.put(item)
    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(PARALLEL, len(items)))]
    for thread in threads:
        thread.start()
    try:
        for _ in items:
            error = done.get()
            if error is not None:
                raise error
    finally:
        stop.set()
        for thread in threads:
            thread.join(JOIN)


def _filename(artifact: Wanted) -> str:
    return artifact.path.rpartition("/")[2]


def _label(artifact: Wanted) -> str:
    """Return the file name, and for a blob its image."""
    whose = f", {artifact.version} of `{artifact.name}`" if artifact.source == REGISTRY else ""
    return f"{_filename(artifact)}{whose}"


@contextlib.contextmanager
def deadline(runner: Runner, what: str, seconds: float = PATIENCE) -> Iterator[Runner]:
    """Yield a runner whose programs end after a time: apt, git and uv bound what they read, but not how slowly it comes.

    Raises FetchError for `what` they were doing.
    """
    bounded, expired = runner.named(""), threading.Event()

    def end() -> None:
        expired.set()
        bounded.stop()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield bounded
    except EnvbuilderError as error:
        if not expired.is_set():
            raise
        raise FetchError(f"{what} was not done in {seconds:.0f} s", hint=NETWORK_HINT) from error
    finally:
        timer.cancel()
