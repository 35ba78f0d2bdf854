"""Find where packages come from: a suite's release and its pockets, with their archives and keys, and other repositories.

A pocket is what a suite gets after its release: `-updates` and `-security`. Debian has an archive of its own for the
latter.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.distribution import Distribution
from envbuilder.core.cache import Store, save_bytes, sha256_bytes
from envbuilder.core.errors import FetchError, IncompatibleError, ToolError
from envbuilder.lock.base_image.apt_lists import TRUSTED
from envbuilder.lock.model import LockedBase
from envbuilder.lock.package_lists import lists_folder
from envbuilder.lock.repositories import repositories, tag
from envbuilder.lock.resolve.apt import AptSource, Suite, open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import IMAGE, Repository
from envbuilder.sources.names import DEBIAN, DEBIAN_SECURITY, UBUNTU

SECURITY: Final = "security"
_OWN_KEYS: Final = re.compile(r"/(?:debian|ubuntu)-archive-keyring\.")
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
KEYRINGS: Final = {
    DEBIAN: "usr/share/keyrings/debian-archive-keyring.gpg",
    UBUNTU: "usr/share/keyrings/ubuntu-archive-keyring.gpg",
}


def open_release(
    row: Distribution,
    context: ResolveContext,
    options: LockOptions,
    *,
    security: bool,
    components: tuple[str, ...] = (),
    keys: tuple[Path, ...] = (),
    more: tuple[AptSource, ...] = (),
    more_tag: str = "",
) -> Suite:
    """Open a suite, with its pockets if `security`. Raises FetchError, or ToolError without a keyring.

    With `options.before`, its packages are those of 00:00 UTC of that day. `components` are other ones than the row's,
    `keys` the files of an image's own keys in place of this machine's keyring, `more` repositories beside the suite.
    """
    components = components or row.components
    sources = tuple(
        _source(row, pocket, context, options, components=components, keys=keys)
        for pocket in ("", *(row.pockets if security else ()))
    )
    folder = lists_folder(
        context.store,
        row,
        components,
        context.processor,
        security=security,
        day=options.before,
        more=more_tag,
    )
    return open_suite((*sources, *more), folder, context, options)


def open_base(
    row: Distribution,
    recipe: Recipe,
    base: LockedBase | None,
    context: ResolveContext,
    options: LockOptions,
) -> Suite:
    """Open the suite that a recipe's packages come from, with the repositories beside it.

    The packages of an image's suite are trusted by the image's own keys.
    """
    image = read_image(base, context)[1] if base else {}
    more = repository_sources(recipe, base, context, options)
    own = tuple(key for path, key in image.items() if TRUSTED.fullmatch(path) or _OWN_KEYS.search(path))
    more_tag = tag(repositories(recipe, base.inside if base else None))
    return open_release(
        row, context, options, security=recipe.security, keys=own, more=more, more_tag=more_tag
    )


def repository_sources(
    recipe: Recipe, base: LockedBase | None, context: ResolveContext, options: LockOptions
) -> tuple[AptSource, ...]:
    """Return the sources of the repositories beside a recipe's base. Raises IncompatibleError with `options.before`."""
    found = repositories(recipe, base.inside if base else None)
    if options.before and recipe.apt_sources:
        raise IncompatibleError(
            f"{recipe.place('$.apt_sources')}: no service keeps `{found[0].name}` as it was on {options.before}",
            hint="lock without `--before`, or without `apt_sources`",
        )
    if not found or options.before:
        return ()
    image = read_image(base, context)[1] if base else {}
    return tuple(_repository_source(one, recipe, image, context) for one in found)


def _repository_source(
    one: Repository, recipe: Recipe, image: Mapping[str, Path], context: ResolveContext
) -> AptSource:
    is_image = one.name.startswith(IMAGE)
    if is_image:
        trusted = (key for path, key in image.items() if TRUSTED.fullmatch(path))
        named = [image[key.lstrip("/")] for key in one.keys if key.lstrip("/") in image]
        keys = tuple(named if one.keys else trusted) or (Path("/dev/null"),)
    else:
        keys = tuple(_kept_key(recipe.path.parent / key, context.store) for key in one.keys)
    mirror = next(iter(context.sources().mirrors(one.source)), "")
    signer = "in the image" if is_image else "of `nvidia/…`" if one.published else "of the recipe"
    return AptSource(
        name=one.source,
        url=mirror or one.url,
        suite=one.suite,
        components=one.components,
        keyrings=keys,
        published=one.published,
        is_extra=True,
        is_optional=is_image,
        hint=f"look at the address, the suite and the components of `{one.name}`, and whether the key {signer} signs it; "
        f"`ENVBUILDER_APT_MIRRORS={one.name}=ADDRESS` names a mirror",
    )


def _kept_key(path: Path, store: Store) -> Path:
    """Copy a key into the cache, under a name that apt takes: `.asc` if it is armored."""
    content = path.read_bytes()
    suffix = "asc" if content.lstrip().startswith(b"-----BEGIN") else "gpg"
    kept = store.resolver("apt") / "keys" / f"{sha256_bytes(content)}.{suffix}"
    save_bytes(kept, content)
    return kept


def read_image(base: LockedBase, context: ResolveContext) -> tuple[str, dict[str, Path]]:
    """Return dpkg's status of a locked image, "" if it has none, and the files with the keys that its apt has."""
    from envbuilder.lock.resolve.base_image import keys_of, status_of  # noqa: PLC0415 - asks registries, for images alone

    return status_of(base, context), keys_of(base, context)


def _source(
    row: Distribution,
    pocket: str,
    context: ResolveContext,
    options: LockOptions,
    *,
    components: tuple[str, ...],
    keys: tuple[Path, ...],
) -> AptSource:
    family, sources = row.family, context.sources()
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
    keyring = keyring or context.toolbox() / KEYRINGS[family]
    if not keys and not keyring.is_file():
        raise ToolError(
            f"the keyring `{keyring}` is not there: packages of `{suite}` cannot be trusted without it",
            hint=f"ENVBUILDER_{family.upper()}_KEYRING names it; without that setting, envbuilder's own keys count",
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
