"""The lines of a requirements file, and the arguments of `pip install`, as pip reads them.

`packaging` reads a requirement. What pip puts around it is read here: continued lines, comments, options, and
requirements that name a folder, a file or a repository. pip's page "Requirements File Format" defines it.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from envbuilder.core.text.redact import without_credentials

LONGEST_LINE: Final = 1 << 15
INDEXES: Final = ("--index-url", "--extra-index-url", "--find-links")
_LONG: Final = {
    "-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links", "-t": "--target",
}  # fmt: skip
_WITH_VALUE: Final = (
    *_LONG.values(), "--extra-index-url", "--trusted-host", "--prefix", "--root", "--src", "--no-binary", "--only-binary",
    "--cache-dir", "--timeout", "--retries", "--default-timeout", "--progress-bar", "--hash", "--global-option",
    "--install-option", "--config-setting", "--config-settings", "--use-feature", "--log", "--proxy", "--cert", "--python-version",
    "--platform", "--abi", "--implementation", "--upgrade-strategy", "--root-user-action",
)  # fmt: skip
# Options that change how pip works, and not what it installs. Some stand in the arguments of `pip install` alone.
NO_MATTER: Final = (
    "--no-cache-dir", "--upgrade", "-U", "--quiet", "-q", "--user", "--no-input", "-y", "--yes", "-v", "--verbose",
    "--disable-pip-version-check", "--no-warn-script-location", "--break-system-packages", "--no-build-isolation",
    "--root-user-action", "--force-reinstall", "--ignore-installed", "-I", "--prefer-binary", "--require-hashes",
    "--cache-dir", "--timeout", "--retries", "--default-timeout", "--progress-bar", "--trusted-host", "--only-binary",
    "--use-feature",
)  # fmt: skip
_SOURCES: Final = (".tar.gz", ".tgz", ".zip")
_FILES: Final = (".whl", ".tar.bz2", *_SOURCES)
_REPOSITORY: Final = re.compile(r"(git|hg|svn|bzr)\+")
_NAMED: Final = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*@\s*(?=\S)")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A requirement that says where its project is, instead of a version. Only `text` may hold a password."""

    text: str
    name: str  # for Python; of the project where it is given, otherwise of its folder or file
    git: str = ""  # the address of a repository
    revision: str = ""
    path: str = ""  # a folder here, or below the top of the repository; "." for the folder itself
    url: str = ""  # the address of an archive of sources
    sha256: str = ""
    is_file: bool = False  # a wheel, or an archive at `path`

    @property
    def commit(self) -> str:
        """Return the revision if it is a whole commit, otherwise ""."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""

    def entry(self, *, commit: str = "") -> str:
        """Return the entry of `extensions` that brings it."""
        parts = [f"name: {self.name}"]
        if self.git:
            parts += [f"git: {self.git}", f"commit: {commit or self.commit or 'COMMIT'}"]
        if self.url:
            parts += [f"url: {self.url}", f"sha256: {self.sha256 or 'SHA256'}"]
        if self.path:
            parts.append(f"path: {self.path}")
        return f"{{{', '.join(parts)}}}"


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, continued ones joined, each with the number that it begins on."""
    start, parts = 0, list[str]()
    # An empty last line ends what a backslash continues.
    for number, line in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        is_comment = line.lstrip().startswith("#")  # ends a continued line, as in pip
        start = start or number
        parts.append(f" {line}" if is_comment else line.removesuffix("\\"))
        if line.endswith("\\") and not is_comment:
            continue
        if whole := re.sub(r"(^|\s)#.*", "", "".join(parts)).strip():
            yield start, whole
        start, parts = 0, []


def split_line(line: str) -> list[str]:
    """Split a line into its requirement, if it has one, and the words of its options; raises ValueError for an open quotation."""
    words = line.split(" ")
    begin = next((at for at, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)), len(words))
    requirement = " ".join(words[:begin]).strip()
    return [*([requirement] if requirement else []), *shell_words(" ".join(words[begin:]))]


def shell_words(text: str) -> list[str]:
    """Split a line as a shell does; raises ValueError for an open quotation and for an endless line.

    The time that shlex takes grows with the square of a word's length.
    """
    if len(text) > LONGEST_LINE:
        raise ValueError(f"a line of more than {LONGEST_LINE} characters")
    return shlex.split(text)


def split_arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option by its long name with its value, and each requirement with "" for the option."""
    rest = iter(words)
    for word in rest:
        option, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = _LONG.get(option, option)
        if not word.startswith("-") or word == "-":
            yield "", word
        elif len(word) > 2 and word[:2] in _LONG:  # -rFILE
            yield _LONG[word[:2]], word[2:]
        else:
            yield option, next(rest, "") if option in _WITH_VALUE and not sign else value


def parse_direct(text: str) -> Direct | None:
    """Return where a requirement's project is, None for one that names a version."""
    named = _NAMED.match(text)
    place = text.partition(";")[0].strip()
    is_place = "://" in place or "/" in place or place in (".", "..") or place.startswith((".[", "file:"))
    return parse_place(text) if named or is_place or place.endswith(_FILES) else None


def parse_place(text: str) -> Direct:
    """Return the project of an argument that names no version, such as that of `--editable`."""
    named = _NAMED.match(text)
    place = re.split(r"\s+;|;\s", text[named.end() :] if named else text, maxsplit=1)[0].strip()
    given = named[1] if named else ""
    if _REPOSITORY.match(place) or "://" in place:
        return _remote(text, place, given)
    path = re.sub(r"\[[^\]]*\]$", "", place.removeprefix("file:"))
    path = re.sub(r"^(\./+)+(?=.)", "", path).rstrip("/") or path
    return Direct(text=text, name=_module(given or path), path=path, is_file=path.endswith(_FILES))


def _remote(text: str, place: str, given: str) -> Direct:
    address, _, fragment = without_credentials(place).partition("#")
    fields = {key: values[0] for key, values in parse_qs(fragment).items()}
    parts = urlsplit(address.removeprefix("git+"))
    name = given or re.sub(r"\[.*", "", fields.get("egg", ""))
    is_git = address.startswith("git+")
    if parts.scheme == "file" and not is_git:
        name, is_file = _module(name or parts.path), parts.path.endswith(_FILES)
        return Direct(text=text, name=name, path=parts.path, is_file=is_file)
    path, _, revision = parts.path.rpartition("@") if "@" in parts.path else (parts.path, "", "")
    if parts.scheme in ("http", "https") and path.endswith(_SOURCES):
        return Direct(text=text, name=_module(name or path), url=address, sha256=fields.get("sha256", ""))
    if not is_git:
        return Direct(text=text, name=_module(name or path), is_file=True)
    git, below = parts._replace(path=path).geturl(), fields.get("subdirectory", "").strip("/")
    return Direct(text=text, name=_module(name or path), git=git, revision=revision, path=below)


def _module(text: str) -> str:
    """Return a name that Python can import: the last part of a path, without a file's version."""
    last = text.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"\W", "_", re.split(r"-\d", last, maxsplit=1)[0] if last.endswith(_FILES) else last)
    return name.strip("_").lower() or "project"
