"""Fetch artifacts into the store, from every source that may have them.

Every byte is hashed on arrival and a file is renamed to its digest, so the store never holds a
partial or wrong file. Files in the store are hashed again before a build reads them (about 2 s for
3 GB). A damaged file is replaced and never becomes part of an image.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from envbuilder.core.cache import Store, commit_path, sha256_file, space_errors
from envbuilder.core.errors import FetchError
from envbuilder.core.fetch.client import SourceClient
from envbuilder.core.fetch.request import Pull, Wanted
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.http.failure import SourceError
from envbuilder.core.http.session import PARALLEL
from envbuilder.core.http.transfer import Progress
from envbuilder.core.sources import REGISTRY, Sources, file_path

log = logging.getLogger(__name__)

JOIN: Final = 2.0  # seconds that a stopped download gets to end
LISTED: Final = 8  # artifacts that one message names
NETWORK_HINT: Final = (
    "check the network and proxy settings; ENVBUILDER_INDEX and ENVBUILDER_DEBIAN_MIRROR name other sources, "
    "ENVBUILDER_FOLDERS names folders that hold the files"
)
ACCESS_HINT: Final = (
    "check user and password: they belong in `~/.netrc` (mode 0600), or in the source's address where ENVBUILDER_INDEX, "
    "ENVBUILDER_DEBIAN_MIRROR or the settings of pip, uv and apt name it"
)
GONE_HINT: Final = (
    "ENVBUILDER_FOLDERS and, for Debian, ENVBUILDER_DEBIAN_SNAPSHOT name places that may have kept it; "
    "`envbuilder lock NAME --upgrade` chooses from what the sources have now"
)
WRONG_HINT: Final = (
    "the source holds another file than the one that was locked: find out which is right before relocking"
)
NO_SOURCE_HINT: Final = (
    "ENVBUILDER_DEBIAN_MIRROR names a Debian mirror, ENVBUILDER_FOLDERS folders that hold the files"
)

Item = TypeVar("Item")


class FetchCode(CodeEnum):
    LOST = "EB510", "one of several files that no source gives"


class Fetcher:
    """Fetches the artifacts of a lock. `sources` is called once, and only when something must be fetched.

    `registry` downloads blobs of images that no folder has.
    """

    def __init__(
        self,
        store: Store,
        sources: Callable[[], Sources],
        *,
        offline: bool = False,
        registry: Pull | None = None,
    ) -> None:
        self._store = store
        self._ask = sources
        self._registry = None if offline else registry
        self._offline = offline
        self._guard = threading.Lock()
        self._client: SourceClient | None = None

    def missing(self, artefacts: Iterable[Wanted]) -> tuple[Wanted, ...]:
        """Return those that the store does not hold at full size. No content is read and no source asked."""
        unique = {artefact.sha256: artefact for artefact in artefacts}
        return tuple(artefact for artefact in unique.values() if not self._is_there(artefact))

    def fetch(self, artefacts: Iterable[Wanted], progress: Progress | None = None) -> None:
        """Fetch and verify every artifact; raises FetchError and keeps no wrong file."""
        wanted = tuple(artefacts)
        here = {artefact.sha256: artefact for artefact in wanted if self._is_there(artefact)}
        each(tuple(here.values()), self._discard_if_wrong)
        if not self.missing(wanted):
            return
        lost: list[_Lost] = []
        with self._store.lock("fetch"), space_errors(self._store.root):
            missing = self.missing(wanted)  # another process may have fetched some meanwhile
            if self._offline:
                self._refuse_offline(missing)
            report = progress or _Silent()
            each(missing, lambda one, stop: self._bring(one, report, stop, lost))
        if lost:
            raise _failure(lost)

    def measure(self, urls: Sequence[str]) -> tuple[int, ...]:
        """Return the sizes of files in bytes, without fetching them; raises FetchError."""
        sizes: dict[str, int] = {}

        def ask(url: str, stop: threading.Event) -> None:
            try:
                sizes[url] = self._connect().measure(url, stop)
            except SourceError as refusal:
                raise FetchError(
                    f"could not ask for the size of a file\n  {refusal}", hint=NETWORK_HINT
                ) from refusal

        if self._offline and any(file_path(url) is None for url in urls):
            raise FetchError(
                "could not ask for the sizes of files: this run is offline", hint="run it without `--offline`"
            )
        each(tuple(dict.fromkeys(urls)), ask)
        return tuple(sizes[url] for url in urls)

    def need_access(self, urls: Sequence[str]) -> None:
        """Raise FetchError when a URL denies access. Missing and unreachable ones are accepted."""

        def ask(url: str, stop: threading.Event) -> None:
            try:
                self._connect().touch(url, stop)
            except SourceError as refusal:
                if refusal.kind == "refused":
                    raise FetchError(
                        f"a source did not let us look for a package\n  {refusal}", hint=ACCESS_HINT
                    ) from refusal

        each(urls, ask)

    def _is_there(self, artefact: Wanted) -> bool:
        try:
            return self._store.artefact(artefact.sha256).stat().st_size == artefact.size
        except FileNotFoundError:
            return False

    def _discard_if_wrong(self, artefact: Wanted, _stop: threading.Event) -> None:
        path = self._store.artefact(artefact.sha256)
        if sha256_file(path) != artefact.sha256:
            log.warning("the cached `%s` is damaged and is fetched again", _filename(artefact))
            path.unlink(missing_ok=True)

    def _connect(self) -> SourceClient:
        with self._guard:
            if self._client is None:
                self._client = SourceClient(self._ask(), local_only=self._offline)
            return self._client

    def _refuse_offline(self, missing: tuple[Wanted, ...]) -> None:
        web, stop = self._connect(), threading.Event()
        absent = [one for one in missing if not web.has_local(one, stop)]
        if not absent:
            return
        names = "".join(f"\n  {_told(one)} ({one.size / 1e6:.1f} MB)" for one in absent[:LISTED])
        rest = f"\n  and {len(absent) - LISTED} more" if len(absent) > LISTED else ""
        raise FetchError(
            f"this run is offline, and {'1 file is' if len(absent) == 1 else f'{len(absent)} files are'} not in the cache "
            f"({sum(one.size for one in absent) / 1e6:.1f} MB):{names}{rest}",
            hint="run it once without `--offline`, or put the files into a folder that ENVBUILDER_FOLDERS names: "
            "`envbuilder cache vendor NAME DIR` writes one",
        )

    def _bring(
        self, artefact: Wanted, progress: Progress, stop: threading.Event, lost: "list[_Lost]"
    ) -> None:
        """Try each place in turn until one gives the right bytes.

        A file that a source lacks is noted, and all of them are reported together. If no source
        answers at all, the error is raised at once.
        """
        web, partial = self._connect(), self._store.partial(artefact.sha256)
        refusals: list[SourceError] = []
        own = (self._registry,) if self._registry and artefact.source == REGISTRY else ()
        for place in itertools.chain(web.places(artefact, stop), own):
            try:
                if isinstance(place, SourceError):
                    raise place
                if isinstance(place, str):
                    web.pull(place, artefact, partial, progress, stop)
                else:
                    place(artefact, partial, progress=progress, stop=stop)
            except SourceError as refusal:
                log.info("%s", refusal)
                refusals.append(refusal)
            else:
                commit_path(partial, self._store.artefact(artefact.sha256))
                return
        one = _Lost(artefact=artefact, refusals=tuple(refusals))
        if one.kinds and one.kinds <= {"unreachable", "refused"}:
            raise _failure([one])
        lost.append(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """An artifact that no source has, and the error of each source."""

    artefact: Wanted
    refusals: tuple[SourceError, ...]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(refusal.kind for refusal in self.refusals)

    @property
    def name(self) -> str:
        return f"`{_filename(self.artefact)}` ({self.artefact.name} {self.artefact.version})"

    @property
    def why(self) -> str:
        """The reason, with a line for each source."""
        if not self.refusals:
            return f"no source for `{self.artefact.source}` is known on this machine"
        if "wrong" in self.kinds:
            why = "no source has the file that was locked"
        elif self.kinds == {"refused"}:
            why = "its source refused access" if len(self.refusals) == 1 else "every source refused access"
        elif "gone" not in self.kinds:
            why = "no source could be reached"
        elif self.kinds != {"gone"}:
            why = "no source that could be reached has it"
        else:
            why = "it is gone from every source"
        return why + "".join(f"\n  {refusal}" for refusal in self.refusals)

    @property
    def hint(self) -> str:
        if not self.refusals:
            return NO_SOURCE_HINT
        if "wrong" in self.kinds:
            return WRONG_HINT
        if "refused" in self.kinds:
            return ACCESS_HINT
        return NETWORK_HINT if "unreachable" in self.kinds else GONE_HINT


class _Silent:
    def advance(self, count: int, /) -> None:
        pass


def _failure(lost: Sequence[_Lost]) -> FetchError:
    if len(lost) == 1:
        return FetchError(f"could not fetch {lost[0].name}: {lost[0].why}", hint=lost[0].hint)
    ordered = sorted(lost, key=lambda one: one.name)
    return FetchError(
        f"could not fetch {len(lost)} of the files that the lock names",
        hint="\n".join(dict.fromkeys(one.hint for one in ordered)),
        findings=tuple(
            Finding(code=FetchCode.LOST, severity=Severity.ERROR, where="", message=f"{one.name}: {one.why}")
            for one in ordered
        ),
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
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                done.put(error)
            else:
                done.put(None)

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


def _filename(artefact: Wanted) -> str:
    return artefact.path.rpartition("/")[2]


def _told(artefact: Wanted) -> str:
    """Return the file name, with the image of a blob."""
    whose = f", {artefact.version} of `{artefact.name}`" if artefact.source == REGISTRY else ""
    return f"{_filename(artefact)}{whose}"
