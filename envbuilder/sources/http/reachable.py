"""Check in parallel whether sources answer, with a short timeout."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from envbuilder.sources.http import RequestLimits, SourceError, TransientError
from envbuilder.sources.names import file_path, shown

SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The answer of one source. `trouble` is empty if it answered."""

    url: str  # without credentials
    trouble: str
    skew: float | None = None  # seconds that our clock is ahead of its own
    setting: str = ""  # names another source in its place


def reach(urls: Sequence[str], certificates: Path | None) -> tuple[Reached, ...]:
    """Request each front page. A status below 500 counts as an answer."""
    if not urls:
        return ()
    with ThreadPoolExecutor(len(urls)) as pool:
        return tuple(pool.map(lambda url: _reach(url, certificates), urls))


def silent(urls: Iterable[str], certificates: Path | None) -> tuple[str, ...]:
    """Return those of these addresses that HTTP reaches and that do not answer."""
    asked = [url for url in urls if urlsplit(url).scheme in ("http", "https")]
    return tuple(source.url for source in reach(asked, certificates) if source.trouble)


def _reach(url: str, certificates: Path | None) -> Reached:
    path = file_path(url)
    if path is not None:
        return Reached(url=shown(url), trouble="" if path.exists() else "there is no such folder")
    from envbuilder.sources.http.session import HttpSession  # noqa: PLC0415 - a quarter of what `doctor --help` takes

    session = HttpSession(certificates, limits=RequestLimits(window=SECONDS, answer=SECONDS, wait=SECONDS))
    try:
        with session.send("GET", url) as answer:
            date, status = answer.headers.get("Date", ""), answer.status_code
    except SourceError as error:
        return Reached(url=shown(url), trouble=error.why)
    except TransientError as error:
        return Reached(url=shown(url), trouble=str(error))
    trouble = f"it answers with status {status}" if status >= 500 else ""
    return Reached(url=shown(url), trouble=trouble, skew=_skew(date))


def _skew(date: str) -> float | None:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
