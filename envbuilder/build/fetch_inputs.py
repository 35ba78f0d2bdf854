"""Fetch the inputs of a build, and show the progress."""

from collections.abc import Sequence

from envbuilder.core.console import Console
from envbuilder.core.fetch import Fetcher
from envbuilder.core.sources import Wanted


def fetch_inputs(wanted: Sequence[Wanted], fetcher: Fetcher, console: Console) -> None:
    """Fetch what the store lacks, and show the progress."""
    missing = fetcher.missing(wanted)
    if not missing:
        fetcher.fetch(wanted)
        return
    with console.step(f"fetch {len(missing)} artifacts", sum(one.size for one in missing)) as transfer:
        fetcher.fetch(wanted, transfer)
