"""A suite of Debian or Ubuntu with its pockets. Queries run apt-get and apt-cache with a private state folder.

A lock holds what the distribution's own resolver, apt, would install. apt runs as an ordinary user, without this
machine's packages and sources, but with its settings for proxies, certificates and logins. It reads all pockets of a
suite at once, so apt decides which version is newest. Package lists stay in the cache; those of a current suite are used
for a day.
"""

import logging
import os.path
import posixpath
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from envbuilder.core.cache import Sha256, save_text
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError
from envbuilder.core.process import Command
from envbuilder.core.processor import Processor
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.package_lists import (
    CONFIGURATION,
    NAMES,
    OF_APT,
    SECURITY_LIST,
    STAMP,
    apt_command,
    status_entry,
)
from envbuilder.lock.resolve.context import Task
from envbuilder.sources.deb import read_about
from envbuilder.sources.fetch import ACCESS_HINT, Fetcher, deadline
from envbuilder.sources.http import SourceError
from envbuilder.sources.names import shown

log = logging.getLogger(__name__)

FRESH: Final = 24 * 3600  # seconds for which downloaded package lists are trusted
_REFUSED: Final = re.compile(r"\b(?:401 +Unauthorized|403 +Forbidden)")
_EXPIRED: Final = re.compile(r"\bRelease file for .* is (?:expired|not valid yet)")
EXPIRED_HINT: Final = "the mirror was not updated for too long, or the clock of this machine is wrong"
_URI: Final = re.compile(r"'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_SHA256: Final = re.compile(r"^SHA256: ([0-9a-f]{64})$", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^Package: (.+)$", re.MULTILINE)
# apt connects twice for each suite, so a mirror that never answers takes 20 s for each.
_PATIENCE: Final = 'Acquire::http::Timeout "10";\nAcquire::https::Timeout "10";\nAcquire::Retries "0";'
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")  # where apt looks, others do not
_TRUSTED: Final = 'Acquire::https::CAInfo "{}";'
_CONFIGURATION: Final = """\
#clear Dir;
Dir "{folder}";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Etc "{folder}";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trustedparts "{folder}/trusted";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::Bin::methods "{toolbox}/usr/lib/apt/methods";
Dir::Bin::apt-key "{toolbox}/usr/bin/apt-key";
Dir::dpkg::cputable "{toolbox}/usr/share/dpkg/cputable";
Dir::dpkg::tupletable "{toolbox}/usr/share/dpkg/tupletable";
Dir::Log "{folder}";
APT::Architecture "{architecture}";
#clear APT::Architectures;
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
Acquire::Check-Valid-Until "{is_current}";
Debug::NoLocking "true";
"""
# `update` would make apt's cache anew even if no list has changed. The next question makes it where it is out of date.
_LISTS_ALONE: Final = ("-o", "pkgCacheFile::Generate=false")
# For `apt-config`. Without the tables of architectures, which are dpkg's, apt answers on Debian and Ubuntu alone.
_SETTINGS: Final = (
    "Dir::State::status={folder}/status", "Dir::dpkg::cputable={toolbox}/usr/share/dpkg/cputable",
    "Dir::dpkg::tupletable={toolbox}/usr/share/dpkg/tupletable",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One line of apt's list of sources."""

    name: str  # the source of its packages in a lock
    url: str  # with a final slash; it may hold a password, so show it with `shown` only
    suite: str  # bookworm-security
    components: tuple[str, ...]
    keyrings: tuple[Path, ...]
    published: tuple[str, str] | None = None  # instead: the key's path below `url`, and its fingerprint
    is_security: bool = False  # it has security updates alone
    is_extra: bool = False  # it is beside those of the base
    is_optional: bool = False  # if it cannot be read, the others serve
    hint: str  # what to do if it cannot be read

    def line(self, folder: Path, processor: Processor) -> str:
        """Return apt's line for a processor's packages. Paths of keys are relative to `folder`, because apt takes none with a space."""
        keys = ",".join(f"/proc/self/cwd/{os.path.relpath(path, folder)}" for path in self.keyrings)
        signer = self.published[1] if self.published else keys
        return f"deb [arch={processor.debian} signed-by={signer}] {self.url} {self.suite} {' '.join(self.components)}\n"

    @property
    def spelled(self) -> str:
        """Return its address as apt's messages spell it, which show a folder's own name."""
        return _spell(shown(self.url).rstrip("/"))

    def is_named_in(self, messages: str) -> bool:
        """Return whether a message of apt's is about it."""
        suite = re.escape(self.suite)
        named = "[ /]" if self.suite.endswith("/") else rf"/?(?: +|/dists/){suite}(?![\w-])"
        return re.search(re.escape(self.spelled) + named, _spell(messages)) is not None


def _spell(text: str) -> str:
    """Return text with addresses of folders in one of the two ways in which apt writes them."""
    return unquote(text).replace("file:///", "file:/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite with its package lists, made by `open_suite`."""

    sources: tuple[AptSource, ...]  # the release first
    unread: tuple[AptSource, ...] = ()  # those of an image that could not be read
    folder: Path
    task: Task

    @property
    def name(self) -> str:
        """Return the suite's name, such as bookworm, or that of a repository."""
        first = self.sources[0]
        return first.name if first.is_extra else first.suite

    def names(self) -> frozenset[str]:
        """Return the names of all packages. They stay beside the lists, for `check`."""
        path = self.folder / NAMES
        if not path.is_file():
            with self.task.context.runner.read(self._command("apt-cache", "pkgnames")) as listing:
                names = listing.read().decode()  # 60,000 lines, which no log needs
            save_text(path, names)
        return frozenset(path.read_text(encoding="utf-8").split())

    def closure(self, packages: tuple[str, ...]) -> Artifacts:
        """Return the packages with their dependencies, as apt would install them into an empty root."""
        refusal = f"no set of {self.name}'s packages fits the recipe's base, compiler, Python and `apt` list"
        return self._install("--", *packages, refusal=refusal)

    def upgrade(self, old: Sequence[Artifact], names: Sequence[str], status: str = "") -> Artifacts:
        """Return the old packages, with `names` in the newest version and upgrades of what these need.

        apt is told that the old packages are installed, beside those of dpkg's `status`, so it decides as on a machine
        that has them.
        """
        with self.task.context.store.workspace() as work:
            there = {deb.name for deb in old}
            entries = (f"{entry.strip()}\n" for entry in re.split(r"\n\s*\n", status) if entry.strip())
            others = [text for text in entries if (name := _PACKAGE.search(text)) and name[1] not in there]
            save_text(work / "status", "\n".join([*others, *self._installed(old, names)]))
            return self._install(
                "-o", f"Dir::State::status={work / 'status'}", "--no-remove", "--", *names,
                refusal=f"{self.name} cannot upgrade {', '.join(names)} beside the packages that are locked",
                hint="`--upgrade` without names chooses every version anew", old=old,
            )  # fmt: skip

    def additions(self, names: Sequence[str], status: str) -> Artifacts:
        """Return these packages with the dependencies that are not installed according to dpkg's `status`.

        Installed packages move to the suite's version only where the new ones need it: an image with security updates has
        newer packages than the suite, and a compiler's parts need each other's exact version.
        """
        options = ("--no-remove", "--", *names)
        refusal = f"{self.name} cannot add {', '.join(names)} to what the base image holds"
        hint = f"take an image of {self.name} that is as old as the mirror; {self.sources[0].hint}"
        with self.task.context.store.workspace() as work:
            save_text(work / "status", status)
            suites = (source.suite for source in self.sources if not source.is_extra)
            pins = (f"Package: *\nPin: release n={suite}\nPin-Priority: 1001\n" for suite in suites)
            # apt takes their versions, even if newer ones are installed.
            save_text(work / "preferences", "\n".join(pins))
            state = ("-o", f"Dir::State::status={work / 'status'}")
            older = ("-o", f"Dir::Etc::preferences={work / 'preferences'}", "--allow-downgrades")
            try:
                return self._install(*state, *options, refusal=refusal)
            except IncompatibleError:
                debs = self._install(*state, *older, *options, refusal=refusal, hint=hint)
        message = "the base image has newer packages than %s, and some are put back to its versions: the new ones need them so"
        log.warning(message, self.name)
        return debs

    def _install(self, *words: str, refusal: str, hint: str = "", old: Sequence[Artifact] = ()) -> Artifacts:
        """Return `old` with what `apt-get install` would fetch. Raises IncompatibleError with `refusal`."""
        try:
            listing = self._ask("apt-get", "install", "--print-uris", "-qq", *words)
        except CommandError as error:
            raise IncompatibleError(f"{refusal}\n{error.message}", hint=hint or error.hint) from error
        new = tuple(self._artifacts(listing))
        self._tell_replaced(new)
        packages = {deb.name: deb for deb in (*old, *new)}
        return tuple(packages[name] for name in sorted(packages))

    def _tell_replaced(self, debs: Sequence[Artifact]) -> None:
        """Warn where a repository beside the distribution replaces its package: apt takes the newest version of all."""
        extra = {source.name for source in self.sources if source.is_extra}
        names = {deb.name: deb for deb in debs if deb.source in extra}
        suites = [source for source in self.sources if not source.is_extra]
        message = "`%s` %s comes from `%s`, because it is newer than %s of %s"
        for line in self._ask("apt-cache", "madison", "--", *names).splitlines() if names else ():
            name, version, place = (word.strip() for word in line.split("|"))
            if name in names and any(source.is_named_in(place) for source in suites):
                deb = names.pop(name)
                log.warning(message, name, deb.version, deb.source, version, self.name)

    def _installed(self, old: Sequence[Artifact], moving: Collection[str]) -> Iterator[str]:
        """Yield dpkg's status of the old packages, from the lists if these have the file, else from the files.

        A superseded package that is `moving` needs no file, because its dependencies no longer count.
        """
        listing = self._ask("apt-cache", "show", "--", *(deb.name for deb in old))
        stanzas = listing.strip().split("\n\n")
        known = {digest[1]: stanza for stanza in stanzas if (digest := _SHA256.search(stanza))}
        self.task.context.fetcher.fetch(
            [deb for deb in old if deb.sha256 not in known and deb.name not in moving]
        )
        for deb in old:
            if deb.sha256 not in known and deb.name in moving:
                yield status_entry(deb)
                continue
            control = known.get(deb.sha256) or read_about(self.task.context.store.artifact(deb.sha256))
            yield f"Status: install ok installed\n{control.strip()}\n"

    def packages(self, names: tuple[str, ...]) -> Artifacts:
        """Return these packages without their dependencies."""
        try:
            listing = self._ask("apt-get", "download", "--print-uris", "-qq", "--", *names)
        except CommandError as error:
            lacking = f"{self.name} does not have all of {', '.join(names)}"
            raise IncompatibleError(f"{lacking}\n{error.message}") from error
        return tuple(self._artifacts(listing))

    def _ask(self, program: str, *arguments: str) -> str:
        return self.task.context.runner.run(self._command(program, *arguments))

    def _command(self, program: str, *arguments: str) -> Command:
        return apt_command(self.folder, program, *arguments, why=f"ask which packages {self.name} has")

    def _artifacts(self, listing: str) -> Iterator[Artifact]:
        for match in filter(None, map(_URI.fullmatch, listing.splitlines())):
            name, *rest = unquote(match["file"]).split("_")
            if len(rest) != 2:
                why = f"{self.name} has a package whose file is `{name}`: expected NAME_VERSION_ARCHITECTURE"
                raise FetchError(why)
            source, path = self._place(urlsplit(match["url"]))
            yield Artifact(
                kind="deb", name=name, version=rest[0], sha256=Sha256(match["sha256"]), size=int(match["size"]),
                source=source, path=path,
            )  # fmt: skip

    def _place(self, url: SplitResult) -> tuple[str, str]:
        """Return the source of a file, and its path below it."""
        bases = ((source.name, urlsplit(source.url)) for source in self.sources)
        places = [
            (name, posixpath.normpath(unquote(url.path).removeprefix(unquote(base.path))))
            for name, base in bases
            if (base.hostname, base.port) == (url.hostname, url.port)
            and unquote(url.path).startswith(unquote(base.path))
        ]
        return min(places, key=lambda place: len(place[1]))  # a mirror may lie below another


def open_suite(task: Task, sources: Sequence[AptSource], folder: Path) -> Suite:
    """Download the package lists of these sources into a folder of the cache; raises FetchError.

    An upgrade downloads the lists of a current suite again.
    """
    suite, store = Suite(sources=tuple(sources), folder=folder, task=task), task.context.store
    with store.lock(f"apt-{folder.name}"):
        is_wanted = task.options.upgrade and not task.options.before
        if is_wanted or not _is_fresh(suite) or not store.holds(folder, leave_out=OF_APT):
            suite = _update(suite)
            store.note(folder, leave_out=OF_APT)
    return suite


def _is_fresh(suite: Suite) -> bool:
    stamp = suite.folder / STAMP
    if not stamp.is_file() or stamp.read_text() != _stamp(suite):
        return False
    is_snapshot = suite.task.options.before is not None  # which never changes
    return is_snapshot or time.time() - stamp.stat().st_mtime < FRESH


def _stamp(suite: Suite) -> str:
    return f"{_lines(suite, suite.sources)}# {suite.task.context.toolbox()}\n"  # apt's configuration names it


def _lines(suite: Suite, sources: Sequence[AptSource]) -> str:
    return "".join(source.line(suite.folder, suite.task.target.processor) for source in sources)


def _update(suite: Suite) -> Suite:
    """Download the lists. Returns the suite without the optional sources that cannot be read."""
    folder, context = suite.folder, suite.task.context
    for name in (STAMP, NAMES):
        (folder / name).unlink(missing_ok=True)
    for name in ("lists/partial", "archives/partial", "trusted"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    save_text(folder / "status", "")
    for source in suite.sources:
        _fetch_key(source, folder / "trusted", context.fetcher)
    _save_private(folder / "sources.list", _lines(suite, suite.sources))
    security = [source for source in suite.sources if source.is_security]
    _save_private(folder / SECURITY_LIST, _lines(suite, security))
    toolbox = str(context.toolbox()).rstrip("/")
    settings = (setting.format(folder=folder, toolbox=toolbox) for setting in _SETTINGS)
    options = (word for setting in settings for word in ("-o", setting))
    asked = Command(argv=("apt-config", *options, "dump"), why="read apt's proxy settings")
    taken = ("Acquire::http", "Acquire::Retries", "Acquire::Force")
    proxies = [text for text in context.runner.run(asked).splitlines() if text.startswith(taken)]
    configuration = _CONFIGURATION.format(
        folder=folder, architecture=suite.task.target.processor.debian, toolbox=toolbox,
        is_current=str(not suite.task.options.before).lower(),  # the signature of a snapshot may have expired
    )  # fmt: skip
    trusted = "" if _CERTIFICATES.is_file() else _TRUSTED.format(context.fetcher.certificates())
    save_text(folder / CONFIGURATION, "\n".join([_PATIENCE, trusted, *proxies, configuration]))
    lines: list[str] = []

    def pending() -> list[str]:
        messages = "\n".join(lines)
        return [source.spelled for source in suite.sources if not source.is_named_in(messages)]

    try:
        what = f"reading the package lists of {suite.name}"
        with context.waiting(pending), deadline(context.runner, what, context.patience) as apt:
            why = f"read the package lists of {suite.name}"
            apt.run(
                apt_command(folder, "apt-get", *_LISTS_ALONE, "update", "-q", why=why), on_line=lines.append
            )
        suite.names()
    except CommandError as error:
        optional = (source for source in suite.sources if source.is_optional)
        unread = tuple(source for source in optional if source.is_named_in(error.message))
        for source in unread:
            log.warning(
                "the image's source %s (%s) cannot be read, so nothing comes from it:\n%s",
                source.spelled, source.name, error.message.partition("\n")[2],
            )  # fmt: skip
        if unread:
            read = tuple(source for source in suite.sources if source not in unread)
            return _update(replace(suite, sources=read, unread=(*suite.unread, *unread)))
        places = " and ".join(dict.fromkeys(shown(source.url) for source in suite.sources))
        why = f"could not read the package lists of `{suite.name}` from {places}\n{error.message}"
        raise FetchError(why, hint=_hint(suite, error.message)) from error
    _save_private(folder / STAMP, _stamp(suite))
    return suite


def _fetch_key(source: AptSource, folder: Path, fetcher: Fetcher) -> None:
    """Download the key that a repository publishes. apt takes it by its fingerprint alone."""
    if source.published is None:
        return
    try:
        key = fetcher.page(urljoin(source.url, source.published[0]))
    except SourceError as refusal:
        why = f"could not read the key of `{source.name}`\n  {refusal}"
        raise FetchError(why, hint=source.hint) from refusal
    (folder / f"{source.name}.asc").write_bytes(key)


def _save_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read: a mirror's URL may hold a password.

    One with this text stays, because apt makes its cache anew for a list of sources that is younger.
    """
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        save_text(path, text)
    path.chmod(0o600)


def _hint(suite: Suite, output: str) -> str:
    """Return what to do about the sources that apt's messages name."""
    if _REFUSED.search(output):
        return ACCESS_HINT
    errors = "\n".join(line for line in output.splitlines() if line.startswith("E: "))
    named = [source for source in suite.sources if source.is_named_in(errors)]
    hints = [EXPIRED_HINT] if _EXPIRED.search(output) else []
    return "; ".join(dict.fromkeys([*hints, *(source.hint for source in named or suite.sources)]))
