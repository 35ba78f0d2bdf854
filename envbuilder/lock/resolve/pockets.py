"""Find where the packages of a known suite come from: its release and its pockets, with their archives and keys.

A pocket is what a suite gets after its release: `-updates` and `-security`. Debian has an archive of its own for the
latter.
"""

from pathlib import Path
from typing import Final

from envbuilder.compat.tables.distribution import Distribution
from envbuilder.core.errors import FetchError, ToolError
from envbuilder.core.sources import DEBIAN, DEBIAN_SECURITY, UBUNTU, Sources
from envbuilder.lock.resolve.apt import AptSource, Suite, open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.lock.security import lists_folder

SECURITY: Final = "security"
_TITLES: Final = {DEBIAN: "Debian", DEBIAN_SECURITY: "Debian's security archive", UBUNTU: "Ubuntu"}
_WITHOUT: Final = "`security: false` in the recipe does without updates"
_MIRROR_HINTS: Final = {
    DEBIAN: "ENVBUILDER_DEBIAN_MIRROR names a mirror that has this suite, e.g. your site's or Debian's archive",
    DEBIAN_SECURITY: f"ENVBUILDER_DEBIAN_SECURITY names a mirror of Debian's security archive; {_WITHOUT}",
    UBUNTU: "ENVBUILDER_UBUNTU_MIRROR names a mirror that has this suite with its -updates and -security, "
    "e.g. your site's or Ubuntu's archive",
}
_SNAPSHOT: Final = "names a service that keeps the archive as it was on every day, as"
_DEBIAN_SNAPSHOT: Final = f"ENVBUILDER_DEBIAN_SNAPSHOT {_SNAPSHOT} snapshot.debian.org does"
_SNAPSHOT_HINTS: Final = {
    DEBIAN: _DEBIAN_SNAPSHOT,
    DEBIAN_SECURITY: f"{_DEBIAN_SNAPSHOT}; {_WITHOUT}",
    UBUNTU: f"ENVBUILDER_UBUNTU_SNAPSHOT {_SNAPSHOT} snapshot.ubuntu.com does",
}
_KEYRING_HINTS: Final = {
    DEBIAN: "`apt-get install debian-archive-keyring`; ENVBUILDER_DEBIAN_KEYRING names another keyring",
    UBUNTU: "`apt-get install ubuntu-keyring` on Ubuntu and from Debian 13 on; elsewhere take the keyring from that "
    "package; ENVBUILDER_UBUNTU_KEYRING names another one",
}


def open_release(
    row: Distribution,
    context: ResolveContext,
    options: LockOptions,
    *,
    security: bool,
    components: tuple[str, ...] = (),
    keys: tuple[Path, ...] = (),
) -> Suite:
    """Open a suite, with its pockets if `security`. Raises FetchError, or ToolError without a keyring.

    With `options.before`, its packages are those of 00:00 UTC of that day. `components` are other ones than the row's,
    `keys` the files of an image's own keys in place of this machine's keyring.
    """
    components = components or row.components
    sources = tuple(
        _source(row, pocket, context.sources(), options, components=components, keys=keys)
        for pocket in ("", *(row.pockets if security else ()))
    )
    folder = lists_folder(context.store, row, components, security=security, day=options.before)
    return open_suite(sources, folder, context, options)


def _source(
    row: Distribution,
    pocket: str,
    sources: Sources,
    options: LockOptions,
    *,
    components: tuple[str, ...],
    keys: tuple[Path, ...],
) -> AptSource:
    family = row.family
    name = DEBIAN_SECURITY if (family, pocket) == (DEBIAN, SECURITY) else family
    suite = f"{row.suite}-{pocket}" if pocket else row.suite
    if options.before:
        url, hint = sources.mirror_of(name, options.before), _SNAPSHOT_HINTS[name]
        lack = "service with snapshots"
    else:
        url, hint = next(iter(sources.mirrors(name)), ""), _MIRROR_HINTS[name]
        lack = "mirror"
    if not url:
        raise FetchError(
            f"no {lack} of {_TITLES[name]} is known on this machine, and `{suite}` is needed", hint=hint
        )
    keyring = sources.ubuntu_keyring if family == UBUNTU else sources.keyring
    if not keys and not keyring.is_file():
        raise ToolError(
            f"the keyring `{keyring}` is not there: packages of `{suite}` cannot be trusted without it",
            hint=_KEYRING_HINTS[family],
        )
    return AptSource(
        name=name,
        url=url,
        suite=suite,
        components=components,
        keyrings=keys or (keyring,),
        is_security=pocket == SECURITY,
        hint=hint,
    )
