"""The apt repositories beside those of the base: the recipe's, and others that its base image has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from envbuilder.compat.image_facts import Base, Name
from envbuilder.core.cache import sha256_text
from envbuilder.core.processor import X86_64
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import IMAGE, Repository, for_processor
from envbuilder.recipe.wheel_sources import PlacedWheel, wheel_of
from envbuilder.sources.names import DEBIAN, DEBIAN_SECURITY, HUB, HUB_ADDRESS, RECIPE, UBUNTU, URL, shown

LISTS: Final = re.compile(r"etc/apt/sources\.list(?:\.d/[\w.+-]+\.(?:list|sources))?")
# For sources without Signed-By.
TRUSTED: Final = re.compile(r"etc/apt/trusted\.gpg(?:\.d/[\w.+-]+\.(?:gpg|asc))?")
KEYS: Final = re.compile(rf"(?:usr/share|etc/apt)/keyrings/[\w.+-]+\.(?:gpg|pgp|asc)|{TRUSTED.pattern}")
_LINE: Final = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<url>\S+)\s+(?P<suite>\S+)(?P<rest>.*)")
_FIELD: Final = re.compile(r"^([A-Za-z-]+):((?:[^\n]*)(?:\n[ \t][^\n]*)*)", re.MULTILINE)
_OURS: Final = X86_64.debian
_ARMOR: Final = "-----BEGIN PGP"
_ARCHIVES: Final = (
    DEBIAN,
    DEBIAN_SECURITY,
    UBUNTU,
)  # whole paths of the addresses of distributions' own archives


def repositories(recipe: Recipe, base: Base | None) -> tuple[Repository, ...]:
    """Return the recipe's repositories, then those of its image that the recipe does not name."""
    processor = recipe.processor
    named = tuple(for_processor(repository, processor) for repository in recipe.apt_sources)
    known = {(repository.url, repository.suite) for repository in named}
    names: dict[str, str] = {}  # address → name
    others = []
    for fact in base.every(Name.APT) if base else ():
        listed = parse_line(fact.value)
        if listed is None or (listed.url, listed.suite) in known:
            continue
        stem = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(fact.path).stem.lower()).strip("-")
        more = (f"{IMAGE}{stem}{number}" for number in ("", *(f"-{at}" for at in range(2, 2 + len(names)))))
        name = names.setdefault(listed.url, next(free for free in more if free not in names.values()))
        others.append(replace(listed, name=name))
    return (*named, *others)


def addresses(recipe: Recipe, base: Base | None) -> Mapping[str, str]:
    """Return the address of each repository, index, channel and recipe's folder, by its source.

    Of an archive or a wheel, it is that of its folder.
    """
    remote = (extension for extension in recipe.extensions if extension.url)
    archives = {archive_source(extension): f"{extension.url.rpartition('/')[0]}/" for extension in remote}
    folder = recipe.path.parent.absolute()
    wheels = filter(None, map(wheel_of, recipe.requirements))
    archives |= {wheel.source: f"{wheel.address.rpartition('/')[0]}/" for wheel in wheels}
    archives |= {index.source: index.place for index in recipe.indexes} | recipe.conda.sources
    archives |= {HUB: HUB_ADDRESS} if recipe.kernels else {}
    if RECIPE in archives:
        archives[RECIPE] = f"{folder.as_uri()}/"
    return {repository.source: repository.url for repository in repositories(recipe, base)} | archives


def wheel_address(wheel: PlacedWheel, folder: Path) -> str:
    """Return the address of a wheel that a recipe in this folder names."""
    return (folder.absolute() / wheel.path).as_uri() if wheel.source == RECIPE else wheel.address


def archive_source(extension: Extension) -> str:
    """Return the source of the archive of an extension with `url`."""
    return f"{URL}{extension.sha256[:12]}"


def tag(sources: Sequence[object]) -> str:
    """Return a short text that differs for others of these dataclasses, "" for none."""
    return sha256_text(repr(sources))[:8] if sources else ""


# ---- the apt sources of an image: `sources.list` and the files beside it, in both of apt's forms


def read_lists(texts: Mapping[str, str], codename: str) -> Iterator[tuple[str, str]]:
    """Yield each source beside those of the distribution, which the tables know: the path of its file, and a line of apt's."""
    for path, text in texts.items():
        listed = _read_fields(path, text) if path.endswith(".sources") else map(parse_line, text.splitlines())
        for source in filter(None, listed):
            parts, is_suite = urlsplit(source.url), re.split(r"[-/]", source.suite)[0] == codename
            is_known = is_suite and parts.path.strip("/") in _ARCHIVES
            if parts.scheme in {"http", "https"} and not is_known:
                keys = f"[signed-by={','.join(source.keys)}] " if source.keys else ""
                yield path, " ".join((f"deb {keys}{source.url}", source.suite, *source.components))


def inline_keys(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the keys inside `.sources` files, each by the path that its sources name."""
    keys = {}
    for path, text in texts.items():
        for number, fields in enumerate(_stanzas(text) if path.endswith(".sources") else ()):
            if _ARMOR in fields.get("signed-by", ""):
                lines = (line.strip() for line in fields["signed-by"].strip().splitlines())
                key = "".join("\n" if line == "." else f"{line}\n" for line in lines)
                keys[_inline(path, number)] = key.encode()
    return keys


def parse_line(line: str) -> Repository | None:
    """Return the source of a line of apt's, None for another line."""
    match = _LINE.fullmatch(line.partition("#")[0].strip())
    if match is None:
        return None
    options = dict(word.partition("=")[::2] for word in (match["options"] or "").split())
    if _OURS not in options.get("arch", _OURS).split(","):
        return None
    return _listed(match["url"], match["suite"], match["rest"].split(), options.get("signed-by", ""))


def _read_fields(path: str, text: str) -> Iterator[Repository]:
    for number, fields in enumerate(_stanzas(text)):
        machines = fields.get("architectures", _OURS).split()
        if "deb" not in fields.get("types", "").split() or _OURS not in machines:
            continue
        if fields.get("enabled", "yes").strip().lower() in {"no", "false", "off", "0"}:
            continue
        keys = fields.get("signed-by", "")
        keys = f"/{_inline(path, number)}" if _ARMOR in keys else ",".join(keys.split())
        for url in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield _listed(url, suite, fields.get("components", "").split(), keys)


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    plain = "\n".join(line.rstrip() for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\n+", plain):
        yield {name.lower(): value for name, value in _FIELD.findall(stanza)}


def _inline(path: str, number: int) -> str:
    return f"{path}-{number}.asc"


def _listed(url: str, suite: str, components: list[str], keys: str) -> Repository:
    """Return a source without a name. A password in the address is left out: facts go into the lock.

    Without keys, those count that apt trusts for every source.
    """
    variable = "$(ARCH)"
    return Repository(
        name="",
        url=shown(url.replace(variable, _OURS)).rstrip("/") + "/",
        suite=suite.replace(variable, _OURS),
        components=tuple(components),
        keys=tuple(key for key in keys.split(",") if key.startswith("/")),
    )
