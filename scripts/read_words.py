"""Read the words of released programs out of their packages, and compare them with `diagnose`: `python -m scripts.read_words`.

Of a wheel, only members with words are fetched: Python files, and of a library the part up to its GPU code. A cache keeps the
strings, so a second run fetches new releases alone.
"""

import argparse
import ast
import contextlib
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, get_args

import yaml
from packaging import utils
from packaging.version import Version

from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.cache import save_bytes, save_text
from envbuilder.core.process import ProcessRunner
from envbuilder.diagnose.catalogue import load_catalogue
from envbuilder.diagnose.scan import Search
from envbuilder.sources.fetch.source_client import Index, Listed
from envbuilder.sources.names import probe_sources

TABLES: Final = Path(__file__).parents[1] / "tests/diagnose"
FILES: Final = ("reading.yaml", "sources.yaml", "words.yaml")
CACHE: Final = Path.home() / ".cache/envbuilder-words"
_STRING: Final = re.compile(rb"[\t\n\x1b\x20-\x7e]{8,2000}(?=\0)")
_FATBIN: Final = b"\x50\xed\x55\xba\x01\x00\x10\x00"  # begins GPU code, and no more words follow
_WHEEL: Final = re.compile(r"(?:linux[^-]*_x86_64|-any)\.whl$")
_BLOCK: Final = 4 << 20
_OVERLAP: Final = 4096  # bytes of a string that two blocks share
_PHRASE: Final = re.compile(r"[A-Za-z]{2,}[:,']? +\W{0,3}[A-Za-z{%]")
_CODE: Final = re.compile(r"INTERNAL ASSERT|&& \"|to be true, but got false|::|-> \(|^\*")
_WRITES: Final = re.compile(r"(?:.*_)?(?:warn|warning|error|exception|critical|fatal|print)")
_KEEPS: Final = re.compile(r"(?:.*_)?(?:msg|message|error|err|warning)", re.IGNORECASE)
_PLACES: Final = re.compile(r"%[-+ #0]*[\d*]*\.?[\d*]*(?:hh?|ll?|[zj])?[diuxXpcsfger]|\$?\{[^{}]*\}")
_LONG: Final = 16  # letters of a message that has no other meaning
_SHORT: Final = 6  # letters of a part of a message that may be anywhere
_RAISED: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Timeout|Failure|Exit|Interrupt)(?:: |$)")
_WORD: Final = re.compile(r"[A-Za-z']{2,}")
_NCCL_WARNING: Final = "EB806"  # quotes any


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


def releases(program: Program, files: Iterable[Listed], wanted: Collection[str]) -> dict[Version, Listed]:
    """Return the file to read of each release: the last patch of a minor version, and the versions that are wanted."""
    by_version: dict[Version, Listed] = {}
    for listed in files:
        is_wheel = listed.filename.endswith(".whl")
        with contextlib.suppress(utils.InvalidWheelFilename, utils.InvalidSdistFilename):
            parse = utils.parse_wheel_filename if is_wheel else utils.parse_sdist_filename
            version = parse(listed.filename)[1]
            is_early = version.is_prerelease or version.local or version < Version(program.since)
            is_better = _WHEEL.search(listed.filename) or not (is_wheel or version in by_version)
            if is_better and not (is_early or listed.yanked):
                by_version[version] = listed
    minors = list({version.release[:2]: version for version in sorted(by_version)}.values())
    also = (version for version in by_version if str(version) in wanted)
    chosen = sorted({*minors[:: program.every], *minors[-1:], *also})
    return {version: by_version[version] for version in chosen}


def read(program: Program, listed: Listed, index: Index, cache: Path) -> Words:
    """Return the strings of a file by the path of the member that has them."""
    words: Words = {}
    cache.mkdir(parents=True, exist_ok=True)
    for kind, read_part in (("py", _read_python), ("so", _read_libraries)):
        path = cache / f"{listed.filename}.{kind}.z"
        if not path.exists():
            save_bytes(path, zlib.compress(json.dumps(read_part(program, listed, index)).encode()))
        words |= json.loads(zlib.decompress(path.read_bytes()))
    return words


def _read_python(program: Program, listed: Listed, index: Index) -> Words:
    if not listed.filename.endswith(".whl"):
        with tarfile.open(fileobj=io.BytesIO(index.read(listed))) as archive:
            members = [member for member in archive if re.fullmatch(program.python, member.name)]
            contents = ((member.name.partition("/")[2], archive.extractfile(member)) for member in members)
            return {name: sorted(python_strings(content.read())) for name, content in contents if content}
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
    data = stream.read(_BLOCK)
    table, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    segments = [struct.unpack_from("<IIQQQQ", data, table + 56 * number) for number in range(count)]
    loads = [(flags, start, start + size) for kind, flags, start, _, _, size in segments if kind == 1]
    spans = [(start, end) for flags, start, end in loads if flags == 4 and start]  # readable: constants
    spans = spans or [(0, max(end for _, _, end in loads))]
    strings, place = set[str](), 0
    while True:
        for start, end in spans:
            part, *code = data[max(start - place, 0) : max(end - place, 0)].split(_FATBIN, 1)
            texts = (match[0].decode() for match in _STRING.finditer(part))
            strings.update(text for text in texts if _PHRASE.search(text) and not _CODE.search(text))
            if code:
                return strings
        place += len(data) - _OVERLAP
        more = stream.read(_BLOCK)
        if not more or place >= spans[-1][1]:
            return strings
        data = data[-_OVERLAP:] + more


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
                strings.update(
                    f"{ast.unparse(function).rpartition('.')[2]}: {text}"
                    for part in arguments
                    for text in _texts(part)
                )
            case ast.Call(func=function, args=arguments) if _WRITES.fullmatch(
                ast.unparse(function).rpartition(".")[2]
            ):
                strings.update(text for part in arguments for text in _texts(part))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _KEEPS.fullmatch(name):
                strings.update(_texts(value))
            case ast.ClassDef(name=name) if _RAISED.match(name):
                strings.add(name)
            case _:
                pass
    return strings


def _texts(node: ast.AST) -> Iterator[str]:
    text = _text(node)
    below = (text for child in ast.iter_child_nodes(node) for text in _texts(child))
    yield from below if text is None else [text]


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
            return None if None in texts else "".join(map(str, texts))
        case _:
            return None


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
        strings = (row["says"] for rows in self._rows.values() for row in rows)
        self._says = [says for says in strings if len(says) > _LONG]
        self._verdicts: dict[tuple[str, str], Verdict] = {}

    def messages(self, program: Program, words: Words) -> dict[str, str]:
        """Return the files of the messages of failure about collectives, stores, NCCL, CUDA and IPC."""
        chosen = [path for path in words if path.endswith(".py") or not program.mixed]
        return {text: path for path in chosen for text in words[path] if self._is_about(text)}

    def _is_about(self, text: str) -> bool:
        has_both = self._tone.search(text) and self._subject.search(text)
        return bool(has_both and len(_WORD.findall(text)) > 2 and not self._other.search(text))

    def verdict(self, program: Program, text: str) -> Verdict:
        """Return what `diagnose` does with a message."""
        if (program.name, text) not in self._verdicts:
            self._verdicts[program.name, text] = self._judge(program, text)
        return self._verdicts[program.name, text]

    def _judge(self, program: Program, text: str) -> Verdict:
        filled = _PLACES.sub(lambda place: "x1" if place[0][-1] == "s" else "7", text)
        line = f"{program.before}{filled}".replace("\n", " ")
        codes = {failure.code for failure, _, _ in self._search.failures(line.encode())}
        if codes - {_NCCL_WARNING} or any(holds(text, says) or text.strip() in says for says in self._says):
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


@dataclass(frozen=True, slots=True)
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
                words = read(program, listed, index, CACHE)
                yield Release(program, package, version, words)


def table(every: Sequence[Release], judge: Judge) -> str:
    """Return the text of `words.yaml`."""
    lines = ["# Written by `python -m scripts.read_words`; `reading.yaml` explains it.", "releases:"]
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


def chosen(release: Release, judge: Judge, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield path and text of the strings that the options ask for."""
    if options.find:
        every = ((path, text) for path, strings in release.words.items() for text in strings)
        yield from (pair for pair in every if options.find.lower() in pair[1].lower())
        return
    for text, path in judge.messages(release.program, release.words).items():
        verdict = judge.verdict(release.program, text)
        if verdict == options.show or (options.show == "new" and verdict != "matched"):
            yield path, text


def main(arguments: list[str]) -> int:
    """Read, compare, and write the table. Returns 1 if a message is unknown, after printing it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.read_words", description=__doc__)
    parser.add_argument("programs", nargs="*", help="read these alone, and write no table")
    parser.add_argument("--find", help="print the strings with this text instead, and write no table")
    parser.add_argument(
        "--show", choices=(*get_args(Verdict), "new"), default="unknown", help="what to print"
    )
    options = parser.parse_args(arguments)
    reading, sources, before = (yaml.safe_load((TABLES / name).read_text("utf-8")) for name in FILES)
    rows = (row for row in reading["programs"] if not options.programs or row["name"] in options.programs)
    judge = Judge(reading, sources)
    every = list(
        read_all(
            Index(probe_sources(os.environ, ProcessRunner(os.environ))),
            [Program(**row) for row in rows],
        )
    )
    versions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for release in every:
        for place in chosen(release, judge, options):
            versions[place].append(f"{release.package} {release.version}")
    if options.show == "new":
        old = {f"{row['package']} {row['version']}" for row in before["releases"]}
        versions = {place: those for place, those in versions.items() if old.isdisjoint(those)}
    for (path, text), those in sorted(versions.items()):
        sys.stdout.write(f"{path} [{those[0]} to {those[-1]}, {len(those)}]: {text!r}\n")
    if not (options.programs or options.find):
        save_text(TABLES / FILES[-1], table(every, judge))
        sys.stdout.writelines(f"note: no message has `{pattern}`\n" for pattern in sorted(judge.unused))
    return int(options.show == "unknown" and bool(versions) and not options.find)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
