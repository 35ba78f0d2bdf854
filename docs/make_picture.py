"""Make `docs/build.svg`: what a terminal shows of a real build of `cpu`, with its packages fetched and nothing built yet.

.venv/bin/python docs/make_picture.py
"""

import io
import re
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import pages  # noqa: E402 - the path comes first
from tests.support.tmux import terminal  # noqa: E402
from tests.support.workbench import ENVBUILDER, cache_with_artifacts, open_folder  # noqa: E402

OUT: Final = ROOT / "docs/build.svg"
COMMAND: Final = "envbuilder build cpu"
WIDTH: Final = 124  # of the line with the SIF's digest
HOME: Final = "/home/you/project"  # instead of the temporary folder
SECONDS: Final = 1800


def main() -> None:
    with open_folder() as folder:
        pages.place(folder)
        cache = cache_with_artifacts(folder, "cpu")
        env = {"ENVBUILDER_CACHE": str(cache), "COLORTERM": "truecolor"}
        with terminal(folder, folder, width=2 * WIDTH, **env) as screen:
            screen.start(ENVBUILDER, *COMMAND.split()[1:], "--offline")
            assert screen.code(SECONDS) == 0, "\n".join(screen.screen())
            text = "\n".join(screen.screen(colors=True)).replace(str(folder), HOME)
    OUT.write_text(svg(f"$ {COMMAND}\n{text}"), encoding="utf-8")


def svg(text: str) -> str:
    """Draw lines of a terminal, without fonts of another host."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.removesuffix("\n>")), soft_wrap=True)
    drawn = console.export_svg(title=COMMAND, unique_id="build")
    return re.sub(r" *@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL).replace("Fira Code, ", "")


if __name__ == "__main__":
    main()
