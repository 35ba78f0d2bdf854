"""Read the newest wheels and write what they say into the tables of compatibility: `python -m scripts.refresh_tables`."""

import argparse
import os
import sys
from datetime import UTC, datetime

from envbuilder.compat.tables.table import TABLES
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.process import ProcessRunner
from envbuilder.sources.fetch.source_client import Index
from envbuilder.sources.names import probe_sources
from scripts.refresh_tables import NEWEST, refresh


def main(arguments: list[str]) -> int:
    """Print what changed. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.refresh_tables", description=__doc__)
    parser.add_argument("--releases", type=int, default=NEWEST, help="newest releases of torch to read")
    parser.add_argument("--compilers", type=int, default=NEWEST, help="newest CUDA compilers to read")
    parser.add_argument("--check", action="store_true", help="write nothing; print what would change")
    options = parser.parse_args(arguments)
    runner = ProcessRunner(os.environ)
    try:
        changes = refresh(
            Index(probe_sources(os.environ, runner)),
            runner,
            today=datetime.now(UTC).date(),
            releases=options.releases,
            compilers=options.compilers,
            folder=TABLES,
            save=not options.check,
        )
    except EnvbuilderError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return error.exit_code
    done = changes.done or ("the tables are as they were",)
    sys.stdout.writelines(f"{line}\n" for line in (*done, *(f"note: {note}" for note in changes.notes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
