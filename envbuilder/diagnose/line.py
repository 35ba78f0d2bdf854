"""Strip from a log line what programs add to it: colors, control characters, rank labels, times."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

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
    | \[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+
    | (?=[a-z][\w.-]*\d)(?!\w*(?:Error|Exception))[a-z][\w.-]*:\s      # pdsh
    """
)
_FILE_RANK: Final = (
    re.compile(r"rank[-_.]?([0-9]{1,6})(?![0-9])", re.IGNORECASE),
    re.compile(r"(?:^|/)([0-9]{1,6})/std(?:out|err)\.log$"),  # torchrun --log-dir
    re.compile(
        r"(?:trace|nccl|fr|recorder)\w*?[-_.]([0-9]{1,6})(?:\.(?:json|pkl|pickle))?$"
    ),  # flight recorder
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
