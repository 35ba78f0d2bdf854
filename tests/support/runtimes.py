"""The table of container runtimes in docs/evidence/gpus.md: what each reads, and what image and SIF say to it."""

import re

from tests.support.workbench import ROOT


def said_to_runtimes() -> dict[str, set[tuple[str, str]]]:
    """Return runtime → the variables that the image or the SIF has for it; none where the table says "nothing"."""
    text = (ROOT / "docs/evidence/gpus.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("\n| runtime | reads | the image or SIF says |")
    rows = [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:]]
    said = {runtime: set(re.findall(r"`(\w+)=([^`]+)`", cell)) for runtime, _, cell, *_ in rows}
    assert all(said[runtime] or cell == "nothing" for runtime, _, cell, *_ in rows)
    return said
