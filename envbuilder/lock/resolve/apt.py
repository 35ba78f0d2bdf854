"""A Debian suite, current or at a date. Queries run apt-get and apt-cache with a private state folder.

A lock holds what Debian's own resolver, apt, would install. apt runs as an ordinary user, without this
machine's packages and sources, but with its settings for proxies, certificates and logins. Package lists stay
in the cache; those of a current suite are used for a day.
"""

import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from envbuilder.core.cache import Sha256, save_text
from envbuilder.core.errors import CommandError, FetchError, IncompatibleError, ToolError
from envbuilder.core.fetch import ACCESS_HINT
from envbuilder.core.process import Command
from envbuilder.core.sources import shown
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import LockOptions, ResolveContext

log = logging.getLogger(__name__)

FRESH: Final = 24 * 3600  # seconds for which downloaded package lists are trusted
MIRROR_HINT: Final = (
    "ENVBUILDER_DEBIAN_MIRROR names a mirror that has this suite, e.g. your site's or Debian's archive"
)
SNAPSHOT_HINT: Final = "ENVBUILDER_DEBIAN_SNAPSHOT names a service that keeps Debian as it was on every day, as snapshot.debian.org does"
_REFUSED: Final = re.compile(r"\b(?:401 +Unauthorized|403 +Forbidden)")
_URI: Final = re.compile(r"'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_CONFIGURATION: Final = """\
#clear Dir;
Dir "{folder}";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}";
Dir::Etc "{folder}";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::Bin::methods "/usr/lib/apt/methods";
Dir::Bin::apt-key "/usr/bin/apt-key";
Dir::Log "{folder}";
APT::Architecture "amd64";
#clear APT::Architectures;
APT::Architectures {{ "amd64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
Acquire::Check-Valid-Until "{is_current}";
Debug::NoLocking "true";
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A component of a suite with its package lists, made by `open_suite`."""

    name: str  # bookworm
    mirror: str
    is_current: bool  # False for a snapshot, whose signature may have expired
    folder: Path
    context: ResolveContext

    def names(self) -> frozenset[str]:
        """Return the names of all packages."""
        return frozenset(self._ask("apt-cache", "pkgnames").split())

    def closure(self, packages: tuple[str, ...]) -> tuple[Artifact, ...]:
        """Return the packages with their dependencies, as apt would install them into an empty root."""
        refusal = f"no set of {self.name}'s packages fits the recipe's base, compiler, Python and `apt` list"
        return self._install("--", *packages, refusal=refusal)

    def upgrade(self, old: Sequence[Artifact], names: Sequence[str]) -> tuple[Artifact, ...]:
        """Return the old packages, with `names` in the newest version and upgrades of what these need.

        apt is told that the old packages are installed, so it decides as on a machine that has them.
        """
        with self.context.store.workspace() as work:
            status = work / "status"
            save_text(status, "\n".join(self._installed(old)))
            return self._install(
                "-o", f"Dir::State::status={status}", "--no-remove", "--", *names,
                refusal=f"{self.name} cannot upgrade {', '.join(names)} beside the packages that are locked",
                hint="`--upgrade` without names chooses every version anew", old=old,
            )  # fmt: skip

    def additions(self, names: Sequence[str], status: str) -> tuple[Artifact, ...]:
        """Return these packages with the dependencies that are not installed according to dpkg's `status`.

        Installed packages move to the suite's version only where the new ones need it: an image with security updates has
        newer packages than the suite, and a compiler's parts need each other's exact version.
        """
        options = ("--no-remove", "--", *names)
        refusal = f"{self.name} cannot add {', '.join(names)} to what the base image holds"
        hint = f"take an image of {self.name} that is no older or newer than the mirror; {MIRROR_HINT}"
        with self.context.store.workspace() as work:
            save_text(work / "status", status)
            save_text(work / "preferences", f"Package: *\nPin: release n={self.name}\nPin-Priority: 1001\n")
            state = ("-o", f"Dir::State::status={work / 'status'}")
            older = ("-o", f"Dir::Etc::preferences={work / 'preferences'}", "--allow-downgrades")
            try:
                return self._install(*state, *options, refusal=refusal)
            except IncompatibleError:
                found = self._install(*state, *older, *options, refusal=refusal, hint=hint)
        log.warning(
            "the base image has newer packages than %s, and some are put back to its versions: the new ones need them so",
            self.name,
        )
        return found

    def _install(
        self, *words: str, refusal: str, hint: str = "", old: Sequence[Artifact] = ()
    ) -> tuple[Artifact, ...]:
        """Return `old` with what `apt-get install` would fetch. Raises IncompatibleError with `refusal`."""
        try:
            listing = self._ask("apt-get", "install", "--print-uris", "-qq", *words)
        except CommandError as error:
            raise IncompatibleError(f"{refusal}\n{error.message}", hint=hint or error.hint) from error
        found = {deb.name: deb for deb in (*old, *self._artifacts(listing))}
        return tuple(found[name] for name in sorted(found))

    def _installed(self, old: Sequence[Artifact]) -> Iterator[str]:
        """Yield dpkg's status of the old packages, from the lists if these have the version, else from the files."""
        listing = self._ask("apt-cache", "show", "--", *(deb.name for deb in old))
        known = {_stanza(stanza): stanza for stanza in listing.strip().split("\n\n")}
        gone = [deb for deb in old if deb not in known]
        self.context.fetcher.fetch(gone)
        for deb in old:
            argv = ("dpkg-deb", "--field", str(self.context.store.artifact(deb.sha256)))
            why = f"read what `{deb.name}` depends on"
            control = known.get(deb) or self.context.runner.run(Command(argv=argv, why=why))
            yield f"Status: install ok installed\n{control.strip()}\n"

    def packages(self, names: tuple[str, ...]) -> tuple[Artifact, ...]:
        """Return these packages without their dependencies."""
        try:
            listing = self._ask("apt-cache", "show", "--no-all-versions", "--", *names)
        except CommandError as error:
            raise IncompatibleError(
                f"{self.name} does not have all of {', '.join(names)}\n{error.message}"
            ) from error
        return tuple(_stanza(stanza) for stanza in listing.strip().split("\n\n"))

    def _ask(self, program: str, *arguments: str) -> str:
        return self.context.runner.run(
            _command(self.folder, program, *arguments, why=f"ask which packages {self.name} has")
        )

    def _artifacts(self, listing: str) -> Iterator[Artifact]:
        above = urlsplit(self.mirror).path
        for match in map(_URI.fullmatch, listing.splitlines()):
            if match is None:
                continue
            name, version, _ = unquote(match["file"]).split("_")
            path = unquote(urlsplit(match["url"]).path).removeprefix(above)
            yield _deb(name, version, path, size=match["size"], sha256=match["sha256"])


def open_suite(name: str, component: str, context: ResolveContext, options: LockOptions) -> Suite:
    """Download a suite's package lists into the cache. Raises FetchError, or ToolError without a keyring.

    With `options.before`, they are those of 00:00 UTC of that day. An upgrade downloads current ones again.

    Only the suite itself, not its -security and -updates (`docs/lock.md` says why): release suites no longer change
    once they are old, so every file that a lock names stays on the mirrors.
    """
    sources, before = context.sources(), options.before
    mirror = f"{sources.snapshot}archive/debian/{before:%Y%m%d}T000000Z/" if before else ""
    if not sources.debian and not mirror:
        raise FetchError(
            f"no Debian mirror is known on this machine, and `{name}` is needed", hint=MIRROR_HINT
        )
    if not sources.keyring.is_file():
        raise ToolError(
            f"the keyring `{sources.keyring}` is not there: packages of `{name}` cannot be trusted without it",
            hint="`apt-get install debian-archive-keyring`; ENVBUILDER_DEBIAN_KEYRING names another keyring",
        )
    state = f"{name}-{component}" + (f"-{before:%Y%m%d}" if before else "")
    suite = Suite(
        name=name,
        mirror=mirror or sources.debian[0],
        is_current=not mirror,
        folder=context.store.resolver("apt") / state,
        context=context,
    )
    with context.store.lock(f"apt-{state}"):
        line = f"deb [arch=amd64 signed-by={sources.keyring}] {suite.mirror} {name} {component}\n"
        if not _is_fresh(suite, line) or (options.upgrade and suite.is_current):
            _update(suite, line)
    return suite


def _is_fresh(suite: Suite, line: str) -> bool:
    stamp = suite.folder / "stamp"
    if not stamp.is_file() or stamp.read_text() != line:
        return False
    return not suite.is_current or time.time() - stamp.stat().st_mtime < FRESH


def _update(suite: Suite, line: str) -> None:
    folder, runner = suite.folder, suite.context.runner
    (folder / "stamp").unlink(missing_ok=True)
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    save_text(folder / "status", "")
    save_text(folder / "sources.list", line)
    (folder / "sources.list").chmod(0o600)  # a mirror's URL may hold a password
    machine = runner.run(Command(argv=("apt-config", "dump"), why="read apt's proxy settings"))
    taken = ("Acquire::http", "Acquire::Retries", "Acquire::Force")
    kept = [text for text in machine.splitlines() if text.startswith(taken)]
    own = _CONFIGURATION.format(folder=folder, is_current=str(suite.is_current).lower())
    save_text(folder / "apt.conf", "\n".join([*kept, own]))
    try:
        runner.run(_command(folder, "apt-get", "update", "-q", why=f"read the package lists of {suite.name}"))
    except CommandError as error:
        raise FetchError(
            f"could not read the package lists of `{suite.name}` from {shown(suite.mirror)}\n{error.message}",
            hint=_hint(suite, error.message),
        ) from error
    save_text(folder / "stamp", line)
    (folder / "stamp").chmod(0o600)


def _hint(suite: Suite, output: str) -> str:
    if _REFUSED.search(output):
        return ACCESS_HINT
    return MIRROR_HINT if suite.is_current else SNAPSHOT_HINT


def _command(folder: Path, *argv: str, why: str) -> Command:
    return Command(argv=argv, env=(("APT_CONFIG", str(folder / "apt.conf")),), why=why)


def _stanza(text: str) -> Artifact:
    fields = dict(re.findall(r"^(Package|Version|Filename|Size|SHA256): (.+)$", text, re.MULTILINE))
    package, version, path = (fields[name] for name in ("Package", "Version", "Filename"))
    return _deb(package, version, path, size=fields["Size"], sha256=fields["SHA256"])


def _deb(name: str, version: str, path: str, *, size: str, sha256: str) -> Artifact:
    return Artifact(
        kind="deb", name=name, version=version, sha256=Sha256(sha256), size=int(size), source="debian", path=path
    )  # fmt: skip
