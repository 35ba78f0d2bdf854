"""Read the apt sources of an image: `sources.list` and the files beside it, in both of apt's forms."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from envbuilder.core.processor import X86_64
from envbuilder.sources.names import DEBIAN, DEBIAN_SECURITY, UBUNTU, shown

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A source of packages for our processor."""

    url: str
    suite: str
    components: tuple[str, ...]
    keys: tuple[str, ...]  # paths in the image; none: those that apt trusts for every source

    def __str__(self) -> str:
        """Return it as a line of apt's, as facts keep it."""
        keys = f"[signed-by={','.join(self.keys)}] " if self.keys else ""
        return " ".join((f"deb {keys}{self.url}", self.suite, *self.components))

    def is_of(self, codename: str) -> bool:
        """Return whether it is the distribution's own, which the tables know."""
        whole = urlsplit(self.url).path.strip("/")
        return whole in _ARCHIVES and re.split(r"[-/]", self.suite)[0] == codename


def read_lists(texts: Mapping[str, str]) -> Iterator[tuple[str, Listed]]:
    """Yield each source with the path of its file."""
    for path, text in texts.items():
        found = _read_fields(path, text) if path.endswith(".sources") else map(parse_line, text.splitlines())
        yield from ((path, one) for one in found if one and urlsplit(one.url).scheme in {"http", "https"})


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


def parse_line(line: str) -> Listed | None:
    """Return the source of a line of apt's, None for another line."""
    match = _LINE.fullmatch(line.partition("#")[0].strip())
    if match is None:
        return None
    options = dict(word.partition("=")[::2] for word in (match["options"] or "").split())
    if _OURS not in options.get("arch", _OURS).split(","):
        return None
    return _listed(match["url"], match["suite"], match["rest"].split(), options.get("signed-by", ""))


def _read_fields(path: str, text: str) -> Iterator[Listed]:
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


def _listed(url: str, suite: str, components: list[str], keys: str) -> Listed:
    """A password in the address is left out: facts go into the lock."""
    variable = "$(ARCH)"
    return Listed(
        url=shown(url.replace(variable, _OURS)).rstrip("/") + "/",
        suite=suite.replace(variable, _OURS),
        components=tuple(components),
        keys=tuple(key for key in keys.split(",") if key.startswith("/")),
    )
