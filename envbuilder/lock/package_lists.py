"""What the package lists in the cache say of a lock and a recipe: security updates that the lock lacks, unknown names in `apt`.

No mirror is asked: the last `lock` left the lists. `check` reports both; `lock --upgrade --security` takes the updates.
"""

import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from envbuilder.compat.image_facts import Base, suite_of
from envbuilder.compat.repositories import repositories, tag
from envbuilder.compat.tables.distribution import Distribution, load_distributions
from envbuilder.core.cache import Store
from envbuilder.core.errors import CommandError, LockError, ToolError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command, Runner
from envbuilder.core.processor import X86_64, Processor
from envbuilder.core.spelling import nearest
from envbuilder.lock.file import known_locked_base, load_lock, lock_path
from envbuilder.lock.model import Artifact
from envbuilder.recipe.model import Recipe

# In a folder with package lists: apt's configuration, the sources whose lists it has, those of security updates alone, and
# the names of all packages.
CONFIGURATION: Final = "apt.conf"
STAMP: Final = "stamp"
SECURITY_LIST: Final = "security.list"
NAMES: Final = "names"
# What apt makes of the lists in their folder. It checks its hash, so the notes of the cache leave it out.
OF_APT: Final = ("archives", "srcpkgcache.bin")
SHOWN: Final = 5  # updates that a message names
# A line of `apt list --upgradable`. It also lists the same version where the entry of dpkg's status has other dependencies.
_UPGRADABLE: Final = re.compile(
    r"^(?P<name>[^/\s]+)/\S+ (?P<version>\S+) \S+ \[upgradable from: (?!(?P=version)\])", re.MULTILINE
)
_DATE: Final = re.compile(r"^Date: (.+)$", re.MULTILINE)


class PackageCode(CodeEnum):
    UNKNOWN = "EB413", "a package of `apt` that the suite lacks, by the lists in the cache"
    MISSED = "EB412", "a lock that lacks security updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedUpdates:
    """The security updates that a lock lacks."""

    updates: tuple[str, ...]  # openssl 3.0.20 → 3.0.22
    published: date  # of the distribution's list: each update is as old or older
    read: date  # when that list came into the cache


def find_unlisted(recipe: Recipe, names: Collection[str], lacks: str) -> Iterator[Finding]:
    """Yield a warning for each package of the recipe's `apt` list that is not among the names of a suite.

    `lacks` is the message, with `{}` for the package.
    """
    for number, package in enumerate(recipe.apt):
        if package not in names:
            renamed = {f"{package}t64"} & set(names)  # Debian 13 and Ubuntu 24.04 renamed many
            yield Finding(
                code=PackageCode.UNKNOWN, severity=Severity.WARNING, where=recipe.place(f"$.apt[{number}]"),
                message=lacks.format(package), hint=nearest(package, renamed or names).strip(),
            )  # fmt: skip


def check_packages(recipe: Recipe, store: Store) -> tuple[Finding, ...] | None:
    """Return a warning for each package that the suite lacks; None if the cache does not know the suite's packages.

    A warning and no error, because the suite may have the package by now.
    """
    if not recipe.apt:
        return ()
    base = known_locked_base(recipe, store=store) if recipe.image else None
    inside = base.inside if base else None
    row = _suite(recipe, inside)
    if row is None or not store.holds(folder := _folder(recipe, row, inside, store), leave_out=OF_APT):
        return None
    names = folder / NAMES
    have = {package.partition("=")[0] for package in base.packages} if base else set()
    lacks = f"{row.suite} has no package `{{}}` (package lists read {_day(names)})"
    return tuple(find_unlisted(recipe, have.union(names.read_text(encoding="utf-8").split()), lacks))


def missed_updates(recipe: Recipe, store: Store, runner: Runner, name: str = "NAME") -> MissedUpdates | str:
    """Return what the recipe's lock lacks, or why that is not known: "" where the suite or the recipe has no such updates."""
    if not lock_path(recipe).is_file():
        return f"without a lock: `envbuilder lock {pasted(name)}` makes it"
    try:
        lock = load_lock(lock_path(recipe))
    except LockError as error:
        return error.message
    base = lock.base.inside if lock.base else None
    row = _suite(recipe, base)
    if row is None:
        return "envbuilder does not know the base's distribution"
    if not recipe.security:
        return "the recipe has `security: false`"
    if not row.pockets:
        return ""
    folder, place = _folder(recipe, row, base, store), f"*_{row.suite}-security_*Release"
    has_lists = store.holds(folder, leave_out=OF_APT)
    release = next((folder / "lists").glob(place), None) if has_lists else None
    dated = _DATE.search(release.read_text(encoding="utf-8")) if release else None
    if dated is None:
        bring = f"`envbuilder lock {pasted(name)} --upgrade --security` brings them"
        return f"without package lists of {row.suite} in the cache: {bring}"
    try:
        newer = security_updates(folder, lock.debs, runner)
        published = parsedate_to_datetime(dated[1]).date()
    except (CommandError, ToolError) as error:
        return error.message
    except ValueError:
        return f"the date of the package lists is `{dated[1]}`"
    debs = (deb for deb in lock.debs if deb.name in newer)
    updates = tuple(f"{deb.name} {deb.version} → {newer[deb.name]}" for deb in debs)
    return MissedUpdates(updates=updates, published=published, read=_day(folder / STAMP))


def missed_finding(recipe: Recipe, missed: MissedUpdates, name: str) -> Finding:
    shown, rest = missed.updates[:SHOWN], len(missed.updates) - SHOWN
    names = ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
    count = "a security update" if len(missed.updates) == 1 else f"{len(missed.updates)} security updates"
    since = f"out since {missed.published} at the latest: {names} (package lists read {missed.read})"
    return Finding(
        code=PackageCode.MISSED, severity=Severity.WARNING, where=str(lock_path(recipe)),
        message=f"the lock lacks {count}, {since}",
        hint=f"`envbuilder lock {pasted(name)} --upgrade --security` takes them, and of the others only what they require",
    )  # fmt: skip


def _suite(recipe: Recipe, base: Base | None) -> Distribution | None:
    rows = load_distributions().by_name
    return suite_of(base, rows) if base else rows.get(recipe.base)


def _folder(recipe: Recipe, row: Distribution, base: Base | None, store: Store) -> Path:
    """Return the folder with the package lists from which the packages of a recipe come."""
    more = tag(repositories(recipe, base))
    return lists_folder(store, row, row.components, recipe.processor, security=recipe.security, more=more)


def _day(file: Path) -> date:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).date()


def lists_folder(
    store: Store, row: Distribution, components: tuple[str, ...], processor: Processor, *,
    security: bool, day: date | None = None, more: str = "",
) -> Path:  # fmt: skip
    """Return the folder in the cache with a suite's package lists for a processor, with its pockets if `security`.

    `more` is the tag of the repositories beside it.
    """
    machine = () if processor is X86_64 else (processor.debian,)
    words = [row.suite, *machine, *components, "pockets" if security else "release", *filter(None, (more,))]
    return store.resolver("apt") / "-".join([*words, *([f"{day:%Y%m%d}"] if day else [])])


def security_updates(folder: Path, debs: Sequence[Artifact], runner: Runner) -> dict[str, str]:
    """Return name and version of each security update that these packages lack, by the package lists in `folder`.

    apt is told that they are installed, and asked what it can upgrade from the sources of security updates alone.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-") as work:
        status = Path(work) / "status"
        status.write_text("\n".join(map(status_entry, debs)), encoding="utf-8")
        options = (
            f"Dir::State::status={status}", f"Dir::Etc::sourcelist={folder / SECURITY_LIST}",
            "Dir::Cache::srcpkgcache=",  # that in the folder is of all sources
        )  # fmt: skip
        settings = (word for option in options for word in ("-o", option))
        argv = ("apt", *settings, "list", "--upgradable", "-qq")
        listing = runner.run(apt_command(folder, *argv, why="find security updates"))
    return {match["name"]: match["version"] for match in _UPGRADABLE.finditer(listing)}


def apt_command(folder: Path, *argv: str, why: str) -> Command:
    """Return a command of apt that uses the package lists in `folder`, and finds its keys from there."""
    return Command(argv=argv, cwd=folder, env=(("APT_CONFIG", str(folder / CONFIGURATION)),), why=why)


def status_entry(deb: Artifact) -> str:
    """Return an entry of dpkg's status without dependencies: enough for a package that is to be upgraded."""
    architecture = deb.filename.removesuffix(".deb").rpartition("_")[2]
    return f"Package: {deb.name}\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: {deb.version}\n"
