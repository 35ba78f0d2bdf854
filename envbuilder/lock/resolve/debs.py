"""Resolve the packages of the os layer, and find where they come from: a suite, its pockets, other repositories.

A pocket is what a suite gets after its release: `-updates` and `-security`. Debian has an archive of its own for the latter.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.compat.image_facts import suite_of
from envbuilder.compat.repositories import TRUSTED, repositories, tag
from envbuilder.compat.tables.distribution import Distribution, load_distributions
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import Part
from envbuilder.core.cache import Store, save_bytes, sha256_bytes
from envbuilder.core.errors import FetchError, IncompatibleError, ToolError
from envbuilder.lock.model import Artifact, Artifacts, LockedBase
from envbuilder.lock.package_lists import find_unlisted, lists_folder, security_updates
from envbuilder.lock.resolve.apt import AptSource, Suite, open_suite
from envbuilder.lock.resolve.context import ResolveContext, Task
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import IMAGE, Repository
from envbuilder.sources.names import DEBIAN, DEBIAN_SECURITY, UBUNTU

# The distribution's base, a compiler for extensions of its own Python, and what torch's build calls.
OS_PACKAGES: Final = (
    "?essential",  # apt's pattern: coreutils, bash, dpkg, … and apt itself
    "ca-certificates",
    "libc6-dev", "libcrypt-dev",  # crypt.h; libc6-dev no longer brings it in newer suites
    "gcc-{gcc}", "g++-{gcc}", "binutils",
    "make", "ninja-build",
)  # fmt: skip
PYTHON_PACKAGES: Final = ("python{python}", "python{python}-dev")  # no pip, no venv: uv fills /opt/env
# NCCL needs them for InfiniBand and RoCE; without them it silently falls back to sockets.
RDMA_PACKAGES: Final = ("libibverbs1", "ibverbs-providers")
# Debian packages distutils separately, and uv refuses a Python older than 3.10 without it.
OLD_PYTHON_PACKAGES: Final = ("python3-distutils",)
# The packages that are not needed if an image has a compiler or a Python from elsewhere.
_OWN: Final = {"gcc": ("gcc-{gcc}", "g++-{gcc}"), "python": PYTHON_PACKAGES}
# Installed if the suite has it, instead of usrmerge with its Perl modules: the root is merged from the start.
IF_THERE: Final = ("usr-is-merged",)
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
KEYRINGS: Final = {family: f"usr/share/keyrings/{family}-archive-keyring.gpg" for family in (DEBIAN, UBUNTU)}


def resolve_debs(task: Task) -> Artifacts:
    """Return the packages of the os layer. Raises IncompatibleError if the suite lacks a pinned one."""
    recipe, is_standalone = task.recipe, task.target.standalone is not None
    if task.target.base:
        return _resolve_additions(task, task.target.base)
    suite, _ = open_base(task)
    names = suite.names()
    _need(f"gcc-{recipe.gcc}", r"gcc-\d+", "$.gcc", names=names, suite=suite)
    if not is_standalone:
        _need(f"python{recipe.python}", r"python3\.\d+", "$.python", names=names, suite=suite)
    _need_listed(recipe, names, suite)
    wanted = os_packages(recipe, standalone=is_standalone)
    debs = suite.closure((*wanted, *(name for name in IF_THERE if name in names)))
    _check_libxcrypt(recipe, debs, suite)
    return debs


def _resolve_additions(task: Task, base: LockedBase) -> Artifacts:
    """Return the packages that an image lacks, as apt would install them; none if no suite's packages fit it.

    A compiler or a Python that the image has from elsewhere is used as it is.
    """
    recipe, inside = task.recipe, base.inside
    if _suite_row(base) is None:
        return ()
    have = {package.partition("=")[0] for package in base.packages}
    owned = [("gcc", inside.gcc(recipe.gcc)), ("python", inside.python(recipe.python))]
    brought = {
        name.format(gcc=recipe.gcc, python=recipe.python)
        for kind, fact in owned
        if fact
        for name in _OWN[kind]
        if kind == "gcc" or fact.path.startswith("/usr/local/") or inside.has_headers(recipe.python)
    }
    names = os_packages(recipe, standalone=task.target.standalone is not None)
    wanted = tuple(name for name in names if not name.startswith("?") and name not in have | brought)
    if not wanted:
        return ()
    suite, status = open_base(task)
    _need_listed(recipe, suite.names() | have, suite)
    return suite.additions(wanted, status)


def upgrade_debs(task: Task, debs: Artifacts) -> Artifacts:
    """Return the locked packages, with those upgraded that the options name, or that lack a security update."""
    options, base = task.options, task.target.base
    wanted = tuple(deb.name for deb in debs if deb.name in options.upgrade_only)
    is_fixed = not wanted and not options.security_only
    if is_fixed or (base and _suite_row(base) is None):
        return debs
    suite, status = open_base(replace(task, options=replace(options, upgrade=True)))
    if options.security_only:
        wanted += tuple(security_updates(suite.folder, debs, task.context.runner))
    return suite.upgrade(debs, wanted, status) if wanted else debs


def _suite_row(base: LockedBase) -> Distribution | None:
    return suite_of(base.inside, load_distributions().by_name)


def os_packages(recipe: Recipe, *, standalone: bool = False) -> tuple[str, ...]:
    """Return the arguments for apt: package names and one pattern. A `standalone` Python replaces the suite's."""
    pythons = () if standalone else (*PYTHON_PACKAGES, *older_packages(recipe.python))
    rdma = RDMA_PACKAGES if recipe.cuda else ()
    plain = (name.format(gcc=recipe.gcc, python=recipe.python) for name in (*OS_PACKAGES, *pythons))
    return (*plain, *rdma, *recipe.apt)


def older_packages(python: str) -> tuple[str, ...]:
    """Return what uv needs beside an older Python."""
    return OLD_PYTHON_PACKAGES if version_key(python) < version_key("3.10") else ()


def resolve_toolkit_debs(task: Task, parts: Sequence[Part]) -> Artifacts:
    """Return the toolkit's own packages without dependencies: those are in the wheels or not wanted."""
    debs: list[Artifact] = []
    distributions, minor = load_distributions().by_name, task.recipe.cuda_minor
    for place in sorted({(part.suite, part.component) for part in parts}):
        row, component = distributions[f"{DEBIAN}/{place[0]}"], place[1]
        # The release alone: security updates of Debian do not cover NVIDIA's compilers (debian.org/security/faq).
        suite = open_release(task, row, components=(component,))
        debs += suite.packages(tuple(part.name for part in parts if (part.suite, part.component) == place))
    for deb in debs:
        if deb.name == "nvidia-cuda-toolkit" and not deb.version.startswith(f"{minor}."):
            raise IncompatibleError(
                f"the mirror's `{deb.name}` is {deb.version}, expected CUDA {minor}",
                hint="the suite has moved on: use a newer envbuilder, or a mirror that still has this version",
            )
    return tuple(debs)


def resolve_repository_debs(task: Task, names: Sequence[str]) -> Artifacts:
    """Return packages of the repositories beside the base, without dependencies. Raises IncompatibleError."""
    base, context = task.target.base, task.context
    image = read_image(base, context)[1] if base and not task.options.before else {}
    sources = _repository_sources(task, image)
    if not sources:
        raise IncompatibleError("the recipe has no `apt_sources`, and no image that has some")
    folder = context.store.resolver("apt") / f"more-{task.target.processor.debian}-{tag(sources)}"
    return open_suite(task, sources, folder).packages(tuple(names))


def _need_listed(recipe: Recipe, names: frozenset[str], suite: Suite) -> None:
    """Raise IncompatibleError for packages of the recipe's `apt` list that are not among the names."""
    has = "and the sources beside it have" if any(source.is_extra for source in suite.sources) else "has"
    unlisted = tuple(find_unlisted(recipe, names, f"{suite.name} {has} no package `{{}}`"))
    if unlisted:
        unread = ", ".join(f"{source.spelled} ({source.name})" for source in suite.unread)
        lines = (f"{finding.where}: {finding.message}" for finding in unlisted)
        hint = " ".join(finding.hint for finding in unlisted if finding.hint)
        hint = f"it may be in {unread}, which could not be read" if unread else hint
        raise IncompatibleError("\n".join(lines), hint=hint)


def _need(package: str, others: str, key: str, *, names: frozenset[str], suite: Suite) -> None:
    if package not in names:
        having = sorted(name for name in names if re.fullmatch(others, name))
        hint = f"it has {', '.join(having) or 'none'}"
        raise IncompatibleError(f"{key}: {suite.name} has no `{package}`", hint=hint)


def _check_libxcrypt(recipe: Recipe, debs: Artifacts, suite: Suite) -> None:
    version = next(deb.version for deb in debs if deb.name == "libcrypt-dev").rpartition(":")[2]
    if recipe.libxcrypt and not re.match(rf"{re.escape(recipe.libxcrypt)}(?![0-9])", version):
        raise IncompatibleError(
            f"{recipe.place('$.libxcrypt')}: libxcrypt {recipe.libxcrypt} is pinned, {suite.name} has {version}",
            hint=f'write `libxcrypt: "{".".join(version.split(".")[:2])}"`',
        )


def open_release(
    task: Task, row: Distribution, *, security: bool = False, components: tuple[str, ...] = (),
    keys: tuple[Path, ...] = (), more: tuple[AptSource, ...] = (), more_tag: str = "",
) -> Suite:  # fmt: skip
    """Open a suite, with its pockets if `security`. Raises FetchError, or ToolError without a keyring.

    With `options.before`, its packages are those of 00:00 UTC of that day. `components` are other ones than the row's,
    `keys` the files of an image's own keys in place of this machine's keyring, `more` repositories beside the suite.
    """
    components = components or row.components
    pockets = ("", *(row.pockets if security else ()))
    sources = [_source(task, row, pocket, components=components, keys=keys) for pocket in pockets]
    folder = lists_folder(
        task.context.store, row, components, task.target.processor, security=security, day=task.options.before, more=more_tag
    )  # fmt: skip
    return open_suite(task, (*sources, *more), folder)


def open_base(task: Task) -> tuple[Suite, str]:
    """Open the suite that a recipe's packages come from, with the repositories beside it.

    Returns dpkg's status of its image as well, "" for a suite. The packages of an image's suite are trusted by the
    image's own keys.
    """
    base = task.target.base
    row = _suite_row(base) if base else task.target.distribution
    assert row is not None, "no packages are added to an image without a suite"
    status, image = read_image(base, task.context) if base else ("", {})
    suite = open_release(
        task, row, security=task.recipe.security, more=_repository_sources(task, image),
        keys=tuple(key for path, key in image.items() if TRUSTED.fullmatch(path) or _OWN_KEYS.search(path)),
        more_tag=tag(repositories(task.recipe, task.target.inside)),
    )  # fmt: skip
    return suite, status


def _repository_sources(task: Task, image: Mapping[str, Path]) -> tuple[AptSource, ...]:
    """Return the sources of the repositories beside a recipe's base. Raises IncompatibleError with `options.before`.

    `image` has the files with the keys of the recipe's image.
    """
    recipe, before = task.recipe, task.options.before
    others = repositories(recipe, task.target.inside)
    if before and recipe.apt_sources:
        raise IncompatibleError(
            f"{recipe.place('$.apt_sources')}: no service keeps `{others[0].name}` as it was on {before}",
            hint="lock without `--before`, or without `apt_sources`",
        )
    return () if before else tuple(_repository_source(repository, task, image) for repository in others)


def _repository_source(repository: Repository, task: Task, image: Mapping[str, Path]) -> AptSource:
    is_image = repository.name.startswith(IMAGE)
    if is_image:
        trusted = (key for path, key in image.items() if TRUSTED.fullmatch(path))
        named = [image[key.lstrip("/")] for key in repository.keys if key.lstrip("/") in image]
        keys = tuple(named if repository.keys else trusted) or (Path("/dev/null"),)
    else:
        folder = task.recipe.path.parent
        keys = tuple(_kept_key(folder / key, task.context.store) for key in repository.keys)
    mirror = next(iter(task.context.sources().mirrors(repository.source)), "")
    signer = "in the image" if is_image else "of `nvidia/…`" if repository.published else "of the recipe"
    return AptSource(
        name=repository.source, url=mirror or repository.url, suite=repository.suite, components=repository.components,
        keyrings=keys, published=repository.published, is_extra=True, is_optional=is_image,
        hint=f"look at the address, the suite and the components of `{repository.name}`, and whether the key {signer} signs it; "
        f"`ENVBUILDER_APT_MIRRORS={repository.name}=ADDRESS` names a mirror",
    )  # fmt: skip


def _kept_key(path: Path, store: Store) -> Path:
    """Copy a key into the cache, under a name that apt takes: `.asc` if it is armored."""
    content = path.read_bytes()
    suffix = "asc" if content.lstrip().startswith(b"-----BEGIN") else "gpg"
    copy = store.resolver("apt") / "keys" / f"{sha256_bytes(content)}.{suffix}"
    save_bytes(copy, content)
    return copy


def read_image(base: LockedBase, context: ResolveContext) -> tuple[str, dict[str, Path]]:
    """Return dpkg's status of a locked image, "" if it has none, and the files with the keys that its apt has."""
    from envbuilder.lock.resolve.base_image import read_kept  # noqa: PLC0415 - asks registries, for images alone

    return read_kept(base, context)


def _source(
    task: Task, row: Distribution, pocket: str, *, components: tuple[str, ...], keys: tuple[Path, ...]
) -> AptSource:
    family, sources, before = row.family, task.context.sources(), task.options.before
    name = DEBIAN_SECURITY if (family, pocket) == (DEBIAN, SECURITY) else family
    suite = f"{row.suite}-{pocket}" if pocket else row.suite
    if before:
        url, hint, lack = sources.mirror_of(name, before), _SNAPSHOT_HINTS[name], "service with snapshots"
    else:
        url, hint, lack = next(iter(sources.mirrors(name)), ""), _MIRROR_HINTS[name], "mirror"
    if not url:
        raise FetchError(
            f"no {lack} of {_TITLES[name]} is known on this machine, and `{suite}` is needed", hint=hint
        )
    keyring = sources.ubuntu_keyring if family == UBUNTU else sources.keyring
    keyring = keyring or task.context.toolbox() / KEYRINGS[family]
    if not keys and not keyring.is_file():
        raise ToolError(
            f"the keyring `{keyring}` is not there: packages of `{suite}` cannot be trusted without it",
            hint=f"ENVBUILDER_{family.upper()}_KEYRING names it; without that setting, envbuilder's own keys count",
        )
    return AptSource(
        name=name, url=url, suite=suite, components=components, keyrings=keys or (keyring,),
        is_security=pocket == SECURITY, hint=hint,
    )  # fmt: skip
