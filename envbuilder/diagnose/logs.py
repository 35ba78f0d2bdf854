"""Find the log files and read them in blocks of whole lines, with constant memory.

What programs add to a line is read and stripped here: colors, control characters, rank labels, times.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final, cast

from envbuilder.core.text import redact

log = logging.getLogger(__name__)
BLOCK: Final = 4 << 20
STDIN: Final = "-"
_HEAD: Final = 4096
_LEAST: Final = 64 << 10  # bytes of each log, of however many
_GZIP: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)  # how reading a cut or damaged gzip file ends
# A packed log is read up to this many times its size, and so many bytes beside.
_GROWTH: Final = 100
_SPARE: Final = 2 << 30


class LogError(Exception):
    """A log that cannot be read."""

    hint = "name log files, folders of them, or `-`"


@dataclass(frozen=True)
class Block:
    """Whole lines of one log. A line longer than a block is cut."""

    data: bytes
    line: int  # the number of its first line, from 1


@dataclass(frozen=True)
class Log:
    """One file, or the standard input."""

    name: str
    stream: IO[bytes]
    head: bytes  # its first bytes, also still in the stream
    most: int = sys.maxsize  # bytes that are read
    skipped: int = 0  # lines before the first that is read

    def blocks(self) -> Iterator[Block]:
        """Return the text from here to its end. A live stream gives the text that it has."""
        rest, size, line = list[bytes](), 0, 1 + self.skipped
        for data in self._pieces():
            rest.append(data)
            size += len(data)
            if size < BLOCK and b"\n" not in data:
                continue
            whole = b"".join(rest)
            cut = (whole.rfind(b"\n") + 1) or (whole.rfind(b"\r") + 1) or size
            yield Block(data=whole[:cut], line=line)
            line += whole.count(b"\n", 0, cut)
            rest, size = [whole[cut:]], size - cut
        if size:
            yield Block(data=b"".join(rest), line=line)

    def _pieces(self) -> Iterator[bytes]:
        read = getattr(self.stream, "read1", self.stream.read)
        left = self.most
        try:
            while data := read(BLOCK):
                yield data
                left -= len(data)
                if left < 0:
                    why = "it unpacks to more than a log does"
                    log.warning("%s is read up to %d bytes: %s", redact.plain(self.name), self.most, why)
                    return
        except DAMAGED:
            return  # the text before the damage is used
        except OSError as error:
            raise LogError(f"cannot read `{self.name}`: {error.strerror or error}") from error


def open_logs(names: Sequence[str], stdin: IO[bytes], skipped: list[str], most: int = 0) -> Iterator[Log]:
    """Open each log once, in the order given, files of a folder by name. Raises LogError for one that is not there.

    Files of a folder that may not be read are added to `skipped`. With `most`, only the ends of files are read, so many bytes in all.
    """
    seen: set[tuple[int, int]] = set()
    share = most and max(_LEAST, most // max(1, sum(len(list(_files(Path(name)))) for name in names)))
    for name in names:
        if name == STDIN:
            yield Log(name="<stdin>", stream=stdin, head=b"")
            continue
        files = list(_files(Path(name)))
        if not files:
            raise LogError(f"the folder `{name}` holds no log")
        for path in files:
            if path != Path(name) and not os.access(path, os.R_OK):
                skipped.append(str(path))
                continue
            try:
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key in seen:
                    continue
                seen.add(key)
                with path.open("rb") as raw:
                    yield _open(path, raw, is_regular=stat.S_ISREG(status.st_mode), share=share)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise LogError(f"cannot read `{path}`: {reason}") from error


def _open(path: Path, raw: IO[bytes], *, is_regular: bool, share: int) -> Log:
    head = raw.read(_HEAD) if is_regular else b""  # a pipe has no way back
    if is_regular:
        raw.seek(0)
    if not head.startswith(_GZIP):
        is_text, skipped = is_regular and b"\0" not in head, 0
        while is_text and share and (left := path.stat().st_size - raw.tell() - share) > 0:
            skipped += raw.read(min(left, BLOCK)).count(b"\n")
        return Log(name=str(path), stream=raw, head=head, skipped=skipped)
    packed = gzip.GzipFile(fileobj=raw)
    try:
        head = packed.peek(_HEAD)[:_HEAD]
    except DAMAGED:
        head = b""
    most = _SPARE + _GROWTH * path.stat().st_size
    return Log(name=str(path), stream=cast("IO[bytes]", packed), head=head, most=most)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    older = set(_older_jobs(path))
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            job = file.relative_to(path).parts[0].removesuffix(".log")
            if job not in older and file.suffix not in (".sh", ".pyz") and file.is_file():
                yield file


def _older_jobs(folder: Path) -> list[str]:
    """Return the jobs in a folder of `launch slurm` but the newest: what failed there is not the cause of what fails now."""
    logs = [path for path in folder.glob("*-*.log") if path.with_suffix(".sh").exists()]
    *older, newest = sorted(logs, key=lambda path: path.stat().st_mtime) or [folder]
    if older:
        names = [redact.plain(str(path)) for path in (folder, newest)]
        log.warning("of %d jobs in %s, this is the newest: %s", len(logs), *names)
    return [path.stem for path in older]


_ANSI: Final = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_RANK: Final = (
    re.compile(rb"\[rank(\d{1,6})\]:"),  # torch >= 2.2
    re.compile(rb"\b(?:PG|PG ID) [^\]]{0,80}?Rank (\d{1,6})\]"),
    re.compile(rb"\[Rank (\d{1,6})\]"),
    re.compile(rb"^(?:-- Process (\d{1,6}) terminated)"),  # torch.multiprocessing
    re.compile(rb"\[default(\d{1,6})\]:"),  # torchrun --tee; a local rank
    re.compile(rb"\[\d{1,9},(\d{1,6})\]<std(?:out|err)>"),  # mpirun --tag-output
    re.compile(rb"^\s*(\d{1,5}): "),  # srun --label
)
_LABELS: Final = re.compile(
    rb"""(?x)
    \s*\d{1,5}:\s                                   # srun --label
    | \[rank\d+\]:\s? | \[default\d+\]:\s?          # torch, torchrun --tee
    | \[\d+,\d+\]<std(?:out|err)>:\s?               # mpirun
    | \([\w.:-]+\s(?:rank=\d+,?\s)?pid=\d+[^)]*\)\s # ray
    | \[(?:std(?:out|err)|\d+)\]:?\s
    | [\w.-]+\s+\|{1,2}\s                           # docker compose
    | (?:\w{3}\s+\d+\s[\d:]{8}|\S+T[\d:.,+-]+Z?)\s[\w.-]+\skernel:\s  # journal, syslog
    | \[\s*\d+\.\d{6}\]\s                           # dmesg
    | \[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s
    | (?=[a-z][\w.-]*\d)(?!\w*(?:Error|Exception))[a-z][\w.-]*:\s      # pdsh
    """
)
_FILE_RANK: Final = (
    re.compile(r"rank[-_.]?([0-9]{1,6})(?![0-9])", re.IGNORECASE),
    re.compile(r"(?:^|/)([0-9]{1,6})/std(?:out|err)\.log$"),  # torchrun --log-dir
    # flight recorder
    re.compile(r"(?:trace|nccl|fr|recorder)\w*?[-_.]([0-9]{1,6})(?:\.(?:json|pkl|pickle))?$"),
)
# Each pattern finds month, day, clock and fraction; beside it stands the format of the month.
_TIMES: Final = (
    (re.compile(rb"\d{4}-(\d\d)-(\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"), "%m"),
    # glog: [E1118 20:32:23.95
    (re.compile(rb"\[[EFWI](\d{1,2})(\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?"), "%m"),
    (re.compile(rb"\b([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)\b()"), "%b"),  # syslog
)
_UPTIME: Final = re.compile(r"^\[\s*(\d+\.\d+)\]")
_YEAR: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - many lines name no year and no zone
WIDEST: Final = 2000  # bytes of a line that are kept on either side of a match


def plain(line: bytes) -> bytes:
    """Return the line without colors, other escape sequences and control characters."""
    line = _ANSI.sub(b"", line).rstrip(b"\r\n")
    return _CONTROL.sub(b" ", line).rstrip()


def plain_lines(data: bytes) -> list[bytes]:
    """Return the lines of a text, each as `plain` does; their blanks at the end stay."""
    return [_CONTROL.sub(b" ", _ANSI.sub(b"", line).rstrip(b"\r")) for line in data.split(b"\n")]


def unlabelled(line: bytes) -> bytes:
    """Remove the labels before the program's own words from a plain line; its indentation stays."""
    start = 0
    while (label := _LABELS.match(line, start)) and label.end() > start:
        start = label.end()
    return line[start:]


def rank_of(line: bytes) -> int | None:
    """Return the rank that a plain line names as its writer."""
    return next((int(match[1]) for pattern in _RANK if (match := pattern.search(line))), None)


def rank_of_file(path: str) -> int | None:
    """Return the rank in the name of a file that one rank wrote."""
    return next((int(match[1]) for pattern in _FILE_RANK if (match := pattern.search(path))), None)


def uptime_of(text: str) -> float | None:
    """Return the seconds since the boot that the kernel writes before a line."""
    return float(match[1]) if (match := _UPTIME.match(text)) else None


def time_of(line: bytes) -> float | None:
    """Return the line's own time in seconds, without its year: comparable between lines of one job."""
    for pattern, form in _TIMES:
        if match := pattern.search(line):
            month, day, clock, fraction = ((part or b"").decode() for part in match.groups())
            try:
                moment = datetime.strptime(f"2000 {month} {day} {clock}", f"%Y {form} %d %H:%M:%S")  # noqa: DTZ007
            except ValueError:
                return None
            return (moment - _YEAR).total_seconds() + float(f"0.{fraction or 0}")
    return None
