"""Run a real browser without a window, to see what a page shows."""

import re
import struct
from pathlib import Path

from tests.support.workbench import attempt

# The browser's sandbox does not work as root, and the tests run as root in CI.
BROWSER = ("chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


def browse(
    page: Path, scratch: Path, *options: str, size: tuple[int, int] = (1200, 3000)
) -> tuple[str, set[str]]:
    """Return what the page prints, and every address on another machine that it requested."""
    log = scratch / "net.json"
    ended = attempt(
        *BROWSER, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={scratch / 'profile'}",
        f"--log-net-log={log}", *options, page.as_uri(), timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, set(re.findall(r'"url":"(https?://[^"]*)', log.read_text()))


def picture(page: Path, scratch: Path, shot: Path, size: tuple[int, int] = (1200, 3000)) -> bytes:
    """Return a screenshot of this size as PNG."""
    browse(page, scratch, f"--screenshot={shot}", size=size)
    data = shot.read_bytes()
    assert struct.unpack(">II", data[16:24]) == size
    return data
