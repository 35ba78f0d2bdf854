"""Read the words of released programs out of their packages, and compare them with `diagnose`: `python -m scripts.read_words`.

Of a wheel, only members with words are fetched: Python files, and of a library the part up to its GPU code. A cache keeps the
strings, so a second run fetches new releases alone.
"""

import argparse
import ast
import io
import json
import os
import re
import struct
import sys
import tarfile
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, get_args

import yaml
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.cache import save_bytes, save_text
from envbuilder.core.process import ProcessRunner
from envbuilder.diagnose.catalogue import load_catalogue
from envbuilder.diagnose.scan import Search
from envbuilder.sources.fetch.source_client import Index, Listed
from envbuilder.sources.names import probe_sources

TABLES: Final = Path(__file__).parents[1] / "tests/diagnose"
READING: Final = "reading.yaml"
SOURCES: Final = "sources.yaml"
WORDS: Final = "words.yaml"
NEW: Final = "new"
CACHE: Final = Path.home() / ".cache/envbuilder-words"
HEAD: Final = """\
# Words that releases print about failures, and what `diagnose` does with them. `python -m scripts.read_words` writes this file.
#
# matched   a pattern of the catalogue or a string of `sources.yaml` knows it
# quoted    an exception of Python, or a warning of NCCL: `diagnose` quotes the words as they are
# silent    left to the log for a reason in `reading.yaml`
# unknown   none of these
# gone      strings of `sources.yaml` that the newest release does not have, with the last release that has them"""
_STRING: Final = re.compile(rb"[\t\n\x1b\x20-\x7e]{8,2000}(?=\0)")
_FATBIN: Final = b"\x50\xed\x55\xba\x01\x00\x10\x00"  # begins GPU code, and no more words follow
_BLOCK: Final = 4 << 20
_READABLE: Final = 4  # the flags of a segment with constants alone
_PHRASE: Final = re.compile(r"[A-Za-z]{2,}[:,']? +\W{0,3}[A-Za-z{%]")
_CODE: Final = re.compile(r"INTERNAL ASSERT|&& \"|to be true, but got false|::|-> \(|^\*")
_WRITES: Final = re.compile(r"(?:.*_)?(?:warn|warning|error|exception|critical|fatal|print)")
_KEEPS: Final = re.compile(r"(?:.*_)?(?:msg|message|error|err|warning)", re.IGNORECASE)
_PLACES: Final = re.compile(
    r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[diuxXpcsfger]|\$?\{[^{}]*\}"
)
_LONG: Final = 16  # letters of a message that has no other meaning
_SHORT: Final = 6  # letters of a part of a message that may be anywhere
_RAISED: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Timeout|Failure|Exit|Interrupt)(?:: |$)")
_NCCL_WARNING: Final = "EB806"  # quotes any
_WORD: Final = re.compile(r"[A-Za-z']{2,}")
_EXCEPTION: Final = re.compile(r"\w+(?:Error|Exception|Failure|Timeout)")


Words = dict[str, list[str]]  # by the path of the file in the package
Verdict = Literal["matched", "quoted", "silent", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is read of one program, as `tests/diagnose/reading.yaml` explains."""

    name: str
    packages: Sequence[str]
    since: str
    python: str = "(?!)"
    libraries: Sequence[str] = ()
    every: int = 1
    before: str = ""
    mixed: bool = False


def releases(
    program: Program, files: Sequence[Listed], wanted: AbstractSet[str] = frozenset()
) -> dict[Version, Listed]:
    """Return the file to read of each release, oldest first: the last patch of a minor version, and those that are wanted."""
    by_version: dict[Version, Listed] = {}
    for listed in files:
        try:
            if listed.filename.endswith(".whl"):
                version = parse_wheel_filename(listed.filename)[1]
            else:
                version = parse_sdist_filename(listed.filename)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        is_wheel = re.search(r"(?:linux[^-]*_x86_64|-any)\.whl$", listed.filename) is not None
        is_final = not (version.is_prerelease or version.local or listed.yanked)
        is_first = listed.filename.endswith(".tar.gz") and version not in by_version
        if is_final and version >= Version(program.since) and (is_wheel or is_first):
            by_version[version] = listed
    minors = {(version.major, version.minor): version for version in sorted(by_version)}
    chosen = list(minors.values())
    also = {version for version in by_version if str(version) in wanted}
    return {
        version: by_version[version] for version in sorted({*chosen[:: program.every], *chosen[-1:], *also})
    }


def read(program: Program, listed: Listed, index: Index, cache: Path) -> Words:
    """Return the strings of a file by the path of the member that has them."""
    python = _cached(cache / f"{listed.filename}.py.z", lambda: _read_python(program, listed, index))
    libraries = _cached(cache / f"{listed.filename}.so.z", lambda: _read_libraries(program, listed, index))
    return python | libraries


def _cached(path: Path, words: Callable[[], Words]) -> Words:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {member: strings for member, strings in words().items() if strings}
        save_bytes(path, zlib.compress(json.dumps(kept).encode()))
    loaded: Words = json.loads(zlib.decompress(path.read_bytes()))
    return loaded


def _read_python(program: Program, listed: Listed, index: Index) -> Words:
    if not listed.filename.endswith(".whl"):
        with tarfile.open(fileobj=io.BytesIO(index.read(listed))) as archive:
            members = [
                member for member in archive if re.fullmatch(program.python, member.name) and member.isfile()
            ]
            contents = [(member.name, archive.extractfile(member)) for member in members]
            return {
                name.partition("/")[2]: sorted(python_strings(content.read()))
                for name, content in contents
                if content
            }
    with index.open(listed) as wheel:
        paths = [path for path in wheel.namelist() if re.fullmatch(program.python, path)]
        return {path: sorted(python_strings(wheel.read(path))) for path in paths}


def _read_libraries(program: Program, listed: Listed, index: Index) -> Words:
    words: Words = {}
    for library in program.libraries:
        with index.open(listed) as wheel:  # anew for each, as what may be read of one is bounded
            for path in (path for path in wheel.namelist() if path.endswith(library)):
                with wheel.open(path) as stream:
                    words[path] = sorted(library_strings(stream))
    return words


def library_strings(stream: IO[bytes]) -> set[str]:
    """Return the phrases among a library's constants. Reads up to the code for GPUs, or to the last constant."""
    head = stream.read(_BLOCK)
    if head[:4] != b"\x7fELF":
        return set()
    table, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
    segments = [struct.unpack_from("<IIQQQQ", head, table + 56 * number) for number in range(count)]
    loads = [(flags, start, start + size) for kind, flags, start, _, _, size in segments if kind == 1]
    constants = [(start, end) for flags, start, end in loads if flags == _READABLE and start]
    spans = constants or [(0, max(end for _, _, end in loads))]
    strings, place, data = set[str](), 0, head
    while data and place < spans[-1][1]:
        fatbin = -1
        for start, end in spans:
            part = data[max(start - place, 0) : max(end - place, 0)]
            fatbin = part.find(_FATBIN)
            found = (match[0].decode() for match in _STRING.finditer(part[: fatbin if fatbin >= 0 else None]))
            strings.update(string for string in found if _is_phrase(string))
            if fatbin >= 0:
                return strings
        kept = data[-4096:]
        place += len(data) - len(kept)
        more = stream.read(_BLOCK)
        if not more:
            break
        data = kept + more
    return strings


def _is_phrase(string: str) -> bool:
    return _PHRASE.search(string) is not None and _CODE.search(string) is None


def python_strings(source: bytes) -> set[str]:
    """Return what Python code raises (as `Error: words`), warns of, logs as an error, or keeps as a message."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # of a newer Python
        return set()
    strings = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=function, args=arguments)):
                strings.update(f"{_name(function)}: {text}" for part in arguments for text in _texts(part))
            case ast.Call(func=function, args=arguments) if _WRITES.fullmatch(_name(function)):
                strings.update(text for part in arguments for text in _texts(part))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _KEEPS.fullmatch(name):
                strings.update(_texts(value))
            case ast.ClassDef(name=name) if _EXCEPTION.fullmatch(name):
                strings.add(name)
            case _:
                pass
    return strings


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _texts(node: ast.AST) -> Iterator[str]:
    text = _text(node)
    if text is not None:
        yield text
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _text(node: ast.AST) -> str | None:
    """Return a string or a sum of strings, with the places of its values as the source has them."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = _text(left), _text(right)
            if None not in texts:
                return "".join(text or "" for text in texts)
        case _:
            pass
    return None


def filled(text: str) -> str:
    """Return a format string with values in its places."""
    return _PLACES.sub(lambda place: "x1" if place[0][-1] == "s" else "7", text)


def holds(text: str, says: str) -> bool:
    """Return whether a text has the parts of a format string that stand between its places."""
    parts = [part.strip() for part in _PLACES.split(says)]
    return all(part in text for part in parts if len(part) >= _SHORT) and max(map(len, parts)) >= _SHORT


class Judge:
    """Tells which messages are about failures, and what `diagnose` does with them."""

    def __init__(self, reading: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
        self._search = Search(load_catalogue())
        self._subject, self._tone, self._other = (
            re.compile("|".join(reading[name]), re.IGNORECASE) for name in ("subject", "tone", "other")
        )
        self._silent = [re.compile(pattern) for row in reading["silent"] for pattern in row["like"]]
        self.unused = {pattern.pattern for pattern in self._silent}
        self._rows = {program["name"]: program["strings"] for program in sources["programs"]}
        self._verdicts: dict[tuple[str, str], Verdict] = {}

    def messages(self, program: Program, words: Words) -> dict[str, str]:
        """Return the files of the messages of failure about collectives, stores, NCCL, CUDA and IPC."""
        chosen = {
            path: strings for path, strings in words.items() if path.endswith(".py") or not program.mixed
        }
        return {text: path for path, strings in chosen.items() for text in strings if self._is_about(text)}

    def _is_about(self, text: str) -> bool:
        is_message = len(_WORD.findall(text)) > 2 and self._tone.search(text) and self._subject.search(text)
        return bool(is_message) and not self._other.search(text)

    def verdict(self, program: Program, text: str) -> Verdict:
        """Return what `diagnose` does with a message."""
        if (program.name, text) not in self._verdicts:
            self._verdicts[program.name, text] = self._judge(program, text)
        return self._verdicts[program.name, text]

    def _judge(self, program: Program, text: str) -> Verdict:
        line = f"{program.before}{filled(text)}".replace("\n", " ")
        codes = {failure.code for failure, _, _ in self._search.failures(line.encode())}
        strings = [row["says"] for rows in self._rows.values() for row in rows if len(row["says"]) > _LONG]
        if codes - {_NCCL_WARNING} or any(holds(text, says) or text.strip() in says for says in strings):
            return "matched"
        if codes or _RAISED.match(text):
            return "quoted"
        pattern = next((pattern for pattern in self._silent if pattern.search(text)), None)
        self.unused -= {pattern.pattern} if pattern else set()
        return "silent" if pattern else "unknown"

    def strings(self, program: Program, words: Words) -> Iterator[tuple[str, str]]:
        """Yield code and text of the strings in `sources.yaml` that a release has."""
        texts = "\n".join(text for strings in words.values() for text in strings)
        pairs = ((row["code"], row["says"]) for row in self._rows.get(program.name, ()))
        yield from (pair for pair in pairs if holds(texts, pair[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What was read of one release."""

    program: Program
    package: str
    version: Version
    words: Words


def read_all(index: Index, programs: Sequence[Program]) -> Iterator[Release]:
    """Read the releases of these programs, with every NCCL that a torch requires."""
    required = {row.nccl for row in load_torches().rows if row.nccl}
    for program in programs:
        for package in program.packages:
            for version, listed in releases(program, index.files(package), required).items():
                sys.stderr.write(f"{listed.filename}\n")
                words = read(program, listed, index, CACHE)
                yield Release(program=program, package=package, version=version, words=words)


def table(every: Sequence[Release], judge: Judge) -> str:
    """Return the text of `words.yaml`."""
    lines = [HEAD, "releases:"]
    last: dict[tuple[str, str, str], Version] = {}
    newest: dict[str, Version] = {}
    for release in every:
        name, version = release.program.name, release.version
        counts = Counter(
            judge.verdict(release.program, text) for text in judge.messages(release.program, release.words)
        )
        numbers = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in get_args(Verdict))
        lines.append(
            f'  - {{program: "{name}", package: {release.package}, version: "{version}", {numbers}}}'
        )
        newest[name] = max(version, newest.get(name, version))
        for code, says in judge.strings(release.program, release.words):
            last[name, code, says] = max(version, last.get((name, code, says), version))
    gone = {key: version for key, version in sorted(last.items()) if version < newest[key[0]]}
    lines += ["gone:"] + [
        f'  - {{program: "{name}", code: {code}, last: "{version}", says: {json.dumps(says)}}}'
        for (name, code, says), version in gone.items()
    ]
    return "\n".join(lines) + "\n"


def shown(every: Sequence[Release], judge: Judge, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield version, path and text of the messages with a verdict; `new` are those that first appear in unlisted releases."""
    path = TABLES / WORDS
    listed = yaml.safe_load(path.read_text("utf-8"))["releases"] if path.exists() else ()
    read_before = {(row["package"], row["version"]) for row in listed}
    messages = [(release, judge.messages(release.program, release.words)) for release in every]
    old = {
        text for one, texts in messages if (one.package, str(one.version)) in read_before for text in texts
    }
    for release, texts in messages:
        for text, path_of in texts.items():
            verdict = judge.verdict(release.program, text)
            if verdict == kind or (kind == NEW and verdict != "matched" and text not in old):
                yield str(release.version), path_of, text


def matches(every: Sequence[Release], words: str) -> Iterator[tuple[str, str, str]]:
    """Yield version, path and text of the strings that have these words."""
    for release in every:
        for path, strings in release.words.items():
            for text in (text for text in strings if words.lower() in text.lower()):
                yield str(release.version), path, text


def main(arguments: list[str]) -> int:
    """Read, compare, and write the table. Returns 1 if a message is unknown, after printing it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.read_words", description=__doc__)
    parser.add_argument("programs", nargs="*", help="read these alone, and write no table")
    parser.add_argument("--find", help="print the strings with this text, and write no table")
    parser.add_argument(
        "--show", choices=(*get_args(Verdict), NEW), default="unknown", help="print these messages"
    )
    options = parser.parse_args(arguments)
    reading, sources = (yaml.safe_load((TABLES / name).read_text("utf-8")) for name in (READING, SOURCES))
    programs = [Program(**row) for row in reading["programs"]]
    chosen = [program for program in programs if program.name in options.programs or not options.programs]
    judge = Judge(reading, sources)
    every = list(read_all(Index(probe_sources(os.environ, ProcessRunner(os.environ))), chosen))
    versions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for version, path, text in (
        matches(every, options.find) if options.find else shown(every, judge, options.show)
    ):
        versions[path, text].append(version)
    for (path, text), found_in in sorted(versions.items()):
        sys.stdout.write(f"{path} [{found_in[0]} to {found_in[-1]}, {len(found_in)}]: {text!r}\n")
    if not (options.programs or options.find):
        save_text(TABLES / WORDS, table(every, judge))
        sys.stdout.writelines(f"note: no message has `{pattern}`\n" for pattern in sorted(judge.unused))
    return int(options.show == "unknown" and bool(versions) and not options.find)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
